//! `wgmma.mma_async`: four warps multiply tiles of shared memory, or A of their registers, while they go
//! on. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//!
//! Each lane asks for itself; a product is made when all 128 lanes have asked for it and one of the warps
//! waits for it (or earlier: see `Landing`). A warp has 16 rows of the accumulators: lane `4 g + t` has,
//! of each 8 columns, rows g and g + 8 at columns 2 t and 2 t + 1.

use std::collections::VecDeque;

use half::{bf16, f16};

use crate::abi;
use crate::completion::descriptor::{CHUNK, Descriptor};
use crate::matrix::widen;
use crate::stack::STACK_BYTES;
use crate::warp::LANES;

/// Warps of a warpgroup.
pub(crate) const WARPS: usize = 4;
/// Rows of a warp.
const ROWS: usize = 16;
/// Bytes of a register.
const WORD: usize = 4;
/// Bytes of k in one product.
const DEPTH: usize = 32;

/// The type of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
}

impl Type {
    fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 => 4,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 1,
        }
    }

    /// The type that may stand with this one, if it is another.
    fn other(self) -> Option<Self> {
        match self {
            Self::E4m3 => Some(Self::E5m2),
            Self::E5m2 => Some(Self::E4m3),
            Self::S8 => Some(Self::U8),
            Self::U8 => Some(Self::S8),
            Self::F16 | Self::Bf16 | Self::Tf32 => None,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Self::S8 | Self::U8)
    }

    /// Whether its sums may be `f16`.
    fn has_half_sums(self) -> bool {
        matches!(self, Self::F16 | Self::E4m3 | Self::E5m2)
    }
}

/// What all lanes of a warpgroup must say alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) columns: usize,
    /// The type of A, which B has as well, but for `of_b`.
    pub(crate) of: Type,
    pub(crate) of_b: Type,
    pub(crate) adds: bool,
    pub(crate) a_in_registers: bool,
    pub(crate) a_transposed: bool,
    pub(crate) b_transposed: bool,
    /// The accumulators are `f16`.
    pub(crate) half_sums: bool,
}

impl Shape {
    /// What an instruction says of itself; the error says what is wrong with it.
    pub(crate) fn decode(shape: u32, flags: u32, a_in_registers: bool) -> Result<Self, String> {
        let columns = (shape & 0xFFFF) as usize;
        let of = match shape & !0xFFFF {
            abi::WGMMA_F16 => Type::F16,
            abi::WGMMA_BF16 => Type::Bf16,
            abi::WGMMA_TF32 => Type::Tf32,
            abi::WGMMA_E4M3 => Type::E4m3,
            abi::WGMMA_E5M2 => Type::E5m2,
            abi::WGMMA_S8 => Type::S8,
            abi::WGMMA_U8 => Type::U8,
            other => return Err(format!("expected a type that wgmma has, got {other:#x}")),
        };
        if !(8..=256).contains(&columns) || !columns.is_multiple_of(8) {
            return Err(format!("expected 8 to 256 columns, a multiple of 8, got {columns}"));
        }
        let flag = |flag: u32| flags & flag != 0;
        let of_b = if flag(abi::WGMMA_B_OTHER) { of.other() } else { Some(of) };
        let own = Self {
            columns,
            of,
            of_b: of_b.ok_or("expected one type of A and B where they have 2 or 4 bytes")?,
            adds: flag(abi::WGMMA_ADDS),
            a_in_registers,
            a_transposed: flag(abi::WGMMA_A_TRANSPOSED),
            b_transposed: flag(abi::WGMMA_B_TRANSPOSED),
            half_sums: flag(abi::WGMMA_HALF_SUMS),
        };
        if own.half_sums && !of.has_half_sums() {
            return Err("expected f16 or 8-bit reals where the accumulators are f16".into());
        }
        if of.bytes() != 2 && (own.a_transposed || own.b_transposed) {
            return Err("expected halves: elements of 1 or 4 bytes are not transposed".into());
        }
        Ok(own)
    }

    /// Elements of k in one product.
    fn depth(&self) -> usize {
        DEPTH / self.of.bytes()
    }

    /// Elements of a chunk.
    fn chunk(&self) -> usize {
        CHUNK / self.of.bytes()
    }

    /// Multiplications and additions of one warp.
    pub(crate) fn flops(&self) -> u64 {
        (2 * ROWS * self.columns * self.depth()) as u64
    }

    /// Accumulators of a lane, in bytes.
    pub(crate) fn accumulators(&self) -> usize {
        self.columns / 2 * if self.half_sums { 2 } else { 4 }
    }
}

/// One lane's part of one product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) shape: Shape,
    /// Address of its accumulators.
    pub(crate) to: usize,
    pub(crate) a: u64,
    pub(crate) b: u64,
    /// Address of its four words of A, if A is in registers.
    pub(crate) registers: usize,
    /// A compiler has chosen its registers.
    pub(crate) compiled: bool,
    /// Return address of the call.
    pub(crate) pc: usize,
}

impl Part {
    /// Bytes of shared memory that the warpgroup's operands have.
    pub(crate) fn bytes(&self) -> usize {
        let rows = if self.shape.a_in_registers { 0 } else { WARPS * ROWS };
        (rows + self.shape.columns) * DEPTH
    }

    /// The lane's registers: where, and how many bytes; the accumulators first.
    fn own(&self) -> [(usize, usize); 2] {
        let a = if self.shape.a_in_registers { 16 } else { 0 };
        [(self.to, self.shape.accumulators()), (self.registers, a)]
    }

    /// Those in which the thread's own use must be fenced. To accumulators that nobody has set a compiler gives any value it
    /// likes, in front of the product or of its fence; one that sets them does not read it, and the assembler drops it.
    fn fenced(&self) -> [(usize, usize); 2] {
        let [accumulators, a] = self.own();
        let is_dropped = self.compiled && !self.shape.adds;
        [if is_dropped { (accumulators.0, 0) } else { accumulators }, a]
    }

    /// Whether one of its accumulators is a pattern, and so what nobody set.
    pub(crate) fn adds_to(&self, is_pattern: impl Fn(&[u8]) -> bool) -> bool {
        let words = self.to as *const [u8; WORD];
        // SAFETY: the lane's own accumulators; `ask`'s caller has them on its stack.
        (0..self.shape.accumulators() / WORD).any(|n| is_pattern(unsafe { &*words.add(n) }))
    }

    /// Whether another lane's is of the same product.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let own_a = |p: &Self| if p.shape.a_in_registers { 0 } else { p.a };
        self.shape == other.shape && self.b == other.b && own_a(self) == own_a(other)
    }
}

/// Chunks of one operand: those that hold `rows` rows from `first` on.
fn chunks(
    bits: u64,
    transposed: bool,
    shape: &Shape,
    first: usize,
    rows: usize,
) -> impl Iterator<Item = usize> {
    let descriptor = Descriptor::decode(bits);
    let (outer, inner) = if transposed {
        (0..shape.depth(), first / shape.chunk()..(first + rows) / shape.chunk())
    } else {
        (first..first + rows, 0..DEPTH / CHUNK)
    };
    outer.flat_map(move |o| inner.clone().map(move |i| (o, i))).map(move |(o, i)| {
        if transposed { descriptor.along_rows(o, i) } else { descriptor.along_k(o, i) }
    })
}

/// Where in the window warp `warp` of a group reads: its rows of A, and a quarter of B, so that each
/// chunk is named once or, of a B of few columns, more than once.
pub(crate) fn reads(part: &Part, warp: usize) -> Vec<usize> {
    let shape = &part.shape;
    let mut all = Vec::new();
    if !shape.a_in_registers {
        all.extend(chunks(part.a, shape.a_transposed, shape, warp * ROWS, ROWS));
    }
    let eighths = shape.columns / 8;
    let (from, to) = (eighths * warp / WARPS, eighths * (warp + 1) / WARPS);
    all.extend(chunks(part.b, shape.b_transposed, shape, 8 * from, 8 * (to - from)));
    all
}

/// The elements of `rows` rows by the operand's `k`, from where `at` has its chunks.
fn operand(
    bits: u64,
    transposed: bool,
    of: Type,
    shape: &Shape,
    first: usize,
    rows: usize,
    at: &impl Fn(usize) -> usize,
) -> Vec<f32> {
    let (depth, each) = (shape.depth(), shape.chunk());
    let mut all = vec![0f32; rows * depth];
    let inner = if transposed { rows / each } else { DEPTH / CHUNK };
    for (n, place) in chunks(bits, transposed, shape, first, rows).enumerate() {
        let (o, i) = (n / inner, n % inner);
        // SAFETY: `run`'s promise: chunks lie in shared memory.
        let bytes = unsafe { *(at(place) as *const [u8; CHUNK]) };
        for e in 0..each {
            let (row, k) = if transposed { (i * each + e, o) } else { (o, i * each + e) };
            all[row * depth + k] = element(of, &bytes, e);
        }
    }
    all
}

fn element(of: Type, bytes: &[u8; CHUNK], e: usize) -> f32 {
    let half = || u16::from_ne_bytes([bytes[2 * e], bytes[2 * e + 1]]);
    match of {
        Type::F16 => widen(half()),
        Type::Bf16 => bf16::from_bits(half()).to_f32(),
        Type::Tf32 => {
            let word = std::array::from_fn(|b| bytes[4 * e + b]);
            f32::from_bits(u32::from_ne_bytes(word) & 0xFFFF_E000)
        }
        Type::E4m3 => widen_e4m3(bytes[e]),
        // The upper half of an f16.
        Type::E5m2 => widen(u16::from(bytes[e]) << 8),
        Type::S8 => f32::from(bytes[e].cast_signed()),
        Type::U8 => f32::from(bytes[e]),
    }
}

/// A sign, four bits of exponent and three of fraction; all ones are no number, and nothing is infinite.
fn widen_e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// A of the registers of a warp's lanes, as mma.sync spreads it.
fn of_registers(parts: &[Part; LANES]) -> Vec<f32> {
    let shape = &parts[0].shape;
    let (depth, each) = (shape.depth(), WORD / shape.of.bytes());
    let mut all = vec![0f32; ROWS * depth];
    for (lane, part) in parts.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        // SAFETY: `run`'s promise: the lane's own four words.
        let words = unsafe { *(part.registers as *const [u32; 4]) };
        for (register, word) in words.iter().enumerate() {
            let mut bytes = [0; CHUNK];
            bytes[..4].copy_from_slice(&word.to_ne_bytes());
            for e in 0..each {
                let k = register / 2 * depth / 2 + each * t + e;
                all[(g + register % 2 * 8) * depth + k] = element(shape.of, &bytes, e);
            }
        }
    }
    all
}

/// A of some rows by B of some columns, each in rows of `depth` numbers.
fn multiply(a: &[f32], b: &[f32], depth: usize) -> Vec<f64> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { multiply_avx2(a, b, depth) };
    }
    multiply_by_transposed(a, b, depth)
}

/// Four columns at a time; the order of each sum is the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2(a: &[f32], b: &[f32], depth: usize) -> Vec<f64> {
    multiply_by_transposed(a, b, depth)
}

#[inline(always)]
fn multiply_by_transposed(a: &[f32], b: &[f32], depth: usize) -> Vec<f64> {
    let columns = b.len() / depth;
    // A row of B after the other, as the columns of A are taken.
    let mut rows = vec![0f64; b.len()];
    for (column, b) in b.chunks_exact(depth).enumerate() {
        b.iter().enumerate().for_each(|(k, &b)| rows[k * columns + column] = f64::from(b));
    }
    // What is added to -0 stays what it is, -0 too.
    let mut products = vec![-0f64; a.len() / depth * columns];
    for (sums, a) in products.chunks_exact_mut(columns).zip(a.chunks_exact(depth)) {
        for (&a, b) in a.iter().zip(rows.chunks_exact(columns)) {
            let a = f64::from(a);
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
    products
}

/// Makes one warp's rows of a product. `at` says where the window's chunks are.
///
/// # Safety
/// Each lane's accumulators and registers are its own, and nobody else uses them meanwhile; `at` gives addresses of
/// shared memory.
pub(crate) unsafe fn run(parts: &[Part; LANES], warp: usize, at: impl Fn(usize) -> usize) {
    let part = &parts[0];
    let shape = &part.shape;
    let depth = shape.depth();
    let a = if shape.a_in_registers {
        of_registers(parts)
    } else {
        operand(part.a, shape.a_transposed, shape.of, shape, warp * ROWS, ROWS, &at)
    };
    let b = operand(part.b, shape.b_transposed, shape.of_b, shape, 0, shape.columns, &at);
    let products = multiply(&a, &b, depth);
    for (lane, part) in parts.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        let to = part.to as *mut f32;
        for i in 0..shape.columns / 2 {
            let (row, column) = (g + i % 4 / 2 * 8, i / 4 * 8 + 2 * t + i % 2);
            let product = products[row * shape.columns + column];
            if shape.half_sums {
                let to = part.to as *mut f16;
                // SAFETY: so many accumulators, of halves, are the lane's own, as this function's caller says.
                unsafe {
                    let before = if shape.adds { (*to.add(i)).to_f64() } else { 0.0 };
                    *to.add(i) = f16::from_f64(before + product);
                }
                continue;
            }
            if shape.of.is_whole() {
                let to = part.to as *mut i32;
                // SAFETY: so many accumulators, of whole numbers, are the lane's own, as this function's caller says. The product is a whole number of at most 22 bits.
                unsafe {
                    let before = if shape.adds { *to.add(i) } else { 0 };
                    *to.add(i) = before.wrapping_add(product as i32);
                }
                continue;
            }
            // SAFETY: the caller's promise: so many accumulators.
            unsafe {
                let before = if shape.adds { f64::from(*to.add(i)) } else { 0.0 };
                *to.add(i) = (before + product) as f32;
            }
        }
    }
}

/// Words of a thread's stack.
#[derive(Debug, Default)]
struct Words {
    /// A bit for each word, by its number modulo [`Words::SPAN`]: a stack is smaller.
    bits: Vec<u64>,
    /// All of them lie here.
    from: usize,
    to: usize,
}

impl Words {
    const SPAN: usize = 2 * STACK_BYTES / WORD;

    fn insert(&mut self, address: usize, len: usize) {
        let (from, to) = (address / WORD, (address + len).div_ceil(WORD));
        if self.bits.is_empty() {
            self.bits = vec![0; Self::SPAN / 64];
        }
        (self.from, self.to) =
            if self.is_empty() { (from, to) } else { (self.from.min(from), self.to.max(to)) };
        (from..to).for_each(|word| self.bits[word % Self::SPAN / 64] |= 1 << (word % 64));
    }

    fn remove(&mut self, address: usize, len: usize) {
        if self.is_empty() {
            return;
        }
        let (from, to) = (address / WORD, (address + len).div_ceil(WORD));
        (from..to).for_each(|word| self.bits[word % Self::SPAN / 64] &= !(1 << (word % 64)));
    }

    fn contains(&self, address: usize) -> bool {
        let word = address / WORD;
        let is_near = address.is_multiple_of(WORD) && (self.from..self.to).contains(&word);
        is_near && self.bits[word % Self::SPAN / 64] >> (word % 64) & 1 == 1
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    fn clear(&mut self) {
        (self.from / 64..self.to.div_ceil(64)).for_each(|n| self.bits[n % (Self::SPAN / 64)] = 0);
        (self.from, self.to) = (0, 0);
    }
}

/// Where the registers of several products lie, all of them.
#[derive(Debug, Default)]
struct Around {
    from: usize,
    to: usize,
}

impl Around {
    fn add(&mut self, own: [(usize, usize); 2]) {
        for (at, bytes) in own.into_iter().filter(|own| own.1 > 0) {
            let nothing = self.from == self.to;
            self.from = if nothing { at } else { self.from.min(at) };
            self.to = self.to.max(at + bytes);
        }
    }

    fn meets(&self, address: usize, len: usize) -> bool {
        meet((self.from, self.to - self.from), (address, len))
    }
}

/// What one thread has asked for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Whether its registers are fenced since it last used them itself.
    pub(crate) fenced: bool,
    /// Its parts of products that are not made yet.
    pub(crate) parts: VecDeque<Part>,
    /// How many were made.
    pub(crate) made: u64,
    /// How many must be made for it to go on.
    pub(crate) awaited: u64,
    /// How many it has closed into groups, group by group, of those that it has not waited for.
    groups: VecDeque<u64>,
    /// Those in the group that is open.
    open: u64,
    /// How many it has waited for.
    done: u64,
    /// Registers of each product that it has not waited for.
    in_flight: VecDeque<[(usize, usize); 2]>,
    /// Of those that it has.
    settled: Vec<[(usize, usize); 2]>,
    /// Around the registers of both.
    around: Around,
    /// Words of its stack that it has used since the last fence.
    used: Words,
    /// A compiler has chosen its registers: see [`Part::compiled`].
    compiled: bool,
}

impl Asked {
    /// For another block; what was allocated is kept.
    pub(crate) fn restart(&mut self) {
        let Self { mut parts, mut groups, mut in_flight, mut settled, mut used, .. } =
            std::mem::take(self);
        parts.clear();
        groups.clear();
        in_flight.clear();
        settled.clear();
        used.clear();
        *self = Self { parts, groups, in_flight, settled, used, ..Self::default() };
    }

    pub(crate) fn ask(&mut self, part: Part) {
        self.compiled |= part.compiled;
        if part.compiled && !part.shape.adds {
            // The next product, which adds to them, finds what this one sets.
            self.forget(part.to, part.shape.accumulators());
        }
        self.around.add(part.own());
        self.in_flight.push_back(part.own());
        self.parts.push_back(part);
        self.open += 1;
    }

    /// What the thread has done with these bytes is no use that a fence must be behind.
    pub(crate) fn forget(&mut self, address: usize, len: usize) {
        self.used.remove(address, len);
    }

    pub(crate) fn commit(&mut self) {
        self.groups.push_back(std::mem::take(&mut self.open));
    }

    /// How many products must be made before all groups but the latest `pending` are complete; `None` if
    /// there is nothing to wait for.
    pub(crate) fn target(&self, pending: usize) -> Option<u64> {
        let groups = self.groups.len().saturating_sub(pending);
        let more: u64 = self.groups.iter().take(groups).sum();
        (more > 0).then_some(self.done + more)
    }

    /// It has waited for them.
    pub(crate) fn waited(&mut self, pending: usize) {
        let groups = self.groups.len().saturating_sub(pending);
        let more: u64 = self.groups.drain(..groups).sum();
        self.done += more;
        for own in self.in_flight.drain(..more as usize) {
            if !self.settled.contains(&own) {
                self.settled.push(own);
            }
        }
    }

    /// Whether there is something that it has not waited for.
    pub(crate) fn leaves(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether nothing is to be known of what it does with its registers.
    pub(crate) fn idle(&self) -> bool {
        self.in_flight.is_empty() && !self.fenced
    }

    /// What it has done with its registers comes before the products that it asks for from now on.
    pub(crate) fn fence(&mut self) {
        self.fenced = true;
        self.used.clear();
    }

    /// The thread itself uses these bytes of its stack. True where they are registers in flight.
    pub(crate) fn touch(&mut self, address: usize, len: usize) -> bool {
        if self.around.meets(address, len) {
            let meets = |own: &&(usize, usize)| meet(**own, (address, len));
            if self.in_flight.iter().flatten().any(|own| meets(&own)) {
                return true;
            }
            // A compiler's use may be of what nobody reads, so all that it uses is kept.
            self.fenced &= self.compiled || !self.settled.iter().flatten().any(|own| meets(&own));
        }
        if self.fenced {
            self.used.insert(address, len);
        }
        false
    }

    /// Whether the thread has used the product's registers since it fenced them.
    pub(crate) fn unfenced(&self, part: &Part) -> bool {
        let words =
            part.fenced().into_iter().flat_map(|(at, bytes)| (at..at + bytes).step_by(WORD));
        !self.fenced || !self.used.is_empty() && words.into_iter().any(|w| self.used.contains(w))
    }

    /// Accumulators in flight that these overlap without being the same.
    pub(crate) fn overlaps(&self, part: &Part) -> bool {
        let [own, _] = part.own();
        self.in_flight.iter().any(|&[other, _]| other != own && meet(other, own))
    }

    /// Whether nothing in flight sets these accumulators.
    pub(crate) fn settled(&self, part: &Part) -> bool {
        let [own, _] = part.own();
        !self.in_flight.iter().any(|&[other, _]| other == own)
    }
}

fn meet(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}
