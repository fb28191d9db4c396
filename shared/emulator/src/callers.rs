//! Who has called a function that is not inlined, and where its frame ends: read off a thread's stack, by the object's table of how
//! to unwind it.

use std::ops::Range;

use gimli::{BaseAddresses, CfaRule, EhFrame, UnwindContext, UnwindSection, X86_64};
use object::{Object, ObjectSection};

use crate::symbols::Reader;

/// So many callers are named.
const MOST: usize = 8;

/// The object's table.
pub(crate) struct Unwinder {
    frames: EhFrame<Reader>,
    bases: BaseAddresses,
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unwinder").finish_non_exhaustive()
    }
}

/// The frame of a function, while it calls another.
struct Frame {
    /// Where the function begins, from the object's base.
    start: usize,
    /// Its frame's end, from its stack pointer on.
    bytes: usize,
}

impl Unwinder {
    /// `None` where an object has no table, and on other processors.
    pub(crate) fn read(bytes: &'static [u8]) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let file = object::File::parse(bytes).ok()?;
        let address = |name: &str| Some(file.section_by_name(name)?.address());
        let data = file.section_by_name(".eh_frame")?.data().ok()?;
        let bases = BaseAddresses::default()
            .set_eh_frame(address(".eh_frame")?)
            .set_text(address(".text").unwrap_or_default());
        Some(Self { frames: EhFrame::from(Reader::new(data, gimli::RunTimeEndian::Little)), bases })
    }

    /// The frame of the function that has a call which returns to `address`, from the object's base. `None` where it is not
    /// counted from the stack pointer.
    fn frame(&self, address: usize) -> Option<Frame> {
        let probe = (address as u64).checked_sub(1)?;
        let entry =
            self.frames.fde_for_address(&self.bases, probe, EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row =
            entry.unwind_info_for_address(&self.frames, &self.bases, &mut context, probe).ok()?;
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } if *register == X86_64::RSP => {
                let bytes = usize::try_from(*offset).ok()?;
                Some(Frame { start: entry.initial_address() as usize, bytes })
            }
            _ => None,
        }
    }

    /// Where the frame of a function ends which has called the runtime, by a call that returns to `pc`: behind its own return
    /// address.
    ///
    /// # Safety
    /// As for [`Self::callers`].
    pub(crate) unsafe fn frame_end(
        &self,
        stack: Range<usize>,
        pc: usize,
        base: usize,
        text: (usize, usize),
    ) -> Option<usize> {
        // SAFETY: within the stack, and aligned as that is.
        let word = |at: usize| unsafe { (at as *const usize).read() };
        let frame = self.frame(pc - base)?;
        let is_code = |at: usize| {
            let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
            // SAFETY: asks whose an address is, whatever it is.
            (text.0..text.1).contains(&at)
                || unsafe { libc::dladdr(at as *const _, info.as_mut_ptr()) } != 0
        };
        let places = (stack.start.next_multiple_of(8)..stack.end).step_by(8);
        // The runtime has copies of `pc` as well.
        let ends = places.filter(|&at| word(at) == pc).map(|at| at + 8 + frame.bytes);
        ends.take_while(|&end| end <= stack.end).find(|&end| is_code(word(end - 8)))
    }

    /// The return addresses of the functions on a stack, from that which has called the runtime by a call that returns to
    /// `pc` on, as far as the kernel, which is at `kernel` from the object's base: the innermost first. `base`: of the object;
    /// `text`: its instructions.
    ///
    /// # Safety
    /// `stack` is memory of this thread; the text is code.
    pub(crate) unsafe fn callers(
        &self,
        stack: Range<usize>,
        pc: usize,
        kernel: usize,
        base: usize,
        text: (usize, usize),
    ) -> Vec<usize> {
        // SAFETY: within the stack, and aligned as that is.
        let word = |at: usize| unsafe { (at as *const usize).read() };
        let fits = |at: usize| at + size_of::<usize>() <= stack.end;
        let mut places = (stack.start.next_multiple_of(8)..stack.end).step_by(8);
        // The runtime has copies of `pc` as well: that above which callers stand is the call's own.
        let chain = |mut at: usize| {
            let (mut all, mut pc) = (Vec::new(), pc);
            while all.len() < MOST {
                let Some(frame) = self.frame(pc - base) else { break };
                let end = at + frame.bytes;
                if frame.start == kernel
                    || !fits(end - 8)
                    || !(text.0 + 5..text.1).contains(&word(end - 8))
                {
                    break;
                }
                let back = word(end - 8);
                // SAFETY: of the text.
                let call = unsafe { std::slice::from_raw_parts((back - 5) as *const u8, 5) };
                let by = i32::from_le_bytes([call[1], call[2], call[3], call[4]]) as isize;
                if call[0] != 0xE8 || back.wrapping_add_signed(by) != base + frame.start {
                    break;
                }
                all.push(back);
                (at, pc) = (end, back);
            }
            all
        };
        let of_call = places.find_map(|at| {
            let all = if fits(at) && word(at) == pc { chain(at + 8) } else { Vec::new() };
            (!all.is_empty()).then_some(all)
        });
        of_call.unwrap_or_default()
    }
}
