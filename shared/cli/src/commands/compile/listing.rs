//! Instructions by the source lines that they come from.

use std::collections::BTreeMap;

/// A kernel's instructions, in PTX or in machine code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) symbol: String,
    /// In the order of the text that they were read from.
    pub(super) instructions: Vec<Instruction>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// In the kernel's own file: its line, or that of the call where it is a header's.
    pub(super) line: Option<usize>,
    /// The labels that stand before it, without their colons: branches name them.
    pub(super) labels: Vec<String>,
    pub(super) text: String,
}

impl Instruction {
    /// Without its predicate and its operands: `fma.rn.f32`.
    pub(super) fn opcode(&self) -> &str {
        let guarded = self.text.starts_with('@');
        self.text.split_whitespace().nth(usize::from(guarded)).unwrap_or("")
    }
}

impl Kernel {
    /// How many instructions each opcode has.
    pub(super) fn opcodes(&self) -> BTreeMap<&str, usize> {
        let mut all = BTreeMap::new();
        for instruction in &self.instructions {
            *all.entry(instruction.opcode()).or_default() += 1;
        }
        all
    }

    /// By line, what has none last.
    pub(super) fn by_line(&self) -> BTreeMap<usize, Vec<&Instruction>> {
        let mut all: BTreeMap<usize, Vec<&Instruction>> = BTreeMap::new();
        for instruction in &self.instructions {
            all.entry(instruction.line.unwrap_or(usize::MAX)).or_default().push(instruction);
        }
        all
    }
}

/// `128 fma.rn.f32, 64 ld.shared.f32` and so on: so many kinds.
pub(super) fn most_frequent<'a>(opcodes: impl Iterator<Item = &'a str>, kinds: usize) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    opcodes.for_each(|o| *counts.entry(o).or_default() += 1);
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(opcode, count)| (std::cmp::Reverse(*count), *opcode));
    let named = counts.iter().take(kinds).map(|(opcode, count)| format!("{count} {opcode}"));
    named.collect::<Vec<_>>().join(", ")
}
