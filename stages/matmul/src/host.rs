//! The product on the host's cores: the plainest code, and a CPU's library.

use lab_device::{DType, Device};
use lab_harness::request::shapes_of;
use lab_harness::{
    Dims, Error, Options, Peer, PeerInfo, Place, Prepared, Tensor, Tensors, Version,
};
use rayon::prelude::*;

use crate::NAIVE;

/// The crate `matrixmultiply`, some rows a core. The crate `gemm` was tried beside it, on two cores:
/// 5 to 10 % faster from 1024 on, which does not pay for a second such library.
pub(crate) struct Blas;

/// Three loops on one core, an element of C after the other, as the formula has it.
pub(crate) struct Naive;

impl Peer for Blas {
    fn info(&self) -> &PeerInfo {
        &PeerInfo {
            name: "cpu_blas",
            family: "matmul",
            what: "the crate matrixmultiply on all of the host's cores, f32",
            dtypes: &[DType::F32],
            place: Place::Host,
            products: None,
        }
    }

    fn is_cheap_enough(&self, dims: &Dims, _dtype: DType) -> bool {
        multiply_adds(dims) <= 1 << 36
    }

    fn prepare(
        &self,
        _device: &Device,
        inputs: &Tensors,
        _options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        Product::prepare(inputs, blas)
    }
}

impl Peer for Naive {
    fn info(&self) -> &PeerInfo {
        &PeerInfo {
            name: "cpu_naive",
            family: "matmul",
            what: "three loops on one of the host's cores, f32",
            dtypes: &[DType::F32],
            place: Place::Host,
            products: None,
        }
    }

    fn is_cheap_enough(&self, dims: &Dims, _dtype: DType) -> bool {
        multiply_adds(dims) <= 1 << 30
    }

    fn prepare(
        &self,
        _device: &Device,
        inputs: &Tensors,
        _options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        Product::prepare(inputs, naive)
    }
}

fn multiply_adds(dims: &Dims) -> u128 {
    ["G", "M", "N", "K"].iter().map(|d| dims.get(d) as u128).product()
}

/// C = A B for matrices of these sizes, `[m, n, k]`, of which the slices hold equally many.
type Multiply = fn(&[f32], &[f32], &mut [f32], [usize; 3]);

struct Product {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    sizes: [usize; 3],
    shape: Vec<usize>,
    multiply: Multiply,
}

impl Product {
    fn prepare(inputs: &Tensors, multiply: Multiply) -> Result<Box<dyn Prepared>, Error> {
        let shapes = shapes_of(inputs);
        let (dims, _) = NAIVE.info().problem_of_shapes(&shapes)?;
        let leading = crate::sizes::leading_sizes(&shapes)?;
        let sizes = ["M", "N", "K"].map(|d| dims.get(d));
        let shape = [leading, &sizes[..2]].concat();
        let floats = |name: &str| -> Vec<f32> {
            inputs[name].values().into_iter().map(|v| v as f32).collect()
        };
        let c = vec![f32::NAN; shape.iter().product()];
        Ok(Box::new(Self { a: floats("A"), b: floats("B"), c, sizes, shape, multiply }))
    }
}

impl Prepared for Product {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        (self.multiply)(&self.a, &self.b, &mut self.c, self.sizes);
        Ok(())
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        Ok(lab_harness::tensor::tensors([("C", Tensor::new(&self.shape, &self.c))]))
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        self.c.fill(f32::NAN);
        Ok(())
    }
}

fn naive(a: &[f32], b: &[f32], c: &mut [f32], [m, n, k]: [usize; 3]) {
    for ((a, b), c) in a.chunks(m * k).zip(b.chunks(k * n)).zip(c.chunks_mut(m * n)) {
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).map(|k0| a[i * k + k0] * b[k0 * n + j]).sum();
            }
        }
    }
}

fn blas(a: &[f32], b: &[f32], c: &mut [f32], [m, n, k]: [usize; 3]) {
    // Rows enough for every core, and no more than a core's cache is good for.
    let rows = m.div_ceil(rayon::current_num_threads()).next_multiple_of(8).min(256);
    for ((a, b), c) in a.chunks(m * k).zip(b.chunks(k * n)).zip(c.chunks_mut(m * n)) {
        a.par_chunks(rows * k).zip(c.par_chunks_mut(rows * n)).for_each(|(a, c)| {
            let rows = c.len() / n;
            assert!(a.len() == rows * k && b.len() == k * n && c.len() == rows * n);
            let [ra, rb, rc] = [k, n, n].map(|columns| columns as isize);
            let (from, with, to) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            // SAFETY: the lengths were just held against the sizes and strides; c is borrowed
            // alone.
            unsafe {
                matrixmultiply::sgemm(rows, k, n, 1.0, from, ra, 1, with, rb, 1, 0.0, to, rc, 1);
            }
        });
    }
}
