//! An operation of many tensors with many results, made of candle's, which take three at most and return one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::backend::BackendStorage as _;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape,
    Storage, Tensor, bail,
};

use crate::refuse;

/// What the kernels have written.
pub(crate) struct Output {
    pub(crate) storage: Storage,
    pub(crate) shape: Shape,
    /// Whether a gradient goes through it.
    pub(crate) is_differentiable: bool,
}

impl Output {
    /// A tensor of which candle knows nothing more.
    pub(crate) fn alone(self) -> Tensor {
        Tensor::from_storage(self.storage, self.shape, BackpropOp::none(), false)
    }
}

/// The backward pass of an operation.
pub(crate) trait Backward: Send + Sync {
    /// As errors have it.
    fn name(&self) -> &'static str;

    /// The gradients of the inputs from those of the results, where there are any; the results are those of the forward pass.
    fn gradients(&self, results: &[Tensor], upstream: Vec<Option<Tensor>>) -> Result<Vec<Tensor>>;
}

/// The results as tensors of candle's graph that depend on `inputs`, those whose gradients [`Backward::gradients`] returns, in its
/// order.
pub(crate) fn joined(
    inputs: &[&Tensor],
    outputs: Vec<Output>,
    backward: impl Backward + 'static,
) -> Result<Vec<Tensor>> {
    let results = OnceLock::new();
    let shared =
        Arc::new(Shared { backward: Box::new(backward), results, walks: Mutex::default() });
    let tracked: Vec<usize> = (0..inputs.len()).filter(|&n| inputs[n].track_op()).collect();
    let groups: Vec<&[usize]> = tracked.chunks(2).collect();
    let mut token = Tensor::zeros((), DType::F32, inputs[0].device())?;
    for (n, group) in groups.iter().enumerate() {
        let (is_first, is_last) = (n == 0, n + 1 == groups.len());
        let enter =
            Enter { shared: Arc::clone(&shared), inputs: group.to_vec(), is_first, is_last };
        token = match **group {
            [a] => token.apply_op2(inputs[a], enter)?,
            [a, b] => token.apply_op3(inputs[a], inputs[b], enter)?,
            _ => unreachable!("chunks of two"),
        };
    }
    let leave = |(index, output): (usize, Output)| {
        if !output.is_differentiable {
            return Ok(output.alone());
        }
        let made = Mutex::new(Some((output.storage, output.shape)));
        token.apply_op1(Leave { shared: Arc::clone(&shared), index, made })
    };
    let results: Vec<Tensor> = outputs.into_iter().enumerate().map(leave).collect::<Result<_>>()?;
    // Without their part of the graph, which would hold them for ever.
    let detached = results.iter().map(Tensor::detach).collect();
    shared.results.set(detached).expect("nobody else has set it");
    Ok(results)
}

/// What the operations of one call share.
struct Shared {
    backward: Box<dyn Backward>,
    results: OnceLock<Vec<Tensor>>,
    /// Of each thread that is walking back: one walks through a graph from its end to its beginning, several may at once.
    walks: Mutex<HashMap<ThreadId, Walk>>,
}

/// What a walk has met of the call.
#[derive(Default)]
struct Walk {
    /// Of each result that it came by.
    upstream: HashMap<usize, Tensor>,
    /// Of each input, once they are computed.
    gradients: Vec<Tensor>,
}

impl Shared {
    fn with_walk<T>(&self, f: impl FnOnce(&mut HashMap<ThreadId, Walk>, ThreadId) -> T) -> T {
        f(&mut self.walks.lock().unwrap_or_else(PoisonError::into_inner), thread::current().id())
    }

    /// Runs the kernels of the backward pass, with what the walk has met.
    fn compute(&self) -> Result<()> {
        let met = self.with_walk(|walks, own| walks.remove(&own)).unwrap_or_default();
        let results = self.results.get().map(Vec::as_slice).unwrap_or_default();
        let upstream = (0..results.len()).map(|n| met.upstream.get(&n).cloned()).collect();
        let gradients = self.backward.gradients(results, upstream)?;
        let walk = Walk { gradients, ..Walk::default() };
        self.with_walk(|walks, own| walks.insert(own, walk));
        Ok(())
    }
}

/// Takes up to two inputs into the call.
struct Enter {
    shared: Arc<Shared>,
    inputs: Vec<usize>,
    is_first: bool,
    is_last: bool,
}

impl Enter {
    /// The gradients of its inputs. candle walks backwards: it comes to the last `Enter` first.
    fn gradients(&self) -> Result<Vec<Tensor>> {
        if self.is_last {
            self.shared.compute()?;
        }
        let own = self.shared.with_walk(|walks, own| {
            let gradients = &walks.get(&own)?.gradients;
            let gradients = self.inputs.iter().map(|&n| gradients.get(n).cloned()).collect();
            if self.is_first {
                walks.remove(&own);
            }
            gradients
        });
        match own {
            Some(own) => Ok(own),
            None => bail!("{}: its backward pass has not run", self.shared.backward.name()),
        }
    }

    /// The gradient of the token that it took, whose `Enter` candle only then comes to.
    fn of_token(&self, of_result: &Tensor) -> Option<Tensor> {
        (!self.is_first).then(|| of_result.clone())
    }
}

/// A number that nobody reads.
fn cpu_token() -> (CpuStorage, Shape) {
    (CpuStorage::F32(vec![0.0]), Shape::from(()))
}

impl CustomOp2 for Enter {
    fn name(&self) -> &'static str {
        self.shared.backward.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(cpu_token())
    }

    fn cuda_fwd(
        &self,
        token: &CudaStorage,
        layout: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Ok((token.try_clone(layout)?, Shape::from(())))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        of_token: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let mut own = self.gradients()?.into_iter();
        Ok((self.of_token(of_token), own.next()))
    }
}

impl CustomOp3 for Enter {
    fn name(&self) -> &'static str {
        self.shared.backward.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(cpu_token())
    }

    fn cuda_fwd(
        &self,
        token: &CudaStorage,
        layout: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Ok((token.try_clone(layout)?, Shape::from(())))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        of_token: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut own = self.gradients()?.into_iter();
        Ok((self.of_token(of_token), own.next(), own.next()))
    }
}

/// Hands out a result of the call.
struct Leave {
    shared: Arc<Shared>,
    index: usize,
    /// What the kernels have written, until candle has it.
    made: Mutex<Option<(Storage, Shape)>>,
}

impl Leave {
    fn take(&self) -> Result<(Storage, Shape)> {
        match self.made.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(made) => Ok(made),
            None => bail!("{}: its result was taken before", self.shared.backward.name()),
        }
    }
}

impl CustomOp1 for Leave {
    fn name(&self) -> &'static str {
        self.shared.backward.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.take()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => bail!("{}: expected a result on the CPU", self.shared.backward.name()),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.take()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => bail!("{}: expected a result on a CUDA device", self.shared.backward.name()),
        }
    }

    fn bwd(&self, token: &Tensor, _: &Tensor, of_result: &Tensor) -> Result<Option<Tensor>> {
        // candle keeps the graph of a gradient where CANDLE_GRAD_DO_NOT_DETACH is set.
        if of_result.track_op() {
            let name = self.shared.backward.name();
            return Err(refuse(
                name,
                "to be differentiated once",
                "a gradient with a graph of its own",
            ));
        }
        self.shared.with_walk(|walks, own| {
            walks.entry(own).or_default().upstream.insert(self.index, of_result.clone());
        });
        Ok(Some(token.zeros_like()?))
    }
}
