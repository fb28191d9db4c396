// cuRAND's device functions. A state is a key and a count of numbers drawn; a number is a hash of both: the
// same kinds of numbers as cuRAND's, and not the same numbers.
#pragma once
#define CURAND_KERNEL_H_
#include "curand.h"

struct curandStateXORWOW {
    unsigned long long key, count;
};
typedef curandStateXORWOW curandStateXORWOW_t, curandState_t, curandState, curandStateMRG32k3a_t,
    curandStateMRG32k3a, curandStatePhilox4_32_10_t, curandStatePhilox4_32_10;
struct curandStateSobol32 {
    unsigned n, vectors[32];
};
typedef curandStateSobol32 curandStateSobol32_t;
struct curandStateSobol64 {
    curandStateSobol32 high;
};
typedef curandStateSobol64 curandStateSobol64_t;

namespace emu {
__forceinline__ unsigned long long mixed(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
__forceinline__ unsigned long long random_bits(curandStateXORWOW* s) {
    return mixed(s->key + 0x9e3779b97f4a7c15ull * ++s->count);
}
__forceinline__ unsigned long long random_bits(curandStateSobol32* s) {
    unsigned high = sobol(s->vectors, s->n++);
    return (unsigned long long)high << 32 | 0x80000000u;
}
__forceinline__ unsigned long long random_bits(curandStateSobol64* s) {
    return random_bits(&s->high);
}
}  // namespace emu
__forceinline__ void curand_init(unsigned long long seed, unsigned long long sequence,
                                 unsigned long long offset, curandStateXORWOW* s) {
    s->key = emu::mixed(seed ^ emu::mixed(sequence + 0x632be59bd9b4e019ull));
    s->count = offset;
}
__forceinline__ void curand_init(const unsigned* vectors, unsigned offset, curandStateSobol32* s) {
    s->n = offset;
    for (int i = 0; i < 32; ++i) s->vectors[i] = vectors[i];
}
__forceinline__ void curand_init(const unsigned long long* vectors, unsigned long long offset,
                                 curandStateSobol64* s) {
    s->high.n = unsigned(offset);
    for (int i = 0; i < 32; ++i) s->high.vectors[i] = unsigned(vectors[i] >> 32);
}
template <class State> __forceinline__ void skipahead(unsigned long long n, State* s) {
    for (; n > 0; --n) emu::random_bits(s);
}
template <> __forceinline__ void skipahead(unsigned long long n, curandStateXORWOW* s) {
    s->count += n;
}
template <class State> __forceinline__ unsigned curand(State* s) {
    return unsigned(emu::random_bits(s) >> 32);
}
template <class State> __forceinline__ float curand_uniform(State* s) {
    return emu::uniform_f32(emu::random_bits(s));
}
template <class State> __forceinline__ double curand_uniform_double(State* s) {
    return emu::uniform_f64(emu::random_bits(s));
}
template <class State> __forceinline__ float curand_normal(State* s) {
    return float(emu::normal(emu::random_bits(s)));
}
template <class State> __forceinline__ double curand_normal_double(State* s) {
    return emu::normal(emu::random_bits(s));
}
template <class State> __forceinline__ float2 curand_normal2(State* s) {
    float x = curand_normal(s), y = curand_normal(s);
    return make_float2(x, y);
}
template <class State> __forceinline__ double2 curand_normal2_double(State* s) {
    double x = curand_normal_double(s), y = curand_normal_double(s);
    return make_double2(x, y);
}
template <class State> __forceinline__ float curand_log_normal(State* s, float mean, float deviation) {
    return float(std::exp(mean + deviation * emu::normal(emu::random_bits(s))));
}
__forceinline__ uint4 curand4(curandStateXORWOW* s) {
    unsigned x = curand(s), y = curand(s), z = curand(s), w = curand(s);
    return make_uint4(x, y, z, w);
}
__forceinline__ float4 curand_uniform4(curandStateXORWOW* s) {
    float x = curand_uniform(s), y = curand_uniform(s), z = curand_uniform(s), w = curand_uniform(s);
    return make_float4(x, y, z, w);
}
__forceinline__ float4 curand_normal4(curandStateXORWOW* s) {
    float x = curand_normal(s), y = curand_normal(s), z = curand_normal(s), w = curand_normal(s);
    return make_float4(x, y, z, w);
}
