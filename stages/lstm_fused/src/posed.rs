//! Random runs of networks with any options, and how far a result is from the f64 reference.

use lab_device::DType;
use lab_harness::{Dims, Problem, Tensor, Tensors, distance_beside};
use lab_reference::lstm::{Cell, Inputs, Network, Upstream};

use crate::Way;

/// A network and the data that it gets.
#[derive(Clone, Debug)]
pub(crate) struct Posed {
    pub(crate) way: Way,
    pub(crate) network: Network,
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    /// Steps of each row; all of them where there are none.
    pub(crate) lengths: Option<Vec<usize>>,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
}

impl Posed {
    /// In f32, or what comes nearest to it of that way's types.
    pub(crate) fn new(way: Way, network: Network, steps: usize, batch: usize) -> Self {
        let dtype = if way.on_tensor_cores() { DType::F16 } else { DType::F32 };
        Self { way, network, steps, batch, lengths: None, dtype, seed: 0 }
    }

    /// All tensors that [`crate::Lstm`] reads. Weights as wide as those of [`lab_families::lstm`].
    pub(crate) fn tensors(&self) -> Tensors {
        let Self { network, steps, batch, dtype, seed, .. } = self;
        let problem = Problem { seed: *seed, ..Problem::new(Dims::default(), *dtype) };
        let mut stream = 0;
        let mut normal = |shape: &[usize], scale: f64| {
            stream += 1;
            let raw = problem.normal_around(0.0, DType::F64, stream, shape).values();
            let values: Vec<f64> = raw.into_iter().map(|v| v * scale).collect();
            Tensor::rounded(*dtype, shape, &values)
        };
        let mut all = Tensors::new();
        for parameter in network.parameters() {
            let scale = match parameter.shape[..] {
                [_, columns] => 1.0 / ((columns + network.hidden) as f64).sqrt(),
                [_, _, _, columns] => 1.0 / (columns as f64).sqrt(),
                _ => 0.5,
            };
            all.insert(parameter.name, normal(&parameter.shape, scale));
        }
        let directions = network.directions();
        let states = [network.layers * directions, *batch, network.hidden];
        let y = [*steps, *batch, network.hidden * directions];
        for (name, shape, scale) in [
            ("x", &[*steps, *batch, network.inputs], 1.0),
            ("h0", &states, 0.5),
            ("c0", &states, 0.5),
            ("dy", &y, 1.0),
            ("dhn", &states, 1.0),
            ("dcn", &states, 1.0),
        ] {
            if network.cell != Cell::Lstm && ["c0", "dcn"].contains(&name) {
                continue;
            }
            all.insert(name.to_owned(), normal(shape, scale));
        }
        if let Some(lengths) = &self.lengths {
            let values: Vec<i64> = lengths.iter().map(|&n| n as i64).collect();
            all.insert("lengths".to_owned(), Tensor::new(&[*batch], &values));
        }
        all
    }

    /// What must come of these tensors, in f64. Those that may be left out are zero then.
    pub(crate) fn reference(&self, tensors: &Tensors) -> Vec<(String, Vec<f64>)> {
        let network = &self.network;
        let values = |name: &str| tensors.get(name).map(Tensor::values);
        let parameter = |name: String| {
            let values = values(&name).expect("of each parameter");
            (name, values)
        };
        let parameters = network.parameters().into_iter().map(|p| parameter(p.name)).collect();
        let x = values("x").expect("x");
        let [h0, c0, dy, dhn, dcn] = ["h0", "c0", "dy", "dhn", "dcn"].map(values);
        let inputs = Inputs {
            h0: h0.as_deref(),
            c0: c0.as_deref(),
            lengths: self.lengths.as_deref(),
            ..Inputs::new(self.batch, &x)
        };
        let upstream = Upstream { dy: dy.as_deref(), dhn: dhn.as_deref(), dcn: dcn.as_deref() };
        let out = network.forward(&parameters, inputs);
        let back = network.backward(&parameters, inputs, upstream);
        let named = [
            ("y", out.y),
            ("hn", out.hn),
            ("cn", out.cn),
            ("dx", back.dx),
            ("dh0", back.dh0),
            ("dc0", back.dc0),
        ];
        let mut all: Vec<_> = named.map(|(name, values)| (name.to_owned(), values)).into();
        if network.cell != Cell::Lstm {
            all.retain(|(name, _)| !["cn", "dc0"].contains(&name.as_str()));
        }
        all.extend(back.parameters);
        all
    }
}

/// How far each output is from what is expected: see [`lab_harness::distance()`].
///
/// A gradient of few numbers may be a sum of much that cancels. With a `floor` each number of a gradient
/// counts as at least that part of those of the largest gradient, by their root mean squares.
pub(crate) fn errors(
    outputs: &Tensors,
    expected: &[(String, Vec<f64>)],
    floor: f64,
) -> Vec<(String, f64)> {
    assert_eq!(outputs.len(), expected.len(), "an output for each that is expected");
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let gradients = expected.iter().filter(|(name, _)| name.starts_with('d'));
    let largest = gradients.map(|(_, e)| norm(e) / (e.len() as f64).sqrt()).fold(0.0, f64::max);
    let of = |(name, expected): &(String, Vec<f64>)| {
        let got = outputs[name].values();
        let least = if name.starts_with('d') { floor * largest } else { 0.0 };
        (name.clone(), distance_beside(&got, expected, least))
    };
    expected.iter().map(of).collect()
}
