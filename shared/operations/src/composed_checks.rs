//! What must hold of layers of different kinds that read each other's results.

use lab_device::{DType, Device};
use lab_families::lstm;
use lab_families::vlstm::forward_backward_reference;
use lab_harness::plan::Slot;
use lab_harness::{Binder, Binding, Plan, Problem, Tensor, Tensors};

use crate::check_data::{drawn_of, inputs, of, relative};
use crate::{
    Export, NormalizerGrad, Recurrent, RecurrentCell, RecurrentSizes, RecurrentUpstream, Saved,
    SavedRecurrent, Sizes, Vlstm,
};

const EPS: f64 = 1e-6;
const NORMALIZER_GRAD: NormalizerGrad = NormalizerGrad::Exact;

/// Types, and bounds on the relative error of what a layer makes of what the one before it has left.
const TYPES: [(DType, f64); 2] = [(DType::F32, 1.5e-6), (DType::BF16, 8e-3)];

const SIZES: Sizes = Sizes { batch: 1, heads: 2, positions: 37, keys: 16, values: 32 };

/// The LSTM reads h \[B, NH, S, DHHV\] as B NH steps of S rows, of DHHV columns.
const OF_LSTM: RecurrentSizes = RecurrentSizes {
    steps: SIZES.batch * SIZES.heads,
    batch: SIZES.positions,
    heads: 1,
    units: 24,
    columns: SIZES.values,
};

/// Two layers of the vLSTM, with the same q, k and gates, and an LSTM behind them.
struct Layers {
    vlstm: [Vlstm; 2],
    lstm: Recurrent,
}

/// What the forward pass has left for the backward pass.
struct SavedLayers {
    vlstm: [Saved; 2],
    lstm: SavedRecurrent,
}

/// Everything that goes in, with the LSTM's parameters and its dy.
fn drawn_layers(dtype: DType) -> Tensors {
    let RecurrentSizes { steps, batch, units, columns, .. } = OF_LSTM;
    let dims = lstm::sizes([batch, steps, columns, units]);
    let mut all = lstm::inputs(&Problem::new(dims, dtype));
    all.retain(|name, _| name != "x" && !name.ends_with('0') || name.ends_with("_l0"));
    all.extend(drawn_of(SIZES, dtype));
    all
}

/// Adds the forward passes; what the last one computes.
fn add_forward(plan: &mut Plan, dtype: DType, all: &Tensors) -> (Layers, SavedLayers, Slot) {
    let [q, k, v, i, f] = inputs(plan, all, ["q", "k", "v", "i", "f"]);
    let names = RecurrentCell::Lstm.parameters();
    let parameters = inputs(plan, all, [names[0], names[1], names[2], names[3]]);
    let layer = |v| Vlstm {
        normalizer_grad: NORMALIZER_GRAD,
        eps: EPS,
        ..Vlstm::new(dtype, SIZES, [q, k, v], [i, f])
    };
    let first = layer(v);
    let (of_first, saved_first) =
        plan.within("layers.0", |plan| first.add_forward_saving(plan)).unwrap();
    let second = layer(of_first.h);
    let (of_second, saved_second) =
        plan.within("layers.1", |plan| second.add_forward_saving(plan)).unwrap();
    let lstm = Recurrent {
        cell: RecurrentCell::Lstm,
        dtype,
        sizes: OF_LSTM,
        x: of_second.h,
        parameters,
        state: None,
        versions: [None; 2],
    };
    let (of_lstm, saved_lstm) =
        plan.within("layers.2", |plan| lstm.add_forward_saving(plan)).unwrap();
    let layers = Layers { vlstm: [first, second], lstm };
    let saved = SavedLayers { vlstm: [saved_first, saved_second], lstm: saved_lstm };
    (layers, saved, of_lstm.y)
}

/// Adds the backward passes, from an input dy; gradients by name.
fn add_backward(
    plan: &mut Plan,
    all: &Tensors,
    layers: &Layers,
    saved: &SavedLayers,
) -> Vec<(String, Slot)> {
    let [dy] = inputs(plan, all, ["dy"]);
    let dtype = layers.lstm.dtype;
    let of_parameters = RecurrentCell::Lstm.parameters().iter().map(|name| {
        let name = format!("d{name}");
        let slot = plan.scratch(dtype, all[&name[1..]].len());
        (name, slot)
    });
    let of_parameters: Vec<(String, Slot)> = of_parameters.collect();
    let into: Vec<Slot> = of_parameters.iter().map(|(_, slot)| *slot).collect();
    let from = RecurrentUpstream { dy, state: None };
    let by_lstm = |plan: &mut Plan| layers.lstm.add_backward(plan, &saved.lstm, from, &into);
    let dx = plan.within("layers.2", by_lstm).unwrap().x;
    let mut add = |n: usize, dh| {
        let name = format!("layers.{n}");
        plan.within(&name, |plan| layers.vlstm[n].add_backward(plan, &saved.vlstm[n], dh)).unwrap()
    };
    let second = add(1, dx);
    let first = add(0, second.v);
    let named = [
        ("dx", dx),
        ("dh1", second.v),
        ("second dq", second.q),
        ("second di", second.i),
        ("dq", first.q),
        ("dk", first.k),
        ("dv", first.v),
        ("di", first.i),
        ("df", first.f),
    ];
    let named = named.map(|(name, slot)| (name.to_owned(), slot));
    named.into_iter().chain(of_parameters).collect()
}

/// y and all gradients in f64: each layer of what the one before it has left in this run, or, back, the one behind it. Of the reference's
/// own values the errors of all layers would add up, and no bound would hold one of them.
fn expected_results(dtype: DType, all: &Tensors, run: &Left) -> Vec<(String, Vec<f64>)> {
    let left = |name: &str, like: &str| Tensor { shape: all[like].shape.clone(), ..run.read(name) };
    let with = |changes: &[(&str, &Tensor)]| {
        let mut all = all.clone();
        all.extend(changes.iter().map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone())));
        all
    };
    let [h1, h2, dh2, dh1] = ["h1", "h2", "dx", "dh1"].map(|name| left(name, "v"));
    let RecurrentSizes { steps, batch, units, columns, .. } = OF_LSTM;
    let x = Tensor { shape: vec![steps, batch, columns], ..h2 };
    let zeros = Tensor::rounded(dtype, &[1, batch, units], &vec![0.0; batch * units]);
    let of_lstm = lstm::reference(&with(&[
        ("x", &x),
        ("h0", &zeros),
        ("c0", &zeros),
        ("dhn", &zeros),
        ("dcn", &zeros),
    ]));
    let second = with(&[("v", &h1), ("dh", &dh2)]);
    let second = forward_backward_reference(&second, EPS, NORMALIZER_GRAD);
    let first = forward_backward_reference(&with(&[("dh", &dh1)]), EPS, NORMALIZER_GRAD);
    let own = |all: &[(&'static str, Vec<f64>)], before: &str, names: &[&str]| {
        names.iter().map(|name| (format!("{before}{name}"), of(all, name))).collect::<Vec<_>>()
    };
    let parameters = ["dweight_ih_l0", "dweight_hh_l0", "dbias_ih_l0", "dbias_hh_l0"];
    let mut results = own(&of_lstm, "", &["y", "dx"]);
    results.extend(own(&of_lstm, "", &parameters));
    results.extend(own(&second, "second ", &["dq", "di"]));
    results.extend(own(&first, "", &["dq", "dk", "dv", "di", "df"]));
    let between = [("h1", of(&first, "h")), ("h2", of(&second, "h")), ("dh1", of(&second, "dv"))];
    results.extend(between.map(|(name, values)| (name.to_owned(), values)));
    results
}

/// What a run of all layers has left, by name.
struct Left<'a> {
    run: &'a Binding,
    found: &'a [(String, Slot)],
}

impl Left<'_> {
    fn read(&self, name: &str) -> Tensor {
        let (_, slot) = self.found.iter().find(|(own, _)| own == name).unwrap();
        self.run.read(*slot).unwrap()
    }
}

/// Forward and backward, twice: what the first run leaves must not matter to the second.
pub(crate) fn layers_of_one_plan_are_right(device: &Device) {
    for (dtype, bound) in TYPES {
        let all = drawn_layers(dtype);
        let (mut run, found) = in_one_plan(device, dtype, &all);
        for turn in 0..2 {
            run.run().unwrap();
            let expected = expected_results(dtype, &all, &Left { run: &run, found: &found });
            assert_eq!(found.len(), expected.len());
            for (name, slot) in &found {
                let (_, expected) = expected.iter().find(|(own, _)| own == name).unwrap();
                let error = relative(&run.read(*slot).unwrap(), expected);
                assert!(error <= bound, "{dtype}, run {turn}, {name}: {error}");
            }
        }
    }
}

/// The plan with its memory, and y and the gradients by name.
fn in_one_plan(device: &Device, dtype: DType, all: &Tensors) -> (Binding, Vec<(String, Slot)>) {
    let mut plan = Plan::new(device);
    let (layers, saved, y) = add_forward(&mut plan, dtype, all);
    let mut found = add_backward(&mut plan, all, &layers, &saved);
    let named = [("y", y), ("h1", layers.vlstm[1].v), ("h2", layers.lstm.x)];
    found.extend(named.map(|(name, slot)| (name.to_owned(), slot)));
    found.iter().for_each(|(_, slot)| plan.keep(*slot));
    assert!(plan.peak_bytes() < plan.bytes(), "layers share memory");
    (plan.bind().upload_inputs(all).unwrap().finish().unwrap(), found)
}

/// What another plan takes of the layers.
struct ExportedLayers {
    vlstm: [Export; 2],
    lstm: Export,
}

impl SavedLayers {
    fn export(&self, plan: &mut Plan) -> ExportedLayers {
        let vlstm = self.vlstm.each_ref().map(|saved| saved.export(plan).unwrap());
        ExportedLayers { vlstm, lstm: self.lstm.export(plan).unwrap() }
    }

    fn import(layers: &Layers, plan: &mut Plan, exports: &ExportedLayers) -> Self {
        let vlstm = [0, 1].map(|n| {
            let import = |plan: &mut Plan| layers.vlstm[n].import(plan, &exports.vlstm[n]);
            plan.within(&format!("layers.{n}"), import).unwrap()
        });
        let import = |plan: &mut Plan| layers.lstm.import(plan, &exports.lstm);
        Self { vlstm, lstm: plan.within("layers.2", import).unwrap() }
    }

    fn share<'a>(
        &self,
        mut binder: Binder<'a>,
        exports: &ExportedLayers,
        forward: &Binding,
    ) -> Binder<'a> {
        for (saved, export) in self.vlstm.iter().zip(&exports.vlstm) {
            binder = saved.share(binder, export, forward).unwrap();
        }
        self.lstm.share(binder, &exports.lstm, forward).unwrap()
    }
}

/// A plan of the forward passes, and one of the backward passes that runs twice behind the first run of the other, and once behind the
/// second: the same bits as in one plan, and what is saved stays as it is.
pub(crate) fn layers_of_two_plans_are_right(device: &Device) {
    for (dtype, bound) in TYPES {
        let all = drawn_layers(dtype);
        let (mut whole, of_one) = in_one_plan(device, dtype, &all);
        whole.run().unwrap();
        let left = Left { run: &whole, found: &of_one };
        let expected = expected_results(dtype, &all, &left);

        let mut forward = Plan::new(device);
        let (layers, saved, y) = add_forward(&mut forward, dtype, &all);
        forward.keep(y);
        let exports = saved.export(&mut forward);
        let mut backward = Plan::new(device);
        let imported = SavedLayers::import(&layers, &mut backward, &exports);
        let of_two = add_backward(&mut backward, &all, &layers, &imported);
        of_two.iter().for_each(|(_, slot)| backward.keep(*slot));
        let mut forward = forward.bind().upload_inputs(&all).unwrap().finish().unwrap();
        let binder = imported.share(backward.bind(), &exports, &forward);
        let mut backward = binder.upload_inputs(&all).unwrap().finish().unwrap();
        let tensors = exports.vlstm.iter().chain([&exports.lstm]).flat_map(|e| &e.tensors);
        let kept: Vec<Slot> = tensors.map(|tensor| tensor.slot).collect();
        for turn in 0..2 {
            forward.run().unwrap();
            let of_numbers = |slot: &Slot| forward.read(*slot).ok().map(|tensor| tensor.bytes);
            let before: Vec<_> = kept.iter().map(of_numbers).collect();
            for _ in turn..2 {
                backward.run().unwrap();
            }
            assert!(kept.iter().map(of_numbers).eq(before), "{dtype}: what is saved, run {turn}");
            let found = of_two.iter().map(|(name, slot)| (name, backward.read(*slot).unwrap()));
            for (name, found) in found.chain([(&"y".to_owned(), forward.read(y).unwrap())]) {
                let same = found.bytes == left.read(name).bytes;
                assert!(same, "{dtype}, run {turn}, {name}: other bits than in one plan");
                let (_, expected) = expected.iter().find(|(own, _)| own == name).unwrap();
                let error = relative(&found, expected);
                assert!(error <= bound, "{dtype}, run {turn}, {name}: {error}");
            }
        }
    }
}
