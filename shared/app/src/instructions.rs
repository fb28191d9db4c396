//! Which GPUs have an instruction, and what a program is told that uses one which its GPU lacks.
//!
//! A file may well hold code for newer GPUs: behind `#if`, in the branch of an `if constexpr` that is not taken, in a
//! function that nobody calls. nvcc says nothing of those. So what is lacking becomes a call of a function that g++
//! refuses where it makes machine code of the call; what it drops, it drops in silence.

use std::fmt;
use std::fmt::Write as _;

use crate::arch::Arch;

/// The architectures that have an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// `__CUDA_ARCH__` is at least this.
    From(u32),
    /// This one alone of [`Arch`], or none of them.
    Only(&'static str),
}
use On::{From, Only};

impl On {
    fn has(self, arch: Arch) -> bool {
        match self {
            From(least) => arch.number() >= least,
            Only(name) => arch.to_string() == name,
        }
    }

    /// Of two, the larger asks for more.
    fn rank(self) -> u32 {
        match self {
            From(least) => least,
            Only(_) => u32::MAX,
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From(least) => write!(f, "sm_{} or later", least / 10),
            Only(name) => f.write_str(name),
        }
    }
}

/// In place of a qualifier: an operand that says how many arrive. With `.noComplete` all have it that have mbarriers.
const COUNT: &str = "count";

/// Instruction, qualifiers that it must have, all of them, and who has it: "Target ISA Notes" of the PTX ISA, 9.0, and what ptxas
/// 13.0 takes for one architecture and refuses for that before it. What all of [`Arch`] have is not here, `nanosleep` for
/// one. `this_cluster()` is CUDA's, and stands for instructions.
const FAMILIES: &[(&str, &str, On)] = &[
    ("applypriority", "", From(800)),
    ("abs", "bf16", From(800)),
    ("abs", "bf16x2", From(800)),
    ("add", "bf16", From(900)),
    ("add", "bf16x2", From(900)),
    ("atom", "L2::cache_hint", From(800)),
    ("atom", "bf16", From(900)),
    ("atom", "bf16x2", From(900)),
    ("atom", "cluster", From(900)),
    ("atom", "shared::cluster", From(900)),
    ("barrier.cluster", "", From(900)),
    ("clusterlaunchcontrol", "", From(1000)),
    ("cp.async", "", From(800)),
    ("cp.async.bulk", "", From(900)),
    ("cp.reduce.async.bulk", "", From(900)),
    ("createpolicy", "", From(800)),
    ("cvt", "bf16", From(800)),
    ("cvt", "bf16x2", From(800)),
    ("cvt", "bf16 f16", From(900)),
    ("cvt", "bf16 f64", From(900)),
    ("cvt", "bf16 s16", From(900)),
    ("cvt", "bf16 s32", From(900)),
    ("cvt", "bf16 s64", From(900)),
    ("cvt", "bf16 u16", From(900)),
    ("cvt", "bf16 u32", From(900)),
    ("cvt", "bf16 u64", From(900)),
    ("cvt", "e4m3x2", From(890)),
    ("cvt", "e5m2x2", From(890)),
    ("cvt", "tf32", From(800)),
    ("cvt", "tf32 rn", From(900)),
    ("discard", "", From(800)),
    ("elect", "", From(900)),
    ("ex2", "bf16", From(900)),
    ("ex2", "bf16x2", From(900)),
    ("ex2", "f16", From(750)),
    ("ex2", "f16x2", From(750)),
    ("fence", "cluster", From(900)),
    ("fence.mbarrier_init", "", From(900)),
    ("fence.proxy.async", "", From(900)),
    ("fence.proxy.tensormap", "", From(900)),
    ("fma", "bf16", From(800)),
    ("fma", "bf16x2", From(800)),
    ("getctarank", "", From(900)),
    ("griddepcontrol", "", From(900)),
    ("isspacep", "shared::cluster", From(900)),
    ("ld", "L2::128B", From(750)),
    ("ld", "L2::256B", From(800)),
    ("ld", "L2::64B", From(750)),
    ("ld", "L2::cache_hint", From(800)),
    ("ld", "cluster", From(900)),
    ("ld", "shared::cluster", From(900)),
    ("ldmatrix", "", From(750)),
    ("ldmatrix", "m16n16", Only("sm_100a")),
    ("mapa", "", From(900)),
    ("max", "bf16", From(800)),
    ("max", "bf16x2", From(800)),
    ("max", "f16", From(800)),
    ("max", "f16x2", From(800)),
    ("mbarrier", "", From(800)),
    ("mbarrier", "cluster", From(900)),
    ("mbarrier", "complete_tx", From(900)),
    ("mbarrier", COUNT, From(900)),
    ("mbarrier", "expect_tx", From(900)),
    ("mbarrier", "relaxed", From(900)),
    ("mbarrier", "shared::cluster", From(900)),
    ("mbarrier.try_wait", "", From(900)),
    ("min", "bf16", From(800)),
    ("min", "bf16x2", From(800)),
    ("min", "f16", From(800)),
    ("min", "f16x2", From(800)),
    ("mma", "bf16", From(800)),
    ("mma", "e4m3", From(890)),
    ("mma", "e5m2", From(890)),
    ("mma", "f64", From(800)),
    ("mma", "f64 m16n8k16", From(900)),
    ("mma", "f64 m16n8k4", From(900)),
    ("mma", "f64 m16n8k8", From(900)),
    ("mma", "m16n8k128", From(800)),
    ("mma", "m16n8k16", From(800)),
    ("mma", "m16n8k256", From(800)),
    ("mma", "m16n8k32", From(800)),
    ("mma", "m16n8k4", From(800)),
    ("mma", "m16n8k64", From(800)),
    ("mma", "m16n8k8", From(750)),
    ("mma", "m8n8k128", From(750)),
    ("mma", "m8n8k16", From(750)),
    ("mma", "m8n8k32", From(750)),
    ("mma", "tf32", From(800)),
    ("mma.sp", "", From(800)),
    ("movmatrix", "", From(750)),
    ("mul", "bf16", From(900)),
    ("mul", "bf16x2", From(900)),
    ("multimem", "", From(900)),
    ("neg", "bf16", From(800)),
    ("neg", "bf16x2", From(800)),
    ("prefetch", "tensormap", From(900)),
    ("red", "L2::cache_hint", From(800)),
    ("red", "bf16", From(900)),
    ("red", "bf16x2", From(900)),
    ("red", "cluster", From(900)),
    ("red.async", "", From(900)),
    ("redux.sync", "", From(800)),
    ("redux.sync", "f32", Only("sm_100a")),
    ("setmaxnreg", "", Only("sm_90a")),
    ("st", "L2::cache_hint", From(800)),
    ("st", "cluster", From(900)),
    ("st", "shared::cluster", From(900)),
    ("st.async", "", From(900)),
    ("st.bulk", "", From(1000)),
    ("stmatrix", "", From(900)),
    ("stmatrix", "m16n8", Only("sm_100a")),
    ("sub", "bf16", From(900)),
    ("sub", "bf16x2", From(900)),
    ("tanh", "", From(750)),
    ("tanh", "bf16", From(900)),
    ("tanh", "bf16x2", From(900)),
    ("tcgen05", "", Only("sm_100a")),
    ("tensormap.replace", "", Only("sm_90a")),
    ("this_cluster()", "", From(900)),
    ("wgmma", "", Only("sm_90a")),
    ("wmma", "b1", From(750)),
    ("wmma", "bf16", From(800)),
    ("wmma", "f64", From(800)),
    ("wmma", "s4", From(750)),
    ("wmma", "tf32", From(800)),
    ("wmma", "u4", From(750)),
];

/// What stands before the call that needs a family: `EMU_NEEDS_cp_async`.
fn macro_name(instruction: &str, qualifier: &str) -> String {
    let mut name = String::from("EMU_NEEDS_");
    name.extend(instruction.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }));
    if !qualifier.is_empty() {
        name.push('_');
        name.extend(qualifier.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }));
    }
    name
}

/// The macros that stand before inline PTX, as it is written in the source, quotes and all: one for each
/// instruction that not every GPU has.
pub(crate) fn needs(ptx: &str) -> String {
    let ptx = joined(ptx).replace("\\n", " ").replace("\\t", " ");
    let between = |c: char| c.is_whitespace() || ",{}()[]\"".contains(c);
    let mut all: Vec<String> = Vec::new();
    for (statement, word) in ptx.split(';').flat_map(|s| s.split(between).map(move |w| (s, w))) {
        let family = FAMILIES.iter().filter(|(instruction, qualifier, _)| {
            let rest = word.strip_prefix(instruction);
            rest.is_some_and(|rest| {
                // A word alone may be a register or a label.
                let ends = rest.is_empty() && instruction.contains(['.', '(']);
                (ends || rest.starts_with('.') || rest.starts_with("::"))
                    && qualifier.split_whitespace().all(|one| match one {
                        COUNT => arrives_by_count(rest, statement),
                        _ => rest.split('.').any(|p| p == one),
                    })
            })
        });
        if let Some((instruction, qualifier, _)) = family.max_by_key(|(.., on)| on.rank()) {
            let name = macro_name(instruction, qualifier) + " ";
            if !all.contains(&name) {
                all.push(name);
            }
        }
    }
    all.concat()
}

/// Whether an mbarrier instruction with these qualifiers is an arrival of three operands: state, address, count.
fn arrives_by_count(qualifiers: &str, statement: &str) -> bool {
    let has = |one: &[&str]| qualifiers.split('.').any(|q| one.contains(&q));
    // With these the third operand is another, or needs no newer GPU.
    has(&["arrive", "arrive_drop"])
        && !has(&["expect_tx", "noComplete"])
        && statement.split(',').count() == 3
}

/// String literals side by side are one.
fn joined(source: &str) -> String {
    let mut all = String::new();
    for (n, part) in source.split('"').enumerate() {
        let is_between = n % 2 == 0 && part.trim().is_empty();
        if !is_between {
            all.push_str(part);
        }
    }
    all
}

/// A header with the macros: nothing, or the call of a function that g++ refuses.
pub(crate) fn definitions(arch: Arch) -> String {
    // So g++ tells where a macro is used, and not where it is defined.
    let mut text = String::from("#pragma GCC system_header\n#pragma once\n");
    for &(instruction, qualifier, on) in FAMILIES {
        let name = macro_name(instruction, qualifier);
        let with = qualifier.split_whitespace().map(|one| match one {
            COUNT => " with a count".into(),
            _ => format!(" with .{one}"),
        });
        let with: String = with.collect();
        let _ = if on.has(arch) {
            writeln!(text, "#define {name}")
        } else {
            writeln!(
                text,
                "extern \"C\" void {name}_() __attribute__((error(\"{instruction}{with}: \
                 expected {on}, got --arch {arch}\")));\n#define {name} {name}_(),"
            )
        };
    }
    text
}

/// What g++ said, with each instruction that is lacking at the place of the program that uses it, and not at
/// one of the emulator's headers.
pub(crate) fn at_own_places(said: &str) -> String {
    let (mut all, mut callers) = (String::new(), Vec::new());
    for line in said.lines() {
        let caller = line.trim_start().strip_prefix("inlined from ");
        if let Some(caller) = caller {
            callers.extend(caller.rsplit(" at ").next().map(|at| at.trim_end_matches([':', ','])));
        } else if line.starts_with("In function ") {
            callers.clear();
        }
        let lacks = line.split_once(": error: call to ").and_then(|(place, rest)| {
            Some((place, rest.split_once(" declared with attribute error: ")?.1))
        });
        let is_own = |place: &&str| !place.contains("/shared/emulator/");
        let _ = match lacks {
            Some((place, what)) => {
                let own = [place].into_iter().chain(callers.iter().copied()).find(is_own);
                writeln!(all, "{}: error: {what}", own.unwrap_or(place))
            }
            None => writeln!(all, "{line}"),
        };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_demanding_family_counts() {
        for (ptx, found) in [
            ("\"bar.sync 0;\"", ""),
            ("\"cp.async.cg.shared.global [%0], [%1], 16;\\n\"", "EMU_NEEDS_cp_async "),
            ("\"@p cp.async.bulk.commit_group;\"", "EMU_NEEDS_cp_async_bulk "),
            ("\"cp.asynchronous;\"", ""),
            (
                "\"{\\n\\t.reg .pred p;\\n\" \"\\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;}\"",
                "EMU_NEEDS_mbarrier_try_wait ",
            ),
            (
                "\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\"",
                "EMU_NEEDS_mbarrier_expect_tx ",
            ),
            ("\"mbarrier.arrive.shared.b64 %0, [%1];\"", "EMU_NEEDS_mbarrier "),
            (
                "\"@p mbarrier.arrive.shared::cta.b64 %0, [%1 + 8],\" \" %2;\"",
                "EMU_NEEDS_mbarrier_count ",
            ),
            ("\"mbarrier.arrive_drop.release.cta.b64 _, [%0], 4;\"", "EMU_NEEDS_mbarrier_count "),
            ("\"mbarrier.arrive.noComplete.shared.b64 %0, [%1], %2;\"", "EMU_NEEDS_mbarrier "),
            ("\"mbarrier.arrive.b64 _, [%0];\\n\\tmov.b32 %1, %2;\"", "EMU_NEEDS_mbarrier "),
            ("\"cp.async.mbarrier.arrive.noinc.b64 [%0];\"", "EMU_NEEDS_cp_async "),
            ("\"mbarrier.init.shared.b64 [%0], %1;\"", "EMU_NEEDS_mbarrier "),
            ("\"mbarrier.test_wait.parity.acquire.cta.b64 p, [%0], %1;\"", "EMU_NEEDS_mbarrier "),
            (
                "\"mbarrier.test_wait.acquire.cluster.b64 p, [%0], %1;\"",
                "EMU_NEEDS_mbarrier_cluster ",
            ),
            ("\"mbarrier.test_wait.relaxed.cta.b64 p, [%0], %1;\"", "EMU_NEEDS_mbarrier_relaxed "),
            (
                "\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0}, [%1]; \
                 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0};\"",
                "EMU_NEEDS_ldmatrix EMU_NEEDS_mma_m16n8k8 ",
            ),
            ("\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32\"", "EMU_NEEDS_mma_tf32 "),
            (
                "\"mma.sync.aligned.\" \"m16n8k8.row.col.f64.f64.f64.f64\"",
                "EMU_NEEDS_mma_f64_m16n8k8 ",
            ),
            ("\"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64\"", "EMU_NEEDS_mma_f64 "),
            ("\"cvt.rn.bf16.s32 %0, %1;\"", "EMU_NEEDS_cvt_bf16_s32 "),
            ("\"cvt.rn.bf16.f32 %0, %1;\"", "EMU_NEEDS_cvt_bf16 "),
            ("\"fence.proxy.async;\"", "EMU_NEEDS_fence_proxy_async "),
            (
                "\"fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\"",
                "EMU_NEEDS_fence_proxy_async ",
            ),
            ("\"elect: bra elect;\"", ""),
            ("\"ld.global.L2::cache_hint.b32 %0, [%1], %2;\"", "EMU_NEEDS_ld_L2__cache_hint "),
            ("\"wgmma.fence.sync.aligned;\" \"wgmma.fence.sync.aligned;\"", "EMU_NEEDS_wgmma "),
        ] {
            assert_eq!(needs(ptx), found, "{ptx}");
        }
    }

    #[test]
    fn each_architecture_has_what_the_isa_says() {
        let lacks = |arch: &str| {
            let text = definitions(arch.parse().unwrap());
            assert_eq!(text.matches("#define").count(), FAMILIES.len());
            let names = text.lines().filter(|l| l.starts_with("#define") && l.ends_with(','));
            names.map(|l| l.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
        };
        let newer = [
            "clusterlaunchcontrol",
            "ldmatrix_m16n16",
            "redux_sync_f32",
            "st_bulk",
            "stmatrix_m16n8",
            "tcgen05",
        ];
        assert_eq!(lacks("sm_90a"), newer.map(|name| format!("EMU_NEEDS_{name}")));
        for name in ["setmaxnreg", "tensormap_replace", "wgmma"] {
            assert!(
                ["sm_90", "sm_120"].map(|a| lacks(a).contains(&format!("EMU_NEEDS_{name}")))
                    == [true; 2]
            );
        }
        let has = |arch: &str, name: &str| !lacks(arch).iter().any(|l| l == name);
        for (name, last_without, first_with) in [
            ("EMU_NEEDS_ldmatrix", "sm_70", "sm_75"),
            ("EMU_NEEDS_redux_sync", "sm_75", "sm_80"),
            ("EMU_NEEDS_mma_e4m3", "sm_87", "sm_89"),
            ("EMU_NEEDS_cvt_tf32_rn", "sm_89", "sm_90"),
            ("EMU_NEEDS_mbarrier", "sm_75", "sm_80"),
            ("EMU_NEEDS_mbarrier_count", "sm_89", "sm_90"),
            ("EMU_NEEDS_mbarrier_relaxed", "sm_89", "sm_90"),
            ("EMU_NEEDS_mbarrier_try_wait", "sm_89", "sm_90"),
            ("EMU_NEEDS_st_bulk", "sm_90a", "sm_100"),
            ("EMU_NEEDS_this_cluster__", "sm_89", "sm_90"),
        ] {
            assert!(!has(last_without, name) && has(first_with, name), "{name}");
        }
        let text = definitions("sm_75".parse().unwrap());
        for said in [
            "\"mma with .bf16: expected sm_80 or later, got --arch sm_75\"",
            "\"mbarrier with a count: expected sm_90 or later, got --arch sm_75\"",
        ] {
            assert!(text.contains(said), "{said}");
        }
    }

    #[test]
    fn a_place_in_a_header_is_that_of_its_caller() {
        let error = "error: call to 'EMU_NEEDS_x_' declared with attribute error: x: expected y";
        let said = format!(
            "In function 'void f()',\n    inlined from 'void g()' at /c/shared/emulator/compat/h.h:3:1,\n    \
             inlined from 'void k()' at main.cu:5:20:\n/c/shared/emulator/compat/warp.h:9:5: {error}\n\
             In function 'void own()',\n    inlined from 'void k()' at main.cu:8:1:\nmain.cu:2:3: {error}\n"
        );
        let own = at_own_places(&said);
        let errors: Vec<&str> = own.lines().filter(|l| l.contains("error: ")).collect();
        assert_eq!(
            errors,
            ["main.cu:5:20: error: x: expected y", "main.cu:2:3: error: x: expected y"]
        );
    }
}
