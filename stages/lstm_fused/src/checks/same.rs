//! Against runs of the same kernels on other data, in other parts or in another order.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::request::shapes_of;
use lab_harness::suite::{each, orders};
use lab_harness::{Prepared, Tensor, Tensors, Version};
use lab_reference::lstm::Network;

use super::{
    assert_near, bound, dtypes, run, stack, stack_of, stacks, taken_by, way_of, with_norm,
};
use crate::posed::Posed;
use crate::{Lstm, Pass, Way};

/// The elements of a row of the batch, of a tensor whose second index it is.
fn of_row(tensor: &Tensor, row: usize) -> Tensor {
    let [outer, batch, columns] = tensor.shape[..] else { panic!("three indices") };
    let values = tensor.values();
    let own = |n: usize| &values[(n * batch + row) * columns..][..columns];
    let all: Vec<f64> = (0..outer).flat_map(own).copied().collect();
    Tensor::rounded(tensor.dtype, &[outer, 1, columns], &all)
}

/// What has a row for each of the batch.
const OF_ROWS: [&str; 6] = ["y", "hn", "cn", "dx", "dh0", "dc0"];

pub(super) fn nan_stays_in_its_row(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    for network in stacks(way) {
        let posed = Posed::new(way, network, 5, 3);
        let clean = posed.tensors();
        let before = run(device, &posed, &clean);
        let places = [("x", 1), ("h0", 7), ("c0", 7), ("dy", 12), ("dhn", 6)];
        each(device, &places, |&(name, at)| {
            let tensor = clean.get(name)?;
            let mut values = tensor.values();
            values[at] = f64::NAN;
            let mut tensors = clean.clone();
            tensors.insert(name.into(), Tensor::rounded(posed.dtype, &tensor.shape, &values));
            let after = run(device, &posed, &tensors);
            let hit = at / tensor.shape[2] % 3;
            for row in 0..3 {
                let of = |out: &Tensors, name: &str| out.get(name).map(|t| of_row(t, row));
                let same = OF_ROWS.map(|out| of(&before, out) == of(&after, out));
                let is_nan = |t: Tensor| t.values().iter().any(|v| v.is_nan());
                let nan = OF_ROWS.map(|out| of(&after, out).is_some_and(is_nan));
                assert_eq!(same.contains(&false), row == hit, "{network:?} {name}: row {row}");
                assert_eq!(nan.contains(&true), row == hit, "{network:?} {name}: row {row}");
            }
            None::<()>
        });
    }
}

/// A row alone gives the same as among others, bit for bit.
pub(super) fn rows_do_not_meet(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let lengths = if way.on_tensor_cores() { [5, 2, 0, 4] } else { [9, 3, 0, 7] };
    for network in stacks(way) {
        let posed =
            Posed { lengths: Some(lengths.into()), ..Posed::new(way, network, lengths[0], 4) };
        let tensors = posed.tensors();
        let together = run(device, &posed, &tensors);
        for (row, length) in lengths.into_iter().enumerate() {
            let mut own = tensors.clone();
            for name in ["x", "h0", "c0", "dy", "dhn", "dcn"] {
                if let Some(tensor) = tensors.get(name) {
                    own.insert(name.into(), of_row(tensor, row));
                }
            }
            own.insert("lengths".into(), Tensor::new(&[1], &[length as i64]));
            let alone = run(device, &posed, &own);
            for name in OF_ROWS {
                let among = together.get(name).map(|t| of_row(t, row));
                assert_eq!(alone.get(name), among.as_ref(), "{network:?} {name} of row {row}");
            }
        }
    }
}

/// Step by step, each from the hn and cn of the one before: what a stream of data needs. In halves cn is rounded.
pub(super) fn a_sequence_in_parts_is_the_same(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let network = Network { layers: 2, peephole: true, ..Network::lstm(3, 6) };
    let parts = with_norm(way, taken_by(way, network)).into_iter().flat_map(|n| [(n, 1), (n, 3)]);
    for (network, part) in parts {
        let lstm = Lstm::by(way, network).unwrap();
        let posed = Posed::new(way, network, 7, 2);
        let tensors = posed.tensors();
        let whole = lstm.run(device, &tensors, Pass::Forward).unwrap();
        let mut own = tensors.clone();
        let (x, mut y) = (tensors["x"].values(), Vec::new());
        for x in x.chunks(part * 2 * network.inputs) {
            let shape = [x.len() / 2 / network.inputs, 2, network.inputs];
            own.insert("x".into(), Tensor::rounded(posed.dtype, &shape, x));
            let out = lstm.run(device, &own, Pass::Forward).unwrap();
            y.extend(out["y"].values());
            own.insert("h0".into(), out["hn"].clone());
            own.insert("c0".into(), out["cn"].clone());
        }
        if way.on_tensor_cores() {
            let expected = whole["y"].values();
            let error = lab_harness::distance(&y, &expected);
            assert!(error <= bound(posed.dtype), "parts of {part}: {error:.2e} apart");
            continue;
        }
        assert_eq!(y, whole["y"].values(), "parts of {part}");
        assert_eq!((&own["h0"], &own["c0"]), (&whole["hn"], &whole["cn"]), "parts of {part}");
    }
}

/// Which keeps c of two steps only.
pub(super) fn the_forward_pass_alone_is_the_same(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let of_both = |network| [(network, None), (network, Some([6, 0, 3]))];
    let all: Vec<_> = with_norm(way, stack_of(way)).into_iter().flat_map(of_both).collect();
    each(device, &all, |&(network, lengths)| {
        let posed = Posed { lengths: lengths.map(Vec::from), ..Posed::new(way, network, 6, 3) };
        let tensors = posed.tensors();
        let both = run(device, &posed, &tensors);
        let forward = Lstm::by(way, posed.network).unwrap().run(device, &tensors, Pass::Forward);
        let forward = forward.unwrap();
        assert_eq!(forward.len(), 3);
        for (name, tensor) in forward {
            assert_eq!(tensor, both[&name], "{name}");
        }
        None::<()>
    });
}

/// Of several layers, whose gates take each other's place.
pub(super) fn gates_computed_again_are_right(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    // Tiles that end within a row of gates, and begin within one.
    let wide = Network { layers: 2, bias: false, ..Network::lstm(35, 37) };
    // The launch that does so is the same for all ways.
    let dtypes = if way == Way::Cell { dtypes(way) } else { &dtypes(way)[..1] };
    let mut all = vec![(taken_by(way, wide), 3, 12)];
    all.extend((!way.on_tensor_cores()).then_some((stack(), 6, 3)));
    for (network, steps, batch) in all {
        for &dtype in dtypes {
            let ragged = dtype == dtypes[0];
            let lengths = ragged.then(|| (0..batch).map(|row| row * 2 % (steps + 1)).collect());
            let posed = Posed { dtype, lengths, ..Posed::new(way, network, steps, batch) };
            let tensors = posed.tensors();
            let lstm = Lstm::by(way, network).unwrap();
            let kept = lstm.run(device, &tensors, Pass::ForwardBackward).unwrap();
            let lstm = lstm.recompute().unwrap();
            let again = lstm.run(device, &tensors, Pass::ForwardBackward).unwrap();
            assert_near(&posed, &tensors, &again);
            for name in ["y", "hn", "cn"] {
                assert_eq!(again[name], kept[name], "{name}");
            }
            // The last layer's are still there.
            for suffix in ["", "_reverse"].iter().take(network.directions()) {
                let name = format!("dweight_hh_l{}{suffix}", network.layers - 1);
                assert_eq!(again[&name], kept[&name], "{name}");
            }
        }
    }
}

/// All buffers of a run, as [`Lstm::bytes`] has them; on a GPU that has no room for the clusters, those
/// of [`Way::Grid`].
pub(super) fn bytes_are_as_counted(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    for network in [Network::lstm(3, 40), Network { bias: false, ..stack() }, stack()] {
        let network = taken_by(way, network);
        let wide = if way.on_tensor_cores() { DType::F16 } else { DType::F64 };
        for dtype in [wide, DType::BF16] {
            let posed = Posed { dtype, ..Posed::new(way, network, 7, 3) };
            let tensors = posed.tensors();
            let lstm = |way: Way, again: bool| {
                let plain = Lstm::by(way, network).unwrap();
                if again { plain.recompute().unwrap() } else { plain }
            };
            let allocated = |way: Way, again: bool| {
                let shapes = shapes_of(&tensors);
                let plan = lstm(way, again).plan(device, &shapes, Pass::ForwardBackward);
                plan.unwrap().bytes()
            };
            let [kept, again] = [false, true].map(|again| {
                let (bytes, counted) = (allocated(way, again), lstm(way, again).bytes(dtype, 7, 3));
                let on_gpu = device.kind() == DeviceKind::Cuda;
                let fits = match way {
                    Way::Grid | Way::TensorGrid => bytes > counted,
                    Way::Cluster if on_gpu && bytes != counted => {
                        bytes == allocated(Way::Grid, again)
                    }
                    _ => bytes == counted,
                };
                assert!(fits, "{network:?} {dtype}: {bytes} bytes, not {counted}");
                bytes
            });
            // Four numbers a unit of each layer but one.
            let arithmetic = if dtype == DType::F64 { 8 } else { 4 };
            let units = (network.layers - 1) * network.directions() * network.hidden;
            assert_eq!(kept - again, 4 * arithmetic * units * 7 * 3);
        }
    }
}

/// Bit for bit, and at a second launch, too.
pub(super) fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let bidirectional = !way.on_tensor_cores();
    let network = Network { bidirectional, peephole: true, ..Network::lstm(35, 37) };
    for network in with_norm(way, taken_by(way, network)) {
        let posed = Posed::new(way, network, 4, 5);
        let tensors = posed.tensors();
        let first = run(device, &posed, &tensors);
        for device in orders(device) {
            let lstm = Lstm::by(way, network).unwrap();
            let mut prepared = lstm.prepare(&device, &tensors, Pass::ForwardBackward).unwrap();
            for _ in 0..2 {
                prepared.launch().unwrap();
                assert_eq!(prepared.outputs().unwrap(), first, "on {}", device.name());
                prepared.poison_outputs().unwrap();
            }
        }
    }
}
