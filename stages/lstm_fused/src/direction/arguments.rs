//! Argument lists: what several kernels take in the same order stands here once.

use lab_device::{DType, Device, Kernel, KernelSource};
use lab_harness::Error;
use lab_harness::program::{Argument, Program, Slot, math_scalar, scalar};

use super::{Direction, Upstream};

/// The arguments of a launch of a direction, in the order in which its kernel has them.
pub(super) struct Arguments<'a> {
    of: &'a Direction<'a>,
    all: Vec<Argument>,
}

impl From<Arguments<'_>> for Vec<Argument> {
    fn from(arguments: Arguments<'_>) -> Self {
        arguments.all
    }
}

impl Direction<'_> {
    pub(super) fn arguments(&self) -> Arguments<'_> {
        Arguments { of: self, all: Vec::new() }
    }

    pub(super) fn kernel(
        &self,
        program: &Program,
        source: &'static KernelSource,
        name: &str,
        arguments: &str,
    ) -> Result<Kernel, Error> {
        kernel(program.device(), source, name, self.sizes.dtype, arguments)
    }
}

impl Arguments<'_> {
    fn with(mut self, more: impl IntoIterator<Item = Argument>) -> Self {
        self.all.extend(more);
        self
    }

    pub(super) fn read<const N: usize>(self, slots: [Slot; N]) -> Self {
        self.with(slots.map(Slot::read))
    }

    pub(super) fn write<const N: usize>(self, slots: [Slot; N]) -> Self {
        self.with(slots.map(Slot::write))
    }

    pub(super) fn sizes<const N: usize>(self, sizes: [usize; N]) -> Self {
        self.with(sizes.map(int))
    }

    pub(super) fn flags<const N: usize>(self, flags: [bool; N]) -> Self {
        self.with(flags.map(|flag| scalar(i32::from(flag))))
    }

    /// Both biases; those that are not there are not read.
    pub(super) fn biases(self) -> Self {
        let weights = &self.of.weights;
        let biases = weights.biases.unwrap_or([weights.ih; 2]);
        self.read(biases)
    }

    /// x and all weights of a step.
    pub(super) fn by_step(self) -> Self {
        let Direction { x, weights, .. } = *self.of;
        self.read([x, weights.ih, weights.hh]).biases()
    }

    /// x and its weights, which make a product over all steps.
    pub(super) fn by_x(self) -> Self {
        let Direction { x, weights, .. } = *self.of;
        self.read([x, weights.ih]).biases()
    }

    /// Those that are not there are not read.
    pub(super) fn peepholes(self) -> Self {
        let weights = &self.of.weights;
        let peepholes = weights.peepholes.unwrap_or([weights.ih; 3]);
        self.read(peepholes)
    }

    /// Weights and biases of the norms.
    pub(super) fn norms(self) -> Self {
        let norms = self.of.weights.norms.expect("of layer norm");
        self.read(norms)
    }

    /// h0, c0 and the lengths.
    pub(super) fn states(self) -> Self {
        let common = self.of.common;
        self.read([common.h0, common.of_lstm()[0], common.lengths])
    }

    /// hn and cn.
    pub(super) fn last_states(self) -> Self {
        let common = self.of.common;
        self.write([common.hn, common.of_lstm()[1]])
    }

    /// c0, dhn and dcn, the lengths, and c of all steps.
    pub(super) fn states_back(self, upstream: Upstream<'_>) -> Self {
        let Direction { common, c, .. } = *self.of;
        let (dhn, [dcn, _]) = (upstream.states.dhn, upstream.states.of_lstm());
        self.read([common.of_lstm()[0], dhn, dcn, common.lengths, c])
    }

    /// dh0 and dc0.
    pub(super) fn first_states_back(self, upstream: Upstream<'_>) -> Self {
        let (dh0, [_, dc0]) = (upstream.states.dh0, upstream.states.of_lstm());
        self.write([dh0, dc0])
    }

    /// The stride of y's rows, the column where this direction's begin, which of the h0, and the order of
    /// the steps.
    pub(super) fn place(self) -> Self {
        let Direction { sizes, reverse, .. } = *self.of;
        let (stride, column) =
            (sizes.hidden * sizes.directions, sizes.hidden * usize::from(reverse));
        self.sizes([stride, column]).state()
    }

    /// Which of the h0, and the order of the steps.
    pub(super) fn state(self) -> Self {
        let Direction { state, reverse, .. } = *self.of;
        self.sizes([state]).flags([reverse])
    }

    pub(super) fn biased(self) -> Self {
        let biased = self.of.weights.biases.is_some();
        self.flags([biased])
    }

    /// ε of the norms.
    pub(super) fn epsilon(self) -> Self {
        let sizes = self.of.sizes;
        self.with([math_scalar(sizes.dtype, sizes.layer_norm.expect("of layer norm"))])
    }

    /// Steps, sizes and options of a forward launch for all steps that multiplies so many columns of x.
    pub(super) fn all_steps(self, columns: usize) -> Self {
        let sizes = self.of.sizes;
        self.sizes([sizes.steps, sizes.batch, sizes.hidden, columns])
            .place()
            .biased()
            .flags([sizes.peephole, sizes.keep])
    }

    /// Those of the way back.
    pub(super) fn all_steps_back(self) -> Self {
        let sizes = self.of.sizes;
        self.sizes([sizes.steps, sizes.batch, sizes.hidden]).place().flags([sizes.peephole])
    }
}

/// `size` as a kernel takes it.
///
/// # Panics
/// It does not fit: such sizes have been refused.
pub fn int(size: usize) -> Argument {
    scalar(i32::try_from(size).expect("sizes that were checked"))
}

/// Blocks of `each` for `size` elements.
///
/// # Panics
/// There are too many: such sizes have been refused.
pub fn blocks(size: usize, each: usize) -> u32 {
    u32::try_from(size.div_ceil(each)).expect("sizes that were checked")
}

/// `name<dtype, arguments>` of a kernel file.
///
/// # Errors
/// It does not compile on this device.
pub fn kernel(
    device: &Device,
    source: &'static KernelSource,
    name: &str,
    dtype: DType,
    arguments: &str,
) -> Result<Kernel, Error> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    Ok(device.kernel(source, &format!("{name}<{}{comma}{arguments}>", dtype.cpp()))?)
}
