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
    /// This one alone, of those that the emulator knows.
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

/// Instruction, a qualifier that it must have (or none), and who has it: "Target ISA Notes" of the PTX ISA, 9.0. What all
/// of [`Arch`] have is not here, `nanosleep` for one. `this_cluster()` is CUDA's, and stands for instructions.
const FAMILIES: [(&str, &str, On); 41] = [
    ("applypriority", "", From(800)),
    ("barrier.cluster", "", From(900)),
    ("cp.async", "", From(800)),
    ("cp.async.bulk", "", From(900)),
    ("cp.reduce.async.bulk", "", From(900)),
    ("createpolicy", "", From(800)),
    ("cvt", "bf16", From(800)),
    ("cvt", "bf16x2", From(800)),
    ("cvt", "e4m3x2", From(890)),
    ("cvt", "e5m2x2", From(890)),
    ("cvt", "tf32", From(800)),
    ("discard", "", From(800)),
    ("elect", "", From(900)),
    ("fence.mbarrier_init", "", From(900)),
    ("fence.proxy.async", "", From(900)),
    ("getctarank", "", From(900)),
    ("griddepcontrol", "", From(900)),
    ("ldmatrix", "", From(750)),
    ("mapa", "", From(900)),
    ("mbarrier", "", From(800)),
    ("mbarrier", "complete_tx", From(900)),
    ("mbarrier", "expect_tx", From(900)),
    ("mbarrier.try_wait", "", From(900)),
    ("mma", "bf16", From(800)),
    ("mma", "e4m3", From(890)),
    ("mma", "e5m2", From(890)),
    ("mma", "f64", From(800)),
    ("mma", "m16n8k16", From(800)),
    ("mma", "m16n8k32", From(800)),
    ("mma", "m16n8k8", From(750)),
    ("mma", "tf32", From(800)),
    ("movmatrix", "", From(750)),
    ("multimem", "", From(900)),
    ("redux.sync", "", From(800)),
    ("setmaxnreg", "", Only("sm_90a")),
    ("st.async", "", From(900)),
    ("stmatrix", "", From(900)),
    ("this_cluster()", "", From(900)),
    ("wgmma", "", Only("sm_90a")),
    ("wmma", "bf16", From(800)),
    ("wmma", "tf32", From(800)),
];

/// What stands before the call that needs a family: `EMU_NEEDS_cp_async`.
fn macro_name(instruction: &str, qualifier: &str) -> String {
    let mut name = String::from("EMU_NEEDS_");
    name.extend(instruction.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }));
    if !qualifier.is_empty() {
        name = name + "_" + qualifier;
    }
    name
}

/// The macros that stand before inline PTX, as it is written in the source, quotes and all: one for each
/// instruction that not every GPU has.
pub(crate) fn needs(ptx: &str) -> String {
    let ptx = ptx.replace("\\n", " ").replace("\\t", " ");
    let between = |c: char| c.is_whitespace() || ",;{}()[]\"".contains(c);
    let mut all: Vec<String> = Vec::new();
    for word in ptx.split(between) {
        let family = FAMILIES.iter().filter(|(instruction, qualifier, _)| {
            let rest = word.strip_prefix(instruction);
            rest.is_some_and(|rest| {
                (rest.is_empty() || rest.starts_with('.'))
                    && (qualifier.is_empty() || rest.split('.').any(|part| part == *qualifier))
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

/// A header with the macros: nothing, or the call of a function that g++ refuses.
pub(crate) fn definitions(arch: Arch) -> String {
    // So g++ tells where a macro is used, and not where it is defined.
    let mut text = String::from("#pragma GCC system_header\n#pragma once\n");
    for (instruction, qualifier, on) in FAMILIES {
        let name = macro_name(instruction, qualifier);
        let with = if qualifier.is_empty() { "" } else { " with ." };
        let _ = match on.has(arch) {
            true => writeln!(text, "#define {name}"),
            false => writeln!(
                text,
                "extern \"C\" void {name}_() __attribute__((error(\"{instruction}{with}{qualifier}: \
                 expected {on}, got --arch {arch}\")));\n#define {name} {name}_(),"
            ),
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
            (
                "\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0}, [%1]; \
                 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0};\"",
                "EMU_NEEDS_ldmatrix EMU_NEEDS_mma_m16n8k8 ",
            ),
            ("\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32\"", "EMU_NEEDS_mma_tf32 "),
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
        assert!(lacks("sm_90a").is_empty());
        assert_eq!(lacks("sm_90"), ["EMU_NEEDS_setmaxnreg", "EMU_NEEDS_wgmma"]);
        assert_eq!(lacks("sm_90"), lacks("sm_120"));
        let has = |arch: &str, name: &str| !lacks(arch).iter().any(|l| l == name);
        for (name, last_without, first_with) in [
            ("EMU_NEEDS_ldmatrix", "sm_70", "sm_75"),
            ("EMU_NEEDS_redux_sync", "sm_75", "sm_80"),
            ("EMU_NEEDS_mma_e4m3", "sm_87", "sm_89"),
            ("EMU_NEEDS_this_cluster__", "sm_89", "sm_90"),
        ] {
            assert!(!has(last_without, name) && has(first_with, name), "{name}");
        }
        let text = definitions("sm_75".parse().unwrap());
        assert!(text.contains("\"mma with .bf16: expected sm_80 or later, got --arch sm_75\""));
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
