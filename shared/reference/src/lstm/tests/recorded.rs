//! The outputs of PyTorch: `recorded/lstm.py` says of what.

use super::*;
use crate::testing::Recorded;

/// Those of the script, by the names of its cases.
fn networks() -> Vec<(String, Network)> {
    let (lstm, gru) = (Network::lstm(3, 4), Network::gru(3, 4));
    let norm = Some(1e-5);
    let mut all = vec![
        ("lstm.peephole".to_owned(), Network { peephole: true, ..lstm }),
        ("lstm.layer_norm".to_owned(), Network { layer_norm: norm, ..lstm }),
        ("lstm.both".to_owned(), Network { peephole: true, layer_norm: norm, ..lstm }),
    ];
    for (kind, network) in [("lstm", lstm), ("gru", gru)] {
        let cases = [
            ("plain", network),
            ("no_bias", Network { bias: false, ..network }),
            ("stack", Network { layers: 2, bidirectional: true, ..network }),
            ("packed", Network { bidirectional: true, ..network }),
            ("packed_stack", Network { layers: 2, ..network }),
            ("dropout", Network { layers: 3, ..network }),
        ];
        all.extend(cases.map(|(name, network)| (format!("{kind}.{name}"), network)));
    }
    all
}

#[test]
fn equals_pytorch() {
    let file = Recorded::open("lstm.safetensors");
    let names = file.names();
    assert_eq!(names.iter().filter(|name| name.ends_with(".x")).count(), networks().len());
    for (case, network) in networks() {
        let full = |name: &str| format!("{case}.{name}");
        let has = |name: &str| names.contains(&full(name));
        let values = |name: &str| file.values(&full(name));
        let shape = file.shape(&full("x"));
        assert_eq!(shape[2], network.inputs);
        let is_lstm = network.cell == Cell::Lstm;
        let known: Tensors =
            network.parameters().into_iter().map(|p| (p.name.clone(), values(&p.name))).collect();
        for p in network.parameters() {
            assert_eq!(file.shape(&full(&p.name)), p.shape, "{case}.{}", p.name);
        }
        let lengths = has("lengths")
            .then(|| values("lengths").into_iter().map(|n| n as usize).collect::<Vec<_>>());
        let [x, h0, dy, dhn] = ["x", "h0", "dy", "dhn"].map(values);
        let c0 = is_lstm.then(|| values("c0"));
        let dcn = is_lstm.then(|| values("dcn"));
        let dropout = has("dropout").then(|| values("dropout"));
        let inputs = Inputs {
            batch: shape[1],
            x: &x,
            h0: Some(&h0),
            c0: c0.as_deref(),
            lengths: lengths.as_deref(),
            dropout: dropout.as_deref(),
        };
        let out = network.forward(&known, inputs);
        file.assert_equal(&out.y, &full("y"));
        file.assert_equal(&out.hn, &full("hn"));
        let d = Upstream { dy: Some(&dy), dhn: Some(&dhn), dcn: dcn.as_deref() };
        let gradients = network.backward(&known, inputs, d);
        if is_lstm {
            file.assert_equal(&out.cn, &full("cn"));
        }
        // Every gradient that there is in the file, and no other.
        let mut compared = vec![full("dy"), full("dhn")];
        compared.extend(is_lstm.then(|| full("dcn")));
        for (name, got) in gradients.by_name() {
            let name = full(&format!("d{name}"));
            file.assert_equal(got, &name);
            compared.push(name);
        }
        let of_case = names.iter().filter(|name| {
            name.strip_prefix(&case).is_some_and(|n| n.starts_with(".d") && n != ".dropout")
        });
        let mut of_case: Vec<_> = of_case.cloned().collect();
        compared.sort();
        of_case.sort();
        assert_eq!(compared, of_case);
    }
}
