//! Copies that go on while their thread does, and the barriers at which they count.

use std::ffi::c_void;

use super::yield_point;
use crate::abi;
use crate::access::{How, Kind};
use crate::clock::Scope;
use crate::completion::groups::Copy;
use crate::completion::mbarrier::{self, MOST, Misuse};
use crate::completion::{Flight, What};
use crate::counters::sectors_of;
use crate::running::Running;
use crate::thread::{Await, Fault, State};
use crate::trace::Signal;

// ---- cp.async -------------------------------------------------------------------------------------

pub(super) fn async_copy(thread: &mut Running, to: *mut c_void, from: *const c_void, bytes: u32) {
    async_copy_aligned(thread, to, from, bytes, bytes);
}

pub(super) fn async_copy_aligned(
    thread: &mut Running,
    to: *mut c_void,
    from: *const c_void,
    bytes: u32,
    alignment: u32,
) {
    let (to, from, pc) = (to as usize, from as usize, thread.pc());
    let ends = [(from, Kind::AsyncRead), (to, Kind::AsyncWrite)];
    for (address, kind) in ends.into_iter().filter(|_| alignment != bytes) {
        let check = thread.check();
        let looked_at =
            check.map(|(check, own)| check.aligned(own, (address, alignment as usize), kind, pc));
        if let Some(Err(found)) = looked_at {
            thread.fail(Fault::Found(found));
        }
    }
    if bytes > 0 {
        let how = How { whole: alignment == bytes, ..How::default() };
        let copy = start(thread, to, from, bytes as usize, how, false);
        thread.thread().copies.issue(copy);
    }
}

/// Looks at both ends of a copy, and makes it if it is to be made at once.
fn start(thread: &mut Running, to: usize, from: usize, bytes: usize, how: How, adds: bool) -> Copy {
    let pc = thread.pc();
    let mut copy = Copy { to, from, bytes, pc, made: false, held: None, adds };
    thread.look_at(from, bytes, Kind::AsyncRead, how, pc);
    if adds {
        // Here and now: the copy's own write would race with a read that is under way.
        thread.look_at(to, bytes, Kind::Read, how, pc);
    }
    thread.look_at(to, bytes, Kind::AsyncWrite, how, pc);
    if thread.queue().lands_at_once() {
        // SAFETY: a kernel's own addresses, which a checked one has had looked at; what is behind
        // them is the kernel's affair, as with its other accesses.
        unsafe { copy.make() };
    }
    copy
}

pub(super) fn async_commit(thread: &mut Running) {
    thread.thread().copies.commit();
}

/// Waits for all closed groups but the latest `pending`.
pub(super) fn async_wait(thread: &mut Running, pending: u32) {
    let how = How { lands: true, ..How::default() };
    for copy in thread.thread().copies.complete(pending as usize) {
        thread.look_at(copy.from, copy.bytes, Kind::Read, how, copy.pc);
        finish(thread, copy, Kind::Write, how);
    }
}

/// A copy is waited for: it is made now at the latest.
fn finish(thread: &mut Running, mut copy: Copy, kind: Kind, how: How) {
    thread.look_at(copy.to, copy.bytes, kind, how, copy.pc);
    // SAFETY: a kernel's own addresses, which a checked one has had looked at when it asked for the copy; what is behind them is
    // the kernel's affair, as with its other accesses.
    unsafe { copy.make() };
}

// ---- mbarriers ------------------------------------------------------------------------------------

fn scope_of(thread: &mut Running, scope: i32) -> Scope {
    match scope {
        abi::SCOPE_BLOCK => Scope::Block,
        abi::SCOPE_CLUSTER => Scope::Cluster,
        abi::SCOPE_DEVICE => Scope::Device,
        _ => thread.fail(Fault::Trap(format!("unknown scope {scope}"))),
    }
}

/// Lets the checks look at what an instruction does with the barrier's own bytes; `in_copy`: only when
/// what it asks for lands.
pub(super) fn touch(thread: &mut Running, address: usize, kind: Kind, in_copy: bool) {
    let updates = kind == Kind::StrongWrite;
    let how = How { whole: true, updates, mbarrier: true, in_copy, ..How::default() };
    let pc = thread.pc();
    thread.look_at(address, 8, kind, how, pc);
    if let Some((check, thread)) = thread.check() {
        check.mbarrier_used(thread, address, kind, pc);
    }
}

/// Fails with what is wrong about a use of a barrier.
fn misuse(thread: &mut Running, address: usize, misuse: Misuse) -> ! {
    let pc = thread.pc();
    let finding = match thread.check() {
        Some((check, thread)) => check.report_misuse(thread, address, misuse, pc),
        None => Box::new(misuse.finding("an mbarrier")),
    };
    thread.fail(Fault::Found(finding))
}

fn aligned(thread: &mut Running, address: usize) {
    if !address.is_multiple_of(8) {
        thread.fail(Fault::Misaligned { what: "the address of an mbarrier".into(), bytes: 8 });
    }
}

pub(super) fn mbarrier_init(thread: &mut Running, barrier: *mut c_void, arrivals: u32) {
    let address = barrier as usize;
    aligned(thread, address);
    if !(1..=MOST).contains(&arrivals) {
        let message = format!("mbarrier_init: expected 1 to {MOST} arrivals, got {arrivals}");
        thread.fail(Fault::Trap(message));
    }
    if thread.check().is_some_and(|(check, _)| check.is_mbarrier(address)) {
        misuse(thread, address, Misuse::InitialisedTwice);
    }
    let how = How { whole: true, mbarrier: true, ..How::default() };
    let pc = thread.pc();
    thread.look_at(address, 8, Kind::Write, how, pc);
    // SAFETY: a kernel's own address, which a checked one has had looked at.
    unsafe { mbarrier::init(address, arrivals) };
    if let Some((check, thread)) = thread.check() {
        check.mbarrier_init(thread, address, arrivals, pc);
        check.trace_mbarrier(thread.index(), pc, address, Signal::Made);
    }
}

/// A fence for other blocks; that the initialisation alone is fenced is not modelled.
pub(super) fn mbarrier_fence_init(thread: &mut Running) {
    if let Some((check, thread)) = thread.check() {
        check.fence(thread.index(), Scope::Device);
    }
}

pub(super) fn mbarrier_invalidate(thread: &mut Running, barrier: *mut c_void) {
    let address = barrier as usize;
    wait_until_initialised(thread, address);
    let how = How { whole: true, mbarrier: true, ..How::default() };
    let pc = thread.pc();
    thread.look_at(address, 8, Kind::Write, how, pc);
    // SAFETY: it was looked at: 8 aligned bytes of shared memory; one thread of a block runs at a time.
    unsafe { mbarrier::invalidate(address) };
    if let Some((check, _)) = thread.check() {
        check.mbarrier_invalidate(address);
    }
}

/// Waits until somebody has made it a barrier. If nobody does, that is what is wrong; if somebody does
/// later, then nothing has ordered the two, which the checks see.
pub(super) fn wait_until_initialised(thread: &mut Running, address: usize) {
    aligned(thread, address);
    loop {
        // SAFETY: it is aligned, and a stray address traps in the thread that has it, as any of a kernel does.
        if unsafe { mbarrier::state(address) } != Err(Misuse::NotInitialised) {
            return;
        }
        if thread.check().is_some() {
            // That the address is shared memory at all.
            let how = How { whole: true, mbarrier: true, updates: false, ..How::default() };
            let pc = thread.pc();
            thread.look_at(address, 8, Kind::StrongWrite, how, pc);
        }
        thread.thread().awaits = Await { address, parity: None };
        thread.suspend(State::Mbarrier);
        // SAFETY: the address has not changed; meanwhile others may have written there, none does now.
        let still = unsafe { mbarrier::state(address) } == Err(Misuse::NotInitialised);
        if still && thread.thread().result == 0 {
            misuse(thread, address, Misuse::NotInitialised);
        }
    }
}

pub(super) fn mbarrier_arrive(
    thread: &mut Running,
    barrier: *mut c_void,
    arrivals: u32,
    expected: u32,
    scope: i32,
) {
    let address = barrier as usize;
    let scope = scope_of(thread, scope);
    wait_until_initialised(thread, address);
    touch(thread, address, Kind::StrongWrite, false);
    // SAFETY: it is a barrier, as was just seen, and one thread of a block runs at a time.
    let outcome = unsafe { mbarrier::arrive(address, arrivals, expected) };
    if outcome == Ok(true)
        && let Some(cluster) = thread.cluster()
    {
        cluster.tell();
    }
    let pc = thread.pc();
    let found = match thread.check() {
        Some((check, thread)) => {
            let what = (arrivals, expected);
            let found = check.mbarrier_arrived(thread, address, what, scope, outcome, pc).err();
            check.trace_mbarrier(thread.index(), pc, address, Signal::Arrives { expected });
            found
        }
        None => outcome.err().map(|misuse| Box::new(misuse.finding("an mbarrier"))),
    };
    if let Some(finding) = found {
        thread.fail(Fault::Found(finding));
    }
    yield_point(thread, 0);
}

/// Whether the phase of this parity is complete. Gives the turn away until it is, or until nothing else
/// goes on. Where the scope says that it may give up, as PTX lets it, it says no to the first look at a
/// phase that is not complete: whoever goes on in spite of that is found by what is not there yet.
pub(super) fn mbarrier_try_wait(
    thread: &mut Running,
    barrier: *mut c_void,
    parity: u32,
    scope: i32,
) -> i32 {
    let address = barrier as usize;
    let gives_up = scope & abi::GIVES_UP != 0;
    let scope = scope_of(thread, scope & !abi::GIVES_UP);
    wait_until_initialised(thread, address);
    touch(thread, address, Kind::StrongRead, false);
    // SAFETY: it is a barrier, as was just seen, and one thread of a block runs at a time.
    let test = || unsafe { mbarrier::test(address, parity & 1) };
    let mut complete = test();
    let pc = thread.pc();
    let looked_at = Await { address, parity: Some(parity & 1) };
    if gives_up && complete == Ok(false) && thread.thread().refused != looked_at {
        thread.thread().refused = looked_at;
        yield_point(thread, 0);
        return 0;
    }
    thread.thread().refused = Await::default();
    if complete == Ok(false) {
        if let Some((check, thread)) = thread.check() {
            check.trace_mbarrier(thread.index(), pc, address, Signal::Waits { phase: parity });
        }
        thread.thread().awaits = looked_at;
        thread.suspend(State::Mbarrier);
        complete = test();
    }
    match complete {
        Err(found) => misuse(thread, address, found),
        Ok(false) => 0,
        Ok(true) => {
            if let Some((check, thread)) = thread.check() {
                check.mbarrier_passed(thread.index(), address, scope);
                check.trace_mbarrier(thread.index(), pc, address, Signal::Passes { phase: parity });
            }
            1
        }
    }
}

// ---- copies that an mbarrier counts ---------------------------------------------------------------

/// Sends a copy on its way.
pub(super) fn send(thread: &mut Running, what: What, bytes: usize, barrier: usize) {
    let pc = thread.pc();
    let brings = matches!(what, What::Store { .. });
    let known = thread.check().filter(|_| brings);
    let known = known.map(|(check, thread)| check.clock.snapshot(thread.index()));
    let issuer = thread.thread().index();
    let flight = Flight { what, bytes, barrier, issuer, pc, known };
    if !thread.queue().lands_at_once() {
        return thread.queue().add(flight);
    }
    let check = thread.check().map(|(check, _)| check);
    // SAFETY: a kernel's own addresses, which a checked one has had looked at.
    let outcome = unsafe { flight.land(check) };
    if let Some(cluster) = thread.cluster() {
        cluster.tell();
    }
    if let Err(finding) = outcome {
        thread.fail(Fault::Found(finding));
    }
}

pub(super) fn store_async(
    thread: &mut Running,
    to: *mut c_void,
    value: u64,
    bytes: u32,
    barrier: *mut c_void,
) {
    let (to, bytes, barrier) = (to as usize, bytes as usize, barrier as usize);
    wait_until_initialised(thread, barrier);
    let how = How { whole: true, ..How::default() };
    let pc = thread.pc();
    thread.look_at(to, bytes, Kind::AsyncWrite, how, pc);
    touch(thread, barrier, Kind::StrongWrite, true);
    send(thread, What::Store { to, value: value.to_ne_bytes() }, bytes, barrier);
}

/// Puts a copy into the thread's open bulk group; one that `adds` reads what it writes.
pub(super) fn join(
    thread: &mut Running,
    to: usize,
    from: usize,
    bytes: usize,
    how: How,
    adds: bool,
) {
    let copy = start(thread, to, from, bytes, how, adds);
    thread.thread().bulk.issue(copy);
}

/// Bulk copies take whole units of 16 bytes.
const UNIT: usize = 16;

pub(super) fn bulk_copy(
    thread: &mut Running,
    to: *mut c_void,
    from: *const c_void,
    bytes: u32,
    barrier: *mut c_void,
) {
    for (what, value) in [
        ("the target of a bulk copy", to as usize),
        ("the source of a bulk copy", from as usize),
        ("the size of a bulk copy", bytes as usize),
    ] {
        if !value.is_multiple_of(UNIT) {
            let what = format!("{what}, {value:#x},");
            thread.fail(Fault::Misaligned { what, bytes: UNIT as u32 });
        }
    }
    let how = How { proxy: true, ..How::default() };
    let (to, from, bytes, barrier) = (to as usize, from as usize, bytes as usize, barrier as usize);
    let pc = thread.pc();
    let (stores, global) = if barrier == 0 { (true, to) } else { (false, from) };
    let sends = thread.block().to_window(global).is_some();
    if let Some((check, _)) = thread.check().filter(|_| !sends) {
        check.bulk(pc, stores, || (sectors_of(global..global + bytes), bytes));
    }
    if barrier == 0 {
        return join(thread, to, from, bytes, how, false);
    }
    wait_until_initialised(thread, barrier);
    thread.look_at(from, bytes, Kind::AsyncRead, how, pc);
    thread.look_at(to, bytes, Kind::AsyncWrite, how, pc);
    touch(thread, barrier, Kind::StrongWrite, true);
    send(thread, What::Copy { to, from }, bytes, barrier);
}

pub(super) fn bulk_commit(thread: &mut Running) {
    thread.thread().bulk.commit();
}

/// Waits for all closed groups but the latest `pending`, or until those have read their sources.
pub(super) fn bulk_wait(thread: &mut Running, pending: u32, reads_alone: i32) {
    let how = How { lands: true, ..How::default() };
    let mut read = Vec::new();
    for copy in thread.thread().bulk.completing(pending as usize) {
        // SAFETY: a kernel's own addresses, which a checked one has had looked at when it asked for the copy; what is behind them is
        // the kernel's affair, as with its other accesses.
        if unsafe { copy.read() } {
            read.push((copy.from, copy.bytes, copy.pc));
        }
    }
    for (from, bytes, pc) in read {
        thread.look_at(from, bytes, Kind::Read, how, pc);
    }
    if reads_alone == 0 {
        for copy in thread.thread().bulk.complete(pending as usize) {
            finish(thread, copy, Kind::Landed, how);
        }
    }
}

pub(super) fn fence_proxy_async(thread: &mut Running, shared_alone: i32) {
    if let Some((check, thread)) = thread.check() {
        check.clock.fence_proxy(thread.index(), shared_alone != 0);
    }
}
