//! What a version says of itself: its sizes, tensors and options, and what of them it accepts.

use lab_device::DType;

use crate::{Dims, Error, Family, Options, Shape, Shapes, Tensors};

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
    /// Whether it is a gradient of something that comes out: it is there when the forward pass has ended, and the backward pass
    /// begins with it.
    pub is_upstream: bool,
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

    /// The names of the gradients from above: what the backward pass begins with.
    pub fn upstream(&self) -> Vec<&'static str> {
        self.inputs.iter().filter(|input| input.is_upstream).map(|input| input.name).collect()
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
        Self { name, axes, always: None, or: &[], group: None, is_upstream: false }
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

    /// The same, which is the gradient of something that comes out.
    pub const fn from_above(self) -> Self {
        Self { is_upstream: true, ..self }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Problem, Tensor};

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
