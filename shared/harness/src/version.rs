//! The interface that all versions of a kernel idea share.

use lab_device::emulator::{Finding, Kind};
use lab_device::{Arithmetic, DType, Device, Kernel, KernelSource, Launch};

use crate::compare::Magnitudes;
use crate::suite::{Check, VersionCheck};
use crate::{
    Dims, Error, Family, Options, Peer, Plan, Problem, Reference, Request, Shape, Shapes, Tensors,
    Tiling,
};

/// A named size.
#[derive(Clone, Copy, Debug)]
pub struct Dim {
    /// As in `--shape`: `R`.
    pub name: &'static str,
    /// What it counts.
    pub meaning: &'static str,
    /// The size of a small problem.
    pub small: usize,
    /// The size that is timed.
    pub timed: usize,
    /// The largest.
    pub max: usize,
    /// Sizes are multiples of this.
    pub step: usize,
}

impl Dim {
    /// Any size from 1 on: that of a small problem, that which is timed, the largest.
    pub const fn new(
        name: &'static str,
        meaning: &'static str,
        [small, timed, max]: [usize; 3],
    ) -> Self {
        Self { name, meaning, small, timed, max, step: 1 }
    }

    /// The same, in multiples of `step` only.
    pub const fn in_steps_of(self, step: usize) -> Self {
        Self { step, ..self }
    }

    fn check(&self, size: usize) -> Result<(), Error> {
        let Self { step, max, .. } = *self;
        if (step..=max).contains(&size) && size.is_multiple_of(step) {
            return Ok(());
        }
        let sizes = match step {
            1 => format!("1 to {max}"),
            _ => format!("a multiple of {step} from {step} to {max}"),
        };
        Err(Error::bad(format!("dimension {}", self.name), sizes, size))
    }
}

/// A tensor that goes in.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Its name in files and in the API.
    pub name: &'static str,
    /// A dimension's name for each index, or a multiple of it: `4H`, or one more: `N+1`, and `1` for
    /// an index of that size alone. A first one that ends in `..` stands for any number of leading
    /// indices, taken together.
    pub axes: &'static [&'static str],
    /// Its type, where that is not the run's: gate pre-activations stay f32 in runs of halves.
    pub always: Option<DType>,
    /// Of such a one: other types that it may have as well.
    pub or: &'static [DType],
    /// Of one that may be left out: what it is a part of. All inputs of one such group are there, or
    /// none.
    pub group: Option<&'static str>,
}

/// A tensor that comes out. Its type is the run's, or what the version makes it.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Its name in files and in the API.
    pub name: &'static str,
    /// Bounds on the relative error ‖out − ref‖ / ‖ref‖ of the whole, by the run's type: at most four
    /// times what was observed over the suite.
    pub bounds: &'static [(DType, f64)],
    /// Bounds on what rounding leaves in each element beside its own, (|out − ref| − u |ref|) /
    /// [magnitude](crate::compare::Magnitude), by the run's type: a multiple of the
    /// [unit roundoff](mod@crate::compare::unit) of what is summed in, at most four times what was observed.
    /// A type that is not there has [so many times](crate::compare::UNSTATED) its bound of the whole.
    pub elements: &'static [(DType, f64)],
}

/// A scalar option.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// As in `--set`: `a`.
    pub name: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// Its value where none is given.
    pub default: &'static str,
    /// What it may be; a finite number where this is empty.
    pub choices: &'static [&'static str],
    /// The outputs that come only where it has the value beside them.
    pub adds: Option<(&'static str, &'static [Output])>,
}

impl Setting {
    /// A number.
    pub const fn number(name: &'static str, meaning: &'static str, default: &'static str) -> Self {
        Self { name, meaning, default, choices: &[], adds: None }
    }

    /// One of these names; the first where none is given.
    ///
    /// # Panics
    /// There are none.
    pub const fn choice(
        name: &'static str,
        meaning: &'static str,
        choices: &'static [&'static str],
    ) -> Self {
        Self { name, meaning, default: choices[0], choices, adds: None }
    }

    /// The same, and where it has this value, these outputs come too.
    pub const fn adds(self, value: &'static str, outputs: &'static [Output]) -> Self {
        Self { adds: Some((value, outputs)), ..self }
    }

    pub(crate) fn check(&self, value: &str) -> Result<(), Error> {
        let what = || format!("--set {}", self.name);
        if !self.choices.is_empty() {
            return if self.choices.contains(&value) {
                Ok(())
            } else {
                Err(Error::bad(what(), self.choices.join(" or "), format!("'{value}'")))
            };
        }
        match value.parse::<f64>() {
            Ok(v) if v.is_finite() => Ok(()),
            _ => Err(Error::bad(what(), "a finite number", format!("'{value}'"))),
        }
    }
}

/// What a version says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// The stage, which is also the crate.
    pub stage: &'static str,
    /// The version within it.
    pub name: &'static str,
    /// Versions of one family compute the same and are compared.
    pub family: &'static dyn Family,
    /// The version that it changes.
    pub parent: Option<&'static str>,
    /// The one change, or what the first of a family does.
    pub change: &'static str,
    /// The types it runs in.
    pub dtypes: &'static [DType],
    /// Its sizes.
    pub dims: &'static [Dim],
    /// Its options.
    pub settings: &'static [Setting],
    /// What goes in.
    pub inputs: &'static [Input],
    /// What comes out under all options; more may come under some: [`Setting::adds`].
    pub outputs: &'static [Output],
}

impl Info {
    /// `playg:softmax`.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.stage, self.name)
    }

    /// The small problem that the tour runs.
    pub fn small(&self) -> Dims {
        self.dims_by(|d| d.small)
    }

    /// The problem that is timed on a GPU. The first size is meant for f32 and scaled, so that
    /// every type moves the same bytes; unless it is 1, as that of a batch.
    pub fn timed(&self, dtype: DType) -> Dims {
        let mut dims = self.dims_by(|d| d.timed);
        if let Some(first) = self.dims.first()
            && first.timed > 1
        {
            dims.set(first.name, (first.timed * 4 / dtype.size()).max(1));
        }
        dims
    }

    fn dims_by(&self, size: impl Fn(&Dim) -> usize) -> Dims {
        let mut dims = Dims::default();
        self.dims.iter().for_each(|d| dims.set(d.name, size(d)));
        dims
    }

    /// Fills in what `given` leaves out and refuses what it should not hold.
    pub fn complete(&self, given: &Dims) -> Result<Dims, Error> {
        let mut dims = self.small();
        for (name, size) in given.iter() {
            let Some(dim) = self.dims.iter().find(|d| d.name == name) else {
                let known: Vec<_> = self.dims.iter().map(|d| d.name).collect();
                let what = format!("--shape of {}", self.full_name());
                return Err(Error::bad(what, known.join(", "), format!("'{name}'")));
            };
            dim.check(size)?;
            dims.set(name, size);
        }
        Ok(dims)
    }

    /// What comes out under these options.
    pub fn outputs_under(&self, options: &Options) -> Vec<&'static Output> {
        let added = self.settings.iter().filter_map(|setting| {
            let (value, outputs) = setting.adds?;
            (options.text(self, setting.name) == value).then_some(outputs)
        });
        self.outputs.iter().chain(added.flatten()).collect()
    }

    /// Whether it has an input of this name, that may be left out or not.
    pub fn takes(&self, input: &str) -> bool {
        self.inputs.iter().any(|i| i.name == input)
    }

    /// Elements of all inputs of a problem that cannot be left out, together; `None` where they cannot be
    /// counted.
    pub fn input_elements(&self, dims: &Dims) -> Option<usize> {
        self.inputs.iter().filter(|i| i.group.is_none()).try_fold(0usize, |all, input| {
            let own = input.axes.iter().try_fold(1usize, |n, axis| {
                let Axis { factor, name, more } = Axis::of(axis.trim_end_matches(".."));
                let size = if name.is_empty() { 1 } else { dims.find(name)? };
                n.checked_mul(factor.checked_mul(size)?.checked_add(more)?)
            })?;
            all.checked_add(own)
        })
    }

    /// Refuses a type that this version does not run in.
    pub fn check_dtype(&self, dtype: DType) -> Result<(), Error> {
        if self.dtypes.contains(&dtype) {
            return Ok(());
        }
        let known: Vec<_> = self.dtypes.iter().map(|d| d.name()).collect();
        Err(Error::bad(format!("dtype of {}", self.full_name()), known.join(", "), dtype))
    }

    /// The problem that these tensors pose: see [`Info::problem_of_shapes`].
    ///
    /// # Errors
    /// As there.
    pub fn problem_of(&self, tensors: &Tensors) -> Result<(Dims, DType), Error> {
        self.problem_of_shapes(&crate::request::shapes_of(tensors))
    }

    /// The problem that tensors of these shapes pose: all inputs there but for groups that are left out
    /// as a whole, of one type that this version runs in (or of their own, where they have one), with
    /// ranks and sizes that fit together. Others are not looked at, for a file may hold what other
    /// stages take; but for [`Family::given_to_some`], which would be a part of the problem.
    ///
    /// # Errors
    /// [`Error::Tensor`], which names the input that does not fit.
    pub fn problem_of_shapes(&self, tensors: &Shapes) -> Result<(Dims, DType), Error> {
        let mut dims = Dims::default();
        let mut bound_by: Vec<(&str, &str)> = Vec::new();
        let mut dtype: Option<(DType, &str)> = None;
        for input in self.family.given_to_some().iter().filter(|i| !self.takes(i.name)) {
            if let Some(tensor) = tensors.get(input.name) {
                let group = input.group.unwrap_or(input.name);
                return Err(Error::Tensor {
                    name: input.name.to_owned(),
                    expected: format!("none, for {} takes no {group}", self.full_name()),
                    got: tensor.to_string(),
                });
            }
        }
        for input in self.inputs {
            let refuse = |expected: String, got: String| Error::Tensor {
                name: input.name.to_owned(),
                expected,
                got,
            };
            let of_its_group =
                |other: &&Input| other.group == input.group && tensors.contains_key(other.name);
            let beside = input.group.map(|group| (group, self.inputs.iter().find(of_its_group)));
            let Some(tensor) = tensors.get(input.name) else {
                let as_beside = match beside {
                    Some((_, None)) => continue,
                    Some((group, Some(other))) => {
                        format!(
                            ", as '{}' is there: all of the {group} or nothing of it",
                            other.name
                        )
                    }
                    None => String::new(),
                };
                let there: Vec<_> = tensors.keys().map(String::as_str).collect();
                let there = if there.is_empty() { "none".into() } else { there.join(", ") };
                return Err(refuse(
                    format!("a tensor {:?}{as_beside}", input.axes),
                    format!("a file with {there}"),
                ));
            };
            match (input.always, dtype) {
                (Some(own), _) if own != tensor.dtype && !input.or.contains(&tensor.dtype) => {
                    let known: Vec<_> = [own].iter().chain(input.or).map(|d| d.name()).collect();
                    return Err(refuse(
                        format!("{} in runs of every type", known.join(" or ")),
                        tensor.dtype.to_string(),
                    ));
                }
                (Some(_), _) => {}
                (None, _) if !self.dtypes.contains(&tensor.dtype) => {
                    let known: Vec<_> = self.dtypes.iter().map(|d| d.name()).collect();
                    return Err(refuse(known.join(" or "), tensor.dtype.to_string()));
                }
                (None, Some((first, name))) if first != tensor.dtype => {
                    return Err(refuse(format!("{first} as '{name}'"), tensor.dtype.to_string()));
                }
                (None, _) => dtype = dtype.or(Some((tensor.dtype, input.name))),
            }
            for (axis, size) in input
                .bind(tensor)
                .ok_or_else(|| refuse(format!("shape {:?}", input.axes), tensor.to_string()))?
            {
                let whole = axis;
                let Axis { factor, name: axis, more } = Axis::of(whole);
                if axis.is_empty() && size == factor {
                    continue;
                }
                let counted = size.checked_sub(more).filter(|s| s.is_multiple_of(factor));
                let (Some(counted), false) = (counted, axis.is_empty()) else {
                    return Err(refuse(format!("shape {:?}", input.axes), tensor.to_string()));
                };
                let size = counted / factor;
                let dim = self.dims.iter().find(|d| d.name == axis).expect("axes name dimensions");
                dim.check(size).map_err(|e| refuse(format!("{e}"), tensor.to_string()))?;
                match dims.find(axis) {
                    Some(other) if other != size => {
                        let by = bound_by.iter().find(|b| b.0 == axis).map_or("", |b| b.1);
                        let expected = format!("{whole}={} as '{by}'", factor * other + more);
                        return Err(refuse(expected, tensor.to_string()));
                    }
                    _ => bound_by.push((axis, input.name)),
                }
                dims.set(axis, size);
            }
        }
        let (dtype, _) =
            dtype.ok_or_else(|| Error::bad("inputs", "a tensor of the run's type", "none"))?;
        Ok((dims, dtype))
    }
}

/// A dimension, how many times it is taken, and how many come on top: H, 4 and 0 of `4H`, N, 1 and 1 of `N+1`.
struct Axis<'a> {
    factor: usize,
    name: &'a str,
    more: usize,
}

impl<'a> Axis<'a> {
    fn of(text: &'a str) -> Self {
        let (text, more) = match text.split_once('+') {
            Some((text, more)) => (text, more.parse().expect("a number")),
            None => (text, 0),
        };
        let name = text.trim_start_matches(|c: char| c.is_ascii_digit());
        Self { factor: text[..text.len() - name.len()].parse().unwrap_or(1), name, more }
    }
}

impl Input {
    /// A tensor of the run's type.
    pub const fn new(name: &'static str, axes: &'static [&'static str]) -> Self {
        Self { name, axes, always: None, or: &[], group: None }
    }

    /// The same, of this type whatever the run's.
    pub const fn always(self, dtype: DType) -> Self {
        Self { always: Some(dtype), ..self }
    }

    /// The same, which may be of one of these types as well, whatever the run's.
    pub const fn or(self, types: &'static [DType]) -> Self {
        Self { or: types, ..self }
    }

    /// The same, which may be left out, with all other inputs of this group.
    pub const fn optional(self, group: &'static str) -> Self {
        Self { group: Some(group), ..self }
    }

    /// The sizes of the axes in a tensor of this shape; `None` where the rank does not fit.
    fn bind(&self, tensor: &Shape) -> Option<Vec<(&'static str, usize)>> {
        let shape = &tensor.sizes;
        let (leading, axes) = match self.axes.split_first() {
            Some((first, rest)) if first.ends_with("..") => {
                (Some(first.trim_end_matches('.')), rest)
            }
            _ => (None, self.axes),
        };
        let split = shape.len().checked_sub(axes.len())?;
        let mut bound: Vec<_> = axes.iter().copied().zip(shape[split..].iter().copied()).collect();
        match leading {
            Some(name) => bound.insert(0, (name, shape[..split].iter().product())),
            None if split > 0 => return None,
            None => {}
        }
        Some(bound)
    }
}

/// What must come of a version at the sizes that it names: its test shapes, the small problem and
/// the timed one.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// Every output within its bound.
    Right,
    /// An output out of its bound, because of a mistake that the version is kept for.
    Wrong(&'static Mistake),
}

impl Expected {
    /// The mistake of a version that is wrong on purpose.
    pub fn mistake(self) -> Option<&'static Mistake> {
        match self {
            Self::Right => None,
            Self::Wrong(mistake) => Some(mistake),
        }
    }
}

/// A mistake that a version is kept for, and what the emulator's checks find of it.
#[derive(Debug)]
pub struct Mistake {
    /// What is wrong, as a sentence without its full stop.
    pub because: &'static str,
    /// The kind of each finding.
    pub kind: Kind,
    /// The file of the offending accesses.
    pub source: &'static KernelSource,
    /// Pieces of text, one of which stands in the line of each offending access.
    pub lines: &'static [&'static str],
}

impl Mistake {
    /// Whether a finding is one of this mistake: its kind, at one of its lines.
    pub fn explains(&self, finding: &Finding) -> bool {
        finding.kind == self.kind
            && finding.accesses.first().is_some_and(|access| {
                self.line(&access.place).is_some_and(|l| self.lines.iter().any(|t| l.contains(t)))
            })
    }

    /// The text at a place, `file:line:column`, if that is in this mistake's file.
    fn line(&self, place: &str) -> Option<&'static str> {
        let mut parts = place.rsplitn(3, ':').skip(1);
        let number: usize = parts.next()?.parse().ok()?;
        let file = format!("stages/{}/{}", self.source.crate_name, self.source.file);
        (parts.next()? == file).then(|| self.source.source.lines().nth(number.checked_sub(1)?))?
    }
}

/// What a problem costs at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Floating-point operations that the mathematics needs.
    pub flops: f64,
    /// Bytes that must cross device memory: each input read once, each output written once.
    pub bytes: f64,
}

/// A version set up on a device: inputs uploaded, outputs allocated and poisoned.
pub trait Prepared {
    /// Runs the kernels once. On a GPU this may return before they have ended.
    fn launch(&mut self) -> Result<(), lab_device::Error>;
    /// The outputs, once all launches have ended.
    fn outputs(&self) -> Result<Tensors, Error>;
    /// Whether the launches have written all of the outputs, as far as the device looks: the emulator with its
    /// checks does.
    ///
    /// # Errors
    /// [`Error::NeverWritten`].
    fn all_written(&self) -> Result<(), Error> {
        Ok(())
    }
    /// The kernels that it launches, each with the size of its launch; none of what is no kernel of the lab.
    fn launches(&self) -> Vec<(Kernel, Launch)> {
        Vec::new()
    }
    /// The same kernels, without the sizes.
    fn kernels(&self) -> Vec<Kernel> {
        self.launches().into_iter().map(|(kernel, _)| kernel).collect()
    }
    /// Bytes of device memory that a run takes beyond its inputs: outputs and scratch; `None` of what does not count them.
    fn bytes_beyond_inputs(&self) -> Option<u64> {
        None
    }
    /// Makes every output NaN again, so that a later launch that writes nothing shows. What is updated in place
    /// stays: the next launch reads it.
    fn poison_outputs(&mut self) -> Result<(), Error>;
}

/// Fills an output.
pub type HostWork = Box<dyn FnMut(&mut [f32])>;

/// The counterpart of a version on the host's cores.
pub struct Host {
    /// Computes the output `out`.
    pub work: HostWork,
    /// Where to.
    pub out: Vec<f32>,
}

impl Host {
    /// Runs it once.
    pub fn run(&mut self) {
        (self.work)(&mut self.out);
    }
}

/// One kernel idea. What it shares with the other versions of its family is the family's own.
pub trait Version: Sync {
    /// What it says of itself.
    fn info(&self) -> &Info;
    /// Random inputs for a problem: the family's.
    fn inputs(&self, problem: &Problem) -> Tensors {
        self.info().family.draw_inputs(self.info(), problem)
    }
    /// The outputs in f64, by name: the family's.
    fn reference(&self, inputs: &Tensors, options: &Options) -> Vec<(&'static str, Vec<f64>)> {
        self.info().family.reference(self.info(), inputs, options)
    }
    /// What the rounding errors of each element are relative to, beside that reference: the family's.
    fn magnitudes(&self, inputs: &Tensors, options: &Options, reference: &Reference) -> Magnitudes {
        self.info().family.magnitudes(self.info(), inputs, options, reference)
    }
    /// What it costs at least: the family's.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        self.info().family.cost(dims, dtype)
    }
    /// Whether its time is told as that of a replayed graph as well: by default as the family's.
    fn replayed(&self) -> bool {
        self.info().family.replayed()
    }
    /// What must come of it under these options.
    fn expected(&self, _options: &Options) -> Expected {
        Expected::Right
    }
    /// Problems that every dtype must get right (or wrong, where that is expected): one row,
    /// ragged, several tiles, large.
    fn test_shapes(&self) -> Vec<Dims>;
    /// The same on the host's cores, in f32, to be timed beside the GPU; where that is a fair
    /// comparison.
    fn cpu(&self, _inputs: &Tensors) -> Option<Host> {
        None
    }
    /// The units that it computes with in this type, whose peak is its roofline: by default the
    /// fastest that keep what the inputs hold.
    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        Arithmetic::fastest_for(dtype)
    }
    /// The problems that `lab bench` times in this type, the smallest first: by default the family's.
    /// More than one make a plot over the size.
    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        self.info().family.bench_shapes(self.info(), dtype)
    }
    /// The kernel files that it launches from; none where that is not told, which stands for all
    /// of its stage.
    fn sources(&self) -> Vec<&'static KernelSource> {
        Vec::new()
    }
    /// Its slots, under the names of the family's tensors, and its launches.
    ///
    /// # Errors
    /// A shape or option that passed the checks of [`Info`] and does not suit this version; what the
    /// device says of its kernels; with a tiling, also those of [`Device::instantiate`].
    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error>;
    /// The tile parameters that `lab tune` tries at these sizes and in this type, the one in use
    /// first; none where there is nothing to choose. Not all need compile or fit the GPU.
    fn tilings(&self, _dims: &Dims, _dtype: DType) -> Vec<Tiling> {
        Vec::new()
    }
    /// Plans it for these inputs, uploads them, and binds the plan to them.
    ///
    /// # Errors
    /// Those of [`Request::new`], [`Version::plan`] and [`Binder::finish`](crate::Binder::finish).
    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let request = Request::of(self.info(), inputs, options)?;
        let plan = self.plan(device, &request)?;
        Ok(Box::new(plan.bind().upload_inputs(inputs)?.finish()?))
    }
    /// As [`Version::prepare`], with one of [`Version::tilings`].
    ///
    /// # Errors
    /// As there; also that it has none.
    fn prepare_tiled(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
        tiling: &Tiling,
    ) -> Result<Box<dyn Prepared>, Error> {
        let request = Request::of(self.info(), inputs, options)?.with_tiling(tiling);
        if self.tilings(&request.dims, request.dtype).is_empty() {
            let what = format!("tiling of {}", self.info().full_name());
            return Err(Error::bad(what, "none: it has no tile parameters", tiling));
        }
        let plan = self.plan(device, &request)?;
        Ok(Box::new(plan.bind().upload_inputs(inputs)?.finish()?))
    }
}

/// Checks the inputs, sets the version up, runs it once, and brings the outputs back, which must be written
/// whole.
pub fn run(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    options: &Options,
) -> Result<Tensors, Error> {
    let mut prepared = version.prepare(device, inputs, options)?;
    prepared.launch()?;
    prepared.all_written()?;
    prepared.outputs()
}

/// What [`Stage::load_all`] has loaded.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// Files that this device is too old for.
    pub skipped: Vec<&'static KernelSource>,
}

/// A stage: its versions and their kernels.
pub struct Stage {
    /// The crate's name.
    pub name: &'static str,
    /// What it teaches, in a line.
    pub teaches: &'static str,
    /// Its versions, in the order of the story.
    pub versions: &'static [&'static dyn Version],
    /// Its kernel files.
    pub kernels: &'static [&'static KernelSource],
    /// What must hold of each version beside its error bounds and the checks of its family.
    pub version_checks: &'static [VersionCheck],
    /// What else must hold.
    pub checks: &'static [Check],
    /// What a user would take in place of these kernels.
    pub peers: &'static [&'static dyn Peer],
}

impl Stage {
    /// What a stage need not have: `Stage { name: …, ..Stage::EMPTY }`.
    pub const EMPTY: Self = Self {
        name: "",
        teaches: "",
        versions: &[],
        kernels: &[],
        version_checks: &[],
        checks: &[],
        peers: &[],
    };

    /// What must hold of a version beside its error bounds: the checks of its family, and the stage's.
    pub fn checks_of(&self, version: &dyn Version) -> Vec<VersionCheck> {
        let family = version.info().family.checks().iter();
        let all = family.chain(self.version_checks).copied();
        all.filter(|check| check.concerns(version)).collect()
    }

    /// Every instantiation of a kernel file on `device`, compiled: finds what does not load. Files
    /// that need a newer GPU are left out and named.
    ///
    /// # Errors
    /// The first that does not load.
    pub fn load_all(&self, device: &Device) -> Result<Loaded, Error> {
        let arch = &device.facts().arch;
        device.compile_missing(self.kernels)?;
        let mut loaded = Loaded::default();
        for source in self.kernels {
            if !source.runs_on(arch) {
                loaded.skipped.push(source);
                continue;
            }
            for name in source.instantiations {
                loaded.kernels.push(device.kernel(source, name)?);
            }
        }
        Ok(loaded)
    }

    /// The peers of a family.
    pub fn peers_of(&self, family: &str) -> impl Iterator<Item = &'static dyn Peer> {
        self.peers.iter().copied().filter(move |p| p.info().family == family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[derive(Debug)]
    struct Nothing;

    impl Family for Nothing {
        fn name(&self) -> &'static str {
            "f"
        }
        fn draw_inputs(&self, _: &Info, _: &Problem) -> Tensors {
            Tensors::new()
        }
        fn reference(&self, _: &Info, _: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
            Vec::new()
        }
        fn cost(&self, _: &Dims, _: DType) -> Cost {
            Cost { flops: 0.0, bytes: 0.0 }
        }
    }

    const INFO: Info = Info {
        stage: "s",
        name: "v",
        family: &Nothing,
        parent: None,
        change: "",
        dtypes: &[DType::F32],
        dims: &[Dim::new("H", "units", [2, 2, 9]), Dim::new("I", "columns", [2, 2, 9])],
        settings: &[],
        inputs: &[Input::new("w", &["4H", "I"]), Input::new("h", &["1", "H"])],
        outputs: &[],
    };

    #[test]
    fn an_axis_may_be_a_multiple_of_a_dimension_or_a_number() {
        let of = |w: &[usize], h: &[usize]| {
            let tensor = |shape: &[usize]| Tensor::new(shape, &vec![0f32; shape.iter().product()]);
            let all = [("w".to_owned(), tensor(w)), ("h".to_owned(), tensor(h))].into();
            INFO.problem_of(&all).map(|p| p.0).map_err(|e| e.to_string())
        };
        assert_eq!(of(&[12, 5], &[1, 3]).unwrap(), Dims::new([("H", 3), ("I", 5)]));
        let said = |name: &str, said: &str| Err(format!("tensor '{name}': expected {said}"));
        assert_eq!(of(&[13, 5], &[1, 3]), said("w", "shape [\"4H\", \"I\"], got f32 [13, 5]"));
        assert_eq!(of(&[12, 5], &[1, 4]), said("h", "H=3 as 'w', got f32 [1, 4]"));
        assert_eq!(of(&[12, 5], &[2, 3]), said("h", "shape [\"1\", \"H\"], got f32 [2, 3]"));
        let all = "dimension H: expected 1 to 9, got 10, got f32 [40, 5]";
        assert_eq!(of(&[40, 5], &[1, 3]), said("w", all));
    }
}
