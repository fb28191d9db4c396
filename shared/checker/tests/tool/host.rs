//! What the host reads of what it has copied, where no kernel has written.

use super::run;

/// A kernel that begins one too late, and a host that does this with what it has copied from `y`.
fn late(host: &str) -> String {
    format!(
        "#include <cstdio>
#include <cstdlib>
#include <cstring>
__global__ void late(float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x + 1;
    if (i < n) y[i] = i;
}}
struct Pair {{ float x; float none; }};
__global__ void pairs(Pair* p) {{ p[threadIdx.x].x = threadIdx.x; }}
float sum(const float* h, int first, int n) {{
    float s = 0;
    for (int i = first; i < n; ++i) s += h[i];
    return s;
}}
float* fetched(const float* y, int n) {{
    float* h = (float*)malloc(n * 4);
    cudaMemcpy(h, y, n * 4, cudaMemcpyDeviceToHost);
    return h;
}}
int main() {{
    const int n = 100;
    float* y;
    cudaMalloc(&y, n * 4);
    late<<<1, 128>>>(y, n);
    {host}
}}
"
    )
}

/// Exit code, and what `lab app` says of the program.
fn app(host: &str) -> (Option<i32>, String) {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("main.cu"), late(host)).unwrap();
    let (code, _, stderr) = run(here.path(), &["app", "main.cu"]);
    (code, stderr)
}

#[test]
fn what_nobody_wrote_is_told_where_the_host_reads_it() {
    for host in [
        "float* h = fetched(y, n); printf(\"%f\\n\", sum(h, 0, n));",
        // The device's memory is gone by then.
        "float* h = fetched(y, n); cudaFree(y); printf(\"%f\\n\", sum(h, 0, n)); free(h);",
        "float h[n]; cudaMemcpy(h, y, n * 4, cudaMemcpyDeviceToHost); printf(\"%f\\n\", sum(h, 0, n));",
        "float* h; cudaMallocHost(&h, n * 4); cudaMemcpyAsync(h, y, n * 4, cudaMemcpyDeviceToHost); cudaDeviceSynchronize();
         printf(\"%f\\n\", sum(h, 0, n)); cudaFreeHost(h);",
    ] {
        let (code, told) = app(host);
        assert_eq!(code, Some(3), "{host}: {told}");
        for expected in [
            "late, launch 1, initcheck: uninitialised: y[0] (f32, 100 elements) is read by the host at main.cu:12:",
            "write of 4 bytes beside it, of y[1] (f32, 100 elements), at main.cu:6:",
            "1 launch, 1 finding; the program ended with 0",
        ] {
            assert!(told.contains(expected), "{host}: expected {expected}, got {told}");
        }
    }
}

#[test]
fn what_the_host_does_not_read_is_no_mistake() {
    for host in [
        // It reads only what is written, writes first, or clears.
        "float* h = fetched(y, n); printf(\"%f\\n\", sum(h, 1, n));",
        "float* h = fetched(y, n); h[0] = 1; printf(\"%f\\n\", sum(h, 0, n));",
        "float* h = fetched(y, n); memset(h, 0, n * 4); printf(\"%f\\n\", sum(h, 0, n));",
        "cudaMemset(y, 0, n * 4); late<<<1, 128>>>(y, n); float* h = fetched(y, n); printf(\"%f\\n\", sum(h, 0, n));",
        // A library writes what no hook sees.
        "float* h = fetched(y, n); sscanf(\"1.5\", \"%f\", h); printf(\"%f\\n\", sum(h, 0, n));",
        // Half of a struct is copied on, with the other half.
        "Pair* p; cudaMalloc(&p, 80); pairs<<<1, 10>>>(p); Pair h[10]; cudaMemcpy(h, p, 80, cudaMemcpyDeviceToHost);
         Pair own = h[3]; printf(\"%f\\n\", own.x);",
    ] {
        let (code, told) = app(host);
        assert_eq!(code, Some(0), "{host}: {told}");
        assert!(told.contains("0 findings; the program ended with 0"), "{host}: {told}");
    }
    // The launch did not write at all, for it never began: that is an API error, and no finding besides.
    let (code, told) = app(
        "cudaFree(y); cudaMalloc(&y, n * 4); late<<<1, 128, 1 << 30>>>(y, n); float* h = fetched(y, n);
         printf(\"%f\\n\", sum(h, 0, n));",
    );
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("0 findings, 1 API error; the program ended with 0"), "{told}");
}

#[test]
fn what_is_copied_and_not_read_at_all_is_formal() {
    let (code, told) = app("float* h = fetched(y, n); cudaFree(y); free(h);");
    assert_eq!(code, Some(0), "{told}");
    for expected in [
        "late, launch 1, formal, initcheck: uninitialised: y[0] (f32, 100 elements) is copied to the host, and nobody has written it",
        "at main.cu:6:",
        "formal: in this run no read of what was copied is seen",
        "0 findings, 1 by the letter alone",
    ] {
        assert!(told.contains(expected), "expected {expected}, got {told}");
    }
    // One that ends with an error may have left out what it would have read.
    let (code, told) = app("fetched(y, n); return 1;");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("0 findings; the program ended with 1"), "{told}");
}

#[test]
fn an_output_that_lacks_elements_names_the_write_beside_them() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("main.cu"), late("")).unwrap();
    let words = "check main.cu --kernel late --grid 1 --block 128 --arg out:f32[100] --arg 100";
    let (code, told, _) = run(here.path(), &words.split(' ').collect::<Vec<_>>());
    assert_eq!(code, Some(3), "{told}");
    for expected in [
        "1 of 100 elements of out 'y' never got a value from the kernel at main.cu:4, the first: y[0]",
        "write of 4 bytes beside it, of y[1] (f32, 100 elements), at main.cu:6:",
    ] {
        assert!(told.contains(expected), "expected {expected}, got {told}");
    }
}
