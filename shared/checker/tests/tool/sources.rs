//! Kernels as people write them: made by macros, with inline PTX over several lines, with loops that end late. What is told,
//! and where.

use crate::run;

/// `lab check k.cu` with this text and these words: exit code, and all that is printed.
fn check(text: &str, words: &str) -> (Option<i32>, String) {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.cu"), text).unwrap();
    let words: Vec<&str> = ["check", "k.cu"].into_iter().chain(words.split_whitespace()).collect();
    let (code, stdout, stderr) = run(here.path(), &words);
    (code, stdout + &stderr)
}

const MADE_BY_MACROS: &str = "#include \"more.h\"
template <class T> __device__ void scale(const T* x, T* y, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n + OVER) y[i] = x[i] * by;
}
#define OP(T, NAME, BY) extern \"C\" __global__ void NAME(const T* x, T* y, int n) { \\
        scale<T>(x, y, n, BY); }
#define BOTH(name, by) OP(float, name##_f32, by) OP(double, name##_f64, by)
namespace a {
BOTH(twice, 2)
#if OVER == 7
OP(float, never, 7)
#endif
}
#define WIDE(T) template <int N> __global__ void wide_##T(T* y) { y[threadIdx.x] = N; }
WIDE(int)
";

#[test]
fn a_kernel_that_a_macro_makes_has_its_own_name() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.cu"), MADE_BY_MACROS).unwrap();
    let header = "#ifndef OVER\n#define OVER 0\n#endif\n#define ONE(NAME) __global__ void NAME(int* y) { y[0] = 1; }\nONE(of_header)\n";
    std::fs::write(here.path().join("more.h"), header).unwrap();
    let check = |words: &str| {
        let all: Vec<&str> =
            ["check", "k.cu"].into_iter().chain(words.split_whitespace()).collect();
        let (code, stdout, stderr) = run(here.path(), &all);
        (code, stdout + &stderr)
    };
    let (code, told) = check("");
    assert_eq!(code, Some(0), "{told}");
    for listed in [
        "k.cu:10: a::twice_f32(const float* x, float* y, int n)",
        "k.cu:10: a::twice_f64(const double* x, double* y, int n)",
        "k.cu:16: wide_int<N>(int* y)",
        "more.h:5: of_header(int* y)",
        "4 kernels",
    ] {
        assert!(told.contains(listed), "{listed}: {told}");
    }
    assert!(!told.contains("NAME") && !told.contains("never"), "{told}");
    let launch = "--grid 2 --block 32";
    let arguments = "--arg in:f32[50] --arg out:f32[50] --arg 50 --expect y=2*x";
    let (code, told) = check(&format!("--kernel twice_f32 {launch} {arguments}"));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("twice_f32 at k.cu:10: grid 2") && told.contains("as expected, all 50"),
        "{told}"
    );
    let (code, told) = check(&format!(
        "--kernel a::twice_f64 {launch} {} -D OVER=1",
        arguments.replace("f32", "f64")
    ));
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("read of 8 bytes at k.cu:4:"), "{told}");
    let (code, told) =
        check("--kernel wide_int<3> --grid 1 --block 8 --arg out:i32[8] --expect y=np.full(8,3)");
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = check(&format!("--kernel NAME {launch}"));
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains(
            "expected one of a::twice_f32, a::twice_f64, wide_int, of_header, got 'NAME'"
        ),
        "{told}"
    );
}

const PTX_BY_IF: &str = "__device__ float load(const float* p, bool is_there) {
    float r;
    asm volatile(\"{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0;\\n\"
#if __CUDA_ARCH__ >= 900
                 \"@p ld.global.nc.L2::128B.f32 %0, [%1]; }\\n\"
#elif defined(WRONG)
                 \"  ld.global.f32 %0, [%1]; }\\n\"
#else
                 \"@p ld.global.nc.f32 %0, [%1]; }\\n\"
#endif
                 : \"=f\"(r)
                 : \"l\"(p), \"r\"((int)is_there));
    return r;
}
__global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; float v = load(x + i, i < n); if (i < n) y[i] = v; }
";

#[test]
fn the_text_of_an_asm_may_be_chosen_by_if_and_stands_on_its_lines() {
    let words = "--grid 1 --block 64 --arg in:f32[50] --arg out:f32[50] --arg 50 --expect y=x";
    for arch in ["sm_80", "sm_90"] {
        let (code, told) = check(PTX_BY_IF, &format!("{words} --arch {arch}"));
        assert_eq!(code, Some(0), "{arch}: {told}");
    }
    let (code, told) = check(PTX_BY_IF, &format!("{words} -D WRONG"));
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("0 bytes past the end of x"), "{told}");
    let line = PTX_BY_IF.lines().position(|line| line.contains("\"  ld.global")).unwrap() + 1;
    let place = told
        .split(&format!("read of 4 bytes at k.cu:{line}:"))
        .nth(1)
        .unwrap_or_else(|| panic!("{told}"));
    let column: usize = place.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    assert!((20..80).contains(&column), "{told}");
    assert!(told.contains("in k.cu:15:") || told.contains("k.cu:15:"), "{told}");
    // What is behind the asm keeps its lines, also behind one that is left out.
    let without = "#ifdef NEVER\n__device__ void f() { asm(\"membar.gl;\"); }\n#endif\n";
    let (_, told) = check(&(without.to_owned() + &PTX_BY_IF.replace("if (i < n) y", "y")), words);
    assert!(told.contains("write of 4 bytes at k.cu:18:"), "{told}");
    let (code, told) = check(&PTX_BY_IF.replace("#endif\n", ""), words);
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("k.cu: line 3: asm: expected whole literals between the #if and #endif"),
        "{told}"
    );
}

#[test]
fn a_loop_that_does_not_end_in_time_is_told_by_its_line() {
    let text = "__global__ void k(const float* x, float* y, long n) {
    float sum = 0;
    for (long i = 0; i < n; ++i)
        sum += x[i % 32];
    y[threadIdx.x] = sum;
}
";
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.cu"), text).unwrap();
    let check = |n: &str| {
        let mut tool = std::process::Command::new(env!("CARGO_BIN_EXE_lab-checker"));
        tool.env("LAB_EMULATOR_STALL_SECONDS", "0.3").current_dir(here.path());
        let words = "check k.cu --grid 1 --block 1 --arg in:f32[32] --arg out:f32[1] --arg";
        let output = tool.args(words.split_whitespace()).arg(n).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, told) = check("100000000000");
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("no end for 0.3 s (LAB_EMULATOR_STALL_SECONDS)"), "{told}");
    assert!(told.contains("k.cu:3:") || told.contains("k.cu:4:"), "{told}");
    assert!(!told.contains("glue.cpp") && !told.contains("spin"), "{told}");
    assert_eq!(check("1000").0, Some(0));
}

const DEEP: &str = "__device__ __noinline__ float third(const float* x, int i) { return x[i]; }
__device__ __noinline__ float second(const float* x, int i) {
    float local[4] = {1, 2, 3, 4};
    return third(x, i) + local[i & 3];
}
template <class T> __device__ T first(const T* x, int i) { return 2 * second(x, i); }
__global__ void k(const float* x, float* y) {
    y[threadIdx.x] = second(x, 0);
    y[threadIdx.x] += first(x, threadIdx.x);
}
";

#[test]
fn functions_that_are_not_inlined_have_callers() {
    let (code, told) = check(DEEP, "--grid 1 --block 8 --arg in:f32[7] --arg out:f32[8]");
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("read of 4 bytes at k.cu:1:"), "{told}");
    let callers: Vec<&str> =
        told.lines().filter_map(|line| line.trim().strip_prefix("called from k.cu:")).collect();
    let lines: Vec<&str> = callers.iter().map(|c| c.split(':').next().unwrap()).collect();
    assert_eq!(lines, ["4", "6", "9"], "{told}");
    let (code, told) = check(DEEP, "--grid 1 --block 8 --arg in:f32[8] --arg out:f32[8]");
    assert_eq!(code, Some(0), "{told}");
}

const TAIL: &str = "__global__ void k(const float* x, float* y, int n) {
    __shared__ __align__(16) float s[64];
    int c = threadIdx.x * 4;
    int4 v{0, 0, 0, 0};
    if (c < n) v = *reinterpret_cast<const int4*>(&x[c]);
    if (c + 4 > n) {
        int bad = LIMIT(c + 4 - n);
        float* p = reinterpret_cast<float*>(&v);
        for (int i = 0; i < bad; ++i) p[3 - i] = 0;
    }
    *reinterpret_cast<int4*>(&s[c]) = v;
    __syncthreads();
    for (int i = 0; i < 4; ++i) y[c + i] = s[c + i];
}
__device__ float around(const float* middle, int by) { return middle[by] + middle[0] + middle[-by]; }
__global__ void stencil(float* y, int by) {
    float w[9];
    for (int i = 0; i < 9; ++i) w[i] = i + threadIdx.x;
    float* middle = &w[4];
    for (int i = 0; i < by; ++i) middle[i - by] += 1;
    y[threadIdx.x] = around(middle, by) + around(w + 4, by - 1);
}
";

#[test]
fn a_local_variable_has_a_start() {
    let words = "--kernel k --grid 1 --block 16 --arg in:f32[64] --arg out:f32[64] --arg 50";
    let (code, told) = check(TAIL, &format!("{words} -D LIMIT(n)=n"));
    assert_eq!(code, Some(3), "{told}");
    let message =
        "out of bounds: before the start of the local variable that its pointer comes from";
    assert!(told.contains(message) && told.contains("use at k.cu:9:"), "{told}");
    let (code, told) = check(TAIL, &format!("{words} -D LIMIT(n)=min(n,4)"));
    assert_eq!(code, Some(0), "{told}");
    // Before a pointer to the middle there are elements, too.
    for by in [1, 4] {
        let (code, told) = check(
            TAIL,
            &format!(
                "--kernel stencil --grid 1 --block 8 --arg out:f32[8] --arg {by} -D LIMIT(n)=n"
            ),
        );
        assert_eq!(code, Some(0), "{told}");
    }
}

const FP8: &str = "#include <cuda_fp8.h>
__global__ void k(const float* x, float* y, int n) {
    __shared__ __nv_fp8_e4m3 s[64];
    int t = threadIdx.x;
    if (t < n) s[t] = __nv_fp8_e4m3(x[t]);
    __syncthreads();
    if (t < n) y[t] = float(s[n - 1 - t]);
}
";

#[test]
fn kernels_have_numbers_of_eight_bits() {
    let words = "--grid 1 --block 64 --arg in:f32[40]=arange --arg out:f32[40] --arg 40";
    // Up to 16 each is an e4m3, up to 32 each even one; at a tie the even mantissa.
    let nearest = "y=np.array([e4m3 for e4m3 in map(lambda v: v if v <= 16 else 2*np.round(v/2) if v <= 32 else 4*np.round(v/4), x[::-1])])";
    let (code, told) = check_with(FP8, words, nearest);
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = check(&FP8.replace("    __syncthreads();\n", ""), words);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("race on s["), "{told}");
}

fn check_with(text: &str, words: &str, expected: &str) -> (Option<i32>, String) {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.cu"), text).unwrap();
    let words = ["check", "k.cu"].into_iter().chain(words.split_whitespace());
    let all: Vec<&str> = words.chain(["--expect", expected]).collect();
    let (code, stdout, stderr) = run(here.path(), &all);
    (code, stdout + &stderr)
}
