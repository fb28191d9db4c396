//! The vLSTM over rows, heads beside each other.

use lab_device::{DType, Device};
use lab_harness::plan::Slot;
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes, Tensor, Version};

use crate::choose::needed_arch;
use crate::cut::Made;
use crate::saved::{Export, Saved};
use crate::{NormalizerGrad, Sizes};

/// Columns of rows: the slot begins with the first of them, and rows are `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// From the first column on.
    pub slot: Slot,
    /// Elements from row to row.
    pub stride: usize,
}

impl Rows {
    /// What a tensor \[rows, columns\] has of it, from its first element to its last.
    pub(crate) fn of(&self, rows: usize, columns: usize) -> Slot {
        self.slot.part(0, (rows - 1) * self.stride + columns)
    }
}

/// The vLSTM where the linear layer before it leaves q, k and v, and where the one behind it reads h: nothing is transposed.
///
/// q, k \[B S, NH DHQK\], v \[B S, NH DHHV\] of `dtype`; gate pre-activations i, f \[NH, B S\] of f32; h \[B S, NH DHHV\]. The kernels take
/// the B sequences as packed ones.
#[derive(Clone, Copy, Debug)]
pub struct VlstmRows {
    /// Of q, k, v and h: f16 or bf16.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Sizes,
    /// Queries.
    pub q: Rows,
    /// Keys.
    pub k: Rows,
    /// Values.
    pub v: Rows,
    /// Input gates.
    pub i: Slot,
    /// Forget gates.
    pub f: Slot,
    /// Added to the normaliser.
    pub eps: f64,
    /// What the backward pass takes the normaliser for.
    pub normalizer_grad: NormalizerGrad,
}

/// What a forward pass over rows has saved.
pub type SavedRows = Saved<VlstmRows>;

/// The gradients of the gates, f32 \[NH, B S\] each.
#[derive(Clone, Copy, Debug)]
pub struct GateGradients {
    /// Of i.
    pub i: Slot,
    /// Of f.
    pub f: Slot,
}

static FORWARD: &dyn Version = &vlstm_fw_v4::PACKED;
static BOTH: &dyn Version = &vlstm_fwbw_v4::PACKED;

impl VlstmRows {
    /// Whether it takes this type and these sizes on this device.
    pub fn takes(device: &Device, dtype: DType, sizes: Sizes) -> bool {
        [(FORWARD, &vlstm_fw_v4::STAGE), (BOTH, &vlstm_fwbw_v4::STAGE)].iter().all(
            |(version, stage)| {
                let info = version.info();
                let fits = |name: &str, size: usize| {
                    let dim = info.dims.iter().find(|d| d.name == name);
                    dim.is_some_and(|d| size <= d.max && size.is_multiple_of(d.step))
                };
                info.dtypes.contains(&dtype)
                    && fits("N", sizes.batch)
                    && fits("T", sizes.batch * sizes.positions)
                    && fits("DHQK", sizes.keys)
                    && fits("DHHV", sizes.values)
                    && needed_arch(*version, stage, device).is_none()
            },
        )
    }

    fn positions(&self) -> usize {
        self.sizes.batch * self.sizes.positions
    }

    fn widths(&self) -> [usize; 2] {
        let Sizes { heads, keys, values, .. } = self.sizes;
        [heads * keys, heads * values]
    }

    /// Of h and its gradient, without gaps.
    fn values_apart(&self) -> usize {
        self.widths()[1]
    }

    fn inputs(&self, plan: &mut Plan) -> Vec<(&'static str, Slot)> {
        let Self { sizes, q, k, v, i, f, .. } = *self;
        let (t, [keys, values]) = (self.positions(), self.widths());
        let starts: Vec<i32> = (0..=sizes.batch).map(|b| (b * sizes.positions) as i32).collect();
        let cu_seqlens = plan.constant(&Tensor::new(&[starts.len()], &starts));
        vec![
            ("q", q.of(t, keys)),
            ("k", k.of(t, keys)),
            ("v", v.of(t, values)),
            ("i", i),
            ("f", f),
            ("cu_seqlens", cu_seqlens),
        ]
    }

    fn shapes(&self) -> Shapes {
        let Sizes { batch, heads, keys, values, .. } = self.sizes;
        let t = self.positions();
        [
            ("q", self.dtype, vec![1, heads, t, keys]),
            ("k", self.dtype, vec![1, heads, t, keys]),
            ("v", self.dtype, vec![1, heads, t, values]),
            ("i", DType::F32, vec![1, heads, t]),
            ("f", DType::F32, vec![1, heads, t]),
            ("cu_seqlens", DType::I32, vec![batch + 1]),
        ]
        .into_iter()
        .map(|(name, dtype, sizes)| (name.to_owned(), Shape { dtype, sizes }))
        .collect()
    }

    fn plan_of(
        &self,
        plan: &Plan,
        version: &dyn Version,
        shapes: Shapes,
        more: &[(&'static str, usize)],
    ) -> Result<Made, Error> {
        let mut options = vec![format!("eps={:?}", self.eps)];
        if shapes.contains_key("dh") && self.normalizer_grad == NormalizerGrad::Exact {
            options.push("normalizer_grad=exact".into());
        }
        let parsed = Options::parse(&options, version.info())?;
        let own = [("q", self.q.stride), ("k", self.k.stride), ("v", self.v.stride)];
        let apart = own.into_iter().chain([("h", self.values_apart())]).chain(more.iter().copied());
        let request =
            Request::new(version.info(), shapes, &parsed)?.with_rows_apart(apart.collect());
        Made::by(version, plan.device(), &request, options)
    }

    /// Both passes, with the strides of the gradients of q, k and v.
    fn plan_both_passes(&self, plan: &Plan, [dq, dk, dv]: [usize; 3]) -> Result<Made, Error> {
        let mut shapes = self.shapes();
        shapes.insert("dh".into(), shapes["v"].clone());
        let more = [("dh", self.values_apart()), ("dq", dq), ("dk", dk), ("dv", dv)];
        self.plan_of(plan, BOTH, shapes, &more)
    }

    /// Adds the forward pass alone; h.
    ///
    /// # Errors
    /// [`VlstmRows::takes`] says no; a slot is too short, or of another type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let forward = self.plan_of(plan, FORWARD, self.shapes(), &[])?;
        let inputs = self.inputs(plan);
        Ok(plan.include(&forward.plan, &inputs)?.slot("h"))
    }

    /// Adds the forward pass, and what it saves. `gradients` are the strides of the rows that [`VlstmRows::add_backward`] writes the
    /// gradients of q, k and v to.
    ///
    /// # Errors
    /// As [`VlstmRows::add_forward`].
    pub fn add_forward_saving(
        &self,
        plan: &mut Plan,
        gradients: [usize; 3],
    ) -> Result<(Slot, SavedRows), Error> {
        let cut = self.plan_both_passes(plan, gradients)?.cut_in_two()?;
        let inputs = self.inputs(plan);
        let (included, saved) = cut.add_forward(plan, &inputs)?;
        Ok((included.slot("h"), saved))
    }

    /// Takes what a forward pass of this operation has saved in another plan as inputs of this one: see
    /// [`Vlstm::import`](crate::Vlstm::import). The strides are those that the forward pass was told.
    ///
    /// # Errors
    /// As [`VlstmRows::add_forward`]; or the options or a tensor is another than this operation has.
    pub fn import(
        &self,
        plan: &mut Plan,
        export: &Export,
        gradients: [usize; 3],
    ) -> Result<SavedRows, Error> {
        let both = self.plan_both_passes(plan, gradients)?;
        Saved::import(plan, both, export)
    }

    /// Adds the backward pass, from the gradient of h, \[B S, NH DHHV\]; the gradients of q, k and v go to rows of the strides that the
    /// forward pass was told, which may be one matrix.
    ///
    /// # Errors
    /// A slot is too short, or of another type or plan.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &SavedRows,
        dh: Slot,
        [dq, dk, dv]: [Rows; 3],
    ) -> Result<GateGradients, Error> {
        let (t, [keys, values]) = (self.positions(), self.widths());
        let upstream =
            [("dh", dh), ("dq", dq.of(t, keys)), ("dk", dk.of(t, keys)), ("dv", dv.of(t, values))];
        let included = saved.add_backward(plan, &upstream)?;
        Ok(GateGradients { i: included.slot("di"), f: included.slot("df") })
    }
}
