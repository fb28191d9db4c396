//! The gated delta rule over whole sequences.

use lab_device::DType;
use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};

use crate::cut::Made;
use crate::saved::{Export, Saved};
use crate::{Pass, choose};

/// Of q, k, v: B, NH, NKV, S, DHQK, DHHV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDeltaSizes {
    /// B.
    pub batch: usize,
    /// NH, heads of v, a multiple of NKV.
    pub heads: usize,
    /// NKV, heads of q and k.
    pub shared_heads: usize,
    /// S.
    pub positions: usize,
    /// DHQK, columns of q and k of a head.
    pub keys: usize,
    /// DHHV, columns of v and h of a head.
    pub values: usize,
}

impl GatedDeltaSizes {
    /// Of the state.
    pub(crate) fn of_state(&self) -> Vec<usize> {
        vec![self.batch, self.heads, self.keys, self.values]
    }
}

/// The gated delta rule over whole sequences: q, k, v, g, beta → h; see [`lab_families::gdn`] for the equations.
///
/// q, k \[B, NKV, S, DHQK\], v \[B, NH, S, DHHV\] of `dtype`, g, beta \[B, NH, S\] of f32; NH / NKV heads of v share one of q and k.
///
/// ```no_run
/// # use lab_device::DType;
/// # use lab_harness::{Error, Plan, plan::Slot};
/// # use lab_operations::{GatedDelta, GatedDeltaSizes};
/// # fn add(plan: &mut Plan, [q, k, v, g, beta, dh]: [Slot; 6]) -> Result<Slot, Error> {
/// let sizes =
///     GatedDeltaSizes { batch: 1, heads: 4, shared_heads: 2, positions: 256, keys: 64, values: 128 };
/// let delta = GatedDelta::new(DType::BF16, sizes, [q, k, v], [g, beta]);
/// let (outputs, saved) = delta.add_forward_saving(plan)?;
/// // … what computes dh from outputs.h
/// let gradients = delta.add_backward(plan, &saved, dh)?;
/// # Ok(gradients.q)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta {
    /// Of q, k, v and h.
    pub dtype: DType,
    /// Sizes.
    pub sizes: GatedDeltaSizes,
    /// Queries.
    pub q: Slot,
    /// Keys.
    pub k: Slot,
    /// Values.
    pub v: Slot,
    /// The logarithms of what each position keeps of the state.
    pub g: Slot,
    /// How much of a key's old value each position replaces.
    pub beta: Slot,
    /// Where packed sequences begin and end, i32 \[N + 1\], rising from 0 to S: as [`Vlstm::cu_seqlens`](crate::Vlstm::cu_seqlens). B
    /// is 1 then, and states are \[N, NH, DHQK, DHHV\].
    pub cu_seqlens: Option<Slot>,
    /// C0 \[B, NH, DHQK, DHHV\] of f32: what earlier positions have left.
    pub state: Option<Slot>,
    /// Whether the state behind the last position is wanted.
    pub last_state: bool,
    /// Whether gradients go through the states: that of the last one, if it is wanted, goes in, and that of the first, if there is
    /// one, comes out.
    pub state_gradients: bool,
    /// What q is multiplied by; 1 / √DHQK where none is given.
    pub scale: Option<f64>,
    /// The version of the forward pass alone, and that of both passes: `gdn_fw:v3_resident`.
    pub versions: [Option<&'static str>; 2],
}

/// What comes out, as scratch of the plan.
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaOutputs {
    /// \[B, NH, S, DHHV\].
    pub h: Slot,
    /// The state behind the last position, if it is wanted: \[B, NH, DHQK, DHHV\] of f32.
    pub state: Option<Slot>,
}

/// The gradients from above.
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaUpstream {
    /// Of h.
    pub dh: Slot,
    /// Of the state behind the last position, under [`GatedDelta::state_gradients`]: none are zeros.
    pub state: Option<Slot>,
}

/// Of h alone.
impl From<Slot> for GatedDeltaUpstream {
    fn from(dh: Slot) -> Self {
        Self { dh, state: None }
    }
}

/// What a forward pass of the gated delta rule has saved.
pub type SavedGatedDelta = Saved<GatedDelta>;

/// Gradients, as scratch of the plan: each of its tensor's type and shape.
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaGradients {
    /// Of q, summed over the heads that share it.
    pub q: Slot,
    /// Of k, likewise.
    pub k: Slot,
    /// Of v.
    pub v: Slot,
    /// Of g.
    pub g: Slot,
    /// Of beta.
    pub beta: Slot,
    /// Of C0, under [`GatedDelta::state_gradients`].
    pub state: Option<Slot>,
}

/// The option of a version that multiplies q by this; 0 stands for 1 / √DHQK.
pub(crate) fn option_of_scale(scale: Option<f64>) -> Result<Option<String>, Error> {
    match scale {
        Some(scale) if scale == 0.0 || !scale.is_finite() => {
            Err(Error::bad("scale", "a finite number other than 0", scale))
        }
        _ => Ok(scale.map(|scale| format!("scale={scale:?}"))),
    }
}

impl GatedDelta {
    /// Without a state, by the version that suits.
    pub fn new(
        dtype: DType,
        sizes: GatedDeltaSizes,
        [q, k, v]: [Slot; 3],
        [g, beta]: [Slot; 2],
    ) -> Self {
        let (state, last_state, state_gradients) = (None, false, false);
        let (scale, versions) = (None, [None; 2]);
        Self {
            dtype,
            sizes,
            q,
            k,
            v,
            g,
            beta,
            cu_seqlens: None,
            state,
            last_state,
            state_gradients,
            scale,
            versions,
        }
    }

    fn inputs(&self) -> Vec<(&'static str, Slot)> {
        let Self { q, k, v, g, beta, .. } = *self;
        let state = self.state.map(|state| ("C0", state));
        let packed = self.cu_seqlens.map(|slot| ("cu_seqlens", slot));
        let all = [("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)];
        all.into_iter().chain(packed).chain(state).collect()
    }

    /// The axes of a state: of packed sequences, N in the place of B.
    fn sizes_of_state(&self) -> Vec<usize> {
        let mut sizes = self.sizes.of_state();
        if let Some(ends) = self.cu_seqlens {
            sizes[0] = ends.len().saturating_sub(1);
        }
        sizes
    }

    /// Whether the gradient of the last state goes in.
    fn takes_state_gradient(&self) -> bool {
        self.state_gradients && self.last_state
    }

    /// Whether that of the first comes out.
    fn gives_state_gradient(&self) -> bool {
        self.state_gradients && self.state.is_some()
    }

    fn shapes(&self, gradients: bool) -> Shapes {
        let GatedDeltaSizes { batch, heads, shared_heads, positions, keys, values } = self.sizes;
        let of_keys = (self.dtype, vec![batch, shared_heads, positions, keys]);
        let of_values = (self.dtype, vec![batch, heads, positions, values]);
        let gate = (DType::F32, vec![batch, heads, positions]);
        let state = (DType::F32, self.sizes_of_state());
        let ends = self.cu_seqlens.map_or(0, |slot| slot.len());
        let all = [
            ("q", true, of_keys.clone()),
            ("k", true, of_keys),
            ("v", true, of_values.clone()),
            ("g", true, gate.clone()),
            ("beta", true, gate),
            ("cu_seqlens", self.cu_seqlens.is_some(), (DType::I32, vec![ends])),
            ("C0", self.state.is_some(), state.clone()),
            ("dh", gradients, of_values),
            ("dCN", gradients && self.takes_state_gradient(), state),
        ];
        let given = all.into_iter().filter(|(_, is_given, _)| *is_given);
        given.map(|(name, _, (dtype, sizes))| (name.to_owned(), Shape { dtype, sizes })).collect()
    }

    /// A version of the forward pass, or of both, and its plan.
    fn plan_of(&self, plan: &Plan, gradients: bool) -> Result<Made, Error> {
        let mut options: Vec<String> = option_of_scale(self.scale)?.into_iter().collect();
        if self.last_state {
            options.push("last_state=yes".into());
        }
        if gradients && self.gives_state_gradient() {
            options.push("state_grad=yes".into());
        }
        let pass = if gradients { Pass::DeltaGradients } else { Pass::Delta };
        let (shapes, name) = (self.shapes(gradients), self.versions[usize::from(gradients)]);
        let version = choose(pass, plan.device(), &shapes, &options, name)?;
        let parsed = Options::parse(&options, version.info())?;
        let request = Request::new(version.info(), shapes, &parsed)?;
        Made::by(version, plan.device(), &request, options)
    }

    fn outputs(&self, included: &Included) -> GatedDeltaOutputs {
        let state = self.last_state.then(|| included.slot("CN"));
        GatedDeltaOutputs { h: included.slot("h"), state }
    }

    /// Adds the forward pass alone.
    ///
    /// # Errors
    /// No version takes these sizes, this type or this device; the scale is 0 or not finite; a slot is of another length or type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<GatedDeltaOutputs, Error> {
        Ok(self.add_forward_of(plan)?.1)
    }

    /// The same, with the version that makes it.
    fn add_forward_of(&self, plan: &mut Plan) -> Result<(String, GatedDeltaOutputs), Error> {
        let forward = self.plan_of(plan, false)?;
        let included = plan.include(&forward.plan, &self.inputs())?;
        Ok((forward.version, self.outputs(&included)))
    }

    /// Adds the forward pass, and what it saves for [`GatedDelta::add_backward`].
    ///
    /// # Errors
    /// As [`GatedDelta::add_forward`].
    pub fn add_forward_saving(
        &self,
        plan: &mut Plan,
    ) -> Result<(GatedDeltaOutputs, SavedGatedDelta), Error> {
        match self.plan_of(plan, true)?.cut() {
            Ok(cut) => {
                let (included, saved) = cut.add_forward(plan, &self.inputs())?;
                Ok((self.outputs(&included), saved))
            }
            Err(whole) => {
                let (version, outputs) = self.add_forward_of(plan)?;
                Ok((outputs, Saved::of_inputs(version, *whole, &self.inputs())))
            }
        }
    }

    /// Takes what a forward pass of this operation has saved in another plan as inputs of this one: see
    /// [`Vlstm::import`](crate::Vlstm::import).
    ///
    /// # Errors
    /// As [`GatedDelta::add_forward`]; or the version, the options or a tensor is another than this operation has on this device.
    pub fn import(&self, plan: &mut Plan, export: &Export) -> Result<SavedGatedDelta, Error> {
        let both = self.plan_of(plan, true)?;
        Saved::import(plan, both, export)
    }

    /// Adds the backward pass, from the gradient of h, or from that and the last state's. What the forward pass has saved stays as
    /// it is.
    ///
    /// # Errors
    /// A slot is of another length, type or plan; a state's gradient is given that [`GatedDelta::state_gradients`] and
    /// [`GatedDelta::last_state`] have not asked for.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &SavedGatedDelta,
        from: impl Into<GatedDeltaUpstream>,
    ) -> Result<GatedDeltaGradients, Error> {
        let GatedDeltaUpstream { dh, state } = from.into();
        let mut upstream = vec![("dh", dh)];
        if let Some(state) = state {
            upstream.push(("dCN", state));
        } else if self.takes_state_gradient() {
            let elements = self.sizes_of_state().iter().product();
            upstream.push(("dCN", plan.zeros(DType::F32, elements)));
        }
        let included = saved.add_backward(plan, &upstream)?;
        let [q, k, v, g, beta] = ["dq", "dk", "dv", "dg", "dbeta"].map(|name| included.slot(name));
        let state = self.gives_state_gradient().then(|| included.slot("dC0"));
        Ok(GatedDeltaGradients { q, k, v, g, beta, state })
    }
}
