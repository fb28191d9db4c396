//! N steps, prepared: each launch begins with the parameters that went in.

use std::cell::RefCell;
use std::rc::Rc;

use lab_device::{DType, Device, Graph, Kernel, KernelSource};
use lab_harness::program::{Argument, Program, Slot, scalar};
use lab_harness::{Error, Prepared, Tensor, Tensors, mlp};
use lab_reference::mlp::Sizes;

use crate::flat::Layout;

/// `size` as a kernel takes it.
///
/// # Panics
/// It does not fit: such sizes have been refused.
pub fn int(size: usize) -> Argument {
    scalar(i32::try_from(size).expect("sizes that were checked"))
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
pub fn kernel(
    device: &Device,
    source: &'static KernelSource,
    name: &str,
    arguments: &str,
) -> Result<Kernel, Error> {
    Ok(device.kernel(source, &format!("{name}<{arguments}>"))?)
}

/// What the steps of a run are made of.
pub(crate) struct Posed {
    pub(crate) program: Program,
    pub(crate) dtype: DType,
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    /// As the parameters lie in memory.
    pub(crate) sizes: Sizes,
    pub(crate) lr: f64,
    /// \[N, B\] each.
    pub(crate) tokens: Slot,
    pub(crate) targets: Slot,
    pub(crate) layout: Layout,
    /// As they went in, and as they are trained.
    pub(crate) before: Slot,
    pub(crate) parameters: Slot,
    /// \[N\]
    pub(crate) losses: Slot,
}

impl Posed {
    /// Of checked inputs, with no launch yet. There are `hidden_in` hidden units, or a multiple: those that
    /// fill up have no weights, stay shut, and learn nothing.
    pub(crate) fn new(
        device: &Device,
        inputs: &Tensors,
        lr: f64,
        hidden_in: usize,
    ) -> Result<Self, Error> {
        mlp::check_ids(inputs)?;
        let (pairs, emb) = (&inputs["tokens"].shape, &inputs["emb"]);
        let given =
            Sizes { vocabulary: emb.shape[0], embedding: emb.shape[1], hidden: inputs["b1"].len() };
        let sizes = Sizes { hidden: given.hidden.next_multiple_of(hidden_in), ..given };
        let mut program = Program::new(device);
        let mut ids = |name: &str| {
            let values: Vec<i32> = inputs[name].values().into_iter().map(|id| id as i32).collect();
            program.input(&Tensor::new(&[values.len()], &values))
        };
        let [tokens, targets] = [ids("tokens")?, ids("targets")?];
        let layout = Layout::of(&given, &sizes);
        let before = program.input(&layout.pack(emb.dtype, inputs))?;
        let parameters = program.output("parameters", emb.dtype, &[layout.len])?;
        let losses = program.output("loss", DType::F64, &[pairs[0]])?;
        Ok(Self {
            program,
            dtype: emb.dtype,
            steps: pairs[0],
            batch: pairs[1],
            sizes,
            lr,
            tokens,
            targets,
            layout,
            before,
            parameters,
            losses,
        })
    }

    /// With the launches added; made one by one, or recorded once and replayed.
    pub(crate) fn prepared(self, inputs: &Tensors, graph: bool) -> Result<Steps, Error> {
        let device = self.program.device().clone();
        let program = Rc::new(RefCell::new(self.program));
        let recorded = Rc::clone(&program);
        let graph = match graph {
            true => Some(device.graph(move || recorded.borrow_mut().run())?),
            false => None,
        };
        Ok(Steps { graph, program, layout: self.layout, inputs: inputs.clone() })
    }
}

/// A program of all steps.
pub(crate) struct Steps {
    // Dropped before the buffers that its launches use.
    graph: Option<Graph<'static>>,
    program: Rc<RefCell<Program>>,
    layout: Layout,
    inputs: Tensors,
}

impl Prepared for Steps {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        match &mut self.graph {
            Some(graph) => graph.launch(),
            None => self.program.borrow_mut().run(),
        }
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        let mut all = self.program.borrow().outputs()?;
        let flat = all.remove("parameters").expect("an output of the program");
        all.extend(self.layout.unpack(&flat));
        Ok(mlp::with_changes(all, &self.inputs))
    }

    fn kernels(&self) -> Vec<Kernel> {
        self.program.borrow().kernels()
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        self.program.borrow_mut().poison_outputs()
    }
}
