//! The Python module `vlstm._native`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use lab_calls::{Candidate, Pass, Planned, Rooms, Training, device, mlp, run_away};
use lab_device::{DType, DeviceKind};
use lab_harness::plan::SlotKind;
use lab_harness::{Error, Info, Shape, Shapes, Version as _};
use lstm_fused::Network;
use mlp_fused::Sizes;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    vlstm,
    KernelError,
    PyRuntimeError,
    "A kernel did what it must not, as the checks of the emulator found: a race, an access out of bounds, a value that \
     nobody wrote."
);

fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Bad { .. } | Error::Tensor { .. } | Error::NoVersion { .. } => {
            PyValueError::new_err(text)
        }
        Error::NeverWritten { .. } => KernelError::new_err(text),
        Error::Device(device) if device.findings().is_some() => KernelError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Does what may take long: of the emulator's on other threads and until Ctrl-C, a handler of which that raises ends it; of a
/// GPU's on this thread, whose context PyTorch has set.
fn away<T: Send>(py: Python<'_>, emulated: bool, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| {
        if emulated {
            run_away(work, || Python::attach(|py| py.check_signals()))
        } else {
            Ok(work())
        }
    })
}

fn is_emulated(on: &str) -> bool {
    !on.starts_with("cuda")
}

/// A tensor's name, type and shape.
type Named = (String, String, Vec<usize>);

/// A version's name, what it changes, and its types.
type Described = (String, &'static str, Vec<&'static str>);

/// The launches of one call.
#[pyclass(frozen, module = "vlstm._native")]
struct Plan {
    planned: Planned,
    /// Of each slot where it begins in the scratch memory; negative where it has an address of its own.
    places: OnceLock<Vec<i64>>,
}

impl From<Planned> for Plan {
    fn from(planned: Planned) -> Self {
        Self { planned, places: OnceLock::new() }
    }
}

#[pymethods]
impl Plan {
    /// The version that runs, as `stage:version`.
    #[getter]
    fn version(&self) -> &str {
        self.planned.name()
    }

    /// Bytes of scratch memory that `run` wants on a GPU.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        self.planned.scratch_bytes()
    }

    /// (name, kind, dtype, shape) of each tensor whose address `run` wants; the kind is input, output or state.
    fn slots(&self) -> Vec<(String, &'static str, String, Vec<usize>)> {
        let kind = |kind| match kind {
            SlotKind::Input => "input",
            SlotKind::Output => "output",
            SlotKind::State => "state",
            SlotKind::Scratch => "scratch",
        };
        let slots = self.planned.slots();
        slots
            .map(|s| (s.name.clone(), kind(s.kind), s.element.to_string(), s.shape.clone()))
            .collect()
    }

    /// The bound on the relative error of each output that the version keeps, by its name.
    fn bounds(&self) -> HashMap<&'static str, f64> {
        self.planned.error_bounds().into_iter().collect()
    }

    /// The outputs in f64 of the lab's reference, by name, for inputs in host memory at these addresses.
    fn reference(
        &self,
        py: Python<'_>,
        addresses: Vec<u64>,
    ) -> PyResult<HashMap<&'static str, Vec<f64>>> {
        // SAFETY: whoever calls from Python gives addresses of memory that is as large as the slots, and keeps it for as long.
        away(py, true, || unsafe { self.planned.reference(&addresses) }.into_iter().collect())
    }

    /// Bytes of memory in which a forward pass leaves to its backward pass what that needs.
    #[getter]
    fn left_bytes(&self) -> usize {
        self.planned.left_bytes()
    }

    /// Says of each slot where it begins in the scratch memory, or with a negative number that `run` is given its
    /// address. To be said once, before `run`.
    fn place(&self, places: Vec<i64>) -> PyResult<()> {
        let said = self.places.set(places);
        said.map_err(|_| {
            PyRuntimeError::new_err("place: expected to be called once, got a second call")
        })
    }

    /// Makes the launches on tensors at these addresses, with what is left and scratch at those, on this stream.
    fn run(
        &self,
        py: Python<'_>,
        addresses: Vec<u64>,
        left: u64,
        scratch: u64,
        stream: u64,
    ) -> PyResult<()> {
        let rooms = Rooms { left, scratch };
        let addresses = match self.places.get() {
            None => addresses,
            Some(places) => {
                let mut given = addresses.iter();
                let at = |&place: &i64| match u64::try_from(place) {
                    Ok(within) => Some(scratch + within),
                    Err(_) => given.next().copied(),
                };
                places.iter().filter_map(at).collect()
            }
        };
        // SAFETY: the package passes the addresses of tensors that it has checked against `slots`, which stay while
        // the stream has work on them, as all of its allocator's do.
        let run = || unsafe { self.planned.run(&addresses, rooms, stream) };
        away(py, self.planned.is_emulated(), run)?.map_err(raise)
    }
}

/// Plans a pass (a name of `Pass`) on a device (cuda:N, emulator, checked) for tensors of these names, types
/// and shapes, under options `name=value`, with the version of this name or the one that suits.
#[pyfunction]
#[pyo3(signature = (on, pass_name, tensors, options, version=None))]
fn plan(
    py: Python<'_>,
    on: &str,
    pass_name: &str,
    tensors: Vec<Named>,
    options: Vec<String>,
    version: Option<&str>,
) -> PyResult<Plan> {
    let planned = || {
        let pass = Pass::of_name(pass_name)?;
        Planned::new(pass, &device(on)?, shapes_of(tensors)?, &options, version)
    };
    away(py, is_emulated(on), planned)?.map(Plan::from).map_err(raise)
}

/// The same of the pass `gradients`, in two parts, the forward and the backward pass; None where there are none.
#[pyfunction]
#[pyo3(signature = (on, tensors, options, version=None))]
fn plan_in_two_parts(
    py: Python<'_>,
    on: &str,
    tensors: Vec<Named>,
    options: Vec<String>,
    version: Option<&str>,
) -> PyResult<Option<(Plan, Plan)>> {
    let planned = || Planned::in_two_parts(&device(on)?, shapes_of(tensors)?, &options, version);
    let parts = away(py, is_emulated(on), planned)?.map_err(raise)?;
    Ok(parts.map(|parts| parts.map(Plan::from).into()))
}

/// Plans an LSTM on tensors of PyTorch's names: x, the parameters, h0, c0; with `training` in two parts, of which the second
/// also takes dy, dhn and dcn. `sizes` are inputs, hidden units, layers; `settings` whether it is bidirectional, has
/// biases, and is trained.
#[pyfunction]
fn plan_lstm(
    py: Python<'_>,
    on: &str,
    tensors: Vec<Named>,
    sizes: [usize; 3],
    settings: [bool; 3],
) -> PyResult<Vec<Plan>> {
    let ([inputs, hidden, layers], [bidirectional, bias, training]) = (sizes, settings);
    let planned = || {
        let network = Network { layers, bidirectional, bias, ..Network::lstm(inputs, hidden) };
        let (device, shapes) = (device(on)?, shapes_of(tensors)?);
        Ok(if training {
            Planned::lstm_in_two_parts(&device, &shapes, network)?.into()
        } else {
            vec![Planned::lstm(&device, &shapes, network)?]
        })
    };
    let parts: Vec<Planned> = away(py, is_emulated(on), planned)?.map_err(raise)?;
    Ok(parts.into_iter().map(Plan::from).collect())
}

/// Plans training steps of the language model of one word, for `sizes` N, B, V, E, H, with products by w2 of this type, or of
/// what the version of this name makes them of. `lr` is of versions that have no input `rates`.
#[pyfunction]
#[pyo3(signature = (on, sizes, products, lr, version=None))]
fn plan_mlp(
    py: Python<'_>,
    on: &str,
    sizes: [usize; 5],
    products: Option<&str>,
    lr: f64,
    version: Option<&str>,
) -> PyResult<Plan> {
    let [steps, batch, vocabulary, embedding, hidden] = sizes;
    let planned = || {
        let dtype = |name: &str| {
            name.parse().map_err(|expected: String| Error::bad("products", expected, name))
        };
        let products = products.map(dtype).transpose()?;
        let sizes = Sizes { vocabulary, embedding, hidden };
        Planned::mlp(&device(on)?, Training { steps, batch, sizes, products, lr }, version)
    };
    away(py, is_emulated(on), planned)?.map(Plan::from).map_err(raise)
}

fn shapes_of(tensors: Vec<Named>) -> Result<Shapes, Error> {
    let shape = |(name, dtype, sizes): Named| match dtype.parse() {
        Ok(dtype) => Ok((name, Shape { dtype, sizes })),
        Err(expected) => Err(Error::Tensor { name, expected, got: dtype }),
    };
    tensors.into_iter().map(shape).collect()
}

/// Of each pass its versions, in the order in which a GPU prefers them: (name, what it changes, types).
#[pyfunction]
fn versions() -> HashMap<String, Vec<Described>> {
    let described = |info: &Info| {
        let dtypes = info.dtypes.iter().map(|dtype| dtype.name()).collect();
        (info.full_name(), info.change, dtypes)
    };
    let of = |all: Vec<Candidate>| all.iter().map(|c| described(c.version.info())).collect();
    let passes = Pass::ALL.map(|pass| (pass.name().to_owned(), pass.candidates()));
    let packed =
        Pass::ALL.map(|pass| (format!("packed_{}", pass.name()), pass.packed_candidates()));
    let packed = packed.into_iter().filter(|(_, candidates)| !candidates.is_empty());
    let mut all: HashMap<_, Vec<_>> =
        passes.into_iter().chain(packed).map(|(name, candidates)| (name, of(candidates))).collect();
    // The parameters are f32; what is said here is of what the products are made.
    let of_mlp = mlp::versions(DeviceKind::Cuda).into_iter().map(|version| {
        let (name, change, _) = described(version.info());
        (name, change, vec![version.operand_dtype(DType::F32).name()])
    });
    all.insert("mlp".to_owned(), of_mlp.collect());
    all
}

/// Lets NVRTC be looked for in these directories (`nvidia` of site-packages), too.
#[pyfunction]
fn look_for_nvrtc_in(directories: Vec<PathBuf>) {
    lab_device::toolkit::take_python_packages(directories);
}

/// Lets compiled kernels be looked for in this directory first.
#[pyfunction]
fn look_for_images_in(directory: PathBuf) {
    lab_device::cache::take_images(directory);
}

/// The tool `lab` with these arguments; `command` begins another Python process that calls this. Gives back the exit
/// code.
#[pyfunction]
fn run_lab(py: Python<'_>, command: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| ::lab::main_within(command, arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("KernelError", module.py().get_type::<KernelError>())?;
    module.add_class::<Plan>()?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan_in_two_parts, module)?)?;
    module.add_function(wrap_pyfunction!(plan_lstm, module)?)?;
    module.add_function(wrap_pyfunction!(plan_mlp, module)?)?;
    module.add_function(wrap_pyfunction!(versions, module)?)?;
    module.add_function(wrap_pyfunction!(run_lab, module)?)?;
    module.add_function(wrap_pyfunction!(look_for_images_in, module)?)?;
    module.add_function(wrap_pyfunction!(look_for_nvrtc_in, module)?)
}
