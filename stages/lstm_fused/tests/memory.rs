//! The table of the README that sets the memory of a training step by its formulas beside what a plan allocates.
#![allow(missing_docs)]

use lab_device::{DType, Device, Mode};
use lab_harness::request::{Shape, Shapes};
use lstm_fused::{Lstm, Network, Pass, Way};

/// A column of the table.
struct Run {
    title: &'static str,
    way: Way,
    dtype: DType,
    network: Network,
    steps: usize,
    batch: usize,
    recomputes: bool,
}

fn runs() -> [Run; 4] {
    let many = Run {
        title: "`v6_wgmma_back`, bf16",
        way: Way::TensorGroupsBack,
        dtype: DType::BF16,
        network: Network::lstm(512, 512),
        steps: 512,
        batch: 64,
        recomputes: false,
    };
    let deep = Network { layers: 3, ..many.network };
    [
        Run {
            title: "`v2_cluster`, f32",
            way: Way::Cluster,
            dtype: DType::F32,
            network: Network::lstm(256, 256),
            steps: 1024,
            batch: 1,
            recomputes: false,
        },
        Run { title: "the same, three layers", network: deep, ..many },
        Run { title: "the same, recomputed", network: deep, recomputes: true, ..many },
        many,
    ]
}

impl Run {
    fn lstm(&self) -> Lstm {
        let plain = Lstm::by(self.way, self.network).unwrap();
        if self.recomputes { plain.recompute().unwrap() } else { plain }
    }

    fn shapes(&self) -> Shapes {
        let Self { network, steps, batch, dtype, .. } = self;
        let state = [network.layers * network.directions(), *batch, network.hidden];
        let y = [*steps, *batch, network.hidden * network.directions()];
        let data = [("x", [*steps, *batch, network.inputs]), ("dy", y)];
        let states = ["h0", "c0", "dhn", "dcn"].map(|name| (name, state));
        let all =
            data.into_iter().chain(states).map(|(name, sizes)| (name.to_owned(), sizes.to_vec()));
        let all = all.chain(network.parameters().into_iter().map(|p| (p.name, p.shape)));
        all.map(|(name, sizes)| (name, Shape { dtype: *dtype, sizes })).collect()
    }

    /// The rows of [`FORMULAS`] in bytes.
    fn pieces(&self) -> [usize; 7] {
        let Self { network, steps, batch, dtype, way, .. } = self;
        let Network { inputs, hidden, layers, .. } = *network;
        let rows = steps * batch;
        let of_all = layers * network.directions();
        let of_gates = if self.recomputes { network.directions() } else { of_all };
        let parameters: usize =
            network.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum();
        let (e, m) = (dtype.size(), dtype.size().max(4));
        [
            2 * e * rows * inputs,
            2 * e * of_all * rows * hidden,
            8 * e * of_all * batch * hidden,
            2 * e * parameters,
            m * of_all * rows * hidden,
            4 * m * of_gates * rows * hidden,
            if *way == Way::TensorGroupsBack { 4 * e * of_all * rows * hidden } else { 0 },
        ]
    }
}

const FORMULAS: [(&str, &str); 7] = [
    ("x, dx", "2 e T B I"),
    ("y of each layer, and its gradient", "2 e L D T B H"),
    ("h0, c0, hn, cn, and their gradients", "8 e L D B H"),
    ("parameters and theirs", "2 e P"),
    ("c of all steps", "m L D T B H"),
    ("gates of all steps, later da", "4 m L D T B H; recomputed: 4 m D T B H"),
    ("on tensor cores: what x adds to the gates", "4 e L D T B H"),
];

fn kilobytes(bytes: usize) -> String {
    let text = format!("{:.1}", bytes as f64 / 1e3);
    let (whole, rest) = text.split_once('.').unwrap();
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped}.{rest}")
}

fn table(device: &Device) -> String {
    let [first, deep, again, many] = runs();
    let runs = [first, many, deep, again];
    let mut lines = vec![
        format!("| kB | formula | {} |", runs.each_ref().map(|run| run.title).join(" | ")),
        "|---|---|--:|--:|--:|--:|".to_owned(),
    ];
    let pieces = runs.each_ref().map(Run::pieces);
    let row = |name: &str, formula: &str, bytes: [usize; 4]| {
        format!("| {name} | {formula} | {} |", bytes.map(kilobytes).join(" | "))
    };
    for (n, (name, formula)) in FORMULAS.into_iter().enumerate() {
        lines.push(row(name, formula, pieces.map(|all| all[n])));
    }
    let counted = runs.each_ref().map(|run| run.lstm().bytes(run.dtype, run.steps, run.batch));
    let sums = pieces.map(|all| all.iter().sum::<usize>());
    let rest = [0, 1, 2, 3].map(|n| counted[n] - sums[n]);
    lines.push(row("lengths, sums of a step, flags", "", rest));
    lines.push(row("**`Lstm::bytes`**", "the sum", counted));
    let plans = runs
        .each_ref()
        .map(|run| run.lstm().plan(device, &run.shapes(), Pass::ForwardBackward).unwrap());
    let allocated = plans.each_ref().map(|plan| plan.bytes());
    // To the byte: what is left over is no gap.
    assert_eq!(allocated, counted);
    lines.push(row("**the plan**, each piece by itself", "`Plan::bytes`", allocated));
    let peaks = plans.each_ref().map(|plan| plan.peak_bytes());
    lines.push(row("**at most at once**", "`Plan::peak_bytes`", peaks));
    lines.join("\n")
}

#[test]
fn the_readme_has_the_memory_that_plans_have() {
    let table = table(&Device::emulator_in(Mode::Plain).unwrap());
    let readme = include_str!("../README.md");
    assert!(readme.contains(&table), "the README's table of memory should be\n{table}");
}
