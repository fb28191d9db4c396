//! The state of an `mbarrier`, in its own 8 bytes of shared memory, as on the hardware: blocks of a
//! cluster that run at the same time count in it by atomics.
//!
//! ```text
//! phase     1    its parity
//! pending  20    arrivals that are still to come in this phase
//! count    20    arrivals of a phase
//! bytes    21    that are still to come in this phase; negative where they came before their time
//! tag       2    that it is one: neither zeros nor poison
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of arrivals of a phase, and of bytes that one may wait for. PTX ISA, "Valid
/// Ranges".
pub(crate) const MOST: u32 = (1 << 20) - 1;

const TAG: u64 = 0b10;
/// What is left of one that was invalidated.
const INVALID: u64 = 0x5ADD_1EAF_0DD5_B175;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) parity: u32,
    pub(crate) pending: u32,
    pub(crate) count: u32,
    pub(crate) bytes: i32,
}

/// What cannot be done with a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// Nobody has made it one.
    NotInitialised,
    /// It is none any more.
    Invalidated,
    /// It is one already.
    InitialisedTwice,
    /// More have arrived in a phase than its count.
    TooMany { count: u32 },
    /// More bytes are expected, or have come unexpected, than it can count.
    Bytes,
}

impl State {
    fn pack(self) -> u64 {
        u64::from(self.parity)
            | u64::from(self.pending) << 1
            | u64::from(self.count) << 21
            | (self.bytes as u64 & 0x1F_FFFF) << 41
            | TAG << 62
    }

    fn unpack(word: u64) -> Result<Self, Misuse> {
        if word == INVALID {
            return Err(Misuse::Invalidated);
        }
        if word >> 62 != TAG {
            return Err(Misuse::NotInitialised);
        }
        Ok(Self {
            parity: word as u32 & 1,
            pending: (word >> 1) as u32 & MOST,
            count: (word >> 21) as u32 & MOST,
            bytes: ((word >> 41) as u32 as i32) << 11 >> 11,
        })
    }

    /// The next phase, if this one is complete.
    fn settled(self) -> (Self, bool) {
        let complete = self.pending == 0 && self.bytes == 0;
        let next = Self { parity: self.parity ^ 1, pending: self.count, ..self };
        (if complete { next } else { self }, complete)
    }

    fn arrived(self, arrivals: u32, expected: u32) -> Result<Self, Misuse> {
        let pending = self.pending.checked_sub(arrivals);
        let pending = pending.ok_or(Misuse::TooMany { count: self.count })?;
        let bytes = i64::from(self.bytes) + i64::from(expected);
        if bytes > i64::from(MOST) {
            return Err(Misuse::Bytes);
        }
        Ok(Self { pending, bytes: bytes as i32, ..self })
    }

    fn landed(self, bytes: u32) -> Result<Self, Misuse> {
        let left = i64::from(self.bytes) - i64::from(bytes);
        if left < -i64::from(MOST) {
            return Err(Misuse::Bytes);
        }
        Ok(Self { bytes: left as i32, ..self })
    }
}

/// The word at this address.
///
/// # Safety
/// It lies in shared memory that is there, at a multiple of 8.
unsafe fn word<'a>(address: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

/// # Safety
/// As for all functions here: `address` is a multiple of 8 in shared memory that is there.
pub(crate) unsafe fn init(address: usize, count: u32) {
    let state = State { parity: 0, pending: count, count, bytes: 0 };
    // SAFETY: the caller's promise.
    unsafe { word(address) }.store(state.pack(), Ordering::SeqCst);
}

/// # Safety
/// See [`init`].
pub(crate) unsafe fn invalidate(address: usize) {
    // SAFETY: the caller's promise.
    unsafe { word(address) }.store(INVALID, Ordering::SeqCst);
}

/// # Safety
/// See [`init`].
pub(crate) unsafe fn state(address: usize) -> Result<State, Misuse> {
    // SAFETY: the caller's promise.
    State::unpack(unsafe { word(address) }.load(Ordering::SeqCst))
}

/// Whether the phase of that parity is complete.
///
/// # Safety
/// See [`init`].
pub(crate) unsafe fn test(address: usize, parity: u32) -> Result<bool, Misuse> {
    // SAFETY: the caller's promise.
    Ok(unsafe { state(address) }?.parity != parity)
}

/// Arrives so often, once so many bytes more are expected. Whether that completed the phase.
///
/// # Safety
/// See [`init`].
pub(crate) unsafe fn arrive(address: usize, arrivals: u32, expected: u32) -> Result<bool, Misuse> {
    // SAFETY: the caller's promise.
    unsafe { update(address, |state| state.arrived(arrivals, expected)) }
}

/// Bytes have come. Whether that completed the phase.
///
/// # Safety
/// See [`init`].
pub(crate) unsafe fn complete(address: usize, bytes: u32) -> Result<bool, Misuse> {
    // SAFETY: the caller's promise.
    unsafe { update(address, |state| state.landed(bytes)) }
}

/// # Safety
/// See [`init`].
unsafe fn update(
    address: usize,
    next: impl Fn(State) -> Result<State, Misuse>,
) -> Result<bool, Misuse> {
    // SAFETY: the caller's promise.
    let word = unsafe { word(address) };
    let mut seen = word.load(Ordering::SeqCst);
    loop {
        let (state, complete) = next(State::unpack(seen)?)?.settled();
        match word.compare_exchange_weak(seen, state.pack(), Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Ok(complete),
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A barrier, and what is done with it.
    fn with(count: u32, script: impl FnOnce(usize)) {
        let mut memory = u64::MAX;
        let address = &raw mut memory as usize;
        // SAFETY: it is a word of its own.
        unsafe { init(address, count) };
        script(address);
    }

    #[test]
    fn a_state_keeps_each_part() {
        for bytes in [0, 5, -5, MOST as i32, -(MOST as i32)] {
            let state = State { parity: 1, pending: 7, count: MOST, bytes };
            assert_eq!(State::unpack(state.pack()), Ok(state));
        }
        for word in [0, u64::MAX, 1] {
            assert_eq!(State::unpack(word), Err(Misuse::NotInitialised));
        }
    }

    #[test]
    fn a_phase_takes_all_arrivals_and_all_bytes() {
        // SAFETY: `with` gives an address of a word.
        with(2, |bar| unsafe {
            assert_eq!(test(bar, 1), Ok(true), "the phase before the first");
            assert_eq!(test(bar, 0), Ok(false));
            assert_eq!(arrive(bar, 1, 64), Ok(false));
            assert_eq!(arrive(bar, 1, 0), Ok(false), "64 bytes are missing");
            assert_eq!(complete(bar, 32), Ok(false));
            assert_eq!(complete(bar, 32), Ok(true));
            assert_eq!((test(bar, 0), test(bar, 1)), (Ok(true), Ok(false)));
            assert_eq!(arrive(bar, 2, 0), Ok(true), "the next phase counts anew");
        });
    }

    #[test]
    fn bytes_may_come_before_they_are_expected() {
        // SAFETY: the barrier is this test's own, alive and aligned.
        with(1, |bar| unsafe {
            assert_eq!(complete(bar, 16), Ok(false));
            assert_eq!(state(bar).unwrap().bytes, -16);
            assert_eq!(arrive(bar, 1, 16), Ok(true));
        });
    }

    #[test]
    fn misuse_is_refused() {
        // SAFETY: the barrier is this test's own, alive and aligned.
        with(1, |bar| unsafe {
            assert_eq!(arrive(bar, 2, 0), Err(Misuse::TooMany { count: 1 }));
            assert_eq!(arrive(bar, 0, MOST), Ok(false));
            assert_eq!(arrive(bar, 0, 1), Err(Misuse::Bytes));
            invalidate(bar);
            assert_eq!(arrive(bar, 1, 0), Err(Misuse::Invalidated));
        });
    }
}
