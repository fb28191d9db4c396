// Random numbers by counting: the same on every device and in every order of threads.
#pragma once

namespace lab {

constexpr int WORDS = 4;

struct Words {
    unsigned v[WORDS];
};

// ANCHOR: philox
// Philox 4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): the words that a counter of two halves gives under
// a key.
__device__ __forceinline__ Words philox(unsigned long long low, unsigned long long high, unsigned long long key) {
    unsigned c0 = unsigned(low), c1 = unsigned(low >> 32);
    unsigned c2 = unsigned(high), c3 = unsigned(high >> 32);
    unsigned k0 = unsigned(key), k1 = unsigned(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = unsigned(p1 >> 32) ^ c1 ^ k0, c1 = unsigned(p1);
        c2 = unsigned(p0 >> 32) ^ c3 ^ k1, c3 = unsigned(p0);
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}
// ANCHOR_END: philox

}  // namespace lab
