//! N steps, prepared: each run begins with the parameters that went in.

use std::cell::RefCell;
use std::rc::Rc;

use lab_device::{DType, Device, Graph, Kernel, KernelSource, Launch};
use lab_families::mlp;
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binding, Error, Prepared, Request, Tensor, Tensors, tensor::tensors};
use lab_reference::mlp::{Parameters, Sizes};

use crate::flat::Layout;

/// Where the parameters are, emb, w1, b1, w2 and b2.
pub(crate) enum Place {
    /// All in one buffer, as they go in, and in another, as they are trained.
    Flat { layout: Box<Layout>, initial: Slot, parameters: Slot },
    /// Each in a tensor of its own, which is trained where it lies.
    Apart([Slot; 5]),
}

/// Blocks of `each` for `size` elements.
///
/// # Panics
/// There are too many: such sizes have been refused.
pub fn blocks(size: usize, each: usize) -> u32 {
    u32::try_from(size.div_ceil(each)).expect("sizes that were checked")
}

/// `name<arguments>` of a kernel file.
///
/// # Errors
/// It does not compile on this device.
pub fn load_kernel(
    device: &Device,
    source: &'static KernelSource,
    name: &str,
    arguments: &str,
) -> Result<Kernel, Error> {
    Ok(device.kernel(source, &format!("{name}<{arguments}>"))?)
}

/// The plan of a run of N steps, with what its launches are made of.
pub(crate) struct StepsPlan {
    pub(crate) plan: Plan,
    pub(crate) dtype: DType,
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    /// As the parameters lie in memory.
    pub(crate) sizes: Sizes,
    pub(crate) lr: f64,
    /// \[N, B\] each, i32.
    pub(crate) tokens: Slot,
    pub(crate) targets: Slot,
    pub(crate) place: Place,
    /// \[N\]
    pub(crate) losses: Slot,
}

impl StepsPlan {
    /// With no launch yet, and all parameters in one buffer. There are `hidden_in` hidden units, or a multiple: those that
    /// fill up have no weights, stay shut, and learn nothing.
    pub(crate) fn new(device: &Device, request: &Request<'_>, lr: f64, hidden_in: usize) -> Self {
        let [steps, batch, vocabulary, embedding, hidden] = mlp::sizes_of(&request.dims);
        let given = Sizes { vocabulary, embedding, hidden };
        let sizes = Sizes { hidden: hidden.next_multiple_of(hidden_in), ..given };
        let (layout, dtype) = (Layout::new(&given, &sizes), request.dtype);
        Self::with(Plan::new(device), dtype, [steps, batch], sizes, lr, |plan| Place::Flat {
            initial: plan.input("initial", dtype, &[layout.len]),
            parameters: plan.output("parameters", dtype, &[layout.len]),
            layout: Box::new(layout),
        })
    }

    /// With no launch yet, and each parameter in a tensor of its own, under its name.
    pub(crate) fn in_place(device: &Device, request: &Request<'_>, lr: f64) -> Self {
        let [steps, batch, vocabulary, embedding, hidden] = mlp::sizes_of(&request.dims);
        let sizes = Sizes { vocabulary, embedding, hidden };
        let dtype = request.dtype;
        Self::with(Plan::new(device), dtype, [steps, batch], sizes, lr, |plan| {
            let mut names = Parameters::NAMES.into_iter();
            Place::Apart(sizes.shapes().map(|shape| {
                let name = names.next().expect("a name of each");
                plan.updated(name, name, dtype, &shape)
            }))
        })
    }

    fn with(
        mut plan: Plan,
        dtype: DType,
        [steps, batch]: [usize; 2],
        sizes: Sizes,
        lr: f64,
        place: impl FnOnce(&mut Plan) -> Place,
    ) -> Self {
        let [tokens, targets] =
            ["tokens", "targets"].map(|name| plan.input(name, DType::I32, &[steps, batch]));
        let place = place(&mut plan);
        let losses = plan.output("loss", DType::F64, &[steps]);
        Self { plan, dtype, steps, batch, sizes, lr, tokens, targets, place, losses }
    }

    /// The parameters where launches train them, behind the step that brings them there, where one is needed.
    pub(crate) fn trained(&mut self) -> [Slot; 5] {
        match &self.place {
            Place::Flat { layout, initial, parameters } => {
                self.plan.copy(*initial, *parameters);
                layout.parts(*parameters)
            }
            Place::Apart(own) => *own,
        }
    }

    /// The parameters as they are before a launch, and where it writes them: two places that do not overlap.
    pub(crate) fn before_and_after(&mut self) -> [[Slot; 5]; 2] {
        match &self.place {
            Place::Flat { layout, initial, parameters } => {
                [initial, parameters].map(|&flat| layout.parts(flat))
            }
            Place::Apart(own) => {
                let (own, dtype, plan) = (*own, self.dtype, &mut self.plan);
                let before = own.map(|slot| {
                    let copy = plan.scratch(dtype, slot.len());
                    plan.copy(slot, copy);
                    copy
                });
                [before, own]
            }
        }
    }

    /// With the inputs of the family, whose ids are checked; made launch by launch, or recorded once and
    /// replayed.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn bind(self, inputs: &Tensors, graph: bool) -> Result<Steps, Error> {
        let Self { plan, steps, batch, lr, place, .. } = self;
        let Place::Flat { layout, .. } = place else {
            unreachable!("a run of the family has all parameters in one buffer")
        };
        let device = plan.device().clone();
        let ids = |name: &str| {
            let tensor = &inputs[name];
            Tensor::rounded(DType::I32, &tensor.shape, &tensor.values())
        };
        let order: Vec<i32> = (0..steps * batch).map(|pair| pair as i32).collect();
        let uploads = tensors([
            ("tokens", ids("tokens")),
            ("targets", ids("targets")),
            ("initial", layout.pack(self.dtype, inputs)),
            ("order", Tensor::new(&[order.len()], &order)),
            ("rates", Tensor::new(&[steps], &vec![lr; steps])),
        ]);
        let binding = Rc::new(RefCell::new(plan.bind().upload_inputs(&uploads)?.finish()?));
        let recorded = Rc::clone(&binding);
        let graph =
            if graph { Some(device.graph(move || recorded.borrow_mut().run())?) } else { None };
        Ok(Steps { graph, binding, layout: *layout, inputs: inputs.clone() })
    }
}

/// All steps of a run, with memory.
pub(crate) struct Steps {
    // Dropped before the buffers that its launches use.
    graph: Option<Graph<'static>>,
    binding: Rc<RefCell<Binding>>,
    layout: Layout,
    inputs: Tensors,
}

impl Prepared for Steps {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        match &mut self.graph {
            Some(graph) => graph.launch(),
            None => self.binding.borrow_mut().run(),
        }
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        let mut all = self.binding.borrow().outputs()?;
        let flat = all.remove("parameters").expect("an output of the plan");
        all.extend(self.layout.unpack(&flat));
        Ok(mlp::with_changes(all, &self.inputs))
    }

    fn launches(&self) -> Vec<(Kernel, Launch)> {
        self.binding.borrow().launches()
    }

    fn input_bytes(&self) -> Option<u64> {
        self.binding.borrow().input_bytes()
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        self.binding.borrow_mut().poison_outputs()
    }
}
