//! cuBLAS: the matrix product that a user would call in place of a kernel of their own.
//!
//! Bound here as [`crate::nvrtc`] is, and for the same reasons: cudarc looks on the loader's path
//! only, under the names of its pinned CUDA version, and panics where there is nothing.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::device::Inner;
use crate::{Buffer, DType, Device, Element, Error};

type Handle = *mut c_void;

// The values of cublas_api.h and library_types.h.
const OP_N: c_int = 0;
const GEMM_DEFAULT: c_int = -1;
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32F_FAST_TF32: c_int = 77;
/// The default, but for partial sums of halves, which would be added up in halves: f32 throughout.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;

type GemmStridedBatchedEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    c_longlong,
    *const c_void,
    c_int,
    c_int,
    c_longlong,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_longlong,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The functions that are called; the names are cuBLAS's own.
struct Api {
    create: Symbol<unsafe extern "C" fn(*mut Handle) -> c_int>,
    destroy: Symbol<unsafe extern "C" fn(Handle) -> c_int>,
    set_stream: Symbol<unsafe extern "C" fn(Handle, *mut c_void) -> c_int>,
    set_math_mode: Symbol<unsafe extern "C" fn(Handle, c_int) -> c_int>,
    get_version: Symbol<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>,
    status_string: Symbol<unsafe extern "C" fn(c_int) -> *const c_char>,
    gemm: Symbol<GemmStridedBatchedEx>,
    path: PathBuf,
    _library: Library,
}

impl Api {
    /// The process's library, loaded when first asked for.
    fn get() -> Result<&'static Self, Error> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        API.get_or_init(Self::find).as_ref().map_err(|reason| no_library(reason.clone()))
    }

    /// From the places of [`crate::toolkit`], then from the loader's path.
    fn find() -> Result<Self, String> {
        let directories = crate::toolkit::library_directories();
        let mut looked: Vec<String> = Vec::new();
        for directory in &directories {
            let found = |prefix| crate::toolkit::newest_library(directory, prefix);
            if let Some(library) = found("libcublas.so") {
                return Self::load(found("libcublasLt.so"), library).map_err(|e| e.to_string());
            }
            looked.push(directory.display().to_string());
        }
        for name in ["libcublas.so.13", "libcublas.so.12", "libcublas.so"] {
            if let Ok(api) = Self::load(None, PathBuf::from(name)) {
                return Ok(api);
            }
        }
        looked.push("the loader's path".into());
        Err(format!(
            "not found (looked in {}); install the CUDA toolkit and set CUDA_HOME, or: \
             pip install nvidia-cublas (of CUDA 12: nvidia-cublas-cu12)",
            looked.join(", ")
        ))
    }

    fn load(needed: Option<PathBuf>, path: PathBuf) -> Result<Self, libloading::Error> {
        // SAFETY: NVIDIA's libraries, whose constructors have no requirements; the types are those
        // of cublas_api.h.
        unsafe {
            if let Some(needed) = needed {
                // Kept for good: cuBLAS asks for it by name, and finds what is loaded.
                std::mem::forget(Library::open(Some(&needed), RTLD_NOW | RTLD_LOCAL)?);
            }
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL)?;
            Ok(Self {
                create: library.get(b"cublasCreate_v2\0")?,
                destroy: library.get(b"cublasDestroy_v2\0")?,
                set_stream: library.get(b"cublasSetStream_v2\0")?,
                set_math_mode: library.get(b"cublasSetMathMode\0")?,
                get_version: library.get(b"cublasGetVersion_v2\0")?,
                status_string: library.get(b"cublasGetStatusString\0")?,
                gemm: library.get(b"cublasGemmStridedBatchedEx\0")?,
                path,
                _library: library,
            })
        }
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: cuBLAS answers any status with a static string.
        let text = unsafe { CStr::from_ptr((self.status_string)(status)) };
        Err(Error::Driver { call, message: text.to_string_lossy().into_owned() })
    }
}

/// Where cuBLAS was found on this machine; under its bare name where the loader found it.
///
/// # Errors
/// [`Error::NoLibrary`], with what was looked for and how to get it.
pub fn locate() -> Result<&'static Path, Error> {
    Api::get().map(|api| api.path.as_path())
}

fn no_library(reason: String) -> Error {
    Error::NoLibrary { library: "cuBLAS", reason }
}

/// cuBLAS on a GPU, whose calls go into the device's own queue, as kernels do.
pub struct Cublas {
    device: Device,
    api: &'static Api,
    handle: Handle,
    /// What f32 is multiplied as.
    compute: c_int,
}

impl std::fmt::Debug for Cublas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cublas").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Cublas {
    /// Sets it up on a device.
    ///
    /// # Errors
    /// [`Error::NoLibrary`]: the device is the emulator, or there is no cuBLAS here; the message
    /// says how to get it. [`Error::Driver`]: it does not start on this GPU.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let Inner::Cuda(cuda) = &*device.inner else {
            return Err(no_library(format!("expected a GPU, got the {}", device.name())));
        };
        let api = Api::get()?;
        cuda.enter()?;
        let mut cublas = Self {
            device: device.clone(),
            api,
            handle: std::ptr::null_mut(),
            compute: COMPUTE_32F,
        };
        // SAFETY: the device's context is current; the handle is destroyed once, by `drop`, and
        // the stream lives as long as the device, which is held.
        unsafe {
            api.check("cublasCreate", (api.create)(&mut cublas.handle))?;
            let stream = cuda.stream_handle();
            api.check("cublasSetStream", (api.set_stream)(cublas.handle, stream))?;
            let mode = DISALLOW_REDUCED_PRECISION_REDUCTION;
            api.check("cublasSetMathMode", (api.set_math_mode)(cublas.handle, mode))?;
        }
        Ok(cublas)
    }

    /// The same, but that f32 is multiplied as TF32.
    #[must_use]
    pub fn with_tf32(mut self) -> Self {
        self.compute = COMPUTE_32F_FAST_TF32;
        self
    }

    /// As `13.0.2`.
    ///
    /// # Errors
    /// It does not say.
    pub fn version(&self) -> Result<String, Error> {
        let mut number = 0;
        // SAFETY: the handle is alive; writes one integer.
        let status = unsafe { (self.api.get_version)(self.handle, &mut number) };
        self.api.check("cublasGetVersion", status)?;
        // 120304 is 12.3.4: two digits each behind the major number.
        Ok(format!("{}.{}.{}", number / 10000, number / 100 % 100, number % 100))
    }

    /// C = A B for each of `g` matrices, row-major, one behind the other: A is `m` × `k`, B `k` ×
    /// `n`, C `m` × `n`; sizes are `[g, m, n, k]`. f32, f16 and bf16 are multiplied and added in
    /// f32, f32 without TF32 unless [`Self::with_tf32`] says so; f64 in f64. Returns before the product is there, as a launch does.
    ///
    /// cuBLAS knows column-major matrices only. But the bytes of a row-major `m` × `k` matrix are
    /// those of its transpose, `k` × `m`, column-major. So it is asked for Cᵀ = Bᵀ Aᵀ, `n` × `m`:
    /// B goes first, no operand is transposed, and the bytes that it writes are those of C,
    /// row-major.
    ///
    /// # Errors
    /// A size that is zero or over 2³¹ − 1, a type that is no float, a buffer too small or of
    /// another device; what cuBLAS itself reports.
    pub fn matmul<T: Element>(
        &self,
        sizes: [usize; 4],
        a: &Buffer<T>,
        b: &Buffer<T>,
        c: &mut Buffer<T>,
    ) -> Result<(), Error> {
        let mut checked: [c_int; 4] = [0; 4];
        let names = ["matrices", "rows of A", "columns of B", "columns of A"];
        for ((to, size), what) in checked.iter_mut().zip(sizes).zip(names) {
            let max = c_int::MAX as u64;
            let refuse = || Error::LaunchSize {
                kernel: "cublasGemmStridedBatchedEx".into(),
                what,
                min: 1,
                max,
                got: size as u64,
            };
            *to = c_int::try_from(size).ok().filter(|&s| s > 0).ok_or_else(refuse)?;
        }
        // CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_64F.
        let (kind, compute) = match T::DTYPE {
            DType::F32 => (0, self.compute),
            DType::F16 => (2, COMPUTE_32F),
            DType::BF16 => (14, COMPUTE_32F),
            DType::F64 => (1, COMPUTE_64F),
            other => {
                return Err(Error::Argument {
                    kernel: "cublasGemmStridedBatchedEx".into(),
                    name: "dtype".into(),
                    expected: "f32, f16, bf16 or f64".into(),
                    got: other.to_string(),
                });
            }
        };
        let [g, m, n, k] = checked;
        let [each_a, each_b, each_c] = [[m, k], [k, n], [m, n]]
            .map(|[rows, columns]| c_longlong::from(rows) * c_longlong::from(columns));
        let total = |each: c_longlong| each as usize * g as usize;
        let from_a = a.address_on(&self.device, total(each_a))?;
        let from_b = b.address_on(&self.device, total(each_b))?;
        let to = c.address_on(&self.device, total(each_c))?;
        let (one, zero) = ([1f32, 0.0], [1f64, 0.0]);
        let scalar = |index: usize| -> *const c_void {
            match compute {
                COMPUTE_64F => (&raw const zero[index]).cast(),
                _ => (&raw const one[index]).cast(),
            }
        };
        let Inner::Cuda(cuda) = &*self.device.inner else {
            return Err(no_library("expected a GPU".into()));
        };
        cuda.enter()?;
        // SAFETY: the buffers hold these matrices (checked) on this handle's device; the scalars
        // are read before the call returns.
        let status = unsafe {
            (self.api.gemm)(
                self.handle,
                OP_N,
                OP_N,
                n,
                m,
                k,
                scalar(0),
                from_b as *const c_void,
                kind,
                n,
                each_b,
                from_a as *const c_void,
                kind,
                k,
                each_a,
                scalar(1),
                to as *mut c_void,
                kind,
                n,
                each_c,
                g,
                compute,
                GEMM_DEFAULT,
            )
        };
        self.api.check("cublasGemmStridedBatchedEx", status)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let Inner::Cuda(cuda) = &*self.device.inner else { return };
        if !self.handle.is_null() && cuda.synchronize().is_ok() {
            // SAFETY: created by this library, destroyed once, with no work left.
            let _ = unsafe { (self.api.destroy)(self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_has_none_and_says_so() {
        let device = Device::emulator().unwrap();
        let error = Cublas::new(&device).unwrap_err();
        assert!(error.is_unavailable());
        let said = error.to_string();
        assert!(said.starts_with("cuBLAS: expected a GPU, got the"), "{said}");
    }

    /// Whatever this machine has, looking for the library ends in it or in the fix.
    #[test]
    fn a_missing_library_names_the_fix() {
        if let Err(error) = locate() {
            let said = error.to_string();
            assert!(said.contains("not found (looked in"), "{said}");
            assert!(said.contains("pip install nvidia-cublas"), "{said}");
        }
    }
}
