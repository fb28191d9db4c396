//! What goes on while a thread does: copies, mbarriers, the products of a warpgroup. PTX ISA, "Asynchronous operations".

use crate::statement::Operand;
use crate::text::{Call, block};

impl Call<'_> {
    pub(crate) fn asynchronous(&self) -> Option<String> {
        match self.words {
            ["cp", "async", "commit_group"] => Some("emu_async_commit()".into()),
            ["cp", "async", "wait_group"] => {
                Some(format!("emu_async_wait({})", self.read(0, "uint32_t")?))
            }
            ["cp", "async", "wait_all"] => Some("emu_async_commit(), emu_async_wait(0)".into()),
            ["cp", "async", "ca" | "cg", ..] => self.copy(),
            ["cp", "async", "bulk", "commit_group"] => Some("emu_bulk_commit()".into()),
            ["cp", "async", "bulk", "wait_group"] => {
                Some(format!("emu_bulk_wait({}, false)", self.read(0, "uint32_t")?))
            }
            ["cp", "async", "bulk", "wait_group", "read"] => {
                Some(format!("emu_bulk_wait({}, true)", self.read(0, "uint32_t")?))
            }
            ["cp", "async", "bulk", "tensor", ..] => self.tensor_copy(),
            ["cp", "reduce", "async", "bulk", "tensor", ..] => self.tensor_sum(),
            ["st", "async", ..] => self.sent(),
            ["cp", "async", "bulk", "prefetch", ..] => Some("(void)0".into()),
            ["cp", "async", "bulk", ..] => self.bulk_copy(),
            ["mbarrier", ..] => self.mbarrier(),
            ["wgmma", "fence", "sync", "aligned"] => Some("emu_wgmma_fence()".into()),
            ["wgmma", "commit_group", "sync", "aligned"] => Some("emu_wgmma_commit()".into()),
            ["wgmma", "wait_group", "sync", "aligned"] => {
                Some(format!("emu_wgmma_wait({})", self.read(0, "uint32_t")?))
            }
            ["wgmma", "mma_async", ..] => self.wgmma(),
            ["setmaxnreg", way @ ("inc" | "dec"), "sync", "aligned", "u32"] => {
                Some(format!("emu_set_registers({}, {})", self.read(0, "uint32_t")?, *way == "inc"))
            }
            ["griddepcontrol", "wait"] => Some("emu_griddep_wait()".into()),
            ["griddepcontrol", "launch_dependents"] => {
                Some("emu_griddep_launch_dependents()".into())
            }
            _ => None,
        }
    }

    /// `cp.async.cg.shared.global.L2::128B [to], [from], 16, bytes;`: zeros behind the bytes that are read.
    fn copy(&self) -> Option<String> {
        let hints = ["L2::64B", "L2::128B", "L2::256B", "L2::cache_hint"];
        let rest = &self.words[3..];
        if !rest
            .iter()
            .all(|w| ["shared", "shared::cta", "global"].contains(w) || hints.contains(w))
        {
            return None;
        }
        let [to, from] = [self.place(0, true)?, self.place(1, false)?];
        let bytes = self.read(2, "uint32_t")?;
        let operands = self.operands.len() - usize::from(self.has("L2::cache_hint"));
        let of_source = match operands {
            3 => bytes.clone(),
            // A predicate says that the source is ignored.
            4 if self.text.is_predicate(self.value(3)?) => {
                format!("({} ? 0u : {bytes})", self.read(3, "bool")?)
            }
            4 => self.read(3, "uint32_t")?,
            _ => return None,
        };
        let past_l1 = self.words[2] == "cg";
        Some(format!("::emu::ptx::copy<{past_l1}>({to}, {from}, {bytes}, {of_source})"))
    }

    fn bulk_copy(&self) -> Option<String> {
        let rest = self.words[3..].iter().copied().filter(|word| *word != "L2::cache_hint");
        let rest: Vec<&str> = rest.collect();
        let (to_shared, from_shared, barrier) = match rest[..] {
            ["shared::cluster", "global", "mbarrier::complete_tx::bytes"] => (true, false, true),
            ["shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes"] => {
                (true, true, true)
            }
            ["global", "shared::cta", "bulk_group"] => (false, true, false),
            _ => return None,
        };
        let [to, from] = [self.place(0, to_shared)?, self.place(1, from_shared)?];
        let bytes = self.read(2, "uint32_t")?;
        let barrier = if barrier { self.place(3, true)? } else { "nullptr".into() };
        Some(format!("emu_bulk_copy({to}, {from}, {bytes}, {barrier})"))
    }

    fn tensor_copy(&self) -> Option<String> {
        let rest: Vec<&str> = self.words[5..]
            .iter()
            .copied()
            .filter(|w| !["tile", "L2::cache_hint"].contains(w))
            .collect();
        let loads = rest.first()?.starts_with("shared");
        let tensor = usize::from(loads);
        let coordinates = self.coordinates(tensor)?;
        let Operand::Address { base, offset, .. } = self.operands.get(tensor)? else { return None };
        let (rank, at) = (coordinates.len(), coordinates.join(", "));
        (format!("{rank}d") == self.words[4]).then_some(())?;
        let shared = self.place(1 - tensor, true)?;
        let (barrier, flags) = match rest[..] {
            ["shared::cluster" | "shared::cta", "global", "mbarrier::complete_tx::bytes"] => {
                (self.place(2, true)?, "0".into())
            }
            ["shared::cluster", "global", "mbarrier::complete_tx::bytes", "multicast::cluster"] => {
                (self.place(2, true)?, format!("{} | EMU_MULTICAST", self.read(3, "uint16_t")?))
            }
            ["global", "shared::cta", "bulk_group"] => ("nullptr".into(), "0".into()),
            _ => return None,
        };
        let map = format!("({} + {offset})", self.text.read(base, "uint64_t")?);
        let call = format!(
            "emu_tensor_copy({shared}, (const void*){map}, emu_at, {rank}, {barrier}, {flags})"
        );
        Some(format!("int emu_at[] = {{{at}}}; {call}")).map(block)
    }

    /// `cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [map, {x, y}], [from];` of f32.
    fn tensor_sum(&self) -> Option<String> {
        let rest: Vec<&str> =
            self.words[6..].iter().copied().filter(|w| *w != "L2::cache_hint").collect();
        if !matches!(
            rest[..],
            ["global", "shared::cta", "add", "bulk_group"]
                | ["global", "shared::cta", "add", "tile", "bulk_group"]
        ) {
            return None;
        }
        let at = self.coordinates(0)?;
        (format!("{}d", at.len()) == self.words[5]).then_some(())?;
        let Operand::Address { base, offset, .. } = self.operands.first()? else { return None };
        let map = format!("({} + {offset})", self.text.read(base, "uint64_t")?);
        let (rank, at, shared) = (at.len(), at.join(", "), self.place(1, true)?);
        let call = format!(
            "emu_tensor_copy({shared}, (const void*){map}, emu_at, {rank}, nullptr, EMU_ADD)"
        );
        Some(format!("int emu_at[] = {{{at}}}; {call}")).map(block)
    }

    /// `st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], value, [barrier];`
    fn sent(&self) -> Option<String> {
        let (words, kind) = (self.words, self.own_type()?);
        let is_known = words.len() == 5
            && words[2] == "shared::cluster"
            && words[3] == "mbarrier::complete_tx::bytes"
            && matches!(kind.bytes, 4 | 8);
        is_known.then_some(())?;
        let of_bits = if kind.bytes == 8 { "uint64_t" } else { "uint32_t" };
        let value = self.read(1, of_bits)?;
        let [to, barrier] = [self.place(0, true)?, self.place(2, true)?];
        Some(format!("emu_store_async({to}, {value}, {}, {barrier})", kind.bytes))
    }

    fn mbarrier(&self) -> Option<String> {
        let scope =
            if self.has("cluster") || self.has("shared::cluster") { "CLUSTER" } else { "BLOCK" };
        let call = |place: String, arrivals: &str, bytes: &str| {
            format!("emu_mbarrier_arrive({place}, {arrivals}, {bytes}, EMU_SCOPE_{scope})")
        };
        let place = |index: usize| self.place(index, self.is_shared());
        match *self.words.get(1)? {
            "init" => {
                Some(format!("emu_mbarrier_init({}, {})", place(0)?, self.read(1, "uint32_t")?))
            }
            "inval" => Some(format!("emu_mbarrier_invalidate({})", place(0)?)),
            "expect_tx" => Some(call(place(0)?, "0", &self.read(1, "uint32_t")?)),
            "arrive" if !self.has("noComplete") => {
                let returns = !matches!(self.operands.first()?, Operand::Address { .. });
                let at = usize::from(returns);
                let number = || self.read(at + 1, "uint32_t");
                let arrives = match (self.has("expect_tx"), self.operands.len() - at) {
                    (true, 2) => call(place(at)?, "1", &number()?),
                    (false, 1) => call(place(at)?, "1", "0"),
                    (false, 2) => call(place(at)?, &number()?, "0"),
                    _ => return None,
                };
                if !returns || !self.value(0)?.is_wanted() {
                    return Some(arrives);
                }
                let state = self.write(0, "emu_p")?;
                Some(format!("auto emu_p = ::emu::ptx::phase({}); {arrives}; {state}", place(at)?))
                    .map(block)
            }
            // For a phase, by its parity or by what an arrival has given.
            "try_wait" | "test_wait" => {
                let of_phase = if self.has("parity") { "uint32_t" } else { "uint64_t" };
                let [place, phase] = [place(1)?, self.read(2, of_phase)?];
                self.write(0, &format!("(emu_mbarrier_try_wait({place}, uint32_t({phase}), EMU_SCOPE_{scope} | EMU_GIVES_UP) != 0)"))
            }
            _ => None,
        }
    }

    /// `wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {sums}, a, b, adds, 1, 1, transposed…;`
    fn wgmma(&self) -> Option<String> {
        let ["wgmma", "mma_async", "sync", "aligned", shape, sum @ ("f32" | "f16" | "s32"), a, b] =
            self.words
        else {
            return None;
        };
        let half_sums = *sum == "f16";
        let (depth, of_type) = match (*a, *b) {
            ("f16", "f16") => ("k16", "F16"),
            ("bf16", "bf16") => ("k16", "BF16"),
            ("tf32", "tf32") => ("k8", "TF32"),
            ("e4m3", "e4m3" | "e5m2") => ("k32", "E4M3"),
            ("e5m2", "e4m3" | "e5m2") => ("k32", "E5M2"),
            ("s8", "s8" | "u8") => ("k32", "S8"),
            ("u8", "s8" | "u8") => ("k32", "U8"),
            _ => return None,
        };
        // Whole numbers have sums of them, and no others have.
        ((*sum == "s32") == matches!(*a, "s8" | "u8")).then_some(())?;
        let columns: usize = shape.strip_prefix("m64n")?.strip_suffix(depth)?.parse().ok()?;
        let sums = self.vector(0)?;
        (sums.len() * if half_sums { 4 } else { 2 } == columns).then_some(())?;
        (!half_sums || matches!(of_type, "F16" | "E4M3" | "E5M2")).then_some(())?;
        // Of halves and whole numbers they are no `float`, and have its size.
        let place = |sum| Some(format!("(float*)&{}", self.text.variable(sum)?));
        let sums = sums.iter().map(place);
        let sums = sums.collect::<Option<Vec<_>>>()?.join(", ");
        // A in registers is read when the thread has long gone on: there are variables of the program's own behind it.
        let in_registers = matches!(self.operands.get(1), Some(Operand::Vector(_)));
        let (of_a, registers) = if in_registers {
            let of_one = |value| {
                let name = self.text.variable(value)?;
                Some(format!("::emu::ptx::register_of<decltype({name})>({name})"))
            };
            let all = self.vector(1)?.iter().map(of_one).collect::<Option<Vec<_>>>()?;
            (all.len() == 4).then_some(())?;
            (
                "0".into(),
                format!("::emu::ptx::side_by_side<const uint32_t>({{{}}})", all.join(", ")),
            )
        } else {
            (self.read(1, "uint64_t")?, "nullptr".to_owned())
        };
        let of_b = self.read(2, "uint64_t")?;
        let adds = match self.operands.get(3) {
            None => "true".to_owned(),
            Some(_) => self.read(3, "bool")?,
        };
        // Signs of A and B, which must be positive; then whether they lie across.
        let last = |index: usize| self.read(index, "int");
        let [sign_a, sign_b] =
            [4, 5].map(|n| if self.operands.len() > n { last(n) } else { Some("1".into()) });
        let across = match self.operands.len() {
            ..=6 => "0".to_owned(),
            7 if in_registers => format!("({} ? EMU_WGMMA_B_TRANSPOSED : 0)", last(6)?),
            8 if !in_registers => format!(
                "({} ? EMU_WGMMA_A_TRANSPOSED : 0) | ({} ? EMU_WGMMA_B_TRANSPOSED : 0)",
                last(6)?,
                last(7)?
            ),
            _ => return None,
        };
        let across = if half_sums { format!("{across} | EMU_WGMMA_HALF_SUMS") } else { across };
        let across = if a == b { across } else { format!("{across} | EMU_WGMMA_B_OTHER") };
        let across =
            if self.text.is_module { format!("{across} | EMU_WGMMA_COMPILED") } else { across };
        Some(format!(
            "::emu::ptx::signs({}, {}); emu_wgmma(::emu::ptx::side_by_side<float>({{{sums}}}), {of_a}, {of_b}, {registers}, \
             {columns} | EMU_WGMMA_{of_type}, ({adds} ? EMU_WGMMA_ADDS : 0) | {across})",
            sign_a?, sign_b?
        ))
        .map(block)
    }
}
