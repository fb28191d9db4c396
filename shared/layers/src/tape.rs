//! Forward launches now, those of the backward pass later.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use decode::Before;
use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan};
use passes::{ColumnSums, Documents, Squares};

use crate::few::Pending;
use crate::layers::EPS;
use crate::{Int8, Parameters};

/// What adds a layer's backward pass.
type AddBackward = Box<dyn FnOnce(&mut Back<'_>) -> Result<(), Error>>;

/// How much is dropped in training, and where its choices come from.
#[derive(Clone, Copy, Debug)]
pub struct Dropouts {
    /// From 0 to below 1.
    pub rate: f64,
    /// That of the training.
    pub seed: u64,
    /// i64 \[1\]: the step of training, such as [`passes::Progress::steps_taken`].
    pub step: Slot,
    /// The stream of the next dropout: each has its own.
    pub next: u16,
}

/// A model under way: its plan, its parameters, and what will add its backward pass.
pub struct Tape<'a> {
    pub(crate) plan: &'a mut Plan,
    /// Of activations and working copies.
    pub(crate) dtype: DType,
    parameters: &'a Parameters,
    /// Matrices that are kept as int8, if some are: they are not among the parameters.
    pub(crate) int8: Option<Int8<'a>>,
    /// Working copies.
    weights: Slot,
    /// Gradients, f32; none where there is no backward pass.
    gradients: Option<Slot>,
    /// Whether they are added to what is there.
    pub(crate) accumulates: bool,
    /// Where what makes a gradient leaves sums of its squares, if somebody asks for them.
    pub(crate) squares: Option<Rc<RefCell<Squares>>>,
    /// Of each token whether its row of the embedding's gradient is not zero, if somebody keeps that.
    pub(crate) used_tokens: Option<Slot>,
    pub(crate) dropout: Option<Dropouts>,
    /// Where each window has several documents, how they begin.
    pub(crate) documents: Option<Documents>,
    /// ε of the norms of whole rows.
    pub(crate) norm_eps: f32,
    /// Rows by which products choose how they are done, where that is not their own number.
    pub(crate) choices: Option<usize>,
    /// Before the names of parameters, with a full stop.
    prefix: String,
    /// Of each layer, its name in the plan.
    back: Vec<(String, AddBackward)>,
    /// The names of the layers under way.
    layers: Vec<String>,
    /// Norms that are not launched yet, by their results: see [`Tape::rms_norm_before_products`].
    pub(crate) pending: HashMap<Slot, Pending>,
    /// The last product of few rows, which can ask for the weights of the next.
    pub(crate) before: Option<Before>,
}

/// The backward pass under way.
pub struct Back<'a> {
    pub(crate) plan: &'a mut Plan,
    /// Of the activations, so far.
    gradients: HashMap<Slot, Slot>,
    /// Gradients of parameters whose last step is still to come.
    sums: Vec<ColumnSums>,
}

impl Back<'_> {
    /// The gradient of an activation, all of it: every layer that reads it has been here. `None` where none needs it.
    pub fn take(&mut self, of: Slot) -> Option<Slot> {
        self.gradients.remove(&of)
    }

    /// Sets the gradient of an activation. Where another layer had set one, the caller has [taken](Back::take) and added it.
    ///
    /// # Errors
    /// It has not.
    pub fn put(&mut self, of: Slot, gradient: Slot) -> Result<(), Error> {
        match self.gradients.insert(of, gradient) {
            None => Ok(()),
            Some(_) => Err(Error::bad("gradient", "one sum for an activation", "a second part")),
        }
    }

    /// Leaves the last step of a parameter's gradient to a launch that has several.
    pub(crate) fn add_up(&mut self, sums: ColumnSums) -> Result<(), Error> {
        self.sums.push(sums);
        if self.sums.len() < ColumnSums::AT_ONCE {
            return Ok(());
        }
        ColumnSums::add_all(self.plan, &std::mem::take(&mut self.sums))
    }
}

impl<'a> Tape<'a> {
    /// With working copies of all parameters in `weights`; for a backward pass with gradients in `gradients`, f32, both laid out as
    /// [`Parameters`] says. The backward pass overwrites all gradients; see [`Tape::accumulating`].
    pub fn new(
        plan: &'a mut Plan,
        dtype: DType,
        parameters: &'a Parameters,
        weights: Slot,
        gradients: Option<Slot>,
    ) -> Self {
        let (prefix, back, layers) = (String::new(), Vec::new(), Vec::new());
        let (accumulates, dropout, documents, norm_eps, int8) = (false, None, None, EPS, None);
        Self {
            plan,
            dtype,
            parameters,
            int8,
            weights,
            gradients,
            accumulates,
            squares: None,
            used_tokens: None,
            dropout,
            documents,
            norm_eps,
            choices: None,
            prefix,
            back,
            layers,
            pending: HashMap::new(),
            before: None,
        }
    }

    /// The same, where products of fewer rows are done as those of so many: another kernel adds in another order, and a row shall have the
    /// same bits beside any others.
    #[must_use]
    pub fn with_choices_for(self, rows: usize) -> Self {
        Self { choices: Some(rows), ..self }
    }

    /// Says what ε the norms of whole rows have from here on, where it is not 10⁻⁶.
    pub fn set_norm_eps(&mut self, eps: f32) {
        self.norm_eps = eps;
    }

    /// The same, whose backward pass adds to the gradients that are there: those of another part of the batch.
    pub fn accumulating(self) -> Self {
        Self { accumulates: true, ..self }
    }

    /// The same, whose products leave sums of squares of the gradients that they make: nothing is added to these behind the backward pass.
    #[must_use]
    pub fn with_squares(self, squares: Option<Rc<RefCell<Squares>>>) -> Self {
        Self { squares, ..self }
    }

    /// The same, where the gradients stay as they are from run to run: see [`passes::EmbeddingUpstream::used`].
    #[must_use]
    pub fn with_used_tokens(self, used_tokens: Option<Slot>) -> Self {
        Self { used_tokens, ..self }
    }

    /// The same, with dropout where the model has one.
    pub fn with_dropout(self, dropout: Option<Dropouts>) -> Self {
        Self { dropout, ..self }
    }

    /// The same, where a window may have several documents: of what stands in one, a mixer remembers nothing in the next. Mixers that
    /// cannot begin anew refuse it.
    #[must_use]
    pub fn with_documents(self, documents: Option<Documents>) -> Self {
        Self { documents, ..self }
    }

    /// The same, where some matrices are of int8: see [`crate::Quantized`]. There is no backward pass then.
    pub fn with_int8(self, int8: Option<Int8<'a>>) -> Self {
        Self { int8, ..self }
    }

    /// The plan, for what is no layer.
    pub fn plan(&mut self) -> &mut Plan {
        self.plan
    }

    /// Where its dropouts stand, if it has some: what another part of the same step goes on with.
    pub fn dropouts(&self) -> Option<Dropouts> {
        self.dropout
    }

    /// Whether there will be a backward pass.
    pub fn is_training(&self) -> bool {
        self.gradients.is_some()
    }

    /// Adds layers whose slots and parameters have this name before their own: see [`Plan::within`].
    ///
    /// # Errors
    /// What `add` returns.
    pub fn within<T>(
        &mut self,
        layer: &str,
        add: impl FnOnce(&mut Tape<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self {
            dtype,
            parameters,
            int8,
            weights,
            gradients,
            accumulates,
            used_tokens,
            dropout,
            documents,
            norm_eps,
            choices,
            ..
        } = *self;
        let (prefix, layers) = (format!("{}{layer}.", self.prefix), {
            let mut layers = self.layers.clone();
            layers.push(layer.to_owned());
            layers
        });
        let squares = self.squares.clone();
        let (back, pending) = (std::mem::take(&mut self.back), std::mem::take(&mut self.pending));
        let before = self.before.take();
        let (outcome, back, dropout, pending, before) = {
            let mut after = (Vec::new(), dropout, HashMap::new(), None);
            let outcome = self.plan.within(layer, |plan| {
                let mut inner = Tape {
                    plan,
                    dtype,
                    parameters,
                    int8,
                    weights,
                    gradients,
                    accumulates,
                    squares,
                    used_tokens,
                    dropout,
                    documents,
                    norm_eps,
                    choices,
                    prefix,
                    back,
                    layers,
                    pending,
                    before,
                };
                let outcome = add(&mut inner);
                after = (inner.back, inner.dropout, inner.pending, inner.before);
                outcome
            });
            (outcome, after.0, after.1, after.2, after.3)
        };
        (self.back, self.dropout, self.pending) = (back, dropout, pending);
        self.before = before;
        outcome
    }

    /// Refuses documents within windows, of a mixer that cannot begin anew.
    pub(crate) fn refuse_documents(&self, mixer: &str) -> Result<(), Error> {
        match self.documents {
            None => Ok(()),
            Some(_) => Err(Error::bad(
                "mixer of windows with several documents",
                "the vLSTM, whose forget gate can shut",
                mixer,
            )),
        }
    }

    fn full_names(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("{}{name}", self.prefix)).collect()
    }

    /// The shape of a parameter of this layer.
    pub(crate) fn shape(&self, name: &str) -> Result<&'a [usize], Error> {
        let name = format!("{}{name}", self.prefix);
        match self.int8.and_then(|int8| int8.shape(&name)) {
            Some(shape) => Ok(shape),
            None => self.parameters.shape(&name),
        }
    }

    /// The working copy of parameters of this layer, one behind the other.
    pub(crate) fn weight(&self, names: &[&str]) -> Result<Slot, Error> {
        let names = self.full_names(names);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.parameters.range(self.weights, &names)
    }

    /// The same of matrices of int8, with the scales of their rows; none where they are not.
    pub(crate) fn int8_weight(&self, names: &[&str]) -> Result<Option<[Slot; 2]>, Error> {
        let names = self.full_names(names);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match self.int8 {
            Some(int8) if int8.shape(names[0]).is_some() => int8.range(&names).map(Some),
            _ => Ok(None),
        }
    }

    /// Where their gradient goes.
    pub(crate) fn gradient(&self, names: &[&str]) -> Result<Option<Slot>, Error> {
        let names = self.full_names(names);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.gradients.map(|arena| self.parameters.range(arena, &names)).transpose()
    }

    /// Leaves on the tape what adds the backward pass of the layer under way.
    pub(crate) fn push(&mut self, add: impl FnOnce(&mut Back<'_>) -> Result<(), Error> + 'static) {
        self.back.push((self.layers.join("."), Box::new(add)));
    }

    /// Adds the backward passes of all layers, the last first. `seeds` are activations with their gradients: those of the loss are
    /// there already where [`Tape::linear_cross_entropy`] has made them.
    ///
    /// # Errors
    /// What the operations return.
    pub fn add_backward(self, seeds: &[(Slot, Slot)]) -> Result<(), Error> {
        let Self { plan, back, .. } = self;
        let gradients = seeds.iter().copied().collect();
        let mut all = Back { plan, gradients, sums: Vec::new() };
        for (layer, add) in back.into_iter().rev() {
            let Back { plan, gradients, sums } = &mut all;
            let taken = (std::mem::take(gradients), std::mem::take(sums));
            let mut left = (HashMap::new(), Vec::new());
            let run = |plan: &mut Plan| {
                let mut inner = Back { plan, gradients: taken.0, sums: taken.1 };
                add(&mut inner)?;
                left = (inner.gradients, inner.sums);
                Ok(())
            };
            match layer.as_str() {
                "" => run(plan)?,
                name => plan.within(name, run)?,
            }
            (*gradients, *sums) = left;
        }
        ColumnSums::add_all(all.plan, &all.sums)
    }
}
