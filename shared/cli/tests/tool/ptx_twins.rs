//! Each header of inline PTX has an emulator's twin beside its texts. Kernels run the twins here, and the texts on a GPU alone. So
//! the texts run here too, by the translator of other people's PTX: both sides must leave the same numbers, and a
//! text with a mistake in it must not.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use assert_cmd::Command;
use lab_harness::suite::test_turn;

/// What a header's texts are held to.
struct Twin {
    /// A kernel that uses them, `tests/data/ptx/NAME.cu`, and `run(out)`, which launches it.
    name: &'static str,
    /// What comes before it.
    with: &'static [&'static str],
    /// The headers whose texts it runs, each behind those that it includes.
    headers: &'static [&'static str],
    arch: &'static str,
    /// Mistakes: what stands in a text once or more, and what stands there instead. Each is seen.
    mistakes: &'static [(&'static str, &'static str)],
}

const NUMBERS: &[Twin] = &[
    Twin {
        name: "ex2",
        with: &[],
        headers: &["ex2"],
        arch: "sm_80",
        mistakes: &[
            ("ex2.approx", "lg2.approx"),
            ("ex2.approx", "rcp.approx"),
            ("\"f\"(x)", "\"f\"(-x)"),
        ],
    },
    Twin {
        name: "rcp",
        with: &[],
        headers: &["rcp"],
        arch: "sm_80",
        mistakes: &[("rcp.approx", "sqrt.approx"), ("rcp.approx", "ex2.approx")],
    },
    Twin {
        name: "tanh",
        with: &[],
        headers: &["tanh"],
        arch: "sm_80",
        mistakes: &[("tanh.approx", "ex2.approx.ftz"), ("tanh.approx", "neg")],
    },
    Twin {
        name: "cvt",
        with: &[],
        headers: &["cvt"],
        arch: "sm_80",
        mistakes: &[("cvt.rna.tf32.f32", "mov.b32"), ("cvt.rna.tf32", "cvt.rni")],
    },
    Twin {
        name: "compute_here",
        with: &[],
        headers: &["compute_here"],
        arch: "sm_80",
        mistakes: &[("asm volatile(\"\"", "asm volatile(\"neg.f32 %0, %0;\"")],
    },
];

const WARPS: &[Twin] = &[
    Twin {
        name: "mma",
        with: &[],
        headers: &["mma", "cvt"],
        arch: "sm_80",
        mistakes: &[
            ("k16.row.col.f32.f16.f16", "k16.row.col.f32.bf16.bf16"),
            ("k16.row.col.f32.bf16.bf16", "k16.row.col.f32.f16.f16"),
            ("k8.row.col.f32.tf32.tf32", "k8.row.col.f32.bf16.bf16"),
            ("{%8, %9}", "{%9, %8}"),
            ("{%4, %5, %6, %7}", "{%4, %6, %5, %7}"),
            ("{%0, %1, %2, %3}, ", "{%1, %0, %2, %3}, "),
        ],
    },
    Twin {
        name: "ldmatrix",
        with: &[],
        headers: &["ldmatrix"],
        arch: "sm_80",
        mistakes: &[
            (".x4.shared", ".x4.trans.shared"),
            (".x4.trans.shared", ".x4.shared"),
            ("{%0, %1, %2, %3}", "{%0, %2, %1, %3}"),
        ],
    },
    Twin {
        name: "stmatrix",
        with: &[],
        headers: &["cluster", "stmatrix"],
        arch: "sm_90",
        mistakes: &[
            ("\".trans.shared.b16", "\".shared.b16"),
            ("\".shared.b16", "\".trans.shared.b16"),
            ("{%1, %2}", "{%2, %1}"),
            ("{%1, %2, %3, %4}", "{%1, %2, %4, %3}"),
        ],
    },
    Twin {
        name: "named_barrier",
        with: &[],
        headers: &["named_barrier"],
        arch: "sm_80",
        mistakes: &[
            ("bar.sync %0", "bar.arrive %0"),
            ("bar.sync %0, %1", "bar.sync %0, 32"),
            ("bar.arrive %0, %1", "bar.sync %0, 32"),
        ],
    },
    Twin {
        name: "warp_roles",
        with: &[],
        headers: &["cluster", "warp_roles"],
        arch: "sm_90a",
        mistakes: &[
            ("setmaxnreg.dec", "setmaxnreg.inc"),
            ("setmaxnreg.inc", "setmaxnreg.dec"),
            ("selp.u32 %0, 1, 0, own", "selp.u32 %0, 0, 1, own"),
            ("0xffffffff", "0xfffffffe"),
        ],
    },
];

const MEMORY: &[Twin] = &[
    Twin {
        name: "cp_async",
        with: &["pair"],
        headers: &["cp_async"],
        arch: "sm_80",
        mistakes: &[
            ("cp.async.commit_group;", "cp.async.wait_group 9;"),
            ("cp.async.wait_group %0", "cp.async.wait_group 7"),
            ("[%0], [%1], %2;", "[%0], [%1], 4;"),
            ("[%0], [%1], 16;", "[%0], [%1], 16, 8;"),
            ("[%1], 16, %2", "[%1], 16, 16"),
            ("[%1], %2, %3", "[%1], %2, %2"),
        ],
    },
    Twin {
        name: "load_once",
        with: &[],
        headers: &["load_once"],
        arch: "sm_80",
        mistakes: &[("{%0, %1, %2, %3}", "{%1, %0, %2, %3}"), ("[%4];", "[%4 + 16];")],
    },
    Twin {
        name: "prefetch",
        with: &[],
        headers: &["prefetch"],
        arch: "sm_90",
        mistakes: &[("cp.async.bulk.prefetch.L2.global [%0], %1", "st.global.u32 [%0], %1")],
    },
    Twin {
        name: "order",
        with: &[],
        headers: &["order"],
        arch: "sm_80",
        mistakes: &[
            ("ld.acquire", "ld.relaxed"),
            ("st.release", "st.relaxed"),
            ("global.inc.u32", "global.add.u32"),
            ("global.inc.u32", "global.dec.u32"),
        ],
    },
    // A grid's wait is run; but programs run one launch after the other, so that none is missed.
    Twin {
        name: "grid_dependency",
        with: &[],
        headers: &["grid_dependency"],
        arch: "sm_90",
        mistakes: &[("griddepcontrol.wait", "griddepcontrol.none")],
    },
];

const CLUSTERS: &[Twin] = &[
    Twin {
        name: "cluster",
        with: &["pair"],
        headers: &["cluster", "mbarrier"],
        arch: "sm_90",
        mistakes: &[
            ("\"r\"(rank)", "\"r\"(rank ^ 1)"),
            ("mbarrier.arrive.release.cluster.shared::cluster", "mbarrier.arrive.shared::cta"),
            ("acquire.cluster.shared::cta", "shared::cta"),
        ],
    },
    Twin {
        name: "mbarrier",
        with: &[],
        headers: &["cluster", "mbarrier"],
        arch: "sm_90",
        mistakes: &[
            ("mbarrier.init.shared::cta.b64 [%0], %1", "mbarrier.init.shared::cta.b64 [%0], 31"),
            (
                "mbarrier.arrive.shared::cta.b64 _, [%0];",
                "mbarrier.arrive.shared::cta.b64 _, [%0], 2;",
            ),
            ("parity.shared::cta.b64 p, [%1], %2", "parity.shared::cta.b64 p, [%1], 0"),
            ("selp.u32 %0, 1, 0, p", "selp.u32 %0, 0, 1, p"),
            ("mbarrier.inval", "mbarrier.init"),
        ],
    },
    Twin {
        name: "bulk",
        with: &["pair"],
        headers: &["cluster", "mbarrier", "bulk"],
        arch: "sm_90",
        mistakes: &[
            ("fence.proxy.async.shared::cta;", "fence.acq_rel.cta;"),
            ("\"l\"(from), \"r\"(bytes)", "\"l\"(from), \"r\"(bytes - 16)"),
            ("\"r\"(bytes), \"r\"(barrier)", "\"r\"(bytes / 2), \"r\"(barrier)"),
            ("bulk_group [%0], [%1], %2", "bulk_group [%0], [%1], 16"),
            ("cp.async.bulk.commit_group", "cp.async.bulk.wait_group 9"),
            ("cp.async.bulk.wait_group %0", "cp.async.bulk.wait_group 9"),
            ("cp.async.bulk.wait_group.read %0", "cp.async.bulk.wait_group.read 9"),
            ("expect_tx.shared::cta.b64 _, [%0], %1", "expect_tx.shared::cta.b64 _, [%0], 16"),
        ],
    },
    Twin {
        name: "st_async",
        with: &["pair"],
        headers: &["cluster", "mbarrier", "st_async"],
        arch: "sm_90",
        mistakes: &[
            ("complete_tx::bytes.b64", "complete_tx::bytes.b32"),
            ("complete_tx::bytes.b32", "complete_tx::bytes.b64"),
        ],
    },
];

const TENSORS: &[Twin] = &[Twin {
    name: "tensor_copy",
    with: &["pair", "maps"],
    headers: &["cluster", "mbarrier", "bulk", "tensor_copy"],
    arch: "sm_90",
    mistakes: &[
        ("\"{%4, %5}\"", "\"{%5, %4}\""),
        ("\"{%4, %5, %6}\"", "\"{%4, %6, %5}\""),
        ("\"{%4, %5, %6, %7, %8}\"", "\"{%4, %5, %6, %8, %7}\""),
        ("\"h\"(blocks)", "\"h\"((unsigned short)(blocks & 1))"),
        ("cp.reduce.async", "cp.async"),
    ],
}];

const WGMMA: &[&str] = &["cluster", "mbarrier", "bulk", "descriptor", "wgmma_shapes", "wgmma"];

const PRODUCTS: &[Twin] = &[Twin {
    name: "wgmma",
    with: &["wgmma_kernel"],
    headers: WGMMA,
    arch: "sm_90a",
    mistakes: &[
        ("k16.f32.f16.f16", "k16.f32.bf16.bf16"),
        ("setp.ne.b32", "setp.eq.b32"),
        (", p, 1, 1\"", ", p, 1, -1\""),
        ("\"n\"(A_T), \"n\"(B_T)", "\"n\"(B_T), \"n\"(A_T)"),
        ("\"r\"(a[0]), \"r\"(a[1])", "\"r\"(a[1]), \"r\"(a[0])"),
        ("wgmma.wait_group.sync.aligned %0", "wgmma.wait_group.sync.aligned 3"),
    ],
}];

const SHAPES: &[Twin] = &[Twin {
    name: "wgmma_shapes",
    with: &["wgmma_kernel"],
    headers: WGMMA,
    arch: "sm_90a",
    mistakes: &[],
}];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The side of the headers that a GPU has, their macros replaced.
fn texts_of(headers: &[&str]) -> String {
    let of_one = |name: &&str| {
        let text = read(&root().join(format!("shared/cuda/lab/ptx/{name}.cuh")));
        let is_kept =
            |line: &&str| !line.starts_with("#include") && !line.starts_with("#pragma once");
        text.lines().filter(is_kept).fold(String::new(), |all, line| all + line + "\n")
    };
    let all: String = headers.iter().map(of_one).collect();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let mut preprocessor = std::process::Command::new(compiler)
        .args(["-E", "-P", "-w", "-x", "c++", "-D__CUDA_ARCH__=900", "-DLAB_CLUSTERS", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    preprocessor.stdin.take().unwrap().write_all(all.as_bytes()).unwrap();
    let output = preprocessor.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // Otherwise both sides would be the same one.
    assert!(text.contains("asm") && !text.contains("emu_"), "{text}");
    text
}

impl Twin {
    /// Every sixth mistake by turns, and at least one; with `LAB_ALL_CHECKS` all of them: each is one more side to compile.
    fn tried_mistakes(&self) -> Vec<(&'static str, &'static str)> {
        let step = if std::env::var_os("LAB_ALL_CHECKS").is_some() { 1 } else { 6 };
        let step = step.min(self.mistakes.len()).max(1);
        self.mistakes.iter().copied().skip(test_turn() % step).step_by(step).collect()
    }

    /// The kernel with the twins, with the texts, and with each mistake, each side in a namespace of its own. A side runs in
    /// a process of its own, which is ended by what is found; the program prints a line for each.
    fn program(&self) -> String {
        let texts = texts_of(self.headers);
        let mut sides = vec![None, Some(texts.clone())];
        for (right, wrong) in self.tried_mistakes() {
            assert!(texts.contains(right), "{}: no text has {right}", self.name);
            sides.push(Some(texts.replace(right, wrong)));
        }
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ptx");
        let names = self.with.iter().chain([&self.name]);
        let kernel: String = names.map(|name| read(&data.join(format!("{name}.cu")))).collect();
        let mut text = String::from(
            "#include <cstdio>\n#include <cstdlib>\n#include <cstring>\n#include <sys/wait.h>\n#include <unistd.h>\n\
             #include <cuda.h>\n#include \"lab/scalar.cuh\"\n",
        );
        for header in self.headers {
            writeln!(text, "#include \"lab/ptx/{header}.cuh\"").unwrap();
        }
        for (n, side) in sides.iter().enumerate() {
            writeln!(text, "#undef SIDE\n#define SIDE {n}\nnamespace side_{n} {{").unwrap();
            if let Some(side) = side {
                writeln!(text, "namespace lab {{ using ::lab::is_f16; }}\n{side}").unwrap();
            }
            writeln!(text, "using namespace lab;\n{kernel}}}").unwrap();
        }
        let runs = (0..sides.len()).map(|n| format!("if (side == {n}) side_{n}::run(out);\n"));
        write!(
            text,
            r#"int main() {{
    for (int side = 0; side < {}; ++side) {{
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {{
            alarm(100);
            static unsigned host[8192], *out;
            cudaMalloc(&out, sizeof host);
            cudaMemset(out, 0, sizeof host);
            {}
            unsigned long long sum = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
            for (unsigned word : host) sum = (sum ^ word) * 1099511628211ull;
            printf("%llx ", sum);
            fflush(stdout);
            exit(0);
        }}
        int status = 0;
        waitpid(child, &status, 0);
        printf("%d\n", status);
    }}
}}
"#,
            sides.len(),
            runs.collect::<String>()
        )
        .unwrap();
        text
    }

    fn assert_holds(&self) {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join(format!("{}.cu", self.name));
        std::fs::write(&file, self.program()).unwrap();
        let mut lab = Command::cargo_bin("lab").unwrap();
        let lab = lab.env_remove("LAB_DEVICE").current_dir(root());
        let program = file.display().to_string();
        let output =
            lab.args(["app", "--arch", self.arch, "-I", "shared/cuda", &program]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = stdout.lines().collect();
        assert_eq!(lines.len(), 2 + self.tried_mistakes().len(), "{}: {stdout}{stderr}", self.name);
        assert!(lines[0].ends_with(" 0"), "{}: the twin: {}\n{stderr}", self.name, lines[0]);
        assert_eq!(lines[1], lines[0], "{}: the text, and its twin\n{stderr}", self.name);
        for ((right, wrong), line) in self.tried_mistakes().into_iter().zip(&lines[2..]) {
            assert_ne!(*line, lines[0], "{}: {wrong} for {right} is not seen", self.name);
        }
        let (tried, all) = (self.tried_mistakes().len(), self.mistakes.len());
        println!("{}: as its twin; {tried} of {all} mistakes tried, each seen", self.name);
    }
}

fn assert_all_hold(twins: &[Twin]) {
    twins.iter().for_each(Twin::assert_holds);
}

#[test]
fn texts_of_numbers_are_their_twins() {
    assert_all_hold(NUMBERS);
}

#[test]
fn texts_of_warps_are_their_twins() {
    assert_all_hold(WARPS);
}

#[test]
fn texts_of_memory_are_their_twins() {
    assert_all_hold(MEMORY);
}

#[test]
fn texts_of_clusters_are_their_twins() {
    assert_all_hold(CLUSTERS);
}

#[test]
fn texts_of_tensor_copies_are_their_twins() {
    assert_all_hold(TENSORS);
}

#[test]
fn texts_of_a_warpgroups_products_are_their_twins() {
    assert_all_hold(PRODUCTS);
}

/// Of each number of columns the text is another.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn texts_of_all_numbers_of_columns_are_their_twins() {
    assert_all_hold(SHAPES);
}

#[test]
fn no_header_with_texts_is_left_out() {
    let twins = [NUMBERS, WARPS, MEMORY, CLUSTERS, TENSORS, PRODUCTS];
    let all: Vec<&str> = twins
        .iter()
        .flat_map(|twins| twins.iter())
        .flat_map(|twin| twin.headers)
        .copied()
        .collect();
    for entry in std::fs::read_dir(root().join("shared/cuda/lab/ptx")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let has_text = read(&path).lines().any(|line| line.trim_start().starts_with("asm"));
        assert!(!has_text || all.contains(&name.as_str()), "{name}.cuh");
    }
}
