//! cuBLAS beside the versions: what a user would call.

use half::{bf16, f16};
use lab_device::{Buffer, DType, Device, Element, cublas};
use lab_harness::Products;
use lab_harness::request::shapes_of;
use lab_harness::{Error, Options, Peer, PeerInfo, Place, Prepared, Tensor, Tensors, Version};

use crate::NAIVE;

/// `cublasGemmStridedBatchedEx`. Row-major matrices go in as [`cublas::Cublas::matmul`] says: as
/// Cᵀ = Bᵀ Aᵀ, without a transposition.
pub(crate) struct Cublas {
    info: PeerInfo,
}

/// f32 in f32.
pub(crate) static CUBLAS: Cublas = Cublas {
    info: PeerInfo {
        name: "cublas",
        family: "matmul",
        what: "cublasGemmStridedBatchedEx, added up in f32; f32 without TF32",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        place: Place::Gpu,
        products: None,
    },
};

/// f32 as TF32.
pub(crate) static TF32: Cublas = Cublas {
    info: PeerInfo {
        name: "cublas_tf32",
        what: "cublasGemmStridedBatchedEx, f32 multiplied as TF32 (CUBLAS_COMPUTE_32F_FAST_TF32)",
        dtypes: &[DType::F32],
        products: Some(Products::Tf32),
        ..CUBLAS.info
    },
};

impl Cublas {
    fn library(&self, device: &Device) -> Result<cublas::Cublas, lab_device::Error> {
        let library = cublas::Cublas::new(device)?;
        Ok(if self.info.products == Some(Products::Tf32) { library.with_tf32() } else { library })
    }
}

impl Peer for Cublas {
    fn info(&self) -> &PeerInfo {
        &self.info
    }

    fn version(&self, device: &Device) -> Option<String> {
        let version = cublas::Cublas::new(device).and_then(|c| c.version()).ok()?;
        Some(format!("cuBLAS {version}"))
    }

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        _options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let shapes = shapes_of(inputs);
        let (dims, dtype) = NAIVE.info().problem_of_shapes(&shapes)?;
        let leading = crate::sizes::leading_sizes(&shapes)?;
        let sizes = ["G", "M", "N", "K"].map(|d| dims.get(d));
        let shape = [leading, &sizes[1..3]].concat();
        match dtype {
            DType::F16 => {
                Product::<f16>::prepare(self.library(device)?, device, inputs, sizes, shape)
            }
            DType::BF16 => {
                Product::<bf16>::prepare(self.library(device)?, device, inputs, sizes, shape)
            }
            _ => Product::<f32>::prepare(self.library(device)?, device, inputs, sizes, shape),
        }
    }
}

struct Product<T: Element> {
    cublas: cublas::Cublas,
    sizes: [usize; 4],
    shape: Vec<usize>,
    a: Buffer<T>,
    b: Buffer<T>,
    c: Buffer<T>,
}

impl<T: Element> Product<T> {
    fn prepare(
        cublas: cublas::Cublas,
        device: &Device,
        inputs: &Tensors,
        sizes: [usize; 4],
        shape: Vec<usize>,
    ) -> Result<Box<dyn Prepared>, Error> {
        Ok(Box::new(Self {
            cublas,
            sizes,
            a: inputs["A"].upload(device)?,
            b: inputs["B"].upload(device)?,
            c: device.buffer(shape.iter().product())?,
            shape,
        }))
    }
}

impl<T: Element> Prepared for Product<T> {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        self.cublas.matmul(self.sizes, &self.a, &self.b, &mut self.c)
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        let c = Tensor::download(&self.shape, &self.c)?;
        Ok(lab_harness::tensor::tensors([("C", c)]))
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        Ok(self.c.poison()?)
    }
}
