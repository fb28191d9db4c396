//! Documents one behind the other: `kernels/documents.cu`.

use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, arguments};

use crate::kernels;
use crate::slots::{THREADS, check_lengths, check_rows_count, check_sizes, grid};

/// Documents of a window, each of which begins with the same token.
#[derive(Clone, Copy, Debug)]
pub struct Documents {
    /// i32 \[B S\].
    pub tokens: Slot,
    /// The token that each begins with; there is none before the first of them.
    pub first: i32,
}

const NAME: &str = "documents";

impl Documents {
    /// Shuts forget gates f32 \[B, NH, S\] where a document begins: they become −∞, behind which the vLSTM remembers nothing. They have
    /// no gradient there.
    ///
    /// # Errors
    /// A slot of another length.
    pub fn add_shut(
        &self,
        plan: &mut Plan,
        f: Slot,
        [batch, heads, positions]: [usize; 3],
    ) -> Result<(), Error> {
        let sizes = [("batch", batch), ("heads", heads), ("positions", positions)];
        check_sizes(NAME, &sizes)?;
        let rows = batch * positions;
        check_rows_count(NAME, rows)?;
        let Self { tokens, first } = *self;
        let lengths = [("tokens", Some(tokens), rows), ("f", Some(f), rows * heads)];
        check_lengths(NAME, &lengths)?;
        let kernel = plan.device().kernel(&kernels::DOCUMENTS, "shut_gates")?;
        let launch = grid(&kernel, [rows.div_ceil(THREADS), 1])?;
        plan.launch(&kernel, launch, arguments![tokens, f, rows, positions, heads, first])
    }
}
