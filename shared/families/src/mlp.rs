//! The family of the language model of one word: N training steps of B pairs of tokens each. What all
//! its versions share: tensors, reference, cost, checks of what goes in; sizes and error bounds are a
//! version's own.
//!
//! tokens, targets \[N, B\] and the parameters emb \[V, E\], w1 \[H, E\], b1 \[H\], w2 \[V, H\], b2 \[V\] → the
//! mean loss of each step, `loss` \[N\], and the parameters behind the last. A step moves them down the
//! gradient: p − lr dp. The equations are those of [`lab_reference::mlp`].
//!
//! A parameter moves little in a step, so that one that has not moved is nearly right. Therefore what a
//! parameter has moved by is an output of its own, `emb_change` and so on, in f64.

use lab_device::DType;
use lab_reference::mlp::{Parameters, Sizes, Terms};

use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitude, Magnitudes, Options, Problem,
    Reference, Setting, Tensor, Tensors,
};

/// The family.
pub static FAMILY: Mlp = Mlp;

/// Training steps of the language model.
#[derive(Debug)]
pub struct Mlp;

impl Family for Mlp {
    fn name(&self) -> &'static str {
        "mlp"
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        inputs(problem)
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        reference(inputs, options.number(info, LEARNING_RATE.name))
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        reference: &Reference,
    ) -> Magnitudes {
        magnitudes(inputs, options.number(info, LEARNING_RATE.name), reference, 1.0)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        cost(dims, dtype)
    }
}

/// What the rounding errors of a parameter and of its move are relative to: the terms of all gradients that move it
/// ([`Sizes::gradient_terms`]), and the parameter, which is rounded in each of N steps, at random: √N. It is in units of the roundings of products'
/// factors; of sums and parameters, which may be of another type, so large a `share` as their unit roundoff is of that.
pub fn magnitudes(inputs: &Tensors, lr: f64, reference: &Reference, share: f64) -> Magnitudes {
    let mut all: Option<[Parameters; 2]> = None;
    for_each_step(inputs, lr, |sizes, p, [tokens, targets], _| {
        let Terms { sums, factors } = sizes.gradient_terms(p, tokens, targets);
        match &mut all {
            None => all = Some([sums, factors]),
            Some(all) => add_all(all, &[sums, factors]),
        }
    });
    let [sums, factors] = all.expect("a training step");
    // A sum of B terms of one sign, one after the other, is off by 0.3 √B units of itself on average, and by four times that now and
    // then; a term has some 6 units of its own.
    let [steps, pairs] = inputs["tokens"].shape[..] else { panic!("two indices") };
    let of_sums = share * (1.0 + (pairs as f64).sqrt() / 8.0);
    let of_moves = share * (steps as f64).sqrt();
    let of = |at: usize| {
        let name = Parameters::NAMES[at];
        let parameter = &reference.iter().find(|r| r.0 == name).expect("an output").1;
        let terms = sums.all()[at].iter().zip(factors.all()[at]).zip(parameter);
        let of = |((sum, factors), p): ((&f64, &f64), &f64)| {
            let factors = if ["w2", "b2"].contains(&name) { *factors } else { factors.sqrt() };
            lr.abs() * (of_sums * sum + factors) + of_moves * p.abs()
        };
        Magnitude::Each(terms.map(of).collect())
    };
    let both = (0..5).flat_map(|at| [(OUTPUTS[1 + at], of(at)), (OUTPUTS[6 + at], of(at))]);
    both.collect()
}

fn add_all(all: &mut [Parameters; 2], new: &[Parameters; 2]) {
    for (all, new) in all.iter_mut().zip(new) {
        for (all, new) in all.all_mut().into_iter().zip(new.all()) {
            all.iter_mut().zip(new).for_each(|(all, new)| *all += new);
        }
    }
}

/// What goes in.
pub const INPUTS: &[Input] = &[
    Input::new("tokens", &["N", "B"]).always(DType::I64),
    Input::new("targets", &["N", "B"]).always(DType::I64),
    Input::new("emb", &["V", "E"]),
    Input::new("w1", &["H", "E"]),
    Input::new("b1", &["H"]),
    Input::new("w2", &["V", "H"]),
    Input::new("b2", &["V"]),
];

/// What comes out.
pub const OUTPUTS: [&str; 11] = [
    "loss",
    "emb",
    "w1",
    "b1",
    "w2",
    "b2",
    "emb_change",
    "w1_change",
    "b1_change",
    "w2_change",
    "b2_change",
];

/// The learning rate.
pub const LEARNING_RATE: Setting =
    Setting::number("lr", "learning rate: a parameter moves by −lr times its gradient", "0.1");

/// The sizes of N, B, V, E and H: of the small problem, of the timed one, the largest.
pub const fn dims([n, b, v, e, h]: [[usize; 3]; 5]) -> [Dim; 5] {
    [
        Dim::new("N", "training steps", n),
        Dim::new("B", "pairs of a step", b),
        Dim::new("V", "tokens of the vocabulary", v),
        Dim::new("E", "columns of an embedding", e),
        Dim::new("H", "hidden units", h),
    ]
}

/// As sizes of a problem.
pub fn sizes([n, b, v, e, h]: [usize; 5]) -> Dims {
    Dims::new([("N", n), ("B", b), ("V", v), ("E", e), ("H", h)])
}

/// N, B, V, E and H.
pub fn sizes_of(dims: &Dims) -> [usize; 5] {
    ["N", "B", "V", "E", "H"].map(|name| dims.get(name))
}

/// Parameters are normal, as wide as keeps x, h and z near 1. Of more pairs a step the embeddings are
/// smaller and w1 is larger, so that the mean gradient moves them by more than a rounding. Ids come as
/// words do, the n-th a n-th as often as the first (Zipf's law).
pub fn inputs(problem: &Problem) -> Tensors {
    let [n, b, v, e, h] = sizes_of(&problem.dims);
    let normal = |stream, shape: &[usize]| problem.normal_around(0.0, DType::F64, stream, shape);
    let scaled = |stream, shape: &[usize], scale: f64| {
        let values: Vec<f64> = normal(stream, shape).values().iter().map(|v| v * scale).collect();
        Tensor::rounded(problem.dtype, shape, &values)
    };
    let ids = |stream| {
        let raw = normal(stream, &[n, b]).values();
        let id = |value: f64| {
            // The normal distribution, about: uniform from 0 to 1.
            let rank = 0.5 + 0.5 * (0.7979 * (value + 0.0447 * value.powi(3))).tanh();
            ((v as f64).powf(rank) as i64 - 1).min(v as i64 - 1)
        };
        Tensor::new(&[n, b], &raw.into_iter().map(id).collect::<Vec<_>>())
    };
    let small = (b as f64).powf(-0.25);
    lab_harness::tensor::tensors([
        ("tokens", ids(0)),
        ("targets", ids(1)),
        ("emb", scaled(2, &[v, e], small)),
        ("w1", scaled(3, &[h, e], 1.0 / (small * (e as f64).sqrt()))),
        ("b1", scaled(4, &[h], 0.1)),
        ("w2", scaled(5, &[v, h], 1.0 / (h as f64).sqrt())),
        ("b2", scaled(6, &[v], 0.1)),
    ])
}

/// Refuses an id that is not of the vocabulary.
///
/// # Errors
/// [`Error::Tensor`] with the first such id and its place.
pub fn check_ids(inputs: &Tensors) -> Result<(), Error> {
    let vocabulary = inputs["emb"].shape[0];
    for name in ["tokens", "targets"] {
        let tensor = &inputs[name];
        let batch = tensor.shape[1];
        let fits = |id: &f64| (0.0..vocabulary as f64).contains(id);
        let values = tensor.values();
        if let Some(at) = values.iter().position(|id| !fits(id)) {
            return Err(Error::Tensor {
                name: name.to_owned(),
                expected: format!("ids from 0 to {}, the rows of 'emb'", vocabulary - 1),
                got: format!("{} of step {}, pair {}", values[at], at / batch, at % batch),
            });
        }
    }
    Ok(())
}

/// The learning rate of a run.
///
/// # Errors
/// It is not positive.
pub fn learning_rate(info: &Info, options: &Options) -> Result<f64, Error> {
    let lr = options.number(info, LEARNING_RATE.name);
    if lr > 0.0 { Ok(lr) } else { Err(Error::bad("--set lr", "a number above 0", lr)) }
}

/// All outputs in f64.
///
/// # Panics
/// The inputs have not been checked with [`lab_harness::Info::problem_of`] and [`check_ids`].
pub fn reference(inputs: &Tensors, lr: f64) -> Vec<(&'static str, Vec<f64>)> {
    let mut losses = Vec::new();
    let (before, after) = for_each_step(inputs, lr, |_, _, _, loss| losses.push(loss));
    let mut all = vec![("loss", losses)];
    let changes: Vec<Vec<f64>> = after.all().into_iter().zip(before.all()).map(change).collect();
    for (at, values) in after.all().into_iter().cloned().chain(changes).enumerate() {
        all.push((OUTPUTS[1 + at], values));
    }
    all
}

/// The parameters before the first step and behind the last. `see` gets those before each step, its pairs and its loss.
fn for_each_step(
    inputs: &Tensors,
    lr: f64,
    mut see: impl FnMut(Sizes, &Parameters, [&[usize]; 2], f64),
) -> (Parameters, Parameters) {
    let shape = |name: &str| &inputs[name].shape;
    let sizes =
        Sizes { vocabulary: shape("emb")[0], embedding: shape("emb")[1], hidden: shape("b1")[0] };
    let [emb, w1, b1, w2, b2] = Parameters::NAMES.map(|name| inputs[name].values());
    let before = Parameters { emb, w1, b1, w2, b2 };
    let mut p = before.clone();
    let ids = |name: &str| -> Vec<usize> {
        inputs[name].values().into_iter().map(|id| id as usize).collect()
    };
    let (tokens, targets, batch) = (ids("tokens"), ids("targets"), shape("tokens")[1]);
    for (tokens, targets) in tokens.chunks(batch).zip(targets.chunks(batch)) {
        let (loss, gradient) = sizes.loss_and_gradient(&p, tokens, targets);
        see(sizes, &p, [tokens, targets], loss);
        p.descend(&gradient, lr);
    }
    (before, p)
}

fn change((after, before): (&Vec<f64>, &Vec<f64>)) -> Vec<f64> {
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

/// The changes beside the parameters of a run, from those that went in.
pub fn with_changes(mut outputs: Tensors, before: &Tensors) -> Tensors {
    for name in Parameters::NAMES {
        let after = &outputs[name];
        let values = change((&after.values(), &before[name].values()));
        let tensor = Tensor::new(&after.shape, &values);
        outputs.insert(format!("{name}_change"), tensor);
    }
    outputs
}

/// Two operations for each weight of both layers and each pair, and twice as many on the way back; the
/// few of each element are not counted. In each step the parameters are read and written once, of the
/// embeddings those of the pairs.
pub fn cost(dims: &Dims, dtype: DType) -> Cost {
    let [n, b, v, e, h] = sizes_of(dims).map(|size| size as f64);
    let elements = 2.0 * (b.min(v) * e + h * (e + 1.0) + v * (h + 1.0));
    Cost {
        flops: n * 6.0 * b * h * (e + v),
        bytes: n * (elements * dtype.size() as f64 + 2.0 * 8.0 * b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_harness::Output;

    const INFO: Info = Info {
        stage: "s",
        name: "v",
        family: &FAMILY,
        parent: None,
        change: "",
        dtypes: &[DType::F32],
        dims: &dims([[1, 1, 99], [1, 1, 99], [1, 1, 99], [1, 1, 99], [1, 1, 99]]),
        settings: &[LEARNING_RATE],
        inputs: INPUTS,
        outputs: &[Output { name: "loss", bounds: &[], elements: &[] }],
    };

    fn posed() -> (Dims, Tensors) {
        let problem = Problem::new(sizes([3, 4, 9, 2, 5]), DType::F32);
        let all = inputs(&problem);
        (problem.dims, all)
    }

    #[test]
    fn the_tensors_pose_the_problem_and_have_an_output_each() {
        let (dims, all) = posed();
        assert_eq!(INFO.problem_of(&all).unwrap(), (dims, DType::F32));
        check_ids(&all).unwrap();
        let out = reference(&all, 0.1);
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), OUTPUTS);
        assert_eq!(out[0].1.len(), 3);
        for at in 0..5 {
            let name = OUTPUTS[1 + at];
            let moved: Vec<f64> = all[name].values();
            let moved: Vec<f64> = moved.iter().zip(&out[6 + at].1).map(|(p, d)| p + d).collect();
            for (got, expected) in moved.iter().zip(&out[1 + at].1) {
                assert!((got - expected).abs() <= 1e-15, "{name}");
            }
            // What goes in as it comes out has not moved.
            let changes = with_changes(all.clone(), &all);
            assert!(changes[OUTPUTS[6 + at]].values().iter().all(|&d| d == 0.0));
        }
    }

    #[test]
    fn ids_that_are_not_of_the_vocabulary_are_refused() {
        for (name, at, id, said) in [
            ("tokens", 5, 9, "got 9 of step 1, pair 1"),
            ("targets", 11, -1, "got -1 of step 2, pair 3"),
        ] {
            let (_, mut all) = posed();
            let mut values: Vec<i64> = all[name].values().into_iter().map(|v| v as i64).collect();
            values[at] = id;
            all.insert(name.into(), Tensor::new(&[3, 4], &values));
            let error = check_ids(&all).unwrap_err().to_string();
            let expected = "expected ids from 0 to 8, the rows of 'emb', ";
            assert_eq!(error, format!("tensor '{name}': {expected}{said}"));
        }
    }

    #[test]
    fn the_cost_is_that_of_each_weight_of_each_pair() {
        let (dims, _) = posed();
        let cost = cost(&dims, DType::F32);
        // 12 pairs, 5 · (2 + 9) weights, forward and twice backward.
        assert_eq!(cost.flops, 12.0 * 55.0 * 2.0 * 3.0);
        // Four rows of the embeddings, all of the rest; read and written. 8 bytes an id.
        let parameters = 4.0 * 2.0 + 5.0 * 2.0 + 5.0 + 9.0 * 5.0 + 9.0;
        assert_eq!(cost.bytes, 3.0 * (2.0 * 4.0 * parameters + 64.0));
    }
}
