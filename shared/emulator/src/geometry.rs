//! The size of a launch.

/// The size of the grid and of a block, and what else a launch says about them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: usize,
    pub(crate) cooperative: bool,
    /// Blocks of a cluster, along x.
    pub(crate) cluster: u32,
}

impl Geometry {
    pub(crate) fn threads(&self) -> usize {
        self.block.iter().map(|&n| n as usize).product()
    }
    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }
    pub(crate) fn block_index(&self, linear: u64) -> [u32; 3] {
        unravel(linear, self.grid)
    }
    pub(crate) fn thread_index(&self, linear: u32) -> [u32; 3] {
        unravel(u64::from(linear), self.block)
    }
}

/// The coordinates of number `linear`, x first.
pub(crate) fn unravel(linear: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [(linear % x) as u32, (linear / x % y) as u32, (linear / x / y) as u32]
}
