//! wgmma: each lane asks for its part of a product, closes groups, waits for them.

use std::ffi::c_void;

use crate::abi;
use crate::access::{How, Kind};
use crate::completion::wgmma::{Part, Shape, WARPS, reads};
use crate::running::Running;
use crate::thread::{Fault, State};

pub(super) fn wgmma(
    thread: &mut Running,
    accumulators: *mut c_void,
    a: u64,
    b: u64,
    registers: *const c_void,
    shape: u32,
    flags: u32,
) {
    let shape = match Shape::decode(shape, flags, !registers.is_null()) {
        Ok(shape) => shape,
        Err(wrong) => thread.fail(Fault::Trap(format!("wgmma: {wrong}"))),
    };
    let pc = thread.pc();
    let (to, registers) = (accumulators as usize, registers as usize);
    let compiled = flags & abi::WGMMA_COMPILED != 0;
    let part = Part { shape, to, a, b, registers, compiled, pc };
    let wrong = match thread.check() {
        Some((check, thread)) => check.wgmma(thread, &part).err(),
        None => None,
    };
    if let Some(finding) = wrong {
        thread.fail(Fault::Found(finding));
    }
    if thread.thread().lane == 0 {
        // One lane speaks for the warp: its rows of A, and its share of B.
        let warp = thread.thread().warp as usize % WARPS;
        let how = How { whole: true, proxy: true, ..How::default() };
        for place in reads(&part, warp) {
            let Some(address) = thread.block().in_window(place) else {
                let what = format!("wgmma: a descriptor reaches byte {place} of the shared window");
                thread.fail(Fault::NotMapped(what));
            };
            thread.look_at(address, 16, Kind::AsyncRead, how, pc);
        }
    }
    thread.thread().wgmma.ask(part);
}

pub(super) fn wgmma_fence(thread: &mut Running) {
    thread.thread().wgmma.fence();
}

pub(super) fn wgmma_commit(thread: &mut Running) {
    thread.thread().wgmma.commit();
}

/// Waits for all closed groups but the latest `pending`.
pub(super) fn wgmma_wait(thread: &mut Running, pending: u32) {
    let own = thread.thread();
    let Some(target) = own.wgmma.target(pending as usize) else { return };
    own.wgmma.awaited = target;
    if target > own.wgmma.made {
        thread.suspend(State::Wgmma);
    }
    if let Some((check, thread)) = thread.check() {
        check.wgmma_waited(thread);
    }
    thread.thread().wgmma.waited(pending as usize);
}
