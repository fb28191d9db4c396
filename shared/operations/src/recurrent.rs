//! The LSTM and the sLSTM over whole sequences.

use lab_device::DType;
use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};

use crate::choose::choose_recurrent;
use crate::cut::{Cut, Upward};

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// Gates i, f, g, o; it multiplies x itself. See [`lab_families::lstm`].
    Lstm,
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
    /// NH; the LSTM has one.
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
    /// The version of the forward pass alone, and that of both passes: `lstm_fused:v1_sequence`.
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

/// The backward pass that belongs to a forward pass, and what it reads of that.
#[derive(Clone, Debug)]
pub struct SavedRecurrent(Upward);

impl RecurrentCell {
    /// The names of its parameters in the versions.
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"],
            Self::Slstm => &["r", "b"],
        }
    }

    /// What a step hands to the next one.
    pub fn states(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["h", "c"],
            Self::Slstm => &["h", "c", "n", "m"],
        }
    }

    /// The type of a state, by its name with anything around it, in a run of a type: c, n and m of the sLSTM are f32.
    pub fn dtype_of_state(self, name: &str, dtype: DType) -> DType {
        let is_h = name.trim_start_matches('d').starts_with('h');
        if self == Self::Lstm || is_h { dtype } else { DType::F32 }
    }

    fn x(self) -> &'static str {
        if self == Self::Lstm { "x" } else { "wx" }
    }

    /// The gradients by the state behind the last step, which are zeros here.
    fn last(self) -> &'static [&'static str] {
        if self == Self::Lstm { &["dhn", "dcn"] } else { &["dhn", "dcn", "dnn"] }
    }
}

impl Recurrent {
    fn units(&self) -> usize {
        self.sizes.heads * self.sizes.units
    }

    /// Shapes of x, y, the parameters and a state.
    fn shapes(&self, gradients: bool) -> Shapes {
        let RecurrentSizes { steps: t, batch: b, heads: nh, units: dh, columns } = self.sizes;
        let h = self.units();
        let mut all: Vec<(String, Vec<usize>)> = match self.cell {
            RecurrentCell::Lstm => vec![
                ("x".into(), vec![t, b, columns]),
                ("weight_ih_l0".into(), vec![4 * h, columns]),
                ("weight_hh_l0".into(), vec![4 * h, h]),
                ("bias_ih_l0".into(), vec![4 * h]),
                ("bias_hh_l0".into(), vec![4 * h]),
            ],
            RecurrentCell::Slstm => vec![
                ("wx".into(), vec![t, b, 4, nh, dh]),
                ("r".into(), vec![4, nh, dh, dh]),
                ("b".into(), vec![4, nh, dh]),
            ],
        };
        let of_lstm = self.cell == RecurrentCell::Lstm;
        let state = if of_lstm { vec![1, b, h] } else { vec![b, nh, dh] };
        all.extend(self.cell.states().iter().map(|s| (format!("{s}0"), state.clone())));
        if gradients {
            let y = if of_lstm { vec![t, b, h] } else { vec![t, b, nh, dh] };
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

    fn plan_of(&self, plan: &Plan, gradients: bool) -> Result<Plan, Error> {
        let shapes = self.shapes(gradients);
        let name = self.versions[usize::from(gradients)];
        let version = choose_recurrent(self.cell, gradients, plan.device(), &shapes, name)?;
        let options = Options::default();
        let request = Request::new(version.info(), shapes, &options)?;
        version.plan(plan.device(), &request)
    }

    fn outputs(&self, included: &Included) -> RecurrentOutputs {
        let last = self.cell.states().iter().map(|name| included.slot(&format!("{name}n")));
        RecurrentOutputs { y: included.slot("y"), state: last.collect() }
    }

    /// Adds the forward pass alone.
    ///
    /// # Errors
    /// No version takes these sizes or this device; a slot is of another length or type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<RecurrentOutputs, Error> {
        let forward = self.plan_of(plan, false)?;
        let inputs = self.inputs(plan);
        let given: Vec<_> = inputs.iter().map(|(name, slot)| (name.as_str(), *slot)).collect();
        Ok(self.outputs(&plan.include(&forward, &given)?))
    }

    /// Adds the forward pass, and what it saves for [`Recurrent::add_backward`].
    ///
    /// # Errors
    /// As [`Recurrent::add_forward`].
    pub fn add_forward_saving(&self, plan: &mut Plan) -> Result<(Slot, SavedRecurrent), Error> {
        let whole = self.plan_of(plan, true)?;
        let inputs = self.inputs(plan);
        let given: Vec<_> = inputs.iter().map(|(name, slot)| (name.as_str(), *slot)).collect();
        let upstream = [&["dy"], self.cell.last()].concat();
        match Cut::before(whole, &upstream) {
            Ok(cut) => {
                let (included, upward) = cut.add_forward(plan, &given)?;
                Ok((included.slot("y"), SavedRecurrent(upward)))
            }
            Err(whole) => {
                let upward = Upward::anew(whole, &given);
                Ok((self.add_forward(plan)?.y, SavedRecurrent(upward)))
            }
        }
    }

    /// Adds the backward pass, from the gradient of y: the gradient of x, and those of the parameters where `into` says, of each of
    /// [`RecurrentCell::parameters`].
    ///
    /// # Errors
    /// A slot is of another length, type or plan.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &SavedRecurrent,
        dy: Slot,
        into: &[Slot],
    ) -> Result<Slot, Error> {
        let len = self.sizes.batch * self.units();
        let gradients: Vec<String> =
            self.cell.parameters().iter().map(|name| format!("d{name}")).collect();
        let mut upstream = vec![("dy", dy)];
        for name in self.cell.last() {
            let dtype = self.cell.dtype_of_state(name, self.dtype);
            upstream.push((name, plan.zeros(dtype, len)));
        }
        upstream.extend(gradients.iter().map(String::as_str).zip(into.iter().copied()));
        let included = saved.0.add(plan, &upstream)?;
        Ok(included.slot(&format!("d{}", self.cell.x())))
    }
}
