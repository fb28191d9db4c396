//! Grids that may not have ended when one begins that overlaps them.
//!
//! Grids run one after the other here. On a GPU a launch that overlaps (`Config::overlap_previous`) begins
//! when all blocks of the grid before it have called `griddepcontrol.launch_dependents` or have ended, and
//! its `griddepcontrol.wait` waits for that grid alone. So for each launch there are two sets of earlier
//! grids: those that may run when it *begins*, and those that may run even when it has *waited*. With k
//! for the launch before:
//!
//! ```text
//! may run when it begins     = k, and what may run when k began; where k lets it begin only behind a wait
//!                              of its own, then only what may run when k has waited
//! may run when it has waited = what may run when k has waited; where k never waits: when k began
//! ```
//!
//! A launch that does not overlap begins when all have ended. Whether the grid before calls
//! `launch_dependents` makes no difference: a block that ends lets the next grid begin, too, and its last
//! stores may not be visible then.
//!
//! What a grid has used its granules of shadow say until somebody else comes by. A launch that overlaps
//! keeps what it finds there when it first comes to a granule: a [`Trace`].
//!
//! On a GPU a queue's launches are in order, whoever makes them. Here those are that one thread of the host
//! makes in a queue: tests that share a device then do not see each other.

use rustc_hash::FxHashMap as HashMap;
use std::cell::RefCell;

use crate::access::Kind;
use crate::geometry::Geometry;
use crate::module::Kernel;
use crate::report::Access;
use crate::shadow::{AGENT, Cell, Granule, Uses};

/// Of grids that may still run, so many are remembered.
const MOST: usize = 16;
/// Of queues.
const QUEUES: usize = 8;

/// A launch that is over here, and may not be on a GPU.
#[derive(Debug)]
pub(crate) struct Grid {
    pub(crate) kernel: Kernel,
    pub(crate) geometry: Geometry,
    /// Of its shadow, rising; the first is no other grid's.
    pub(crate) generations: Vec<u32>,
    /// Instructions by their numbers in cells.
    pub(crate) places: Vec<usize>,
    /// As in a launch's checks.
    pub(crate) issuers: HashMap<u16, (u32, u32)>,
    /// As there.
    pub(crate) pointers: Vec<(usize, usize)>,
    /// Which launch of its queue it was.
    pub(crate) number: u64,
    /// Whether it may run even when the launch that comes next has waited.
    pub(crate) outlasts_wait: bool,
}

impl Grid {
    fn id(&self) -> u32 {
        self.generations[0]
    }

    /// Whether it has used a granule whose shadow is of this generation.
    pub(crate) fn has(&self, generation: u32) -> bool {
        self.generations.binary_search(&generation).is_ok()
    }

    /// Whether an argument points into these bytes.
    pub(crate) fn points_into(&self, base: usize, len: usize) -> bool {
        self.pointers.iter().any(|p| (base..=base + len).contains(&p.1))
    }

    /// Global memory by the parameter that points to it.
    pub(crate) fn name_in(&self, base: usize, len: usize, address: usize) -> String {
        name_in(&self.kernel, &self.pointers, (base, len), address)
    }

    /// The access of a cell that it left behind.
    pub(crate) fn access(&self, what: String, cell: Cell) -> Access {
        let pc = self.places.get(usize::from(cell.place())).copied().filter(|&pc| pc != 0);
        let issuer = self.issuers.get(&cell.place()).copied().filter(|_| cell.by_agent());
        access(&self.kernel, self.geometry, pc, issuer, what, cell)
    }
}

/// An access as reports have it; `issuer`: block and thread that asked for it, if not the cell's.
pub(crate) fn access(
    kernel: &Kernel,
    geometry: Geometry,
    pc: Option<usize>,
    issuer: Option<(u32, u32)>,
    what: String,
    cell: Cell,
) -> Access {
    let (block, thread) = issuer.unwrap_or((cell.block() & (AGENT - 1), cell.thread()));
    let block = geometry.block_index(u64::from(block));
    let thread = geometry.thread_index(thread);
    let (place, within) = match pc {
        Some(pc) => kernel.module().place_within(pc),
        None => ("a place that was not kept".into(), Vec::new()),
    };
    Access { what, place, within, block, thread }
}

/// An address in an allocation, by the parameter that points there.
pub(crate) fn name_in(
    kernel: &Kernel,
    pointers: &[(usize, usize)],
    (base, len): (usize, usize),
    address: usize,
) -> String {
    let found = pointers.iter().find(|p| (base..=base + len).contains(&p.1));
    let Some(&(index, pointer)) = found else {
        return format!("byte {} of an allocation of {len} bytes", address - base);
    };
    let name = kernel.parameter(index);
    let dtype = kernel.parameters()[index].type_name.as_str();
    let dtype = dtype.trim_start_matches("const ").trim_end_matches('*');
    let size = match dtype {
        "f64" | "i64" | "u64" => 8,
        "f32" | "i32" | "u32" => 4,
        "f16" | "bf16" | "i16" | "u16" => 2,
        _ => 1,
    };
    let distance = address as isize - pointer as isize;
    let elements = (len - (pointer - base)) / size as usize;
    match (dtype, size) {
        (_, 1) if dtype != "u8" && dtype != "i8" => {
            format!("byte {distance} of {name} ({len} bytes)")
        }
        _ => format!("{name}[{}] ({dtype}, {elements} elements)", distance.div_euclid(size)),
    }
}

/// How a grid has used a granule.
#[derive(Debug)]
struct Trace {
    uses: Uses,
    cells: [Cell; 3],
}

/// A use by an earlier grid that nothing orders before an access.
pub(crate) struct Unordered<'a> {
    pub(crate) grid: &'a Grid,
    /// Whether it writes.
    pub(crate) writes: bool,
    /// One of its accesses, if the shadow has kept such.
    pub(crate) cell: Option<Cell>,
}

/// The grids before a launch that may not have ended.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// The latest last.
    grids: Vec<Grid>,
    /// By the address of the granule, and the grid.
    traces: HashMap<(usize, u32), Trace>,
    /// Launches of the queue so far.
    launches: u64,
}

/// How a launch came by the end of those before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    /// Some thread has waited: when this grid has ended, so have those that it waited for.
    pub(crate) waited: bool,
    /// Some block has let the next grid begin only behind a wait.
    pub(crate) lets_begin_behind_wait: bool,
}

impl Earlier {
    /// For a launch that begins when all have ended.
    pub(crate) fn ended(self) -> Self {
        Self { launches: self.launches, ..Self::default() }
    }

    /// Whether nothing but the order of launches counts for a thread that has waited.
    pub(crate) fn ends_with_wait(&self) -> bool {
        !self.grids.iter().any(|grid| grid.outlasts_wait)
    }

    /// How many launches before this one a grid was.
    pub(crate) fn distance(&self, grid: &Grid) -> u64 {
        self.launches - grid.number
    }

    /// Keeps what a granule says of an earlier grid, before this launch takes it over.
    pub(crate) fn keep(&mut self, granule: &Granule) {
        let generation = granule.generation();
        if let Some(grid) = self.grids.iter().find(|grid| grid.has(generation)) {
            let trace = Trace { uses: granule.uses(), cells: granule.cells };
            self.traces.insert((std::ptr::from_ref(granule) as usize, grid.id()), trace);
        }
    }

    /// What of an earlier grid `me`, whose thread has `waited` or not, conflicts with.
    pub(crate) fn unordered(
        &self,
        granule: usize,
        me: Cell,
        waited: bool,
    ) -> Option<Unordered<'_>> {
        self.grids.iter().rev().filter(|grid| !waited || grid.outlasts_wait).find_map(|grid| {
            let Trace { uses, cells } = self.traces.get(&(granule, grid.id()))?;
            let bytes = uses.conflicting_bytes(me.kind()) & me.bytes();
            if bytes == 0 {
                return None;
            }
            let writes = uses.conflicting_bytes(Kind::Read) & bytes != 0;
            let own = |c: &&Cell| c.bytes() & bytes != 0 && c.kind().writes() == writes;
            Some(Unordered { grid, writes, cell: cells.iter().find(own).copied() })
        })
    }

    /// What may not have ended for the next launch, when `last` is over.
    pub(crate) fn then(mut self, last: Grid, how: Waiting) -> Self {
        let Waiting { waited, lets_begin_behind_wait } = how;
        self.grids.retain(|grid| grid.outlasts_wait || !lets_begin_behind_wait);
        self.grids.iter_mut().for_each(|grid| grid.outlasts_wait |= !waited);
        self.grids.push(Grid { number: self.launches, outlasts_wait: false, ..last });
        self.launches += 1;
        let gone = self.grids.len().saturating_sub(MOST);
        self.grids.drain(..gone);
        let grids = &self.grids;
        self.traces.retain(|(_, id), _| grids.iter().any(|grid| grid.id() == *id));
        self.traces.shrink_to_fit();
        self
    }
}

thread_local! {
    /// By number, the one that was used last behind all others.
    static EARLIER: RefCell<Vec<(u64, Earlier)>> = const { RefCell::new(Vec::new()) };
}

/// What this thread's launches in a queue have left; nothing is left of it there.
pub(crate) fn take(queue: u64) -> Earlier {
    EARLIER.with_borrow_mut(|all| match all.iter().position(|(number, _)| *number == queue) {
        Some(at) => all.remove(at).1,
        None => Earlier::default(),
    })
}

/// The same for the next.
pub(crate) fn put(queue: u64, earlier: Earlier) {
    EARLIER.with_borrow_mut(|all| {
        all.push((queue, earlier));
        if all.len() > QUEUES {
            all.remove(0);
        }
    });
}

/// What the launches of a thread have left that later ones may overlap.
#[derive(Debug)]
pub struct Grids(Vec<(u64, Earlier)>);

impl Grids {
    /// Nothing.
    pub const NONE: Self = Self(Vec::new());
}

/// Exchanges what this thread's launches have left for another thread's: for who makes the launches of one thread on
/// several.
pub fn exchange_grids(others: &mut Grids) {
    EARLIER.with_borrow_mut(|all| std::mem::swap(all, &mut others.0));
}

/// Tells the checks that all grids that this thread has launched have ended for whatever it launches next:
/// the host has waited for them, or a copy or a graph's begin comes between.
pub fn grids_ended() {
    EARLIER.with_borrow_mut(Vec::clear);
}
