//! The versions: a product by itself, of halves or f32, and of int8 weights.

use lab_device::{DType, Device, KernelSource};
use lab_harness::compare::{Magnitudes, each, unit};
use lab_harness::tensor::tensors;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Options, Output, Plan, Problem, Reference,
    Request, Tensor, Tensors, Tiling, Version,
};

use crate::few_rows::{FewRows, Way};
use crate::{quantize_rows, wgmma};

/// y = x Wᵀ + residual; W of the run's type, or of int8.
#[derive(Debug)]
struct Rows {
    name: &'static str,
    int8: bool,
}

static SAME: Rows = Rows { name: "few_rows", int8: false };
static INT8: Rows = Rows { name: "few_rows_int8", int8: true };

/// W in f64, with its scales.
fn weights(inputs: &Tensors) -> Vec<f64> {
    let (weight, k) = (&inputs["weight"], inputs["weight"].shape[1]);
    let mut values = weight.values();
    if let Some(scale) = inputs.get("scale") {
        for (row, scale) in values.chunks_mut(k).zip(scale.values()) {
            row.iter_mut().for_each(|w| *w *= scale);
        }
    }
    values
}

fn product(inputs: &Tensors) -> Vec<f64> {
    let [n, k] = [0, 1].map(|axis| inputs["weight"].shape[axis]);
    let (x, w) = (inputs["x"].values(), weights(inputs));
    let transposed: Vec<f64> = (0..k * n).map(|e| w[e % n * k + e / n]).collect();
    let mut y = lab_reference::matmul::matmul(&x, &transposed, x.len() / k, n, k);
    if let Some(residual) = inputs.get("residual") {
        y.iter_mut().zip(residual.values()).for_each(|(y, r)| *y += r);
    }
    y
}

impl Family for Rows {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Weights as a network has them: 1 / √K, so that sums are about 1.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [r, n, k] = ["R", "N", "K"].map(|d| problem.dims.get(d));
        let weight = problem.normal_around(0.0, DType::F32, 1, &[n, k]);
        let scaled: Vec<f64> = weight.values().iter().map(|v| v / (k as f64).sqrt()).collect();
        let mut all =
            tensors([("x", problem.normal(0, &[r, k])), ("residual", problem.normal(2, &[r, n]))]);
        if self.int8 {
            let scaled: Vec<f32> = scaled.iter().map(|v| *v as f32).collect();
            let (q, scales) = quantize_rows(&scaled, k).expect("finite rows of K");
            all.insert("weight".into(), Tensor::new(&[n, k], &q));
            all.insert("scale".into(), Tensor::new(&[n], &scales));
        } else {
            all.insert("weight".into(), Tensor::rounded(problem.dtype, &[n, k], &scaled));
        }
        all
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        vec![("y", product(inputs))]
    }

    /// The same of the absolute values.
    fn magnitudes(&self, _: &Info, inputs: &Tensors, _: &Options, _: &Reference) -> Magnitudes {
        // |−127| fits into an int8.
        let absolute = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.absolute()));
        each(vec![("y", product(&absolute.collect()))])
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [r, n, k] = ["R", "N", "K"].map(|d| dims.get(d) as f64);
        let size = dtype.size() as f64;
        let weights = if self.int8 { n * k + 4.0 * n } else { n * k * size };
        Cost { flops: 2.0 * r * n * k, bytes: weights + size * (r * k + 2.0 * r * n) }
    }

    /// The products of a token of xLSTM 7B: out, q k v and gate, down, gate and up, head; then the fourth with more sequences.
    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        let all = [
            [1, 4096, 4096],
            [1, 12288, 4096],
            [1, 4096, 10944],
            [1, 21888, 4096],
            [1, 50304, 4096],
            [8, 21888, 4096],
            [16, 21888, 4096],
            [64, 21888, 4096],
        ];
        let most = info.dims[0].max;
        let taken = all.into_iter().filter(|[r, n, _]| {
            // f32 is four times the time for nothing that decoding uses.
            *r <= most && (dtype != DType::F32 || *n == 4096)
        });
        taken.map(|[r, n, k]| Dims::new([("R", r), ("N", n), ("K", k)])).collect()
    }
}

/// One way of doing it.
#[derive(Debug)]
pub struct FewRowsVersion {
    info: Info,
    way: Way,
}

/// A thread an output.
pub static NAIVE: FewRowsVersion = FewRowsVersion { info: SAME_INFO, way: Way::Naive };

/// A warp a row of W.
pub static WARP: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v1_warp",
        parent: Some("v0_naive"),
        change: "a warp a row of W: 512 contiguous bytes a load",
        ..SAME_INFO
    },
    way: Way::Warp,
};

/// Eight loads in flight.
pub static FLIGHT: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v2_flight",
        parent: Some("v1_warp"),
        change: "eight loads of a lane in flight, past the L1 cache; two rows of W share x",
        ..SAME_INFO
    },
    way: Way::Flight,
};

/// On the tensor cores.
pub static MMA: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v3_mma",
        parent: Some("v2_flight"),
        change: "W from memory straight into fragments of mma.sync; the next steps always in flight",
        dtypes: &[DType::F16, DType::BF16],
        dims: MANY_DIMS,
        ..SAME_INFO
    },
    way: Way::Mma,
};

/// Blocks that stay.
pub static PERSISTENT: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v4_persistent",
        parent: Some("v3_mma"),
        change: "blocks stay: the next tile's weights are on their way while a tile ends; x may be normed on the way",
        ..MMA.info
    },
    way: Way::Persistent,
};

/// Clusters that share k.
pub static SPLIT: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v5_split",
        parent: Some("v4_persistent"),
        change: "for many rows: a cluster shares k, and x is read once for 128 rows of W",
        ..MMA.info
    },
    way: Way::Split,
};

/// v5 of int8.
pub static SPLIT_INT8: FewRowsVersion = FewRowsVersion {
    info: Info { name: "v5_split_int8", parent: Some("v5_split"), ..MMA_INT8.info },
    way: Way::Split,
};

/// v4 of int8.
pub static PERSISTENT_INT8: FewRowsVersion = FewRowsVersion {
    info: Info { name: "v4_persistent_int8", parent: Some("v4_persistent"), ..MMA_INT8.info },
    way: Way::Persistent,
};

/// v2 of int8.
pub static FLIGHT_INT8: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v2_flight_int8",
        family: &INT8,
        parent: Some("v2_flight"),
        change: "int8 weights with a scale for each output channel",
        inputs: INT8_INPUTS,
        ..SAME_INFO
    },
    way: Way::Flight,
};

/// v3 of int8.
pub static MMA_INT8: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v3_mma_int8",
        family: &INT8,
        parent: Some("v3_mma"),
        change: "int8 weights with a scale for each output channel",
        dtypes: &[DType::F16, DType::BF16],
        dims: MANY_DIMS,
        inputs: INT8_INPUTS,
        ..SAME_INFO
    },
    way: Way::Mma,
};

/// A warp walks down its columns.
pub static COLUMNS: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v6_columns",
        parent: Some("v4_persistent"),
        change: "for one row or two: a warp walks down its columns of W, and no warp waits before the last row",
        dims: TWO_DIMS,
        ..MMA.info
    },
    way: Way::Columns,
};

/// v6 of int8.
pub static COLUMNS_INT8: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v6_columns_int8",
        parent: Some("v6_columns"),
        dims: TWO_DIMS,
        ..MMA_INT8.info
    },
    way: Way::Columns,
};

/// Weights wait in shared memory.
pub static RING: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v7_ring",
        parent: Some("v6_columns"),
        change: "weights wait in shared memory: blocks of two launches fit a multiprocessor side by side",
        ..COLUMNS.info
    },
    way: Way::Ring,
};

/// v7 of int8.
pub static RING_INT8: FewRowsVersion = FewRowsVersion {
    info: Info { name: "v7_ring_int8", parent: Some("v7_ring"), ..COLUMNS_INT8.info },
    way: Way::Ring,
};

/// By wgmma and TMA.
pub static WGMMA: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v8_wgmma",
        parent: Some("v5_split"),
        change: "up to 128 rows by wgmma: TMA brings W and x, two blocks a multiprocessor, clusters share k",
        dims: WIDE_DIMS,
        ..MMA.info
    },
    way: Way::Wgmma,
};

/// v8 of int8.
pub static WGMMA_INT8: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v8_wgmma_int8",
        parent: Some("v8_wgmma"),
        dims: WIDE_DIMS,
        ..MMA_INT8.info
    },
    way: Way::Wgmma,
};

/// W as memory has it.
pub static BYTES: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v9_bytes",
        parent: Some("v8_wgmma_int8"),
        change: "x as two planes of bytes: the tensor cores multiply int8 as memory has it, and sums are exact",
        // Of x each number is off by half of a unit at most, and a row's largest has 32512. Beside that the result is rounded once.
        outputs: &[Output {
            name: "y",
            bounds: &[(DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &[(DType::F16, 512.0 * unit::F32), (DType::BF16, 512.0 * unit::F32)],
        }],
        ..WGMMA_INT8.info
    },
    way: Way::Bytes,
};

/// Bytes by bytes for one row or two.
pub static DOTS: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v10_dots",
        parent: Some("v6_columns_int8"),
        change: "for one row or two: x as two planes of bytes in shared memory, four products of bytes an instruction",
        dims: TWO_DIMS,
        ..BYTES.info
    },
    way: Way::Dots,
};

/// A unit for each stretch of columns.
pub static UNITS: FewRowsVersion = FewRowsVersion {
    info: Info {
        name: "v11_units",
        parent: Some("v9_bytes"),
        change: "bytes of x have a unit for each stretch of columns, so that the product before can write them",
        dims: MANY_DIMS,
        ..BYTES.info
    },
    way: Way::Units,
};

const LARGEST: usize = 1 << 24;

const fn dims(most: usize) -> [Dim; 3] {
    [
        Dim::new("R", "rows of x: sequences", [if most < 3 { most } else { 3 }, 1, most]),
        Dim::new("N", "columns of y: rows of W", [40, 21888, LARGEST]),
        Dim::new("K", "columns of x", [208, 4096, LARGEST]).in_steps_of(16),
    ]
}

static MANY_DIMS: &[Dim] = &dims(crate::MOST_ROWS);

static WIDE_DIMS: &[Dim] = &dims(crate::few_rows::MOST_WIDE_ROWS);

static TWO_DIMS: &[Dim] = &{
    let [rows, n, k] = dims(2);
    // Of all rows of x in shared memory.
    [rows, n, Dim { max: 1 << 14, ..k }]
};

const INT8_INPUTS: &[Input] = &[
    SAME_INFO.inputs[0],
    Input::new("weight", &["N", "K"]).always(DType::I8),
    Input::new("scale", &["N"]).always(DType::F32),
    SAME_INFO.inputs[2],
];

const SAME_INFO: Info = Info {
    stage: "decode",
    name: "v0_naive",
    family: &SAME,
    parent: None,
    change: "a thread an output",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &dims(16),
    settings: &[],
    inputs: &[
        Input::new("x", &["R", "K"]),
        Input::new("weight", &["N", "K"]),
        Input::new("residual", &["R", "N"]).optional("residual"),
    ],
    // The one rounding of the result.
    outputs: &[Output {
        name: "y",
        bounds: &[(DType::F32, 2e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        // Its sums are in f32; a thread adds up to 200 terms here one after the other.
        elements: &[
            (DType::F32, 16.0 * unit::F32),
            (DType::F16, 8.0 * unit::F32),
            (DType::BF16, 8.0 * unit::F32),
        ],
    }],
};

impl Version for FewRowsVersion {
    fn info(&self) -> &Info {
        &self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let mut all = vec![
            [1, 1, 16],
            [1, 70, 64],
            // Several turns of every warp, and a last one that is not whole.
            [3, 33, 1040],
            [4, 16, 2064],
            [16, 48, 528],
        ];
        if self.way.keeps_x() {
            all.retain(|[r, ..]| *r <= self.way.most_rows());
            // A slice of 11 warps' worth that ends within a lane's turn; more rows of W than one block may have; slices of several steps.
            all.extend([[2, 33, 1040], [2, 1500, 48], [1, 9, 10944], [2, 70, 2064], [1, 17, 4096]]);
        } else if self.way.is_of_halves() {
            // More tiles than the emulator has places for blocks.
            all.extend([[8, 17, 2560], [9, 31, 96], [64, 40, 272], [2, 1500, 48], [33, 150, 1056]]);
        }
        if [Way::Wgmma, Way::Bytes, Way::Units].contains(&self.way) {
            // Rows for each number of columns of wgmma; steps that end within a span, and fewer of them than a cluster may have blocks.
            all.extend([[17, 130, 2064], [65, 70, 192], [128, 150, 1104], [100, 7, 4112]]);
            all.retain(|[r, ..]| *r <= self.way.most_rows());
        }
        all.into_iter().map(|[r, n, k]| Dims::new([("R", r), ("N", n), ("K", k)])).collect()
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![self.way.source()]
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        let [rows, n, k] = ["R", "N", "K"].map(|d| request.dim(d));
        let [x, weight] = request.inputs(&mut plan, ["x", "weight"]);
        let [scale, added] = ["scale", "residual"]
            .map(|name| request.has(name).then(|| request.input(&mut plan, name)));
        let y = Some(request.output(&mut plan, "y", request.dtype, &[rows, n]));
        let product = FewRows {
            dtype: request.dtype,
            rows,
            n,
            k,
            x,
            weight,
            scale,
            norm: None,
            gates: None,
            added,
            gated: false,
            parts: &[],
            y,
            way: Some(self.way),
        };
        match request.tiling {
            None => product.add(&mut plan)?,
            Some(tiling) => product.add_tiled(&mut plan, tiling)?,
        };
        Ok(plan)
    }

    fn tilings(&self, dims: &Dims, _: DType) -> Vec<Tiling> {
        let sizes = ["R", "N", "K"].map(|name| dims.get(name));
        wgmma::tilings(self.way, sizes, self.info.family.name() == INT8.name)
    }
}
