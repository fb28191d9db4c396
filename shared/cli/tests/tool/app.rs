//! Programs of other people's: what they print, what is found, what is refused.

use std::path::{Path, PathBuf};

use assert_cmd::Command;

const SUM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../app/programs/sum.cu");

fn app(directory: &Path) -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").current_dir(directory).arg("app");
    lab
}

/// Exit code, stdout and stderr.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Runs these files, of which the first has the name `main.cu`.
fn run_files(files: &[(&str, &str)], arguments: &[&str]) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
        names.extend((!name.ends_with('h')).then(|| PathBuf::from(name)));
    }
    outcome(app(directory.path()).args(names).args(arguments))
}

fn run(text: &str) -> (i32, String, String) {
    run_files(&[("main.cu", text)], &[])
}

#[test]
fn a_program_that_is_right_keeps_its_output_and_its_exit_code() {
    let here = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = outcome(app(here.path()).args([SUM, "--", "300"]));
    assert_eq!((code, &stdout[..]), (0, "300 ones: 300\n"), "{stderr}");
    assert!(stderr.contains("1 launch, 0 findings; the program ended with 0"), "{stderr}");
    let (code, _, stderr) = run("#include <cstdlib>\nint main() { exit(7); }");
    assert_eq!(code, 7, "{stderr}");
    let (code, _, stderr) =
        run("#include <stdexcept>\nint main() { throw std::runtime_error(\"no\"); }");
    assert_eq!(code, 1);
    assert!(stderr.contains("ended with an exception: no"), "{stderr}");
}

/// The emulator's own headers have names such as N, too.
#[test]
fn what_is_defined_is_of_the_program_alone() {
    let here = tempfile::tempdir().unwrap();
    let program = here.path().join("defined.cu");
    let text = "#include <cstdio>\n#ifndef T\n#error no T\n#endif\n__global__ void fill(T* x) { x[threadIdx.x] = N + SQUARE(2); }\n\
                int main() { T* x; cudaMallocManaged(&x, sizeof(T)); fill<<<1, 1>>>(x);\n\
                cudaDeviceSynchronize(); printf(\"%g %d\\n\", double(*x), size); }\n";
    std::fs::write(&program, text).unwrap();
    let defined = ["-D", "N=300", "-D", "T=float", "-D", "SQUARE(x)=x * x", "-D", "size"];
    let (code, stdout, stderr) = outcome(app(here.path()).args(defined).arg(&program));
    assert_eq!((code, &stdout[..]), (0, "304 1\n"), "{stderr}");
    for wrong in ["", "=3", "1N=3", "A B=3", "F(x=x", "N=1\n#error mine", "-include=x"] {
        let (code, _, stderr) = outcome(app(here.path()).arg(format!("-D{wrong}")).arg(&program));
        let expected = "-D: expected NAME or NAME=VALUE in one line, got '";
        assert_eq!(code, 2, "{wrong}: {stderr}");
        assert!(stderr.contains(expected) || wrong.is_empty(), "{wrong}: {stderr}");
    }
}

#[test]
fn one_name_has_one_value() {
    let here = tempfile::tempdir().unwrap();
    let define = |defines: &[&str]| {
        let defines = defines.iter().map(|d| format!("-D{d}"));
        outcome(app(here.path()).args(defines).args([SUM, "--", "10"]))
    };
    for (first, second) in [("N=3", "N=4"), ("N", "N=0"), ("F(x)=x", "F(y)=y"), ("_A=1", "_A=2")] {
        let (code, _, stderr) = define(&[first, "OTHER=3", second]);
        assert_eq!(code, 2, "{stderr}");
        let said = format!("-D: expected one value of a name, got '{first}' and '{second}'");
        assert!(stderr.contains(&said), "{stderr}");
    }
    let (code, _, stderr) = define(&["MINE=3", "MINE=3", "YOURS"]);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn output_that_is_lost_is_told() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(
        here.path().join("ends.cu"),
        "#include <cstdio>\nint main(int n, char**) { printf(\"%d\\n\", n); return n - 1; }\n",
    )
    .unwrap();
    let full = || std::fs::File::create("/dev/full").unwrap();
    let run = |before: &[&str], after: &[&str]| {
        let mut lab = std::process::Command::new(assert_cmd::cargo::cargo_bin("lab"));
        lab.env_remove("LAB_DEVICE").current_dir(&here).arg("app").args(before).arg("ends.cu");
        let output = lab.arg("--").args(after).stdout(full()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // The program's own exit code counts more, where it has one.
    for (before, after, expected) in
        [(&[][..], &[][..], 2), (&[], &["x", "y", "z", "w"], 4), (&["--json"], &[], 2)]
    {
        let (code, stderr) = run(before, after);
        assert_eq!(code, Some(expected), "{stderr}");
        let said = "lab app: standard output: No space left on device";
        assert!(stderr.contains(said) || before.is_empty() && expected == 4, "{stderr}");
    }
    let (code, _, stderr) = outcome(app(here.path()).arg("ends.cu"));
    assert!(code == 0 && !stderr.contains("standard output"), "{stderr}");
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn what_is_kept_may_be_damaged() {
    let (here, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = || outcome(app(here.path()).env("LAB_CACHE", cache.path()).args([SUM, "--", "300"]));
    // The second run compiles headers in advance.
    for _ in 0..2 {
        assert_eq!(run().0, 0);
    }
    let tree = std::fs::read_dir(cache.path().join("headers")).unwrap().next().unwrap().unwrap();
    let objects = tree.path().join("objects");
    let kept = |beginning: &str, end: &str| -> Vec<PathBuf> {
        let all = std::fs::read_dir(&objects).unwrap().map(|e| e.unwrap().path());
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(beginning) && name.ends_with(end)
        };
        all.filter(is_one).collect()
    };
    let cut = |path: &PathBuf, bytes: u64| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
    };
    for (beginning, end, bytes) in [
        ("prelude.", ".gch", 100),
        ("glue.", ".o", 20_000),
        ("glue.", ".o", 0),
        ("program.", ".o", 1000),
    ] {
        let damaged = kept(beginning, end);
        assert!(!damaged.is_empty() || end == ".gch", "{beginning}");
        damaged.iter().for_each(|path| cut(path, bytes));
        for _ in 0..2 {
            let (code, stdout, stderr) = run();
            assert_eq!((code, &stdout[..]), (0, "300 ones: 300\n"), "{beginning}: {stderr}");
        }
    }
    // As long as it was: a bit of an object is another one, or all of it is zero.
    for change in [|bytes: &mut Vec<u8>| bytes[1000] ^= 4, |bytes: &mut Vec<u8>| bytes.fill(0)] {
        for path in kept("program.", ".o") {
            let mut bytes = std::fs::read(&path).unwrap();
            change(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
        }
        let (code, stdout, stderr) = run();
        assert_eq!((code, &stdout[..]), (0, "300 ones: 300\n"), "{stderr}");
    }
    // The text that is compiled in advance.
    kept("prelude.", ".gch").iter().for_each(|path| std::fs::remove_file(path).unwrap());
    kept("prelude.", ".h").iter().for_each(|path| cut(path, 10));
    for _ in 0..3 {
        let (code, _, stderr) = run();
        assert_eq!(code, 0, "{stderr}");
    }
    let whole = |path: &PathBuf| std::fs::metadata(path).unwrap().len() > 100;
    assert!(kept("prelude.", ".h").iter().all(whole));
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    use std::os::unix::fs::PermissionsExt as _;
    let (here, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = || {
        let mut lab = app(here.path());
        lab.env("LAB_CACHE", "/proc/no-cache-here").env("TMPDIR", temporary.path());
        outcome(lab.args([SUM, "--", "300"]))
    };
    let (code, stdout, stderr) = run();
    assert_eq!((code, &stdout[..]), (0, "300 ones: 300\n"), "{stderr}");
    let mut left = std::fs::read_dir(temporary.path()).unwrap();
    let own = left.next().unwrap().unwrap().path();
    assert!(left.next().is_none());
    assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    // What is compiled with headers of somebody else's is run with this user's rights.
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (code, _, stderr) = run();
    assert_eq!(code, 2, "{stderr}");
    for said in ["/proc/no-cache-here", "others can write there", "set LAB_CACHE to another one"] {
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn a_race_is_found_in_its_own_file() {
    let here = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = outcome(app(here.path()).args(["-D", "FORGETFUL", SUM]));
    assert_eq!((code, &stdout[..]), (3, "1000 ones: 64\n"), "{stderr}");
    assert!(stderr.contains("sum_blocks<T = float>, launch 1, racecheck: race"), "{stderr}");
    assert!(stderr.contains("programs/sum.cu:15:"), "{stderr}");
    let (code, stdout, _) = outcome(app(here.path()).args(["--json", "-D", "FORGETFUL", SUM]));
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["exit"], &report["program"]), (3, &3.into(), &1.into()));
    assert_eq!(report["findings"][0]["check"], "racecheck");
    let (code, stdout, _) = outcome(app(here.path()).args(["--plain", SUM]));
    assert_eq!((code, &stdout[..]), (0, "1000 ones: 1000\n"));
}

/// Kernels in a header, two files, and what host code does with both.
#[test]
fn host_code_is_what_it_is_elsewhere() {
    let header = "#pragma once
        template <class T, int N> __global__ void __launch_bounds__(64) fill(T* x, int n, T value = T(N)) {
            for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value + T(N);
        }
        struct Both { float* x; float add; };
        void elsewhere(float* x, int n);";
    let other = "#include \"fill.cuh\"
        __constant__ float factors[2];
        __global__ void scale(Both both, int n) { if (threadIdx.x < n) both.x[threadIdx.x] = both.x[threadIdx.x] * factors[1] + both.add; }
        void elsewhere(float* x, int n) {
            float host[2] = {0, 3};
            cudaMemcpyToSymbol(factors, host, sizeof host);
            void* symbol; cudaGetSymbolAddress(&symbol, factors);
            if (cudaMemset(symbol, 0, sizeof(float)) != cudaSuccess) return;
            void (*kernel)(Both, int) = scale;
            kernel<<<1, 64>>>(Both{x, 0.5f}, n);
            int m = n; Both both = {x, 1};
            void* arguments[] = {&both, &m};
            cudaLaunchKernel((void*)scale, dim3(1), dim3(64), arguments, 0, 0);
        }";
    let main = "#include <cooperative_groups.h>
        #include \"fill.cuh\"
        #include <cstdio>
        #define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf(\"%s at %d\\n\", cudaGetErrorName(e), __LINE__); return 1; } } while (0)
        __device__ int count;
        __global__ void meet(int* all) {
        #if __CUDA_ARCH__ >= 700
            atomicAdd(&count, 1);
            cooperative_groups::this_grid().sync();
            if (threadIdx.x == 0) all[blockIdx.x] = count;
        #endif
        }
        int main() {
            const int n = 50;
            float *x, host[n]; int* all;
            CHECK(cudaMalloc((void**)&x, sizeof host));
            fill<float, 1><<<1, 64>>>(x, n, 2.0f);
            elsewhere(x, n);
            CHECK(cudaGetLastError());
            CHECK(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));
            CHECK(cudaMallocManaged(&all, 2 * sizeof(int)));
            void* arguments[] = {&all};
            CHECK(cudaLaunchCooperativeKernel((const void*)meet, 2, 32, arguments, 0, cudaStream_t(0)));
            CHECK(cudaDeviceSynchronize());
            int counted; CHECK(cudaMemcpyFromSymbol(&counted, count, sizeof counted));
            cudaDeviceProp p; CHECK(cudaGetDeviceProperties(&p, 0));
            printf(\"%g %g %d %d %d %d\\n\", host[0], host[n - 1], all[0], all[1], counted, p.warpSize);
            CHECK(cudaFree(x)); CHECK(cudaFree(all));
            return 0;
        }";
    let files = [("main.cu", main), ("other.cu", other), ("fill.cuh", header)];
    let (code, stdout, stderr) = run_files(&files, &[]);
    assert_eq!((code, &stdout[..]), (0, "29.5 29.5 64 64 64 32\n"), "{stderr}");
    assert!(stderr.contains("4 launches, 0 findings"), "{stderr}");
}

/// A program with kernels that copy, and a `main` of these lines.
fn with_main(lines: &str) -> (i32, String, String) {
    run(&format!(
        "#include <cstdio>
        __global__ void copy(const int* from, int* to, int n) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) to[i] = from[i];
        }}
        int main() {{
            int *a, *b, host[64] = {{}};
            cudaMalloc(&a, sizeof host), cudaMalloc(&b, sizeof host);
            {lines}
            printf(\"%s\\n\", cudaGetErrorName(cudaGetLastError()));
        }}"
    ))
}

#[test]
fn what_nobody_has_written_is_found_to_the_byte() {
    // Half of it was copied there, by the host and from another allocation.
    let half = "cudaMemcpy(a, host, 128, cudaMemcpyHostToDevice);";
    let (code, _, stderr) = with_main(&format!("{half} copy<<<1, 64>>>(a, b, 32);"));
    assert_eq!(code, 0, "{stderr}");
    for more in [
        "copy<<<1, 64>>>(a, b, 33);",
        "cudaMemcpy(b, a, 256, cudaMemcpyDeviceToDevice); copy<<<1, 64>>>(b, a, 33);",
    ] {
        let (code, stdout, stderr) = with_main(&format!("{half} {more}"));
        assert_eq!((code, &stdout[..]), (3, "cudaSuccess\n"), "{stderr}");
        assert!(stderr.contains("initcheck") && stderr.contains("from[32]"), "{stderr}");
        assert!(!stderr.contains("seen"), "{stderr}");
    }
    // What the host writes into memory of its own is not looked at.
    let pinned = "int* p; cudaMallocHost(&p, 256); for (int i = 0; i < 64; ++i) p[i] = i;
        cudaMemcpyAsync(a, p, 256, cudaMemcpyHostToDevice); copy<<<2, 32>>>(a, b, 64); copy<<<2, 32>>>(p, b, 64);
        int* r = new int[64](); cudaHostRegister(r, 256, 0); copy<<<2, 32>>>(r, b, 64); cudaHostUnregister(r);";
    let (code, stdout, stderr) = with_main(pinned);
    assert_eq!((code, &stdout[..]), (0, "cudaSuccess\n"), "{stderr}");
}

#[test]
fn mistakes_of_host_code_are_errors_and_are_told() {
    let mistakes = [
        (
            "cudaMemcpy(a, host, 260, cudaMemcpyHostToDevice);",
            "cudaErrorInvalidValue",
            "cudaMemcpy: destination: expected at most 256 bytes",
        ),
        (
            "cudaMemcpy(host, host + 8, 16, cudaMemcpyDeviceToHost);",
            "cudaErrorInvalidValue",
            "cudaMemcpy: source: expected device memory",
        ),
        ("cudaMemset(b + 60, 0, 32);", "cudaErrorInvalidValue", "cudaMemset: expected at most 16"),
        (
            "copy<<<1, 2048>>>(a, b, 1);",
            "cudaErrorInvalidConfiguration",
            "copy: block.x: expected 1 to 1024",
        ),
        ("cudaFree(a), cudaFree(a);", "cudaErrorInvalidValue", "cudaFree: expected an address"),
        (
            "cudaHostGetDevicePointer(&a, host, 0); cudaGraphAddChildGraphNode(0, 0);",
            "cudaErrorNotSupported",
            "cudaGraphAddChildGraphNode is not",
        ),
    ];
    // One program makes them all: each is an error of its own.
    let tell = "printf(\"%s\\n\", cudaGetErrorName(cudaGetLastError()));";
    let lines: Vec<_> = mistakes.iter().map(|(lines, ..)| format!("{lines} {tell}")).collect();
    let (code, stdout, stderr) = with_main(&lines.join("\n"));
    let said: Vec<_> = stdout.lines().collect();
    let errors = mistakes.iter().map(|(_, error, _)| *error).chain(["cudaSuccess"]);
    assert_eq!((code, said), (3, errors.collect()), "{stderr}");
    for (lines, _, told) in mistakes {
        let line = stderr.lines().find(|line| line.contains(told));
        let line = line.unwrap_or_else(|| panic!("{lines}: {stderr}"));
        assert!(line.contains("is not supported") || line.contains("main.cu:"), "{line}");
    }
    assert!(stderr.contains("0 launches, 0 findings, 5 API errors"), "{stderr}");
    // What the lab alone refuses is no error of the program's.
    let (code, _, stderr) = with_main("cudaGraphAddChildGraphNode(0, 0);");
    assert_eq!(code, 0, "{stderr}");
    // Nobody asks here; shared memory that was not asked for is refused, too.
    let silent = "__global__ void k() {}\nint main() {\n  k<<<1, 2048>>>();\n  k<<<0, 32>>>();\n  k<<<1, 32, 200000>>>();\n}";
    let (code, _, stderr) = run(silent);
    assert_eq!(code, 3, "{stderr}");
    for line in 3..6 {
        assert!(stderr.contains(&format!("main.cu:{line}")), "{line}: {stderr}");
    }
    assert!(stderr.contains("0 launches, 0 findings, 3 API errors"), "{stderr}");
    let (code, _, stderr) = run_files(&[("main.cu", silent)], &["--report-api-errors", "no"]);
    assert_eq!(code, 0, "{stderr}");
    // After a launch that ended badly nothing works, as on a GPU.
    let wild = "cudaMemset(a, 0, 256); copy<<<2, 64>>>(a, b, 65); copy<<<1, 1>>>(a, b, 1);";
    let (code, stdout, stderr) = with_main(wild);
    assert_eq!((code, stdout.trim()), (3, "cudaErrorLaunchFailure"), "{stderr}");
    assert!(stderr.contains("memcheck") && stderr.contains("main.cu:4:"), "{stderr}");
    assert!(stderr.contains("1 launch, 1 finding"), "{stderr}");
}

#[test]
fn what_does_not_run_is_one_line() {
    for (text, code, reason) in [
        ("__global__ void k() {}", 2, "expected a function main, got only k"),
        ("#include \"nowhere.h\"\nint main() {}", 2, "main.cu:1:10: error: nowhere.h"),
        ("int main() {\n    k<<<1, 1>>>;\n}", 2, "main.cu: line 2: expected (arguments)"),
        ("__global__ void k() {}\nint main() {\n  k<<<1, 1>>>(2);\n}", 2, "main.cu:3:"),
    ] {
        let (got, stdout, stderr) = run(text);
        assert_eq!((got, &stdout[..]), (code, ""), "{text}: {stderr}");
        assert!(stderr.contains(reason) && stderr.lines().count() == 1, "{text}: {stderr}");
    }
    let ptx =
        "__global__ void k() { asm volatile(\"pmevent 7;\"); }\nint main() { k<<<1, 1>>>(); }";
    let (code, _, stderr) = run(ptx);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("inline PTX") && stderr.contains("pmevent 7;"), "{stderr}");
    let endless = "int main() { for (volatile int i = 0;; i = 1); }";
    let (code, _, stderr) = run_files(&[("main.cu", endless)], &["--timeout", "0.3"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("expected an end within 0.3 s"), "{stderr}");
    let directory = tempfile::tempdir().unwrap();
    for (file, reason) in [("none.cu", "none.cu: No such file"), (".", "expected a file")] {
        let (code, _, stderr) = outcome(app(directory.path()).arg(file));
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
}

#[test]
fn check_lists_the_kernels_of_a_file() {
    let mut lab = Command::cargo_bin("lab").unwrap();
    let (code, stdout, stderr) = outcome(lab.env_remove("LAB_DEVICE").args(["check", SUM]));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("sum_blocks<T>(const T* x, T* sums, int n)"), "{stdout}");
    // With a target directory of one's own, the file's name.
    let own = assert_cmd::cargo::cargo_bin("lab");
    let is_named = |tool: &str| stdout.contains(&format!("{tool} app "));
    assert!(is_named("cargo run --quiet --") || is_named(&own.to_string_lossy()), "{stdout}");
}

#[test]
fn a_part_of_a_vector_needs_the_alignment_of_the_whole() {
    let program = |offset: usize| {
        run(&format!(
            "#include <cstdio>
__global__ void add(const float* x, float* out) {{
    const float2* pairs = reinterpret_cast<const float2*>(x + {offset});
    out[threadIdx.x] = pairs[threadIdx.x].x + pairs[threadIdx.x].y;
}}
int main() {{
    float *x, *out;
    cudaMalloc(&x, 80);
    cudaMalloc(&out, 32);
    cudaMemset(x, 0, 80);
    add<<<1, 8>>>(x, out);
    return cudaDeviceSynchronize();
}}"
        ))
    };
    let (code, _, stderr) = program(2);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = program(1);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("misaligned address: x[1] (f32, 20 elements)"), "{stderr}");
    assert!(stderr.contains("main.cu:4:"), "{stderr}");
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn an_index_that_overflows_is_found_in_an_array_that_is_larger_than_memory() {
    let program = |index: &str| {
        run(&format!(
            "#include <cstdio>
__global__ void first_of_rows(float* out, int rows, int columns) {{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) out[{index} * columns] = 1.0f;
}}
int main() {{
    size_t rows = 48000;
    float *out, last = 0;
    if (cudaMalloc(&out, 4 * rows * rows) != cudaSuccess) return 9;
    cudaMemset(out, 0, 4 * rows * rows);
    first_of_rows<<<(rows + 255) / 256, 256>>>(out, rows, rows);
    cudaMemcpy(&last, out + (rows - 1) * rows, 4, cudaMemcpyDeviceToHost);
    printf(\"%g\\n\", last);
}}"
        ))
    };
    let (code, stdout, stderr) = program("size_t(row)");
    assert_eq!((code, &stdout[..]), (0, "1\n"), "{stderr}");
    let (code, _, stderr) = program("row");
    assert_eq!(code, 3, "{stderr}");
    let said = "bytes before the start of out, which has 9216000000 bytes";
    assert!(stderr.contains(said) && stderr.contains("main.cu:4:"), "{stderr}");
}

#[test]
fn a_kernel_on_one_line_keeps_its_columns() {
    let kernel = "__global__ void k(float* x) { extern __shared__ float s[]; s[threadIdx.x] = 2; x[threadIdx.x + 1] = 1; }";
    let (code, _, stderr) = run(&format!(
        "{kernel}\nint main() {{ float* x; cudaMalloc(&x, 16); k<<<1, 4, 16>>>(x); }}"
    ));
    assert_eq!(code, 3, "{stderr}");
    let column = 1 + kernel.find("= 1").unwrap();
    assert!(stderr.contains(&format!("at main.cu:1:{column} ")), "{column}: {stderr}");
}

#[test]
fn variables_and_elements_have_names() {
    let (code, _, stderr) = run("\
__device__ float table[4][8];
__global__ void reverse(float* out) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = tile[31 - threadIdx.x];
    table[2][threadIdx.x % 4] = out[threadIdx.x];
}
int main() {
    float* out;
    cudaMalloc(&out, 128);
    reverse<<<1, 32, 128>>>(out);
    cudaDeviceSynchronize();
}");
    assert_eq!(code, 3, "{stderr}");
    for name in ["race on table[2][", "] (__device__, f32)", "dynamic shared memory (element "] {
        assert!(stderr.contains(name), "{name}: {stderr}");
    }
}
/// Host code of others' may fault: that is its end, and not the tool's.
#[test]
fn a_fault_of_host_code_is_one_line_with_its_place() {
    let wild = "int main() {\n    volatile int* p = nullptr;\n    return *p;\n}";
    let (code, _, stderr) = run(wild);
    assert_eq!(code, 139, "{stderr}");
    assert!(stderr.contains("an access to an invalid address, 0x0, at main.cu:3:"), "{stderr}");
    assert!(stderr.contains("0 launches, 0 findings; the program ended with 139"), "{stderr}");
    // In a library that it calls; and what constructors do before main.
    let far = "#include <cstdio>\n#include <cstdlib>\nint n = 4;\nint m = n * 2;\nint main() {\n    printf(\"%d\\n\", m);\n    \
               abort();\n}";
    let (code, stdout, stderr) = outcome_of(far, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let fault = report["fault"].as_str().unwrap();
    assert_eq!((code, &report["program"]), (134, &134.into()), "{stderr}");
    assert!(fault.contains("abort() was called, at main.cu:7:"), "{fault}");
    assert!(stderr.contains("8"), "{stderr}");
}

fn outcome_of(text: &str, arguments: &[&str]) -> (i32, String, String) {
    run_files(&[("main.cu", text)], arguments)
}

#[test]
fn memory_has_a_limit_on_the_host_and_on_the_device() {
    let text = "#include <cstdio>\n#include <cstdlib>\nint main() {
        void *a, *b; size_t half = size_t(1) << 30;
        cudaError_t first = cudaMalloc(&a, half), second = cudaMalloc(&b, 2 * half);
        printf(\"%s %s %d %d\\n\", cudaGetErrorName(first), cudaGetErrorName(second), malloc(half) != nullptr,
               malloc(4 * half) != nullptr);
        return 0; }";
    let (code, stdout, stderr) = outcome_of(text, &["--memory", "2GiB"]);
    assert_eq!((code, stdout.trim()), (0, "cudaSuccess cudaErrorMemoryAllocation 1 0"), "{stderr}");
    let told = "cudaMalloc: expected at most 2147483648 bytes in all, got 3221225472";
    assert!(stderr.contains(told), "{stderr}");
    for given in ["2", "8GiBs", "GiB", "-1", "99999999999GiB"] {
        let (code, _, stderr) = outcome_of(text, &[&format!("--memory={given}")]);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("--memory: expected bytes from 64MiB"), "{given}: {stderr}");
    }
}

/// What kernels read by a texture, draw, allocate and launch.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn textures_random_numbers_and_launches_of_kernels() {
    let text = "#include <cstdio>
        #include <cublas_v2.h>
        #include <curand_kernel.h>
        #include <thrust/device_vector.h>
        #include <thrust/sort.h>
        #include <thrust/reduce.h>
        struct Base { __device__ virtual int two() { return 2; } };
        __global__ void grow(int depth, int* count) {
            if (threadIdx.x != 0) return;
            atomicAdd(count, 1);
            int* own = new int[2];
            own[1] = depth - 1;
            if (depth > 0) grow<<<2, 32>>>(own[1], count);
            delete[] own;
        }
        __global__ void read(cudaTextureObject_t t, cudaSurfaceObject_t s, float* y) {
            __shared__ alignas(8) char room[sizeof(Base)];
            __shared__ Base* base;
            if (threadIdx.x == 0) base = new (room) Base;
            __syncthreads();
            y[threadIdx.x] = tex2D<float>(t, threadIdx.x + 1.0f, 0.5f) * base->two();
            surf2Dwrite(float(threadIdx.x), s, threadIdx.x * 4, 1);
        }
        __global__ void draw(float* y) {
            curandState state;
            curand_init(7, threadIdx.x, 0, &state);
            float sum = 0;
            for (int i = 0; i < 100; ++i) sum += curand_uniform(&state);
            unsigned lane;
            asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(lane));
            y[threadIdx.x] = lane == threadIdx.x ? sum / 100 : 9;
        }
        int main() {
            int* count; float *y, host[8], row[4] = {0, 10, 20, 30};
            cudaMallocManaged(&count, 4);
            *count = 0;
            grow<<<1, 32>>>(3, count);
            cudaMalloc(&y, sizeof host);
            cudaChannelFormatDesc desc = cudaCreateChannelDesc<float>();
            cudaArray_t array;
            cudaMallocArray(&array, &desc, 4, 2, cudaArraySurfaceLoadStore);
            cudaMemcpy2DToArray(array, 0, 0, row, 16, 16, 1, cudaMemcpyHostToDevice);
            cudaResourceDesc what = {};
            what.resType = cudaResourceTypeArray;
            what.res.array.array = array;
            cudaTextureDesc how = {};
            how.addressMode[0] = cudaAddressModeClamp;
            how.filterMode = cudaFilterModeLinear;
            cudaTextureObject_t t; cudaSurfaceObject_t s;
            cudaCreateTextureObject(&t, &what, &how, nullptr);
            cudaCreateSurfaceObject(&s, &what);
            read<<<1, 4>>>(t, s, y);
            cudaMemcpy(host, y, 16, cudaMemcpyDeviceToHost);
            cudaMemcpy2DFromArray(row, 16, array, 0, 1, 16, 1, cudaMemcpyDeviceToHost);
            printf(\"%d; %g %g %g %g; %g\\n\", *count, host[0], host[1], host[2], host[3], row[3]);
            cudaStream_t stream; cudaStreamCreate(&stream);
            cudaGraph_t graph; cudaGraphExec_t exec;
            cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
            draw<<<1, 8, 0, stream>>>(y);
            cudaStreamEndCapture(stream, &graph);
            cudaGraphInstantiate(&exec, graph, 0);
            cudaGraphLaunch(exec, stream);
            cudaGraphNode_t node; cudaKernelNodeParams params = {}; void* arguments[] = {&y};
            params.func = (void*)draw;
            params.gridDim = 1; params.blockDim = 8;
            params.kernelParams = arguments;
            cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params);
            cudaGraphExec_t both; cudaGraphInstantiate(&both, graph, 0);
            cudaGraphLaunch(both, stream);
            cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
            float sum = 0, one = 1, zero = 0, dot = 0;
            for (float x : host) sum += x;
            cublasHandle_t handle; cublasCreate(&handle);
            cublasSdot(handle, 8, y, 1, y, 1, &dot);
            cublasSgemv(handle, CUBLAS_OP_N, 2, 2, &one, y, 2, y, 1, &zero, y + 4, 1);
            thrust::device_vector<int> all(4, 1);
            all[2] = -5;
            thrust::sort(all.begin(), all.end());
            grow<<<1, 1>>>(0, thrust::raw_pointer_cast(&all[0]));
            printf(\"%d %d\\n\", all[0] == -4, thrust::reduce(all.begin(), all.end()));
            printf(\"%d %d\\n\", sum > 3.2f && sum < 4.8f, dot > 1 && dot < 3);
            return 0;
        }\n";
    let (code, stdout, stderr) = run(text);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout, "15; 10 30 50 60; 3\n1 -1\n1 1\n", "{stderr}");
    assert!(stderr.contains("13 launches, 0 findings"), "{stderr}");
}

/// Formal: told, with the reason, and no error but with --strict.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn what_is_wrong_by_the_letter_alone_is_told_apart() {
    let text = "
        __global__ void product(int* x) {
            int old = *x, seen;
            do { seen = old; old = atomicCAS(x, seen, 2 * seen); } while (old != seen);
        }
        int main() {
            int one = 1, *x;
            cudaMalloc(&x, 4), cudaMemcpy(x, &one, 4, cudaMemcpyHostToDevice);
            product<<<2, 4>>>(x);
            cudaMemcpy(&one, x, 4, cudaMemcpyDeviceToHost);
            return one == 256 ? 0 : 1;
        }";
    let (code, _, stderr) = run_files(&[("main.cu", text)], &[]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("product, launch 1, formal, racecheck: race on "), "{stderr}");
    assert!(stderr.contains("formal: an aligned word is read in one piece"), "{stderr}");
    assert!(
        stderr.contains("1 launch, 0 findings, 1 by the letter alone; the program"),
        "{stderr}"
    );
    let (code, _, stderr) = run_files(&[("main.cu", text)], &["--strict"]);
    assert_eq!(code, 3, "{stderr}");
    let sizes = ["check", "main.cu", "--kernel", "product", "--grid", "2", "--block", "4"];
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("main.cu"), text).unwrap();
    let check = |more: &[&str]| {
        let mut lab = Command::cargo_bin("lab").unwrap();
        let inputs = ["--arg", "inout:i32[1]=1"];
        outcome(lab.current_dir(here.path()).args(sizes).args(inputs).args(more))
    };
    let (code, stdout, stderr) = check(&["--sarif", "found.sarif"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("0 findings, 1 by the letter alone"), "{stdout}");
    let sarif = std::fs::read_to_string(here.path().join("found.sarif")).unwrap();
    assert!(sarif.contains("\"level\": \"note\""), "{sarif}");
    assert_eq!(check(&["--strict"]).0, 3);
}

/// __CUDA_ARCH__, device properties, and what a launch may ask for.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_architecture_is_the_one_that_is_asked_for() {
    let text = "
        #include <cstdio>
        __global__ void arch(int* out) {
            extern __shared__ int s[];
            s[0] = __CUDA_ARCH__;
            *out = s[0];
        }
        int main(int count, char** arguments) {
            cudaDeviceProp device;
            cudaGetDeviceProperties(&device, 0);
            int bytes = 100 << 10, out = 0, *x;
            cudaMalloc(&x, 4);
            auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
            int set = count > 1 ? cudaFuncSetAttribute(arch, most, bytes) : 0;
            arch<<<1, 1, bytes>>>(x);
            int launched = cudaGetLastError();
            cudaMemcpy(&out, x, 4, cudaMemcpyDeviceToHost);
            printf(\"%d.%d %d %d %d\\n\", device.major, device.minor, set, launched, out);
        }";
    let said = |options: &[&str]| {
        let (code, stdout, stderr) = run_files(&[("main.cu", text)], options);
        (code, stdout.trim().to_owned(), stderr)
    };
    assert_eq!(said(&["--", "set"]).1, "8.0 0 0 800");
    assert_eq!(said(&["--arch", "sm_90a", "--", "set"]).1, "9.0 0 0 900");
    // 64 KiB are all that it has.
    assert_eq!(said(&["--arch", "sm_75", "--", "set"]).1, "7.5 1 1 0");
    let (_, stdout, stderr) = said(&[]);
    assert_eq!(stdout, "8.0 0 1 0", "{stderr}");
    assert!(stderr.contains("at most 48 KiB of dynamic shared memory"), "{stderr}");
    let (code, _, stderr) = said(&["--arch", "sm_81"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("--arch: expected one of sm_70, ") && stderr.contains("'sm_81'"),
        "{stderr}"
    );
}

/// An atomic for the threads of one block, on what those of another use; each block on its own is right.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn atomics_of_a_scope_that_is_too_narrow_are_races() {
    let of = |add: &str, of_block: &str| {
        format!(
            "#include <cuda/atomic>\n\
             __global__ void k(unsigned* sums) {{\n    unsigned* sum = sums + {of_block};\n    {add};\n}}\n\
             int main() {{ unsigned* x; cudaMalloc(&x, 16), cudaMemset(x, 0, 16);\n\
             k<<<4, 8>>>(x); return 0; }}\n"
        )
    };
    let reference = |scope: &str| {
        format!("cuda::atomic_ref<unsigned, cuda::thread_scope_{scope}>(*sum).fetch_add(1u)")
    };
    let counted = format!("{}; if (blockIdx.x > 2) atomicAdd(sum, 2u)", reference("block"));
    for (add, of_block, found) in [
        ("atomicAdd_block(sum, 1u)", "0", true),
        ("atomicAdd_block(sum, 1u)", "blockIdx.x", false),
        ("atomicAdd_system(sum, 1u)", "0", false),
        // One of the two suffices.
        ("if (blockIdx.x % 2) atomicMax(sum, 1u); else atomicMax_block(sum, 2u)", "0", true),
        ("atomicCAS_block(sum, 0u, 1u)", "0", true),
        (&reference("block"), "0", true),
        (&reference("block"), "blockIdx.x", false),
        (&reference("device"), "0", false),
        (&counted, "blockIdx.x", false),
    ] {
        let (code, _, stderr) = run(&of(add, of_block));
        assert_eq!(code, if found { 3 } else { 0 }, "{add}: {stderr}");
        assert_eq!(
            stderr.contains("by an atomic for threads of one block alone"),
            found,
            "{stderr}"
        );
        assert_eq!(stderr.contains("fix: a scope that both threads are in"), found, "{stderr}");
        assert_eq!(stderr.contains(" at main.cu:4:"), found, "{stderr}");
    }
}

/// As nvcc does: where they would be machine code, and not where they are dropped.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn instructions_that_the_architecture_lacks_are_refused() {
    let of = |body: &str| {
        format!(
            "#include <cooperative_groups.h>\n#include <mma.h>\n\
             __global__ void k(int* x) {{\n    {body}\n}}\n\
             int main() {{ int* x; cudaMalloc(&x, 4); k<<<1, 32>>>(x); return 0; }}\n"
        )
    };
    let on = |arch: &str, text: &str| run_files(&[("main.cu", text)], &["--arch", arch]);
    let product = "using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> a; \
                   fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major> b; \
                   fragment<accumulator, 16, 16, 16, float> c; \
                   fill_fragment(a, 1.0f), fill_fragment(b, 1.0f), fill_fragment(c, 0.0f); \
                   mma_sync(c, a, b, c); *x = int(c.x[0]);";
    for (body, arch, said) in [
        (
            "asm volatile(\"cp.async.wait_all;\");",
            "sm_75",
            "cp.async: expected sm_80 or later, got --arch sm_75",
        ),
        (
            "asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");",
            "sm_90",
            "wgmma: expected sm_90a, got --arch sm_90",
        ),
        (
            "asm volatile(\"mbarrier.arrive.b64 _, [%0], 2;\" :: \"l\"(x));",
            "sm_80",
            "mbarrier with a count: expected sm_90 or later, got --arch sm_80",
        ),
        (
            "*x = __reduce_add_sync(~0u, 1);",
            "sm_75",
            "redux.sync: expected sm_80 or later, got --arch sm_75",
        ),
        (
            "cooperative_groups::this_cluster().sync();",
            "sm_89",
            "this_cluster(): expected sm_90 or later, got --arch sm_89",
        ),
        (product, "sm_75", "wmma with .bf16: expected sm_80 or later, got --arch sm_75"),
    ] {
        let (code, _, stderr) = on(arch, &of(body));
        assert_eq!(code, 2, "{body}: {stderr}");
        let line = format!(": error: {said}\n");
        assert!(stderr.contains("main.cu:4:") && stderr.ends_with(&line), "{body}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for (body, arch) in [
        ("*x = __reduce_add_sync(~0u, 1);", "sm_80"),
        ("cooperative_groups::this_cluster().sync();", "sm_90"),
        (product, "sm_80"),
        ("if constexpr (__CUDA_ARCH__ >= 800) asm volatile(\"cp.async.wait_all;\");", "sm_75"),
        ("\n#if __CUDA_ARCH__ >= 900\nasm(\"mapa.u64 %0;\" : \"=l\"(x));\n#endif\n", "sm_80"),
    ] {
        let (code, _, stderr) = on(arch, &of(body));
        assert_eq!(code, 0, "{body}: {stderr}");
    }
    // Nobody calls it; the program has its own of that name.
    let text = "
        #if __CUDA_ARCH__ < 800
        __device__ unsigned __reduce_add_sync(unsigned, unsigned v) { return 32 * v; }
        #endif
        template <int N> __device__ void newer() { asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(N)); }
        static __device__ __forceinline__ void bulk() { asm volatile(\"cp.async.bulk.commit_group;\"); }
        __global__ void k(unsigned* x) { *x = __reduce_add_sync(~0u, 1u); }
        int main() {
            unsigned* x, out;
            cudaMalloc(&x, 4); k<<<1, 1>>>(x); cudaMemcpy(&out, x, 4, cudaMemcpyDeviceToHost);
            return out == 32 ? 0 : 1;
        }";
    let (code, _, stderr) = on("sm_75", text);
    assert_eq!(code, 0, "{stderr}");
}

/// A copy may be of nothing; and copies wait to be waited for, under each of their names.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn copies_on_their_way_and_copies_of_nothing() {
    let text = "
        #include <cstring>
        #include <cuda_pipeline.h>
        __global__ void copies(float* y, const float* x, int n) {
            __shared__ __align__(16) float s[8];
            memcpy(y, x, n * sizeof(float));
            __pipeline_memcpy_async(s, x, 16, 16);
            __pipeline_memcpy_async(s + 4, x, 16, 4);
            __pipeline_commit();
            if (n == 0) __pipeline_wait_prior(0);
            for (int i = 0; i < 4; ++i) y[i] = s[i] + s[i + 4];
        }
        int main(int count, char**) {
            float ones[4] = {1, 1, 1, 1}, *x, *y;
            cudaMalloc(&x, 16), cudaMalloc(&y, 16);
            cudaMemcpy(x, ones, 16, cudaMemcpyHostToDevice);
            copies<<<1, 1>>>(y, x, count - 1);
            cudaMemcpy(ones, y, 16, cudaMemcpyDeviceToHost);
            return ones[0] == 1 && ones[2] == 1 && ones[3] == 0 ? 0 : 1;
        }";
    let (code, _, stderr) = run_files(&[("main.cu", text)], &[]);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = run_files(&[("main.cu", text)], &["--", "not-awaited"]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("used while an asynchronous copy into it is under way"), "{stderr}");
    // Without cp.async CUDA's headers copy at once: there is nothing to wait for.
    let older = &["--arch", "sm_75", "--", "not-awaited"];
    let (code, _, stderr) = run_files(&[("main.cu", text)], older);
    assert_eq!(code, 0, "{stderr}");
}

/// What a copy asks of its addresses. On a GPU a barrier takes the first 16 bytes, a word the next four, and so an array of
/// floats behind them is at a multiple of 4.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn copies_ask_for_the_alignment_that_their_names_promise() {
    const PROMISED: [&str; 7] = [
        "cg::memcpy_async(block, s, x, cuda::aligned_size_t<16>(128))",
        "cuda::memcpy_async(block, s, x, cuda::aligned_size_t<16>(128), barrier)",
        "cuda::memcpy_async(block, (void*)s, (const void*)x, cuda::aligned_size_t<16>(128), pipe)",
        "cg::memcpy_async(block, (float4*)s, (const float4*)x, 128)",
        "cuda::memcpy_async(block, (float4*)s, (const float4*)x, 128, pipe)",
        "if (t < 8) __pipeline_memcpy_async(s + 4 * t, x + 4 * t, 16)",
        "if (t < 8) __pipeline_memcpy_async(s + 4 * t, x + 4 * t, 16, 4)",
    ];
    const TOLERANT: [&str; 7] = [
        "cg::memcpy_async(block, s, x, 128)",
        "cg::memcpy_async(block, s, 32, x, 40)",
        "cg::memcpy_async(block, (char*)s, (const char*)x, 128)",
        "cuda::memcpy_async(block, s, x, 128, barrier)",
        "cuda::memcpy_async(s + t, x + t, 4, barrier)",
        "cuda::memcpy_async(block, (void*)s, (const void*)x, 128, pipe)",
        "__pipeline_memcpy_async(s + t, x + t, 4)",
    ];
    // A kernel for each copy; they are launched in turn, up to the first that fails.
    let outcome = |shared: &str, copies: &[&str], arch: &str| {
        let mut text = "#include <cooperative_groups.h>
            #include <cooperative_groups/memcpy_async.h>
            #include <cuda/barrier>
            #include <cuda/pipeline>
            #include <cuda_pipeline.h>
            namespace cg = cooperative_groups;
            __global__ void fill(float* x) { x[threadIdx.x] = threadIdx.x; }\n"
            .to_owned();
        for (n, copy) in copies.iter().enumerate() {
            text += &format!(
                "__global__ void k{n}(const float* x, float* y) {{
                    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
                    {shared};
                    auto block = cg::this_thread_block();
                    auto pipe = cuda::make_pipeline();
                    int t = threadIdx.x;
                    if (t == 0) last = 31, init(&barrier, 32);
                    block.sync();
                    {copy};
                    pipe.producer_commit();
                    pipe.consumer_wait();
                    barrier.arrive_and_wait();
                    y[t] = s[last - t];
                }}\n"
            );
        }
        text += "int main() { float *x, *y, out[32]; cudaMalloc(&x, 128), cudaMalloc(&y, 128); fill<<<1, 32>>>(x);\n";
        for n in 0..copies.len() {
            text += &format!(
                "k{n}<<<1, 32>>>(x, y);
                 if (cudaMemcpy(out, y, 128, cudaMemcpyDeviceToHost) || out[{n}] != 31 - {n}) return 1;\n"
            );
        }
        text += "return 0; }\n";
        run_files(&[("main.cu", &text)], &["--arch", arch])
    };
    let declared = "__shared__ int last; __shared__ __align__(16) float s[32]";
    let behind = "__shared__ int last; __shared__ float s[32]";
    let by_luck = "int last = 31; __shared__ float s[32]";
    for arch in ["sm_75", "sm_90"] {
        let (code, _, stderr) = outcome(declared, &[PROMISED, TOLERANT].concat(), arch);
        assert_eq!(code, 0, "{arch}: {stderr}");
        assert!(stderr.contains("15 launches, 0 findings;"), "{arch}: {stderr}");
        let (code, _, stderr) = outcome(behind, &TOLERANT, arch);
        assert_eq!(code, 0, "{arch}: {stderr}");
        assert!(stderr.contains("8 launches, 0 findings;"), "{arch}: {stderr}");
    }
    let (code, _, stderr) = outcome(by_luck, &PROMISED, "sm_90");
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("8 launches, 0 findings, 7 by the letter alone;"), "{stderr}");
    assert_eq!(stderr.matches("formal, memcheck: aligned by luck: s[").count(), 7, "{stderr}");
    for copy in [PROMISED[0], PROMISED[6]] {
        let (code, _, stderr) = outcome(behind, &[copy], "sm_90");
        assert_eq!(code, 3, "{copy}: {stderr}");
        let said = "misaligned address: s[0] (shared memory, f32) is not at a multiple of 16 bytes";
        assert!(stderr.contains(said) && !stderr.contains("luck"), "{copy}: {stderr}");
    }
    let (code, _, stderr) = outcome(declared, &["__pipeline_memcpy_async(s, x, 12)"], "sm_90");
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("__pipeline_memcpy_async: expected 4, 8 or 16 bytes"), "{stderr}");
}

/// What was formal in one launch may be a mistake in the next, at the same place.
#[test]
fn a_mistake_is_told_where_a_formality_was() {
    let text = "
        #include <cuda_pipeline.h>
        __global__ void copy(const float* x, int offset) {
            __shared__ float s[8];
            __pipeline_memcpy_async(s + offset, x, 16);
            __pipeline_commit(), __pipeline_wait_prior(0);
        }
        int main() {
            float* x;
            cudaMalloc(&x, 16), cudaMemset(x, 0, 16);
            for (int offset : {0, 4, 1}) copy<<<1, 1>>>(x, offset);
        }";
    let (code, _, stderr) = run(text);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("copy, launch 1, formal, memcheck: aligned by luck: s[0]"), "{stderr}");
    assert!(stderr.contains("copy, launch 3, memcheck: misaligned address: s[1]"), "{stderr}");
    let last = "3 launches, 1 finding, 1 by the letter alone (1 more at the same places);";
    assert!(stderr.contains(last), "{stderr}");
}

/// Variables of a program, of which no argument tells; and a loop that waits in a function of its own.
#[test]
fn a_volatile_flag_orders_nothing_without_a_fence() {
    let of = |fence: &str| {
        format!(
            "__device__ volatile int data[2], ready;
            __device__ __noinline__ void wait() {{ while (!ready) {{}} }}
            __global__ void pass(int* out) {{
                if (blockIdx.x == 0) {{
                    data[threadIdx.x] = 5 + threadIdx.x;
                    {fence}
                    __syncthreads();
                    if (threadIdx.x == 0) ready = 1;
                }} else {{
                    wait();
                    __threadfence();
                    out[threadIdx.x] = data[1 - threadIdx.x];
                }}
            }}
            int main() {{
                int out[2], *x;
                cudaMalloc(&x, 8), pass<<<2, 2>>>(x);
                cudaMemcpy(out, x, 8, cudaMemcpyDeviceToHost);
                return out[0] == 6 && out[1] == 5 ? 0 : 1;
            }}"
        )
    };
    for fence in ["", "__threadfence_block();"] {
        let (code, _, stderr) = run_files(&[("main.cu", &of(fence))], &[]);
        assert_eq!(code, 3, "{stderr}");
        assert!(stderr.contains("racecheck: race on data["), "{stderr}");
        for part in
            ["volatile write at", "write of the flag at", "read of the flag at", "of 4 bytes at"]
        {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        assert!(stderr.contains("fix: __threadfence() between the two writes"), "{stderr}");
    }
    let (code, _, stderr) = run_files(&[("main.cu", &of("__threadfence();"))], &[]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("1 launch, 0 findings;"), "{stderr}");
}

/// Threads print in the order that is asked for; a header that nothing needs may be missing, a file may be of C, and
/// parameters may depend on a macro.
#[test]
fn what_is_published_runs_in_the_order_that_is_asked_for() {
    let main = "#include <GL/glew.h>
        #include <cstdio>
        #define WITH_STEP
        extern \"C\" int class_of(int);
        __global__ void told(int first,
#ifdef WITH_NOTHING
            const float* nothing,
#endif
            int* last
#ifdef WITH_STEP
            , int step
#endif
            ) {
            printf(\"%d \", first + step * threadIdx.x);
            *last = threadIdx.x;
        }
        int main() {
            int *last, got;
            cudaMalloc(&last, 4);
            told<<<1, 3>>>(class_of(1), last, 2);
            cudaMemcpy(&got, last, 4, cudaMemcpyDeviceToHost);
            printf(\"last %d\\n\", got);
        }";
    let c = "extern int cudaSetDevice(int);\nint class_of(int class) { int *new = &class; return *new + 4 + cudaSetDevice(0); }\n";
    let files = [("main.cu", main), ("of_c.c", c)];
    let run = |more: &[&str]| run_files(&files, more);
    let (code, stdout, stderr) = run(&["--order", "reverse"]);
    assert_eq!((code, &stdout[..]), (3, "9 7 5 last 0\n"), "{stderr}");
    assert!(
        stderr.contains("lab app: main.cu:1: GL/glew.h is not there, and nothing needed"),
        "{stderr}"
    );
    assert!(stderr.contains("main.cu:15:"), "{stderr}");
    let (code, _, stderr) = run(&["--order", "sideways"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--order: expected forward, reverse,"), "{stderr}");
    let needed = "#include <GL/glew.h>\nGLuint name;\nint main() {}";
    let (code, _, stderr) = run_files(&[("main.cu", needed)], &[]);
    assert_eq!(
        (code, stderr.trim()),
        (2, "lab: main.cu:1:10: error: GL/glew.h: No such file or directory")
    );
}

const RACE: &str = "__global__ void race(int* x) { x[0] = threadIdx.x; }\n\
    static void launch() { int* x; cudaMalloc(&x, 128); race<<<1, 64>>>(x); cudaDeviceSynchronize(); }\n";

/// Before `main` there are the limits, the handlers and the checks, too.
#[test]
fn static_initialisers_run_under_the_checks() {
    let of = |body: &str, main: &str, arguments: &[&str]| {
        let text = format!(
            "#include <cstdio>\n#include <cstdlib>\n#include <stdexcept>\n{RACE}\
             struct First {{ First() {{ {body} }} ~First() {{ printf(\"destroyed\\n\"); }} }} first;\n\
             int main() {{ {main} }}\n"
        );
        run_files(&[("main.cu", &text)], arguments)
    };
    let (code, stdout, stderr) = of("launch();", "printf(\"main\\n\");", &[]);
    assert_eq!((code, &stdout[..]), (3, "main\ndestroyed\n"), "{stderr}");
    assert!(stderr.contains("1 launch, 1 finding; the program ended with 0"), "{stderr}");
    let (code, stdout, stderr) = of(
        "cudaFuncSetAttribute(race, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);",
        "printf(\"main\\n\");",
        &[],
    );
    assert_eq!((code, &stdout[..]), (0, "main\ndestroyed\n"), "{stderr}");
    let (code, _, stderr) = of("launch(); exit(0);", "", &[]);
    assert_eq!(code, 3, "{stderr}");
    let (code, _, stderr) = of("throw std::runtime_error(\"early\");", "", &[]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("the program ended with an exception: early"), "{stderr}");
    let (code, _, stderr) = of("*(volatile int*)8 = 1;", "", &[]);
    assert_eq!(code, 139, "{stderr}");
    assert!(stderr.contains("an access to an invalid address, 0x8, at main.cu:6"), "{stderr}");
    let (code, _, stderr) =
        of("volatile int n = 0; while (true) n = n + 1;", "", &["--timeout", "1"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("expected an end within 1 s, got none"), "{stderr}");
}

/// Of a program that ends itself without a return, and once where it has forked others.
#[test]
fn every_end_of_a_program_is_told() {
    let of = |end: &str, own: &[&str]| {
        let text = format!(
            "#include <cstdlib>\n#include <unistd.h>\n{RACE}int main() {{ launch(); {end} }}\n"
        );
        run_files(&[("main.cu", &text)], own)
    };
    for (end, status) in [
        ("_exit(0);", 0),
        ("_Exit(5);", 5),
        ("quick_exit(0);", 0),
        ("exit(0);", 0),
        ("syscall(231, 4);", 4),
        ("execl(\"/bin/echo\", \"echo\", \"other\", (char*)0);", 0),
    ] {
        let (code, _, stderr) = of(end, &[]);
        assert_eq!(code, 3, "{end}: {stderr}");
        assert!(stderr.contains(&format!("the program ended with {status}")), "{end}: {stderr}");
    }
    // Where nothing was found another program takes the place of this one, and its arguments come to it.
    let replaced = "#include <unistd.h>\nint main(int count, char**) { char* all[] = {(char*)\"A=1\", nullptr};\n\
        if (fork() == 0) execlp(\"echo\", \"echo\", \"child\", (char*)0); sleep(1);\n\
        return execle(\"/bin/sh\", \"sh\", \"-c\", \"echo $0 $A; exit 5\", \"other\", (char*)0, all); }\n";
    let (code, stdout, stderr) = run(replaced);
    assert_eq!((code, &stdout[..]), (5, "child\nother 1\n"), "{stderr}");
    let forks =
        "for (int n = 0; n < 2; ++n) if (fork() == 0) { if (n) exit(0); _exit(0); } sleep(1);";
    let (code, stdout, stderr) = of(forks, &["--json"]);
    assert_eq!((code, stdout.lines().count()), (3, 1), "{stdout}{stderr}");
    let told: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((told["exit"].as_i64(), told["launches"].as_i64()), (Some(3), Some(1)));
}

/// A thread that faults while it prints has locked nothing.
#[test]
fn a_printf_that_faults_ends() {
    let text = "#include <cstdio>\n__global__ void wrong(const char* s) { printf(\"%s\\n\", s); }\n\
        __global__ void counts(int* n) { printf(\"a%nb\\n\", n); }\n\
        __global__ void right(int x) { printf(\"%d %s %-6.2f|%5.1f%%%3000d\\n\", x, \"text\", 2.5, 3.0, x); }\n\
        int main(int count, char**) { if (count == 1) wrong<<<1, 1>>>((const char*)(1ull << 40));\n\
          if (count == 2) counts<<<1, 1>>>(nullptr); right<<<1, 1>>>(7); cudaDeviceSynchronize(); printf(\"end\\n\"); }\n";
    let of = |own: &[&str]| run_files(&[("main.cu", text)], own);
    let (code, stdout, stderr) = of(&["--timeout", "30"]);
    assert_eq!((code, &stdout[..]), (3, "end\n"), "{stderr}");
    assert!(stderr.contains("access to an invalid address 0x10000000000"), "{stderr}");
    let (_, stdout, stderr) = of(&["--timeout", "30", "--", "1"]);
    assert!(stderr.contains("%n in the printf of a kernel is not supported"), "{stderr}");
    assert_eq!(stdout, format!("7 text 2.50  |  3.0%{:3000}\nend\n", 7));
}

#[test]
fn static_shared_memory_has_nvccs_limit() {
    let of = |count: usize| {
        let text = format!(
            "template <class T> __global__ void fill(T* x) {{ __shared__ T a[{count}], b[{count}];\n\
               a[threadIdx.x] = 1; b[threadIdx.x] = 2; *x = a[threadIdx.x] + b[threadIdx.x]; }}\n\
             int main() {{ float* x; cudaMalloc(&x, 4); fill<<<1, 1>>>(x); return cudaDeviceSynchronize(); }}\n"
        );
        run(&text)
    };
    let (code, _, stderr) = of(6 * 1024);
    assert_eq!(code, 0, "{stderr}");
    for count in [6 * 1024 + 1, 1 << 27] {
        let (code, _, stderr) = of(count);
        let expected = "kernel fill: expected at most 49152 bytes of static shared memory, got ";
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.contains(&format!("{expected}{}; more must be dynamic", 8 * count)),
            "{stderr}"
        );
    }
}

/// A compiler that reads for ever: it ends at the time limit, which is no shorter than 30 s here, and with the tool.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_compilation_ends_at_its_limit_and_with_the_tool() {
    let here = tempfile::tempdir().unwrap();
    let (pipe, scratch) = (here.path().join("pipe"), here.path().join("scratch"));
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    std::fs::create_dir(&scratch).unwrap();
    std::fs::write(
        here.path().join("waits.cu"),
        format!("#include <{}>\nint main() {{}}\n", pipe.display()),
    )
    .unwrap();
    let (code, _, stderr) =
        outcome(app(here.path()).env("TMPDIR", &scratch).args(["waits.cu", "--timeout", "1"]));
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("--timeout: expected the compiler's end within 30 s, got none"),
        "{stderr}"
    );
    let left = || std::fs::read_dir(&scratch).unwrap().count();
    assert_eq!(left(), 0);

    let mut begun = std::process::Command::new(assert_cmd::cargo::cargo_bin("lab"));
    begun.env_remove("LAB_DEVICE").env("TMPDIR", &scratch).current_dir(here.path());
    let mut begun = begun.args(["app", "waits.cu"]).spawn().unwrap();
    let is_compiling = || {
        let units = std::fs::read_dir(&scratch).unwrap().flatten();
        units.flat_map(|unit| std::fs::read_dir(unit.path()).into_iter().flatten()).count() > 0
    };
    while !is_compiling() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // SAFETY: a process of this test.
    unsafe { libc::kill(begun.id() as i32, libc::SIGTERM) };
    let status = begun.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
    assert_eq!(left(), 0);
}

/// nvcc refuses them; here the kernel stops, at its line. The program's own calls are the C library's.
#[test]
fn a_kernel_calls_no_function_of_the_host() {
    let text = "#include <csetjmp>\n#include <cstdio>\n#include <cstdlib>\n#include <unistd.h>\n#include <ctime>\n#include <pthread.h>\nstatic jmp_buf back;\n\
        __global__ void calls(int which, int* x) { switch (which) {\n\
          case 1: exit(0);\n\
          case 2: system(\"echo ran\"); break;\n\
          case 3: longjmp(back, 1);\n\
          case 4: *x = rand(); break;\n\
          case 5: _exit(0);\n\
          case 6: quick_exit(0);\n\
          case 7: *x = getpid(); break;\n\
          case 8: syscall(231, 0L, 0L, 0L, 0L, 0L, 0L); break;\n\
          case 9: write(1, \"w\", 1); break;\n\
          case 10: *x = int(time(nullptr)); break;\n\
          case 11: unlink(\"none\"); break;\n\
          case 12: pthread_exit(nullptr); break;\n\
          case 13: *x = int(random()); } }\n\
        int main(int count, char**) { int* x; cudaMalloc(&x, 4); if (setjmp(back)) puts(\"jumped\");\n\
          calls<<<1, 1>>>(count - 1, x); cudaDeviceSynchronize(); srand(3);\n\
          static bool again; if (!again) { again = true; longjmp(back, 1); }\n\
          fflush(stdout); system(\"echo end\"); exit(rand() < 0); }\n";
    let of = |which: usize| {
        let words = ["x"; 13];
        run_files(&[("main.cu", text)], &[&["--"], &words[..which]].concat())
    };
    assert_eq!(of(0).1, "jumped\nend\n");
    let names = [
        "exit",
        "system",
        "longjmp",
        "rand",
        "_exit",
        "quick_exit",
        "getpid",
        "syscall",
        "write",
        "time",
        "unlink",
        "pthread_exit",
        "random",
    ];
    for (which, name) in names.into_iter().enumerate() {
        let (code, stdout, stderr) = of(which + 1);
        assert_eq!((code, &stdout[..]), (3, "jumped\nend\n"), "{stderr}");
        let said = format!("the kernel stopped itself: it calls {name}, a function of the host");
        let line = format!("stopped at main.cu:{}:", which + 9);
        assert!(stderr.contains(&said) && stderr.contains(&line), "{said} {line}: {stderr}");
    }
}

/// The compiler works in another directory than the tool.
#[test]
fn a_cache_may_have_a_relative_path() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("main.cu"), "int main() { return 7; }\n").unwrap();
    let (code, _, stderr) = outcome(app(here.path()).env("LAB_CACHE", "own").arg("main.cu"));
    assert_eq!(code, 7, "{stderr}");
    assert!(here.path().join("own").is_dir());
}
