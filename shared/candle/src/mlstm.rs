//! The mLSTM over a sequence.

use candle_core::{DType, Device, Result, Tensor};
use lab_calls::{Pass, Planned};

use crate::kernels::{Key, Left, Plans, candle_error, packed, plans, run};
use crate::operation::{Backward, Output, joined};
use crate::{float32, places, refuse};

/// What the backward pass takes the normaliser for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormalizerGrad {
    /// A constant, which is exact where a norm over the head follows: as in xLSTM and `mlstm_kernels`.
    #[default]
    Constant,
    /// The gradient of h as it stands.
    Exact,
}

/// Options of [`mlstm()`]: the default ones, changed one by one.
///
/// ```
/// use vlstm_candle::{MlstmOptions, NormalizerGrad};
/// let options = MlstmOptions::default().with_normalizer_grad(NormalizerGrad::Exact).with_eps(1e-5);
/// assert_eq!((options.eps, options.forward_version), (1e-5, None));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MlstmOptions {
    /// Added to the normaliser before the division; not negative.
    pub eps: f64,
    /// What the backward pass takes the normaliser for.
    pub normalizer_grad: NormalizerGrad,
    /// Where sequences of unlike lengths begin that are packed one behind the other, from 0, not falling, to S: sequence n has the
    /// positions from `cu_seqlens[n]` to `cu_seqlens[n + 1]`, and may have none. B is 1 then, and states have N in its place. It
    /// needs F16 or BF16, and a Hopper GPU or the emulator.
    pub cu_seqlens: Option<Vec<usize>>,
    /// The version that runs a forward pass, as `vlstm_fw_v4:v1_roles`; the one that suits where there is none.
    pub forward_version: Option<String>,
    /// The same of a backward pass, which makes the forward pass, too, where `forward_version` names none.
    pub backward_version: Option<String>,
}

impl Default for MlstmOptions {
    fn default() -> Self {
        let (normalizer_grad, cu_seqlens) = (NormalizerGrad::Constant, None);
        let [forward_version, backward_version] = [None, None];
        Self { eps: 1e-6, normalizer_grad, cu_seqlens, forward_version, backward_version }
    }
}

impl MlstmOptions {
    /// With another ε, which is added to the normaliser.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// With another gradient through the normaliser.
    #[must_use]
    pub fn with_normalizer_grad(self, normalizer_grad: NormalizerGrad) -> Self {
        Self { normalizer_grad, ..self }
    }

    /// Of packed sequences that begin and end at these positions.
    #[must_use]
    pub fn with_cu_seqlens(self, places: impl Into<Vec<usize>>) -> Self {
        Self { cu_seqlens: Some(places.into()), ..self }
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
}

/// The memory between two positions, in F32. c and n carry the factor exp(−m): two states with different m may stand for the same.
#[derive(Clone, Debug)]
pub struct MlstmState {
    /// \[B, NH, DHQK, DHHV\]
    pub c: Tensor,
    /// \[B, NH, DHQK\]
    pub n: Tensor,
    /// \[B, NH\]. No gradient goes through it.
    pub m: Tensor,
}

/// The mLSTM of xLSTM over a sequence.
///
/// With B sequences, NH heads and S positions, for position t of each head, with s = 1 / √DHQK:
///
/// ```text
/// F_t  = sum of logsigmoid(f) over the positions up to t
/// m_t  = max over j <= t of F_t - F_j + i_j
/// w_tj = s (q_t . k_j) exp(F_t - F_j + i_j - m_t)
/// h_t  = (sum over j <= t of w_tj v_j) / (max(|sum of w_tj|, exp(-m_t)) + eps)
/// ```
///
/// Source: Beck et al. 2024, arXiv 2405.04517.
///
/// | | shape | type |
/// |---|---|---|
/// | `q`, `k` | \[B, NH, S, DHQK\], DHQK a multiple of 16 | F32, F16 or BF16 |
/// | `v` | \[B, NH, S, DHHV\], DHHV a multiple of 16 | that of q |
/// | `i`, `f`, before their activations | \[B, NH, S\] | F32, F16 or BF16; kernels take them in F32 |
/// | → h | \[B, NH, S, DHHV\] | that of q |
///
/// Tensors with gaps are copied. A gradient goes to all five; it is differentiated once.
///
/// # Errors
/// An argument of another type, shape or device; a size that no version takes; an option; what the device says.
pub fn mlstm(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    i: &Tensor,
    f: &Tensor,
    options: &MlstmOptions,
) -> Result<Tensor> {
    let tensors = checked([q, k, v, i, f], None, options)?;
    let [h, ..] = call(tensors, None, false, options)?;
    Ok(h)
}

/// As [`mlstm()`], behind a state, or none: h, and the state behind the last position.
///
/// In F32 no version takes a state: it goes in as 2 DHQK positions more, and is computed by candle's own operations. A gradient
/// goes to c and n of the state, and comes from those of the state behind.
///
/// # Errors
/// As [`mlstm()`].
pub fn mlstm_with_state(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    i: &Tensor,
    f: &Tensor,
    state: Option<&MlstmState>,
    options: &MlstmOptions,
) -> Result<(Tensor, MlstmState)> {
    let tensors = checked([q, k, v, i, f], state, options)?;
    if q.dtype() == DType::F32 {
        let tensors = match state {
            Some(state) => float32::as_positions(&tensors, state)?,
            None => tensors,
        };
        let last = float32::last_state(&tensors)?;
        let [h, ..] = call(tensors, None, false, options)?;
        let positions = q.dim(2)?;
        return Ok((h.narrow(2, h.dim(2)? - positions, positions)?, last));
    }
    let [h, c, n, m] = call(tensors, state, true, options)?;
    Ok((h, MlstmState { c, n, m }))
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn check_shape(name: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(refuse(name, format!("shape {expected:?}"), format!("{:?}", tensor.dims())))
}

fn sizes<const N: usize>(name: &str, tensor: &Tensor, axes: &str) -> Result<[usize; N]> {
    let wrong = |_| refuse(name, format!("shape [{axes}]"), format!("{:?}", tensor.dims()));
    tensor.dims().try_into().map_err(wrong)
}

/// q, k, v, i and f, the gates in F32.
fn checked(
    tensors: [&Tensor; 5],
    state: Option<&MlstmState>,
    options: &MlstmOptions,
) -> Result<[Tensor; 5]> {
    let [q, k, v, i, f] = tensors;
    let named = [("q", q), ("k", k), ("v", v), ("i", i), ("f", f)];
    let of_state = state.map(|s| [("state.c", &s.c), ("state.n", &s.n), ("state.m", &s.m)]);
    for (name, tensor) in named.into_iter().chain(of_state.into_iter().flatten()) {
        let (device, first) = (tensor.device(), q.device());
        if device.location() != first.location() {
            let [expected, got] = [first, device].map(|d| format!("{:?}", d.location()));
            return Err(refuse(name, format!("a tensor on {expected}, as q"), got));
        }
        let is_float = match name {
            "k" | "v" => tensor.dtype() == q.dtype(),
            _ if name.starts_with("state") => tensor.dtype() == DType::F32,
            _ => FLOATS.contains(&tensor.dtype()),
        };
        if !is_float {
            let expected = match name {
                "k" | "v" => format!("{:?}, as q", q.dtype()),
                "q" | "i" | "f" => "F32, F16 or BF16".to_owned(),
                _ => "F32".to_owned(),
            };
            return Err(refuse(name, expected, format!("{:?}", tensor.dtype())));
        }
    }
    let [batch, heads, positions, keys] = sizes("q", q, "B, NH, S, DHQK")?;
    let [_, _, _, values] = sizes("v", v, "B, NH, S, DHHV")?;
    check_shape("k", k, q.dims())?;
    check_shape("v", v, &[batch, heads, positions, values])?;
    check_shape("i", i, &[batch, heads, positions])?;
    check_shape("f", f, &[batch, heads, positions])?;
    let sequences = match &options.cu_seqlens {
        Some(places) => {
            places::check(places, q, "B, NH, S, DHQK")?;
            if q.dtype() == DType::F32 {
                return Err(refuse("q", "F16 or BF16 with cu_seqlens", "F32"));
            }
            places.len() - 1
        }
        None => batch,
    };
    if let Some(MlstmState { c, n, m }) = state {
        check_shape("state.c", c, &[sequences, heads, keys, values])?;
        check_shape("state.n", n, &[sequences, heads, keys])?;
        check_shape("state.m", m, &[sequences, heads])?;
    }
    if !(0.0..f64::INFINITY).contains(&options.eps) {
        return Err(refuse("eps", "a finite number that is not negative", options.eps));
    }
    let [i, f] = [i, f].map(|gate| gate.to_dtype(DType::F32));
    Ok([q.clone(), k.clone(), v.clone(), i?, f?])
}

/// What is asked of a call.
struct Settings {
    options: MlstmOptions,
    /// Whether a state goes in, whose gradient is then wanted.
    has_state: bool,
    /// Whether the state behind the last position comes out.
    last_state: bool,
}

impl Settings {
    /// The options of a forward pass, as the kernels' versions take them.
    fn of_forward(&self) -> Vec<String> {
        let last = self.last_state.then(|| "last_state=yes".to_owned());
        [format!("eps={:?}", self.options.eps)].into_iter().chain(last).collect()
    }

    /// The same of a backward pass.
    fn of_gradients(&self, last_state: bool) -> Vec<String> {
        let normalizer_grad = match self.options.normalizer_grad {
            NormalizerGrad::Constant => "constant",
            NormalizerGrad::Exact => "exact",
        };
        let mut all = vec![
            format!("eps={:?}", self.options.eps),
            format!("normalizer_grad={normalizer_grad}"),
        ];
        if self.has_state {
            all.push("state_grad=yes".to_owned());
        }
        if last_state {
            all.push("last_state=yes".to_owned());
        }
        all
    }
}

/// A tensor by the name that the kernels have for it.
type Named = (&'static str, Tensor);

fn shapes_of(tensors: &[Named]) -> Vec<(&'static str, DType, Vec<usize>)> {
    tensors.iter().map(|(name, t)| (*name, t.dtype(), t.dims().to_vec())).collect()
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
        Pass::Gradients => "the backward pass",
        _ => "the forward pass",
    };
    let own = options.clone();
    let options = options.into_iter().chain(version.map(|name| format!("version={name}")));
    let key = Key::new(what, device, shapes_of(tensors), options.collect())?;
    plans(&key, || {
        let planned = Planned::new(pass, &key.lab_device()?, key.shapes()?, &own, version);
        Ok(vec![planned.map_err(candle_error)?])
    })
}

/// The plans of a forward and of its backward pass, of which the first leaves to the second what that needs; none where a version
/// makes both at once.
fn parts(device: &Device, tensors: &[Named], settings: &Settings) -> Result<Plans> {
    let (_, v) = &tensors[2];
    let mut shapes = shapes_of(tensors);
    shapes.push(("dh", v.dtype(), v.dims().to_vec()));
    if settings.last_state {
        let [c, n, _] = shapes_of_state(tensors);
        shapes.extend([("dCN", DType::F32, c), ("dnN", DType::F32, n)]);
    }
    let own = settings.of_gradients(settings.last_state);
    let version = settings.options.backward_version.as_deref();
    let options = own.iter().cloned().chain(version.map(|name| format!("version={name}")));
    let key = Key::new("both passes", device, shapes, options.collect())?;
    plans(&key, || {
        let parts = Planned::in_two_parts(&key.lab_device()?, key.shapes()?, &own, version);
        Ok(parts.map_err(candle_error)?.map(Vec::from).unwrap_or_default())
    })
}

/// Of c, n and m.
fn shapes_of_state(tensors: &[Named]) -> [Vec<usize>; 3] {
    let (q, v) = (tensors[0].1.dims(), tensors[2].1.dims());
    let places = tensors.iter().find(|(name, _)| *name == "cu_seqlens");
    let batch = places.map_or(q[0], |(_, places)| places.dims()[0] - 1);
    let [heads, keys, values] = [q[1], q[3], v[3]];
    [vec![batch, heads, keys, values], vec![batch, heads, keys], vec![batch, heads]]
}

/// h, and where it is asked for the state behind the last position; else its tensors are h, too.
fn call(
    tensors: [Tensor; 5],
    state: Option<&MlstmState>,
    last_state: bool,
    options: &MlstmOptions,
) -> Result<[Tensor; 4]> {
    let settings = Settings { options: options.clone(), has_state: state.is_some(), last_state };
    let mut named: Vec<Named> = Vec::new();
    for (name, tensor) in ["q", "k", "v", "i", "f"].into_iter().zip(&tensors) {
        named.push((name, packed(tensor)?));
    }
    if let Some(state) = state {
        for (name, tensor) in [("C0", &state.c), ("n0", &state.n), ("m0", &state.m)] {
            named.push((name, packed(tensor)?));
        }
    }
    let device = tensors[0].device().clone();
    if let Some(places) = &options.cu_seqlens {
        named.push(("cu_seqlens", places::tensor(places, &device)?));
    }
    let is_differentiable = |(name, _): &&Named| !["m0", "cu_seqlens"].contains(name);
    let is_tracked = named.iter().filter(is_differentiable).any(|(_, t)| t.track_op());

    let parts = if is_tracked && settings.options.forward_version.is_none() {
        parts(&device, &named, &settings)?
    } else {
        Plans::default()
    };
    let (mut out, left) = match parts.first() {
        Some(first) => {
            let left = Left::new(first, &device)?;
            (run(first, &named, Some(&left), &device)?, Some(left))
        }
        None => {
            let version = settings.options.forward_version.as_deref();
            let options = settings.of_forward();
            let planned = plan(Pass::Forward, &device, &named, options, version)?;
            (run(&planned[0], &named, None, &device)?, None)
        }
    };
    let wanted = if last_state { &["h", "CN", "nN", "mN"][..] } else { &["h"] };
    let mut outputs = Vec::new();
    for &name in wanted {
        let Some(mut output) = out.remove(name) else {
            return Err(refuse("the forward pass", format!("an output {name}"), "none"));
        };
        output.is_differentiable = name != "mN";
        outputs.push(output);
    }
    let results = if is_tracked {
        let rows = out.into_iter().filter_map(|(name, output)| {
            let name = ["m", "n"].into_iter().find(|own| *own == name.as_str())?;
            Some((name, output.alone()))
        });
        let rows: Vec<Named> = rows.collect();
        let inputs: Vec<Tensor> =
            named.iter().filter(is_differentiable).map(|(_, t)| t.clone()).collect();
        let detached = named.into_iter().map(|(name, t)| (name, t.detach())).collect();
        let backward = MlstmBackward { settings, named: detached, rows, left, parts, device };
        joined(&inputs.iter().collect::<Vec<_>>(), outputs, backward)?
    } else {
        outputs.into_iter().map(Output::alone).collect()
    };
    let of = |index: usize| results.get(index).unwrap_or(&results[0]).clone();
    Ok([of(0), of(1), of(2), of(3)])
}

/// What the backward pass needs of its forward pass.
struct MlstmBackward {
    settings: Settings,
    /// What went in.
    named: Vec<Named>,
    /// m and n of each row, where the forward pass has them.
    rows: Vec<Named>,
    left: Option<Left>,
    parts: Plans,
    device: Device,
}

impl Backward for MlstmBackward {
    fn name(&self) -> &'static str {
        "mlstm"
    }

    fn gradients(&self, results: &[Tensor], upstream: Vec<Option<Tensor>>) -> Result<Vec<Tensor>> {
        let mut named = self.named.clone();
        let of_h = upstream.first().cloned().flatten();
        let of_h = match of_h {
            Some(of_h) => packed(&of_h)?,
            None => self.named[2].1.zeros_like()?,
        };
        named.push(("dh", of_h));
        let of_state = [upstream.get(1).cloned().flatten(), upstream.get(2).cloned().flatten()];
        if of_state.iter().any(Option::is_some) || (self.settings.last_state && self.left.is_some())
        {
            let [c, n, _] = shapes_of_state(&self.named);
            for ((name, given), shape) in ["dCN", "dnN"].into_iter().zip(of_state).zip([c, n]) {
                named.push((
                    name,
                    match given {
                        Some(given) => packed(&given)?,
                        None => Tensor::zeros(shape, DType::F32, &self.device)?,
                    },
                ));
            }
        }
        let mut out = match self.parts.get(1) {
            Some(second) => {
                named.extend(self.rows.iter().cloned());
                let results = results.iter().cloned();
                named.extend(["h", "CN", "nN", "mN"].into_iter().zip(results));
                run(second, &named, self.left.as_ref(), &self.device)?
            }
            None => {
                let version = self.settings.options.backward_version.as_deref();
                let options = self.settings.of_gradients(false);
                let planned = plan(Pass::Gradients, &self.device, &named, options, version)?;
                run(&planned[0], &named, None, &self.device)?
            }
        };
        let of_state = if self.settings.has_state { &["dC0", "dn0"][..] } else { &[] };
        let names = ["dq", "dk", "dv", "di", "df"].iter().chain(of_state);
        let mut gradient = |name: &str| match out.remove(name) {
            Some(output) => Ok(output.alone()),
            None => Err(refuse("the backward pass", format!("an output {name}"), "none")),
        };
        names.map(|name| gradient(name)).collect()
    }
}
