// wgmma for each number of columns: what lab/ptx/wgmma.cuh chooses from. The text of the instruction names
// each accumulator, and numbers what comes after them, so that there is one text for each.
#pragma once

namespace lab {

// N columns; specialised below.
template <int N> struct WgmmaShape;

#define LAB_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
// The accumulators as operands, and in the text.
#define LAB_SUMS_4 LAB_FOUR(0)
#define LAB_SUMS_8 LAB_SUMS_4, LAB_FOUR(4)
#define LAB_SUMS_12 LAB_SUMS_8, LAB_FOUR(8)
#define LAB_SUMS_16 LAB_SUMS_12, LAB_FOUR(12)
#define LAB_SUMS_20 LAB_SUMS_16, LAB_FOUR(16)
#define LAB_SUMS_24 LAB_SUMS_20, LAB_FOUR(20)
#define LAB_SUMS_28 LAB_SUMS_24, LAB_FOUR(24)
#define LAB_SUMS_32 LAB_SUMS_28, LAB_FOUR(28)
#define LAB_SUMS_36 LAB_SUMS_32, LAB_FOUR(32)
#define LAB_SUMS_40 LAB_SUMS_36, LAB_FOUR(36)
#define LAB_SUMS_44 LAB_SUMS_40, LAB_FOUR(40)
#define LAB_SUMS_48 LAB_SUMS_44, LAB_FOUR(44)
#define LAB_SUMS_52 LAB_SUMS_48, LAB_FOUR(48)
#define LAB_SUMS_56 LAB_SUMS_52, LAB_FOUR(52)
#define LAB_SUMS_60 LAB_SUMS_56, LAB_FOUR(56)
#define LAB_SUMS_64 LAB_SUMS_60, LAB_FOUR(60)
#define LAB_SUMS_68 LAB_SUMS_64, LAB_FOUR(64)
#define LAB_SUMS_72 LAB_SUMS_68, LAB_FOUR(68)
#define LAB_SUMS_76 LAB_SUMS_72, LAB_FOUR(72)
#define LAB_SUMS_80 LAB_SUMS_76, LAB_FOUR(76)
#define LAB_SUMS_84 LAB_SUMS_80, LAB_FOUR(80)
#define LAB_SUMS_88 LAB_SUMS_84, LAB_FOUR(84)
#define LAB_SUMS_92 LAB_SUMS_88, LAB_FOUR(88)
#define LAB_SUMS_96 LAB_SUMS_92, LAB_FOUR(92)
#define LAB_SUMS_100 LAB_SUMS_96, LAB_FOUR(96)
#define LAB_SUMS_104 LAB_SUMS_100, LAB_FOUR(100)
#define LAB_SUMS_108 LAB_SUMS_104, LAB_FOUR(104)
#define LAB_SUMS_112 LAB_SUMS_108, LAB_FOUR(108)
#define LAB_SUMS_116 LAB_SUMS_112, LAB_FOUR(112)
#define LAB_SUMS_120 LAB_SUMS_116, LAB_FOUR(116)
#define LAB_SUMS_124 LAB_SUMS_120, LAB_FOUR(120)
#define LAB_SUMS_128 LAB_SUMS_124, LAB_FOUR(124)
#define LAB_TEXT_4 "%0, %1, %2, %3"
#define LAB_TEXT_8 LAB_TEXT_4 ", %4, %5, %6, %7"
#define LAB_TEXT_12 LAB_TEXT_8 ", %8, %9, %10, %11"
#define LAB_TEXT_16 LAB_TEXT_12 ", %12, %13, %14, %15"
#define LAB_TEXT_20 LAB_TEXT_16 ", %16, %17, %18, %19"
#define LAB_TEXT_24 LAB_TEXT_20 ", %20, %21, %22, %23"
#define LAB_TEXT_28 LAB_TEXT_24 ", %24, %25, %26, %27"
#define LAB_TEXT_32 LAB_TEXT_28 ", %28, %29, %30, %31"
#define LAB_TEXT_36 LAB_TEXT_32 ", %32, %33, %34, %35"
#define LAB_TEXT_40 LAB_TEXT_36 ", %36, %37, %38, %39"
#define LAB_TEXT_44 LAB_TEXT_40 ", %40, %41, %42, %43"
#define LAB_TEXT_48 LAB_TEXT_44 ", %44, %45, %46, %47"
#define LAB_TEXT_52 LAB_TEXT_48 ", %48, %49, %50, %51"
#define LAB_TEXT_56 LAB_TEXT_52 ", %52, %53, %54, %55"
#define LAB_TEXT_60 LAB_TEXT_56 ", %56, %57, %58, %59"
#define LAB_TEXT_64 LAB_TEXT_60 ", %60, %61, %62, %63"
#define LAB_TEXT_68 LAB_TEXT_64 ", %64, %65, %66, %67"
#define LAB_TEXT_72 LAB_TEXT_68 ", %68, %69, %70, %71"
#define LAB_TEXT_76 LAB_TEXT_72 ", %72, %73, %74, %75"
#define LAB_TEXT_80 LAB_TEXT_76 ", %76, %77, %78, %79"
#define LAB_TEXT_84 LAB_TEXT_80 ", %80, %81, %82, %83"
#define LAB_TEXT_88 LAB_TEXT_84 ", %84, %85, %86, %87"
#define LAB_TEXT_92 LAB_TEXT_88 ", %88, %89, %90, %91"
#define LAB_TEXT_96 LAB_TEXT_92 ", %92, %93, %94, %95"
#define LAB_TEXT_100 LAB_TEXT_96 ", %96, %97, %98, %99"
#define LAB_TEXT_104 LAB_TEXT_100 ", %100, %101, %102, %103"
#define LAB_TEXT_108 LAB_TEXT_104 ", %104, %105, %106, %107"
#define LAB_TEXT_112 LAB_TEXT_108 ", %108, %109, %110, %111"
#define LAB_TEXT_116 LAB_TEXT_112 ", %112, %113, %114, %115"
#define LAB_TEXT_120 LAB_TEXT_116 ", %116, %117, %118, %119"
#define LAB_TEXT_124 LAB_TEXT_120 ", %120, %121, %122, %123"
#define LAB_TEXT_128 LAB_TEXT_124 ", %124, %125, %126, %127"

// Of types `types`: A and B in shared memory; A in registers. p0 … p6 are the numbers of what follows the
// accumulators; `a_b` and `b` say which operands are transposed, where the type may be.
#define LAB_WGMMA_SHARED(N, C, types, p0, p1, p2, a_b)                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p2 ", 0; "                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #N types " {" LAB_TEXT_##C "}, %" #p0        \
                 ", %" #p1 ", p, 1, 1" a_b "; }"                                                  \
                 : LAB_SUMS_##C : "l"(a), "l"(b), "r"(int(adds)), "n"(A_T), "n"(B_T))
#define LAB_WGMMA_REGISTERS(N, C, types, p0, p1, p2, p3, p4, p5, b_)                              \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p5 ", 0; "                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #N types " {" LAB_TEXT_##C "}, {%" #p0       \
                 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1" b_ "; }"                    \
                 : LAB_SUMS_##C                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), "n"(B_T))

#define LAB_WGMMA(N, C, p0, p1, p2, p3, p4, p5, p6)                                               \
    template <> struct WgmmaShape<N> {                                                            \
        template <class T, int A_T, int B_T>                                                      \
        static __device__ __forceinline__ void run(float (&d)[C], unsigned long long a,           \
                                                   unsigned long long b, bool adds) {             \
            if constexpr (sizeof(T) == 4)                                                         \
                LAB_WGMMA_SHARED(N, C, "k8.f32.tf32.tf32", p0, p1, p2, "");                       \
            else if constexpr (is_f16<T>)                                                         \
                LAB_WGMMA_SHARED(N, C, "k16.f32.f16.f16", p0, p1, p2, ", %" #p3 ", %" #p4);       \
            else                                                                                  \
                LAB_WGMMA_SHARED(N, C, "k16.f32.bf16.bf16", p0, p1, p2, ", %" #p3 ", %" #p4);     \
        }                                                                                         \
        template <class T, int B_T>                                                               \
        static __device__ __forceinline__ void run(float (&d)[C], const unsigned (&a)[4],         \
                                                   unsigned long long b, bool adds) {             \
            if constexpr (sizeof(T) == 4)                                                         \
                LAB_WGMMA_REGISTERS(N, C, "k8.f32.tf32.tf32", p0, p1, p2, p3, p4, p5, "");        \
            else if constexpr (is_f16<T>)                                                         \
                LAB_WGMMA_REGISTERS(N, C, "k16.f32.f16.f16", p0, p1, p2, p3, p4, p5, ", %" #p6);  \
            else                                                                                  \
                LAB_WGMMA_REGISTERS(N, C, "k16.f32.bf16.bf16", p0, p1, p2, p3, p4, p5, ", %" #p6); \
        }                                                                                         \
    };
LAB_WGMMA(8, 4, 4, 5, 6, 7, 8, 9, 10)
LAB_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
LAB_WGMMA(24, 12, 12, 13, 14, 15, 16, 17, 18)
LAB_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
LAB_WGMMA(40, 20, 20, 21, 22, 23, 24, 25, 26)
LAB_WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
LAB_WGMMA(56, 28, 28, 29, 30, 31, 32, 33, 34)
LAB_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
LAB_WGMMA(72, 36, 36, 37, 38, 39, 40, 41, 42)
LAB_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
LAB_WGMMA(88, 44, 44, 45, 46, 47, 48, 49, 50)
LAB_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
LAB_WGMMA(104, 52, 52, 53, 54, 55, 56, 57, 58)
LAB_WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
LAB_WGMMA(120, 60, 60, 61, 62, 63, 64, 65, 66)
LAB_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
LAB_WGMMA(136, 68, 68, 69, 70, 71, 72, 73, 74)
LAB_WGMMA(144, 72, 72, 73, 74, 75, 76, 77, 78)
LAB_WGMMA(152, 76, 76, 77, 78, 79, 80, 81, 82)
LAB_WGMMA(160, 80, 80, 81, 82, 83, 84, 85, 86)
LAB_WGMMA(168, 84, 84, 85, 86, 87, 88, 89, 90)
LAB_WGMMA(176, 88, 88, 89, 90, 91, 92, 93, 94)
LAB_WGMMA(184, 92, 92, 93, 94, 95, 96, 97, 98)
LAB_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
LAB_WGMMA(200, 100, 100, 101, 102, 103, 104, 105, 106)
LAB_WGMMA(208, 104, 104, 105, 106, 107, 108, 109, 110)
LAB_WGMMA(216, 108, 108, 109, 110, 111, 112, 113, 114)
LAB_WGMMA(224, 112, 112, 113, 114, 115, 116, 117, 118)
LAB_WGMMA(232, 116, 116, 117, 118, 119, 120, 121, 122)
LAB_WGMMA(240, 120, 120, 121, 122, 123, 124, 125, 126)
LAB_WGMMA(248, 124, 124, 125, 126, 127, 128, 129, 130)
LAB_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

// Of bytes with sign, whose sums are whole numbers: the same lists of accumulators, of int. Some numbers of columns.
template <int N> struct WgmmaOfBytes;
#undef LAB_FOUR
#define LAB_FOUR(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define LAB_WGMMA_BYTES(N, C, p0, p1, p2)                                                                     \
    template <> struct WgmmaOfBytes<N> {                                                                      \
        static __device__ __forceinline__ void run(int (&d)[C], unsigned long long a, unsigned long long b,   \
                                                   bool adds) {                                               \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p2 ", 0; "                                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" LAB_TEXT_##C "}, %" #p0     \
                         ", %" #p1 ", p; }"                                                                   \
                         : LAB_SUMS_##C : "l"(a), "l"(b), "r"(int(adds)));                                    \
        }                                                                                                     \
    };
LAB_WGMMA_BYTES(16, 8, 8, 9, 10)
LAB_WGMMA_BYTES(32, 16, 16, 17, 18)
LAB_WGMMA_BYTES(64, 32, 32, 33, 34)
LAB_WGMMA_BYTES(128, 64, 64, 65, 66)
LAB_WGMMA_BYTES(256, 128, 128, 129, 130)
#undef LAB_WGMMA_BYTES

#undef LAB_WGMMA
#undef LAB_WGMMA_REGISTERS
#undef LAB_WGMMA_SHARED
#undef LAB_TEXT_4
#undef LAB_SUMS_4
#undef LAB_TEXT_8
#undef LAB_SUMS_8
#undef LAB_TEXT_12
#undef LAB_SUMS_12
#undef LAB_TEXT_16
#undef LAB_SUMS_16
#undef LAB_TEXT_20
#undef LAB_SUMS_20
#undef LAB_TEXT_24
#undef LAB_SUMS_24
#undef LAB_TEXT_28
#undef LAB_SUMS_28
#undef LAB_TEXT_32
#undef LAB_SUMS_32
#undef LAB_TEXT_36
#undef LAB_SUMS_36
#undef LAB_TEXT_40
#undef LAB_SUMS_40
#undef LAB_TEXT_44
#undef LAB_SUMS_44
#undef LAB_TEXT_48
#undef LAB_SUMS_48
#undef LAB_TEXT_52
#undef LAB_SUMS_52
#undef LAB_TEXT_56
#undef LAB_SUMS_56
#undef LAB_TEXT_60
#undef LAB_SUMS_60
#undef LAB_TEXT_64
#undef LAB_SUMS_64
#undef LAB_TEXT_68
#undef LAB_SUMS_68
#undef LAB_TEXT_72
#undef LAB_SUMS_72
#undef LAB_TEXT_76
#undef LAB_SUMS_76
#undef LAB_TEXT_80
#undef LAB_SUMS_80
#undef LAB_TEXT_84
#undef LAB_SUMS_84
#undef LAB_TEXT_88
#undef LAB_SUMS_88
#undef LAB_TEXT_92
#undef LAB_SUMS_92
#undef LAB_TEXT_96
#undef LAB_SUMS_96
#undef LAB_TEXT_100
#undef LAB_SUMS_100
#undef LAB_TEXT_104
#undef LAB_SUMS_104
#undef LAB_TEXT_108
#undef LAB_SUMS_108
#undef LAB_TEXT_112
#undef LAB_SUMS_112
#undef LAB_TEXT_116
#undef LAB_SUMS_116
#undef LAB_TEXT_120
#undef LAB_SUMS_120
#undef LAB_TEXT_124
#undef LAB_SUMS_124
#undef LAB_TEXT_128
#undef LAB_SUMS_128
#undef LAB_FOUR

}  // namespace lab
