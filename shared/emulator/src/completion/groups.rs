//! Copies that a thread closes into groups, and waits for group by group: cp.async, and bulk copies to
//! device memory.

use std::collections::VecDeque;

/// A copy that was issued.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    /// Return address of the call that issued it.
    pub(crate) pc: usize,
    /// It is made already.
    pub(crate) made: bool,
    /// Of one whose source was waited for: what it held.
    pub(crate) held: Option<Box<[u8]>>,
    /// f32 are added to those that are there.
    pub(crate) adds: bool,
}

impl Copy {
    /// Moves the bytes, unless that was done.
    ///
    /// # Safety
    /// The addresses are a kernel's own, and there.
    pub(crate) unsafe fn make(&mut self) {
        if std::mem::replace(&mut self.made, true) {
            return;
        }
        let from = self.held.as_ref().map_or(self.from as *const u8, |held| held.as_ptr());
        let (terms, sums) = (from.cast::<f32>(), self.to as *mut f32);
        // SAFETY: the caller's promise; what adds moves whole chunks of 16 bytes.
        unsafe {
            if self.adds {
                (0..self.bytes / size_of::<f32>()).for_each(|n| {
                    let sum = sums.add(n).read_unaligned() + terms.add(n).read_unaligned();
                    sums.add(n).write_unaligned(sum);
                })
            } else {
                std::ptr::copy(from, self.to as *mut u8, self.bytes)
            }
        }
    }

    /// Reads the source, which may be written from then on. False where that was done.
    ///
    /// # Safety
    /// As [`Copy::make`].
    pub(crate) unsafe fn read(&mut self) -> bool {
        if self.held.is_some() {
            return false;
        }
        // SAFETY: the caller's promise.
        let held = unsafe { std::slice::from_raw_parts(self.from as *const u8, self.bytes) };
        self.held = Some(held.into());
        true
    }
}

/// A thread's copies under way, by group; the last group is open.
#[derive(Debug, Default)]
pub(crate) struct Groups(VecDeque<Vec<Copy>>);

impl Groups {
    /// Adds a copy to the open group.
    pub(crate) fn issue(&mut self, copy: Copy) {
        self.open();
        if let Some(group) = self.0.back_mut() {
            group.push(copy);
        }
    }

    /// Closes the open group.
    pub(crate) fn commit(&mut self) {
        self.open();
        self.0.push_back(Vec::new());
    }

    fn open(&mut self) {
        if self.0.is_empty() {
            self.0.push_back(Vec::new());
        }
    }

    fn done(&self, pending: usize) -> usize {
        self.0.len().saturating_sub(1).saturating_sub(pending)
    }

    /// Takes out the copies of all closed groups but the latest `pending`.
    pub(crate) fn complete(&mut self, pending: usize) -> Vec<Copy> {
        self.0.drain(..self.done(pending)).flatten().collect()
    }

    /// The same copies, left where they are.
    pub(crate) fn completing(&mut self, pending: usize) -> impl Iterator<Item = &mut Copy> {
        let done = self.done(pending);
        self.0.iter_mut().take(done).flatten()
    }

    /// Takes out all that are left.
    pub(crate) fn take(&mut self) -> Vec<Copy> {
        self.0.drain(..).flatten().collect()
    }

    /// The first copy whose source nobody has waited for.
    pub(crate) fn unread(&self) -> Option<&Copy> {
        self.0.iter().flatten().find(|copy| copy.held.is_none())
    }
}
