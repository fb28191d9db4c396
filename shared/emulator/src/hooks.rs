//! What kernels call: a function for each hook and probe of `include/contract.def`, on top of the
//! running coroutine.

mod asynchronous;
mod tensor;
mod wgmma;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::{self, BarrierKind, Collective, Runtime};
use crate::access::{How, Kind};
use crate::check::Part;
use crate::clock::Scope;
use crate::cluster::Cluster;
use crate::copied_out;
use crate::module::{Module, ModuleError};
use crate::named::NAMED;
use crate::registers::Asks;
use crate::running::{BlockFacts, Running};
use crate::thread::{Comes, Fault, State, Thread};
use crate::warp::Operand;
use asynchronous::{
    async_commit, async_copy, async_copy_aligned, async_wait, bulk_commit, bulk_copy, bulk_wait,
    fence_proxy_async, mbarrier_arrive, mbarrier_fence_init, mbarrier_init, mbarrier_invalidate,
    mbarrier_try_wait, store_async,
};
use tensor::tensor_copy;
use wgmma::{wgmma, wgmma_commit, wgmma_fence, wgmma_wait};

// ---- whose coroutine runs -------------------------------------------------------------------------

// Here and not beside `Running`: read at every hook, and only inlined within a module.
thread_local! {
    static THREAD: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
    static BLOCK: Cell<*const BlockFacts> = const { Cell::new(std::ptr::null()) };
}

/// Says whose threads run on this OS thread from now on.
///
/// # Safety
/// The facts, and all that they point to, outlive the block's [`while_running`] calls.
pub(crate) unsafe fn enter_block(facts: *const BlockFacts) {
    BLOCK.set(facts);
}

/// Runs `resume` while `thread`, of the block that was entered last, is the running one.
///
/// # Safety
/// `resume` resumes the thread's coroutine and uses nothing of the thread or of the block's checks.
#[inline(always)]
pub(crate) unsafe fn while_running<R>(thread: *mut Thread, resume: impl FnOnce() -> R) -> R {
    THREAD.set(thread);
    let outcome = resume();
    THREAD.set(std::ptr::null_mut());
    outcome
}

/// The thread that runs on this OS thread, and the facts of its block; `None` outside of kernels.
/// For signal handlers, which interrupt a coroutine and not the scheduler.
#[inline(always)]
pub(crate) fn interrupted() -> Option<(NonNull<Thread>, *const BlockFacts)> {
    NonNull::new(THREAD.get()).map(|thread| (thread, BLOCK.get()))
}

/// Whether the code that asks is a kernel's, and not the host's.
pub fn in_kernel() -> bool {
    interrupted().is_some()
}

/// Who has called a hook that returns to `pc`; `None` outside of any thread.
///
/// # Safety
/// As for [`Running::new`].
#[inline(always)]
unsafe fn caller(pc: *const c_void) -> Option<Running> {
    let (thread, block) = interrupted()?;
    // SAFETY: the caller's promise, and that of `while_running`.
    Some(unsafe { Running::new(thread, block, pc as usize) })
}

macro_rules! runtime {
    // A kernel's constructors, and a program's host code, run outside of any thread. What the host reads and writes may
    // have been copied out of device memory; nothing else has a meaning there.
    (@outside probe read($address:ident, $bytes:ident) $pc:ident) => {{
        let (bytes, uses) = ($bytes & !abi::LOOSE, $bytes & abi::LOOSE == 0);
        copied_out::host_reads($address as usize, bytes, uses, $pc as usize);
        return;
    }};
    (@outside probe write($address:ident, $bytes:ident) $pc:ident) => {{
        copied_out::host_writes($address as usize, $bytes & !abi::LOOSE);
        return;
    }};
    (@outside probe $($other:tt)*) => { return };
    (@outside hook $($other:tt)*) => { std::process::abort() };
    ($($kind:ident fn $name:ident($($parameter:ident: $type:ty),*) -> $result:ty;)*) => {
        /// What kernels call: each finds the thread that runs, and goes on in the function of its name.
        static RUNTIME: Runtime = Runtime {$(
            $name: {
                extern "C" fn $name($($parameter: $type,)* pc: *const c_void) -> $result {
                    // SAFETY: glue.cpp passes the return address of the kernel's call; the thread is
                    // dropped here.
                    let Some(mut thread) = (unsafe { caller(pc) }) else {
                        runtime!(@outside $kind $name($($parameter),*) pc)
                    };
                    self::$name(&mut thread, $($parameter),*)
                }
                $name
            },
        )*};
    };
}
abi::for_all_hooks!(runtime);

impl Module {
    /// Loads an object that `lab-kernel-build` made. The bytes are written to the user's cache
    /// directory (a debugger finds its symbols there), or to memory where that cannot be written.
    ///
    /// # Errors
    /// The dynamic linker refuses the object, or it was made with other headers than this runtime's.
    ///
    /// # Safety
    /// The bytes are an object that `lab-kernel-build` made of CUDA C++, or none at all: it is loaded into this process, and what
    /// its constructors do, it does here.
    ///
    /// ```compile_fail,E0133
    /// # fn load(bytes: &'static [u8]) {
    /// // Whoever loads it says where it comes from.
    /// lab_emulator::Module::load(bytes);
    /// # }
    /// ```
    pub unsafe fn load(bytes: &'static [u8]) -> Result<Arc<Self>, ModuleError> {
        // SAFETY: the caller says where the object comes from, and that its constructors may run.
        unsafe { Self::bind(bytes, &RUNTIME) }
    }
}

// ---- where a thread is ----------------------------------------------------------------------------

fn coordinate(thread: &mut Running, which: i32) -> u32 {
    thread.thread().coordinates[which as usize]
}

fn dynamic_shared(thread: &mut Running) -> *mut c_void {
    thread.block().dynamic_shared.cast()
}

fn dynamic_shared_bytes(thread: &mut Running) -> u32 {
    thread.block().dynamic_shared_bytes
}

fn active_mask(thread: &mut Running) -> u32 {
    thread.suspend(State::ActiveMask);
    thread.thread().result as u32
}

/// Where block `rank` of the cluster has what this block has at `own`.
fn map_shared(thread: &mut Running, own: *const c_void, rank: u32) -> *mut c_void {
    let size = thread.cluster().map_or(1, Cluster::size);
    if rank >= size {
        let message =
            format!("map_shared_rank: expected a block of the cluster's {size}, got {rank}");
        thread.fail(Fault::NotMapped(message));
    }
    let address = own as usize;
    let facts = thread.block();
    let fixed = facts.fixed_shared;
    let dynamic = (facts.dynamic_shared as usize, facts.dynamic_shared_bytes as usize);
    let member = thread.cluster().and_then(|c| c.member(rank));
    let (fixed_there, dynamic_there) = member.map_or((fixed, dynamic), |m| (m.fixed, m.dynamic));
    for (here, there) in [(fixed, fixed_there), (dynamic, dynamic_there)] {
        if address.wrapping_sub(here.0) < here.1 {
            return (there.0 + (address - here.0)) as *mut c_void;
        }
    }
    let what = "map_shared_rank: expected an address in this block's shared memory".into();
    thread.fail(Fault::NotMapped(what))
}

/// The address of an mbarrier or tile, as descriptors have it: static memory first, then dynamic.
fn shared_window(thread: &mut Running, shared: *const c_void) -> u32 {
    if let Some(place) = thread.block().to_window(shared as usize) {
        return place as u32;
    }
    let what = "descriptor: expected an address in this block's shared memory".into();
    thread.fail(Fault::NotMapped(what))
}

/// As [`shared_window`], also of what lies behind the end of shared memory, which is no address of anything.
fn shared_number(thread: &mut Running, shared: *const c_void) -> u32 {
    match thread.block().behind_window(shared as usize) {
        Some(place) => place as u32,
        None => shared_window(thread, shared),
    }
}

/// What the window has at this place.
fn in_window(thread: &mut Running, place: u32) -> *mut c_void {
    if let Some(address) = thread.block().in_window(place as usize) {
        return address as *mut c_void;
    }
    let what = format!("shared memory: expected an address in this block's, got {place}");
    thread.fail(Fault::NotMapped(what))
}

// ---- waiting for others ---------------------------------------------------------------------------

fn barrier(thread: &mut Running, kind: i32, predicate: i32) -> i32 {
    let Some(kind) = BarrierKind::from_code(kind) else {
        thread.fail(Fault::Trap(format!("unknown barrier {kind}")))
    };
    thread.thread().predicate = predicate;
    thread.thread().polled.clear();
    count_barrier(thread);
    thread.suspend(State::Barrier(kind));
    thread.thread().result as i32
}

fn warp(thread: &mut Running, op: i32, mask: u32, value: u64, argument: u32, width: u32) -> u64 {
    let Some(op) = Collective::from_code(op) else {
        thread.fail(Fault::Trap(format!("unknown warp collective {op}")))
    };
    if mask >> thread.thread().lane & 1 == 0 {
        thread.fail(Fault::NotInOwnMask { op: op.cuda_name(), mask });
    }
    if !width.is_power_of_two() || width > 32 {
        thread.fail(Fault::BadWidth { width });
    }
    thread.thread().operand = Operand { op, mask, value, argument, width };
    thread.suspend(State::Collective);
    thread.thread().result
}

fn named_barrier(thread: &mut Running, number: u32, threads: u32, arrives_alone: i32) {
    if !(1..NAMED).contains(&(number as usize)) {
        let expected = "1 to 15, for 0 is that of __syncthreads()";
        thread.fail(Fault::BadBarrier(format!("number: expected {expected}, got {number}")));
    }
    if threads == 0 || !threads.is_multiple_of(32) || threads > 1024 {
        let expected = "a multiple of 32 up to 1024";
        thread.fail(Fault::BadBarrier(format!("threads: expected {expected}, got {threads}")));
    }
    count_barrier(thread);
    thread.thread().comes = Comes { number, threads, waits: arrives_alone == 0 };
    thread.suspend(State::Named);
}

fn set_registers(thread: &mut Running, registers: u32, increases: i32) {
    thread.thread().asks = Asks { registers, increases: increases != 0 };
    thread.suspend(State::Registers);
}

fn griddep_wait(thread: &mut Running) {
    if let Some((check, thread)) = thread.check() {
        check.griddep_wait(thread.index());
    }
}

fn griddep_launch_dependents(thread: &mut Running) {
    if let Some((check, thread)) = thread.check() {
        check.griddep_launch_dependents(thread.index());
    }
}

fn grid_sync(thread: &mut Running) {
    if !thread.block().cooperative {
        thread.fail(Fault::GridSyncNotCooperative);
    }
    let pc = thread.pc();
    if let Some((check, thread)) = thread.check() {
        check.grid_sync_comes(thread.index(), pc);
    }
    thread.suspend(State::GridSync);
}

fn cluster_sync(thread: &mut Running) {
    count_barrier(thread);
    thread.suspend(State::ClusterSync);
}

fn count_barrier(thread: &mut Running) {
    let pc = thread.pc();
    if let Some((check, thread)) = thread.check() {
        check.barrier_counts(thread.index(), pc);
    }
}

/// Atomics and fences between two turns given up: a loop that polls one still lets others run,
/// a kernel that merely uses them hardly pays.
const YIELDS_PER_TURN: u32 = 32;

fn yield_point(thread: &mut Running, sleeping: i32) {
    let quiet = &mut thread.thread().quiet_yields;
    *quiet += 1;
    if sleeping != 0 || *quiet >= YIELDS_PER_TURN {
        *quiet = 0;
        thread.suspend(State::Polling);
    }
}

fn fence(thread: &mut Running, scope: i32) {
    let scope = match scope {
        abi::SCOPE_BLOCK => Scope::Block,
        abi::SCOPE_CLUSTER | abi::SCOPE_DEVICE => Scope::Device,
        _ => thread.fail(Fault::Trap(format!("unknown scope of a fence {scope}"))),
    };
    if let Some((check, thread)) = thread.check() {
        check.fence(thread.index(), scope);
    }
    yield_point(thread, 0);
}

// ---- a kernel that stops --------------------------------------------------------------------------

fn trap(thread: &mut Running, message: *const c_char) -> ! {
    let message = copy_literal(message);
    thread.fail(Fault::Trap(message))
}

fn misaligned(thread: &mut Running, what: *const c_char, bytes: u32) -> ! {
    let what = copy_literal(what);
    thread.fail(Fault::Misaligned { what, bytes })
}

/// Static shared arrays lie elsewhere on a GPU; where nobody knows where, that is no matter.
fn tile_address(thread: &mut Running, address: *const c_void, bytes: u32) {
    let (at, pc) = (address as usize, thread.pc());
    let may_be = at.is_multiple_of(bytes as usize) || thread.block().to_window(at).is_some();
    let found = match thread.check() {
        Some((check, own)) => {
            let looked_at = check.aligned(own, (at, bytes as usize), Kind::Read, pc);
            looked_at.err().map(Fault::Found)
        }
        None if may_be => None,
        None => Some(Fault::Misaligned { what: "a wmma tile's address".into(), bytes }),
    };
    if let Some(fault) = found {
        thread.fail(fault);
    }
}

fn copy_literal(text: *const c_char) -> String {
    // SAFETY: the headers, kernels and the compiler pass string literals.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

// ---- accesses, of kernels compiled for the checks -------------------------------------------------

/// `kind`: a plain read or write.
#[inline(always)]
fn plain_access(thread: &mut Running, address: *const c_void, bytes: usize, kind: Kind) {
    let (address, pc) = (address as usize, thread.pc());
    let Some((check, own)) = thread.check() else { return };
    if !check.usual(own, address, bytes, kind, pc) {
        any_access(thread, address, bytes, kind);
    }
}

#[inline(never)]
fn any_access(thread: &mut Running, address: usize, bytes: usize, kind: Kind) {
    let how = How { whole: bytes & abi::LOOSE == 0, ..How::default() };
    let pc = thread.pc();
    thread.look_at(address, bytes & !abi::LOOSE, kind, how, pc);
}

fn read(thread: &mut Running, address: *const c_void, bytes: usize) {
    plain_access(thread, address, bytes, Kind::Read);
}

fn write(thread: &mut Running, address: *const c_void, bytes: usize) {
    plain_access(thread, address, bytes, Kind::Write);
}

/// A strong access.
fn access(thread: &mut Running, address: *const c_void, bytes: usize, flags: u32) {
    if thread.check().is_none() {
        return;
    }
    let address = address as usize;
    let flag = |flag: u32| flags & flag != 0;
    if flag(abi::CONSTANT) {
        let pc = thread.pc();
        if let Some((check, thread)) = thread.check() {
            check.constant(thread, (address, bytes), pc, flag(abi::WRITES));
        }
        return;
    }
    if flag(abi::ANYWHERE) {
        thread.thread().wgmma.forget(address, bytes);
        return;
    }
    // First others have their turn: what is told below is what the access itself will see.
    if flag(abi::POLLS) {
        yield_point(thread, 0);
    }
    let (reads, writes) = (flag(abi::READS), flag(abi::WRITES));
    note_poll(thread, address, writes);
    let (acquires, releases) = (flag(abi::ACQUIRES), flag(abi::RELEASES));
    let of_block = flag(abi::OF_BLOCK);
    let how = How { whole: true, updates: reads && writes, of_block, ..How::default() };
    let kind = match (writes, flag(abi::VOLATILE)) {
        (false, _) => Kind::StrongRead,
        (true, false) => Kind::StrongWrite,
        (true, true) => Kind::VolatileWrite,
    };
    let pc = thread.pc();
    thread.look_at(address, bytes, kind, how, pc);
    if let Some((check, thread)) = thread.check() {
        if flag(abi::COMPARES) {
            check.note_compared(thread, address);
        }
        let part = match (flag(abi::VOLATILE), writes, flag(abi::AWAITS)) {
            (false, true, _) => Some(Part::Overwritten),
            (true, true, _) => Some(Part::Written),
            (true, false, true) => Some(Part::Awaited),
            (true, false, false) => Some(Part::Read),
            (false, false, _) => None,
        };
        if let Some(part) = part {
            check.pass_message(thread, (address, bytes), part, pc);
        }
        check.publish(thread.index(), address, (reads, writes), (acquires, releases));
    }
}

/// Tells the checks of a read that a loop makes again and again.
fn note_poll(thread: &mut Running, address: usize, writes: bool) {
    const KEPT: usize = 8; // flags that one loop waits for
    let pc = thread.pc();
    let polled = &mut thread.thread().polled;
    if writes {
        return polled.clear();
    }
    // The compiler may have made two reads of a loop's one.
    let before = polled.iter().find(|read| read.1 == address).copied();
    if before.is_none_or(|read| read.0 != pc) {
        polled.truncate(KEPT - 1);
        polled.insert(0, (pc, address));
    }
    if let Some((earlier, _)) = before
        && let Some((check, thread)) = thread.check()
    {
        check.polls(thread, address, [earlier, pc]);
    }
}

fn alignment(thread: &mut Running, address: *const c_void, bytes: usize) {
    let pc = thread.pc();
    let Some((check, own)) = thread.check() else { return };
    if let Err(found) = check.part(own, address as usize, bytes, pc) {
        thread.fail(Fault::Found(found));
    }
}

fn beyond_local(thread: &mut Running, address: *const c_void, type_name: *const c_char) {
    let type_name = copy_literal(type_name);
    let pc = thread.pc();
    let Some((check, own)) = thread.check() else { return };
    let here = 0u8;
    let found = match type_name.as_str() {
        abi::BEFORE => {
            let used = &raw const here as usize..own.stack.end;
            check.before_local(own, address as usize, used, pc)
        }
        name => check.beyond_local(own, address as usize, name.trim_matches('\''), pc),
    };
    if let Err(found) = found {
        thread.fail(Fault::Found(found));
    }
}

fn bounds(thread: &mut Running, array: *const c_char, index: i64) {
    let array = copy_literal(array);
    let pc = thread.pc();
    let Some((check, own)) = thread.check() else { return };
    let found = check.index(own, array.trim_matches('\''), index, pc);
    thread.fail(Fault::Found(found));
}
