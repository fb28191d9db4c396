//! Shared memory of a block: where it lies, and what is remembered of it.

use crate::access::Space;
use crate::shadow::{GRANULE, Granule};

/// A range of addresses: where it begins, and bytes.
pub(crate) type Extent = (usize, usize);

/// Bytes around dynamic shared memory that are watched.
pub(crate) const DYNAMIC_MARGIN: usize = 4096;

/// A watched granule, the memory that it is of, and that memory's generation.
pub(crate) type Located = (*mut Granule, Space, u32);

/// What is remembered of a block's shared memory.
pub(crate) struct SharedShadow {
    /// Static shared memory.
    pub(crate) fixed: Extent,
    pub(crate) dynamic: Extent,
    fixed_granules: Vec<Granule>,
    dynamic_granules: Vec<Granule>,
    /// Its own: it lives as long as a block.
    pub(crate) generation: u32,
}

impl SharedShadow {
    pub(crate) fn new(fixed: Extent, dynamic: Extent) -> Self {
        // One granule more, for what a wide access at the end reaches.
        let granules = |bytes: usize| vec![Granule::EMPTY; bytes.div_ceil(GRANULE) + 4];
        Self {
            fixed,
            dynamic,
            fixed_granules: granules(fixed.1),
            dynamic_granules: granules(dynamic.1 + 2 * DYNAMIC_MARGIN),
            generation: 0,
        }
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

    /// The granule of an address in dynamic shared memory, or a little around it.
    #[inline(always)]
    pub(crate) fn locate_dynamic(&mut self, address: usize) -> Option<Located> {
        let start = self.dynamic.0 - DYNAMIC_MARGIN;
        let offset = address.wrapping_sub(start);
        (self.dynamic.1 > 0 && offset < self.dynamic.1 + 2 * DYNAMIC_MARGIN).then(|| {
            let granule = &raw mut self.dynamic_granules[offset / GRANULE];
            (granule, Space::Dynamic, self.generation)
        })
    }
}
