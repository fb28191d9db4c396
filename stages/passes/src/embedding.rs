//! The embedding of tokens: `kernels/embedding.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{
    Dim, Error, Info, Input, Output, Plan, Problem, Request, Tensor, Tensors, arguments,
};
use lab_reference::passes as reference;

use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Pass, bytes};
use crate::slots::{
    THREADS, check_dtype, check_lengths, check_sizes, grid, grid_over, pack, untouched, with_pack,
};

/// y = weight\[token\] of each row.
///
/// A token outside of the vocabulary is padding: it reads zeros and has no gradient.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// Of the weight and of y: f32, f16 or bf16.
    pub dtype: DType,
    /// B · S.
    pub rows: usize,
    /// V.
    pub vocabulary: usize,
    /// Columns.
    pub width: usize,
    /// i32 \[rows\].
    pub tokens: Slot,
    /// \[V, width\].
    pub weight: Slot,
    /// Where y goes, \[rows, width\]; scratch of its own where it is not said.
    pub y: Option<Slot>,
}

/// What comes from above, and where the gradient goes.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingUpstream {
    /// Of y.
    pub dy: Slot,
    /// Of the weight, f32 \[V, width\].
    pub dweight: Slot,
    /// Whether `dweight` is added to: of a weight that is tied to another.
    pub accumulates: bool,
    /// Of each token whether its row of `dweight` is not zero, i32 \[V\], kept from run to run: then only such rows are made zero where no row
    /// of a batch has their token. Both are zero before the first run, and nobody else writes there.
    pub used: Option<Slot>,
}

const NAME: &str = "embedding";
/// Sorted rows of a block: `PIECE` of the kernel.
const PIECE: usize = 32;
/// Tokens of a block that adds up counts: `SCAN_THREADS` of the kernel.
const SCAN_THREADS: usize = 1024;
/// Lanes that find a row's place: `RANK_LANES` of the kernel.
const RANK_LANES: usize = 8;

impl Embedding {
    fn check(&self) -> Result<(), Error> {
        let Self { dtype, rows, vocabulary, width, .. } = *self;
        check_dtype(NAME, dtype)?;
        check_sizes(NAME, &[("rows", rows), ("vocabulary", vocabulary), ("width", width)])?;
        for (name, size) in [("rows", rows), ("vocabulary", vocabulary), ("width", width)] {
            if size >= i32::MAX as usize {
                return Err(Error::bad(format!("{name} of {NAME}"), "less than 2^31 - 1", size));
            }
        }
        check_lengths(
            NAME,
            &[
                ("tokens", Some(self.tokens), rows),
                ("weight", Some(self.weight), vocabulary * width),
                ("y", self.y, rows * width),
            ],
        )
    }

    /// Adds the launch; y.
    ///
    /// # Errors
    /// A type, a size or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        self.check()?;
        let Self { dtype, rows, vocabulary, width, tokens, weight, .. } = *self;
        let y = self.y.unwrap_or_else(|| plan.scratch(dtype, rows * width));
        let pack = pack(dtype, &[width], &[(weight, dtype), (y, dtype)]);
        let kernel = with_pack(plan, &kernels::EMBEDDING, "embedding", dtype, pack)?;
        let launch = grid_over(&kernel, rows * (width / pack))?;
        plan.launch(&kernel, launch, arguments![tokens, weight, y, rows, width, vocabulary])?;
        Ok(y)
    }

    /// Adds the launches of the way back: the rows are sorted by token, then added up.
    ///
    /// # Errors
    /// As [`Embedding::add_forward`].
    pub fn add_backward(&self, plan: &mut Plan, upstream: EmbeddingUpstream) -> Result<(), Error> {
        self.check()?;
        let Self { dtype, rows, vocabulary, width, tokens, .. } = *self;
        let EmbeddingUpstream { dy, dweight, accumulates, used } = upstream;
        let lengths = [
            ("dy", Some(dy), rows * width),
            ("dweight", Some(dweight), vocabulary * width),
            ("used", used, vocabulary),
        ];
        check_lengths(NAME, &lengths)?;
        let has_used = used.is_some();
        let used = used.unwrap_or_else(|| untouched(plan, DType::I32));
        let pieces = rows.div_ceil(PIECE);
        let counts = plan.scratch(DType::I32, vocabulary);
        let starts = plan.scratch(DType::I32, vocabulary + 1);
        let next = plan.scratch(DType::I32, vocabulary);
        let [placed, order] = [0; 2].map(|_| plan.scratch(DType::I32, rows));
        let partials = plan.scratch(DType::F32, pieces * 2 * width);

        let load = |plan: &Plan, name: &str| plan.device().kernel(&kernels::EMBEDDING, name);
        let blocks = rows.div_ceil(THREADS);
        plan.zero(counts);
        let count = load(plan, "count_tokens")?;
        plan.launch(
            &count,
            grid(&count, [blocks, 1])?,
            arguments![tokens, counts, rows, vocabulary],
        )?;
        let scan = load(plan, "scan_counts")?;
        let all = arguments![counts, starts, next, used, vocabulary, has_used];
        plan.launch(&scan, grid(&scan, [vocabulary.div_ceil(SCAN_THREADS), 1])?, all)?;
        let place = load(plan, "place_rows")?;
        let all = arguments![tokens, next, placed, rows, vocabulary];
        plan.launch(&place, grid(&place, [blocks, 1])?, all)?;
        let sort = load(plan, "order_rows")?;
        let all = arguments![tokens, starts, placed, order, vocabulary];
        plan.launch(&sort, grid_over(&sort, rows * RANK_LANES)?, all)?;

        let pack = pack(dtype, &[width], &[(dy, dtype), (dweight, DType::F32)]);
        let sum = with_pack(plan, &kernels::EMBEDDING, "sum_pieces", dtype, pack)?;
        let all = arguments![
            dy,
            tokens,
            starts,
            order,
            dweight,
            partials,
            width,
            vocabulary,
            accumulates
        ];
        plan.launch(&sum, grid(&sum, [pieces, 1])?, all)?;
        if pieces > 1 {
            let join = load(plan, "join_pieces")?;
            let all = arguments![
                tokens,
                starts,
                order,
                partials,
                dweight,
                width,
                vocabulary,
                accumulates
            ];
            plan.launch(&join, grid(&join, [pieces, 1])?, all)?;
        }
        if !accumulates {
            let pack = self::pack(DType::F32, &[width], &[(dweight, DType::F32)]);
            let clear = with_pack(plan, &kernels::EMBEDDING, "clear_unused", DType::F32, pack)?;
            let launch = grid(&clear, [vocabulary.div_ceil(THREADS / 32), 1])?;
            let all = arguments![counts, used, dweight, width, vocabulary, has_used];
            plan.launch(&clear, launch, all)?;
        }
        Ok(())
    }
}

static FORWARD: Formula = Formula {
    name: "embedding",
    draw: draw_tokens,
    reference: |of| {
        vec![("y", reference::embedding(&of.ids("tokens"), &of.values("weight"), of.dim("E")))]
    },
    magnitudes: magnitudes::none,
    cost: |dims, dtype| {
        let (rows, width) = (dims.get("R") as f64, dims.get("E") as f64);
        bytes(dtype, 0.0, 2.0 * rows * width, 4.0 * rows)
    },
};

static BACKWARD: Formula = Formula {
    name: "embedding_back",
    draw: draw_tokens,
    reference: |of| {
        let vocabulary = of.dim("V");
        let dweight =
            reference::embedding_back(&of.ids("tokens"), &of.values("dy"), vocabulary, of.dim("E"));
        vec![("dweight", dweight)]
    },
    magnitudes: magnitudes::embedding_back,
    cost: |dims, dtype| {
        let [rows, vocabulary, width] = ["R", "V", "E"].map(|name| dims.get(name) as f64);
        let (all, of_weight) = (rows * width, vocabulary * width);
        bytes(dtype, all, all, 4.0 * (of_weight + rows))
    },
};

/// Tokens as texts have them, a few of them often; every 19th is padding.
fn draw_tokens(problem: &Problem, all: &mut Tensors) {
    let vocabulary = problem.dims.get("V");
    let normal = problem.normal_around(0.0, DType::F32, 9, &[problem.dims.get("R")]);
    let ids = normal.values().into_iter().enumerate().map(|(row, v)| match row % 19 {
        18 => -1,
        _ => ((v.powi(4) * vocabulary as f64 / 16.0) as usize % vocabulary) as i32,
    });
    let ids: Vec<i32> = ids.collect();
    all.insert("tokens".into(), Tensor::new(&[ids.len()], &ids));
}

const DIMS: &[Dim] = &[
    Dim::new("R", "rows", [45, 16384, 1 << 30]),
    Dim::new("V", "tokens of the vocabulary", [30, 50304, 1 << 24]),
    Dim::new("E", "columns", [24, 768, 1 << 20]),
];

/// Forward.
pub static EMBEDDING: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "embedding",
        family: &FORWARD,
        parent: None,
        change: "16 bytes of a row a thread",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: DIMS,
        settings: &[],
        inputs: &[
            Input::new("tokens", &["R"]).always(DType::I32),
            Input::new("weight", &["V", "E"]),
        ],
        // No arithmetic.
        outputs: &[Output {
            name: "y",
            bounds: &[(DType::F32, 0.0), (DType::F16, 0.0), (DType::BF16, 0.0)],
            elements: &[],
        }],
    },
    shapes: &[&[1, 1, 1], &[7, 3, 8], &[45, 30, 31], &[70, 500, 136]],
    timed: &[],
    sources: &[&kernels::EMBEDDING],
    plan: |plan, request| {
        let op = operation(plan, request)?;
        let y = Some(plan.output("y", op.dtype, &[op.rows, op.width]));
        Embedding { y, ..op }.add_forward(plan)?;
        Ok(())
    },
};

/// Back.
pub static EMBEDDING_BACK: Pass = Pass {
    info: Info {
        name: "embedding_back",
        family: &BACKWARD,
        change: "rows sorted by token, then summed in that order: no float atomics",
        inputs: &[
            EMBEDDING.info.inputs[0],
            EMBEDDING.info.inputs[1],
            Input::new("dy", &["R", "E"]),
        ],
        outputs: &[Output {
            name: "dweight",
            bounds: &[(DType::F32, 3e-7), (DType::F16, 3e-7), (DType::BF16, 3e-7)],
            elements: &magnitudes::in_f32(3.0),
        }],
        ..EMBEDDING.info
    },
    // One token in all rows; pieces that a token fills; a vocabulary of several rounds of the scan; wide rows of no token.
    shapes: &[
        &[1, 1, 1],
        &[300, 1, 8],
        &[45, 30, 31],
        &[200, 2, 1032],
        &[33, 9000, 8],
        &[20, 40, 136],
        &[20, 40, 70],
        &[400, 60, 24],
    ],
    plan: |plan, request| {
        let op = operation(plan, request)?;
        let dy = request.input(plan, "dy");
        let dweight = plan.output("dweight", DType::F32, &[op.vocabulary, op.width]);
        let upstream = EmbeddingUpstream { dy, dweight, accumulates: false, used: None };
        op.add_backward(plan, upstream)
    },
    ..EMBEDDING
};

fn operation(plan: &mut Plan, request: &Request<'_>) -> Result<Embedding, Error> {
    let [rows, vocabulary, width] = ["R", "V", "E"].map(|name| request.dim(name));
    let [tokens, weight] = request.inputs(plan, ["tokens", "weight"]);
    Ok(Embedding { dtype: request.dtype, rows, vocabulary, width, tokens, weight, y: None })
}
