//! The plan of a version: its instantiation, its grid, and its launch.

use lab_device::{Arithmetic, DType, Device, Instance, KernelSource, Launch};
use lab_harness::{Dims, Error, Info, Plan, Request, Tiling, Version, arguments};

use crate::sizes::{SQUARE, leading_sizes, sizes};
use crate::versions::{
    ASYNC, BEHIND, Blocks, GRID, MMA, Matmul, STORES, TENSOR, TURNED, TURNED_GRID,
};
use crate::{boxes, tuning};

impl Version for Matmul {
    fn info(&self) -> &Info {
        &self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 1, 1, 1],
            [1, 32, 32, 32],
            [1, 128, 128, 8],
            // Ragged: no size a multiple of anything.
            [1, 33, 31, 65],
            [1, 1, 1, 300],
            [1, 5, 7, 1],
            [1, 129, 131, 1],
            // Tall, wide.
            [1, 300, 3, 20],
            [1, 3, 300, 20],
            [1, 200, 8, 16],
            [1, 8, 200, 16],
            // Several tiles; packs of 4 but not of 8; packs in K but not in N, and the other way.
            [1, 256, 256, 32],
            [1, 132, 140, 36],
            [1, 65, 66, 64],
            [1, 65, 64, 66],
            // Batches, the second of tiles that end within the matrix.
            [3, 32, 32, 16],
            [3, 35, 40, 24],
            [2, 17, 5, 9],
            // More tiles than a stripe of them is high, in two columns.
            [1, 2200, 264, 8],
            // As long a sum as is timed.
            [1, 3, 5, 4096],
            [1, 8, 8, 4096],
        ];
        // A single sum may come near zero, and the error that TF32 makes is large beside it.
        let is_fit = |&&shape: &&[usize; 4]| !self.is_turned() || shape != [1, 1, 1, 300];
        all.iter().filter(is_fit).map(|&shape| sizes(shape)).collect()
    }

    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        match (self.on_tensor_cores(), dtype) {
            (true, DType::F32) => Some(Arithmetic::Tf32),
            _ => Arithmetic::fastest_for(dtype),
        }
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        match self.blocks {
            Blocks::Down | Blocks::Along => vec![self.source],
            Blocks::Boxes | Blocks::Stay { .. } => vec![self.source, TENSOR.source],
            Blocks::Sized => vec![self.source, STORES.source, TENSOR.source],
            Blocks::Grid(shared) => [vec![self.source], shared.otherwise().sources()].concat(),
            Blocks::Narrow => [vec![self.source], GRID.sources()].concat(),
            Blocks::Snake => [vec![self.source], BEHIND.sources()].concat(),
        }
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let leading = leading_sizes(request.shapes())?;
        let [g, m, n, k] = ["G", "M", "N", "K"].map(|d| request.dim(d));
        let dtype = request.dtype;
        if self.loads_boxes() {
            return boxes::plan(self, device, request, leading);
        }
        let instance = self.instance(dtype, self.packs(dtype, n, k));
        let [rows, columns] = tuning::sides(&instance);
        let tiles = m.div_ceil(rows) * n.div_ceil(columns) * g;
        // Multiprocessors without a tile cost more than smaller tiles do.
        let few = tiles * 10 < device.facts().multiprocessors as usize * 9;
        let narrow = self.narrower(&instance).filter(|_| few);
        let instance = narrow.unwrap_or(instance);
        let (kernel, [rows, columns]) = match request.tiling {
            None => (device.load(instance)?, tuning::sides(&instance)),
            Some(tiling) => {
                let name = tuning::instantiation_with(self, instance, dtype, tiling)?;
                let kernel = device.instantiate(self.source, &name, instance.name())?;
                (kernel, [tiling.get("BM"), tiling.get("BN")])
            }
        };
        let tiles = [m.div_ceil(rows), n.div_ceil(columns)];
        let [x, y] = if self.blocks == Blocks::Down { tiles } else { [tiles[1], tiles[0]] };
        let grid = [x as u32, y as u32, g as u32];
        let launch = match kernel.block() {
            Ok(block) => Launch::of(grid, block),
            // A thread an element: its sides are the host's choice.
            Err(_) => Launch::new_3d(grid, [SQUARE[0], SQUARE[1], 1]),
        };

        let mut plan = Plan::new(device);
        let [a, b] = request.inputs(&mut plan, ["A", "B"]);
        let c = plan.output("C", dtype, &[leading, &[m, n]].concat());
        plan.launch(&kernel, launch, arguments![A: a, B: b, C: c, M: m, N: n, K: k])?;
        Ok(plan)
    }

    fn tilings(&self, _dims: &Dims, dtype: DType) -> Vec<Tiling> {
        tuning::tilings(self, dtype)
    }
}

impl Matmul {
    /// The instantiation for a type, with packs or single elements where its template has both.
    pub(crate) fn instance(&self, dtype: DType, packs: bool) -> Instance {
        let pack = if packs { 16 / dtype.size() } else { 1 }.to_string();
        let fits =
            |i: &Instance| i.has("T", dtype.cpp()) && i.argument("PACK").is_none_or(|p| p == pack);
        self.source.instances(self.kernel).find(fits).expect("a type that the version has")
    }

    /// The one with narrower tiles that is the same otherwise, if there is one.
    fn narrower(&self, than: &Instance) -> Option<Instance> {
        let same = |name| move |i: &Instance| i.argument(name) == than.argument(name);
        let fits = |i: &Instance| {
            same("T")(i)
                && same("PACK")(i)
                && than.argument("BN").is_some_and(|_| i.size("BN") < than.size("BN"))
        };
        self.source.instances(self.kernel).find(fits)
    }

    /// Whether rows can be read in packs of 16 bytes.
    pub(crate) fn packs(&self, dtype: DType, n: usize, k: usize) -> bool {
        let pack = 16 / dtype.size();
        n.is_multiple_of(pack) && (k.is_multiple_of(pack) || self.k_is_free())
    }

    fn on_tensor_cores(&self) -> bool {
        [MMA.kernel, TENSOR.kernel].contains(&self.kernel) || self.loads_boxes()
    }

    /// Whether TMA brings its tiles.
    pub(crate) fn loads_boxes(&self) -> bool {
        !matches!(self.blocks, Blocks::Down | Blocks::Along)
    }

    /// Whether B comes through registers, and A is cut.
    fn is_turned(&self) -> bool {
        [TURNED.kernel, TURNED_GRID.kernel].contains(&self.kernel)
    }

    /// Whether A is read one element at a time, so that K need not be a multiple of a pack.
    fn k_is_free(&self) -> bool {
        self.kernel == ASYNC.kernel
    }
}
