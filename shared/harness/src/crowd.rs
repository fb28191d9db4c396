//! Multiprocessors that somebody else holds, as a collective of several GPUs does while kernels of a training step run beside it.

use lab_device::{Buffer, Device, Error, Launch, Stream};

use crate::device_checks::kernels;

/// After so many cycles, a third of a second on an H200, a block goes unasked: what waits for it, and is waited for, ends then.
pub const CYCLES: i64 = 600_000_000;

/// Blocks that each hold a whole multiprocessor, on a stream of their own.
#[derive(Debug)]
pub struct Crowd {
    stay: Buffer<i32>,
    unasked: Buffer<i32>,
    stream: Stream,
}

impl Crowd {
    /// Lets them begin, for [`CYCLES`] or as many as are given. What is launched in the device's own queue from now on runs beside them.
    ///
    /// Nothing may be read or freed before [`Crowd::end`]: that waits for all streams.
    ///
    /// # Errors
    /// The driver's; no blocks.
    pub fn begin(device: &Device, blocks: u32, cycles: i64) -> Result<Self, Error> {
        let kernel = device.kernel(&kernels::CROWD, "crowd")?;
        let mut stay = device.upload(&[1i32])?;
        let mut unasked = device.upload(&[0i32])?;
        let stream = Stream::urgent(device)?;
        // A kilobyte of a multiprocessor's is the system's in each block.
        let shared = device.facts().max_shared_per_block as usize;
        let launch = Launch::new(blocks, 1024).shared(shared.saturating_sub(1 << 10));
        let all =
            [("stay", stay.arg_mut()), ("unasked", unasked.arg_mut()), ("cycles", cycles.into())];
        // SAFETY: both buffers are kept until `end`, or freed when the stream has ended; one number each is all that is used. `end`
        // fills the first meanwhile, which the kernel reads by atomic operations alone.
        unsafe { kernel.launch_on(&stream, launch, &all) }?;
        Ok(Self { stay, unasked, stream })
    }

    /// Lets them go when all that was launched in the device's own queue has ended; whether none had gone before. Where one had, what
    /// was launched may have waited for it.
    ///
    /// # Errors
    /// The driver's.
    pub fn end(mut self) -> Result<bool, Error> {
        self.stay.zero()?;
        self.stream.synchronize()?;
        Ok(self.unasked.download()? == [0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the emulator each launch ends before the next begins: nobody is told in time.
    #[test]
    fn who_is_not_told_goes_unasked() {
        let device = Device::emulator().unwrap();
        assert!(!Crowd::begin(&device, 2, 1000).unwrap().end().unwrap());
        assert!(Crowd::begin(&device, 0, CYCLES).is_err());
    }
}
