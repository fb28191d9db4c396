//! The launches of an optimizer's step, over all parameters at once.

use lab_device::{DType, KernelSource, LaunchPromise};
use lab_harness::plan::{Arguments, Plan, Scope, Slot};
use lab_harness::{Error, named};

use crate::Optimizer;

/// Parameters of a block, and the most blocks, each of which adds up what all have left.
const OF_BLOCK: usize = 4096;
const MOST_BLOCKS: usize = 256;

/// How the parameters are moved.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The file, of a stage or a model, that has the kernels of `lab/optimizer.cuh`.
    pub source: &'static KernelSource,
    /// Of who calls for the launches: the file is such a one, and `p`, `m` and `v` of the scope have as many elements as the gradients,
    /// as `copy` has where it is of another type; the others of the scope are those of a training (`lab_harness::progress`).
    pub promise: LaunchPromise,
    /// Of the parameters that the network reads, and of the gradients.
    pub dtype: DType,
    /// The rule and its numbers.
    pub optimizer: Optimizer,
    /// The largest norm of all gradients, beyond which they are scaled; `None` for any.
    pub clip: Option<f64>,
    /// Parameters up to which each block squares all gradients itself, at one launch in place of two; a
    /// thread has one to update then.
    pub few: usize,
}

impl Update {
    /// Adds the launches that move the parameters by the gradients `g`. The scope has `p`, `copy`, `m`,
    /// `v`, `rates`, `losses`, `counts`, `numbers` and `every`.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn add(&self, plan: &mut Plan, scope: &Scope, g: Slot) -> Result<(), Error> {
        let device = plan.device().clone();
        let (t, len) = (self.dtype.cpp(), g.len());
        let sums = device.kernel(self.source, &format!("gradient_squares<{t}>"))?;
        let rule = self.optimizer.rule();
        let update = device.kernel(self.source, &format!("update<{t}, {rule}>"))?;
        let few = len <= self.few;
        let launch = if few {
            update.grid_over(len)?
        } else {
            update.grid([len.div_ceil(OF_BLOCK).min(MOST_BLOCKS) as u32, 1, 1])?
        };
        let squares = plan.scratch(DType::F64, launch.grid[0] as usize);
        let scope = scope.clone().with(named![g, squares, N: len]);
        if !few {
            plan.launch_in(&scope, &sums, launch, Arguments::new(self.promise, []))?;
        }
        let [beta1, beta2, eps, decay] = self.optimizer.numbers();
        let arguments = named![
            beta1, beta2, eps, decay,
            max_norm: self.clip.unwrap_or(0.0),
            blocks: if few { 0 } else { launch.grid[0] },
        ];
        plan.launch_in(&scope, &update, launch, Arguments::new(self.promise, arguments))
    }
}
