//! The launches of all steps, in a plan of the stage or in that of a larger network.

use lab_device::{DType, Instance, KernelSource};
use lab_harness::plan::{Arguments, Plan, Scope};
use lab_harness::{Error, arguments};

use crate::kernels;

/// How it goes through the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A launch a step.
    Cell,
    /// A launch for all steps, in f16 and bf16.
    Heads,
}

impl Way {
    /// The files of its kernels.
    pub(crate) fn sources(self) -> Vec<&'static KernelSource> {
        match self {
            Self::Cell => vec![&kernels::V0_CELL, &kernels::GRADIENTS],
            Self::Heads => vec![
                &kernels::V1_HEADS,
                &kernels::V1_HEADS_BACK,
                &kernels::V1_GRADIENT,
                &kernels::GRADIENTS,
            ],
        }
    }
}

/// Numbers that a step keeps for the way back of each unit: `KEPT` of `slstm.cuh`.
const KEPT: usize = 5;

/// One sLSTM, forward and back.
#[derive(Debug)]
pub struct Recurrence {
    way: Way,
    dtype: DType,
    /// B, T, NH and DH.
    sizes: [usize; 4],
    /// What kernels take, by the names of their parameters.
    scope: Scope,
}

impl Recurrence {
    /// Of these B, T, NH and DH, over the tensors of the forward pass by their names ([`lab_families::slstm`]), and more if they
    /// are there already. With `keep` it has room for what the way back needs. The promise of the arguments is that the tensors are of
    /// these sizes.
    pub fn new(
        plan: &mut Plan,
        way: Way,
        dtype: DType,
        sizes: [usize; 4],
        keep: bool,
        tensors: Arguments<'_>,
    ) -> Self {
        let [b, t, nh, dh] = sizes;
        let units = if keep { b * nh * dh } else { 1 };
        let kept = plan.scratch(DType::F32, if keep { t * units * KEPT } else { 1 });
        let first = plan.scratch(DType::F32, units);
        let own = arguments![kept, first, keep, count: t, rows: t * b, B: b, NH: nh, DH: dh];
        Self { way, dtype, sizes, scope: Scope::new().with(tensors).with(own) }
    }

    /// Adds the launches of y and of the last state.
    ///
    /// # Errors
    /// A kernel does not load; the device has no room for the clusters of [`Way::Heads`].
    ///
    /// # Panics
    /// That way has no kernels for the type, or for so many units.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<(), Error> {
        match self.way {
            Way::Cell => self.add_cells(plan),
            Way::Heads => self.add_heads(plan, &self.scope, &kernels::V1_HEADS, "slstm_heads"),
        }
    }

    /// Adds the launches of the way back, from dy to all gradients: with these tensors beside those that are there.
    ///
    /// # Errors
    /// As [`Recurrence::add_forward`].
    pub fn add_backward(&self, plan: &mut Plan, tensors: Arguments<'_>) -> Result<(), Error> {
        let scope = self.scope.clone().with(tensors);
        match self.way {
            Way::Cell => self.add_cells_back(plan, &scope)?,
            Way::Heads => {
                self.add_heads(plan, &scope, &kernels::V1_HEADS_BACK, "slstm_heads_back")?;
            }
        }
        self.add_gradients(plan, &scope)
    }

    fn instance(&self, source: &'static KernelSource, name: &str) -> Instance {
        let mut all = source.instances(name);
        all.find(|i| i.has("T", self.dtype.cpp())).expect("a kernel for each type")
    }

    /// A launch of a thread for each unit of all rows.
    fn add_cell(
        &self,
        plan: &mut Plan,
        scope: &Scope,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Result<(), Error> {
        let kernel = plan.device().load(self.instance(&kernels::V0_CELL, name))?;
        let [b, _, nh, dh] = self.sizes;
        let launch = kernel.grid_over(b * nh * dh)?;
        plan.launch_in(scope, &kernel, launch, arguments)
    }

    /// A launch for each step.
    fn add_cells(&self, plan: &mut Plan) -> Result<(), Error> {
        let [_, steps, ..] = self.sizes;
        (0..steps).try_for_each(|t| self.add_cell(plan, &self.scope, "slstm_cell", arguments![t]))
    }

    fn add_cells_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let [_, steps, ..] = self.sizes;
        for t in (0..steps).rev() {
            self.add_cell(plan, scope, "slstm_cell_back", arguments![t])?;
        }
        self.add_cell(plan, scope, "slstm_cell_first", arguments![])
    }

    /// A launch for all steps: a cluster for a head of some rows.
    fn add_heads(
        &self,
        plan: &mut Plan,
        scope: &Scope,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<(), Error> {
        let [b, _, nh, dh] = self.sizes;
        let fits = |i: &Instance| i.has("T", self.dtype.cpp()) && dh <= i.size("HT");
        let instance = source.instances(name).filter(fits).min_by_key(|i| i.size("HT"));
        let instance = instance.expect("a type and as many units as were checked");
        let [blocks, rows] = [instance.size("BLOCKS"), instance.size("ROWS")];
        let kernel = plan.device().load(instance)?;
        let clusters = nh * b.div_ceil(rows);
        let launch = kernel.grid([(clusters * blocks) as u32, 1, 1])?.cluster(blocks as u32);
        if kernel.resident_clusters(&launch)? == 0 {
            let expected = format!("clusters of {blocks} blocks on this device");
            return Err(Error::bad("DH", expected, dh));
        }
        plan.launch_in(scope, &kernel, launch, arguments![])
    }

    /// By r and b.
    fn add_gradients(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let [_, _, nh, dh] = self.sizes;
        let (by_r, tile) = match self.way {
            Way::Cell => (self.instance(&kernels::GRADIENTS, "r_gradient"), 32),
            Way::Heads => {
                let pack = if dh.is_multiple_of(8) { 8 } else { 1 };
                let mut all = kernels::V1_GRADIENT.instances("r_gradient_tiles");
                let fits = |i: &Instance| i.has("T", self.dtype.cpp()) && i.size("PACK") == pack;
                (all.find(fits).expect("one of each"), 64)
            }
        };
        let kernel = plan.device().load(by_r)?;
        let tiles = dh.div_ceil(tile) as u32;
        plan.launch_in(scope, &kernel, kernel.grid([tiles, tiles, 4 * nh as u32])?, arguments![])?;
        let kernel = plan.device().load(self.instance(&kernels::GRADIENTS, "b_gradient"))?;
        let blocks = (4 * nh * dh).div_ceil(32) as u32;
        plan.launch_in(scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])
    }
}
