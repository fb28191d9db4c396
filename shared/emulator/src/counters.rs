//! What a kernel asks of the memory system, counted by instruction.
//!
//! Threads run one after the other here, so the lanes of one warp-wide access come one by one. The
//! n-th time that a lane comes by an instruction since the block's last barrier belongs to the n-th
//! time of its neighbours. When all have met, each access of a warp is complete and is counted as
//! the hardware does it: a request, the 32-byte sectors that it touches, and in shared memory the
//! wavefronts, that is, how often a bank has to be asked.

use rustc_hash::FxHashMap as HashMap;
use std::ops::Range;

use crate::access::{How, Kind, Space};
use crate::warp::{Collective, LANES};

const SECTOR: usize = 32;

/// Sectors that lie in a range of addresses, whole or in part.
pub(crate) fn sectors_of(range: Range<usize>) -> usize {
    if range.is_empty() { 0 } else { range.end.div_ceil(SECTOR) - range.start / SECTOR }
}

const BANKS: usize = 32;
const WORD: usize = 4;
/// Accesses of one warp by one instruction between two barriers that are kept apart; beyond, they
/// are left out and the profile says so.
const KEPT: usize = 1 << 16;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Loads from device memory.
    GlobalLoad,
    /// Stores to device memory.
    GlobalStore,
    /// Atomics on device memory.
    GlobalAtomic,
    /// Loads from shared memory.
    SharedLoad,
    /// Stores to shared memory.
    SharedStore,
    /// Atomics on shared memory.
    SharedAtomic,
    /// Block-wide barriers.
    Barrier,
    /// Products of small matrices: mma.sync, wgmma.
    TensorCore,
    /// Bulk and tensor copies from device memory.
    BulkLoad,
    /// Bulk and tensor copies to device memory.
    BulkStore,
    /// What wgmma reads of shared memory.
    Operands,
}

impl Operation {
    /// In the order in which they are shown.
    pub const ALL: [Self; 11] = [
        Self::GlobalLoad,
        Self::GlobalStore,
        Self::GlobalAtomic,
        Self::BulkLoad,
        Self::BulkStore,
        Self::SharedLoad,
        Self::SharedStore,
        Self::SharedAtomic,
        Self::Operands,
        Self::Barrier,
        Self::TensorCore,
    ];

    /// `global load`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::GlobalLoad => "global load",
            Self::GlobalStore => "global store",
            Self::GlobalAtomic => "global atomic",
            Self::SharedLoad => "shared load",
            Self::SharedStore => "shared store",
            Self::SharedAtomic => "shared atomic",
            Self::Barrier => "barrier",
            Self::TensorCore => "tensor core",
            Self::BulkLoad => "bulk load",
            Self::BulkStore => "bulk store",
            Self::Operands => "wgmma operands",
        }
    }

    /// Whether it is about shared memory.
    pub fn shared(self) -> bool {
        matches!(self, Self::SharedLoad | Self::SharedStore | Self::SharedAtomic | Self::Operands)
    }

    /// Whether it is about device memory.
    pub fn global(self) -> bool {
        let plain = matches!(self, Self::GlobalLoad | Self::GlobalStore | Self::GlobalAtomic);
        plain || matches!(self, Self::BulkLoad | Self::BulkStore)
    }

    /// Whether the async proxy does it.
    pub fn asynchronous(self) -> bool {
        matches!(self, Self::BulkLoad | Self::BulkStore | Self::Operands)
    }

    /// Nsight Compute's names for [`Counts::requests`], and for its sectors or wavefronts.
    pub fn nsight(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::GlobalLoad => (
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
            ),
            Self::GlobalStore => (
                "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
            ),
            Self::SharedLoad => (
                "smsp__sass_inst_executed_op_shared_ld.sum + smsp__sass_inst_executed_op_ldsm.sum",
                "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
            ),
            Self::SharedStore => (
                "smsp__sass_inst_executed_op_shared_st.sum",
                "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
            ),
            Self::BulkLoad => (
                "smsp__sass_inst_executed_op_tma_ld.sum",
                "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
            ),
            Self::BulkStore => (
                "smsp__sass_inst_executed_op_tma_st.sum",
                "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum",
            ),
            Self::Operands => (
                "smsp__sass_inst_executed_op_shared_gmma.sum",
                "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
            ),
            Self::GlobalAtomic | Self::SharedAtomic | Self::Barrier | Self::TensorCore => {
                return None;
            }
        })
    }
}

/// Sums over warp-wide accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Warp-wide accesses; of barriers, warps that came; of tensor cores, instructions of a warp; bulk copies.
    pub requests: u64,
    /// Lanes that took part.
    pub lanes: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
    /// Global: 32-byte sectors touched. Shared: wavefronts.
    pub cost: u64,
    /// The least that `cost` could be for as many different bytes.
    pub ideal: u64,
    /// Shared: the most wavefronts that a single request took (of the same width, 1 is best).
    pub degree: u64,
    /// Tensor cores: multiplications and additions.
    pub flops: u64,
}

impl Counts {
    /// Adds another sum.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.lanes += other.lanes;
        self.bytes += other.bytes;
        self.cost += other.cost;
        self.ideal += other.ideal;
        self.degree = self.degree.max(other.degree);
        self.flops += other.flops;
    }
}

/// One access of a warp, for a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes a lane.
    pub bytes: usize,
    /// Each lane's address, from the start of its array; `None` where a lane took no part.
    pub lanes: [Option<usize>; LANES],
    /// Sectors or wavefronts.
    pub cost: u64,
    /// The least that it could be.
    pub ideal: u64,
}

impl Sample {
    /// What an access costs that a warp makes at these addresses, counted from a multiple of 128 bytes.
    pub fn of(operation: Operation, bytes: usize, lanes: [Option<usize>; LANES]) -> Self {
        let (cost, ideal) = if operation.shared() {
            let there = (0..LANES).filter(|&l| lanes[l].is_some());
            let mask = there.fold(0, |mask, l| mask | 1 << l);
            wavefronts(&lanes.map(Option::unwrap_or_default), mask, bytes)
        } else {
            sectors(lanes.into_iter().flatten(), bytes)
        };
        Self { bytes, lanes, cost, ideal }
    }
}

/// The counts of one place in the source.
#[derive(Clone, Debug)]
pub struct Line {
    /// `file:line:column`.
    pub place: String,
    /// What it does.
    pub operation: Operation,
    /// How much.
    pub counts: Counts,
    /// The worst access seen there.
    pub sample: Option<Sample>,
}

/// What was counted in one launch or several.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// By place and operation, in the order of the source.
    pub lines: Vec<Line>,
    /// Accesses that were left out, because too many came between two barriers.
    pub left_out: u64,
}

impl Profile {
    /// Adds another launch.
    pub fn add(&mut self, other: Self) {
        for line in other.lines {
            let same = |l: &&mut Line| l.place == line.place && l.operation == line.operation;
            match self.lines.iter_mut().find(same) {
                Some(own) => {
                    own.counts.add(&line.counts);
                    if worse(line.sample.as_ref(), own.sample.as_ref()) {
                        own.sample = line.sample;
                    }
                }
                None => self.lines.push(line),
            }
        }
        self.left_out += other.left_out;
        self.sort();
    }

    fn sort(&mut self) {
        let key = |place: &str| {
            let mut parts = place.rsplitn(3, ':');
            let mut number = || parts.next().and_then(|p| p.parse::<u32>().ok()).unwrap_or(0);
            let (column, line) = (number(), number());
            (parts.next().unwrap_or(place).to_owned(), line, column)
        };
        self.lines.sort_by_cached_key(|l| (key(&l.place), l.operation));
    }

    /// The sum over all places that do this.
    pub fn total(&self, operation: Operation) -> Counts {
        let mut sum = Counts::default();
        self.lines.iter().filter(|l| l.operation == operation).for_each(|l| sum.add(&l.counts));
        sum
    }
}

fn worse(new: Option<&Sample>, old: Option<&Sample>) -> bool {
    match (new, old) {
        (Some(new), Some(old)) => new.cost * old.ideal > old.cost * new.ideal,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// One access of a warp, as its lanes come by.
#[derive(Clone)]
struct Instance {
    lanes: u32,
    addresses: [usize; LANES],
}

/// The accesses of one warp by one instruction that are not complete yet.
#[derive(Default)]
struct Open {
    seen: [u32; LANES],
    instances: Vec<Instance>,
}

/// Accesses of one block since its last barrier.
pub(crate) struct Pending {
    warps: usize,
    /// By place, then warp.
    open: Vec<Open>,
    /// What the instruction of each place does, and bytes a lane.
    what: Vec<Option<(Operation, usize)>>,
    touched: Vec<u32>,
    left_out: u64,
}

impl Pending {
    pub(crate) fn new(threads: usize) -> Self {
        let warps = threads.div_ceil(LANES);
        Self { warps, open: Vec::new(), what: Vec::new(), touched: Vec::new(), left_out: 0 }
    }

    #[inline(always)]
    pub(crate) fn record(
        &mut self,
        thread: u32,
        place: u16,
        address: usize,
        (kind, how, space): (Kind, How, Space),
        bytes: usize,
    ) {
        // An asynchronous copy is one instruction, a load. What it stores has the load's place.
        if kind == Kind::AsyncWrite {
            return;
        }
        let (warp, lane) = (thread as usize / LANES, thread as usize % LANES);
        let index = usize::from(place) * self.warps + warp;
        if index >= self.open.len() {
            self.open.resize_with(index + 1, Open::default);
            self.what.resize(usize::from(place) + 1, None);
        }
        let open = &mut self.open[index];
        if open.instances.is_empty() {
            self.touched.push(index as u32);
            self.what[usize::from(place)] = Some((operation(kind, how, space), bytes));
        }
        let turn = open.seen[lane] as usize;
        open.seen[lane] += 1;
        if turn >= open.instances.len() {
            if turn >= KEPT {
                self.left_out += 1;
                return;
            }
            open.instances.push(Instance { lanes: 0, addresses: [0; LANES] });
        }
        let instance = &mut open.instances[turn];
        instance.lanes |= 1 << lane;
        instance.addresses[lane] = address;
    }

    /// All lanes have come: counts what is pending. `base` gives the start of an address's array.
    pub(crate) fn flush(&mut self, into: &mut Counters, base: impl Fn(usize) -> usize) {
        for index in self.touched.drain(..) {
            let place = (index as usize / self.warps) as u16;
            let Some((operation, bytes)) = self.what[usize::from(place)] else { continue };
            let open = &mut self.open[index as usize];
            let line = into.lines.entry((place, operation)).or_default();
            for instance in open.instances.drain(..) {
                let lanes = || {
                    let present = (0..LANES).filter(|l| instance.lanes >> l & 1 == 1);
                    present.map(|l| instance.addresses[l])
                };
                let (cost, ideal) = if operation.shared() {
                    wavefronts(&instance.addresses, instance.lanes, bytes)
                } else {
                    sectors(lanes(), bytes)
                };
                let count = u64::from(instance.lanes.count_ones());
                line.counts.add(&Counts {
                    requests: 1,
                    lanes: count,
                    bytes: count * bytes as u64,
                    cost,
                    ideal,
                    degree: if operation.shared() { cost.div_ceil(ideal) } else { 0 },
                    flops: 0,
                });
                let worst = line.sample.as_ref().map_or((0, 1), |s| (s.cost, s.ideal));
                if cost * worst.1 > worst.0 * ideal {
                    let start = lanes().min().map_or(0, &base);
                    line.sample = Some(Sample {
                        bytes,
                        lanes: std::array::from_fn(|l| {
                            (instance.lanes >> l & 1 == 1)
                                .then(|| instance.addresses[l].wrapping_sub(start))
                        }),
                        cost,
                        ideal,
                    });
                }
            }
            open.seen = [0; LANES];
        }
        into.left_out += std::mem::take(&mut self.left_out);
    }
}

pub(crate) fn operation(kind: Kind, how: How, space: Space) -> Operation {
    let shared = matches!(space, Space::Static | Space::Dynamic);
    match (shared, kind) {
        (true, _) if how.updates => Operation::SharedAtomic,
        (false, _) if how.updates => Operation::GlobalAtomic,
        (true, k) if k.writes() => Operation::SharedStore,
        (false, k) if k.writes() => Operation::GlobalStore,
        (true, _) => Operation::SharedLoad,
        (false, _) => Operation::GlobalLoad,
    }
}

/// Different 32-byte sectors, and the fewest that as many different bytes could lie in.
fn sectors(lanes: impl Iterator<Item = usize>, bytes: usize) -> (u64, u64) {
    let mut starts = [0usize; LANES];
    let mut count = 0;
    for address in lanes {
        starts[count] = address;
        count += 1;
    }
    let starts = &mut starts[..count];
    if !starts.is_sorted() {
        starts.sort_unstable();
    }
    let (mut touched, mut different) = (0, 0);
    let (mut next_sector, mut next_byte) = (0, 0);
    for &start in starts.iter() {
        let end = start + bytes;
        different += end.saturating_sub(start.max(next_byte));
        next_byte = next_byte.max(end);
        let (first, last) = ((start / SECTOR).max(next_sector), (end - 1) / SECTOR + 1);
        touched += last.saturating_sub(first);
        next_sector = next_sector.max(last);
    }
    (touched as u64, different.div_ceil(SECTOR) as u64)
}

/// How often the busiest bank is asked, summed over the passes that wide accesses are made in, and
/// the fewest that the bytes could do with.
///
/// A pass serves 128 bytes: half a warp at 8 bytes a lane, a quarter at 16. Where each two
/// neighbours ask for the same, or each two lanes that are two apart, they count as one, and a pass
/// serves twice the lanes. (Measured on an H200: `shared_double_*` and `shared_float4_*` of the
/// corpus.)
fn wavefronts(addresses: &[usize; LANES], lanes: u32, bytes: usize) -> (u64, u64) {
    let lanes_a_pass = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let (mut cost, mut ideal) = (0, 0);
    for first in (0..LANES).step_by((2 * lanes_a_pass).min(LANES)) {
        let group = first..(first + 2 * lanes_a_pass).min(LANES);
        let there = |l: usize| lanes >> l & 1 == 1;
        let twins = [1, 2].into_iter().any(|apart| {
            let same = |l: usize| {
                let twin = l ^ apart;
                !there(l) || !there(twin) || addresses[l] == addresses[twin]
            };
            group.clone().all(same)
        });
        let step = if twins { group.len() } else { lanes_a_pass };
        for pass in group.clone().step_by(step) {
            let asked = (pass..pass + step).filter(|&l| there(l)).map(|l| addresses[l]);
            let (c, i) = banks(asked, bytes);
            (cost, ideal) = (cost + c, ideal + i);
        }
    }
    (cost, ideal)
}

/// One pass: different words asked of the busiest bank, and of a bank if they were spread evenly.
fn banks(addresses: impl Iterator<Item = usize>, bytes: usize) -> (u64, u64) {
    let mut words = [usize::MAX; 2 * BANKS];
    let mut count = 0;
    for address in addresses {
        // What comes past the room is a misaligned access, which a GPU refuses.
        for word in (address / WORD..=(address + bytes - 1) / WORD).take(words.len() - count) {
            words[count] = word;
            count += 1;
        }
    }
    let words = &mut words[..count];
    if !words.is_sorted() {
        words.sort_unstable();
    }
    let (mut asked, mut different, mut last) = ([0u8; BANKS], 0usize, usize::MAX);
    for &word in words.iter() {
        if word != last {
            asked[word % BANKS] += 1;
            different += 1;
        }
        last = word;
    }
    (u64::from(asked.into_iter().max().unwrap_or(0)), different.div_ceil(BANKS) as u64)
}

#[derive(Default)]
struct LineCounts {
    counts: Counts,
    sample: Option<Sample>,
}

/// The counts of a launch, by place and operation.
#[derive(Default)]
pub(crate) struct Counters {
    lines: HashMap<(u16, Operation), LineCounts>,
    /// Threads that came, by place.
    barriers: Vec<u64>,
    left_out: u64,
}

impl Counters {
    /// A thread has come to a barrier.
    #[inline]
    pub(crate) fn barrier(&mut self, place: u16) {
        let place = usize::from(place);
        if place >= self.barriers.len() {
            self.barriers.resize(place + 1, 0);
        }
        self.barriers[place] += 1;
    }

    /// A warp has come to a collective on matrices. What ldmatrix reads is counted as it is read.
    pub(crate) fn matrices(&mut self, place: u16, op: Collective) {
        self.products(place, crate::matrix::flops(op));
    }

    /// An instruction of a warp on the tensor cores.
    pub(crate) fn products(&mut self, place: u16, flops: u64) {
        if flops > 0 {
            let line = self.lines.entry((place, Operation::TensorCore)).or_default();
            line.counts.add(&Counts {
                requests: 1,
                lanes: LANES as u64,
                flops,
                ..Counts::default()
            });
        }
    }

    /// A warp's part of a wgmma of a warpgroup, whose operands in shared memory have so many bytes: they lie
    /// so that no bank is asked twice.
    pub(crate) fn operands(&mut self, place: u16, first_warp: bool, bytes: usize) {
        let line = self.lines.entry((place, Operation::Operands)).or_default();
        let bytes = if first_warp { bytes } else { 0 };
        let cost = bytes.div_ceil(BANKS * WORD) as u64;
        line.counts.add(&Counts {
            requests: 1,
            lanes: LANES as u64,
            bytes: bytes as u64,
            cost,
            ideal: cost,
            degree: 1,
            flops: 0,
        });
    }

    /// A bulk or tensor copy, of so many sectors and bytes of device memory.
    pub(crate) fn bulk(&mut self, place: u16, stores: bool, sectors: usize, bytes: usize) {
        let operation = if stores { Operation::BulkStore } else { Operation::BulkLoad };
        self.lines.entry((place, operation)).or_default().counts.add(&Counts {
            requests: 1,
            lanes: 1,
            bytes: bytes as u64,
            cost: sectors as u64,
            ideal: bytes.div_ceil(SECTOR) as u64,
            ..Counts::default()
        });
    }

    pub(crate) fn profile(mut self, place: impl Fn(u16) -> String) -> Profile {
        for (number, lanes) in self.barriers.drain(..).enumerate().filter(|b| b.1 > 0) {
            let requests = lanes.div_ceil(LANES as u64);
            let line = self.lines.entry((number as u16, Operation::Barrier)).or_default();
            line.counts = Counts { requests, lanes, ..Counts::default() };
        }
        let mut profile = Profile { left_out: self.left_out, ..Profile::default() };
        // Several instructions may come from the same place: they are added up.
        for ((number, operation), line) in self.lines {
            let one =
                Line { place: place(number), operation, counts: line.counts, sample: line.sample };
            profile.add(Profile { lines: vec![one], left_out: 0 });
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warp(address: impl Fn(usize) -> usize) -> [usize; LANES] {
        std::array::from_fn(address)
    }

    #[test]
    fn sectors_of_strided_and_misaligned_loads() {
        let count = |f: &dyn Fn(usize) -> usize, bytes| sectors(warp(f).into_iter(), bytes);
        assert_eq!(count(&|l| 4 * l, 4), (4, 4));
        assert_eq!(count(&|l| 4 + 4 * l, 4), (5, 4), "off by one element");
        assert_eq!(count(&|l| 8 * l, 4), (8, 4), "every other element");
        assert_eq!(count(&|l| 128 * l, 4), (32, 4), "a column");
        assert_eq!(count(&|_| 64, 4), (1, 1), "a broadcast");
        assert_eq!(count(&|l| 16 * l, 16), (16, 16));
        assert_eq!(count(&|l| 2 * (31 - l), 2), (2, 2), "backwards");
    }

    #[test]
    fn wavefronts_of_bank_conflicts() {
        let count = |f: &dyn Fn(usize) -> usize, bytes| wavefronts(&warp(f), u32::MAX, bytes);
        assert_eq!(count(&|l| 4 * l, 4), (1, 1));
        assert_eq!(count(&|l| 8 * l, 4), (2, 1), "two-way");
        assert_eq!(count(&|l| 128 * l, 4), (32, 1), "a column of 32 floats");
        assert_eq!(count(&|l| 132 * l, 4), (1, 1), "a padded column");
        assert_eq!(count(&|_| 12, 4), (1, 1), "a broadcast");
        assert_eq!(count(&|l| 2 * l, 2), (1, 1), "halves share a word");
        assert_eq!(count(&|l| 16 * l, 16), (4, 4));
        assert_eq!(count(&|l| 8 * l, 8), (2, 2));
        assert_eq!(wavefronts(&warp(|l| 4 * l), 0xFF, 4), (1, 1), "few lanes");
        // As an H200 counts them.
        assert_eq!(count(&|_| 0, 8), (1, 1), "one double for all");
        assert_eq!(count(&|l| l / 16 * 32, 8), (1, 1), "one for each half");
        assert_eq!(count(&|l| l % 16 * 8, 8), (2, 2), "the second half as the first");
        assert_eq!(count(&|_| 0, 16), (2, 2), "one float4 for all");
        assert_eq!(count(&|l| l / 8 * 64, 16), (2, 2), "one for each quarter");
        assert_eq!(count(&|l| (l / 4 * 2 + l % 2) * 16, 16), (2, 2), "lanes two apart the same");
        assert_eq!(count(&|l| (l / 8 * 2 + l % 2) * 16, 16), (2, 2), "two in turns");
        assert_eq!(count(&|l| l * 64 % 1024, 16), (16, 4), "64 bytes apart");
    }
}
