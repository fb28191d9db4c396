//! Messages by volatile accesses alone: data, then a flag, and no fence of the writer's between the two.
//!
//! Volatile accesses do not race with each other, for flags are made of them. But nor are they ordered: who has seen
//! the flag may read the data as they were before. What is told is this, and no more:
//!
//! - a thread writes data, then a flag, both by volatile accesses; or its block writes data and comes to a barrier, and
//!   then the thread writes the flag;
//! - another thread waits for the flag, by a volatile read in a loop that does nothing else;
//! - it, or who comes to a barrier behind it, then reads the data by a volatile read that no loop waits by;
//! - and between the two writes stands no fence that reaches the reader.
//!
//! Whether a fence stands behind the loop is not asked: CUDA's programming guide has none there.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use super::BlockCheck;
use crate::access::{Kind, Space};
use crate::report::{Finding, Kind as What};
use crate::shadow::{Cell, GRANULE, Granule};
use crate::thread::Thread;

/// What an access is in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A volatile write.
    Written,
    /// Another strong write.
    Overwritten,
    /// A volatile read by which a loop waits.
    Awaited,
    /// Another volatile read.
    Read,
}

/// A volatile write, the last one at its address.
#[derive(Clone, Copy, Debug)]
struct Write {
    by: Cell,
    /// Of the launch's volatile writes.
    number: u64,
    /// What the writer's block did with a stamp below this was over.
    epoch: u32,
}

impl Write {
    /// Whether the writer of the other, when it wrote that, had this behind it.
    fn is_published_before(&self, flag: &Self) -> bool {
        self.by.same_thread(flag.by) && self.number < flag.number
            || self.by.same_block(flag.by) && self.by.stamp() < flag.epoch
    }
}

/// A flag that a thread has waited for.
#[derive(Clone, Copy, Debug)]
struct Seen {
    write: Write,
    read: Cell,
    shared: bool,
}

/// The messages of a launch.
#[derive(Debug, Default)]
pub(super) struct Messages {
    number: u64,
    /// By address.
    writes: HashMap<usize, Write>,
    /// By the blocks of reader and writer; of each pair by the reader's thread and the flag's address.
    seen: HashMap<(u32, u32), HashMap<(u32, usize), Seen>>,
    /// By the places at which data are written and read.
    found: HashMap<(u16, u16), usize>,
}

impl Messages {
    /// All threads have met, or stamps begin again.
    pub(super) fn forget(&mut self) {
        self.writes.clear();
        self.seen.clear();
    }

    /// Findings of data that a loop waits for after all, by the places of such reads.
    pub(super) fn findings_waited_for(&self, polls: &HashSet<u16>) -> Vec<usize> {
        let found = self.found.iter().filter(|((_, read), _)| polls.contains(read));
        found.map(|(_, &index)| index).collect()
    }
}

impl BlockCheck {
    /// A strong access that was looked at, and is about to be made.
    pub(crate) fn pass_message(
        &mut self,
        thread: &Thread,
        (address, bytes): (usize, usize),
        part: Part,
        pc: usize,
    ) {
        let launch = &mut *self.launch;
        if part == Part::Overwritten {
            if !launch.messages.writes.is_empty() {
                launch.messages.writes.remove(&address);
            }
            return;
        }
        let kind = if part == Part::Written { Kind::VolatileWrite } else { Kind::StrongRead };
        let index = thread.index();
        let me = thread.who.at(kind, self.clock.stamp(index), launch.places.number(pc));
        if part == Part::Written {
            launch.messages.number += 1;
            let number = launch.messages.number;
            let write = Write { by: me, number, epoch: self.clock.epoch() };
            launch.messages.writes.insert(address, write);
            return;
        }
        let Some(&write) = launch.messages.writes.get(&address) else { return };
        // What lanes of a warp do is told otherwise.
        if write.by.same_warp(me) || self.clock.is_ordered(write.by, me) {
            return;
        }
        let Some((granule, space)) = self.remembered(address) else { return };
        let is_it = |c: &Cell| c.same_access(write.by) && c.stamp() == write.by.stamp();
        if !granule.cells.iter().any(is_it) {
            return;
        }
        let shared = matches!(space, Space::Static | Space::Dynamic);
        let (blocks, seen) = ((me.block(), write.by.block()), &mut self.launch.messages.seen);
        if part == Part::Awaited {
            let flag = Seen { write, read: me, shared };
            seen.entry(blocks).or_default().insert((index, address), flag);
            return;
        }
        let Some(seen) = seen.get(&blocks) else { return };
        let announces = |((_, flag), seen): &(&(u32, usize), &Seen)| {
            *flag != address
                && write.is_published_before(&seen.write)
                && self.clock.is_ordered(seen.read, me)
        };
        let flags = || seen.iter().filter(announces);
        // What a fence has published, whoever reads on has it from who has seen the flag.
        let heard = |thread| self.clock.heard_of(write.by, thread);
        if heard(index) || flags().any(|((reader, _), _)| heard(*reader)) {
            return;
        }
        let first = flags().min_by_key(|((reader, _), seen)| (seen.write.number, *reader));
        if let Some((_, &flag)) = first {
            let in_order = shared && flag.shared && write.by.same_block(me);
            self.unordered_message((address, bytes, space), (write.by, me), flag, in_order);
        }
    }

    /// What is remembered of an address that this block may look up itself.
    fn remembered(&mut self, address: usize) -> Option<(Granule, Space)> {
        if let Some((granule, space, _)) = self.locate(address) {
            // SAFETY: the access that was looked at located it.
            return Some((unsafe { *granule }, space));
        }
        let launch = &*self.launch;
        let index = address.checked_sub(launch.module_data.0)? / GRANULE;
        Some((*launch.module_shadow.get(index)?, Space::Module))
    }

    /// Data that a flag announces to who may yet read what was there before. `in_order`: they are the block's own shared
    /// memory, and so is the flag.
    #[cold]
    fn unordered_message(
        &mut self,
        (address, bytes, space): (usize, usize, Space),
        (written, read): (Cell, Cell),
        flag: Seen,
        in_order: bool,
    ) {
        let launch = &mut *self.launch;
        let places = (written.place(), read.place());
        let known = launch.messages.found.get(&places).copied();
        if let Some(index) = known {
            let Some(finding) = launch.findings.get_mut(index) else { return };
            finding.count += 1;
            // Once seen otherwise, it is more than formal.
            if finding.formal.is_none() || in_order {
                return;
            }
        }
        let name = launch.name_of(space, address, bytes, &self.shared);
        let fence =
            if written.same_block(read) { "__threadfence_block()" } else { "__threadfence()" };
        let mut finding = Finding::new(
            What::Race,
            format!("race on {name}: who sees the flag may not see what was written before it"),
        )
        .fix(format!(
            "{fence} between the two writes, and one behind the loop that waits: volatile accesses have no order"
        ));
        finding.formal = in_order.then_some(IN_ORDER);
        finding.accesses = vec![
            launch.by("volatile write".into(), written),
            launch.by("volatile write of the flag".into(), flag.write.by),
            launch.by("volatile read of the flag".into(), flag.read),
            launch.by(format!("volatile read of {bytes} bytes"), read),
        ];
        if let Some(index) = known {
            let before = &mut launch.findings[index];
            *before = Finding { count: before.count, ..finding };
        } else {
            let index = launch.keep(finding).unwrap_or(usize::MAX);
            launch.messages.found.insert(places, index);
        }
    }
}

const IN_ORDER: &str = "an SM makes what a warp asks of shared memory in the order of its program; PTX's memory model promises no \
     order without a fence";
