//! N steps, prepared: each run begins with the parameters that went in.

use std::cell::RefCell;
use std::rc::Rc;

use lab_device::{DType, Device, Graph, Kernel, KernelSource};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binding, Error, Prepared, Request, Tensor, Tensors, mlp, tensor::tensors};
use lab_reference::mlp::Sizes;

use crate::flat::Layout;

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
    pub(crate) layout: Layout,
    /// As they went in, and as they are trained.
    pub(crate) initial: Slot,
    pub(crate) parameters: Slot,
    /// \[N\]
    pub(crate) losses: Slot,
}

impl StepsPlan {
    /// With no launch yet. There are `hidden_in` hidden units, or a multiple: those that fill up have no
    /// weights, stay shut, and learn nothing.
    pub(crate) fn new(device: &Device, request: &Request<'_>, lr: f64, hidden_in: usize) -> Self {
        let [steps, batch, vocabulary, embedding, hidden] = mlp::of(&request.dims);
        let given = Sizes { vocabulary, embedding, hidden };
        let sizes = Sizes { hidden: hidden.next_multiple_of(hidden_in), ..given };
        let (layout, dtype) = (Layout::new(&given, &sizes), request.dtype);
        let mut plan = Plan::new(device);
        let [tokens, targets] =
            ["tokens", "targets"].map(|name| plan.input(name, DType::I32, &[steps, batch]));
        let initial = plan.input("initial", dtype, &[layout.len]);
        let parameters = plan.output("parameters", dtype, &[layout.len]);
        let losses = plan.output("loss", DType::F64, &[steps]);
        Self {
            plan,
            dtype,
            steps,
            batch,
            sizes,
            lr,
            tokens,
            targets,
            layout,
            initial,
            parameters,
            losses,
        }
    }

    /// With the inputs of the family, whose ids are checked; made launch by launch, or recorded once and
    /// replayed.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn bind(self, inputs: &Tensors, graph: bool) -> Result<Steps, Error> {
        let Self { plan, steps, batch, lr, layout, .. } = self;
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
        let graph = match graph {
            true => Some(device.graph(move || recorded.borrow_mut().run())?),
            false => None,
        };
        Ok(Steps { graph, binding, layout, inputs: inputs.clone() })
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

    fn kernels(&self) -> Vec<Kernel> {
        self.binding.borrow().kernels()
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        self.binding.borrow_mut().poison_outputs()
    }
}
