//! Heads between \[B, S, NH, D\] in wider rows and \[B, NH, S, D\]: `kernels/heads.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Request, arguments};
use lab_reference::passes as reference;

use crate::head_norm::HeadLayout;
use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{
    check_dtype, check_lengths, check_rows, check_rows_count, check_sizes, grid_over, pack,
    with_pack,
};

/// \[B, NH, S, D\] from columns of rows: `to[b, h, s, :] = from[b, s, h D .. (h + 1) D]`.
#[derive(Clone, Copy, Debug)]
pub struct SplitHeads {
    /// Of both: f32, f16 or bf16.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// S.
    pub positions: usize,
    /// NH.
    pub heads: usize,
    /// D.
    pub width: usize,
    /// \[B S, NH D\] in rows `from_stride` apart: its slot begins with its first column.
    pub from: Slot,
    /// Elements from row to row of `from`.
    pub from_stride: usize,
    /// Where the heads go; scratch of its own where it is not said.
    pub to: Option<Slot>,
}

/// Back: `to[b, s, h D .. (h + 1) D] = from[b, h, s, :]`. Its gradient is [`SplitHeads`], and the reverse.
#[derive(Clone, Copy, Debug)]
pub struct MergeHeads {
    /// Of both: f32, f16 or bf16.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// S.
    pub positions: usize,
    /// NH.
    pub heads: usize,
    /// D.
    pub width: usize,
    /// \[B, NH, S, D\].
    pub from: Slot,
    /// Where the rows go; scratch of its own, without gaps, where it is not said.
    pub to: Option<Slot>,
    /// Elements from row to row of `to`.
    pub to_stride: usize,
}

/// Sizes of either.
#[derive(Clone, Copy)]
struct Sizes {
    dtype: DType,
    batch: usize,
    positions: usize,
    heads: usize,
    width: usize,
}

impl Sizes {
    fn check(&self, name: &str) -> Result<(), Error> {
        let Self { dtype, batch, positions, heads, width } = *self;
        check_dtype(name, dtype)?;
        check_sizes(
            name,
            &[("batch", batch), ("positions", positions), ("heads", heads), ("width", width)],
        )?;
        check_rows_count(name, batch * positions)
    }

    fn all(&self) -> usize {
        self.batch * self.positions * self.heads * self.width
    }

    /// Strides of rows that are so far apart.
    fn in_rows(&self, stride: usize) -> [usize; 3] {
        [self.positions * stride, stride, self.width]
    }

    fn heads_first(&self) -> [usize; 3] {
        HeadLayout::HeadsFirst.strides([self.positions, self.heads, self.width])
    }

    /// Adds the launch, with the strides of both.
    fn add(
        &self,
        plan: &mut Plan,
        [from, to]: [Slot; 2],
        strides: [[usize; 3]; 2],
    ) -> Result<(), Error> {
        let Self { dtype, batch, positions, heads, width } = *self;
        let sizes = [&[width], strides.as_flattened()].concat();
        let pack = pack(dtype, &sizes, &[(from, dtype), (to, dtype)]);
        let kernel = with_pack(plan, &kernels::HEADS, "move_heads", dtype, pack)?;
        let rows = batch * positions;
        let launch = grid_over(&kernel, rows * heads * (width / pack))?;
        let [[from_batch, from_position, from_head], [to_batch, to_position, to_head]] = strides;
        let all = arguments![
            from,
            to,
            rows,
            positions,
            heads,
            width,
            from_batch,
            from_position,
            from_head,
            to_batch,
            to_position,
            to_head
        ];
        plan.launch(&kernel, launch, all)
    }
}

/// A cache of keys or values: \[B, NH, room, D\], whose first positions are those of the rows.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The cache.
    pub slot: Slot,
    /// Positions that it has room for, S or more.
    pub positions: usize,
}

impl SplitHeads {
    /// Adds the launch whose heads go to the first positions of a cache.
    ///
    /// # Errors
    /// As [`SplitHeads::add_forward`]; there is no room for all positions.
    pub fn add_into_room(&self, plan: &mut Plan, room: Room) -> Result<(), Error> {
        let Self { dtype, batch, positions, heads, width, from, from_stride, .. } = *self;
        let sizes = Sizes { dtype, batch, positions, heads, width };
        sizes.check("split_heads")?;
        if room.positions < positions {
            let expected = format!("for at least {positions} positions");
            return Err(Error::bad("room of split_heads", expected, room.positions));
        }
        let all = batch * heads * room.positions * width;
        check_rows("split_heads", "from", from, [batch * positions, heads * width, from_stride])?;
        check_lengths("split_heads", &[("room", Some(room.slot), all)])?;
        let strides = HeadLayout::HeadsFirst.strides([room.positions, heads, width]);
        sizes.add(plan, [from, room.slot], [sizes.in_rows(from_stride), strides])
    }

    /// Adds the launch; the heads.
    ///
    /// # Errors
    /// A type, a size, a stride or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Self { dtype, batch, positions, heads, width, from, from_stride, .. } = *self;
        let sizes = Sizes { dtype, batch, positions, heads, width };
        sizes.check("split_heads")?;
        check_rows("split_heads", "from", from, [batch * positions, heads * width, from_stride])?;
        check_lengths("split_heads", &[("to", self.to, sizes.all())])?;
        let to = self.to.unwrap_or_else(|| plan.scratch(dtype, sizes.all()));
        sizes.add(plan, [from, to], [sizes.in_rows(from_stride), sizes.heads_first()])?;
        Ok(to)
    }

    /// Adds the launch of the way back: the gradient of the columns, from that of the heads. `into` has rows so far apart;
    /// scratch of its own, without gaps, where it is not said.
    ///
    /// # Errors
    /// As [`MergeHeads::add_forward`].
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        upstream: Slot,
        into: Option<(Slot, usize)>,
    ) -> Result<Slot, Error> {
        let Self { dtype, batch, positions, heads, width, .. } = *self;
        let (to, to_stride) =
            into.map_or((None, heads * width), |(slot, stride)| (Some(slot), stride));
        MergeHeads { dtype, batch, positions, heads, width, from: upstream, to, to_stride }
            .add_forward(plan)
    }
}

impl MergeHeads {
    /// Adds the launch; the rows.
    ///
    /// # Errors
    /// A type, a size, a stride or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Self { dtype, batch, positions, heads, width, from, .. } = *self;
        let sizes = Sizes { dtype, batch, positions, heads, width };
        sizes.check("merge_heads")?;
        check_lengths("merge_heads", &[("from", Some(from), sizes.all())])?;
        let to_stride = self.to.map_or(heads * width, |_| self.to_stride);
        if let Some(to) = self.to {
            check_rows("merge_heads", "to", to, [batch * positions, heads * width, to_stride])?;
        }
        let to = self.to.unwrap_or_else(|| plan.scratch(dtype, sizes.all()));
        sizes.add(plan, [from, to], [sizes.heads_first(), sizes.in_rows(to_stride)])?;
        Ok(to)
    }

    /// Adds the launch of the way back: the gradient of the heads, from that of the rows, which are `stride` apart.
    ///
    /// # Errors
    /// As [`SplitHeads::add_forward`].
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        (upstream, stride): (Slot, usize),
        into: Option<Slot>,
    ) -> Result<Slot, Error> {
        let Self { dtype, batch, positions, heads, width, .. } = *self;
        let (from, from_stride, to) = (upstream, stride, into);
        SplitHeads { dtype, batch, positions, heads, width, from, from_stride, to }
            .add_forward(plan)
    }
}

const SPLIT: Formula = Formula {
    name: "split_heads",
    draw: |_, _| (),
    reference: |of| vec![("out", reference::split_heads(&of.values("x"), sizes(of)))],
    magnitudes: magnitudes::none,
    cost: |dims, dtype| {
        let all = ["B", "S", "NH", "D"].map(|name| dims.get(name) as f64).iter().product::<f64>();
        bytes(dtype, 0.0, 2.0 * all, 0.0)
    },
};

static SPLITS: Formula = SPLIT;

static MERGE: Formula = Formula {
    name: "merge_heads",
    reference: |of| vec![("out", reference::merge_heads(&of.values("x"), sizes(of)))],
    ..SPLIT
};

fn sizes(of: &Operands<'_>) -> [usize; 4] {
    ["B", "S", "NH", "D"].map(|name| of.dim(name))
}

/// From rows to heads.
pub static SPLIT_HEADS: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "split_heads",
        family: &SPLITS,
        parent: None,
        change: "16 bytes a thread: a head's columns lie together on both sides",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("B", "batch", [2, 8, 1 << 20]),
            Dim::new("S", "positions", [5, 2048, 1 << 20]),
            Dim::new("NH", "heads", [3, 4, 1 << 16]),
            Dim::new("D", "columns of a head", [40, 192, 1 << 16]),
        ],
        settings: &[],
        inputs: &[Input::new("x", &["B", "S", "NH", "D"])],
        // No arithmetic.
        outputs: &[Output {
            name: "out",
            bounds: &[(DType::F32, 0.0), (DType::F16, 0.0), (DType::BF16, 0.0)],
            elements: &[],
        }],
    },
    shapes: &[&[1, 1, 1, 1], &[2, 5, 3, 7], &[1, 33, 4, 24], &[3, 8, 2, 64]],
    timed: &[],
    sources: &[&kernels::HEADS],
    plan: |plan, request| {
        let (Sizes { dtype, batch, positions, heads, width }, from) = operation(plan, request);
        let to = Some(plan.output("out", dtype, &[batch, heads, positions, width]));
        let from_stride = heads * width;
        SplitHeads { dtype, batch, positions, heads, width, from, from_stride, to }
            .add_forward(plan)?;
        Ok(())
    },
};

/// And from heads to rows.
pub static MERGE_HEADS: Pass = Pass {
    info: Info {
        name: "merge_heads",
        family: &MERGE,
        change: "the same kernel with the strides of both sides exchanged",
        inputs: &[Input::new("x", &["B", "NH", "S", "D"])],
        ..SPLIT_HEADS.info
    },
    plan: |plan, request| {
        let (Sizes { dtype, batch, positions, heads, width }, from) = operation(plan, request);
        let to = Some(plan.output("out", dtype, &[batch, positions, heads, width]));
        let to_stride = heads * width;
        MergeHeads { dtype, batch, positions, heads, width, from, to, to_stride }
            .add_forward(plan)?;
        Ok(())
    },
    ..SPLIT_HEADS
};

fn operation(plan: &mut Plan, request: &Request<'_>) -> (Sizes, Slot) {
    let [batch, positions, heads, width] = ["B", "S", "NH", "D"].map(|name| request.dim(name));
    (Sizes { dtype: request.dtype, batch, positions, heads, width }, request.input(plan, "x"))
}
