//! Cells whose state is C alone: what the gated delta rule and linear attention share.

use candle_core::{DType, Device, Result, Tensor};
use lab_calls::{Pass, Planned};

use crate::kernels::{Key, Plans, candle_error, packed, plans, run};
use crate::operation::{Backward, Output, joined};
use crate::{places, refuse};

/// Options of [`crate::gated_delta_rule`], [`crate::linear_attention`], [`crate::mlstm_sig()`] and their steps: the default ones, changed
/// one by one.
///
/// ```
/// use vlstm_candle::RecurrenceOptions;
/// let options = RecurrenceOptions::default().with_scale(0.5);
/// assert_eq!((options.scale, options.forward_version), (Some(0.5), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RecurrenceOptions {
    /// The factor of q; 1 / √DHQK where there is none.
    pub scale: Option<f64>,
    /// Where sequences of unlike lengths begin that are packed one behind the other, from 0, not falling, to S: sequence n has the
    /// positions from `cu_seqlens[n]` to `cu_seqlens[n + 1]`, and may have none. B is 1 then, and states have N in its place.
    pub cu_seqlens: Option<Vec<usize>>,
    /// The version that runs a forward pass, or a step, as `gdn_fw:v3_resident`; the one that suits where there is none.
    pub forward_version: Option<String>,
    /// The same of a backward pass.
    pub backward_version: Option<String>,
}

impl RecurrenceOptions {
    /// With another factor of q.
    #[must_use]
    pub fn with_scale(self, scale: f64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Of packed sequences that begin and end at these positions.
    #[must_use]
    pub fn with_cu_seqlens(self, places: impl Into<Vec<usize>>) -> Self {
        Self { cu_seqlens: Some(places.into()), ..self }
    }

    /// With a version for forward passes, or for steps, by its name.
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

    /// The same of one sequence.
    fn of_one(&self) -> Self {
        Self { cu_seqlens: None, ..self.clone() }
    }
}

/// What erases, and what does not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Delta,
    Linear,
    Sigmoid,
}

impl Cell {
    fn name(self) -> &'static str {
        match self {
            Self::Delta => "gated_delta_rule",
            Self::Linear => "linear_attention",
            Self::Sigmoid => "mlstm_sig",
        }
    }

    /// The forward pass, the backward pass, a step.
    fn passes(self) -> [Pass; 3] {
        match self {
            Self::Delta => [Pass::Delta, Pass::DeltaGradients, Pass::DeltaStep],
            Self::Linear => [Pass::Linear, Pass::LinearGradients, Pass::LinearStep],
            Self::Sigmoid => [Pass::Sigmoid, Pass::SigmoidGradients, Pass::SigmoidStep],
        }
    }
}

/// A tensor by the name that the kernels have for it.
pub(crate) type Named = (&'static str, Tensor);

/// h and the last state of checked tensors, by the kernels.
pub(crate) fn sequence(
    cell: Cell,
    named: Vec<Named>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let device = named[0].1.device().clone();
    let mut named = named;
    if let Some(places) = &options.cu_seqlens {
        named.push(("cu_seqlens", places::tensor(places, &device)?));
    }
    let mut own = options.of_versions();
    own.push("last_state=yes".to_owned());
    let [forward, ..] = cell.passes();
    let version = options.forward_version.as_deref();
    let planned = plan(forward, &device, &named, own, version)?;
    let mut out = run(&planned[0], &named, None, &device)?;
    let outputs = ["h", "CN"].map(|name| result(&mut out, "the forward pass", name));
    let outputs = outputs.into_iter().collect::<Result<Vec<_>>>()?;
    let results = if named.iter().any(|(_, tensor)| tensor.track_op()) {
        let inputs = differentiable(&named).map(|(_, tensor)| tensor.clone());
        let inputs: Vec<Tensor> = inputs.collect();
        let named = named.into_iter().map(|(name, tensor)| (name, tensor.detach())).collect();
        let backward = CellBackward { cell, options: options.clone(), named, device };
        joined(&inputs.iter().collect::<Vec<_>>(), outputs, backward)?
    } else {
        outputs.into_iter().map(Output::alone).collect()
    };
    Ok((results[0].clone(), results[1].clone()))
}

/// h and the state behind one position, without a graph.
pub(crate) fn step(
    cell: Cell,
    named: Vec<Named>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let device = named[0].1.device().clone();
    let [.., step] = cell.passes();
    let version = options.forward_version.as_deref();
    let planned = plan(step, &device, &named, options.of_versions(), version)?;
    let mut out = run(&planned[0], &named, None, &device)?;
    let [h, state] = ["h", "C0"].map(|name| result(&mut out, "a step", name));
    Ok((h?.alone(), state?.alone()))
}

/// What `call` makes of each packed sequence, one behind the other; a sequence of nothing leaves its state as it was.
pub(crate) fn each_alone(
    named: Vec<Named>,
    options: &RecurrenceOptions,
    call: impl Fn(Vec<Named>, &RecurrenceOptions) -> Result<(Tensor, Tensor)>,
) -> Result<(Tensor, Tensor)> {
    let Some(places) = &options.cu_seqlens else { return call(named, options) };
    let (mut outputs, mut states) = (Vec::new(), Vec::new());
    for (n, ends) in places.windows(2).enumerate() {
        let part = |(name, tensor): &Named| {
            let part = match *name {
                "C0" => tensor.narrow(0, n, 1)?,
                _ => tensor.narrow(2, ends[0], ends[1] - ends[0])?,
            };
            Ok((*name, packed(&part)?))
        };
        if ends[0] == ends[1] {
            states.push(match named.iter().find(|(name, _)| *name == "C0") {
                Some((_, state)) => state.narrow(0, n, 1)?,
                None => no_state(&named, 1)?,
            });
            continue;
        }
        let own = named.iter().map(part).collect::<Result<Vec<_>>>()?;
        let (h, state) = call(own, &options.of_one())?;
        outputs.push(h);
        states.push(state);
    }
    let h = match outputs.is_empty() {
        true => named[2].1.zeros_like()?,
        false => Tensor::cat(&outputs, 2)?,
    };
    Ok((h, Tensor::cat(&states, 0)?))
}

/// Zeros for so many sequences of these tensors.
pub(crate) fn no_state(named: &[Named], sequences: usize) -> Result<Tensor> {
    let (q, v) = (&named[0].1, &named[2].1);
    let columns = |t: &Tensor| t.dim(t.rank() - 1);
    Tensor::zeros((sequences, v.dim(1)?, columns(q)?, columns(v)?), DType::F32, q.device())
}

/// Those that have a gradient.
fn differentiable(named: &[Named]) -> impl Iterator<Item = &Named> {
    named.iter().filter(|(name, _)| *name != "cu_seqlens")
}

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
    let own = options.clone();
    let options = options.into_iter().chain(version.map(|name| format!("version={name}")));
    let shapes = tensors.iter().map(|(name, t)| (*name, t.dtype(), t.dims().to_vec())).collect();
    let key = Key::new(pass.name(), device, shapes, options.collect())?;
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

fn check_types(named: &[Named], of_state: &[DType]) -> Result<()> {
    let q = &named[0].1;
    for (name, tensor) in named {
        if tensor.device().location() != q.device().location() {
            let [expected, got] = [q, tensor].map(|t| format!("{:?}", t.device().location()));
            return Err(refuse(name, format!("a tensor on {expected}, as q"), got));
        }
        let floats = [DType::F32, DType::F16, DType::BF16];
        let either = |types: &[DType]| {
            types.iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(" or ")
        };
        let (is_right, expected) = match *name {
            "k" | "v" => (tensor.dtype() == q.dtype(), format!("{:?}, as q", q.dtype())),
            "state" => (of_state.contains(&tensor.dtype()), either(of_state)),
            _ => (floats.contains(&tensor.dtype()), "F32, F16 or BF16".to_owned()),
        };
        if !is_right {
            return Err(refuse(name, expected, format!("{:?}", tensor.dtype())));
        }
    }
    Ok(())
}

/// The tensors of a sequence, or of one position, by the kernels' names, packed, the gates in F32.
pub(crate) fn checked<'a>(
    [q, k, v]: [&'a Tensor; 3],
    gates: impl IntoIterator<Item = (&'static str, &'a Tensor)>,
    state: Option<&'a Tensor>,
    options: &RecurrenceOptions,
    is_step: bool,
) -> Result<Vec<Named>> {
    let mut named: Vec<Named> = [("q", q), ("k", k), ("v", v)]
        .into_iter()
        .chain(gates)
        .chain(state.map(|state| ("state", state)))
        .map(|(name, tensor)| (name, tensor.clone()))
        .collect();
    // A step keeps its state in the type that it comes in, of BF16 in runs of BF16.
    let narrow = is_step && q.dtype() == DType::BF16;
    check_types(&named, if narrow { &[DType::F32, DType::BF16] } else { &[DType::F32] })?;
    let [of_q, of_v] = match is_step {
        true => ["B, NKV, DHQK", "B, NH, DHHV"],
        false => ["B, NKV, S, DHQK", "B, NH, S, DHHV"],
    };
    let rank = if is_step { 3 } else { 4 };
    for (name, tensor, axes) in [("q", q, of_q), ("v", v, of_v)] {
        if tensor.rank() != rank {
            return Err(refuse(name, format!("shape [{axes}]"), format!("{:?}", tensor.dims())));
        }
    }
    // What is between the heads and the columns: positions, or nothing.
    let (batch, positions) = (q.dim(0)?, &q.dims()[2..rank - 1]);
    let (shared, keys, heads, values) = (q.dim(1)?, q.dim(rank - 1)?, v.dim(1)?, v.dim(rank - 1)?);
    let rows = [&[batch, heads], positions].concat();
    check_shape("k", k, q.dims())?;
    check_shape("v", v, &[&rows[..], &[values]].concat())?;
    if shared == 0 || !heads.is_multiple_of(shared) {
        return Err(refuse("v", format!("a multiple of NKV = {shared} heads"), heads));
    }
    let sequences = match &options.cu_seqlens {
        Some(_) if is_step => {
            let got = "places of packed sequences";
            return Err(refuse("cu_seqlens", "none, as a step has one position of each row", got));
        }
        Some(places) => {
            places::check(places, q, of_q)?;
            places.len() - 1
        }
        None => batch,
    };
    for (name, tensor) in &named[3..] {
        match *name {
            "state" => check_shape(name, tensor, &[sequences, heads, keys, values])?,
            _ => check_shape(name, tensor, &rows)?,
        }
    }
    if let Some(scale) = options.scale.filter(|scale| *scale == 0.0 || !scale.is_finite()) {
        return Err(refuse("scale", "a finite number other than 0", scale));
    }
    for (name, tensor) in &mut named {
        match *name {
            "q" | "k" | "v" => {}
            "state" => *name = "C0",
            _ => *tensor = tensor.to_dtype(DType::F32)?,
        }
        *tensor = packed(tensor)?;
    }
    Ok(named)
}

/// The tensors of a step: without a state, one of zeros. None may have a graph.
pub(crate) fn checked_step<'a>(
    cell: Cell,
    qkv: [&'a Tensor; 3],
    gates: impl IntoIterator<Item = (&'static str, &'a Tensor)>,
    state: Option<&'a Tensor>,
    options: &RecurrenceOptions,
) -> Result<Vec<Named>> {
    let mut named = checked(qkv, gates, state, options, true)?;
    if let Some((name, _)) = named.iter().find(|(_, tensor)| tensor.track_op()) {
        let name = if *name == "C0" { "state" } else { *name };
        let whole = cell.name();
        let expected = format!("a tensor that needs no gradient, as a step has none: call {whole}");
        return Err(refuse(name, expected, "one that does"));
    }
    if state.is_none() {
        let zeros = no_state(&named, qkv[0].dim(0)?)?;
        named.push(("C0", zeros));
    }
    Ok(named)
}

/// What the backward pass needs of its forward pass: what went in.
struct CellBackward {
    cell: Cell,
    options: RecurrenceOptions,
    named: Vec<Named>,
    device: Device,
}

impl Backward for CellBackward {
    fn name(&self) -> &'static str {
        self.cell.name()
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
        for (name, option) in [("C0", "state_grad=yes"), ("w", "weight_grad=yes")] {
            if self.named.iter().any(|(own, _)| *own == name) {
                options.push(option.to_owned());
            }
        }
        let [_, backward, _] = self.cell.passes();
        let version = self.options.backward_version.as_deref();
        let planned = plan(backward, &self.device, &named, options, version)?;
        let mut out = run(&planned[0], &named, None, &self.device)?;
        let gradient = |(name, _): &Named| {
            Ok(result(&mut out, "the backward pass", &format!("d{name}"))?.alone())
        };
        differentiable(&self.named).map(gradient).collect()
    }
}
