//! Kernels of no stage, in an image that somebody has made: PTX or machine code for a GPU, an object for the emulator.

use std::ffi::c_void;
use std::sync::Arc;

use crate::cuda::Function;
use crate::device::Inner;
use crate::{Device, Error, Launch, RawBuffer};

/// An image, loaded. Its kernels take addresses alone.
#[derive(Debug)]
pub struct Image {
    device: Device,
    loaded: Loaded,
}

#[derive(Debug)]
enum Loaded {
    Cuda(crate::cuda::LoadedModule),
    Emulator(Arc<lab_emulator::Module>),
}

impl Device {
    /// Loads an image: on a GPU PTX, which the driver compiles, or machine code; on the emulator an object that
    /// `lab-kernel-build` has made. It stays loaded as long as the device is open, and an object as long as the process.
    ///
    /// # Errors
    /// The driver's words, its compiler's among them; or an object of another emulator.
    ///
    /// # Safety
    /// The image is what it says: an object is run as this program's own code is.
    pub unsafe fn load_image(&self, image: Vec<u8>) -> Result<Image, Error> {
        let loaded = match &*self.inner {
            Inner::Cuda(cuda) => Loaded::Cuda(cuda.load_image(image)?),
            // SAFETY: the caller's promise.
            Inner::Emulator(_) => unsafe {
                Loaded::Emulator(lab_emulator::Module::load(image.leak())?)
            },
        };
        Ok(Image { device: self.clone(), loaded })
    }
}

impl Image {
    /// Launches a kernel in the device's own queue; its parameters are the addresses of these buffers.
    ///
    /// # Errors
    /// There is no such kernel; the driver's; what the emulator has found.
    ///
    /// # Safety
    /// The kernel has so many parameters, each a pointer, and stays within the buffers, which nobody else uses meanwhile.
    pub unsafe fn launch(
        &self,
        kernel: &str,
        launch: &Launch,
        buffers: &[&RawBuffer],
    ) -> Result<(), Error> {
        buffers.iter().try_for_each(|buffer| buffer.on(&self.device))?;
        let mut addresses: Vec<u64> = buffers.iter().map(|buffer| buffer.address()).collect();
        let arguments: Vec<*mut c_void> =
            addresses.iter_mut().map(|address| std::ptr::from_mut(address).cast()).collect();
        match (&*self.device.inner, &self.loaded) {
            (Inner::Cuda(cuda), Loaded::Cuda(module)) => {
                let function: Function = cuda.function_of(module, kernel)?;
                // SAFETY: the caller's promise; the addresses outlive the call.
                unsafe { cuda.launch(&function, launch, &arguments, None) }
            }
            (Inner::Emulator(emulator), Loaded::Emulator(module)) => {
                let kernel = module.kernel(kernel)?;
                // SAFETY: likewise.
                unsafe { emulator.launch(&kernel, launch, &arguments, None) }
            }
            _ => unreachable!("an image is loaded by its own device"),
        }
    }
}
