// What a module of PTX becomes calls of, beside what its instructions do (shared/ptx/src/cpp.rs): included by ptx.h.
#pragma once
// A statement: what it becomes has the place of this word, whatever stands in it.
#define EMU_AT(...) __VA_ARGS__

// What the blocks of a cooperative launch meet at, where a kernel brings the code for that along (%envreg1, %envreg2).
alignas(16) static uint32_t emu_grid_workspace[64];

namespace emu {
namespace ptx {
// A parameter of 8 bytes, which may be an address: a module does not always say it.
struct Word {
    uint64_t bits;
    template <class T> Word(T value) : bits(as<uint64_t>(Word::wide(value))) {}
    template <class T> static __forceinline__ auto wide(T value) {
        if constexpr (std::is_integral<T>::value && std::is_signed<T>::value) return int64_t(value);
        else if constexpr (std::is_floating_point<T>::value) return double(value);
        else return uint64_t(value);
    }
};
// A parameter that is a struct: its bytes.
template <size_t N, size_t ALIGNMENT> struct alignas(ALIGNMENT) Bytes {
    char bytes[N];
    Bytes() : bytes() {}
    template <class T> Bytes(const T& value) {
        static_assert(sizeof(T) == N, "a value of as many bytes as the kernel's parameter");
        __builtin_memcpy(bytes, &value, N);
    }
};
// Memory of the thread by its address, or by the lower half of that: the upper one is the stack's.
__forceinline__ char* local(uint64_t address) {
    if (address >> 32) return anywhere(address);
    uint64_t here = uint64_t(__builtin_frame_address(0));
    int64_t distance = int32_t(uint32_t(address) - uint32_t(here));
    return anywhere(here + uint64_t(distance));
}
// A parameter's value: memory of the thread alone, which no check looks at.
template <class T, int N> __forceinline__ Parts<T, N> parameter(const char* place) {
    Parts<T, N> parts;
    __builtin_memcpy(&parts, place, sizeof parts);
    return parts;
}
template <class T, int N> __forceinline__ void give(char* place, const T (&parts)[N]) {
    __builtin_memcpy(place, parts, sizeof parts);
}
__forceinline__ void require_block(unsigned x, unsigned y, unsigned z) {
    if (blockDim.x == x && blockDim.y == y && blockDim.z == z) return;
    static char message[160];
    snprintf(message, sizeof message, "expected a block of %u x %u x %u threads, as .reqntid says, got %u x %u x %u", x, y, z,
             blockDim.x, blockDim.y, blockDim.z);
    emu_trap(message);
}
__forceinline__ void limit_block(unsigned threads) {
    if (threads_of_block() <= threads) return;
    static char message[120];
    snprintf(message, sizeof message, "expected at most %u threads in a block, as .maxntid says, got %u", threads,
             threads_of_block());
    emu_trap(message);
}
// Fields of a tensor map, as the emulator has it (tensor_maps.h; shared/emulator/src/completion/tensor.rs).
__forceinline__ uint64_t* map_words(char* map) {
    if (uintptr_t(map) % 64) emu_misaligned("a tensor map", 64);
    return reinterpret_cast<uint64_t*>(map);
}
__forceinline__ void map_bits(char* map, int word, int from, int bits, uint64_t value) {
    uint64_t* words = map_words(map);
    uint64_t mask = ((1ull << bits) - 1) << from;
    words[word] = (words[word] & ~mask) | (value << from & mask);
}
__forceinline__ void map_global_address(char* map, uint32_t, uint64_t address) {
    map_words(map)[0] = EMU_TENSOR_MAP;
    map_words(map)[1] = address;
}
__forceinline__ void map_rank(char* map, uint32_t, uint64_t rank) { map_bits(map, 2, 0, 8, rank + 1); }
__forceinline__ void map_elemtype(char* map, uint32_t, uint64_t type) {
    constexpr uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
    if (type >= sizeof bytes) emu_trap("tensormap.replace: no elements of less than 8 bits are run here");
    map_bits(map, 2, 8, 8, bytes[type]);
}
__forceinline__ void map_swizzle_mode(char* map, uint32_t, uint64_t mode) {
    if (mode > 3) emu_trap("tensormap.replace: no swizzle of other atoms is run here");
    map_bits(map, 2, 16, 16, mode ? 16ull << mode : 0);
}
__forceinline__ void map_fill_mode(char* map, uint32_t, uint64_t mode) { map_bits(map, 2, 32, 1, mode); }
__forceinline__ void map_interleave_layout(char*, uint32_t, uint64_t layout) {
    if (layout) emu_trap("tensormap.replace: no interleaved tensors are run here");
}
__forceinline__ void map_global_dim(char* map, uint32_t dimension, uint64_t size) { map_words(map)[3 + dimension] = size; }
__forceinline__ void map_global_stride(char* map, uint32_t dimension, uint64_t bytes) { map_words(map)[8 + dimension] = bytes; }
__forceinline__ void map_box_dim(char* map, uint32_t dimension, uint64_t size) { map_bits(map, 12, 8 * int(dimension), 8, size - 1); }
__forceinline__ void map_element_stride(char* map, uint32_t dimension, uint64_t step) {
    map_bits(map, 13, 8 * int(dimension), 8, step - 1);
}
// A warp copies a map to where copies use it, once it is whole; a GPU takes no other ones.
__forceinline__ void publish_map(char* to, char* from) {
    __syncwarp();
    if (laneid() == 0) {
        uint64_t* words = map_words(from);
        if (words[1] % 16) emu_trap("tensor map: expected an address that is a multiple of 16");
        for (int d = 1; d < int(words[2] & 255); ++d)
            if (words[7 + d] % 16 || words[7 + d] >> 40)
                emu_trap("tensor map: expected strides that are multiples of 16 bytes below 2^40");
        for (int n = 0; n < 16; ++n) map_words(to)[n] = words[n];
    }
    __threadfence();
    __syncwarp();
}
// vprintf: a format, and what it names, one behind the other, each at a multiple of its size.
inline void print(char* result, char* format_place, char* values_place) {
    uint64_t all[2];
    __builtin_memcpy(&all[0], format_place, 8);
    __builtin_memcpy(&all[1], values_place, 8);
    const char *format = anywhere(all[0]), *values = anywhere(all[1]);
    int printed = 0;
    while (*format) {
        if (*format != '%' || format[1] == '%') {
            // A run of text, or the second of two signs.
            size_t len = *format == '%' ? 1 : strcspn(format, "%");
            printed += printf("%.*s", int(len), format);
            format += *format == '%' ? 2 : len;
            continue;
        }
        char own[32];
        size_t len = strcspn(format + 1, "diouxXeEfFgGaAcsp") + 2;
        if (len >= sizeof own) emu_trap("vprintf: expected a conversion of at most 31 characters");
        __builtin_memcpy(own, format, len);
        own[len] = 0;
        format += len;
        char kind = own[len - 1];
        bool is_wide = strchr("eEfFgGaAsp", kind) || strchr(own, 'l');
        size_t size = is_wide ? 8 : 4;
        values = reinterpret_cast<const char*>((uintptr_t(values) + size - 1) / size * size);
        if (strchr("eEfFgGaA", kind)) {
            double real;
            __builtin_memcpy(&real, values, 8);
            printed += printf(own, real);
        } else if (is_wide) {
            uint64_t word;
            __builtin_memcpy(&word, values, 8);
            printed += printf(own, word);
        } else {
            uint32_t word;
            __builtin_memcpy(&word, values, 4);
            printed += printf(own, word);
        }
        values += size;
    }
    __builtin_memcpy(result, &printed, 4);
}
// __assertfail(message, file, line, function, size of a character)
inline void fail_assertion(char* message, char* file, char* line, char* function, char*) {
    uint64_t texts[3];
    uint32_t at;
    __builtin_memcpy(&texts[0], message, 8);
    __builtin_memcpy(&texts[1], file, 8);
    __builtin_memcpy(&texts[2], function, 8);
    __builtin_memcpy(&at, line, 4);
    static char said[400];
    snprintf(said, sizeof said, "assertion failed: %.150s, %.120s:%u: %.80s", anywhere(texts[0]), anywhere(texts[1]), at,
             anywhere(texts[2]));
    emu_trap(said);
}
}  // namespace ptx
}  // namespace emu
