//! The product as an operation: `kernels/v2_flight.cu`, `kernels/v3_mma.cu`, and the steps before them.

use lab_device::{DType, Device, KernelSource};
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, arguments};

use crate::kernels;

/// The most rows that a version takes.
pub const MOST_ROWS: usize = 64;

/// The most rows of [`Way::Wgmma`].
pub(crate) const MOST_WIDE_ROWS: usize = 128;

/// Columns of [`Way::Bytes`], whose sums of products of bytes, 2^14 each at most, fit 32 bits.
pub(crate) const MOST_COLUMNS: usize = (1 << 17) - 16;

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A thread an output.
    Naive,
    /// A warp a row of W.
    Warp,
    /// Eight loads of a lane in flight.
    Flight,
    /// On the tensor cores: halves, up to 64 rows.
    Mma,
    /// The same by blocks that stay, which may norm x themselves.
    Persistent,
    /// By clusters that share k, of sm_90: for more than 16 rows.
    Split,
    /// A warp walks down its columns of W: for one row or two, whose bits are the same. It may norm x itself.
    Columns,
    /// The same, whose weights wait in shared memory, so that two launches fit side by side.
    Ring,
    /// As Columns of W of int8, by x as two planes of bytes.
    Dots,
    /// By wgmma and TMA, in clusters that share k, of sm_90a: up to 128 rows.
    Wgmma,
    /// The same of W of int8, as memory has it, by x as two planes of bytes. It may norm x itself, of any number of rows.
    Bytes,
    /// The same of up to 64 rows, whose bytes the product before may make: no model's choice, for a token takes longer.
    Units,
}

impl Way {
    pub(crate) fn source(self) -> &'static KernelSource {
        match self {
            Self::Naive => &kernels::V0_NAIVE,
            Self::Warp => &kernels::V1_WARP,
            Self::Flight => &kernels::V2_FLIGHT,
            Self::Mma => &kernels::V3_MMA,
            Self::Persistent => &kernels::V4_PERSISTENT,
            Self::Split => &kernels::V5_SPLIT,
            Self::Columns => &kernels::V6_COLUMNS,
            Self::Ring => &kernels::V7_RING,
            Self::Dots => &kernels::V10_DOTS,
            Self::Wgmma => &kernels::V8_WGMMA,
            Self::Bytes => &kernels::V9_BYTES,
            Self::Units => &kernels::V11_UNITS,
        }
    }

    pub(crate) fn most_rows(self) -> usize {
        match self {
            Self::Columns | Self::Ring | Self::Dots => 2,
            Self::Wgmma | Self::Bytes => MOST_WIDE_ROWS,
            _ if self.is_of_halves() => MOST_ROWS,
            _ => 16,
        }
    }

    /// Whether it takes halves only, and has SwiGLU.
    pub(crate) fn is_of_halves(self) -> bool {
        ![Self::Naive, Self::Warp, Self::Flight].contains(&self)
    }

    /// Whether columns of y may be gates.
    pub(crate) fn has_gates(self) -> bool {
        self.norms() || [Self::Split, Self::Wgmma].contains(&self)
    }

    /// Whether x may be normed on the way.
    pub(crate) fn norms(self) -> bool {
        self.keeps_x() || [Self::Persistent, Self::Bytes, Self::Units].contains(&self)
    }

    /// Whether it can ask for what the launches behind it begin with.
    pub(crate) fn asks_ahead(self) -> bool {
        self.keeps_x() && self != Self::Ring
            || [Self::Persistent, Self::Wgmma, Self::Bytes, Self::Units].contains(&self)
    }

    /// Elements of x, of halves, that a version takes at most.
    pub(crate) fn most_kept(self) -> usize {
        if self.keeps_x() { MOST_NORMED } else { usize::MAX }
    }

    /// Whether all of x lies in a block's shared memory.
    pub(crate) fn keeps_x(self) -> bool {
        [Self::Columns, Self::Ring, Self::Dots].contains(&self)
    }
}

/// The norm of x in the product that reads it.
///
/// No launch directly before writes the weight of the norm, nor W: both are read before that launch has ended.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// \[K\], of the run's type.
    pub weight: Slot,
    /// ε.
    pub eps: f32,
    /// RMSNorm of rows where it is not said; else a layer norm of each head, times a sigmoid gate.
    pub heads: Option<Heads>,
}

/// Heads of x, and their gate.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Columns of a head, a divisor of K and a multiple of 16, up to 512.
    pub width: usize,
    /// Before the sigmoid, \[R, K\].
    pub ogate: Slot,
}

/// The columns of the fifth part of y as gates: gate = cap · tanh((y + bias) / cap).
#[derive(Clone, Copy, Debug)]
pub struct GateColumns {
    /// NH: so many of i, then as many of f. Columns behind them are left out.
    pub heads: usize,
    /// Of the soft cap.
    pub cap: f32,
    /// \[2 NH\], of the run's type.
    pub bias: Slot,
    /// Where they go, f32 \[2, R, NH\]; y's fifth part is not written.
    pub to: Slot,
}

/// y = x Wᵀ + r of few rows: x \[R, K\], W \[N, K\], r and y \[R, N\].
///
/// W is read once. Columns of y may go to several matrices, one behind the other: `parts` says where each begins.
#[derive(Clone, Copy, Debug)]
pub struct FewRows<'a> {
    /// Of x, r and y: f16, bf16 or f32.
    pub dtype: DType,
    /// R, 1 to 16; on the tensor cores to 64, on those of sm_90a to 128.
    pub rows: usize,
    /// Columns of y.
    pub n: usize,
    /// Columns of x, a multiple of 16.
    pub k: usize,
    /// x.
    pub x: Slot,
    /// W, of `dtype` or of int8: \[N, K\]; \[2 N, K\] where it is gated.
    pub weight: Slot,
    /// Of W of int8, f32: the scale of each of its rows.
    pub scale: Option<Slot>,
    /// Of x, before the product: [`FewRows::norms`] says where.
    pub norm: Option<Norm>,
    /// What the fifth part of y becomes, on the tensor cores; itself where it is not said.
    pub gates: Option<GateColumns>,
    /// r.
    pub added: Option<Slot>,
    /// y = silu(x Wgᵀ) ⊙ (x Wuᵀ), where W are the rows of Wg and behind them those of Wu: on the tensor cores.
    pub gated: bool,
    /// The first column of the second part of y, of the third, and so on, up to five parts: part p, from column b on, is a matrix of R
    /// rows by itself, R · b elements from the start.
    pub parts: &'a [usize],
    /// Where y goes; scratch of its own where it is not said.
    pub y: Option<Slot>,
    /// How; the fastest that takes it where it is not said.
    pub way: Option<Way>,
}

const NAME: &str = "few_rows";

/// From more rows on x is read too often where each block reads all of it.
const MANY: usize = 16;

/// Elements of x that lie in a block's shared memory: 64 kB of halves, so that three blocks fit a multiprocessor.
const MOST_NORMED: usize = 1 << 15;

impl FewRows<'_> {
    /// Whether some version takes rows of so many columns, and the tensor cores, which `gated` needs.
    pub fn takes(device: &Device, dtype: DType, [rows, k]: [usize; 2]) -> [bool; 2] {
        let any = k.is_multiple_of(16) && rows >= 1;
        let halves = [DType::F16, DType::BF16].contains(&dtype);
        let mma = halves && kernels::V3_MMA.runs_on(&device.facts().arch);
        let rows_fit = |way: Way| rows <= way.most_rows();
        let by_wgmma = halves && Self::takes_wgmma(device, rows);
        let by_mma = any && (mma && rows_fit(Way::Mma) || by_wgmma);
        [by_mma || any && rows_fit(Way::Flight), by_mma]
    }

    /// Up to so many rows a product with W of `dtype` is one of few: from there on the general product is quicker.
    pub fn most_rows(device: &Device, dtype: DType) -> usize {
        let halves = [DType::F16, DType::BF16].contains(&dtype);
        if halves && Self::takes_wgmma(device, MOST_WIDE_ROWS) { MOST_WIDE_ROWS } else { MANY }
    }

    /// How it is done where that is not said; `int8`: whether W is.
    pub fn usual_way(device: &Device, dtype: DType, int8: bool, [rows, k]: [usize; 2]) -> Way {
        let [_, by_mma] = Self::takes(device, dtype, [rows, k]);
        let splits = kernels::V5_SPLIT.runs_on(&device.facts().arch);
        // Two rows of x, as they are and normed, the norm's weight, and sums of some columns.
        let room = (device.facts().max_shared_per_block as usize).saturating_sub(16 << 10);
        let stays = 2 * k <= MOST_NORMED && 5 * k * dtype.size() <= room;
        match rows {
            _ if !by_mma => Way::Flight,
            // One row has the bits of two, so what takes one must take two.
            1..=2 if stays => {
                if int8 {
                    Way::Dots
                } else {
                    Way::Columns
                }
            }
            _ if int8 && rows > 2 && Self::takes_bytes(device, [rows, k]) => Way::Bytes,
            _ if rows > 2 && Self::takes_wgmma(device, rows) => Way::Wgmma,
            _ if rows > MANY && splits => Way::Split,
            _ => Way::Persistent,
        }
    }

    /// Whether a product of such rows can norm them itself: up to eight that fit into shared memory beside those of other blocks. What
    /// [`FewRows::usual_way`] chooses for so many then can.
    pub fn norms(device: &Device, dtype: DType, [rows, k]: [usize; 2]) -> bool {
        let norms = Self::usual_way(device, dtype, false, [rows, k]).norms();
        Self::takes(device, dtype, [rows, k])[1] && norms && rows <= 8 && rows * k <= MOST_NORMED
    }

    /// The same of many rows, as they become bytes: by W of int8.
    pub fn norms_as_bytes(device: &Device, dtype: DType, [rows, k]: [usize; 2]) -> bool {
        let is_usual = Self::usual_way(device, dtype, true, [rows, k]) == Way::Bytes;
        is_usual && Self::fits_split(device, 2 * k * dtype.size())
    }

    /// Whether so many bytes of a row, and of its norm, fit a block's shared memory beside what it has by itself.
    fn fits_split(device: &Device, bytes: usize) -> bool {
        bytes + (2 << 10) <= device.facts().max_shared_per_block as usize
    }

    /// Adds the launch; y.
    ///
    /// # Errors
    /// A type, a size, a slot's length or beginning that does not fit; a way that does not take it.
    pub fn add(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let way = self.check(plan.device())?;
        let Self { dtype, rows, n, k, x, weight, gated, norm, .. } = *self;
        let int8 = self.scale.is_some();
        let w = if int8 { DType::I8 } else { dtype }.cpp();
        let t = dtype.cpp();
        let of_rows = [1, 4, 16].into_iter().find(|most| rows <= *most).unwrap_or(16);
        let name = match way {
            Way::Naive => format!("few_rows_naive<{t}>"),
            Way::Warp => format!("few_rows_warp<{t}, {of_rows}>"),
            Way::Flight => format!("few_rows_flight<{t}, {w}, {of_rows}>"),
            Way::Columns | Way::Ring | Way::Dots => return self.add_columns(plan, way),
            Way::Wgmma => return self.add_wgmma(plan, None),
            Way::Bytes => return self.add_bytes(plan, None),
            Way::Units => return self.add_units(plan),
            Way::Split => {
                format!("few_rows_split<{t}, {w}, {}>", rows.div_ceil(16).next_power_of_two() * 2)
            }
            Way::Mma | Way::Persistent => {
                let tiles = rows.div_ceil(8).next_power_of_two();
                // Accumulators of many tiles take the registers of a second step.
                let depth = if tiles > 4 { 1 } else { 2 };
                match way {
                    Way::Mma => format!("few_rows_mma<{t}, {w}, {tiles}, {depth}>"),
                    _ => {
                        let norms = self.norm_in_kernels();
                        format!("few_rows_persistent<{t}, {w}, {tiles}, {depth}, {norms}>")
                    }
                }
            }
        };
        let kernel = plan.device().kernel(way.source(), &name)?;
        let across = match way {
            Way::Naive => n.div_ceil(128),
            Way::Warp => n.div_ceil(8),
            Way::Flight => n.div_ceil(16),
            Way::Mma | Way::Persistent => n.div_ceil(if gated { 8 } else { 16 }),
            // Eight blocks for eight tiles.
            Way::Split => n.div_ceil(if gated { 64 } else { 128 }) * 8,
            Way::Columns | Way::Ring | Way::Dots | Way::Wgmma | Way::Bytes | Way::Units => {
                unreachable!("it is added by itself")
            }
        };
        let down = if way == Way::Naive { rows } else { 1 };
        // Blocks that stay are as many as fit.
        let bytes = if norm.is_some() { rows * k * dtype.size() } else { 0 };
        let across = match way {
            Way::Persistent => across.min(kernel.resident_blocks(256, bytes)?.max(1) as usize),
            _ => across,
        };
        let launch = kernel.grid([across as u32, down as u32, 1])?;
        let launch = match way {
            Way::Split => launch.cluster(8),
            _ => launch.shared(bytes),
        };
        let y = self.y.unwrap_or_else(|| plan.scratch(dtype, rows * n));
        let has_residual = self.added.is_some();
        let residual = self.added.unwrap_or_else(|| plan.scratch(dtype, 1));
        let begin = |part: usize| self.parts.get(part).copied().unwrap_or(n);
        let [p1, p2, p3, p4] = [0, 1, 2, 3].map(begin);
        if let Way::Naive | Way::Warp = way {
            let all = arguments![weight, x, residual, y, R: rows, N: n, K: k, has_residual];
            plan.launch(&kernel, launch, all)?;
            return Ok(y);
        }
        let scale = self.scale.unwrap_or_else(|| plan.scratch(DType::F32, 1));
        if way == Way::Flight {
            let all = arguments![
                weight, scale, x, residual, y, R: rows, N: n, K: k, has_residual, p1, p2, p3, p4
            ];
            plan.launch(&kernel, launch, all)?;
        } else if way == Way::Split {
            let bias = self.gates.map_or_else(|| plan.scratch(dtype, 1), |gates| gates.bias);
            let to = self.gates.map_or_else(|| plan.scratch(DType::F32, 1), |gates| gates.to);
            let (heads, cap) = self.gates.map_or((0, 1.0), |gates| (gates.heads, gates.cap));
            let all = arguments![
                weight, scale, x, bias, residual, y, gates: to, R: rows, N: n, K: k, has_residual,
                gated, heads, cap, p1, p2, p3, p4
            ];
            plan.launch(&kernel, launch.overlap_previous(), all)?;
        } else if way == Way::Persistent {
            let eps = norm.map_or(0.0, |norm| norm.eps);
            let of_heads = norm.and_then(|norm| norm.heads);
            let width = of_heads.map_or(k, |heads| heads.width);
            let ogate = of_heads.map_or_else(|| plan.scratch(dtype, 1), |heads| heads.ogate);
            let norm = norm.map_or_else(|| plan.scratch(dtype, 1), |norm| norm.weight);
            let bias = self.gates.map_or_else(|| plan.scratch(dtype, 1), |gates| gates.bias);
            let to = self.gates.map_or_else(|| plan.scratch(DType::F32, 1), |gates| gates.to);
            let (heads, cap) = self.gates.map_or((0, 1.0), |gates| (gates.heads, gates.cap));
            let all = arguments![
                weight, scale, x, norm, ogate, bias, residual, y, gates: to, R: rows, N: n, K: k,
                D: width, has_residual, gated, eps, heads, cap, p1, p2, p3, p4,
                next: weight, next_half: 0, next_share: 0, next_bytes: 0, state: scale, state_bytes: 0
            ];
            plan.launch(&kernel, launch.overlap_previous(), all)?;
        } else {
            let all = arguments![
                weight, scale, x, residual, y, R: rows, N: n, K: k, has_residual, gated, p1, p2, p3, p4
            ];
            plan.launch(&kernel, launch.overlap_previous(), all)?;
        }
        Ok(y)
    }

    /// The norm as kernels call it.
    pub(crate) fn norm_in_kernels(&self) -> &'static str {
        match self.norm {
            None => "NONE",
            Some(Norm { heads: None, .. }) => "RMS",
            Some(_) => "HEADS",
        }
    }

    /// The way that it is done.
    pub(crate) fn check(&self, device: &Device) -> Result<Way, Error> {
        let Self { dtype, rows, n, k, x, weight, scale, added, gated, parts, y, way, norm, gates } =
            *self;
        let of = |what: &str| format!("{what} of {NAME}");
        if ![DType::F32, DType::F16, DType::BF16].contains(&dtype) {
            return Err(Error::bad(of("dtype"), "f32, f16 or bf16", dtype));
        }
        let [any, by_mma] = Self::takes(device, dtype, [rows, k]);
        let way = way.unwrap_or_else(|| Self::usual_way(device, dtype, scale.is_some(), [rows, k]));
        if !k.is_multiple_of(16) || k == 0 {
            return Err(Error::bad(of("K"), "a multiple of 16", k));
        }
        let by_bytes = [Way::Bytes, Way::Units].contains(&way);
        if by_bytes && k > MOST_COLUMNS {
            return Err(Error::bad(of("K"), format!("at most {MOST_COLUMNS} by {way:?}"), k));
        }
        if !any || !(1..=way.most_rows()).contains(&rows) {
            return Err(Error::bad(of("R"), format!("1 to {}", way.most_rows()), rows));
        }
        let most = way.most_kept();
        if rows * k > most {
            let expected = format!("{most} elements of all rows at most, by {way:?}");
            return Err(Error::bad(of("x"), expected, rows * k));
        }
        let runs = way.source().runs_on(&device.facts().arch);
        if way.is_of_halves() && !(by_mma && runs) {
            let got = format!("{dtype} on {}", device.facts().arch);
            return Err(Error::bad(of("tensor cores"), "f16 or bf16, on sm_80 or later", got));
        }
        let has_few = [Way::Naive, Way::Warp].contains(&way);
        if gated && !way.is_of_halves() || has_few && (scale.is_some() || !parts.is_empty()) {
            return Err(Error::bad(
                of("way"),
                "one that has int8, parts and gates",
                format!("{way:?}"),
            ));
        }
        if (by_bytes || way == Way::Dots) && scale.is_none() {
            return Err(Error::bad(of("W"), format!("int8 by {way:?}"), dtype));
        }
        let kept = Self::kept_by_split(norm, k) * dtype.size();
        let fits = match way {
            _ if by_bytes => Self::fits_split(device, kept),
            _ => rows <= 8 && rows * k <= MOST_NORMED,
        };
        if norm.is_some() && !(way.norms() && fits) {
            let expected = format!(
                "up to 8 rows of {MOST_NORMED} elements together, by {:?} or {:?}",
                Way::Persistent,
                Way::Columns
            );
            return Err(Error::bad(
                of("rows to norm"),
                expected,
                format!("{rows} of {k} by {way:?}"),
            ));
        }
        if let Some(norm) = norm.filter(|norm| !(norm.eps >= 0.0 && norm.eps.is_finite())) {
            return Err(Error::bad(of("eps"), "a finite number, 0 or above", norm.eps));
        }
        if let Some(Heads { width, .. }) = norm.and_then(|norm| norm.heads)
            && !(width.is_multiple_of(16) && (16..=512).contains(&width) && k.is_multiple_of(width))
        {
            let expected = format!("a divisor of {k}, a multiple of 16 up to 512");
            return Err(Error::bad(of("width of a head"), expected, width));
        }
        if let Some(GateColumns { heads, cap, .. }) = gates {
            let columns = parts.get(3).map_or(0, |begin| n.saturating_sub(*begin));
            if !way.has_gates() || gated || heads == 0 || columns < 2 * heads {
                let expected = "two columns a head in the fifth part of y, by Persistent, Split, Columns or Wgmma, not gated";
                return Err(Error::bad(of("gates"), expected, format!("{heads} heads by {way:?}")));
            }
            if !(cap > 0.0 && cap.is_finite()) {
                return Err(Error::bad(of("cap"), "a finite number above 0", cap));
            }
        }
        const MOST: usize = 1 << 30;
        if !(1..=MOST).contains(&n) || k > MOST {
            return Err(Error::bad(of("sizes"), format!("1 to {MOST}"), n.max(k)));
        }
        let ascends = parts.is_sorted_by(|a, b| a < b) && parts.iter().all(|p| (1..n).contains(p));
        if parts.len() > 4 || !ascends {
            let expected = format!("at most four columns in their order, from 1 to {}", n - 1);
            return Err(Error::bad(of("parts"), expected, format!("{parts:?}")));
        }
        let of_weight = if gated { 2 * n } else { n };
        for (name, slot, length) in [
            ("x", Some(x), rows * k),
            ("W", Some(weight), of_weight * k),
            ("scale", scale, of_weight),
            ("norm", norm.map(|norm| norm.weight), k),
            ("ogate", norm.and_then(|norm| norm.heads).map(|heads| heads.ogate), rows * k),
            ("bias", gates.map(|gates| gates.bias), 2 * gates.map_or(0, |gates| gates.heads)),
            ("gates", gates.map(|gates| gates.to), 2 * rows * gates.map_or(0, |gates| gates.heads)),
            ("residual", added, rows * n),
            ("y", y, rows * n),
        ] {
            if let Some(slot) = slot.filter(|slot| slot.len() != length) {
                return Err(Error::bad(of(name), format!("{length} elements"), slot.len()));
            }
        }
        if added.is_some() && !parts.is_empty() {
            return Err(Error::bad(of("residual"), "none, where y has parts", "one"));
        }
        let size = if scale.is_some() { 1 } else { dtype.size() };
        let ogate = norm.and_then(|norm| norm.heads).map_or(x, |heads| heads.ogate);
        let norm = norm.map_or(x, |norm| norm.weight);
        let same = dtype.size();
        for (name, slot, size) in
            [("x", x, same), ("W", weight, size), ("norm", norm, same), ("ogate", ogate, same)]
        {
            let pack = 16 / size;
            if !slot.start().is_multiple_of(pack) {
                let what = format!("first element of {name} of {NAME}");
                return Err(Error::bad(what, format!("a multiple of {pack}"), slot.start()));
            }
        }
        Ok(way)
    }
}
