//! What is no run, and what the message says.

use lab_device::{DType, Device};
use lab_harness::{Error, Tensor, Tensors, Version};
use lab_reference::lstm::{Cell, Network};

use super::normed;
use crate::kernels::V4_PRODUCT;
use crate::posed::Posed;
use crate::{Lstm, Pass, Way};

pub(super) fn what_does_not_fit_is_refused(device: &Device) {
    let network = Network { layers: 2, ..Network::lstm(3, 4) };
    let all = Posed::new(Way::Cell, network, 5, 2).tensors();
    let lstm = Lstm::new(network).unwrap();
    let refused = |tensors: &Tensors, said: &str| {
        let error = lstm.run(device, tensors, Pass::ForwardBackward).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    };
    for (name, shape, said) in [
        ("x", &[5, 6][..], "shape [T, B, I], got f32 [5, 6]"),
        ("x", &[5, 2, 4], "I=3, the network's inputs, got f32 [5, 2, 4]"),
        ("x", &[0, 2, 3], "at least one step and one row"),
        ("weight_ih_l0", &[16, 4], "[16, 3], got f32 [16, 4]"),
        ("weight_ih_l1", &[16, 3], "[16, 4], got f32 [16, 3]"),
        ("bias_hh_l1", &[4], "[16], got f32 [4]"),
        ("h0", &[1, 2, 4], "[2, 2, 4], got f32 [1, 2, 4]"),
        ("c0", &[2, 3, 4], "[2, 2, 4], got f32 [2, 3, 4]"),
        ("dy", &[5, 2, 3], "[5, 2, 4], got f32 [5, 2, 3]"),
        ("dhn", &[2, 2], "[2, 2, 4], got f32 [2, 2]"),
        ("dcn", &[2, 2, 5], "[2, 2, 4], got f32 [2, 2, 5]"),
    ] {
        let mut wrong = all.clone();
        wrong.insert(name.into(), Tensor::new(shape, &vec![1f32; shape.iter().product()]));
        refused(&wrong, &format!("tensor '{name}': expected {said}"));
    }
    for (name, tensor, said) in [
        ("x", Tensor::new(&[5, 2, 3], &[1i32; 30]), "f32, f64, f16 or bf16, got i32"),
        ("h0", Tensor::new(&[2, 2, 4], &[1f64; 16]), "f32 as 'x', got f64"),
        ("lengths", Tensor::new(&[2], &[5f32, 5.0]), "i64, got f32"),
        ("lengths", Tensor::new(&[3], &[5i64; 3]), "[2], one a row, got i64 [3]"),
        ("lengths", Tensor::new(&[2], &[5i64, 6]), "0 to 5, the steps of 'x', got 6 of row 1"),
        ("lengths", Tensor::new(&[2], &[-1i64, 5]), "0 to 5, the steps of 'x', got -1 of row 0"),
    ] {
        let mut wrong = all.clone();
        wrong.insert(name.into(), tensor);
        refused(&wrong, &format!("tensor '{name}': expected {said}"));
    }
    for name in ["x", "weight_hh_l1", "bias_ih_l0"] {
        let mut wrong = all.clone();
        wrong.remove(name);
        refused(&wrong, &format!("tensor '{name}': expected a tensor"));
    }
    let new = |network| Lstm::new(network).unwrap_err();
    for (hidden, way) in [(1, Way::Sequence), (256, Way::Sequence), (257, Way::Cell)] {
        let lstm = Lstm::new(normed(Network { hidden, ..network })).unwrap();
        assert_eq!(lstm.way(), way, "{hidden} units with layer norm");
    }
    for way in [Way::Cluster, Way::Grid] {
        let said = "layer_norm: expected none in a GRU, or where a row's units are spread over blocks, \
                    got 0.00001";
        assert_eq!(Lstm::by(way, normed(network)).unwrap_err().to_string(), said);
    }
    let wide = Network { hidden: 257, ..network };
    let said = "hidden: expected 1 to 256 in a launch for all steps, got 257";
    for network in [wide, normed(wide)] {
        assert_eq!(Lstm::by(Way::Sequence, network).unwrap_err().to_string(), said);
    }
    assert_eq!(Lstm::new(wide).unwrap().way(), Way::Cluster);
    let wider = Network { hidden: 769, ..network };
    for way in [Way::Cluster, Way::Grid] {
        let said = "hidden: expected 1 to 768 in a launch for all steps, got 769";
        assert_eq!(Lstm::by(way, wider).unwrap_err().to_string(), said);
    }
    assert_eq!(Lstm::new(wider).unwrap().way(), Way::Cell);
    let of_rows = |hidden, dtype, batch| {
        let network = Network { hidden, ..network };
        Lstm::of_rows(network, device, dtype, batch).unwrap().way()
    };
    let tensor_cores =
        if V4_PRODUCT.runs_on(&device.facts().arch) { Way::TensorGroupsBack } else { Way::Cluster };
    assert_eq!(of_rows(256, DType::BF16, 8), tensor_cores);
    assert_eq!(of_rows(768, DType::F16, 1), tensor_cores);
    assert_eq!(of_rows(256, DType::BF16, 7), Way::Cluster);
    assert_eq!(of_rows(256, DType::F32, 8), Way::Cluster);
    assert_eq!(of_rows(64, DType::BF16, 8), Way::Sequence);
    let on_grid = if tensor_cores == Way::Cluster { Way::Cell } else { Way::TensorGrid };
    assert_eq!(of_rows(769, DType::BF16, 1), on_grid);
    assert_eq!(of_rows(769, DType::F32, 8), Way::Cell);
    assert_eq!(of_rows(1025, DType::BF16, 8), Way::Cell);
    let slstm_of_rows = |hidden, dtype| {
        let network = Network::slstm(3, hidden, 2);
        Lstm::of_rows(network, device, dtype, 1).unwrap().way()
    };
    let by_heads = slstm_fused::HEADS.sources();
    let has_heads = by_heads.iter().all(|source| source.runs_on(&device.facts().arch));
    let by_heads = if has_heads { Way::Tensor } else { Way::Cell };
    assert_eq!(slstm_of_rows(512, DType::BF16), by_heads);
    assert_eq!(slstm_of_rows(514, DType::F16), Way::Cell);
    assert_eq!(slstm_of_rows(8, DType::F32), Way::Cell);
    for way in Way::ALL.into_iter().filter(|way| way.on_tensor_cores()) {
        let most = if way == Way::TensorGrid { 1024 } else { 768 };
        let wider = Network { hidden: most + 1, ..network };
        let (said, got) = ("in a launch for all steps", most + 1);
        let said = format!("hidden: expected 1 to {most} {said}, got {got}");
        assert_eq!(Lstm::by(way, wider).unwrap_err().to_string(), said);
        let said = "peephole: expected false on tensor cores, got true";
        let seeing = Network { peephole: true, ..network };
        assert_eq!(Lstm::by(way, seeing).unwrap_err().to_string(), said);
        let posed = Posed { dtype: DType::F32, ..Posed::new(way, network, 5, 2) };
        let error = Lstm::by(way, network).unwrap().run(device, &posed.tensors(), Pass::Forward);
        assert_eq!(
            error.unwrap_err().to_string(),
            "dtype: expected f16 or bf16 on tensor cores, got f32"
        );
    }
    let gru = Network::gru(3, 4);
    let said = "cell: expected Lstm in a launch for all steps, got Gru";
    assert_eq!(Lstm::by(Way::Sequence, gru).unwrap_err().to_string(), said);
    assert_eq!(Lstm::new(gru).unwrap().way(), Way::Cell);
    for network in [gru, normed(network)] {
        let said = "recompute: expected false, but in an LSTM without layer norm, got true";
        let error = Lstm::new(network).unwrap().recompute().unwrap_err();
        assert_eq!(error.to_string(), said);
    }
    for (network, said) in [
        (Network { layers: 0, ..network }, "layers: expected 1 to 1024, got 0"),
        (Network { inputs: 0, ..network }, "inputs: expected 1 to 1048576, got 0"),
        (Network { hidden: 1 << 20, ..network }, "hidden: expected 1 to 32768, got 1048576"),
        (
            Network { cell: Cell::Gru, peephole: true, ..network },
            "peephole: expected false in a GRU, which has no c, got true",
        ),
        (
            Network { layer_norm: Some(-1.0), ..network },
            "layer_norm: expected none, or a number that is not negative, got -1",
        ),
        (
            Network { cell: Cell::Gru, ..normed(network) },
            "layer_norm: expected none in a GRU, or where a row's units are spread over blocks, got \
             0.00001",
        ),
    ] {
        let error = new(network);
        assert!(matches!(error, Error::Bad { .. }));
        assert_eq!(error.to_string(), said);
    }
}
