//! The launches of the LSTM with layer norm: one a step, or one for all steps.

use lab_device::Launch;
use lab_harness::Error;
use lab_harness::program::{Program, Slot};

use super::residence::NormResidence;
use super::{Direction, Sizes, Upstream};
use crate::kernels::{NORM_CELL, V1_NORM, V1_NORM_BACK};

const THREADS: u32 = 128;

/// What the norms of the gates and of c leave: their n and their d, T x B x 5H each, and scales, T x B
/// x 5.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normed {
    pub(super) n: Slot,
    pub(super) d: Slot,
    pub(super) scales: Slot,
}

impl Normed {
    /// Room for all of it; for n and scales, or for d, only where they are `left`.
    pub(super) fn new(program: &mut Program, sizes: Sizes, left: bool) -> Result<Self, Error> {
        let mut room =
            |len, is: bool| program.scratch(sizes.arithmetic(), if is { len } else { 1 });
        let all = sizes.rows() * 5;
        let (n, d) = (room(all * sizes.hidden, left)?, room(all * sizes.hidden, sizes.keep)?);
        Ok(Self { n, d, scales: room(all, left)? })
    }
}

impl Direction<'_> {
    /// A block a row.
    fn of_rows(&self, threads: u32) -> Launch {
        Launch::new(self.sizes.batch as u32, threads)
    }

    /// y, hn and cn; c, n and scales of all steps.
    pub(super) fn norm_cells(&self, program: &mut Program, normed: &Normed) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, .. } = self.sizes;
        let kernel = self.kernel(program, &NORM_CELL, "norm_cell", &peephole.to_string())?;
        for t in self.steps() {
            let arguments = self
                .arguments()
                .by_step()
                .peepholes()
                .norms()
                .states()
                .write([self.y, self.c, normed.n, normed.scales])
                .last_states()
                .sizes([t, batch, self.columns, hidden])
                .place()
                .biased()
                .epsilon();
            program.launch(kernel.clone(), self.of_rows(THREADS), arguments);
        }
        Ok(())
    }

    /// d and da of all steps, dh0 and dc0.
    pub(super) fn norm_cells_back(
        &self,
        program: &mut Program,
        normed: &Normed,
        upstream: Upstream<'_>,
    ) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, .. } = self.sizes;
        let back = self.kernel(program, &NORM_CELL, "norm_cell_back", &peephole.to_string())?;
        let dc = program.scratch(self.sizes.arithmetic(), batch * hidden)?;
        for t in self.steps().into_iter().rev() {
            let arguments = self
                .arguments()
                .read([upstream.dy, self.weights.hh])
                .peepholes()
                .norms()
                .states_back(upstream)
                .read([normed.n, normed.scales])
                .write([normed.d, self.gates, dc])
                .sizes([t, batch, hidden])
                .place();
            program.launch(back.clone(), self.of_rows(THREADS), arguments);
        }
        self.first(program, dc, upstream)
    }

    /// y, hn and cn in one launch; with `keep`, c, n and scales of all steps.
    pub(super) fn norm_sequence(
        &self,
        program: &mut Program,
        normed: &Normed,
    ) -> Result<(), Error> {
        let columns = self.added(program)?;
        let residence = NormResidence::of(self.sizes.hidden, self.sizes.dtype);
        let kernel = self.kernel(program, &V1_NORM, "norm_sequence", &residence.arguments())?;
        let shared = residence.shared(self.sizes.arithmetic());
        let arguments = self
            .arguments()
            .by_x()
            .read([self.weights.hh])
            .peepholes()
            .norms()
            .states()
            .write([self.y, self.c])
            .read([self.gates])
            .write([normed.n, normed.scales])
            .last_states()
            .all_steps(columns)
            .epsilon();
        program.launch(kernel, self.of_rows(residence.threads()).shared(shared), arguments);
        Ok(())
    }

    /// d and da of all steps, dh0 and dc0, in one launch.
    pub(super) fn norm_sequence_back(
        &self,
        program: &mut Program,
        normed: &Normed,
        upstream: Upstream<'_>,
    ) -> Result<(), Error> {
        let residence = NormResidence::of(self.sizes.hidden, self.sizes.dtype);
        let template = residence.arguments();
        let kernel = self.kernel(program, &V1_NORM_BACK, "norm_sequence_back", &template)?;
        let shared = residence.shared_back(self.sizes.arithmetic());
        let arguments = self
            .arguments()
            .read([upstream.dy, self.weights.hh])
            .peepholes()
            .norms()
            .states_back(upstream)
            .read([normed.n, normed.scales])
            .write([normed.d, self.gates])
            .first_states_back(upstream)
            .all_steps_back();
        program.launch(kernel, self.of_rows(residence.threads()).shared(shared), arguments);
        Ok(())
    }
}
