// cuRAND's host functions: the same kinds of numbers and not the same numbers.
#pragma once
#define CURAND_H_
#include <random>
#include <vector>

#include "cuda_runtime.h"
#include "runtime/sobol.h"

enum curandStatus {
    CURAND_STATUS_SUCCESS = 0,
    CURAND_STATUS_VERSION_MISMATCH = 100,
    CURAND_STATUS_NOT_INITIALIZED = 101,
    CURAND_STATUS_ALLOCATION_FAILED = 102,
    CURAND_STATUS_TYPE_ERROR = 103,
    CURAND_STATUS_OUT_OF_RANGE = 104,
    CURAND_STATUS_LENGTH_NOT_MULTIPLE = 105,
    CURAND_STATUS_DOUBLE_PRECISION_REQUIRED = 106,
    CURAND_STATUS_LAUNCH_FAILURE = 201,
    CURAND_STATUS_PREEXISTING_FAILURE = 202,
    CURAND_STATUS_INITIALIZATION_FAILED = 203,
    CURAND_STATUS_ARCH_MISMATCH = 204,
    CURAND_STATUS_INTERNAL_ERROR = 999
};
typedef curandStatus curandStatus_t;
enum curandRngType {
    CURAND_RNG_TEST = 0,
    CURAND_RNG_PSEUDO_DEFAULT = 100,
    CURAND_RNG_PSEUDO_XORWOW = 101,
    CURAND_RNG_PSEUDO_MRG32K3A = 121,
    CURAND_RNG_PSEUDO_MTGP32 = 141,
    CURAND_RNG_PSEUDO_MT19937 = 142,
    CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161,
    CURAND_RNG_QUASI_DEFAULT = 200,
    CURAND_RNG_QUASI_SOBOL32 = 201,
    CURAND_RNG_QUASI_SCRAMBLED_SOBOL32 = 202,
    CURAND_RNG_QUASI_SOBOL64 = 203,
    CURAND_RNG_QUASI_SCRAMBLED_SOBOL64 = 204
};
typedef curandRngType curandRngType_t;
enum curandOrdering {
    CURAND_ORDERING_PSEUDO_BEST = 100,
    CURAND_ORDERING_PSEUDO_DEFAULT = 101,
    CURAND_ORDERING_PSEUDO_SEEDED = 102,
    CURAND_ORDERING_QUASI_DEFAULT = 201
};
typedef curandOrdering curandOrdering_t;
enum curandDirectionVectorSet {
    CURAND_DIRECTION_VECTORS_32_JOEKUO6 = 101,
    CURAND_SCRAMBLED_DIRECTION_VECTORS_32_JOEKUO6 = 102,
    CURAND_DIRECTION_VECTORS_64_JOEKUO6 = 103,
    CURAND_SCRAMBLED_DIRECTION_VECTORS_64_JOEKUO6 = 104
};
typedef curandDirectionVectorSet curandDirectionVectorSet_t;
typedef unsigned curandDirectionVectors32_t[32];
typedef unsigned long long curandDirectionVectors64_t[64];

struct curandGenerator_st {
    curandRngType type;
    bool is_host;
    unsigned long long offset = 0;
    unsigned dimensions = 1;
    std::mt19937_64 random{5489};
};
typedef curandGenerator_st* curandGenerator_t;

inline curandStatus_t curandCreateGenerator(curandGenerator_t* to, curandRngType_t type) {
    *to = new curandGenerator_st{type, false};
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandCreateGeneratorHost(curandGenerator_t* to, curandRngType_t type) {
    *to = new curandGenerator_st{type, true};
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandDestroyGenerator(curandGenerator_t g) {
    delete g;
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t g,
                                                         unsigned long long seed) {
    g->random.seed(seed);
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetGeneratorOffset(curandGenerator_t g, unsigned long long offset) {
    g->offset = offset;
    g->random.discard(offset);
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetGeneratorOrdering(curandGenerator_t, curandOrdering_t) {
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetQuasiRandomGeneratorDimensions(curandGenerator_t g, unsigned n) {
    g->dimensions = n;
    return n ? CURAND_STATUS_SUCCESS : CURAND_STATUS_OUT_OF_RANGE;
}
inline curandStatus_t curandSetStream(curandGenerator_t, cudaStream_t) {
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandGenerateSeeds(curandGenerator_t) { return CURAND_STATUS_SUCCESS; }
inline curandStatus_t curandGetVersion(int* to) {
    *to = 10300;
    return CURAND_STATUS_SUCCESS;
}
namespace emu {
// So many numbers, each made from 64 random bits; those of a quasi-random generator one dimension after the
// other.
template <class T, class F>
curandStatus_t random_numbers(curandGenerator_t g, T* to, size_t count, F number) {
    std::vector<T> all(count);
    if (g->type >= CURAND_RNG_QUASI_DEFAULT) {
        if (count % g->dimensions) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
        size_t points = count / g->dimensions;
        for (unsigned d = 0; d < g->dimensions; ++d) {
            uint32_t vectors[32];
            sobol_vectors(d, vectors);
            for (size_t i = 0; i < points; ++i)
                all[d * points + i] =
                    number(uint64_t(sobol(vectors, uint32_t(g->offset + i))) << 32 | 0x80000000u);
        }
        g->offset += points;
    } else {
        for (T& one : all) one = number(g->random());
    }
    cudaMemcpyKind kind = g->is_host ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
    return copy(to, all.data(), count * sizeof(T), kind) == cudaSuccess
               ? CURAND_STATUS_SUCCESS
               : CURAND_STATUS_LAUNCH_FAILURE;
}
}  // namespace emu
inline curandStatus_t curandGenerate(curandGenerator_t g, unsigned* to, size_t n) {
    return emu::random_numbers(g, to, n, [](uint64_t bits) { return unsigned(bits >> 32); });
}
inline curandStatus_t curandGenerateLongLong(curandGenerator_t g, unsigned long long* to, size_t n) {
    return emu::random_numbers(g, to, n, [](uint64_t bits) { return (unsigned long long)bits; });
}
inline curandStatus_t curandGenerateUniform(curandGenerator_t g, float* to, size_t n) {
    return emu::random_numbers(g, to, n, [](uint64_t bits) { return emu::uniform_f32(bits); });
}
inline curandStatus_t curandGenerateUniformDouble(curandGenerator_t g, double* to, size_t n) {
    return emu::random_numbers(g, to, n, [](uint64_t bits) { return emu::uniform_f64(bits); });
}
inline curandStatus_t curandGenerateNormal(curandGenerator_t g, float* to, size_t n, float mean,
                                           float deviation) {
    return emu::random_numbers(g, to, n, [=](uint64_t bits) {
        return mean + deviation * float(emu::normal(bits));
    });
}
inline curandStatus_t curandGenerateNormalDouble(curandGenerator_t g, double* to, size_t n,
                                                 double mean, double deviation) {
    return emu::random_numbers(g, to, n,
                               [=](uint64_t bits) { return mean + deviation * emu::normal(bits); });
}
inline curandStatus_t curandGenerateLogNormal(curandGenerator_t g, float* to, size_t n, float mean,
                                              float deviation) {
    return emu::random_numbers(g, to, n, [=](uint64_t bits) {
        return float(std::exp(mean + deviation * emu::normal(bits)));
    });
}
inline curandStatus_t curandGetDirectionVectors32(curandDirectionVectors32_t** to,
                                                  curandDirectionVectorSet_t) {
    static curandDirectionVectors32_t all[emu::sobol_dimensions];
    for (unsigned d = 0; d < emu::sobol_dimensions; ++d) emu::sobol_vectors(d, all[d]);
    *to = all;
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandGetDirectionVectors64(curandDirectionVectors64_t** to,
                                                  curandDirectionVectorSet_t) {
    static curandDirectionVectors64_t all[emu::sobol_dimensions];
    for (unsigned d = 0; d < emu::sobol_dimensions; ++d) {
        uint32_t vectors[32];
        emu::sobol_vectors(d, vectors);
        for (int i = 0; i < 64; ++i) all[d][i] = i < 32 ? (unsigned long long)vectors[i] << 32 : 1;
    }
    *to = all;
    return CURAND_STATUS_SUCCESS;
}
