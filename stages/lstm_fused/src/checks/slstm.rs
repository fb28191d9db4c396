//! Networks of sLSTMs: their steps are `slstm_fused`'s, whose checks hold them against the reference with any state.

use lab_device::{DType, Device};
use lab_harness::{Error, Tensor, Tensors};
use lab_reference::lstm::Network;

use super::bound;
use crate::posed::{Posed, errors};
use crate::{Lstm, Pass, Way};

/// Each way, in each type.
fn cases() -> [Posed; 5] {
    let of = |way, dtype, layers, network: Network| Posed {
        dtype,
        ..Posed::new(way, Network { layers, ..network }, 6, 3)
    };
    [
        of(Way::Cell, DType::F32, 3, Network::slstm(5, 12, 3)),
        of(Way::Cell, DType::F16, 2, Network::slstm(1, 6, 1)),
        // Few columns of x in the second layer.
        of(Way::Cell, DType::BF16, 2, Network { bias: false, ..Network::slstm(35, 2, 2) }),
        of(Way::Tensor, DType::F16, 2, Network::slstm(3, 24, 2)),
        of(Way::Tensor, DType::BF16, 1, Network { bias: false, ..Network::slstm(40, 70, 1) }),
    ]
}

/// What is bounded of a network of several layers, each of which reads the errors of the one before.
fn bound_of(posed: &Posed) -> f64 {
    bound(posed.dtype) * posed.network.layers as f64
}

/// Without a memory before the first step: the reference has none.
pub(super) fn networks_of_slstms_are_right(device: &Device) {
    for posed in cases() {
        let tensors = posed.tensors();
        let mut out = super::run(device, &posed, &tensors);
        for name in ["cn", "nn", "mn", "dc0", "dn0"] {
            out.remove(name).expect("an output of an sLSTM");
        }
        for (name, error) in errors(&out, &posed.reference(&tensors), 0.1) {
            assert!(error <= bound_of(&posed), "{posed:?}: {name}: error {error:.2e}");
        }
    }
}

/// The first steps of tensors \[T, …\], and the rest.
fn cut(all: &Tensors, at: usize) -> [Tensors; 2] {
    let of = |first: bool| {
        let mut own = all.clone();
        for name in ["x", "dy"] {
            let (tensor, values) = (&all[name], all[name].values());
            let (steps, middle) = (tensor.shape[0], at * values.len() / tensor.shape[0]);
            let (values, steps) =
                if first { (&values[..middle], at) } else { (&values[middle..], steps - at) };
            let shape = [&[steps], &tensor.shape[1..]].concat();
            own.insert(name.into(), Tensor::rounded(tensor.dtype, &shape, values));
        }
        own
    };
    [of(true), of(false)]
}

/// Forward to the bit, from the states that the first part leaves; back as near as all gradients are, from those that the
/// second part leaves.
pub(super) fn an_slstm_goes_on_from_its_states(device: &Device) {
    for posed in cases() {
        let tensors = posed.tensors();
        let [mut first, mut rest] = cut(&tensors, 2);
        let lstm = Lstm::by(posed.way, posed.network).unwrap();
        let whole = super::run(device, &posed, &tensors);
        let out = lstm.run(device, &first, Pass::Forward).unwrap();
        assert_eq!(out.len(), 5);
        for of in ["h", "c", "n", "m"] {
            rest.insert(format!("{of}0"), out[&format!("{of}n")].clone());
        }
        let mut late = super::run(device, &posed, &rest);
        let y = [out["y"].values(), late["y"].values()].concat();
        assert!(y == whole["y"].values(), "{posed:?}: y");
        for name in ["hn", "cn", "nn", "mn"] {
            assert!(late[name] == whole[name], "{posed:?}: {name}");
        }
        for of in ["h", "c", "n"] {
            first.insert(format!("d{of}n"), late.remove(&format!("d{of}0")).unwrap());
        }
        let early = super::run(device, &posed, &first);
        let dx = [early["dx"].values(), late["dx"].values()].concat();
        let expected: Vec<(String, Vec<f64>)> =
            ["dh0", "dc0", "dn0"].map(|name| (name.to_owned(), whole[name].values())).into();
        let own = |name: &str| (name.to_owned(), early[name].clone());
        let mut found: Tensors = ["dh0", "dc0", "dn0"].map(own).into();
        found.insert("dx".into(), Tensor::new(&[dx.len()], &dx));
        let expected = [expected, vec![("dx".into(), whole["dx"].values())]].concat();
        for (name, error) in errors(&found, &expected, 0.1) {
            assert!(error <= 2.0 * bound_of(&posed), "{posed:?}: {name}: error {error:.2e}");
        }
    }
}

pub(super) fn what_no_slstm_has_is_refused(device: &Device) {
    let network = Network::slstm(3, 8, 2);
    let heads = |hidden, heads| Network::slstm(3, hidden, heads);
    for (way, network, said) in [
        (Way::Sequence, network, "way: expected cell or tensor in an sLSTM, got sequence"),
        (Way::Cell, heads(8, 3), "heads: expected a divisor of 8, the units of a layer, got 3"),
        (Way::Cell, heads(8, 0), "heads: expected a divisor of 8, the units of a layer, got 0"),
        (Way::Cell, heads(512, 512), "heads: expected 1 to 256, got 512"),
        (
            Way::Tensor,
            heads(1028, 4),
            "hidden: expected at most 256 in each of 4 heads by tensor, got 1028",
        ),
        (
            Way::Cell,
            Network { bidirectional: true, ..network },
            "bidirectional: expected false in an sLSTM, whose kernels go from the first step to the last, got true",
        ),
        (
            Way::Cell,
            Network { peephole: true, ..network },
            "peephole: expected false in an sLSTM, got true",
        ),
        (Way::Cell, super::normed(network), "layer_norm: expected none in an sLSTM, got 0.00001"),
    ] {
        assert_eq!(Lstm::by(way, network).unwrap_err().to_string(), said);
    }
    let said = "recompute: expected false, but in an LSTM without layer norm, got true";
    let error = Lstm::new(network).unwrap().recompute().unwrap_err();
    assert_eq!(error.to_string(), said);

    let posed = Posed::new(Way::Cell, network, 2, 2);
    let refused = |way, posed: &Posed, more: &[(&str, Tensor)], said: &str| {
        let mut tensors = posed.tensors();
        tensors.extend(more.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())));
        let error: Error =
            Lstm::by(way, network).unwrap().run(device, &tensors, Pass::Forward).unwrap_err();
        assert_eq!(error.to_string(), said);
    };
    let state = |dtype| Tensor::rounded(dtype, &[1, 2, 8], &[1.0; 16]);
    refused(
        Way::Cell,
        &posed,
        &[("lengths", Tensor::new(&[2], &[2i64, 1]))],
        "tensor 'lengths': expected none in an sLSTM, whose rows have all steps, got i64 [2]",
    );
    refused(
        Way::Cell,
        &posed,
        &[("c0", state(DType::F32)), ("m0", state(DType::F32))],
        "tensor 'n0': expected a tensor [1, 2, 8], got none",
    );
    let half = Posed { dtype: DType::F16, ..posed.clone() };
    refused(
        Way::Cell,
        &half,
        &[("c0", state(DType::F16))],
        "tensor 'c0': expected f32 in runs of every type, got f16",
    );
    let double = Posed { dtype: DType::F64, ..posed.clone() };
    refused(Way::Cell, &double, &[], "dtype: expected f32, f16 or bf16 in an sLSTM, got f64");
    refused(Way::Tensor, &posed, &[], "dtype: expected f16 or bf16 on tensor cores, got f32");
}
