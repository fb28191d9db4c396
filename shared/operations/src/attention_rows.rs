//! Softmax attention over rows, heads beside each other.

use lab_device::{DType, Device};
use lab_families::attention::sizes;
use lab_harness::plan::Slot;
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes, Version};

use crate::AttentionSizes;
use crate::attention::shape_of_ends;
use crate::choose::needed_arch;
use crate::cut::Made;
use crate::rows::Rows;
use crate::saved::{Export, Saved};

/// Softmax attention where the linear layer before it leaves q, k and v, and where the one behind it reads o: nothing is
/// transposed.
///
/// q \[B S, NH D\], k and v \[B S, NKV D\] of `dtype`; o \[B S, NH D\].
#[derive(Clone, Copy, Debug)]
pub struct AttentionRows {
    /// Of q, k, v and o: f16 or bf16.
    pub dtype: DType,
    /// Sizes.
    pub sizes: AttentionSizes,
    /// Queries.
    pub q: Rows,
    /// Keys.
    pub k: Rows,
    /// Values.
    pub v: Rows,
    /// Where packed sequences begin and end, as [`Attention::cu_seqlens`](crate::Attention::cu_seqlens) has it; B is 1.
    pub cu_seqlens: Option<Slot>,
    /// Whether a position sees no later one.
    pub causal: bool,
}

/// What a forward pass of attention over rows has saved.
pub type SavedAttentionRows = Saved<AttentionRows>;

static FORWARD: &dyn Version = &attention::TURNS;
static BOTH: &dyn Version = &attention::WGMMA_BACK;
/// Both passes of heads that it is faster with.
static BOTH_IN_ONE_WALK: &dyn Version = &attention::HANDED_BACK;
static PACKED_FORWARD: &dyn Version = &attention::PACKED;
static PACKED_BOTH: &dyn Version = &attention::PACKED_BACK;

impl AttentionRows {
    /// Whether it takes this type and these sizes on this device.
    pub fn takes(device: &Device, dtype: DType, sizes: AttentionSizes) -> bool {
        let AttentionSizes { batch, heads, shared_heads, positions, columns } = sizes;
        let named =
            [("B", batch), ("NH", heads), ("NKV", shared_heads), ("S", positions), ("D", columns)];
        [FORWARD, BOTH].iter().all(|version| {
            let info = version.info();
            info.dtypes.contains(&dtype)
                && needed_arch(*version, &attention::STAGE, device).is_none()
                && info.dims.iter().all(|dim| {
                    let of = |(name, _): &&(&str, usize)| *name == dim.name;
                    let size = named.iter().find(of).map_or(0, |(_, size)| *size);
                    size <= dim.max && size.is_multiple_of(dim.step)
                })
        })
    }

    fn rows(&self) -> usize {
        self.sizes.batch * self.sizes.positions
    }

    /// Columns of q and o, and of k and v.
    fn widths(&self) -> [usize; 2] {
        let AttentionSizes { heads, shared_heads, columns, .. } = self.sizes;
        [heads * columns, shared_heads * columns]
    }

    fn inputs(&self) -> Vec<(&'static str, Slot)> {
        let (rows, [own, shared]) = (self.rows(), self.widths());
        let tensors = [
            ("q", self.q.of(rows, own)),
            ("k", self.k.of(rows, shared)),
            ("v", self.v.of(rows, shared)),
        ];
        let packed = self.cu_seqlens.map(|slot| ("cu_seqlens", slot));
        tensors.into_iter().chain(packed).collect()
    }

    fn plan_of(
        &self,
        plan: &Plan,
        version: &dyn Version,
        more: &[(&'static str, usize)],
    ) -> Result<Made, Error> {
        let AttentionSizes { batch, heads, shared_heads, positions, columns } = self.sizes;
        let shape =
            |heads| Shape { dtype: self.dtype, sizes: vec![batch, heads, positions, columns] };
        let all = [("q", heads), ("k", shared_heads), ("v", shared_heads), ("do", heads)];
        let named = all.into_iter().filter(|(name, _)| version.info().takes(name));
        let packed = self.cu_seqlens.map(|ends| ("cu_seqlens".to_owned(), shape_of_ends(ends)));
        let shapes: Shapes =
            named.map(|(name, heads)| (name.to_owned(), shape(heads))).chain(packed).collect();
        let options = vec![format!("causal={}", if self.causal { "yes" } else { "no" })];
        let parsed = Options::parse(&options, version.info())?;
        let own = [
            ("q", self.q.stride),
            ("k", self.k.stride),
            ("v", self.v.stride),
            ("o", self.widths()[0]),
        ];
        let apart = own.into_iter().chain(more.iter().copied()).collect();
        let request = Request::new(version.info(), shapes, &parsed)?.with_rows_apart(apart);
        Made::by(version, plan.device(), &request, options)
    }

    /// Both passes, with the strides of the gradients of q, k and v.
    fn plan_both_passes(&self, plan: &Plan, [dq, dk, dv]: [usize; 3]) -> Result<Made, Error> {
        let more = [("do", self.widths()[0]), ("dq", dq), ("dk", dk), ("dv", dv)];
        self.plan_of(plan, self.both(), &more)
    }

    /// The version of both passes.
    pub(crate) fn both(&self) -> &'static dyn Version {
        if self.cu_seqlens.is_some() {
            return PACKED_BOTH;
        }
        let AttentionSizes { batch, heads, shared_heads, positions, columns } = self.sizes;
        let dims = sizes([batch, heads, shared_heads, positions, columns]);
        let most = BOTH_IN_ONE_WALK.info().dims.iter().find(|dim| dim.name == "D");
        let takes = most.is_some_and(|dim| columns <= dim.max);
        if takes && BOTH_IN_ONE_WALK.is_chosen_for(&dims) { BOTH_IN_ONE_WALK } else { BOTH }
    }

    /// Adds the forward pass alone; o.
    ///
    /// # Errors
    /// [`AttentionRows::takes`] says no; a slot is too short, or of another type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let version = if self.cu_seqlens.is_some() { PACKED_FORWARD } else { FORWARD };
        let forward = self.plan_of(plan, version, &[])?;
        Ok(plan.include(&forward.plan, &self.inputs())?.slot("o"))
    }

    /// Adds the forward pass, and what it saves. `gradients` are the strides of the rows that [`AttentionRows::add_backward`]
    /// writes the gradients of q, k and v to.
    ///
    /// # Errors
    /// As [`AttentionRows::add_forward`].
    pub fn add_forward_saving(
        &self,
        plan: &mut Plan,
        gradients: [usize; 3],
    ) -> Result<(Slot, SavedAttentionRows), Error> {
        let cut = self.plan_both_passes(plan, gradients)?.cut_in_two()?;
        let (included, saved) = cut.add_forward(plan, &self.inputs())?;
        Ok((included.slot("o"), saved))
    }

    /// Takes what a forward pass of this operation has saved in another plan as inputs of this one: see
    /// [`Vlstm::import`](crate::Vlstm::import). The strides are those that the forward pass was told.
    ///
    /// # Errors
    /// As [`AttentionRows::add_forward`]; or the options or a tensor is another than this operation has.
    pub fn import(
        &self,
        plan: &mut Plan,
        export: &Export,
        gradients: [usize; 3],
    ) -> Result<SavedAttentionRows, Error> {
        let both = self.plan_both_passes(plan, gradients)?;
        Saved::import(plan, both, export)
    }

    /// Adds the backward pass, from the gradient of o, \[B S, NH D\]; the gradients of q, k and v go to rows of the strides that
    /// the forward pass was told, which may be one matrix.
    ///
    /// # Errors
    /// A slot is too short, or of another type or plan.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &SavedAttentionRows,
        of_o: Slot,
        [dq, dk, dv]: [Rows; 3],
    ) -> Result<(), Error> {
        let (rows, [own, shared]) = (self.rows(), self.widths());
        let upstream = [
            ("do", of_o),
            ("dq", dq.of(rows, own)),
            ("dk", dk.of(rows, shared)),
            ("dv", dv.of(rows, shared)),
        ];
        saved.add_backward(plan, &upstream)?;
        Ok(())
    }
}
