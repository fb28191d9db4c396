//! Shared memory of a block: where it lies, and what is remembered of it.

use rustc_hash::FxHashMap as HashMap;
use std::sync::Arc;

use crate::access::Space;
use crate::names::StaticByte;
use crate::shadow::{Cell, GRANULE, Granule};

/// A range of addresses: where it begins, and bytes.
pub(crate) type Extent = (usize, usize);

/// Alignment of dynamic shared memory, enough for any vector or bulk copy.
pub(crate) const DYNAMIC_ALIGNMENT: usize = 1024;
/// Bytes around dynamic shared memory that are watched.
pub(crate) const DYNAMIC_MARGIN: usize = 4096;

/// A watched granule, the memory that it is of, and that memory's generation.
pub(crate) type Located = (*mut Granule, Space, u32);

/// What is remembered of a block's shared memory.
pub(crate) struct SharedShadow {
    /// Static shared memory.
    pub(crate) fixed: Extent,
    pub(crate) dynamic: Extent,
    static_bytes: Arc<[StaticByte]>,
    fixed_granules: Vec<Granule>,
    dynamic_granules: Vec<Granule>,
    /// Its own: it lives as long as a block.
    pub(crate) generation: u32,
    /// The last access of each thread of another block, and where: its block and thread, or those of an
    /// agent.
    pub(crate) visits: HashMap<(u32, u32), (Cell, usize)>,
    /// The last arrival of each at an mbarrier of this block: where, and in which phase.
    pub(crate) arrivals: HashMap<(u32, u32), (usize, u32)>,
}

impl SharedShadow {
    pub(crate) fn new(fixed: Extent, dynamic: Extent, static_bytes: Arc<[StaticByte]>) -> Self {
        // One granule more, for what a wide access at the end reaches.
        let granules = |bytes: usize| vec![Granule::EMPTY; bytes.div_ceil(GRANULE) + 4];
        Self {
            fixed,
            dynamic,
            static_bytes,
            fixed_granules: granules(fixed.1),
            dynamic_granules: granules(dynamic.1 + 2 * DYNAMIC_MARGIN),
            generation: 0,
            visits: HashMap::default(),
            arrivals: HashMap::default(),
        }
    }

    /// Somebody of another block has accessed this.
    pub(crate) fn visited(&mut self, by: Cell, address: usize) {
        self.visits.insert((by.block(), by.thread()), (by, address));
    }

    /// A thread of another block has arrived at an mbarrier of this one, in that phase.
    pub(crate) fn arrived(&mut self, by: Cell, address: usize, phase: u32) {
        self.arrivals.insert((by.block(), by.thread()), (address, phase));
    }

    /// Somebody of this block has seen that phases below this one are complete: then the arrivals that they are made of
    /// have come, whatever else is known of them.
    pub(crate) fn saw(&mut self, address: usize, phase: u32) {
        let arrivals = &self.arrivals;
        let is_seen = |by: &(u32, u32), at: usize| {
            at == address && arrivals.get(by).is_some_and(|&(a, p)| a == address && p < phase)
        };
        self.visits.retain(|by, (_, at)| !is_seen(by, *at));
    }

    /// A byte of static shared memory, by its offset there.
    #[inline(always)]
    pub(crate) fn static_byte(&self, offset: usize) -> StaticByte {
        self.static_bytes.get(offset).copied().unwrap_or_default()
    }

    /// The granule of an address in static shared memory.
    #[inline(always)]
    pub(crate) fn locate_fixed(&mut self, address: usize) -> Option<Located> {
        let offset = address.wrapping_sub(self.fixed.0);
        (offset < self.fixed.1).then(|| {
            let granule = &raw mut self.fixed_granules[offset / GRANULE];
            (granule, Space::Static, self.generation)
        })
    }

    /// The granule of an address in dynamic shared memory, or a little around it: also where it has no bytes, since a
    /// kernel may use what its launch has forgotten.
    #[inline(always)]
    pub(crate) fn locate_dynamic(&mut self, address: usize) -> Option<Located> {
        let start = self.dynamic.0 - DYNAMIC_MARGIN;
        let offset = address.wrapping_sub(start);
        (offset < self.dynamic.1 + 2 * DYNAMIC_MARGIN).then(|| {
            let granule = &raw mut self.dynamic_granules[offset / GRANULE];
            (granule, Space::Dynamic, self.generation)
        })
    }
}
