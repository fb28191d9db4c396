//! Coroutine stacks, cut from slabs.
//!
//! One mapping a stack would hit the kernel's limit on mappings (65,530 by default) at 132 blocks
//! of 256 threads, so a slab maps the stacks of many threads at once. A guard page below each
//! stack turns an overflow into a signal at the very instruction; each guard splits the mapping
//! in two, so past [`GUARDED_STACKS`] stacks in the process a slab has none and the canary at the
//! bottom of each stack, looked at whenever a block ends, tells instead.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use corosensei::stack::{Stack, StackPointer};

/// Usable bytes of each CUDA thread's stack.
pub const STACK_BYTES: usize = 64 * 1024;
const PAGE: usize = 4096;
/// Stacks that may have a guard page, over the whole process.
const GUARDED_STACKS: usize = 16 * 1024;
/// Stacks kept for later launches, each with the few pages that it touched. As many as the largest
/// cooperative launch that is run often: to map and guard them anew takes longer than that launch.
const IDLE_STACKS: usize = 2 * GUARDED_STACKS;
const CANARY: u64 = 0xC0DE_57AC_0B07_7011;
/// Stacks of one slab start at the same offset in their pages, and so would the hottest lines of
/// all threads map to the same few cache sets. Shifting each by a multiple of this spreads them.
const COLOUR_BYTES: usize = 64;
const COLOURS: usize = 64;

static GUARDED: AtomicUsize = AtomicUsize::new(0);
static IDLE: Mutex<Vec<Arc<Slab>>> = Mutex::new(Vec::new());

/// The stacks of up to `count` threads.
#[derive(Debug)]
pub(crate) struct Slab {
    base: NonNull<u8>,
    count: usize,
    guarded: bool,
}

// SAFETY: a slab is only memory; who may touch which stack is the scheduler's affair, which hands
// a slab to one OS thread at a time.
unsafe impl Send for Slab {}
// SAFETY: its own fields are only read; its memory is the scheduler's affair.
unsafe impl Sync for Slab {}

const STRIDE: usize = PAGE + STACK_BYTES;

impl Slab {
    /// A slab for at least `count` stacks, an idle one where there is one.
    pub(crate) fn take(count: usize) -> io::Result<Arc<Self>> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = idle.iter().enumerate().filter(|(_, s)| s.count >= count);
        if let Some((best, _)) = fit.min_by_key(|(_, s)| s.count) {
            return Ok(idle.swap_remove(best));
        }
        // None is large enough: the largest idle one would only lie about.
        if let Some((largest, _)) = idle.iter().enumerate().max_by_key(|(_, s)| s.count)
            && idle.len() > 8
        {
            idle.swap_remove(largest);
        }
        drop(idle);
        Self::map(count.next_power_of_two().max(32)).map(Arc::new)
    }

    /// Gives the slab back for later launches. No coroutine may be alive on it.
    pub(crate) fn give_back(self: Arc<Self>) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let held: usize = idle.iter().map(|s| s.count).sum();
        if held + self.count <= IDLE_STACKS {
            idle.push(self);
        }
    }

    fn map(count: usize) -> io::Result<Self> {
        let bytes = count * STRIDE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let guarded = GUARDED.fetch_add(count, Ordering::Relaxed) + count <= GUARDED_STACKS;
        let slab = Self { base, count, guarded };
        for index in 0..count {
            if guarded {
                // SAFETY: the first page of each stride belongs to this slab and holds nothing.
                let rc = unsafe {
                    libc::mprotect(slab.at(index * STRIDE).cast(), PAGE, libc::PROT_NONE)
                };
                if rc != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(slab)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.count * STRIDE);
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The `index`-th stack. The caller gives each index to one coroutine at a time.
    pub(crate) fn stack(self: &Arc<Self>, index: usize) -> ThreadStack {
        assert!(index < self.count, "stack {index} of a slab of {}", self.count);
        let limit = self.at(index * STRIDE) as usize;
        let colour = index % COLOURS * COLOUR_BYTES;
        let base = limit + STRIDE - colour;
        if !self.guarded {
            // SAFETY: the lowest usable word of a stack that nobody runs on.
            unsafe { ((limit + PAGE) as *mut u64).write(CANARY) };
        }
        ThreadStack { limit, base: base & !15, guarded: self.guarded, _slab: Arc::clone(self) }
    }
}

impl Slab {
    /// Whether the word at the bottom of a stack was overwritten: it overflowed. A stack with a
    /// guard page has no canary, for there the overflow itself faults.
    pub(crate) fn canary_broken(&self, index: usize) -> bool {
        let bottom = self.at(index * STRIDE + PAGE).cast::<u64>();
        // SAFETY: the lowest usable word of a stack, mapped as long as the slab lives.
        !self.guarded && unsafe { bottom.read_volatile() } != CANARY
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        GUARDED.fetch_sub(self.count, Ordering::Relaxed);
        // SAFETY: the mapping is this slab's own, and stacks hold an `Arc` on it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.count * STRIDE) };
    }
}

/// One coroutine's stack.
#[derive(Debug)]
pub(crate) struct ThreadStack {
    limit: usize,
    base: usize,
    guarded: bool,
    _slab: Arc<Slab>,
}

impl ThreadStack {
    /// The addresses of this stack.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.limit..self.base
    }

    /// The guard page below this stack; empty where it has none.
    pub(crate) fn guard(&self) -> std::ops::Range<usize> {
        if self.guarded { self.limit..self.limit + PAGE } else { 0..0 }
    }
}

// SAFETY: the range is mapped for as long as `_slab` lives, is larger than corosensei's minimum,
// and ends in a guard page or, past the process's budget of those, in a canary that is checked.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.base).expect("a mapped address")
    }
    fn limit(&self) -> StackPointer {
        StackPointer::new(self.limit).expect("a mapped address")
    }
}
