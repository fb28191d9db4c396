//! What the checks say: one finding for each kind and place.

use std::ops::Range;
use std::sync::Arc;

use super::{BlockCheck, Conflict, Fatal, Formal};
use crate::access::{Kind, Space, Stored};
use crate::clock::Published;
use crate::matrix;
use crate::memory::Whose;
use crate::report::{Finding, Index, Kind as What, Standing};
use crate::shadow::{Cell, PLACE_UNKNOWN};
use crate::thread::Thread;
use crate::warp::{Collective, Operand};

/// What local variables without a value hold: bytes that g++ fills them with
/// (`-ftrivial-auto-var-init=pattern`), or words, a NaN with bits of its own, that arithmetic hands on.
const PATTERN_BYTES: [u8; 4] = [0xFE; 4];
const PATTERN_NAN: [u8; 4] = 0x7FFE_FEFE_u32.to_le_bytes();

/// Whether this may be (a part of) a local variable without a value, or the sum of one and others.
pub(super) fn is_pattern(bytes: &[u8]) -> bool {
    match bytes.chunks_exact(4) {
        words if words.len() > 0 => {
            words.remainder().is_empty()
                && (words.clone().all(|word| word == PATTERN_BYTES)
                    || words.clone().all(|word| word == PATTERN_NAN))
        }
        _ => bytes.iter().all(|&byte| byte == PATTERN_BYTES[0]),
    }
}

/// Whether these are an integer near the pattern, as one without a value is to which little was added; of eight
/// bytes the upper four tell, for those of a number of f64 are none of these.
fn is_near_pattern(bytes: &[u8]) -> bool {
    // INT_MAX is further away than this.
    const NEAR: u32 = 1 << 15;
    let upper = bytes.len().min(8) - 4;
    bytes[upper..].chunks_exact(4).step_by(1 + upper / 4).any(|word| {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let distance = |from| word.wrapping_sub(u32::from_le_bytes(from)).wrapping_add(NEAR);
        [PATTERN_NAN, PATTERN_BYTES].into_iter().any(|pattern| distance(pattern) <= 2 * NEAR)
    })
}

/// What mends most indices.
const GUARD: &str = "guard the index, or make the array larger";
/// Addresses below this are indices of a null pointer.
const NULL_PAGES: usize = 1 << 16;
/// How far away memory may be, in bytes, to be what a wrong index has missed; or as far as its own length.
const FAR: usize = 1 << 20;

/// Nearer than this, in bytes, it is the memory beside that a wrong index has missed.
const NEAR: usize = 256;

/// Of a store's race: it was formal, for another thread does the same.
const TWIN: u32 = 1 << 31;

impl BlockCheck {
    /// Adds to the last access of a finding who has called the function that it stands in. `stack`: what the thread that makes
    /// it has used of its own; the access returns to `pc`.
    #[cold]
    pub(crate) fn name_callers(&self, finding: &mut Finding, stack: Range<usize>, pc: usize) {
        let module = self.launch.module();
        if let Some(access) = finding.accesses.last_mut() {
            for caller in module.callers(stack, pc, self.launch.kernel.function()) {
                let (place, within) = module.place_within(caller);
                access.within.push(place);
                access.within.extend(within);
            }
        }
    }

    #[cold]
    pub(super) fn report_misaligned(
        &mut self,
        address: usize,
        len: usize,
        space: Space,
        me: Cell,
    ) -> Fatal {
        let launch = &mut *self.launch;
        let name = launch.name_of(space, address, len, &self.shared);
        let mut finding = Finding::new(
            What::Misaligned,
            format!("misaligned address: {name} is not at a multiple of {len} bytes"),
        )
        .fix("a vector access needs an address that is a multiple of its size: handle the ends by single elements");
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        Box::new(finding)
    }

    /// A wide access of an array that is declared for narrow ones.
    #[cold]
    #[inline(never)]
    pub(super) fn aligned_by_luck(
        &mut self,
        address: usize,
        (len, declared): (usize, usize),
        me: Cell,
    ) {
        let launch = &mut *self.launch;
        if let Some(&known) = launch.lucky.get(&me.place()) {
            if let Some(finding) = launch.findings.get_mut(known) {
                finding.count += 1;
            }
            return;
        }
        let name = launch.name_of(Space::Static, address, len, &self.shared);
        let message = format!(
            "aligned by luck: {name} is used by {len} bytes at once, and declared for {declared}"
        );
        let mut finding = Finding::new(What::Misaligned, message)
            .fix(format!("__align__({len}) behind __shared__"));
        finding.formal = Some(
            "ptxas happens to put the array where it must be: another array before it may move it",
        );
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.lucky.insert(me.place(), index);
    }

    /// A part of a local variable, by a pointer that has left it. Of what is no thread's own the shadow knows more.
    ///
    /// # Errors
    /// It is one.
    #[cold]
    pub(crate) fn beyond_local(
        &mut self,
        thread: &Thread,
        address: usize,
        type_name: &str,
        pc: usize,
    ) -> Result<(), Fatal> {
        if !thread.stack.contains(&address) {
            return Ok(());
        }
        let launch = &mut *self.launch;
        let me = thread.who.at(Kind::Read, 0, launch.places.number(pc));
        let message = format!(
            "out of bounds: a {type_name} outside of the local variable that its pointer comes from"
        );
        let mut finding = Finding::new(What::OutOfBounds, message)
            .fix("limit the index to the variable's elements: what lies beside it is overwritten");
        finding.accesses.push(launch.by("use".into(), me));
        Err(Box::new(finding))
    }

    /// An access at a negative offset from a pointer to a local variable: it may be to the middle of that, or to what lies before
    /// it. `used`: what the thread has used of its stack.
    ///
    /// # Errors
    /// No variable of the function is there.
    #[cold]
    pub(crate) fn before_local(
        &mut self,
        thread: &Thread,
        address: usize,
        used: Range<usize>,
        pc: usize,
    ) -> Result<(), Fatal> {
        if !thread.stack.contains(&address) {
            return Ok(());
        }
        let launch = &mut *self.launch;
        let known = launch.frames.get(&pc).cloned();
        let locals = known.unwrap_or_else(|| {
            let locals = launch.module().locals(pc).map(Arc::from);
            launch.frames.insert(pc, locals.clone());
            locals
        });
        let Some((locals, end)) = locals.zip(launch.module().frame_end(used, pc)) else {
            return Ok(());
        };
        let holds = |&(offset, bytes): &(i64, usize)| {
            let start = end.wrapping_add_signed(offset as isize);
            (start..start + bytes).contains(&address)
        };
        if locals.iter().any(holds) {
            return Ok(());
        }
        let me = thread.who.at(Kind::Read, 0, launch.places.number(pc));
        let message =
            "out of bounds: before the start of the local variable that its pointer comes from";
        let mut finding = Finding::new(What::OutOfBounds, message)
            .fix("limit the index to the variable's elements: what lies beside it is overwritten");
        finding.accesses.push(launch.by("use".into(), me));
        Err(Box::new(finding))
    }

    /// An access of one instruction to a local variable, at an address that is no multiple of its size here. On a GPU the
    /// variable may lie elsewhere; but not where the same instruction has had an address of another remainder.
    ///
    /// # Errors
    /// It has.
    #[cold]
    #[inline(never)]
    pub(super) fn local_misaligned(
        &mut self,
        thread: &Thread,
        (address, len): (usize, usize),
        kind: Kind,
        pc: usize,
    ) -> Result<(), Fatal> {
        self.looks_alone = false; // also at those that are aligned here
        let launch = &mut *self.launch;
        let remainder = address % len;
        let known = launch.of_locals.get(&pc).copied();
        let first = known.unwrap_or_else(|| launch.remember_local(pc, remainder));
        if first == remainder {
            return Ok(());
        }
        let me = thread.who.at(kind, 0, launch.places.number(pc));
        let message = format!(
            "misaligned address: a local variable is used by {len} bytes at once, and not at multiples of {len} bytes"
        );
        let mut finding = Finding::new(What::Misaligned, message).fix(
            "use only indices that are multiples of the size, or copy it byte by byte (memcpy)",
        );
        finding.accesses.push(launch.by(describe(kind, len), me));
        Err(Box::new(finding))
    }

    /// An index past the end of an array whose size the compiler knows.
    #[cold]
    pub(crate) fn index(&mut self, thread: &Thread, array: &str, index: i64, pc: usize) -> Fatal {
        let launch = &mut *self.launch;
        let me = thread.who.at(Kind::Read, 0, launch.places.number(pc));
        let message = format!("out of bounds: index {index} of an array {array}");
        let mut finding = Finding::new(What::OutOfBounds, message)
            .fix("an array has the indices below its size: look at the loop's end");
        finding.accesses.push(launch.by("use".into(), me));
        Box::new(finding)
    }

    #[cold]
    pub(super) fn report_outside(
        &mut self,
        address: usize,
        len: usize,
        space: Space,
        me: Cell,
    ) -> Fatal {
        let launch = &mut *self.launch;
        let names = launch.module().names();
        let distance = |start: usize, bytes: usize| {
            if address < start {
                (start - address, "before the start")
            } else {
                (address.saturating_sub(start + bytes), "past the end")
            }
        };
        // `element`: what lies there, if the memory went on so far.
        let beyond = |element: Option<String>, name: &str, start: usize, bytes: usize| {
            let (distance, side) = distance(start, bytes);
            let element = element.map_or(String::new(), |e| format!("{e}, "));
            format!(
                "out of bounds: {element}{distance} bytes {side} of {name}, which has {bytes} bytes"
            )
        };
        let (mut kind, mut fix) = (What::OutOfBounds, GUARD);
        let message = match space {
            Space::Static => match names.nearest_array(address - self.shared.fixed.0) {
                Some(a) => {
                    let start = self.shared.fixed.0 + a.offset;
                    let element = (!a.element.is_empty() && !a.dims.is_empty()).then(|| {
                        let index = a.index_around(address.wrapping_sub(start) as isize);
                        format!("{index} ({}, {} elements)", a.element, a.size())
                    });
                    beyond(element, &format!("shared array {}", a.name), start, a.bytes)
                }
                None => "out of bounds: the kernel has no static shared memory".into(),
            },
            Space::Dynamic if self.shared.dynamic.1 == 0 => {
                fix = "give the launch as many bytes as the kernel uses: the third value in <<<…>>>, or --shared";
                "out of bounds: dynamic shared memory has 0 bytes in this launch".into()
            }
            Space::Dynamic => {
                let (start, bytes) = self.shared.dynamic;
                beyond(None, "dynamic shared memory", start, bytes)
            }
            Space::Module | Space::Global => match launch.arena.owner_of(address) {
                Whose::Freed(base, bytes) => {
                    (kind, fix) =
                        (What::UseAfterFree, "keep the buffer alive until the kernel has run");
                    format!("use after free: byte {} of {bytes}", address - base)
                }
                _ if address < NULL_PAGES => {
                    fix = "give the kernel memory that is allocated, or test the pointer before its use";
                    let whose = match &launch.null_parameters()[..] {
                        [] => String::new(),
                        [one] => format!(" ({one} is null)"),
                        several => format!(" ({} are null)", several.join(", ")),
                    };
                    format!("null pointer: address {address:#x} belongs to no allocation{whose}")
                }
                _ => match launch.arena.nearest(address) {
                    Some(a) if distance(a.base, a.len).0 <= FAR.max(a.len) => {
                        let at = launch.name_in(a.base, a.len, address);
                        let name = at.split(['[', ' ']).next().unwrap_or(&at).to_owned();
                        // "byte 8 of x (8 bytes)", where the type of its elements is not known.
                        let of_bytes = at.strip_prefix("byte ").map(|rest| {
                            let named = rest.split_once(" of ").map_or("", |(_, name)| name);
                            let name = named.split(" (").next().unwrap_or_default();
                            let is_name = !name.is_empty() && !name.contains(' ');
                            if is_name { name } else { "an allocation" }
                        });
                        let (element, name) = match of_bytes {
                            Some(name) => (None, name),
                            None => (Some(at.clone()), &name[..]),
                        };
                        let own = beyond(element, name, a.base, a.len);
                        match distance(a.base, a.len).0 {
                            NEAR.. => own + &launch.or_of_others(address, a.base),
                            _ => own,
                        }
                    }
                    _ => {
                        fix = "look at where the pointer comes from, or the index: nothing is near";
                        format!("out of bounds: address {address:#x} belongs to no allocation")
                    }
                },
            },
        };
        let mut finding = Finding::new(kind, message).fix(fix);
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        Box::new(finding)
    }

    /// Shared memory of block `rank` of the cluster, when that block is not there.
    #[cold]
    pub(super) fn report_absent_block(
        &mut self,
        rank: u32,
        exited: bool,
        len: usize,
        me: Cell,
    ) -> Fatal {
        let (state, fix) = if exited {
            ("has exited", "let all blocks of the cluster meet before one returns")
        } else {
            ("may not have begun", "let all blocks of the cluster meet first")
        };
        let message = format!("shared memory of block {rank} of the cluster, which {state}");
        let mut finding =
            Finding::new(What::AbsentBlock, message).fix(format!("{fix}: cluster.sync()"));
        finding.accesses.push(self.launch.by(describe(me.kind(), len), me));
        Box::new(finding)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn report_unwritten(&mut self, address: usize, len: usize, space: Space, me: Cell) {
        let launch = &mut *self.launch;
        if let Some(finding) = launch.uninitialised.get_mut(&me.place()) {
            finding.count += 1;
            return;
        }
        let name = launch.name_of(space, address, len, &self.shared);
        let mut finding = Finding::new(
            What::Uninitialised,
            format!("uninitialised: {name} is read, and nobody has written it"),
        )
        .fix("write it before, or do not read it: a guard may let too much through");
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        launch.uninitialised.insert(me.place(), finding);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn race(
        &mut self,
        address: usize,
        len: usize,
        space: Space,
        Conflict { with: other, formal, .. }: Conflict,
        me: Cell,
    ) -> Option<usize> {
        self.by_twin = formal == Some(Formal::Twin);
        let launch = &mut *self.launch;
        for cell in [other, me] {
            if !cell.kind().writes() {
                launch.raced.insert(cell.place());
            }
        }
        // Whoever of the two comes first.
        let places = (other.place().min(me.place()), other.place().max(me.place()));
        // Where each one is formal, the finding is: see `finish`.
        let formal = formal.or_else(|| match (other.kind(), me.kind()) {
            (Kind::Read, Kind::StrongWrite) | (Kind::StrongWrite, Kind::Read) => {
                Some(Formal::Guess)
            }
            _ => None,
        });
        let need = Need::of(other, me, space, formal);
        if let Some(&known) = launch.races.get(&places) {
            if let Some(finding) = launch.findings.get_mut(known) {
                finding.count += 1;
                launch.note_formal(known, formal, [other, me]);
                if self.launch.needs.get_mut(&known).is_some_and(|needs| needs.widen(need)) {
                    let wider = self.race_between(other, me, formal, (address, len, space));
                    let finding = &mut self.launch.findings[known];
                    *finding = Finding { count: finding.count, ..wider };
                }
            }
            return Some(known);
        }
        let finding = self.race_between(other, me, formal, (address, len, space));
        let launch = &mut *self.launch;
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.note_formal(index, formal, [other, me]);
        launch.needs.insert(index, Needs::new(need));
        launch.races.insert(places, index);
        Some(index)
    }

    /// What is said of a race between these two, the earlier one first.
    fn race_between(
        &self,
        other: Cell,
        me: Cell,
        formal: Option<Formal>,
        (address, len, space): (usize, usize, Space),
    ) -> Finding {
        let launch = &*self.launch;
        let name = launch.name_of(space, address, len, &self.shared);
        let (kind, message) = match other.kind() {
            Kind::AsyncWrite => (
                What::CopyInFlight,
                format!("race on {name}: used while an asynchronous copy into it is under way"),
            ),
            Kind::AsyncRead => (
                What::CopyInFlight,
                format!("race on {name}: written while an asynchronous copy of it is under way"),
            ),
            _ if beyond_scope(other, me) => {
                (What::Race, format!("race on {name}: by an atomic for threads of one block alone"))
            }
            _ => (What::Race, format!("race on {name}")),
        };
        let product = |cell: Cell| {
            launch.products.contains(&cell.place()) && (cell.by_agent() || cell.kind().in_flight())
        };
        let (fix, what) = if product(other) {
            (WGMMA_READS.to_owned(), "read by wgmma")
        } else {
            let weak = !other.kind().strong() && !me.kind().strong();
            let in_block = weak && Need::of(other, me, space, formal) == Need::Block;
            let places = [(other.place(), me.place()), (me.place(), other.place())];
            let next_turn = |&(first, last): &(u16, u16)| launch.is_of_next_turn(first, last);
            let fix = match places.iter().find(|places| in_block && next_turn(places)) {
                Some(&(first, last)) => self.end_of_turn(first, last),
                None => {
                    let fix = remedy(other, me, space, formal);
                    let is_by_wait_group = fix == OF_COPY;
                    match launch.mbarriers.is_empty() {
                        false if is_by_wait_group => OF_ANY_COPY.to_owned(),
                        false if weak && fix == OF_BLOCK => format!("{fix}, or {OF_MBARRIER}"),
                        _ if launch.geometry.cooperative
                            && weak
                            && Need::of(other, me, space, formal) == Need::Grid =>
                        {
                            OF_GRID.to_owned()
                        }
                        _ => fix.to_owned(),
                    }
                }
            };
            (fix, verb(other.kind()))
        };
        let own = if product(me) { "read by wgmma".into() } else { describe(me.kind(), len) };
        let message = if kind == What::CopyInFlight && product(other) {
            format!("race on {name}: written while wgmma reads it")
        } else {
            message
        };
        let mut finding = Finding::new(kind, message).fix(fix);
        finding.accesses = vec![launch.by(what.into(), other), launch.by(own, me)];
        finding
    }

    /// What would order two accesses of which the first in the text belongs to the loop's next turn.
    fn end_of_turn(&self, first: u16, last: u16) -> String {
        let [next, done] = [first, last].map(|place| self.launch.outer_place(place));
        format!(
            "a second __syncthreads(), behind {done} (in the loop, or in the function that is called again): the one between the \
             two orders one turn, and a thread that is ahead comes to {next} in the next one"
        )
    }

    /// A plain write that an asynchronous access may not see.
    #[cold]
    pub(super) fn report_unfenced(
        &mut self,
        (address, len, space): (usize, usize, Space),
        write: Cell,
        me: Cell,
    ) {
        let launch = &mut *self.launch;
        let places = (write.place(), me.place());
        if let Some(&known) = launch.unfenced.get(&places) {
            if let Some(finding) = launch.findings.get_mut(known) {
                finding.count += 1;
            }
            return;
        }
        let name = launch.name(space, address, &self.shared);
        let message = format!("the async proxy may not see what was written to {name}");
        let mut finding = Finding::new(What::UnfencedProxy, message).fix(
            "fence.proxy.async (fence_proxy_async()) by the writer, then a barrier, then the copy",
        );
        let own = if launch.products.contains(&me.place()) {
            "read by wgmma".into()
        } else {
            describe(me.kind(), len)
        };
        finding.accesses = vec![launch.by(verb(write.kind()).into(), write), launch.by(own, me)];
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.unfenced.insert(places, index);
    }

    /// Notes a plain store, to be looked at once it is done.
    #[inline(always)]
    pub(super) fn watch(
        &mut self,
        thread: &mut Thread,
        address: usize,
        len: usize,
        place: u16,
        race: Option<usize>,
    ) {
        if !(2..=16).contains(&len) && race.is_none() {
            return;
        }
        let mut stored = Stored { address, bytes: len.min(16) as u32, place, race: None };
        if let Some(index) = race {
            let mut before = [0; 16];
            // SAFETY: the access was found to be inside of memory that exists.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    address as *const u8,
                    before.as_mut_ptr(),
                    stored.bytes as usize,
                );
            }
            let twin = if self.by_twin { TWIN } else { 0 };
            stored.race = Some((index as u32 & !TWIN | twin, before));
        }
        thread.stored = stored;
    }

    /// The store that `thread` made last is done: was it the pattern of a variable that never got a
    /// value? Did it race, but with the same value?
    #[inline(always)]
    pub(crate) fn settle(&mut self, thread: &mut Thread) {
        // SAFETY: the store was found to be inside of memory that exists, and the launch, and so its memory, is alive.
        let first = unsafe { *(thread.stored.address as *const u8) };
        // Both patterns begin alike.
        if first == PATTERN_BYTES[0] || thread.stored.race.is_some() || self.suspects {
            self.settle_any(thread);
        }
        thread.stored.bytes = 0;
    }

    #[inline(never)]
    fn settle_any(&mut self, thread: &mut Thread) {
        let stored = std::mem::take(&mut thread.stored);
        let mut now = [0u8; 16];
        let bytes = stored.bytes as usize;
        // SAFETY: the store was found to be inside of memory that exists, and the launch, and so its memory, is alive.
        unsafe {
            std::ptr::copy_nonoverlapping(stored.address as *const u8, now.as_mut_ptr(), bytes);
        }
        if let Some((index, before)) = stored.race {
            let is_same = before[..bytes] == now[..bytes];
            let own = (index & !TWIN) as usize;
            if is_same && index & TWIN != 0 {
                self.launch.forget_formal(own);
            }
            self.same_value(own, is_same);
        }
        if now[0] == PATTERN_BYTES[0] && is_pattern(&now[..bytes]) {
            self.local(thread, &stored);
        } else if self.suspects && bytes >= 4 {
            if is_near_pattern(&now[..bytes]) {
                self.note_grown_value(thread, &stored)
            } else {
                self.launch.stored_others[usize::from(stored.place)] = true
            }
        }
    }

    /// What is stored may have grown from a local variable without a value. It is told in the end, if this place
    /// has stored nothing else: numbers that are near the pattern by chance have others among them.
    #[cold]
    fn note_grown_value(&mut self, thread: &Thread, stored: &Stored) {
        if self.launch.stored_others[usize::from(stored.place)] {
            return;
        }
        if let Some(finding) = self.launch.grown.get_mut(&stored.place) {
            finding.count += 1;
            return;
        }
        let finding = self.of_local(thread, stored, "has grown from");
        self.launch.grown.insert(stored.place, finding);
    }

    fn of_local(&mut self, thread: &Thread, stored: &Stored, relation: &str) -> Finding {
        let space = self.locate(stored.address).map_or(Space::Global, |l| l.1);
        let launch = &mut *self.launch;
        let name = launch.name(space, stored.address, &self.shared);
        let me = Cell::new(Kind::Write, thread.index(), self.block, 0, stored.place);
        let mut finding = Finding::new(
            What::UninitialisedLocal,
            format!(
                "uninitialised: what is written to {name} {relation} a local variable that never got a value"
            ),
        )
        .fix("give the variable a value where it is declared");
        finding.suspects = launch.module().suspects();
        finding.accesses.push(launch.by(describe(Kind::Write, stored.bytes as usize), me));
        finding
    }

    /// All threads that race here write what is there already: whoever comes last, the result is
    /// the same.
    #[cold]
    fn same_value(&mut self, index: usize, same: bool) {
        if let Some(finding) = self.launch.findings.get_mut(index)
            && same
            && finding
                .accesses
                .iter()
                .all(|a| a.what.starts_with("write") || a.what.starts_with("volatile write"))
        {
            finding.count -= 1;
        }
    }

    #[cold]
    fn local(&mut self, thread: &Thread, stored: &Stored) {
        let launch = &mut *self.launch;
        let suspects = launch.module().has_suspects();
        // Two bytes may hold the pattern by chance; not where the compiler suspects no variable.
        if stored.bytes < 4 && !suspects || !launch.locals.insert(stored.place) {
            return;
        }
        let finding = self.of_local(thread, stored, "is");
        self.launch.keep(finding);
    }

    /// A loop reads what a block has written that had not begun when this one began to wait, behind `begun` others.
    #[cold]
    pub(super) fn waits_for_later(
        &mut self,
        thread: &Thread,
        address: usize,
        begun: u64,
        pc: usize,
    ) {
        let launch = &mut *self.launch;
        let Some(writer) = launch.published.get(&address).and_then(Published::writer) else {
            return;
        };
        let place = launch.places.number(pc);
        if launch.began_behind(writer) <= begun || !launch.later.insert(place) {
            return;
        }
        let other = launch.geometry.block_index(u64::from(writer));
        let me = thread.who.at(Kind::StrongRead, 0, place);
        let message = format!(
            "a block waits for block {}, which need not begin before this one ends",
            Index(other)
        );
        let mut finding = Finding::new(What::AwaitsBlock, message).fix(
            "launch it as a cooperative one; or let each block take its number by an atomic, and wait for lower ones alone",
        );
        finding.formal = Some(
            "a GPU that has room for both runs them at once; a cooperative launch alone promises that it has",
        );
        finding.accesses.push(launch.by("a loop waits".into(), me));
        launch.keep(finding);
    }

    /// The threads of a block have met at the barrier there.
    pub(crate) fn met(&mut self, pc: usize) {
        let barriers = &mut self.launch.barriers;
        if barriers.last() != Some(&pc) && !barriers.contains(&pc) {
            barriers.push(pc);
        }
    }

    /// The threads of a block have met at a barrier, each at its own place. `split` has two places where lanes of one warp
    /// stand, if there are such: PTX lets each warp come to a barrier of its own, and lanes of one warp to the same alone.
    pub(crate) fn met_at(
        &mut self,
        standing: impl Fn() -> Vec<Standing>,
        mut pcs: [usize; 2],
        split: impl FnOnce() -> Option<[usize; 2]>,
    ) {
        let launch = &mut *self.launch;
        // Clones of one call, of an unrolled loop say, have the same place and callers.
        let [first, other] = pcs.map(|pc| launch.module().frames(pc));
        let split = split();
        if first == other && split.is_none() {
            return;
        }
        pcs = split.unwrap_or(pcs);
        let (a, b) = (launch.places.number(pcs[0]), launch.places.number(pcs[1]));
        if let Some(&known) = launch.races.get(&(a, b)) {
            if let Some(finding) = launch.findings.get_mut(known)
                && split.is_some()
                && finding.formal.is_some()
            {
                (finding.formal, finding.standing) = (None, standing());
            }
            return;
        }
        let finding = Finding::new(
            What::DivergentBarrier,
            "divergent barrier: threads of one block meet at barriers of different places",
        );
        let mut finding = finding.standing(standing()).fix(
            "let all threads of the block come to the same __syncthreads(): move it out of the branch",
        );
        finding.formal = split.is_none().then_some(
            "each warp came as a whole, and PTX's barrier counts warps; CUDA's guide wants a condition around a barrier to \
             be the same for the whole block",
        );
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.races.insert((a, b), index);
    }

    /// Some threads of a block have met at a barrier, and the others have ended, these by way of accesses at `gone`: who was
    /// behind the barrier by then has gone past it.
    pub(crate) fn passed_by(
        &mut self,
        standing: impl Fn() -> Vec<Standing>,
        barrier: usize,
        gone: impl Iterator<Item = usize>,
    ) {
        let launch = &mut *self.launch;
        let at = launch.places.number(barrier);
        let mut gone: Vec<usize> = gone.filter(|&pc| pc != 0).collect();
        gone.sort_unstable();
        gone.dedup();
        for pc in gone {
            let pair = (at, launch.places.number(pc));
            if !launch.passed.insert(pair) || !launch.is_behind(pc, barrier) {
                continue;
            }
            let message =
                "divergent barrier: some threads of the block have passed it by and ended";
            let mut finding = Finding::new(What::DivergentBarrier, message).standing(standing()).fix(
                "let all threads of the block come to the same __syncthreads(): move it out of the branch",
            );
            finding.formal = Some(
                "a GPU does not wait for threads that have ended; CUDA's guide wants a condition around a barrier to be \
                 the same for the whole block",
            );
            launch.keep(finding);
            return;
        }
    }

    /// Lanes of a warp came to the same collective with different masks.
    pub(crate) fn masks_differ(&mut self, thread: &Thread, own: Operand, lane: usize, mask: u32) {
        let message = format!(
            "{} with mask {:#010x} names lane {lane}, which came to it with mask {mask:#010x}",
            own.op.cuda_name(),
            own.mask
        );
        let fix = "all lanes that a mask names must pass the same mask";
        self.at_collective(thread, What::BadCollective, message, fix, own.op.cuda_name());
    }

    /// A shuffle that reads a lane which does not take part.
    pub(crate) fn absent_lane(&mut self, thread: &Thread, source: usize, op: &'static str) {
        let message =
            format!("{op} reads lane {source}, which does not take part: the value is undefined");
        let fix = "name the lane in the mask and let it come, or do not read from it";
        self.at_collective(thread, What::AbsentLane, message, fix, op);
    }

    /// All lanes have come to a collective on matrices.
    ///
    /// # Errors
    /// A row for ldmatrix that is not in shared memory.
    pub(crate) fn matrices(&mut self, threads: &[Thread], op: Collective) -> Result<(), Fatal> {
        let launch = &mut *self.launch;
        if let Some(counters) = &mut launch.counters {
            counters.matrices(launch.places.number(threads[0].pc), op);
        }
        for thread in threads {
            // SAFETY: the thread brought the address of its operand, and is suspended.
            let Some(row) = (unsafe { matrix::row_address(op, thread.operand.value as usize) })
            else {
                continue;
            };
            if matches!(self.locate(row), Some((_, Space::Static | Space::Dynamic, _))) {
                continue;
            }
            let launch = &mut *self.launch;
            let name = launch.name(Space::Global, row, &self.shared);
            let message = format!("ldmatrix reads shared memory, and {name} is not there");
            let mut finding = Finding::new(What::InvalidAddress, message)
                .fix("copy the tile into shared memory first, or load the registers one by one");
            let me = thread.who.at(Kind::Read, 0, launch.places.number(thread.pc));
            finding.accesses.push(launch.by("ldmatrix".into(), me));
            return Err(Box::new(finding));
        }
        Ok(())
    }

    /// One finding for each place.
    fn at_collective(
        &mut self,
        thread: &Thread,
        kind: What,
        message: String,
        fix: &str,
        op: &'static str,
    ) {
        let launch = &mut *self.launch;
        let place = launch.places.number(thread.pc);
        if launch.races.contains_key(&(place, PLACE_UNKNOWN)) {
            return;
        }
        let me = thread.who.at(Kind::Read, 0, place);
        let mut finding = Finding::new(kind, message).fix(fix);
        finding.accesses.push(launch.by(op.to_owned(), me));
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.races.insert((place, PLACE_UNKNOWN), index);
    }
}

/// What orders an access behind a product that reads the same.
const WGMMA_READS: &str = "wgmma.commit_group and wgmma.wait_group 0 (wgmma_commit(), wgmma_wait<0>()) by the threads \
     that multiply, then a barrier or an arrival for who writes their operands";

pub(super) fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::StrongRead => "volatile or acquire read",
        Kind::StrongWrite => "atomic write",
        Kind::VolatileWrite => "volatile write",
        Kind::AsyncWrite => "asynchronous copy to here",
        Kind::AsyncRead => "asynchronous copy from here",
        Kind::Landed => "copy to here, waited for",
    }
}

pub(crate) fn describe(kind: Kind, bytes: usize) -> String {
    format!("{} of {bytes} bytes", verb(kind))
}

/// What orders accesses of lanes of a warp, and of warps of a block.
pub(super) const OF_WARP: &str =
    "lanes of a warp do not run in step: __syncwarp() between the two, or __syncthreads()";
pub(super) const OF_BLOCK: &str = "__syncthreads() between the two";
/// The same, where threads of the launch meet at mbarriers.
const OF_MBARRIER: &str =
    "an arrival at an mbarrier (cuda::barrier) by the one and a wait for its phase by the other";
/// What orders blocks of a cooperative launch.
const OF_GRID: &str = "grid.sync() between the two, by all threads of the grid";
/// What ends copies of a launch that has no mbarrier.
const OF_COPY: &str = "each thread waits for its own copies (cp.async.wait_group, perhaps with a smaller N), then __syncthreads()";
/// What ends copies of a launch that has mbarriers: a bulk copy and one of a thread look the same under way.
const OF_ANY_COPY: &str = "wait for the copy: for the phase of the mbarrier at which it counts, or by cp.async.wait_group, \
     perhaps with a smaller N, in each thread that copies, then __syncthreads() for threads that did not wait";

/// What would order the two.
fn remedy(other: Cell, me: Cell, space: Space, formal: Option<Formal>) -> &'static str {
    let strong = other.kind().strong() || me.kind().strong();
    match (Need::of(other, me, space, formal), strong) {
        (Need::Copy, _) if other.by_agent() && !other.kind().in_flight() => {
            "wait for the phase of the mbarrier at which the copy counts"
        }
        (Need::Copy, _) if other.by_agent() => {
            "wait for the copy (at its mbarrier, or for its bulk group), then __syncthreads() for threads that did not wait"
        }
        (Need::Copy, _) => OF_COPY,
        (Need::Warp, true) => "__syncwarp() between the two",
        (Need::Block, true) => "make both accesses atomic, or put a barrier between them",
        (Need::Warp, false) => OF_WARP,
        (Need::Block, false) => OF_BLOCK,
        (Need::Cluster | Need::Grid, true) if beyond_scope(other, me) => {
            "a scope that both threads are in: atomicAdd() in place of atomicAdd_block(), thread_scope_device in place of \
             thread_scope_block"
        }
        (Need::Cluster | Need::Grid, true) => {
            "make both accesses atomic, or publish by __threadfence() before the flag \
             is set and __threadfence() after it is seen"
        }
        (Need::Cluster, false) => "cluster.sync() between the two",
        (Need::Grid, false) => {
            "blocks run in any order: let one block own it, use an atomic, publish it by \
             __threadfence() and a flag with __threadfence() after the flag is seen, or split the \
             kernel in two"
        }
    }
}

/// Whether two that race are atomics, so that what is wrong is their scope.
fn beyond_scope(other: Cell, me: Cell) -> bool {
    let atomic = |kind: Kind| kind.strong() && kind != Kind::VolatileWrite;
    atomic(other.kind()) && atomic(me.kind())
}

/// How far what orders two accesses must reach, the narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Warp,
    Block,
    /// A wait for a copy, whoever uses the memory.
    Copy,
    Cluster,
    Grid,
}

impl Need {
    fn of(other: Cell, me: Cell, space: Space, formal: Option<Formal>) -> Self {
        if other.kind().in_flight() || other.by_agent() {
            return Self::Copy;
        }
        let strong = other.kind().strong() || me.kind().strong();
        // Atomics of one warp would be mended as those of a block are.
        let as_of_block = strong && formal != Some(Formal::InStep);
        if other.same_block(me) {
            if other.same_warp(me) && !as_of_block { Self::Warp } else { Self::Block }
        } else if matches!(space, Space::Static | Space::Dynamic) {
            Self::Cluster
        } else {
            Self::Grid
        }
    }

    /// Between whom a pair is that needs no more.
    fn between(self) -> &'static str {
        match self {
            Self::Warp => "between lanes of one warp",
            Self::Block => "between warps of one block",
            Self::Copy => "while a copy is under way",
            Self::Cluster => "between blocks of one cluster",
            Self::Grid => "between blocks",
        }
    }
}

/// What the pairs need that one finding stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    widest: Need,
    narrower: Option<Need>,
}

impl Needs {
    fn new(need: Need) -> Self {
        Self { widest: need, narrower: None }
    }

    /// Another pair was seen; whether it needs more than all before.
    fn widen(&mut self, need: Need) -> bool {
        let before = self.widest;
        self.widest = before.max(need);
        // Of several the widest.
        let narrower = if need == before { None } else { Some(before.min(need)) };
        self.narrower = self.narrower.max(narrower);
        need > before
    }

    /// What the fix, which is for the widest, says of the others.
    pub(super) fn others(self) -> Option<String> {
        self.narrower.map(|need| format!("; also {}", need.between()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_keep_the_widest() {
        let seen = |all: &[Need]| {
            let mut needs = Needs::new(all[0]);
            let widened = all[1..].iter().filter(|&&need| needs.widen(need)).count();
            (needs.widest, needs.narrower, widened)
        };
        use Need::{Block, Grid, Warp};
        assert_eq!(seen(&[Warp, Warp]), (Warp, None, 0));
        assert_eq!(seen(&[Warp, Block]), (Block, Some(Warp), 1));
        assert_eq!(seen(&[Grid, Warp, Grid]), (Grid, Some(Warp), 0));
        assert_eq!(seen(&[Warp, Block, Grid, Warp]), (Grid, Some(Block), 2));
    }
}
