//! The last step of a parameter's gradient: `kernels/column_sums.cu`.

use lab_device::DType;
use lab_harness::plan::{Argument, Arguments, Slot};
use lab_harness::{Error, Plan};

use crate::kernels;
use crate::slots::{grid, untouched};

/// Partial rows, whose sum is a parameter's gradient: what the way back of an operation leaves where it does not add them up itself.
#[derive(Clone, Copy, Debug)]
#[must_use = "the gradient is not there before they are added up"]
pub struct ColumnSums {
    /// f32 \[rows, columns\].
    pub(crate) partial: Slot,
    /// The gradient, f32 \[columns\].
    pub(crate) out: Slot,
    /// Whether it is added to.
    pub(crate) accumulates: bool,
}

/// Of each of the parameters of a launch, the names of what the kernel has of it.
const NAMES: [[&str; 5]; ColumnSums::AT_ONCE] = [
    ["partial0", "out0", "rows0", "columns0", "accumulates0"],
    ["partial1", "out1", "rows1", "columns1", "accumulates1"],
    ["partial2", "out2", "rows2", "columns2", "accumulates2"],
    ["partial3", "out3", "rows3", "columns3", "accumulates3"],
];

/// Columns of a block.
const COLUMNS: usize = 32;

impl ColumnSums {
    /// Parameters of a launch.
    pub const AT_ONCE: usize = 4;

    /// Adds the launches that add them up, in the order of the rows: one for [`ColumnSums::AT_ONCE`] parameters.
    ///
    /// # Errors
    /// What the device says of the kernel.
    pub fn add_all(plan: &mut Plan, all: &[Self]) -> Result<(), Error> {
        for some in all.chunks(Self::AT_ONCE) {
            let kernel = plan.device().kernel(&kernels::COLUMN_SUMS, "column_sums")?;
            let most = some.iter().map(|sums| sums.out.len()).max().unwrap_or(0);
            let launch = grid(&kernel, [most.div_ceil(COLUMNS), some.len()])?;
            let mut arguments = Vec::with_capacity(NAMES.len() * NAMES[0].len());
            for (n, names) in NAMES.into_iter().enumerate() {
                // No block has those behind the last.
                let Self { partial, out, accumulates } = some
                    .get(n)
                    .copied()
                    .unwrap_or(Self { out: untouched(plan, DType::F32), ..some[0] });
                let columns = out.len();
                let own: [Argument; 5] = [
                    partial.into(),
                    out.into(),
                    (partial.len() / columns).into(),
                    columns.into(),
                    accumulates.into(),
                ];
                arguments.extend(names.into_iter().zip(own));
            }
            plan.launch(&kernel, launch, Arguments::new(kernels::PROMISE, arguments))?;
        }
        Ok(())
    }
}
