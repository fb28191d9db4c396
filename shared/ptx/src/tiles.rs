//! `wmma`: tiles of 16 x 16 by 16, or by 8 of TF32. How a tile lies in the registers of a warp is nobody's business but the
//! assembler's, and here the emulator's, which has them as `mma.sync` has. PTX ISA, "Warp Level Matrix Multiply-Accumulate
//! Instructions".

use crate::memory::SPACES;
use crate::text::{Call, block};

impl Call<'_> {
    pub(crate) fn tiles(&self) -> Option<String> {
        let words: Vec<&str> = self.words.iter().copied().filter(|w| !SPACES.contains(w)).collect();
        match words[1..] {
            ["load", of @ ("a" | "b"), "sync", "aligned", layout, shape, kind] => {
                self.tile_operand(of == "a", layout, shape, kind)
            }
            ["load", "c", "sync", "aligned", layout, shape, kind] => {
                let (cpp, registers) = sums(kind, shape)?;
                let [place, stride] = [self.place(1, self.is_shared())?, self.stride(2, 16)?];
                let loaded = format!("::emu::ptx::tile_sums<{cpp}, {}>", is_along_rows(layout)?);
                (self.vector(0)?.len() == registers).then_some(())?;
                let written = self.write_all(0, "emu_v.v")?;
                Some(format!("auto emu_v = {loaded}({place}, {stride}); {written}")).map(block)
            }
            ["store", "d", "sync", "aligned", layout, shape, kind] => {
                let (cpp, registers) = sums(kind, shape)?;
                let [place, stride] = [self.place(0, self.is_shared())?, self.stride(2, 16)?];
                let values = self.read_all(1, cpp)?;
                (values.len() == registers).then_some(())?;
                let (values, rows) = (values.join(", "), is_along_rows(layout)?);
                Some(format!(
                    "::emu::ptx::store_tile<{cpp}, {rows}>({place}, {stride}, {{{values}}})"
                ))
            }
            ["mma", "sync", "aligned", a, b, shape, ref kinds @ ..] => {
                is_along_rows(a).and(is_along_rows(b))?;
                self.product_of_tiles(shape, kinds)
            }
            _ => None,
        }
    }

    /// From one row, or column, of the tile to the next, in elements.
    fn stride(&self, index: usize, usual: u32) -> Option<String> {
        if index < self.operands.len() {
            self.read(index, "uint32_t")
        } else {
            Some(usual.to_string())
        }
    }

    fn tile_operand(&self, of_a: bool, layout: &str, shape: &str, kind: &str) -> Option<String> {
        let (element, registers, depth) = match (shape, kind) {
            ("m16n16k16", "f16") => ("uint16_t", 8, 16),
            ("m16n16k16", "bf16") => ("uint16_t", 4, 16),
            ("m16n16k8", "tf32") => ("uint32_t", 4, 8),
            _ => return None,
        };
        // Whether the elements of one row of A, or of one column of B, lie side by side.
        let k_lies_along = is_along_rows(layout)? == of_a;
        let usual = if k_lies_along { depth } else { 16 };
        let [place, stride] = [self.place(1, self.is_shared())?, self.stride(2, usual)?];
        (self.vector(0)?.len() == registers).then_some(())?;
        let written = self.write_all(0, "emu_v.v")?;
        Some(format!(
            "auto emu_v = ::emu::ptx::tile_operand<{element}, {registers}, {of_a}, {k_lies_along}>({place}, {stride}); \
             {written}"
        ))
        .map(block)
    }

    fn product_of_tiles(&self, shape: &str, kinds: &[&str]) -> Option<String> {
        let (of, d, c) = match (shape, kinds) {
            ("m16n16k16", [d, c]) => ("__half", *d, *c),
            ("m16n16k16", [d, "bf16", "bf16", c]) => ("__nv_bfloat16", *d, *c),
            ("m16n16k8", [d, "tf32", "tf32", c]) => ("float", *d, *c),
            _ => return None,
        };
        if of != "__half" && (d, c) != ("f32", "f32") {
            return None;
        }
        let [(to, registers), (from, _)] = [sums(d, shape)?, sums(c, shape)?];
        let list = |index, cpp| Some(self.read_all(index, cpp)?.join(", "));
        let [a, b, c] = [list(1, "uint32_t")?, list(2, "uint32_t")?, list(3, from)?];
        (self.vector(0)?.len() == registers).then_some(())?;
        let written = self.write_all(0, "emu_v.v")?;
        Some(format!(
            "auto emu_v = ::emu::ptx::multiplied_tiles<{of}, {to}>({{{a}}}, {{{b}}}, {{{c}}}); {written}"
        ))
        .map(block)
    }
}

/// The type of a register of sums, and how many there are.
fn sums(kind: &str, shape: &str) -> Option<(&'static str, usize)> {
    match (kind, shape) {
        ("f32", "m16n16k16" | "m16n16k8") => Some(("float", 8)),
        ("f16", "m16n16k16") => Some(("uint32_t", 4)),
        _ => None,
    }
}

fn is_along_rows(layout: &str) -> Option<bool> {
    match layout {
        "row" => Some(true),
        "col" => Some(false),
        _ => None,
    }
}
