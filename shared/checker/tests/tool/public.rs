//! What public files have shown: small programs with a mistake, each beside one that is right.

use super::run;

/// Each kernel with its arguments; what is said of it, nothing where it is right.
fn check(text: &str, launch: &str, kernels: &[(&str, &[&str])]) {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.cu"), text).unwrap();
    for (kernel, said) in kernels {
        let mut words = vec!["check", "k.cu", "--kernel", kernel];
        words.extend(launch.split(' '));
        let (code, stdout, stderr) = run(here.path(), &words);
        assert_eq!(code, Some(if said.is_empty() { 0 } else { 3 }), "{kernel}: {stdout}{stderr}");
        let is_clean = stdout.contains("): 0 findings");
        assert!(is_clean == said.is_empty(), "{kernel}: {stdout}{stderr}");
        for expected in *said {
            assert!(stdout.contains(expected), "{kernel}: expected {expected}, got {stdout}");
        }
    }
}

#[test]
fn a_launch_that_overlaps_the_one_before_it_must_wait_for_it() {
    let text = r#"
__global__ void produce(float* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  x[threadIdx.x] = threadIdx.x;
}
template <int WAITS> __global__ void consume(const float* x, float* y) {
  if (WAITS) cudaGridDependencySynchronize();
  y[threadIdx.x] = 2 * x[threadIdx.x];
}
template <int WAITS> void overlap(const float* x, float* y) {
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  a[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(1), c.blockDim = dim3(64), c.attrs = a, c.numAttrs = 1;
  cudaLaunchKernelEx(&c, consume<WAITS>, x, y);
}
int main() {
  float *x, *y;
  cudaMalloc(&x, 256);
  cudaMalloc(&y, 256);
  produce<<<1, 64>>>(x);
  overlap<1>(x, y);
  cudaDeviceSynchronize();
  produce<<<1, 64>>>(x);
  cudaDeviceSynchronize();  // which waits as well
  overlap<0>(x, y);
  cudaDeviceSynchronize();
  produce<<<1, 64>>>(x);
  cudaGetLastError();
  overlap<0>(x, y);
  return cudaDeviceSynchronize();
}
"#;
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("main.cu"), text).unwrap();
    let (code, stdout, stderr) = run(here.path(), &["app", "--arch", "sm_90", "main.cu"]);
    assert_eq!(code, Some(3), "{stdout}{stderr}");
    assert!(stderr.contains("launch 6, racecheck: race on x[0]"), "{stderr}");
    assert!(stderr.contains("main.cu:8:"), "{stderr}");
    assert!(stderr.contains("6 launches, 1 finding;"), "{stderr}");
}

#[test]
fn what_memset_sets_is_written() {
    let text = r#"
#include <cstring>
__global__ void of_shared(float* y) {
  __shared__ float s[100];
  if (threadIdx.x == 0) memset(s, 0, sizeof s);
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void of_device(float* y) {
  if (threadIdx.x == 0) memset(y, 0, 400);
  __syncthreads();
  y[threadIdx.x] += 1;
}
__global__ void without_barrier(float* y) {
  if (threadIdx.x == 0) memset(y, 0, 400);
  y[threadIdx.x] = 1;
}
__global__ void copied(const float* x, float* y) {
  if (threadIdx.x == 0) memcpy(y, x, 400);
}
__global__ void copied_beyond(const float* x, float* y) {
  if (threadIdx.x == 0) memcpy(y, x, 408);
}
"#;
    let one = "--grid 1 --block 100 --arg out:f32[100]";
    let race: &[&str] = &["race on y[", "k.cu:15:", "k.cu:16:"];
    check(text, one, &[("of_shared", &[]), ("of_device", &[]), ("without_barrier", race)]);
    let two = "--grid 1 --block 100 --arg in:f32[100] --arg out:f32[100]";
    check(text, two, &[("copied", &[]), ("copied_beyond", &["out of bounds", "k.cu:22:"])]);
}

#[test]
fn a_barrier_that_orders_one_turn_of_a_loop_is_not_asked_for_again() {
    let text = r"
__device__ __forceinline__ float mirrored(const float* s) {
  return s[63 - threadIdx.x];
}
__global__ void next_turn(const float* x, float* y, int n) {
  __shared__ float s[64];
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    s[threadIdx.x] = x[i * 64 + threadIdx.x];
    __syncthreads();
    sum += mirrored(s);
  }
  y[threadIdx.x] = sum;
}
__global__ void same_turn(const float* x, float* y, int n) {
  __shared__ float s[64];
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    s[threadIdx.x] = x[i * 64 + threadIdx.x];
    sum += s[63 - threadIdx.x];
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
__global__ void both(const float* x, float* y, int n) {
  __shared__ float s[64];
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    s[threadIdx.x] = x[i * 64 + threadIdx.x];
    __syncthreads();
    sum += mirrored(s);
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
";
    let launch = "--grid 1 --block 64 --arg in:float[256] --arg out:float[64] --arg n=4";
    check(
        text,
        launch,
        &[
            (
                "next_turn",
                &[
                    "called from k.cu:11:",
                    "fix: a second __syncthreads(), behind k.cu:11:",
                    "comes to k.cu:9:",
                ],
            ),
            ("same_turn", &["fix: __syncthreads() between the two"]),
            ("both", &[]),
        ],
    );
}

#[test]
fn local_variables_have_ends_and_their_words_an_alignment() {
    let text = r"
#include <cstdint>
__device__ void fill(uint8_t* b, const float* x) {
  for (int i = 0; i < 16; ++i) b[i] = (uint8_t)x[threadIdx.x * 16 + i];
}
__global__ void words_at_each_byte(const float* x, uint32_t* y, int n) {
  uint8_t b[16];
  fill(b, x);
  for (int t = 0; t < n; ++t) y[threadIdx.x * 4 + t] = *reinterpret_cast<uint32_t*>(&b[t]);
}
__global__ void words_at_words(const float* x, uint32_t* y, int n) {
  uint8_t b[16];
  fill(b, x);
  for (int t = 0; t < n; ++t) y[threadIdx.x * 4 + t] = *reinterpret_cast<uint32_t*>(&b[4 * t]);
}
__global__ void vector_overrun(const float* x, uint32_t* y, int n) {
  uint4 v{0, 0, 0, 0};
  uint32_t* p = reinterpret_cast<uint32_t*>(&v);
  for (int i = 0; i <= n; ++i) p[i] = (uint32_t)x[i];
  *reinterpret_cast<uint4*>(&y[4 * threadIdx.x]) = v;
}
__global__ void vector_filled(const float* x, uint32_t* y, int n) {
  uint4 v{0, 0, 0, 0};
  uint32_t* p = reinterpret_cast<uint32_t*>(&v);
  for (int i = 0; i < n; ++i) p[i] = (uint32_t)x[i];
  *reinterpret_cast<uint4*>(&y[4 * threadIdx.x]) = v;
}
";
    let launch = "--grid 1 --block 32 --arg in:float[512] --arg out:uint32_t[128] --arg n=4";
    check(
        text,
        launch,
        &[
            ("words_at_each_byte", &["memcheck: misaligned address: a local variable", "k.cu:9:"]),
            ("words_at_words", &[]),
            ("vector_overrun", &["memcheck: out of bounds:", "local variable", "k.cu:19:"]),
            ("vector_filled", &[]),
        ],
    );
}
