//! A layer of an LSTM.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::rnn::{Direction, LSTMConfig, LSTMState, RNN};
use candle_nn::{Init, VarBuilder};
use lab_calls::Planned;
use lab_harness::Shape;
use lstm_fused::Network;

use crate::kernels::{Key, Left, Plans, candle_error, lab_type, packed, plans, run};
use crate::operation::{Backward, Output, joined};
use crate::refuse;

/// A layer of an LSTM: [`candle_nn::LSTM`] with the same parameters and the same results, and all steps of a sequence in one launch
/// up to 768 units.
///
/// The parameters are `weight_ih_l{k}` \[4 H, I\], `weight_hh_l{k}` \[4 H, H\], `bias_ih_l{k}` and `bias_hh_l{k}` \[4 H\], with
/// `_reverse` behind them for [`Direction::Backward`], as in PyTorch; k is [`LSTMConfig::layer_idx`]. As in `candle_nn` the direction
/// is one of names: whoever wants the sequence read from its end flips it. F32, F64, F16 or BF16.
///
/// [`Module::forward`] gives the outputs of a sequence, [`Lstm::sequence`] also takes a state and returns the last one. Of [`RNN`],
/// [`step`](RNN::step) is one position; [`seq`](RNN::seq) goes by steps, since it returns c of each, which the kernels keep to themselves.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::rnn::LSTMConfig;
/// use candle_nn::{VarBuilder, VarMap};
/// use vlstm_candle::Lstm;
///
/// # fn main() -> candle_core::Result<()> {
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let lstm = Lstm::new(3, 8, LSTMConfig::default(), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 3), &Device::Cpu)?;
/// assert_eq!(lstm.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Lstm {
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Option<Tensor>,
    bias_hh: Option<Tensor>,
    inputs: usize,
    hidden: usize,
    config: LSTMConfig,
}

impl Lstm {
    /// A layer of `in_dim` inputs and `hidden_dim` units, whose parameters are in `vb`, or are made there.
    ///
    /// # Errors
    /// `vb` has no such parameter, or one of another shape; it is of a type that the kernels do not take.
    pub fn new(
        in_dim: usize,
        hidden_dim: usize,
        config: LSTMConfig,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        if lab_type(vb.dtype()).is_none() {
            let got = format!("{:?}", vb.dtype());
            return Err(refuse("the parameters", "F32, F64, F16 or BF16", got));
        }
        let behind = match config.direction {
            Direction::Forward => "",
            Direction::Backward => "_reverse",
        };
        let name = |kind: &str| format!("{kind}_l{}{behind}", config.layer_idx);
        let rows = 4 * hidden_dim;
        let bias = |kind: &str, init: Option<Init>| {
            init.map(|init| vb.get_with_hints(rows, &name(kind), init)).transpose()
        };
        Ok(Self {
            weight_ih: vb.get_with_hints((rows, in_dim), &name("weight_ih"), config.w_ih_init)?,
            weight_hh: vb.get_with_hints(
                (rows, hidden_dim),
                &name("weight_hh"),
                config.w_hh_init,
            )?,
            bias_ih: bias("bias_ih", config.b_ih_init)?,
            bias_hh: bias("bias_hh", config.b_hh_init)?,
            inputs: in_dim,
            hidden: hidden_dim,
            config,
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }

    /// The outputs h of all positions, \[B, T, H\], of an input \[B, T, I\], and the state behind the last. The state before the first
    /// is zero where there is none.
    ///
    /// # Errors
    /// The input or the state is of another type, shape or device than the parameters ask for; sizes that the kernels do not take.
    pub fn sequence(
        &self,
        input: &Tensor,
        state: Option<&LSTMState>,
    ) -> Result<(Tensor, LSTMState)> {
        self.check("input", input)?;
        let &[batch, _, inputs] = input.dims() else {
            return Err(refuse("input", "shape [B, T, I]", format!("{:?}", input.dims())));
        };
        if inputs != self.inputs {
            return Err(refuse("input", format!("{} columns", self.inputs), inputs));
        }
        let state = match state {
            Some(state) => state.clone(),
            None => self.zero_state(batch)?,
        };
        for (name, tensor) in [("state.h", &state.h), ("state.c", &state.c)] {
            self.check(name, tensor)?;
            if tensor.dims() != [batch, self.hidden] {
                let expected = format!("shape {:?}", [batch, self.hidden]);
                return Err(refuse(name, expected, format!("{:?}", tensor.dims())));
            }
        }
        let [y, h, c] = self.call(&input.transpose(0, 1)?, &state)?;
        Ok((y.transpose(0, 1)?, LSTMState::new(h.squeeze(0)?, c.squeeze(0)?)))
    }

    /// That a tensor is of the parameters' type, and where they are.
    fn check(&self, name: &str, tensor: &Tensor) -> Result<()> {
        let (own, given) = (self.weight_ih.dtype(), tensor.dtype());
        if given != own {
            return Err(refuse(name, format!("{own:?}, as the parameters"), format!("{given:?}")));
        }
        let [own, given] = [&self.weight_ih, tensor].map(|t| t.device().location());
        if given != own {
            let expected = format!("a tensor on {own:?}, as the parameters");
            return Err(refuse(name, expected, format!("{given:?}")));
        }
        Ok(())
    }

    /// y \[T, B, H\], hn and cn \[1, B, H\].
    fn call(&self, x: &Tensor, state: &LSTMState) -> Result<[Tensor; 3]> {
        let bias = self.bias_ih.is_some() || self.bias_hh.is_some();
        let network = Network { bias, ..Network::lstm(self.inputs, self.hidden) };
        let mut named: Vec<Named> = vec![
            ("x", packed(x)?),
            ("h0", packed(&state.h.unsqueeze(0)?)?),
            ("c0", packed(&state.c.unsqueeze(0)?)?),
            ("weight_ih_l0", packed(&self.weight_ih)?),
            ("weight_hh_l0", packed(&self.weight_hh)?),
        ];
        if bias {
            for (name, own) in [("bias_ih_l0", &self.bias_ih), ("bias_hh_l0", &self.bias_hh)] {
                let zeros = || Tensor::zeros(4 * self.hidden, x.dtype(), x.device());
                named.push((name, own.as_ref().map_or_else(zeros, packed)?));
            }
        }
        let (steps, batch, _) = x.dims3()?;
        let device = x.device().clone();
        let is_tracked = named.iter().any(|(_, tensor)| tensor.track_op());
        let plans = planned(&device, &named, network, [steps, batch], is_tracked)?;
        let inputs: Vec<Tensor> = named.iter().map(|(_, t)| t.clone()).collect();
        // All rows have all steps. Where the kernels are not told, they bring the lengths themselves, and a plan that brings
        // something cannot be cut in two. They read i32, which candle cannot fill on a GPU; a length has the same bits in u32.
        named.push(("lengths", Tensor::full(steps as u32, batch, &device)?));
        let left = is_tracked.then(|| Left::new(&plans[0], &device)).transpose()?;
        let mut out = run(&plans[0], &named, left.as_ref(), &device)?;
        let mut outputs = Vec::new();
        for name in ["y", "hn", "cn"] {
            let Some(output) = out.remove(name) else {
                return Err(refuse("the forward pass", format!("an output {name}"), "none"));
            };
            outputs.push(output);
        }
        let results = match left {
            None => outputs.into_iter().map(Output::alone).collect(),
            Some(left) => {
                let named = named.into_iter().map(|(name, t)| (name, t.detach())).collect();
                let backward = LstmBackward { named, left, plans, device };
                joined(&inputs.iter().collect::<Vec<_>>(), outputs, backward)?
            }
        };
        results.try_into().map_err(|_| refuse("the forward pass", "y, hn and cn", "others"))
    }
}

/// A tensor by the name that the kernels have for it.
type Named = (&'static str, Tensor);

/// The plan of a forward pass; of training, those of a forward and of its backward pass.
fn planned(
    device: &Device,
    tensors: &[Named],
    network: Network,
    [steps, batch]: [usize; 2],
    is_tracked: bool,
) -> Result<Plans> {
    let shape = |(name, t): &Named| (*name, t.dtype(), t.dims().to_vec());
    let mut shapes: Vec<(&'static str, DType, Vec<usize>)> = tensors.iter().map(shape).collect();
    if is_tracked {
        let dtype = tensors[0].1.dtype();
        let state = vec![1, batch, network.hidden];
        shapes.extend([
            ("dy", dtype, vec![steps, batch, network.hidden]),
            ("dhn", dtype, state.clone()),
            ("dcn", dtype, state),
        ]);
    }
    let what = if is_tracked { "an LSTM, for training" } else { "an LSTM" };
    let key = Key::new(what, device, shapes, Vec::new())?;
    plans(&key, || {
        let (device, mut shapes) = (key.lab_device()?, key.shapes()?);
        let lengths = Shape { dtype: lab_device::DType::I64, sizes: vec![batch] };
        shapes.insert("lengths".to_owned(), lengths);
        Ok(if is_tracked {
            Planned::lstm_in_two_parts(&device, &shapes, network).map_err(candle_error)?.into()
        } else {
            vec![Planned::lstm(&device, &shapes, network).map_err(candle_error)?]
        })
    })
}

impl Module for Lstm {
    /// The outputs of all positions, \[B, T, H\], of an input \[B, T, I\].
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(self.sequence(input, None)?.0)
    }
}

impl RNN for Lstm {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let (dtype, device) = (self.weight_ih.dtype(), self.weight_ih.device());
        let zeros = Tensor::zeros((batch_dim, self.hidden), dtype, device)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        if input.rank() != 2 {
            return Err(refuse("input", "shape [B, I]", format!("{:?}", input.dims())));
        }
        Ok(self.sequence(&input.unsqueeze(1)?, Some(state))?.1)
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let outputs: Vec<_> = states.iter().map(|state| state.h.clone()).collect();
        Tensor::stack(&outputs, 1)
    }
}

/// What the backward pass needs of its forward pass.
struct LstmBackward {
    /// What went in.
    named: Vec<Named>,
    left: Left,
    plans: Plans,
    device: Device,
}

impl Backward for LstmBackward {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn gradients(&self, results: &[Tensor], upstream: Vec<Option<Tensor>>) -> Result<Vec<Tensor>> {
        let mut named = self.named.clone();
        for ((name, given), result) in ["dy", "dhn", "dcn"].into_iter().zip(upstream).zip(results) {
            let given = given.map_or_else(|| result.zeros_like(), |given| packed(&given))?;
            named.push((name, given));
        }
        named.extend(["y", "hn", "cn"].into_iter().zip(results.iter().cloned()));
        let mut out = run(&self.plans[1], &named, Some(&self.left), &self.device)?;
        let gradient = |(name, _): &Named| match out.remove(&format!("d{name}")) {
            Some(output) => Ok(output.alone()),
            None => Err(refuse("the backward pass", format!("an output d{name}"), "none")),
        };
        // The lengths have none.
        self.named.iter().filter(|(name, _)| *name != "lengths").map(gradient).collect()
    }
}
