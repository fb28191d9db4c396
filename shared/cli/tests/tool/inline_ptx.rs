//! Inline PTX in programs of other people's: what each instruction computes, and what is found where one is missing.

use std::fmt::Write as _;

use assert_cmd::Command;

fn app(arguments: &[&str]) -> (i32, String, String) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut lab = Command::cargo_bin("lab").unwrap();
    let output =
        lab.env_remove("LAB_DEVICE").current_dir(root).arg("app").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// An instruction, what stands behind the colons, and what then holds of `u` and `v`, words, `w`, two words, and `f`. Before it they
/// are 7, 11, 9 and 1.5f; `h` is 1.5 as f16, and x[n] is n. So it is on an H200, where all of them ran as nvcc compiles them.
const NUMBERS: &[(&str, &str, &str)] = &[
    ("add.u32 %0, %1, 4;", ": \"=r\"(u) : \"r\"(5)", "u == 9"),
    (
        "{ .reg .u32 t; add.u32 t, %1, 1; mul.lo.u32 %0, t, t; }",
        ": \"=r\"(u) : \"r\"(5)",
        "u == 36",
    ),
    ("mad.lo.s32 %0, %1, -3, %2;", ": \"=r\"(u) : \"r\"(5), \"r\"(1)", "int(u) == -14"),
    ("mul.wide.u32 %0, %1, %1;", ": \"=l\"(w) : \"r\"(0xffffffffu)", "w == 0xfffffffe00000001ull"),
    ("mul.hi.u32 %0, %1, 16;", ": \"=r\"(u) : \"r\"(0xf0000000u)", "u == 15"),
    ("shl.b32 %0, %1, 40;", ": \"=r\"(u) : \"r\"(1)", "u == 0"),
    ("shr.s32 %0, %1, 2;", ": \"=r\"(u) : \"r\"(-8)", "int(u) == -2"),
    ("lop3.b32 %0, %1, %2, %3, 0xe8;", ": \"=r\"(u) : \"r\"(12), \"r\"(10), \"r\"(6)", "u == 14"),
    (
        "prmt.b32 %0, %1, %2, 0x5410;",
        ": \"=r\"(u) : \"r\"(0x11112222u), \"r\"(0x33334444u)",
        "u == 0x44442222u",
    ),
    ("prmt.b32 %0, %1, 0, 0xc4b0;", ": \"=r\"(u) : \"r\"(0x81000012u)", "u == 0x0000ff12u"),
    (
        "mov.b32 %0, %3; mov.b32 %1, %2;",
        ": \"=r\"(u), \"=r\"(v) : \"r\"(u), \"r\"(v)",
        "u == 11 && v == 7",
    ),
    ("and.b32 %0, %1, 017;", ": \"=r\"(u) : \"r\"(0xffu)", "u == 15"),
    ("add.s32 %0, %1, 1;", ": \"=r\"(u) : \"r\"(0x7fffffff)", "u == 0x80000000u"),
    (
        "ld.global.u32 %0, [%2+0x8]; /* and */ ld.global.u32 %1, [%2+-4]; // and",
        ": \"=r\"(u), \"=r\"(v) : \"l\"(x + 2)",
        "u == 4 && v == 1",
    ),
    ("shf.l.wrap.b32 %0, %1, %2, 8;", ": \"=r\"(u) : \"r\"(0xab000000u), \"r\"(1)", "u == 0x1ab"),
    ("popc.b32 %0, %1;", ": \"=r\"(u) : \"r\"(0xf1)", "u == 5"),
    ("mov.b64 %0, {%1, %2};", ": \"=l\"(w) : \"r\"(1), \"r\"(2)", "w == 0x200000001ull"),
    ("mov.b64 {%0, _}, %1;", ": \"=r\"(u) : \"l\"(0x200000001ull)", "u == 1"),
    ("mov.b32 %0, 0f3FC00000;", ": \"=f\"(f)", "f == 1.5f"),
    (
        "{ .reg .pred p; setp.lt.f32 p, %1, 0f40000000; selp.u32 %0, 3, 4, p; }",
        ": \"=r\"(u) : \"f\"(1.5f)",
        "u == 3",
    ),
    (
        "{ .reg .pred p; setp.ne.b32 p, %1, 0; @!p mov.u32 %0, 3; }",
        ": \"+r\"(u) : \"r\"(1)",
        "u == 7",
    ),
    (
        "{ .reg .pred p; setp.ne.f32 p, %1, %1; selp.u32 %0, 3, 4, p; }",
        ": \"=r\"(u) : \"f\"(nanf(\"\"))",
        "u == 4",
    ),
    ("fma.rn.f32 %0, %1, %1, %1;", ": \"=f\"(f) : \"f\"(1.5f)", "f == 3.75f"),
    ("ex2.approx.ftz.f32 %0, %1;", ": \"=f\"(f) : \"f\"(3.0f)", "f == 8"),
    ("rcp.approx.ftz.f32 %0, %1;", ": \"=f\"(f) : \"f\"(4.0f)", "f == 0.25f"),
    ("max.f32 %0, %1, 0f00000000;", ": \"=f\"(f) : \"f\"(-4.0f)", "f == 0"),
    ("cvt.rn.f16x2.f32 %0, %1, %2;", ": \"=r\"(u) : \"f\"(1.0f), \"f\"(2.0f)", "u == 0x3c004000u"),
    ("cvt.rn.bf16x2.f32 %0, %1, %2;", ": \"=r\"(u) : \"f\"(1.0f), \"f\"(2.0f)", "u == 0x3f804000u"),
    ("cvt.rna.tf32.f32 %0, %1;", ": \"=r\"(u) : \"f\"(1.0009765625f)", "u == 0x3f802000u"),
    ("cvt.f32.f16 %0, %1;", ": \"=f\"(f) : \"h\"(h)", "f == 1.5f"),
    ("cvt.rzi.s32.f32 %0, %1;", ": \"=r\"(u) : \"f\"(-2.7f)", "int(u) == -2"),
    ("cvt.u32.u64 %0, %1;", ": \"=r\"(u) : \"l\"(0x300000005ull)", "u == 5"),
    (
        "ld.global.v2.u32 {%0, %1}, [%2 + 8];",
        ": \"=r\"(u), \"=r\"(v) : \"l\"(x)",
        "u == 2 && v == 3",
    ),
    ("ld.global.nc.L1::no_allocate.L2::128B.b32 %0, [%1];", ": \"=r\"(u) : \"l\"(x + 1)", "u == 1"),
    (
        "st.global.v2.b32 [%0], {%1, %2};",
        ":: \"l\"(x + 4), \"r\"(8), \"r\"(9)",
        "x[4] == 8 && x[5] == 9",
    ),
    ("atom.global.add.u32 %0, [%1], 5;", ": \"=r\"(u) : \"l\"(x + 3)", "u == 3 && x[3] == 8"),
    (
        "{ .reg .u64 a; cvta.to.global.u64 a, %1; ld.global.u32 %0, [a]; }",
        ": \"=r\"(u) : \"l\"(x + 2)",
        "u == 2",
    ),
    ("mov.u32 %0, %%laneid;", ": \"=r\"(u)", "u == 0"),
    ("mov.u32 %0, %%ntid.x;", ": \"=r\"(u)", "u == 1"),
    (
        "{ .reg .u32 n; mov.u32 n, 0; AGAIN: add.u32 n, n, 3; .reg .pred p; setp.lt.u32 p, n, 10; @p bra AGAIN; mov.u32 %0, n; }",
        ": \"=r\"(u)",
        "u == 12",
    ),
    ("activemask.b32 %0;", ": \"=r\"(u)", "u == 1"),
];

#[test]
fn instructions_compute_what_they_do_on_a_gpu() {
    let mut kernel = String::new();
    for (n, (text, behind, expected)) in NUMBERS.iter().enumerate() {
        writeln!(
            kernel,
            "__global__ void k{n}(unsigned* x, int* right) {{ unsigned u = 7, v = 11; unsigned long long w = 9; float f = 1.5f; \
             unsigned short h = 0x3e00; asm volatile(\"{text}\" {behind}); right[{n}] = {expected}; \
             (void)u, (void)v, (void)w, (void)f, (void)h; }}"
        )
        .unwrap();
    }
    let all = NUMBERS.len();
    let launches: String = (0..all).map(|n| format!("k{n}<<<1, 1>>>(x, right);\n")).collect();
    let main = format!(
        "int main() {{ unsigned *x, host[6] = {{0, 1, 2, 3, 4, 5}}; int* right; cudaMalloc(&x, sizeof host);\n\
         cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice); cudaMallocManaged(&right, {all} * 4);\n{launches}\
         cudaDeviceSynchronize(); for (int n = 0; n < {all}; ++n) if (!right[n]) printf(\"%d \", n);\n}}"
    );
    let here = tempfile::tempdir().unwrap();
    let program = here.path().join("main.cu");
    std::fs::write(&program, format!("#include <cstdio>\n{kernel}{main}\n")).unwrap();
    let (code, stdout, stderr) = app(&[&program.display().to_string()]);
    let wrong: Vec<&str> =
        stdout.split_whitespace().map(|n| NUMBERS[n.parse::<usize>().unwrap()].0).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn tensor_cores_multiply_and_a_copy_that_nobody_waits_for_is_a_race() {
    let program = "shared/app/programs/tile.cu";
    let (code, stdout, stderr) = app(&[program]);
    assert_eq!((code, &stdout[..]), (0, "0 of 128 wrong\n"), "{stderr}");
    let (code, _, stderr) = app(&[program, "-D", "FORGETFUL"]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("used while an asynchronous copy into it is under way"), "{stderr}");
    // In its own file, where the macros are used.
    assert!(stderr.contains("read of 16 bytes at shared/app/programs/tile.cu:36:"), "{stderr}");
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_warpgroup_multiplies_what_tma_brings() {
    let program = ["--arch", "sm_90a", "shared/app/programs/warpgroup.cu"];
    let (code, stdout, stderr) = app(&program);
    assert_eq!((code, &stdout[..]), (0, "0 of 4096 wrong\n"), "{stderr}");
    let (code, _, stderr) = app(&[&program[..], &["-D", "FORGETFUL"]].concat());
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("read by wgmma at shared/app/programs/warpgroup.cu:40:"), "{stderr}");
    let (code, _, stderr) = app(&["--arch", "sm_90", program[2]]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("wgmma: expected sm_90a, got --arch sm_90"), "{stderr}");
}

#[test]
fn a_tensor_map_that_no_gpu_takes_is_refused_by_its_rule() {
    let here = tempfile::tempdir().unwrap();
    let program = here.path().join("main.cu");
    let text = "#include <cuda.h>\n#include <cstdio>\nint main() { CUtensorMap map; void* x; cudaMalloc(&x, 4096);\n\
                cuuint64_t sizes[] = {60, 4}, strides[] = {120}; cuuint32_t box[] = {60, 4}, steps[] = {1, 1};\n\
                printf(\"%d\\n\", cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, x, sizes, strides, box, steps,\n\
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,\n\
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)); }\n";
    std::fs::write(&program, text).unwrap();
    let (_, stdout, stderr) = app(&[&program.display().to_string()]);
    assert_eq!(stdout, "1\n", "{stderr}");
    assert!(
        stderr.contains("cuTensorMapEncodeTiled: expected strides that are multiples of 16"),
        "{stderr}"
    );
}

/// By `cudaLaunchKernelEx`, and as the kernel itself says.
#[test]
fn blocks_of_a_cluster_send_each_other_numbers() {
    let program = r#"
#include <cstdio>
#include <cuda_runtime.h>
// What the other block of the pair has sent, ten times the blocks of a cluster more.
__device__ void swap(int* out) {
    __shared__ int box;
    unsigned rank, blocks, there;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    unsigned own = __cvta_generic_to_shared(&box);
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank ^ 1));
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0) asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(blockIdx.x) : "memory");
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0) out[blockIdx.x] = box + 10 * blocks;
}
__global__ void described(int* out) { swap(out); }
__global__ void __cluster_dims__(2, 1, 1) declared(int* out) { swap(out); }
int main() {
    int *out, host[4];
    cudaMalloc(&out, sizeof host);
    for (int way = 0; way < 2; ++way) {
        if (way) declared<<<4, 32>>>(out);
        else {
            cudaLaunchAttribute attribute;
            attribute.id = cudaLaunchAttributeClusterDimension;
            attribute.val.clusterDim.x = 2, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
            cudaLaunchConfig_t config = {};
            config.gridDim = dim3(4), config.blockDim = dim3(32), config.attrs = &attribute, config.numAttrs = 1;
            cudaLaunchKernelEx(&config, described, out);
        }
        if (cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost)) return 1;
        for (int n : host) printf("%d ", n);
    }
}
"#;
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("main.cu");
    std::fs::write(&path, program).unwrap();
    let (code, stdout, stderr) = app(&["--arch", "sm_90", &path.display().to_string()]);
    assert_eq!((code, &stdout[..]), (0, "21 20 23 22 21 20 23 22 "), "{stderr}");
}

/// 64 by 32 times 32 by 8, with A in registers: 1 or -1 in rows g, 2 in rows g + 8, and 3 from k = 16 on; column n of B is n.
const BYTES: &str = r#"
#include <cstdio>
__device__ void fill(unsigned char* b, const unsigned char* code) {
    for (int i = threadIdx.x; i < 256; i += 128) b[i] = code[i % 128 / 16];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}
__device__ unsigned long long descriptor(unsigned char* b) {
    return (unsigned(__cvta_generic_to_shared(b)) & 0x3ffff) >> 4 | 8ull << 16 | 8ull << 32;
}
__global__ void reals(int* wrong) {
    __shared__ __align__(128) unsigned char b[256];
    const unsigned char e5m2[] = {0, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47};
    fill(b, e5m2);
    float d[4] = {};
    unsigned a[4] = {0x38383838, 0x40404040, 0x44444444, 0x44444444};
    asm volatile("wgmma.fence.sync.aligned;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 0, 1, 1;\n"
                 "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b)) : "memory");
    int n = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; ++i) if (d[i] != (i < 2 ? 64 : 80) * (n + i % 2)) atomicAdd(wrong, 1);
}
__global__ void wholes(int* wrong) {
    __shared__ __align__(128) unsigned char b[256];
    const unsigned char code[] = {0, 1, 2, 3, 4, 5, 6, 7};
    fill(b, code);
    int d[4] = {1, 1, 1, 1};
    unsigned a[4] = {0xffffffff, 0x02020202, 0x03030303, 0x03030303};
    asm volatile("wgmma.fence.sync.aligned;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1;\n"
                 "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b)) : "memory");
    int n = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; ++i) if (d[i] != 1 + (i < 2 ? 32 : 80) * (n + i % 2)) atomicAdd(wrong, 1);
}
int main() {
    int* wrong;
    cudaMallocManaged(&wrong, 4);
    reals<<<1, 128>>>(wrong);
    wholes<<<1, 128>>>(wrong);
    cudaDeviceSynchronize();
    printf("%d wrong\n", *wrong);
}
"#;

#[test]
fn a_warpgroup_multiplies_numbers_of_eight_bits() {
    let here = tempfile::tempdir().unwrap();
    let program = here.path().join("main.cu");
    std::fs::write(&program, BYTES).unwrap();
    let (code, stdout, stderr) = app(&[&program.display().to_string(), "--arch", "sm_90a"]);
    assert_eq!((code, &stdout[..]), (0, "0 wrong\n"), "{stderr}");
}

/// A block whose second warp writes what the first one reads once a phase is complete.
const LOOKS_AT_A_PHASE: &str = r#"
__global__ void k(unsigned* out) {
    __shared__ unsigned long long ready;
    __shared__ unsigned box[32];
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&ready)), done = 0;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(at) : "memory");
    __syncthreads();
    if (threadIdx.x >= 32) {
        box[threadIdx.x - 32] = threadIdx.x;
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
    }
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at) : "memory");
    } while (!done);
    out[threadIdx.x] = box[threadIdx.x % 32];
}
int main() {
    unsigned* out;
    cudaMalloc(&out, 64 * sizeof(unsigned));
    k<<<1, 64>>>(out);
    return cudaDeviceSynchronize();
}
"#;

/// `try_wait` may say no before the phase is complete, on a GPU after some time: whoever does not ask again reads too soon.
#[test]
fn a_try_wait_whose_answer_nobody_looks_at_is_found() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("phase.cu").display().to_string();
    std::fs::write(&file, LOOKS_AT_A_PHASE).unwrap();
    let (code, out, told) = app(&["--arch", "sm_90a", &file]);
    assert_eq!(code, 0, "asked again: {out}{told}");
    std::fs::write(&file, LOOKS_AT_A_PHASE.replace("while (!done)", "while (false)")).unwrap();
    let (code, out, told) = app(&["--arch", "sm_90a", &file]);
    let told = out + &told;
    assert_eq!(code, 3, "asked once: {told}");
    assert!(told.contains("box["), "{told}");
}
