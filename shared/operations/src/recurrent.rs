//! The LSTM, the GRU and the sLSTM over whole sequences.

use lab_device::DType;
use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};
use lstm_fused::{Lstm, Network};

use crate::choose::choose_recurrent;
use crate::cut::Made;
use crate::saved::{Export, Saved};

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// Gates i, f, g, o; it multiplies x itself. See [`lab_families::lstm`].
    Lstm,
    /// Gates r, z, n, and h alone goes on to the next step; it multiplies x itself. See [`lab_reference::lstm`].
    Gru,
    /// Gates i, f, z, o; x is what W has made of it, and heads do not meet. See [`lab_families::slstm`].
    Slstm,
}

/// Of a recurrence: T, B, NH, DH, I.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSizes {
    /// T.
    pub steps: usize,
    /// Rows of a step, B.
    pub batch: usize,
    /// NH; the LSTM and the GRU have one.
    pub heads: usize,
    /// Units of a head, DH.
    pub units: usize,
    /// Columns of x, I: 4 NH DH for the sLSTM.
    pub columns: usize,
}

/// A recurrence over the steps: x \[T, B, I\] → y \[T, B, NH DH\].
#[derive(Clone, Copy, Debug)]
pub struct Recurrent {
    /// What happens in a step.
    pub cell: RecurrentCell,
    /// Of x, the parameters and y.
    pub dtype: DType,
    /// Sizes.
    pub sizes: RecurrentSizes,
    /// x; of the sLSTM its gates.
    pub x: Slot,
    /// In the order of [`RecurrentCell::parameters`]; the sLSTM has the first two.
    pub parameters: [Slot; 4],
    /// The state before the first step, in the order of [`RecurrentCell::states`]: none is one of zeros.
    pub state: Option<[Slot; 4]>,
    /// The version of the forward pass alone, and that of both passes: `lstm_fused:v1_sequence`; of the GRU there is one,
    /// `lstm_fused:cell`.
    pub versions: [Option<&'static str>; 2],
}

/// What comes out, as scratch of the plan.
#[derive(Clone, Debug)]
pub struct RecurrentOutputs {
    /// \[T, B, NH DH\].
    pub y: Slot,
    /// Behind the last step, in the order of [`RecurrentCell::states`].
    pub state: Vec<Slot>,
}

/// What the forward pass of a recurrence has saved.
pub type SavedRecurrent = Saved<Recurrent>;

/// The gradients from above.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentUpstream {
    /// Of y.
    pub dy: Slot,
    /// Of the state behind the last step, in the order of [`RecurrentCell::states`] without m, on which nothing depends: the LSTM
    /// has the first two, the GRU the first. None are zeros.
    pub state: Option<[Slot; 3]>,
}

/// Gradients, as scratch of the plan.
#[derive(Clone, Debug)]
pub struct RecurrentGradients {
    /// Of x.
    pub x: Slot,
    /// Of the state before the first step, in the order of [`RecurrentUpstream::state`].
    pub state: Vec<Slot>,
}

impl RecurrentCell {
    /// The names of its parameters in the versions.
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Lstm | Self::Gru => &["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"],
            Self::Slstm => &["r", "b"],
        }
    }

    /// What a step hands to the next one.
    pub fn states(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["h", "c"],
            Self::Gru => &["h"],
            Self::Slstm => &["h", "c", "n", "m"],
        }
    }

    /// The type of a state, by its name with anything around it, in a run of a type: c, n and m of the sLSTM are f32.
    pub fn dtype_of_state(self, name: &str, dtype: DType) -> DType {
        let is_h = name.trim_start_matches('d').starts_with('h');
        if self != Self::Slstm || is_h { dtype } else { DType::F32 }
    }

    /// Gates: rows of a weight for each unit.
    fn gates(self) -> usize {
        if self == Self::Gru { 3 } else { 4 }
    }

    fn x(self) -> &'static str {
        if self == Self::Slstm { "wx" } else { "x" }
    }

    /// Of the states that have a gradient, that behind the last step.
    fn last(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["dhn", "dcn"],
            Self::Gru => &["dhn"],
            Self::Slstm => &["dhn", "dcn", "dnn"],
        }
    }
}

impl Recurrent {
    fn units(&self) -> usize {
        self.sizes.heads * self.sizes.units
    }

    /// Shapes of x, the parameters and the first state, and with the backward pass of the gradients from above.
    fn input_shapes(&self, gradients: bool) -> Shapes {
        let RecurrentSizes { steps: t, batch: b, heads: nh, units: dh, columns } = self.sizes;
        let (h, gates) = (self.units(), self.cell.gates());
        let mut all: Vec<(String, Vec<usize>)> = match self.cell {
            RecurrentCell::Lstm | RecurrentCell::Gru => vec![
                ("x".into(), vec![t, b, columns]),
                ("weight_ih_l0".into(), vec![gates * h, columns]),
                ("weight_hh_l0".into(), vec![gates * h, h]),
                ("bias_ih_l0".into(), vec![gates * h]),
                ("bias_hh_l0".into(), vec![gates * h]),
            ],
            RecurrentCell::Slstm => vec![
                ("wx".into(), vec![t, b, 4, nh, dh]),
                ("r".into(), vec![4, nh, dh, dh]),
                ("b".into(), vec![4, nh, dh]),
            ],
        };
        let by_heads = self.cell == RecurrentCell::Slstm;
        let state = if by_heads { vec![b, nh, dh] } else { vec![1, b, h] };
        all.extend(self.cell.states().iter().map(|s| (format!("{s}0"), state.clone())));
        if gradients {
            let y = if by_heads { vec![t, b, nh, dh] } else { vec![t, b, h] };
            all.push(("dy".into(), y));
            all.extend(self.cell.last().iter().map(|s| ((*s).to_owned(), state.clone())));
        }
        let is_state = |name: &String| {
            let of = |own: &str, end: &str| *name == format!("{own}{end}");
            self.cell.states().iter().any(|s| of(s, "0") || of(&format!("d{s}"), "n"))
        };
        let shaped = |(name, sizes): (String, Vec<usize>)| {
            let dtype = if is_state(&name) {
                self.cell.dtype_of_state(&name, self.dtype)
            } else {
                self.dtype
            };
            (name, Shape { dtype, sizes })
        };
        all.into_iter().map(shaped).collect()
    }

    /// The state before the first step, of zeros where none is given, and all else that goes in.
    fn inputs(&self, plan: &mut Plan) -> Vec<(String, Slot)> {
        let mut all = vec![(self.cell.x().to_owned(), self.x)];
        let parameters = self.cell.parameters().iter().zip(self.parameters);
        all.extend(parameters.map(|(name, slot)| ((*name).to_owned(), slot)));
        let len = self.sizes.batch * self.units();
        for (n, name) in self.cell.states().iter().enumerate() {
            let dtype = self.cell.dtype_of_state(name, self.dtype);
            let slot = self.state.map_or_else(|| plan.zeros(dtype, len), |state| state[n]);
            all.push((format!("{name}0"), slot));
        }
        all
    }

    /// A version of the forward pass, or of both, and its plan.
    fn plan_of(&self, plan: &Plan, gradients: bool) -> Result<Made, Error> {
        let shapes = self.input_shapes(gradients);
        let name = self.versions[usize::from(gradients)];
        if self.cell == RecurrentCell::Gru {
            return self.plan_of_gru(plan, &shapes, gradients, name);
        }
        let version = choose_recurrent(self.cell, gradients, plan.device(), &shapes, name)?;
        let options = Options::default();
        let request = Request::new(version.info(), shapes, &options)?;
        Made::by(version, plan.device(), &request, Vec::new())
    }

    /// The GRU is a network of one layer: it is no version of the LSTM's family.
    fn plan_of_gru(
        &self,
        plan: &Plan,
        shapes: &Shapes,
        gradients: bool,
        name: Option<&str>,
    ) -> Result<Made, Error> {
        let RecurrentSizes { batch, heads, units, columns, .. } = self.sizes;
        if heads != 1 {
            return Err(Error::bad("heads of a GRU", "1", heads));
        }
        let network = Network::gru(columns, units);
        let gru = Lstm::of_rows(network, plan.device(), self.dtype, batch)?;
        let version = format!("lstm_fused:{}", gru.way());
        if let Some(name) = name.filter(|name| *name != version) {
            return Err(Error::bad("version", format!("auto or {version}"), format!("'{name}'")));
        }
        let pass =
            if gradients { lstm_fused::Pass::ForwardBackward } else { lstm_fused::Pass::Forward };
        let made = gru.plan(plan.device(), shapes, pass)?;
        Ok(Made { version, options: Vec::new(), upstream: Lstm::UPSTREAM.to_vec(), plan: made })
    }

    fn output_slots(&self, included: &Included) -> RecurrentOutputs {
        let last = self.cell.states().iter().map(|name| included.slot(&format!("{name}n")));
        RecurrentOutputs { y: included.slot("y"), state: last.collect() }
    }

    /// Adds the forward pass alone.
    ///
    /// # Errors
    /// No version takes these sizes or this device; a slot is of another length or type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<RecurrentOutputs, Error> {
        let inputs = self.inputs(plan);
        Ok(self.add_forward_of(plan, &named(&inputs))?.1)
    }

    /// The same, with the version that makes it.
    fn add_forward_of(
        &self,
        plan: &mut Plan,
        inputs: &[(&str, Slot)],
    ) -> Result<(String, RecurrentOutputs), Error> {
        let forward = self.plan_of(plan, false)?;
        let included = plan.include(&forward.plan, inputs)?;
        Ok((forward.version, self.output_slots(&included)))
    }

    /// Adds the forward pass, and what it saves for [`Recurrent::add_backward`].
    ///
    /// # Errors
    /// As [`Recurrent::add_forward`].
    pub fn add_forward_saving(
        &self,
        plan: &mut Plan,
    ) -> Result<(RecurrentOutputs, SavedRecurrent), Error> {
        let inputs = self.inputs(plan);
        let inputs = named(&inputs);
        match self.plan_of(plan, true)?.cut() {
            Ok(cut) => {
                let (included, saved) = cut.add_forward(plan, &inputs)?;
                Ok((self.output_slots(&included), saved))
            }
            Err(whole) => {
                let (version, outputs) = self.add_forward_of(plan, &inputs)?;
                Ok((outputs, Saved::of_inputs(version, *whole, &inputs)))
            }
        }
    }

    /// Takes what a forward pass of this operation has saved in another plan as inputs of this one: see
    /// [`Vlstm::import`](crate::Vlstm::import).
    ///
    /// # Errors
    /// As [`Recurrent::add_forward`]; or the version or a tensor is another than this operation has on this device.
    pub fn import(&self, plan: &mut Plan, export: &Export) -> Result<SavedRecurrent, Error> {
        let both = self.plan_of(plan, true)?;
        Saved::import(plan, both, export)
    }

    /// Adds the backward pass, from the gradients of y and of the state behind the last step. The gradients of the parameters go
    /// where `into` says, of each of [`RecurrentCell::parameters`].
    ///
    /// # Errors
    /// A slot is of another length, type or plan.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &SavedRecurrent,
        from: RecurrentUpstream,
        into: &[Slot],
    ) -> Result<RecurrentGradients, Error> {
        let len = self.sizes.batch * self.units();
        let gradients: Vec<String> =
            self.cell.parameters().iter().map(|name| format!("d{name}")).collect();
        let mut upstream = vec![("dy", from.dy)];
        for (n, name) in self.cell.last().iter().enumerate() {
            let dtype = self.cell.dtype_of_state(name, self.dtype);
            let slot = from.state.map_or_else(|| plan.zeros(dtype, len), |state| state[n]);
            upstream.push((name, slot));
        }
        upstream.extend(gradients.iter().map(String::as_str).zip(into.iter().copied()));
        let included = saved.add_backward(plan, &upstream)?;
        let first = |last: &&str| included.slot(&format!("{}0", &last[..last.len() - 1]));
        let state = self.cell.last().iter().map(first).collect();
        Ok(RecurrentGradients { x: included.slot(&format!("d{}", self.cell.x())), state })
    }
}

fn named(inputs: &[(String, Slot)]) -> Vec<(&str, Slot)> {
    inputs.iter().map(|(name, slot)| (name.as_str(), *slot)).collect()
}
