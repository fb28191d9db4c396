//! Keys and values of a position more: `kernels/append.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Setting, Tensor, arguments};
use lab_reference::passes as reference;

use crate::pass::{Formula, Pass, bytes};
use crate::slots::{
    check_dtype, check_lengths, check_rows, check_rows_count, check_sizes, grid_over, pack,
    with_pack,
};
use crate::{Rope, kernels, magnitudes};

/// Turns q and k of one position of each sequence by it, as [`Rope`] does, and puts k and v behind those of the positions before.
#[derive(Clone, Copy, Debug)]
pub struct AppendToCache {
    /// Of q, k, v and the caches: f32, f16 or bf16.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// NH, heads of q.
    pub heads: usize,
    /// NKV, heads of k and v.
    pub shared_heads: usize,
    /// D, an even number.
    pub width: usize,
    /// Positions that the caches have room for.
    pub room: usize,
    /// \[B, NH D\], the first column of rows `q_stride` apart.
    pub q: Slot,
    /// Elements from row to row of `q`.
    pub q_stride: usize,
    /// k and v, \[B, NKV D\] each, likewise.
    pub kv: [Slot; 2],
    /// Elements from row to row of both.
    pub kv_stride: usize,
    /// i32 \[B\]: the positions of each sequence, with this one. Where that is 0 or more than there is room for, nothing is written.
    pub lengths: Slot,
    /// f32 \[2, room, D / 2\]: [`Rope::table`].
    pub table: Slot,
    /// Keys and values, \[B, NKV, room, D\] each.
    pub caches: [Slot; 2],
    /// Where the turned q goes, \[B, NH, D\]; scratch of its own where it is not said.
    pub q_turned: Option<Slot>,
}

const NAME: &str = "append_to_cache";

impl AppendToCache {
    /// Adds the launch; the turned q.
    ///
    /// # Errors
    /// A type, a size, a stride or a slot's length that does not fit; an odd width.
    pub fn add(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Self { dtype, batch, heads, shared_heads, width, room, .. } = *self;
        let Self { q, q_stride, kv: [k, v], kv_stride, lengths, table, caches, .. } = *self;
        let half = width / 2;
        check_dtype(NAME, dtype)?;
        let sizes = [
            ("batch", batch),
            ("heads", heads),
            ("shared heads", shared_heads),
            ("width", width),
            ("room", room),
        ];
        check_sizes(NAME, &sizes)?;
        check_rows_count(NAME, room)?;
        if !width.is_multiple_of(2) {
            return Err(Error::bad(format!("width of {NAME}"), "an even number", width));
        }
        check_rows(NAME, "q", q, [batch, heads * width, q_stride])?;
        for (name, slot) in [("k", k), ("v", v)] {
            check_rows(NAME, name, slot, [batch, shared_heads * width, kv_stride])?;
        }
        let cached = batch * shared_heads * room * width;
        let lens = [
            ("lengths", Some(lengths), batch),
            ("table", Some(table), room * width),
            ("the cache of k", Some(caches[0]), cached),
            ("the cache of v", Some(caches[1]), cached),
            ("q_turned", self.q_turned, batch * heads * width),
        ];
        check_lengths(NAME, &lens)?;
        let q_turned = self.q_turned.unwrap_or_else(|| plan.scratch(dtype, batch * heads * width));
        let slots = [q, k, v, caches[0], caches[1], q_turned].map(|slot| (slot, dtype));
        let all_slots = [&slots[..], &[(table, DType::F32)]].concat();
        let pack = pack(dtype, &[half, q_stride, kv_stride], &all_slots);
        let kernel = with_pack(plan, &kernels::APPEND, NAME, dtype, pack)?;
        let all_heads = heads + 2 * shared_heads;
        let launch = grid_over(&kernel, batch * all_heads * (half / pack))?;
        let all = arguments![
            q,
            k,
            v,
            lengths,
            table,
            q_turned,
            K: caches[0],
            V: caches[1],
            batch,
            heads,
            shared_heads,
            half,
            room,
            q_stride,
            kv_stride
        ];
        plan.launch(&kernel, launch, all)?;
        Ok(q_turned)
    }
}

static APPENDED: Formula = Formula {
    name: "append_to_cache",
    draw: |problem, all| {
        // Each sequence another length, the last that of all the room.
        let [batch, room] = ["B", "T"].map(|name| problem.dims.get(name));
        let lengths: Vec<i32> = (0..batch).map(|b| (room - b * 7 % room) as i32).collect();
        all.insert("lengths".into(), Tensor::new(&[batch], &lengths));
    },
    reference: |of| {
        let sizes = ["NH", "NKV", "T", "D"].map(|name| of.dim(name));
        let lengths: Vec<usize> = of.ids("lengths").into_iter().map(|n| n as usize).collect();
        let new = ["q", "k", "v"].map(|name| of.values(name));
        let caches = ["keys", "values"].map(|name| of.values(name));
        let [q, keys, values] =
            reference::append_to_cache(&new, caches, &lengths, sizes, of.number("theta"));
        vec![("q_turned", q), ("keys_after", keys), ("values_after", values)]
    },
    magnitudes: magnitudes::append,
    cost: |dims, dtype| {
        let [b, nh, nkv, d] = ["B", "NH", "NKV", "D"].map(|name| dims.get(name) as f64);
        let moved = b * (nh + 2.0 * nkv) * d;
        bytes(dtype, 3.0 * b * (nh + nkv) * d, 2.0 * moved, 4.0 * b * (1.0 + d))
    },
};

/// A position more.
pub static APPEND_TO_CACHE: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "append_to_cache",
        family: &APPENDED,
        parent: None,
        change: "q, k and v of a position in one launch, which reads on the device where it belongs",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("B", "batch", [2, 64, 1 << 16]),
            Dim::new("NH", "heads of q", [4, 16, 1 << 12]),
            Dim::new("NKV", "heads of k and v", [2, 8, 1 << 12]),
            Dim::new("T", "positions that there is room for", [9, 2048, 1 << 20]),
            Dim::new("D", "columns of a head", [32, 128, 1 << 16]).in_steps_of(2),
        ],
        settings: &[Setting::number("theta", "the base of the angles", "10000")],
        inputs: &[
            Input::new("q", &["B", "NH", "D"]),
            Input::new("k", &["B", "NKV", "D"]),
            Input::new("v", &["B", "NKV", "D"]),
            Input::new("keys", &["B", "NKV", "T", "D"]),
            Input::new("values", &["B", "NKV", "T", "D"]),
            Input::new("lengths", &["B"]).always(DType::I32),
        ],
        outputs: &[
            Output {
                name: "q_turned",
                bounds: &[(DType::F32, 1.6e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(2.0),
            },
            Output {
                name: "keys_after",
                bounds: &[(DType::F32, 1.6e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(2.0),
            },
            // No arithmetic.
            Output {
                name: "values_after",
                bounds: &[(DType::F32, 0.0), (DType::F16, 0.0), (DType::BF16, 0.0)],
                elements: &[],
            },
        ],
    },
    // One pair; single elements; packs, of several sequences; a position far from the first.
    shapes: &[&[1, 1, 1, 1, 2], &[3, 2, 3, 5, 6], &[4, 6, 2, 12, 64], &[1, 1, 1, 3000, 16]],
    timed: &[],
    sources: &[&kernels::APPEND],
    plan: |plan, request| {
        let [batch, heads, shared_heads, room, width] =
            ["B", "NH", "NKV", "T", "D"].map(|name| request.dim(name));
        let theta = request.number("theta");
        if theta <= 0.0 {
            return Err(Error::bad("--set theta", "a number above 0", theta));
        }
        let dtype = request.dtype;
        let [q, k, v, lengths] = request.inputs(plan, ["q", "k", "v", "lengths"]);
        let caches = [("keys", "keys_after"), ("values", "values_after")]
            .map(|(name, after)| plan.updated(name, after, dtype, &request.shape(name).sizes));
        let table = plan.constant(&Rope::table(room, width, theta));
        let q_turned = Some(plan.output("q_turned", dtype, &[batch, heads, width]));
        let (q_stride, kv_stride, kv) = (heads * width, shared_heads * width, [k, v]);
        AppendToCache {
            dtype,
            batch,
            heads,
            shared_heads,
            width,
            room,
            q,
            q_stride,
            kv,
            kv_stride,
            lengths,
            table,
            caches,
            q_turned,
        }
        .add(plan)?;
        Ok(())
    },
};
