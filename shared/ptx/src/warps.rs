//! What a warp or a block does together: small matrices, shuffles, votes, barriers. PTX ISA, "Warp-level Matrix
//! Instructions" and "Parallel Synchronization and Communication Instructions".

use crate::statement::{Operand, Value};
use crate::text::{Call, block};

impl Call<'_> {
    pub(crate) fn warps(&self) -> Option<String> {
        match self.words[0] {
            "ldmatrix" => self.matrices(),
            "stmatrix" => self.matrices_stored(),
            "mma" => self.product_of_matrices(),
            "wmma" => self.tiles(),
            "shfl" => self.shuffle(),
            "vote" if self.is("vote.sync") => self.vote(),
            "match" if self.is("match.any.sync") && self.words.len() == 4 => {
                let [value, mask] =
                    [self.read(1, self.own_type()?.cpp)?, self.read(2, "uint32_t")?];
                self.write(0, &format!("__match_any_sync({mask}, {value})"))
            }
            "activemask" => self.write(0, "__activemask()"),
            "redux" if self.is("redux.sync") && self.words.len() == 4 => {
                let cpp = self.own_type().filter(|kind| kind.letter != 'f')?.cpp;
                let name = self.words.get(2)?;
                let [value, mask] = [self.read(1, cpp)?, self.read(2, "uint32_t")?];
                ["add", "min", "max", "and", "or", "xor"].contains(name).then_some(())?;
                self.write(0, &format!("__reduce_{name}_sync({mask}, {value})"))
            }
            "elect" => self.elect(),
            "bar" | "barrier" => self.barrier(),
            "mapa" => {
                let [own, rank] = [self.read(1, "uint64_t")?, self.read(2, "uint32_t")?];
                match self.words {
                    ["mapa", "shared::cluster", "u32"] => {
                        self.write(0, &format!("::emu::ptx::window_of({own}, {rank})"))
                    }
                    ["mapa", "u64"] => self.write(0, &format!("::emu::ptx::mapped({own}, {rank})")),
                    _ => None,
                }
            }
            "nanosleep" => Some("emu_yield_point(1)".into()),
            "trap" => Some("emu_trap(\"trap\")".into()),
            "brkpt" => Some("emu_trap(\"brkpt, a breakpoint\")".into()),
            _ => None,
        }
    }

    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`: lanes bring the addresses of as many rows as there are.
    fn matrices(&self) -> Option<String> {
        if !self.is("ldmatrix.sync.aligned") || !self.has("m8n8") || self.own_type()?.bytes != 2 {
            return None;
        }
        let count = self.vector(0)?.len();
        let (place, transposed) = (self.address_of_row(1)?, self.has("trans"));
        let words = self.write_all(0, "emu_v.v")?;
        Some(format!("auto emu_v = ::emu::ptx::matrices<{count}>({place}, {transposed}); {words}"))
            .map(block)
    }

    fn matrices_stored(&self) -> Option<String> {
        if !self.is("stmatrix.sync.aligned") || !self.has("m8n8") || self.own_type()?.bytes != 2 {
            return None;
        }
        let words = self.read_all(1, "uint32_t")?;
        let (place, count) = (self.address_of_row(0)?, words.len());
        let (transposed, words) = (self.has("trans"), words.join(", "));
        Some(format!("::emu::ptx::store_matrices<{count}, {transposed}>({place}, {{{words}}})"))
    }

    /// Of a row in shared memory; those of some lanes mean nothing.
    fn address_of_row(&self, index: usize) -> Option<String> {
        let Operand::Address { base, offset, .. } = self.operands.get(index)? else { return None };
        Some(format!("uint32_t({} + {offset})", self.text.read(base, "uint64_t")?))
    }

    /// `mma` of 8-bit numbers, which halves hold.
    fn product_of_bytes(&self, d: &str, [a, b]: [&str; 2], saturates: bool) -> Option<String> {
        let of = |name: &str| match name {
            "s8" => Some("SignedByte"),
            "u8" => Some("UnsignedByte"),
            "e4m3" => Some("SmallFloat<4, 3>"),
            "e5m2" => Some("SmallFloat<5, 2>"),
            _ => None,
        };
        let is_whole = |name: &str| name.ends_with('8');
        let (name, sums) = match d {
            "s32" if is_whole(a) && is_whole(b) => ("multiplied_integers", "uint32_t"),
            "f32" if !is_whole(a) && !is_whole(b) => ("multiplied_bytes", "float"),
            _ => return None,
        };
        if saturates && d != "s32" {
            return None;
        }
        let (of_a, of_b) = (of(a)?, of(b)?);
        let name = match (name, saturates) {
            ("multiplied_integers", true) => "multiplied_integers<true>",
            (name, _) => name,
        };
        let list = |index, cpp| Some(self.read_all(index, cpp)?.join(", "));
        let [left, right, add] = [list(1, "uint32_t")?, list(2, "uint32_t")?, list(3, sums)?];
        (self.vector(0)?.len() == 4).then_some(())?;
        let written = self.write_all(0, "emu_v.v")?;
        Some(format!(
            "auto emu_v = ::emu::ptx::{name}(::emu::ptx::{of_a}{{}}, ::emu::ptx::{of_b}{{}}, \
             {{{left}}}, {{{right}}}, {{{add}}}); {written}"
        ))
        .map(block)
    }

    fn product_of_matrices(&self) -> Option<String> {
        let words: Vec<&str> = self.words.iter().copied().filter(|w| *w != "satfinite").collect();
        let ["mma", "sync", "aligned", shape, "row", "col", d, a, b, c] = words[..] else {
            return None;
        };
        let saturates = words.len() < self.words.len();
        if (shape, d) == ("m16n8k32", c) {
            return self.product_of_bytes(d, [a, b], saturates);
        }
        if saturates {
            return None;
        }
        let tensor = match (shape, a) {
            ("m16n8k16" | "m16n8k8", "f16") => "__half",
            ("m16n8k16" | "m16n8k8", "bf16") => "__nv_bfloat16",
            ("m16n8k8" | "m16n8k4", "tf32") => "float",
            _ => return None,
        };
        if a != b || d != c || !(d == "f32" || (d, a) == ("f16", "f16")) {
            return None;
        }
        let of = |index, cpp| Some(self.read_all(index, cpp)?.join(", "));
        let [a, b] = [of(1, "uint32_t")?, of(2, "uint32_t")?];
        let wide = d == "f32";
        let c = of(3, if wide { "float" } else { "uint32_t" })?;
        let name = if wide { "multiplied" } else { "multiplied_halves" };
        let parts = if wide { 4 } else { 2 };
        (self.vector(0)?.len() == parts).then_some(())?;
        let sums = self.write_all(0, "emu_v.v")?;
        Some(format!(
            "auto emu_v = ::emu::ptx::{name}<{tensor}>({{{a}}}, {{{b}}}, {{{c}}}); {sums}"
        ))
        .map(block)
    }

    /// `shfl.sync.bfly.b32 d, a, lanes, clamp, mask`: the clamp says how wide a part of the warp is.
    fn shuffle(&self) -> Option<String> {
        let name = match self.words {
            ["shfl", "sync", "idx", "b32"] => "__shfl_sync",
            ["shfl", "sync", "up", "b32"] => "__shfl_up_sync",
            ["shfl", "sync", "down", "b32"] => "__shfl_down_sync",
            ["shfl", "sync", "bfly", "b32"] => "__shfl_xor_sync",
            _ => return None,
        };
        let [value, lane] = [self.read(1, "uint32_t")?, self.read(2, "uint32_t")?];
        let [clamp, mask] = [self.read(3, "uint32_t")?, self.read(4, "uint32_t")?];
        let up = self.words[2] == "up";
        let done = format!("{name}({mask}, {value}, {lane}, ::emu::ptx::width({clamp}, {up}))");
        let Some(Operand::Pair(to, is_there)) = self.operands.first() else {
            return self.write(0, &done);
        };
        // Whether there is a lane to read from.
        let way = self.words[2];
        let there = format!("::emu::ptx::is_lane('{}', {lane}, {clamp})", &way[..1]);
        Some(format!(
            "bool emu_p = {there}; {}; {}",
            self.text.write(to, &done)?,
            self.text.write(is_there, "emu_p")?
        ))
        .map(block)
    }

    fn vote(&self) -> Option<String> {
        let [p, mask] = [self.read(1, "bool")?, self.read(2, "uint32_t")?];
        match self.words[2..] {
            ["ballot", "b32"] => self.write(0, &format!("__ballot_sync({mask}, {p})")),
            ["any", "pred"] => self.write(0, &format!("bool(__any_sync({mask}, {p}))")),
            ["all", "pred"] => self.write(0, &format!("bool(__all_sync({mask}, {p}))")),
            ["uni", "pred"] => {
                self.write(0, &format!("(__all_sync({mask}, {p}) || __all_sync({mask}, !{p}))"))
            }
            _ => None,
        }
    }

    /// The lowest lane of the mask.
    fn elect(&self) -> Option<String> {
        let Some(Operand::Pair(lane, is_it)) = self.operands.first() else { return None };
        let mask = self.read(1, "uint32_t")?;
        let lowest = format!("unsigned(__ffs(int({mask})) - 1)");
        let own = self.text.write(is_it, &format!("(::emu::ptx::laneid() == {lowest})"))?;
        let told = if lane.is_wanted() { self.text.write(lane, &lowest)? } else { String::new() };
        Some(format!("__syncwarp({mask}); {told}; {own}")).map(block)
    }

    /// `bar.red.popc.u32 d, 0, p;` of all threads of the block.
    fn reducing_barrier(&self) -> Option<String> {
        let name = match self.words {
            ["bar" | "barrier", .., "red", "popc", "u32"]
            | ["bar" | "barrier", .., "red", "popc", "aligned", "u32"] => "count",
            ["bar" | "barrier", .., "and", "pred"] => "and",
            ["bar" | "barrier", .., "or", "pred"] => "or",
            _ => return None,
        };
        matches!(self.value(1)?, Value::Number(n) if n == "0").then_some(())?;
        (self.operands.len() == 3).then_some(())?;
        self.write(0, &format!("__syncthreads_{name}({})", self.read(2, "bool")?))
    }

    fn barrier(&self) -> Option<String> {
        if self.has("red") {
            return self.reducing_barrier();
        }
        let words: Vec<&str> =
            self.words.iter().copied().filter(|w| !["cta", "aligned"].contains(w)).collect();
        let number = || self.read(0, "uint32_t");
        let threads = || self.read(1, "uint32_t");
        match (&words[..], self.operands.len()) {
            (["bar" | "barrier", "sync"], 1) => Some(format!("::emu::ptx::barrier({})", number()?)),
            (["bar" | "barrier", "sync"], 2) => {
                Some(format!("::emu::ptx::barrier({}, {})", number()?, threads()?))
            }
            (["bar" | "barrier", "arrive"], 2) => {
                Some(format!("emu_named_barrier({}, {}, true)", number()?, threads()?))
            }
            (["bar", "warp", "sync"], 1) => Some(format!("__syncwarp({})", number()?)),
            // What one half does, a wait for all does as well, if it is the other half's as well.
            (["barrier", "cluster", "arrive", ..], 0) => Some("(void)0".into()),
            (["barrier", "cluster", "wait", ..], 0) => Some("emu_cluster_sync()".into()),
            _ => None,
        }
    }
}
