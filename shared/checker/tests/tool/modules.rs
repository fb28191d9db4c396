//! Modules of PTX, as Triton has made them of the Python files beside them: right by numbers, clean, and what is wrong found
//! at Python's line.

use std::path::PathBuf;

use crate::run;

fn kernels() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "ptx", "kernels"].iter().collect()
}

/// `lab check` of a module there, with words that a space ends: what it prints, and its exit code.
fn check(words: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = ["check"].into_iter().chain(words.split_whitespace()).collect();
    let (code, stdout, stderr) = run(&kernels(), &words);
    (code, stdout + &stderr)
}

/// The line of a source that begins so, from 1.
fn line_of(file: &str, nth: usize, text: &str) -> usize {
    let source = std::fs::read_to_string(kernels().join(file)).unwrap();
    let mut lines = source.lines().enumerate().filter(|(_, line)| line.contains(text));
    lines.nth(nth).unwrap().0 + 1
}

/// The module's last array is what numpy computes of the others, and the checks find nothing.
#[track_caller]
fn computes(words: &str, expected: &str) {
    let all = ["check"].into_iter().chain(words.split_whitespace()).chain(["--expect", expected]);
    let (code, stdout, stderr) = run(&kernels(), &all.collect::<Vec<_>>());
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains(": as expected, all ") && stdout.contains(": 0 findings"), "{stdout}");
}

#[test]
fn elements_one_by_one() {
    let arguments = "--grid 4 --arg in:f32[1000] --arg in:f32[1000] --arg out:f32[1000] --arg 1000";
    computes(&format!("add.sm_80.ptx {arguments}"), "add_param_2=add_param_0 + add_param_1");
    let (code, told) = check(&format!("add_without_mask.sm_90.ptx {arguments}"));
    assert_eq!(code, Some(3), "{told}");
    let line = line_of("elements.py", 1, "x = tl.load");
    let expected =
        "out of bounds: add_without_mask_param_0[1000] (f32, 1000 elements), 0 bytes past the end";
    assert!(told.contains(expected), "{told}");
    let read = format!("read of 8 bytes at elements.py:{line}:9 by block (3,0,0)");
    assert!(told.contains(&read), "{told}");
    assert!(told.starts_with(&format!("add_without_mask at elements.py:{}", line - 2)), "{told}");
}

#[test]
fn rows_with_sums_of_the_block() {
    computes(
        "softmax.sm_90.ptx --grid 3 --shared 16 --arg in:f32[3,500] --arg out:f32[3,500] --arg 500 --arg 500",
        "softmax_param_1=(lambda e: e / e.sum(1, keepdims=True))(np.exp(softmax_param_0))",
    );
    computes(
        "layer_norm.sm_90.ptx --grid 2 --shared 16 --arg in:f32[2,300] --arg in:f32[300] --arg in:f32[300] \
         --arg out:f32[2,300] --arg 300 --arg 1e-5f",
        "layer_norm_param_3=(lambda x, d: d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5))(layer_norm_param_0, \
         layer_norm_param_0 - layer_norm_param_0.mean(1, keepdims=True)) * layer_norm_param_1 + layer_norm_param_2",
    );
}

#[test]
fn tiles_by_mma_and_by_wgmma() {
    for module in ["matmul.sm_80.ptx", "matmul.sm_90.ptx"] {
        let arguments = "--grid 2,2 --shared 16384 --arg in:f16[96,80] --arg in:f16[80,112] --arg out:f16[96,112] \
                         --arg 96 --arg 112 --arg 80";
        computes(
            &format!("{module} {arguments}"),
            "matmul_param_2=(matmul_param_0.astype(float) @ matmul_param_1.astype(float)).astype(np.float16)",
        );
    }
}

#[test]
fn a_wrong_stride_leaves_the_matrix() {
    let (code, told) = check(
        "matmul_wrong_stride.sm_90.ptx --grid 2,2 --shared 16384 --arg in:f16[96,112] --arg in:f16[112,80] \
         --arg out:f16[96,80] --arg 96 --arg 80 --arg 112",
    );
    assert_eq!(code, Some(3), "{told}");
    let line = line_of("matmul.py", 0, "k[:, None] * K");
    assert!(
        told.contains("past the end of matmul_wrong_stride_param_1, which has 17920 bytes"),
        "{told}"
    );
    assert!(told.contains(&format!(" at matmul.py:{line}:13 by block (0,0,0)")), "{told}");
}

/// The kernel makes tensor maps in shared memory and copies boxes by them, also over the tensor's edge.
#[test]
fn boxes_by_maps_of_the_kernel() {
    computes(
        "double.sm_90.ptx --grid 3,2 --shared 4096 --arg in:f32[40,48] --arg out:f32[40,48] --arg 40 --arg 48 \
         --arg inout:u8[6,256]=0",
        "double_param_1=double_param_0 * 2",
    );
    let (code, told) = check(
        "double.sm_90.ptx --grid 1,1 --shared 4096 --arg in:f32[40,47] --arg out:f32[40,47] --arg 40 --arg 47 \
         --arg inout:u8[256]=0",
    );
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("tensor map: expected strides that are multiples of 16 bytes"), "{told}");
    let (code, told) = check(
        "double.sm_90.ptx --grid 1 --arg in:f32[40,48] --arg out:f32[40,48] --arg 40 --arg 48",
    );
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains(
            "--shared: expected bytes of dynamic shared memory, which double uses, got none"
        ),
        "{told}"
    );
}

/// On sm_90 the products with V have A in registers.
#[test]
fn attention_of_both_architectures() {
    for module in ["attention.sm_80.ptx", "attention.sm_90.ptx"] {
        let arguments = "--grid 2,2 --shared 49152 --arg in:f16[2,90,64] --arg in:f16[2,90,64] --arg in:f16[2,90,64] \
                         --arg out:f16[2,90,64] --arg 90 --arg 0.125f --atol 2e-3 --rtol 2e-3";
        computes(
            &format!("{module} {arguments}"),
            "attention_param_3=(lambda q, k, v: (lambda p: p / p.sum(-1, keepdims=True))(np.tril(np.exp(\
             q @ k.transpose(0, 2, 1) / 8))) @ v)(*(x.astype(float) for x in (attention_param_0, attention_param_1, \
             attention_param_2)))",
        );
    }
}

#[test]
fn races_and_values_that_nobody_wrote() {
    let (code, told) = check("add_left.sm_90.ptx --grid 4 --arg inout:f32[1000] --arg 1000");
    assert_eq!(code, Some(3), "{told}");
    let line = line_of("elements.py", 0, "left = tl.load");
    assert!(
        told.contains("racecheck: race on add_left_param_0[255] (f32, 1000 elements)"),
        "{told}"
    );
    assert!(
        told.contains(&format!("read of 4 bytes at elements.py:{line}:12 by block (1,0,0)")),
        "{told}"
    );
    assert!(
        told.contains(&format!("write at elements.py:{}:5 by block (0,0,0)", line + 2)),
        "{told}"
    );

    let (code, told) =
        check("reverse.sm_90.ptx --grid 1 --arg in:f32[256] --arg out:f32[256] --arg out:f32[256]");
    assert_eq!(code, Some(3), "{told}");
    let line = line_of("elements.py", 0, "tl.load(scratch_ptr + BLOCK");
    assert!(told.contains("racecheck: race on reverse_param_1"), "{told}");
    assert!(told.contains(&format!("at elements.py:{line}:32 by block")), "{told}");
    assert!(told.contains("fix: tl.debug_barrier() between the two"), "{told}");

    let words = "copy_twice.sm_90.ptx --grid 4 --arg in:f32[1000] --arg out:f32[1000] --arg out:f32[1000] --arg 1000";
    let (code, told) = check(words);
    assert_eq!(code, Some(3), "{told}");
    let line = line_of("elements.py", 0, "again = tl.load");
    assert!(told.contains("initcheck: uninitialised: copy_twice_param_1[999]"), "{told}");
    assert!(
        told.contains(&format!("read of 4 bytes at elements.py:{line}:13 by block (3,0,0)")),
        "{told}"
    );
}

/// What compilers write beside Triton: functions, static shared memory, constants, local memory, text to print. Each thread
/// adds a constant, a function's result, and what its neighbour has put into shared memory.
const BY_HAND: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 printed) vprintf (.param .b64 format, .param .b64 values);
.const .align 4 .f32 table[2] = {0f3F800000, 0f40000000};
.global .align 1 .b8 text[10] = {116, 61, 37, 100, 32, 53, 37, 37, 10, 0};
.func (.param .b32 result) square(.param .b32 x)
{
    .reg .f32 %f<3>;
    ld.param.f32 %f1, [x];
    mul.f32 %f2, %f1, %f1;
    st.param.f32 [result], %f2;
    ret;
}
.visible .entry mix(.param .u64 y_ptr, .param .u32 n)
.maxntid 64
{
    .reg .pred %p<4>;
    .reg .f32 %f<6>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<8>;
    .shared .align 4 .b8 tile[256];
    .local .align 8 .b8 depot[16];
    ld.param.u64 %rd1, [y_ptr];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $DONE;
    shl.b32 %r3, %r2, 2;
    mov.u32 %r4, tile;
    add.u32 %r5, %r4, %r3;
    cvt.rn.f32.u32 %f1, %r2;
    st.shared.f32 [%r5], %f1;
    bar.sync 0;
    xor.b32 %r6, %r3, 4;
    add.u32 %r6, %r4, %r6;
    ld.shared.f32 %f2, [%r6];
    {
        .param .b32 x;
        .param .b32 squared;
        st.param.f32 [x], %f1;
        call.uni (squared), square, (x);
        ld.param.f32 %f3, [squared];
    }
    add.f32 %f2, %f2, %f3;
    ld.const.f32 %f4, [table+4];
    add.f32 %f2, %f2, %f4;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.f32 [%rd3], %f2;
    setp.ne.u32 %p2, %r2, 3;
    setp.lt.or.u32 %p3|%p2, %r2, 3, %p2;
    @%p3 bra $DONE;
    mov.u64 %rd4, depot;
    cvta.local.u64 %rd5, %rd4;
    st.local.u32 [%rd4], %r2;
    mov.u64 %rd6, text;
    cvta.global.u64 %rd7, %rd6;
    {
        .param .b64 format;
        .param .b64 values;
        .param .b32 printed;
        st.param.b64 [format], %rd7;
        st.param.b64 [values], %rd5;
        call.uni (printed), vprintf, (format, values);
    }
$DONE:
    ret;
}
.visible .entry unknown(.param .u64 y_ptr)
{
    .reg .b32 %r<2>;
    tcgen05.wait::ld.sync.aligned;
    ret;
}
"#;

#[test]
fn a_module_by_hand() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.ptx"), BY_HAND).unwrap();
    let check = |words: &[&str]| {
        let (code, stdout, stderr) = run(here.path(), &[&["check", "k.ptx"], words].concat());
        (code, stdout + &stderr)
    };
    let launch =
        ["--kernel", "mix", "--grid", "1", "--block", "64", "--arg", "out:f32[64]", "--arg", "64"];
    let expected = ["--expect", "y_ptr=np.arange(64.)**2 + 2 + (np.arange(64) ^ 1)"];
    let (code, told) = check(&[&launch[..], &expected].concat());
    assert_eq!(code, Some(0), "{told}");
    assert!(told.starts_with("t=3 5%\n"), "{told}");
    assert!(
        told.contains("mix at k.ptx:16: ") && told.contains("y_ptr: as expected, all 64"),
        "{told}"
    );

    let (code, told) =
        check(&["--kernel", "unknown", "--grid", "1", "--block", "1", "--arg", "out:f32[1]"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("k.ptx: unknown: line 74: 'tcgen05.wait::ld.sync.aligned' is not run here"),
        "{told}"
    );
    let (code, told) = check(&[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("k.ptx:16: mix(.u64 y_ptr, .u32 n)"), "{told}");
    assert!(told.contains("2 kernels in k.ptx"), "{told}");
}

/// What is wrong by the letter alone, as Triton makes it of right kernels: several threads of a block that have the same
/// element, and lanes that write sums of one row.
#[test]
fn what_triton_does_alike_in_several_threads_is_formal() {
    let (code, told) = check("rotate.sm_90.ptx --grid 1 --arg inout:f32[128]=arange");
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("formal, racecheck: race on rotate_param_0[0] (f32, 128 elements)"),
        "{told}"
    );
    let (code, told) = check(
        "normalize.sm_90.ptx --grid 8 --shared 16 --arg in:f32[8,100] --arg out:f32[8,100] --arg 100",
    );
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("formal, racecheck: race on byte 0 of dynamic shared memory"), "{told}");
    let strict = check("rotate.sm_90.ptx --grid 1 --arg inout:f32[128]=arange --strict");
    assert_eq!(strict.0, Some(3), "{}", strict.1);
}

/// A module whose kernel writes how many blocks its cluster has, and asks for clusters of these sizes.
fn module_of_clusters(asks: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n\
         .visible .entry sizes(.param .u64 sizes_param_0)\n{asks}\n{{\n.reg .b32 %r<4>;\n.reg .b64 %rd<4>;\n\
         ld.param.u64 %rd1, [sizes_param_0];\nmov.u32 %r1, %cluster_nctarank;\nmov.u32 %r2, %ctaid.x;\n\
         mul.wide.u32 %rd2, %r2, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}}\n"
    )
}

#[test]
fn a_module_says_how_many_blocks_a_cluster_has() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("two.ptx"), module_of_clusters(".reqnctapercluster 2"))
        .unwrap();
    std::fs::write(here.path().join("any.ptx"), module_of_clusters("")).unwrap();
    std::fs::write(here.path().join("y.ptx"), module_of_clusters(".reqnctapercluster 1, 2, 1"))
        .unwrap();
    let check = |words: &str| {
        let all = format!("check {words} --grid 4 --block 1 --arg out:i32[4]");
        run(here.path(), &all.split_whitespace().collect::<Vec<_>>())
    };
    let (two, one) = ("sizes_param_0=[2, 2, 2, 2]", "sizes_param_0=[1, 1, 1, 1]");
    for (words, expected) in [
        ("two.ptx", two),
        ("two.ptx --cluster 2", two),
        ("two.ptx --cluster 2,1,1", two),
        ("any.ptx --cluster 2", two),
        ("any.ptx", one),
    ] {
        let expected = expected.replace(' ', "");
        let (code, stdout, stderr) = check(&format!("{words} --expect {expected}"));
        assert_eq!(code, Some(0), "{words}: {stdout}{stderr}");
        assert!(stdout.contains(": as expected, all 4"), "{words}: {stdout}");
    }
    let along_x = "--cluster: expected blocks along x, such as 2 or 2,1,1, got";
    for (words, told) in [
        ("two.ptx --cluster 4", "--cluster: expected 2, which sizes asks for, got 4".to_owned()),
        ("any.ptx --cluster 1,2,1", format!("{along_x} '1,2,1'")),
        ("y.ptx", format!("{along_x} 1,2,1, which sizes asks for")),
    ] {
        let (code, _, stderr) = check(words);
        assert_eq!(code, Some(2), "{words}: {stderr}");
        assert!(stderr.contains(&told) && stderr.lines().count() == 1, "{words}: {stderr}");
    }
}

/// A module for sm_90a with one kernel of one pointer, `k_param_0`, whose address is in `%rd1`.
fn module_by_hand(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry k(.param .u64 .ptr .global .align 16 k_param_0)\n{{\n.reg .pred %p<4>;\n.reg .b16 %h<2>;\n\
         .reg .b32 %r<12>;\n.reg .f32 %f<16>;\n.reg .b64 %rd<8>;\n.shared .align 128 .b8 tile[2304];\n\
         ld.param.u64 %rd1, [k_param_0];\nmov.u32 %r1, %tid.x;\n{body}\nret;\n}}\n"
    )
}

/// Runs it: the exit code, and what it tells.
fn check_by_hand(body: &str, launch: &str) -> (Option<i32>, String) {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("k.ptx"), module_by_hand(body)).unwrap();
    let words = ["check", "k.ptx", "--grid"].into_iter().chain(launch.split_whitespace());
    let (code, stdout, stderr) = run(here.path(), &words.collect::<Vec<_>>());
    (code, stdout + &stderr)
}

/// Two products of ones, 64 x 16 by 16 x 8, in one group; the second adds to copies of the first one's sums. `behind` stands
/// behind the fence, and `between` between the two. The first product's A is `a`, and it adds if `adds` is `%p1`, which is true.
fn two_products([behind, between]: [&str; 2], a: &str, adds: &str) -> String {
    let ones: String = (0..9).map(|n| format!("st.shared.b16 [%r2 + {}], %h1;\n", 2 * n)).collect();
    let zeros: String = (1..=4).map(|n| format!("mov.f32 %f{n}, 0f00000000;\n")).collect();
    let of_a: String = (5..=8).map(|n| format!("mov.b32 %r{n}, 0x3C003C00;\n")).collect();
    let copies: String = (1..=4).map(|n| format!("mov.f32 %f{}, %f{n};\n", n + 4)).collect();
    let product = |sums: &str, a: &str, adds: &str| {
        let across = if a.starts_with('{') { "0" } else { "0, 0" };
        format!(
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{sums}}}, {a}, %rd3, {adds}, 1, 1, {across};\n"
        )
    };
    format!(
        "mov.u32 %r3, tile;\nmad.lo.u32 %r2, %r1, 18, %r3;\nmov.b16 %h1, 0x3C00;\n{ones}{zeros}\
         fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.eq.u32 %p1, %r3, %r3;\n\
         setp.ne.u32 %p2, %r3, %r3;\n{of_a}\
         shr.u32 %r4, %r3, 4;\ncvt.u64.u32 %rd2, %r4;\nor.b64 %rd2, %rd2, 0x1000080000;\nadd.s64 %rd3, %rd2, 128;\n\
         wgmma.fence.sync.aligned;\n{behind}{}{copies}{between}{}wgmma.commit_group.sync.aligned;\n\
         wgmma.wait_group.sync.aligned 0;\nmul.wide.u32 %rd4, %r1, 16;\nadd.s64 %rd4, %rd4, %rd1;\n\
         st.global.v4.f32 [%rd4], {{%f5, %f6, %f7, %f8}};",
        product("%f1, %f2, %f3, %f4", a, adds),
        product("%f5, %f6, %f7, %f8", "%rd2", "%p1")
    )
}

/// A compiler puts a constant anywhere, and so behind the fence. Of sums that nobody has set NVRTC makes zeros; a product that sets its
/// sums does not read them. One that adds to them does, and each reads its A.
#[test]
fn constants_and_sums_that_a_product_does_not_read_need_no_fence() {
    let launch = "1 --block 128 --arg out:f32[512] --expect k_param_0=np.full(512,32.)";
    let zeros = "mov.f32 %f1, 0f00000000;\nmov.f32 %f3, %f1;\n";
    let sums = "cvt.rn.f32.u32 %f1, %r1;\nadd.f32 %f1, %f1, %f1;\n";
    let a = "shr.u32 %r9, %r1, 31;\nadd.u32 %r7, %r7, %r9;\n";
    let (shared, registers) = ("%rd2", "{%r5, %r6, %r7, %r8}");
    let unfenced = "wgmma may not see what the thread has done with its registers";
    for (behind, of_a, adds, found) in [
        (zeros, shared, "%p1", None),
        (sums, shared, "%p2", None),
        (zeros, registers, "%p2", None),
        (sums, shared, "%p1", Some(unfenced)),
        (a, registers, "%p2", Some(unfenced)),
    ] {
        let (code, told) = check_by_hand(&two_products([behind, ""], of_a, adds), launch);
        let case = format!("{behind}{of_a} {adds}: {told}");
        assert_eq!(code, Some(if found.is_some() { 3 } else { 0 }), "{case}");
        assert!(told.contains(found.unwrap_or(": as expected, all 512")), "{case}");
    }
}

#[test]
fn a_copy_of_sums_between_two_products_is_none() {
    let launch = "1 --block 128 --arg out:f32[512] --expect k_param_0=np.full(512,32.)";
    let (code, told) = check_by_hand(&two_products(["", ""], "%rd2", "%p1"), launch);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(": as expected, all 512") && told.contains(": 0 findings"), "{told}");
    let doubled = ["", "add.f32 %f5, %f5, %f5;\n"];
    let (code, told) = check_by_hand(&two_products(doubled, "%rd2", "%p1"), launch);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("registers of a wgmma are used while it is in flight"), "{told}");
}

/// A warp's tiles: A of 16 x 8, B of 8 x 16 by columns, and their product behind the two.
#[test]
fn tiles_by_wmma() {
    let sums = "{%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}";
    let zeros: String = (1..=8).map(|n| format!("mov.f32 %f{n}, 0f00000000;\n")).collect();
    let product = |stride: &str| {
        format!(
            "mov.u32 %r9, {stride};\n{zeros}\
             wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {{%r2, %r3, %r4, %r5}}, [%rd1], %r9;\n\
             wmma.load.b.sync.aligned.col.m16n16k8.global.tf32 {{%r6, %r7, %r8, %r10}}, [%rd1+512];\n\
             wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32 {sums}, {{%r2, %r3, %r4, %r5}}, \
             {{%r6, %r7, %r8, %r10}}, {sums};\n\
             wmma.store.d.sync.aligned.row.m16n16k8.global.f32 [%rd1+1024], {sums}, 16;"
        )
    };
    let launch = "1 --block 32 --arg inout:f32[512]=arange --expect k_param_0=np.concatenate([k_param_0[:256],\
                  (k_param_0[:128].reshape(16,8)@k_param_0[128:256].reshape(16,8).T).ravel()])";
    let (code, told) = check_by_hand(&product("8"), launch);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(": as expected, all 512") && told.contains(": 0 findings"), "{told}");
    let (code, told) = check_by_hand(&product("40"), "1 --block 32 --arg inout:f32[512]=arange");
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("out of bounds: k_param_0[") && told.contains("at k.ptx:"), "{told}");
}

#[test]
fn a_compiler_may_read_as_constant_what_its_thread_writes_later() {
    let read = |element: &str| {
        format!(
            "{element}\nmul.wide.u32 %rd2, %r2, 4;\nadd.s64 %rd2, %rd2, %rd1;\nld.global.nc.f32 %f1, [%rd2];\n\
             add.f32 %f1, %f1, %f1;\n"
        )
    };
    let write =
        "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd3, %rd3, %rd1;\nst.global.f32 [%rd3], %f1;\n";
    let launch = "1 --block 64 --arg inout:f32[64]=arange";
    let (code, told) = check_by_hand(&(read("mov.u32 %r2, %r1;") + write), launch);
    assert_eq!(code, Some(0), "{told}");
    assert!(!told.contains("formal") && told.contains(": 0 findings"), "{told}");
    // Another thread's element, before that writes it.
    let other = read("xor.b32 %r2, %r1, 1;") + "bar.sync 0;\n" + write;
    let (code, told) = check_by_hand(&other, launch);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("formal") && told.contains("was read by __ldg()"), "{told}");
    // And when it has written it.
    let late =
        format!("mov.f32 %f1, 0f3F800000;\n{write}bar.sync 0;\n{}", read("xor.b32 %r2, %r1, 1;"));
    let (code, told) = check_by_hand(&late, launch);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("which need not see what this launch has written"), "{told}");
}

#[test]
fn an_address_in_a_block_that_a_cluster_lacks_is_wrong_where_it_is_used() {
    // A thread asks for the address in the other block, plus its own number; the first alone writes there.
    let meet = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
    let body = |more: u32| {
        format!(
            "mov.u32 %r2, tile;\ncvt.u64.u32 %rd2, %r2;\ncvta.shared.u64 %rd2, %rd2;\nmov.f32 %f1, 0f3F800000;\n\
             mov.u32 %r5, %ctaid.x;\nxor.b32 %r3, %r5, 1;\nadd.u32 %r3, %r3, %r1;\nadd.u32 %r3, %r3, {more};\n\
             mapa.u64 %rd3, %rd2, %r3;\nsetp.lt.u32 %p1, %r1, 1;\n\
             {meet}@%p1 st.f32 [%rd3], %f1;\n{meet}\
             mul.wide.u32 %rd4, %r5, 4;\nadd.s64 %rd4, %rd4, %rd1;\n@%p1 ld.shared.f32 %f1, [tile];\n\
             @%p1 st.global.f32 [%rd4], %f1;"
        )
    };
    let launch = "2 --block 4 --cluster 2 --arg out:f32[2] --expect k_param_0=np.ones(2)";
    let (code, told) = check_by_hand(&body(0), launch);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(": 0 findings"), "{told}");
    let (code, told) = check_by_hand(&body(2), launch);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("out of bounds") && told.contains("k.ptx:"), "{told}");
}

#[test]
fn a_null_pointer_that_is_converted_is_wrong_where_it_is_used() {
    let body = |users: u32| {
        format!(
            "mov.u64 %rd2, 0;\ncvta.to.shared.u64 %rd3, %rd2;\nmov.f32 %f1, 0f3F800000;\n\
             setp.lt.u32 %p1, %r1, {users};\n@%p1 st.shared.f32 [%rd3], %f1;\n\
             mul.wide.u32 %rd4, %r1, 4;\nadd.s64 %rd4, %rd4, %rd1;\nst.global.f32 [%rd4], %f1;"
        )
    };
    let launch = "1 --block 4 --arg out:f32[4] --expect k_param_0=np.ones(4)";
    let (code, told) = check_by_hand(&body(0), launch);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(": 0 findings"), "{told}");
    let (code, told) = check_by_hand(&body(1), launch);
    assert_eq!(code, Some(3), "{told}");
    assert!(
        told.contains("expected an address in this block's") && told.contains("k.ptx:"),
        "{told}"
    );
}
