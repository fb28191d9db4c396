//! What a crate promises of the kernels that it launches.

/// The promise of a crate that each kernel stays within the memory that its launches give it.
///
/// A kernel has addresses, and what it is told of the sizes behind them it believes: a wrong number of columns, and it writes memory that
/// it was never given. No check before the launch can know, for what a kernel reaches it computes; the emulator's checks see it
/// only where they run. So somebody has to promise it. It is the crate that makes the launches, for there the numbers come from; and it
/// promises once, for each launch by itself would be the same sentence a hundred times.
///
/// `lab-kernel-build` writes a crate's promise beside the kernels that it embeds, as `kernels::PROMISE`, which no other crate sees, and
/// `lab_harness::arguments!` takes it from there: without it no plan takes a launch. A crate that launches and embeds nothing writes
/// that constant itself.
#[derive(Clone, Copy, Debug)]
pub struct LaunchPromise(());

impl LaunchPromise {
    /// The promise.
    ///
    /// # Safety
    /// Each launch that this is given for passes its kernel numbers (sizes, strides, indices, those of its grid and its shared memory)
    /// with which the kernel stays within the memory of its arguments, where that holds what the crate's documentation allows. A crate that promises so of all of its
    /// launches checks what other crates bring: the sizes of their slots against each other.
    ///
    /// ```compile_fail,E0133
    /// let promise = lab_device::LaunchPromise::new();
    /// ```
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
