//! The vLSTM over whole sequences.

use lab_device::DType;
use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};
pub use lab_reference::vlstm::NormalizerGrad;

use crate::cut::Made;
use crate::saved::{Export, Saved};
use crate::{Pass, choose};

/// Of q, k, v: B, NH, S, DHQK, DHHV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// B.
    pub batch: usize,
    /// NH.
    pub heads: usize,
    /// S.
    pub positions: usize,
    /// DHQK, columns of q and k of a head.
    pub keys: usize,
    /// DHHV, columns of v and h of a head.
    pub values: usize,
}

/// The vLSTM over whole sequences: q, k, v and gates → h; see [`lab_families::vlstm`] for the equations.
///
/// q, k \[B, NH, S, DHQK\], v \[B, NH, S, DHHV\] of `dtype`; gate pre-activations i, f \[B, NH, S\] of f32.
///
/// ```no_run
/// # use lab_device::DType;
/// # use lab_harness::{Error, Plan, plan::Slot};
/// # use lab_operations::{Sizes, Vlstm};
/// # fn add(plan: &mut Plan, [q, k, v, i, f, dh]: [Slot; 6]) -> Result<Slot, Error> {
/// let sizes = Sizes { batch: 1, heads: 4, positions: 256, keys: 64, values: 128 };
/// let vlstm = Vlstm::new(DType::BF16, sizes, [q, k, v], [i, f]);
/// let (outputs, saved) = vlstm.add_forward_saving(plan)?;
/// // … what computes dh from outputs.h
/// let gradients = vlstm.add_backward(plan, &saved, dh)?;
/// # Ok(gradients.q)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Vlstm {
    /// Of q, k, v and h.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Sizes,
    /// Queries.
    pub q: Slot,
    /// Keys.
    pub k: Slot,
    /// Values.
    pub v: Slot,
    /// Input gates.
    pub i: Slot,
    /// Forget gates.
    pub f: Slot,
    /// Where packed sequences begin and end, i32 \[N + 1\], rising from 0 to S: sequence n has the positions from its n-th element
    /// up to the next, which may be none, and B is 1. See [`lab_families::vlstm::PackedSlot`].
    pub cu_seqlens: Option<Slot>,
    /// C0 \[B, NH, DHQK, DHHV\], n0 \[B, NH, DHQK\], m0 \[B, NH\], of f32: what earlier positions have left. Of packed sequences
    /// each has its own: N in place of B.
    pub state: Option<[Slot; 3]>,
    /// Whether the state behind the last position is wanted.
    pub last_state: bool,
    /// Whether gradients go through the states: that of the last one, if it is wanted, goes in, and that of the first, if there is
    /// one, comes out.
    pub state_gradients: bool,
    /// Added to the normaliser.
    pub eps: f64,
    /// What the backward pass takes the normaliser for.
    pub normalizer_grad: NormalizerGrad,
    /// The version of the forward pass alone, and that of both passes: `vlstm_fw_v4:v1_roles`.
    pub versions: [Option<&'static str>; 2],
}

/// What comes out, as scratch of the plan.
#[derive(Clone, Copy, Debug)]
pub struct Outputs {
    /// \[B, NH, S, DHHV\].
    pub h: Slot,
    /// The largest exponent of each row, \[B, NH, S\] of f32.
    pub m: Slot,
    /// The normaliser of each row, \[B, NH, S\] of f32.
    pub n: Slot,
    /// C, n and m behind the last position, if they are wanted: of packed sequences, of each.
    pub state: Option<[Slot; 3]>,
}

/// The gradients from above.
#[derive(Clone, Copy, Debug)]
pub struct Upstream {
    /// Of h.
    pub dh: Slot,
    /// Of C and n behind the last position, under [`Vlstm::state_gradients`]: none are zeros. On m nothing depends.
    pub state: Option<[Slot; 2]>,
}

/// Of h alone.
impl From<Slot> for Upstream {
    fn from(dh: Slot) -> Self {
        Self { dh, state: None }
    }
}

/// Gradients, as scratch of the plan: each of its tensor's type and shape.
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// Of q.
    pub q: Slot,
    /// Of k.
    pub k: Slot,
    /// Of v.
    pub v: Slot,
    /// Of i.
    pub i: Slot,
    /// Of f.
    pub f: Slot,
    /// Of C0 and n0, under [`Vlstm::state_gradients`].
    pub state: Option<[Slot; 2]>,
}

/// The state's names, going in and coming out, and those of its gradients.
const FIRST: [&str; 3] = ["C0", "n0", "m0"];
const LAST: [&str; 3] = ["CN", "nN", "mN"];
const LAST_GRADIENT: [&str; 2] = ["dCN", "dnN"];
const FIRST_GRADIENT: [&str; 2] = ["dC0", "dn0"];

impl Vlstm {
    /// Without a state, of ε = 10⁻⁶, the normaliser held constant, by the version that suits.
    pub fn new(dtype: DType, sizes: Sizes, [q, k, v]: [Slot; 3], [i, f]: [Slot; 2]) -> Self {
        let (state, last_state, state_gradients, eps) = (None, false, false, 1e-6);
        let (normalizer_grad, versions) = (NormalizerGrad::Constant, [None; 2]);
        Self {
            dtype,
            sizes,
            q,
            k,
            v,
            i,
            f,
            cu_seqlens: None,
            state,
            last_state,
            state_gradients,
            eps,
            normalizer_grad,
            versions,
        }
    }

    fn inputs(&self) -> Vec<(&'static str, Slot)> {
        let Self { q, k, v, i, f, .. } = *self;
        let state = self.state.map(|state| FIRST.into_iter().zip(state));
        let packed = self.cu_seqlens.map(|slot| ("cu_seqlens", slot));
        [("q", q), ("k", k), ("v", v), ("i", i), ("f", f)]
            .into_iter()
            .chain(packed)
            .chain(state.into_iter().flatten())
            .collect()
    }

    fn shapes(&self) -> Shapes {
        let Sizes { batch: b, heads: nh, positions: s, keys, values } = self.sizes;
        let all = [
            ("q", self.dtype, vec![b, nh, s, keys]),
            ("k", self.dtype, vec![b, nh, s, keys]),
            ("v", self.dtype, vec![b, nh, s, values]),
            ("i", DType::F32, vec![b, nh, s]),
            ("f", DType::F32, vec![b, nh, s]),
        ];
        let ends = self.cu_seqlens.map(|slot| slot.len());
        let packed = ends.map(|ends| ("cu_seqlens", DType::I32, vec![ends]));
        let state = FIRST.into_iter().zip(self.shapes_of_state());
        let state = state.map(|(name, sizes)| (name, DType::F32, sizes));
        let state = state.filter(|_| self.state.is_some());
        all.into_iter()
            .chain(packed)
            .chain(state)
            .map(|(name, dtype, sizes)| (name.to_owned(), Shape { dtype, sizes }))
            .collect()
    }

    /// Of C, n and m.
    fn shapes_of_state(&self) -> [Vec<usize>; 3] {
        let Sizes { batch, heads, keys, values, .. } = self.sizes;
        let sequences = self.cu_seqlens.map_or(batch, |slot| slot.len().saturating_sub(1));
        [vec![sequences, heads, keys, values], vec![sequences, heads, keys], vec![sequences, heads]]
    }

    /// Whether the gradient of the last state goes in.
    fn takes_state_gradient(&self) -> bool {
        self.state_gradients && self.last_state
    }

    /// Whether that of the first comes out.
    fn gives_state_gradient(&self) -> bool {
        self.state_gradients && self.state.is_some()
    }

    /// A version, and its plan, of these shapes.
    fn plan_of(&self, plan: &Plan, pass: Pass, shapes: Shapes) -> Result<Made, Error> {
        let name = self.versions[usize::from(pass == Pass::Gradients)];
        let mut options = vec![format!("eps={:?}", self.eps)];
        if self.last_state {
            options.push("last_state=yes".into());
        }
        if pass == Pass::Gradients && self.normalizer_grad == NormalizerGrad::Exact {
            options.push("normalizer_grad=exact".into());
        }
        if pass == Pass::Gradients && self.gives_state_gradient() {
            options.push("state_grad=yes".into());
        }
        let version = choose(pass, plan.device(), &shapes, &options, name)?;
        let parsed = Options::parse(&options, version.info())?;
        let request = Request::new(version.info(), shapes, &parsed)?;
        Made::by(version, plan.device(), &request, options)
    }

    /// Both passes in a plan.
    fn plan_both_passes(&self, plan: &Plan) -> Result<Made, Error> {
        let mut shapes = self.shapes();
        shapes.insert("dh".into(), shapes["v"].clone());
        if self.takes_state_gradient() {
            let of_state = LAST_GRADIENT.into_iter().zip(self.shapes_of_state());
            shapes.extend(
                of_state.map(|(name, sizes)| (name.into(), Shape { dtype: DType::F32, sizes })),
            );
        }
        self.plan_of(plan, Pass::Gradients, shapes)
    }

    fn output_slots(&self, included: &Included) -> Outputs {
        let state = self.last_state.then(|| LAST.map(|name| included.slot(name)));
        let [h, m, n] = ["h", "m", "n"].map(|name| included.slot(name));
        Outputs { h, m, n, state }
    }

    /// Adds the forward pass alone.
    ///
    /// # Errors
    /// No version takes these sizes, this type or this device; a slot is of another length or type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Outputs, Error> {
        Ok(self.add_forward_of(plan)?.1)
    }

    /// The same, with the version that makes it.
    fn add_forward_of(&self, plan: &mut Plan) -> Result<(String, Outputs), Error> {
        let forward = self.plan_of(plan, Pass::Forward, self.shapes())?;
        let included = plan.include(&forward.plan, &self.inputs())?;
        Ok((forward.version, self.output_slots(&included)))
    }

    /// Adds the forward pass, and what it saves for [`Vlstm::add_backward`]. Where a version makes both passes in one launch, the
    /// backward pass makes the forward pass again.
    ///
    /// # Errors
    /// As [`Vlstm::add_forward`].
    pub fn add_forward_saving(&self, plan: &mut Plan) -> Result<(Outputs, Saved), Error> {
        let inputs = self.inputs();
        match self.plan_both_passes(plan)?.cut() {
            Ok(cut) => {
                let (included, saved) = cut.add_forward(plan, &inputs)?;
                Ok((self.output_slots(&included), saved))
            }
            Err(whole) => {
                let (version, outputs) = self.add_forward_of(plan)?;
                Ok((outputs, Saved::of_inputs(version, *whole, &inputs)))
            }
        }
    }

    /// Takes what a forward pass of this operation has saved in another plan as inputs of this one. The slots of the operation
    /// itself may stay those of the other plan: [`Vlstm::add_backward`] does not look at them.
    ///
    /// # Errors
    /// As [`Vlstm::add_forward`]; or the version, the options or a tensor is another than this operation has on this device.
    pub fn import(&self, plan: &mut Plan, export: &Export) -> Result<Saved, Error> {
        let both = self.plan_both_passes(plan)?;
        Saved::import(plan, both, export)
    }

    /// Adds the backward pass, from the gradient of h, or from that and the last state's. What the forward pass has saved stays as
    /// it is.
    ///
    /// # Errors
    /// A slot is of another length, type or plan; a state's gradient is given that [`Vlstm::state_gradients`] and
    /// [`Vlstm::last_state`] have not asked for.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &Saved,
        from: impl Into<Upstream>,
    ) -> Result<Gradients, Error> {
        let Upstream { dh, state } = from.into();
        let mut upstream = vec![("dh", dh)];
        match state {
            Some(state) => upstream.extend(LAST_GRADIENT.into_iter().zip(state)),
            None if self.takes_state_gradient() => {
                let of_state = LAST_GRADIENT.into_iter().zip(self.shapes_of_state());
                let zeros = of_state
                    .map(|(name, sizes)| (name, plan.zeros(DType::F32, sizes.iter().product())));
                upstream.extend(zeros.collect::<Vec<_>>());
            }
            None => {}
        }
        let included = saved.add_backward(plan, &upstream)?;
        let [q, k, v, i, f] = ["dq", "dk", "dv", "di", "df"].map(|name| included.slot(name));
        let state =
            self.gives_state_gradient().then(|| FIRST_GRADIENT.map(|name| included.slot(name)));
        Ok(Gradients { q, k, v, i, f, state })
    }
}
