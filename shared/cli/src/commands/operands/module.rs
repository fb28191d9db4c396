//! The module of PTX: each kernel runs several forms, a thread a case.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::forms::{Form, Kind, Operand};
use super::pools::{CASES, pool};

/// Threads of a block.
pub(super) const THREADS: usize = 256;
/// Forms of a kernel.
const FORMS: usize = 24;

/// What stands before the kernels.
const HEAD: &str = ".version 8.6\n.target sm_90a\n.address_size 64\n";

/// Kernels in PTX: their names and texts. Each takes the addresses of all operands and of all results.
pub(super) struct Module {
    pub(super) kernels: Vec<(String, String)>,
}

impl Module {
    /// All kernels.
    pub(super) fn text(&self) -> String {
        Self::text_of(&self.kernels)
    }

    /// A module of some of them.
    pub(super) fn text_of(kernels: &[(String, String)]) -> String {
        let texts = kernels.iter().map(|(_, text)| text.as_str());
        [HEAD].into_iter().chain(texts).collect()
    }
}

/// Where the operands of a kind lie: bytes before those of `a`.
fn place(kind: Kind, slot: usize) -> usize {
    let before = Kind::ALL.iter().take_while(|other| **other != kind);
    before.map(|kind| 3 * kind.bytes() * CASES).sum::<usize>() + slot * kind.bytes() * CASES
}

/// All operands, as kernels read them.
pub(super) fn operands() -> Vec<u8> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        for bits in pool(kind).iter().flatten() {
            all.extend_from_slice(&bits.to_le_bytes()[..kind.bytes()]);
        }
    }
    all
}

/// The bits of one operand.
pub(super) fn operand_of(all: &[u8], operand: Operand, case: usize) -> u64 {
    let bytes = operand.kind.bytes();
    let at = place(operand.kind, operand.slot) + case * bytes;
    let mut bits = [0; 8];
    bits[..bytes].copy_from_slice(&all[at..at + bytes]);
    u64::from_le_bytes(bits)
}

/// Bytes before the results of each form, and behind the last.
pub(super) fn places_of_results(forms: &[Form]) -> Vec<usize> {
    let mut places = vec![0];
    for form in forms {
        let bytes: usize = form.results.iter().map(|result| result.bytes() * CASES).sum();
        places.push((places[places.len() - 1] + bytes).next_multiple_of(8));
    }
    places
}

/// The PTX of these forms.
pub(super) fn module(forms: &[Form]) -> Module {
    let places = places_of_results(forms);
    let mut kernels = Vec::new();
    for (n, (forms, places)) in forms.chunks(FORMS).zip(places.chunks(FORMS)).enumerate() {
        let name = format!("forms_{n}");
        let mut text = String::new();
        write_kernel(&mut text, &name, forms, places).expect("writing to a string");
        kernels.push((name, text));
    }
    Module { kernels }
}

fn register(operand: Operand) -> String {
    let letter = ["a", "b", "c"][operand.slot];
    let predicate = if operand.is_predicate { "_p" } else { "" };
    format!("%{letter}_{}{predicate}", format!("{:?}", operand.kind).to_lowercase())
}

fn write_kernel(
    text: &mut String,
    name: &str,
    forms: &[Form],
    places: &[usize],
) -> std::fmt::Result {
    writeln!(text, ".visible .entry {name}(.param .u64 operands, .param .u64 results)\n{{")?;
    writeln!(
        text,
        ".reg .b32 %case, %block, %size;\n.reg .b64 %wide, %from, %to, %from_<9>, %to_<9>;"
    )?;
    writeln!(text, "ld.param.u64 %from, [operands];\nld.param.u64 %to, [results];")?;
    writeln!(text, "mov.u32 %block, %ctaid.x;\nmov.u32 %size, %ntid.x;\nmov.u32 %case, %tid.x;")?;
    writeln!(text, "mad.lo.u32 %case, %block, %size, %case;")?;
    for bytes in [1, 2, 4, 8] {
        writeln!(text, "mul.wide.u32 %wide, %case, {bytes};")?;
        writeln!(text, "add.u64 %from_{bytes}, %from, %wide;\nadd.u64 %to_{bytes}, %to, %wide;")?;
    }
    let operands: BTreeSet<Operand> = forms.iter().flat_map(|form| form.operands.clone()).collect();
    for operand in operands {
        let (bytes, at) = (operand.kind.bytes(), place(operand.kind, operand.slot));
        let own = register(operand);
        if operand.is_predicate {
            writeln!(text, ".reg .pred {own}; .reg .b32 {own}_b;")?;
            writeln!(text, "ld.global.b32 {own}_b, [%from_{bytes} + {at}];")?;
            writeln!(text, "and.b32 {own}_b, {own}_b, 1;\nsetp.ne.b32 {own}, {own}_b, 0;")?;
        } else {
            let bits = 8 * bytes;
            writeln!(
                text,
                ".reg .b{bits} {own};\nld.global.b{bits} {own}, [%from_{bytes} + {at}];"
            )?;
        }
    }
    for (form, &at) in forms.iter().zip(places) {
        let mut own = form.text.clone();
        for (name, operand) in ["$a", "$b", "$c", "$g"].iter().zip(&form.operands) {
            own = own.replace(name, &register(*operand));
        }
        for name in ["d", "e", "p", "q", "t"] {
            own = own.replace(&format!("${name}"), &format!("%{name}"));
        }
        writeln!(text, "// {}\n{{\n.reg .pred %p, %q; .reg .b32 %t;", form.name)?;
        let mut at = at;
        let mut stored = String::new();
        for (result, name) in form.results.iter().zip(["%d", "%e"]) {
            let (bits, bytes) = (8 * result.kind.bytes(), result.bytes());
            writeln!(text, ".reg .b{bits} {name};")?;
            writeln!(stored, "st.global.b{} [%to_{bytes} + {at}], {name};", 8 * bytes)?;
            at += bytes * CASES;
        }
        writeln!(text, "{own}\n{stored}}}")?;
    }
    writeln!(text, "ret;\n}}")
}
