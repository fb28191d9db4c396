//! What a tracer is told of a block.

use super::BlockCheck;
use crate::access::{How, Kind, Space};
use crate::counters::operation;
use crate::memory::Whose;
use crate::trace::{Array, Event, Mbarrier, Place, Signal, Step, Tracer};

impl BlockCheck {
    fn event(&self, tracer: &Tracer, thread: u32, pc: usize, step: Step) -> Event {
        let module = self.launch.module();
        let find = || Place { inner: module.place(pc).into(), own: module.own_place(pc).into() };
        Event { block: self.block, thread, place: tracer.place(pc, find), step }
    }

    /// `thread` is about to access what the checks have found to be there.
    #[cold]
    pub(super) fn trace_access(
        &self,
        tracer: &Tracer,
        thread: u32,
        pc: usize,
        (address, bytes): (usize, usize),
        (kind, how, space): (Kind, How, Space),
    ) {
        let (array, offset) = self.array(space, address);
        let operation = operation(kind, how, space);
        let step = Step::Access { operation, array, offset, bytes, value: Vec::new() };
        let event = self.event(tracer, thread, pc, step);
        // SAFETY: the checks have found it to be inside of memory that exists. A block's shared memory is settled
        // when the block ends, and device memory outlives its launch.
        unsafe { tracer.tell_access(event, address, kind.writes() || how.updates) };
    }

    pub(super) fn trace_barrier(&self, tracer: &Tracer, thread: u32, pc: usize) {
        tracer.tell(self.event(tracer, thread, pc, Step::Comes { met: false }));
    }

    /// Something has happened at an mbarrier.
    #[inline]
    pub(crate) fn trace_mbarrier(&mut self, thread: u32, pc: usize, address: usize, does: Signal) {
        if let Some(tracer) = self.launch.tracer {
            self.tell_mbarrier(tracer, thread, pc, address, does);
        }
    }

    #[cold]
    fn tell_mbarrier(
        &mut self,
        tracer: &Tracer,
        thread: u32,
        pc: usize,
        address: usize,
        does: Signal,
    ) {
        let Some((space, own)) = self.shared_place(address) else { return };
        let Some(record) = self.launch.mbarriers.get(&address) else { return };
        let sum = |list: &[(u16, u32)]| list.iter().map(|entry| entry.1).sum();
        let now = Mbarrier {
            phase: record.phase,
            arrived: sum(&record.arrived),
            count: record.count,
            landed: sum(&record.landed),
            expected: record.expected,
        };
        // Who waits names a parity: of this phase, or of the one before.
        let of_parity = |parity: u32| record.phase.wrapping_sub((record.phase ^ parity) & 1);
        let does = match does {
            Signal::Waits { phase } => Signal::Waits { phase: of_parity(phase) },
            Signal::Passes { phase } => Signal::Passes { phase: of_parity(phase) },
            other => other,
        };
        let (array, offset) = self.array(space, own);
        let step = Step::Mbarrier { home: record.block, array, offset, does, now };
        tracer.tell(self.event(tracer, thread, pc, step));
    }

    /// Where an address of this block's shared memory is, or of another block's of its cluster: the same place in
    /// this block.
    fn shared_place(&mut self, address: usize) -> Option<(Space, usize)> {
        if let Some((_, space, _)) = self.locate(address) {
            return Some((space, address));
        }
        let cluster = self.cluster.as_ref()?;
        let own = &self.shared;
        (0..cluster.size()).filter_map(|rank| cluster.member(rank)).find_map(|member| {
            let [fixed, dynamic] =
                [member.fixed, member.dynamic].map(|m| address.wrapping_sub(m.0));
            match () {
                () if fixed < member.fixed.1 => Some((Space::Static, own.fixed.0 + fixed)),
                () if dynamic < member.dynamic.1 => Some((Space::Dynamic, own.dynamic.0 + dynamic)),
                () => None,
            }
        })
    }

    /// The array that an address is in, and how far from its start.
    fn array(&self, space: Space, address: usize) -> (Array, usize) {
        let launch = &*self.launch;
        let names = launch.module().names();
        let offset = address.wrapping_sub(self.shared.fixed.0);
        match space {
            Space::Static => match names.array_at(offset) {
                Some(a) => {
                    (Array { name: a.name.clone(), dims: a.dims.clone() }, offset - a.offset)
                }
                None => (Array::default(), offset),
            },
            Space::Dynamic => (Array::default(), address.wrapping_sub(self.shared.dynamic.0)),
            Space::Module => (Array::default(), launch.module().offset(address)),
            Space::Global => {
                let parameters = names.parameters(launch.kernel.function());
                let (base, len) = match launch.arena.owner_of(address) {
                    Whose::Live(a) => (a.base, a.len),
                    _ => (address, 0),
                };
                let pointer = launch.pointers.iter().find(|p| (base..base + len).contains(&p.1));
                let name = pointer.and_then(|p| parameters.get(p.0)).cloned().unwrap_or_default();
                (Array { name, dims: Vec::new() }, address - base)
            }
        }
    }
}
