// CUDA's runtime library as a program finds it that nvcc has built: NVIDIA's names and types, and behind them the runtime of
// ../runtime, whose host functions ask the tool that has started the program (connection.h). Compiled for 12 or 13, which
// LAB_CUDART says.
#include <cuda.h>

#include <map>
#include <memory>
#include <unordered_map>

#include "connection.h"
#include "properties.h"
#include "runtime/allowed.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))
// A function under NVIDIA's name: the headers of ../runtime have a template or an inline function of that name.
#define CUDART(result, name, parameters)              \
    EXPORTED result emu_##name parameters __asm__(#name); \
    EXPORTED result emu_##name parameters
// The same function under a further name.
#define CUDART_ALSO(result, name, other, parameters) \
    EXPORTED result emu_also_##name parameters __asm__(#name) __attribute__((alias(#other)));

using emu::keep;
using emu::cudart::connection;
namespace cudart = emu::cudart;

// Host code alone is here.
extern "C" int emu_in_kernel() { return 0; }
extern "C" int emu_is_launch() { return 1; }

namespace {
struct Kernel {
    uint64_t module;
    std::string name;
    bool is_known = false;
    int code = 0;
    uint64_t number = 0;
    int threads = 1024;
    size_t static_shared = 0;
    std::vector<uint32_t> sizes;  // of its arguments

    void look_up() {
        if (is_known) return;
        std::vector<char> more;
        cudart::Reply reply = connection().ask(cudart::KERNEL, {module}, name.data(), name.size(), &more);
        is_known = true;
        code = reply.code;
        number = reply.words[0];
        threads = int(reply.words[1]);
        static_shared = reply.words[2];
        sizes.resize(more.size() / sizeof(uint32_t));
        memcpy(sizes.data(), more.data(), sizes.size() * sizeof(uint32_t));
    }
};
struct Variable {
    uint64_t module;
    std::string name;
    bool is_known = false;
    int code = 0;
    char* address = nullptr;
    size_t bytes = 0;

    void look_up() {
        if (is_known) return;
        cudart::Reply reply = connection().ask(cudart::VARIABLE, {module}, name.data(), name.size());
        is_known = true;
        code = reply.code;
        address = (char*)reply.words[0];
        bytes = reply.words[1];
    }
};
// By the addresses that stand for them in host code. Static initialisers of the program fill them, before those of this
// library may have run, and its last ones use them.
template <class T> struct Registered {
    std::unordered_map<const void*, std::unique_ptr<T>> all;
    T* find(const void* f) {
        auto held = connection().lock();
        auto own = all.find(f);
        if (own != all.end()) return own->second.get();
        // It may be a handle.
        for (auto& [_, one] : all)
            if (one.get() == f) return one.get();
        return nullptr;
    }
};
Registered<Kernel>& kernels() {
    static auto* all = new Registered<Kernel>;
    return *all;
}
Registered<Variable>& variables() {
    static auto* all = new Registered<Variable>;
    return *all;
}
void refuse(const char* what) { connection().ask(cudart::REFUSE, {}, what, strlen(what)); }
cudaError_t not_supported(const char* name) {
    refuse((std::string(name) + " is not supported").c_str());
    return keep(cudaErrorNotSupported);
}

// ---- what the runtime's functions ask of the process that has the emulator ---------------------------------------------
void* ask_allocate(size_t bytes, int kind) {
    return (void*)connection().ask(cudart::ALLOCATE, {bytes, uint64_t(kind)}).words[0];
}
int ask_release(void* address, int kind) { return connection().ask(cudart::RELEASE, {uint64_t(address), uint64_t(kind)}).code; }
enum Copier { BY_PROGRAM, DONE, TO_VARIABLE, FROM_VARIABLE };
constexpr size_t CHUNK = 1 << 20;
int ask_copy(void* to, const void* from, size_t bytes, int kind) {
    auto held = connection().lock();
    cudart::Reply reply = connection().ask(cudart::COPY, {uint64_t(to), uint64_t(from), bytes, uint64_t(kind)});
    if (reply.code) return reply.code;
    switch (reply.words[0]) {
        case BY_PROGRAM: memmove(to, from, bytes); break;
        case TO_VARIABLE:
            for (size_t at = 0; at < bytes; at += CHUNK) {
                size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
                connection().ask(cudart::WRITE, {uint64_t(to) + at}, (const char*)from + at, part);
            }
            break;
        case FROM_VARIABLE:
            for (size_t at = 0; at < bytes; at += CHUNK) {
                size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
                std::vector<char> more;
                connection().ask(cudart::READ, {uint64_t(from) + at, part}, nullptr, 0, &more);
                memcpy((char*)to + at, more.data(), more.size());
            }
            break;
    }
    return 0;
}
int ask_fill(void* to, int value, size_t bytes) {
    return connection().ask(cudart::FILL, {uint64_t(to), uint64_t(uint8_t(value)), bytes}).code;
}
int ask_type_of(const void* address, size_t* bytes) {
    cudart::Reply reply = connection().ask(cudart::TYPE_OF, {uint64_t(address)});
    *bytes = reply.words[0];
    return reply.code;
}
// cudaHostRegister: the program's pages become pages of device memory, which kernels know by another address.
struct Region {
    size_t bytes;
    char* device;
};
std::map<char*, Region>& regions() {
    static auto* all = new std::map<char*, Region>;
    return *all;
}
char* registered(void* address) {
    auto held = connection().lock();
    auto own = regions().upper_bound((char*)address);
    if (own == regions().begin()) return nullptr;
    --own;
    size_t away = size_t((char*)address - own->first);
    return away < own->second.bytes ? own->second.device + away : nullptr;
}
int ask_adopt(void* address, size_t bytes) {
    auto held = connection().lock();
    if (!address || !bytes) return cudaErrorInvalidValue;
    if (registered(address)) return cudaErrorHostMemoryAlreadyRegistered;
    constexpr uintptr_t PAGE = 4096;
    uintptr_t first = uintptr_t(address) / PAGE * PAGE, end = (uintptr_t(address) + bytes + PAGE - 1) / PAGE * PAGE;
    // A page more, so that whole ones are in it. They are never given back: the program's own addresses stay on them.
    auto room = uintptr_t(ask_allocate(end - first + PAGE, EMU_HOST));
    if (!room) return cudaErrorMemoryAllocation;
    auto device = (char*)((room + PAGE - 1) / PAGE * PAGE);
    if (!connection().replace((char*)first, end - first, device)) return cudaErrorNotSupported;
    regions()[(char*)address] = {bytes, device + (uintptr_t(address) - first)};
    return cudaSuccess;
}
int ask_disown(const void* address) {
    auto held = connection().lock();
    return regions().erase((char*)address) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
int is_never() { return 0; }
const EmuHost TABLE = {
    is_never,  ask_allocate, ask_release, ask_copy, ask_fill, nullptr, ask_type_of,
    ask_adopt, ask_disown,   refuse,      nullptr,  is_never, nullptr, nullptr,
    refuse,
};
__attribute__((constructor(101))) void bind() { emu::host = &TABLE; }

// ---- launches ----------------------------------------------------------------------------------------------------------
cudaError_t launch(const void* f, dim3 grid, dim3 block, void** arguments, size_t shared, int cooperative, unsigned cluster) {
    EMU_API;
    Kernel* kernel = kernels().find(f);
    if (!kernel) return keep(cudaErrorInvalidDeviceFunction);
    kernel->look_up();
    if (kernel->code) return keep(kernel->code);
    if (!emu::is_allowed(kernel, shared)) {
        refuse("a launch: expected at most 48 KiB of dynamic shared memory, or a call of cudaFuncSetAttribute that asks for more");
        return keep(cudaErrorInvalidValue);
    }
    std::vector<char> values;
    for (size_t n = 0; n < kernel->sizes.size(); ++n)
        values.insert(values.end(), (char*)arguments[n], (char*)arguments[n] + kernel->sizes[n]);
    auto run = [=] {
        // What was printed before the launch stands before what the kernel prints.
        fflush(stdout);
        uint64_t sizes[] = {uint64_t(grid.x) | uint64_t(grid.y) << 32,  uint64_t(grid.z) | uint64_t(block.x) << 32,
                            uint64_t(block.y) | uint64_t(block.z) << 32, shared, uint64_t(cooperative), cluster};
        std::vector<uint64_t> words = {kernel->number};
        words.insert(words.end(), sizes, sizes + 6);
        int code = connection().ask(cudart::LAUNCH, words, values.data(), values.size()).code;
        if (code == cudaErrorLaunchFailure) emu::sticky_error = cudaErrorLaunchFailure;
        return keep(code);
    };
    if (emu::is_captured([=] { run(); })) return cudaSuccess;
    return run();
}
struct Configuration {
    dim3 grid, block;
    size_t shared;
    void* stream;
};
thread_local std::vector<Configuration> pushed;
}  // namespace

// Wrapper, header of a fat binary and its entries: shared/app/src/built/fat_binary.rs.
struct FatWrapper {
    uint32_t magic, version;
    const char* data;
    const void* more;
};
CUDART(void**, __cudaRegisterFatBinary, (const FatWrapper* wrapper)) {
    uint16_t header;
    uint64_t bytes;
    memcpy(&header, wrapper->data + 6, 2);
    memcpy(&bytes, wrapper->data + 8, 8);
    cudart::Reply reply =
        connection().ask(cudart::REGISTER, {wrapper->version}, wrapper->data, size_t(header) + bytes);
    return (void**)(reply.words[0] + 1);
}
CUDART(void, __cudaRegisterFatBinaryEnd, (void**)) {}
CUDART(void, __cudaUnregisterFatBinary, (void**)) {}
CUDART(char, __cudaInitModule, (void**)) { return 1; }
CUDART(void, __cudaRegisterFunction,
       (void** module, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*)) {
    auto held = connection().lock();
    auto kernel = std::make_unique<Kernel>();
    kernel->module = uint64_t(module) - 1;
    kernel->name = name;
    kernels().all[host] = std::move(kernel);
}
CUDART(void, __cudaRegisterVar, (void** module, char* host, char*, const char* name, int, size_t, int, int)) {
    auto held = connection().lock();
    auto variable = std::make_unique<Variable>();
    variable->module = uint64_t(module) - 1;
    variable->name = name;
    variables().all[host] = std::move(variable);
}
CUDART(void, __cudaRegisterManagedVar, (void**, void**, char*, const char* name, int, size_t, int, int)) {
    refuse((std::string(name) + ": a __managed__ variable is not supported").c_str());
}
CUDART(unsigned, __cudaPushCallConfiguration, (dim3 grid, dim3 block, size_t shared, void* stream)) {
    pushed.push_back({grid, block, shared, stream});
    return 0;
}
CUDART(cudaError_t, __cudaPopCallConfiguration, (dim3* grid, dim3* block, size_t* shared, void* stream)) {
    if (pushed.empty()) return keep(cudaErrorMissingConfiguration);
    Configuration own = pushed.back();
    pushed.pop_back();
    *grid = own.grid, *block = own.block, *shared = own.shared, *(void**)stream = own.stream;
    return cudaSuccess;
}
CUDART(cudaError_t, __cudaGetKernel, (void** to, const void* f)) {
    *to = kernels().find(f);
    return *to ? cudaSuccess : keep(cudaErrorInvalidDeviceFunction);
}
CUDART_ALSO(cudaError_t, cudaGetKernel, __cudaGetKernel, (void** to, const void* f))
CUDART_ALSO(cudaError_t, cudaGetFuncBySymbol, __cudaGetKernel, (void** to, const void* f))
CUDART(cudaError_t, cudaLaunchKernel, (const void* f, dim3 grid, dim3 block, void** arguments, size_t shared, void*)) {
    return launch(f, grid, block, arguments, shared, 0, 0);
}
#define LAUNCHES(name) CUDART_ALSO(cudaError_t, name, cudaLaunchKernel, (const void*, dim3, dim3, void**, size_t, void*))
LAUNCHES(__cudaLaunchKernel)
LAUNCHES(__cudaLaunchKernel_ptsz)
LAUNCHES(cudaLaunchKernel_ptsz)
CUDART(cudaError_t, cudaLaunchCooperativeKernel,
       (const void* f, dim3 grid, dim3 block, void** arguments, size_t shared, void*)) {
    return launch(f, grid, block, arguments, shared, 1, 0);
}
CUDART(cudaError_t, cudaLaunchKernelExC, (const cudart::LaunchConfig* config, const void* f, void** arguments)) {
    int cooperative = 0;
    unsigned cluster = 0;
    for (unsigned n = 0; n < config->count; ++n) {
        const cudart::LaunchAttribute& own = config->attributes[n];
        if (own.id == cudaLaunchAttributeCooperative) cooperative = own.value.number;
        if (own.id != cudaLaunchAttributeClusterDimension) continue;
        if (own.value.sizes[1] > 1 || own.value.sizes[2] > 1) {
            refuse("a cluster of blocks along y or z is not supported");
            return keep(cudaErrorNotSupported);
        }
        cluster = own.value.sizes[0];
    }
    return launch(f, config->grid, config->block, arguments, config->shared, cooperative, cluster > 1 ? cluster : 0);
}
CUDART_ALSO(cudaError_t, cudaLaunchKernelExC_ptsz, cudaLaunchKernelExC, (const cudart::LaunchConfig*, const void*, void**))
CUDART(cudaError_t, cudaFuncGetAttributes, (cudart::FunctionAttributes * to, const void* f)) {
    EMU_API;
    Kernel* kernel = kernels().find(f);
    if (!kernel) return keep(cudaErrorInvalidDeviceFunction);
    kernel->look_up();
    memset(to, 0, sizeof *to);
    to->sharedSizeBytes = kernel->static_shared;
    to->maxThreadsPerBlock = kernel->threads;
    to->numRegs = 32;
    to->ptxVersion = to->binaryVersion = EMU_ARCH / 10;
    to->maxDynamicSharedSizeBytes = 48 << 10;
    to->preferredShmemCarveout = -1;
    return keep(kernel->code);
}
extern "C" void emu_allow_shared(const void* kernel, size_t bytes) { emu::allowed_shared()[kernel] = bytes; }
CUDART(cudaError_t, cudaFuncSetAttribute, (const void* f, int attribute, int value)) {
    Kernel* kernel = kernels().find(f);
    if (!kernel) return keep(cudaErrorInvalidDeviceFunction);
    return cudaFuncSetAttribute((const void*)kernel, attribute, value);
}
CUDART(cudaError_t, cudaFuncGetName, (const char** to, const void* f)) {
    Kernel* kernel = kernels().find(f);
    if (!kernel) return keep(cudaErrorInvalidDeviceFunction);
    *to = kernel->name.c_str();
    return cudaSuccess;
}
CUDART(cudaError_t, cudaFuncSetCacheConfig, (const void*, int)) { EMU_API; return cudaSuccess; }
CUDART(cudaError_t, cudaFuncSetSharedMemConfig, (const void*, int)) { EMU_API; return cudaSuccess; }
CUDART(cudaError_t, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       (int* to, const void* f, int threads, size_t shared, unsigned)) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(to, f, threads, shared);
}
CUDART(cudaError_t, cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int* to, const void* f, int threads, size_t shared)) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(to, f, threads, shared);
}
CUDART(cudaError_t, cudaOccupancyAvailableDynamicSMemPerBlock, (size_t* to, const void*, int, int)) {
    EMU_API;
    *to = EMU_SHARED;
    return cudaSuccess;
}
CUDART(cudaError_t, cudaOccupancyMaxActiveClusters, (int* to, const void*, const cudart::LaunchConfig* config)) {
    EMU_API;
    unsigned cluster = 1;
    for (unsigned n = 0; n < config->count; ++n)
        if (config->attributes[n].id == cudaLaunchAttributeClusterDimension) cluster = config->attributes[n].value.sizes[0];
    *to = cudaDeviceProp().multiProcessorCount / int(cluster ? cluster : 1);
    return cudaSuccess;
}

// ---- variables of modules ----------------------------------------------------------------------------------------------
namespace {
cudaError_t copy_symbol(const void* symbol, void* host, const void* from, size_t bytes, size_t offset) {
    EMU_API;
    Variable* variable = variables().find(symbol);
    if (!variable) return keep(cudaErrorInvalidSymbol);
    variable->look_up();
    if (variable->code) return keep(variable->code);
    if (offset > variable->bytes || bytes > variable->bytes - offset) return keep(cudaErrorInvalidValue);
    char* at = variable->address + offset;
    auto run = [=] { return host ? emu::copy(host, at, bytes, cudaMemcpyDeviceToHost)
                                 : emu::copy(at, from, bytes, cudaMemcpyHostToDevice); };
    if (emu::is_captured([=] { run(); })) return cudaSuccess;
    return run();
}
}  // namespace
CUDART(cudaError_t, cudaMemcpyToSymbol, (const void* to, const void* from, size_t bytes, size_t offset, int)) {
    return copy_symbol(to, nullptr, from, bytes, offset);
}
CUDART(cudaError_t, cudaMemcpyFromSymbol, (void* to, const void* from, size_t bytes, size_t offset, int)) {
    return copy_symbol(from, to, nullptr, bytes, offset);
}
CUDART(cudaError_t, cudaMemcpyToSymbolAsync, (const void* to, const void* from, size_t bytes, size_t offset, int, void*)) {
    return copy_symbol(to, nullptr, from, bytes, offset);
}
CUDART(cudaError_t, cudaMemcpyFromSymbolAsync, (void* to, const void* from, size_t bytes, size_t offset, int, void*)) {
    return copy_symbol(from, to, nullptr, bytes, offset);
}
CUDART(cudaError_t, cudaGetSymbolAddress, (void** to, const void* symbol)) {
    EMU_API;
    Variable* variable = variables().find(symbol);
    if (!variable) return keep(cudaErrorInvalidSymbol);
    variable->look_up();
    *to = variable->address;
    return keep(variable->code);
}
CUDART(cudaError_t, cudaGetSymbolSize, (size_t * to, const void* symbol)) {
    EMU_API;
    Variable* variable = variables().find(symbol);
    if (!variable) return keep(cudaErrorInvalidSymbol);
    variable->look_up();
    *to = variable->bytes;
    return keep(variable->code);
}

// ---- the driver's functions that a program asks for ----------------------------------------------------------------------
CUDART(cudaError_t, cudaGetDriverEntryPointByVersion,
       (const char* name, void** to, unsigned, unsigned long long flags, cudaDriverEntryPointQueryResult* found)) {
    cudaError_t code = cudaGetDriverEntryPoint(name, to, flags, found);
    if (!*to) refuse((std::string(name) + ", of the driver, is not supported").c_str());
    return code;
}
CUDART(cudaError_t, cudaGetDriverEntryPoint,
       (const char* name, void** to, unsigned long long flags, cudaDriverEntryPointQueryResult* found)) {
    return emu_cudaGetDriverEntryPointByVersion(name, to, 0, flags, found);
}

#include "functions.h"
