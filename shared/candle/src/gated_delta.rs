//! The gated delta rule over a sequence.

use candle_core::{DType, Device, Result, Tensor};
use lab_calls::{Pass, Planned};

use crate::kernels::{Key, Plans, candle_error, packed, plans, run};
use crate::operation::{Backward, Output, joined};
use crate::refuse;

/// Options of [`gated_delta_rule`]: the default ones, changed one by one.
///
/// ```
/// use vlstm_candle::GatedDeltaOptions;
/// let options = GatedDeltaOptions::default().with_scale(0.5);
/// assert_eq!((options.scale, options.forward_version), (Some(0.5), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GatedDeltaOptions {
    /// The factor of q; 1 / √DHQK where there is none.
    pub scale: Option<f64>,
    /// The version that runs a forward pass, as `gdn_fw:v3_resident`; the one that suits where there is none.
    pub forward_version: Option<String>,
    /// The same of a backward pass.
    pub backward_version: Option<String>,
}

impl GatedDeltaOptions {
    /// With another factor of q.
    #[must_use]
    pub fn with_scale(self, scale: f64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// With a version for forward passes, by its name.
    #[must_use]
    pub fn with_forward_version(self, name: impl Into<String>) -> Self {
        Self { forward_version: Some(name.into()), ..self }
    }

    /// With a version for backward passes, by its name.
    #[must_use]
    pub fn with_backward_version(self, name: impl Into<String>) -> Self {
        Self { backward_version: Some(name.into()), ..self }
    }

    /// As the kernels' versions take them.
    fn of_versions(&self) -> Vec<String> {
        self.scale.iter().map(|scale| format!("scale={scale:?}")).collect()
    }
}

/// The gated delta rule (Gated DeltaNet, Qwen3-Next) over a sequence, behind a state or none: h, and the state behind the last
/// position.
///
/// For position t of each head, with s the scale and C the state:
///
/// ```text
/// D_t = exp(g_t) C_(t-1)
/// u_t = beta_t (v_t - D_t^T k_t)
/// C_t = D_t + k_t u_t^T
/// h_t = s C_t^T q_t
/// ```
///
/// Source: Yang et al. 2024, arXiv 2412.06464.
///
/// | | shape | type |
/// |---|---|---|
/// | `q`, `k`, keys of length one | \[B, NKV, S, DHQK\], DHQK a multiple of 16 up to 256 | F32, F16 or BF16 |
/// | `v` | \[B, NH, S, DHHV\], DHHV a multiple of 16 up to 1024, NH of NKV | that of q |
/// | `g` ≤ 0, the logarithm of what is kept, and `beta` | \[B, NH, S\] | F32, F16 or BF16; kernels take them in F32 |
/// | `state` → the last state | \[B, NH, DHQK, DHHV\] | F32 |
/// | → h | \[B, NH, S, DHHV\] | that of q |
///
/// Head a of v reads head a · NKV / NH of q and k, rounded down. Tensors with gaps are copied. A gradient goes to all six, and comes
/// from both results; it is differentiated once. The backward pass makes the forward pass once more.
///
/// # Errors
/// An argument of another type, shape or device; a size that no version takes; an option; what the device says.
pub fn gated_delta_rule(
    [q, k, v]: [&Tensor; 3],
    [g, beta]: [&Tensor; 2],
    state: Option<&Tensor>,
    options: &GatedDeltaOptions,
) -> Result<(Tensor, Tensor)> {
    let named = checked([q, k, v, g, beta], state, options)?;
    let device = q.device().clone();
    let mut own = options.of_versions();
    own.push("last_state=yes".to_owned());
    let version = options.forward_version.as_deref();
    let planned = plan(Pass::Delta, &device, &named, own, version)?;
    let mut out = run(&planned[0], &named, None, &device)?;
    let outputs = ["h", "CN"].map(|name| result(&mut out, "the forward pass", name));
    let outputs = outputs.into_iter().collect::<Result<Vec<_>>>()?;
    let results = if named.iter().any(|(_, tensor)| tensor.track_op()) {
        let inputs: Vec<Tensor> = named.iter().map(|(_, tensor)| tensor.clone()).collect();
        let named = named.into_iter().map(|(name, tensor)| (name, tensor.detach())).collect();
        let backward = DeltaBackward { options: options.clone(), named, device };
        joined(&inputs.iter().collect::<Vec<_>>(), outputs, backward)?
    } else {
        outputs.into_iter().map(Output::alone).collect()
    };
    Ok((results[0].clone(), results[1].clone()))
}

/// A tensor by the name that the kernels have for it.
type Named = (&'static str, Tensor);

fn result(
    out: &mut std::collections::HashMap<String, Output>,
    pass: &str,
    name: &str,
) -> Result<Output> {
    out.remove(name).ok_or_else(|| refuse(pass, format!("an output {name}"), "none"))
}

/// The plan of one pass.
fn plan(
    pass: Pass,
    device: &Device,
    tensors: &[Named],
    options: Vec<String>,
    version: Option<&str>,
) -> Result<Plans> {
    let what = match pass {
        Pass::DeltaGradients => "the backward pass of the gated delta rule",
        _ => "the forward pass of the gated delta rule",
    };
    let own = options.clone();
    let options = options.into_iter().chain(version.map(|name| format!("version={name}")));
    let shapes = tensors.iter().map(|(name, t)| (*name, t.dtype(), t.dims().to_vec())).collect();
    let key = Key::new(what, device, shapes, options.collect())?;
    plans(&key, || {
        let planned = Planned::new(pass, &key.lab_device()?, key.shapes()?, &own, version);
        Ok(vec![planned.map_err(candle_error)?])
    })
}

fn check_shape(name: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(refuse(name, format!("shape {expected:?}"), format!("{:?}", tensor.dims())))
}

fn check_types(named: &[Named]) -> Result<()> {
    let q = &named[0].1;
    for (name, tensor) in named {
        if tensor.device().location() != q.device().location() {
            let [expected, got] = [q, tensor].map(|t| format!("{:?}", t.device().location()));
            return Err(refuse(name, format!("a tensor on {expected}, as q"), got));
        }
        let floats = [DType::F32, DType::F16, DType::BF16];
        let (is_right, expected) = match *name {
            "k" | "v" => (tensor.dtype() == q.dtype(), format!("{:?}, as q", q.dtype())),
            "state" => (tensor.dtype() == DType::F32, "F32".to_owned()),
            _ => (floats.contains(&tensor.dtype()), "F32, F16 or BF16".to_owned()),
        };
        if !is_right {
            return Err(refuse(name, expected, format!("{:?}", tensor.dtype())));
        }
    }
    Ok(())
}

/// The tensors by the kernels' names, packed, the gates in F32.
fn checked(
    tensors: [&Tensor; 5],
    state: Option<&Tensor>,
    options: &GatedDeltaOptions,
) -> Result<Vec<Named>> {
    let names = ["q", "k", "v", "g", "beta"];
    let of_state = state.map(|state| ("state", state));
    let mut named: Vec<Named> =
        names.into_iter().zip(tensors).chain(of_state).map(|(n, t)| (n, t.clone())).collect();
    check_types(&named)?;
    let [q, k, v, g, beta] = tensors;
    let four = |name, tensor: &Tensor, axes: &str| {
        let wrong = |_| refuse(name, format!("shape [{axes}]"), format!("{:?}", tensor.dims()));
        <[usize; 4]>::try_from(tensor.dims()).map_err(wrong)
    };
    let [batch, shared, positions, keys] = four("q", q, "B, NKV, S, DHQK")?;
    let [_, heads, _, values] = four("v", v, "B, NH, S, DHHV")?;
    check_shape("k", k, q.dims())?;
    check_shape("v", v, &[batch, heads, positions, values])?;
    if shared == 0 || !heads.is_multiple_of(shared) {
        return Err(refuse("v", format!("a multiple of NKV = {shared} heads"), heads));
    }
    check_shape("g", g, &[batch, heads, positions])?;
    check_shape("beta", beta, &[batch, heads, positions])?;
    if let Some(state) = state {
        check_shape("state", state, &[batch, heads, keys, values])?;
    }
    if let Some(scale) = options.scale.filter(|scale| *scale == 0.0 || !scale.is_finite()) {
        return Err(refuse("scale", "a finite number other than 0", scale));
    }
    for (name, tensor) in &mut named {
        match *name {
            "g" | "beta" => *tensor = tensor.to_dtype(DType::F32)?,
            "state" => *name = "C0",
            _ => {}
        }
        *tensor = packed(tensor)?;
    }
    Ok(named)
}

/// What the backward pass needs of its forward pass: what went in.
struct DeltaBackward {
    options: GatedDeltaOptions,
    named: Vec<Named>,
    device: Device,
}

impl Backward for DeltaBackward {
    fn name(&self) -> &'static str {
        "gated_delta_rule"
    }

    fn gradients(&self, _: &[Tensor], upstream: Vec<Option<Tensor>>) -> Result<Vec<Tensor>> {
        let mut named = self.named.clone();
        let mut upstream = upstream.into_iter();
        let of_h = match upstream.next().flatten() {
            Some(of_h) => packed(&of_h)?,
            None => self.named[2].1.zeros_like()?,
        };
        named.push(("dh", of_h));
        if let Some(of_last) = upstream.next().flatten() {
            named.push(("dCN", packed(&of_last)?));
        }
        let mut options = self.options.of_versions();
        let mut names = vec!["dq", "dk", "dv", "dg", "dbeta"];
        if self.named.iter().any(|(name, _)| *name == "C0") {
            options.push("state_grad=yes".to_owned());
            names.push("dC0");
        }
        let version = self.options.backward_version.as_deref();
        let planned = plan(Pass::DeltaGradients, &self.device, &named, options, version)?;
        let mut out = run(&planned[0], &named, None, &self.device)?;
        let gradient = |name| Ok(result(&mut out, "the backward pass", name)?.alone());
        names.into_iter().map(gradient).collect()
    }
}
