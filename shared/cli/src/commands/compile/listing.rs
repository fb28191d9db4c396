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
    /// Bytes from the kernel's start; PTX has none.
    pub(super) address: Option<u64>,
    pub(super) control: Option<Control>,
}

/// What the assembler says to the scheduler beside an instruction of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Control {
    /// Cycles before the warp's next instruction may begin.
    pub(super) stall: u8,
    /// The barrier, of the warp's six, that is set until the result is there.
    pub(super) write: Option<u8>,
    /// The one that is set until the operands are read.
    pub(super) read: Option<u8>,
    /// A bit for each barrier that it waits for.
    waits: u8,
}

impl Control {
    /// Of an instruction's upper 64 bits, from bit 41 on: 4 bits of stall, one that is not shown, 3 and 3 of the barriers it
    /// sets, 6 of those it waits for. GPUs since Volta (sm_70) have it there.
    pub(super) fn decode(high: u64) -> Self {
        let bits = |from: u32, count: u32| (high >> (41 + from) & ((1 << count) - 1)) as u8;
        // 7 is none.
        let barrier = |from| Some(bits(from, 3)).filter(|&barrier| barrier < 6);
        Self { stall: bits(0, 4), write: barrier(5), read: barrier(8), waits: bits(11, 6) }
    }

    /// The barriers that it waits for.
    pub(super) fn waits(self) -> Vec<u8> {
        (0..6).filter(|barrier| self.waits >> barrier & 1 == 1).collect()
    }
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
