mod gradients;
mod properties;
mod recorded;

use super::*;
use crate::testing::noise;

/// A network with parameters and data that are like noise.
#[derive(Clone)]
struct Case {
    name: &'static str,
    network: Network,
    batch: usize,
    parameters: Tensors,
    x: Vec<f64>,
    h0: Vec<f64>,
    c0: Vec<f64>,
    dy: Vec<f64>,
    dhn: Vec<f64>,
    dcn: Vec<f64>,
    lengths: Option<Vec<usize>>,
    dropout: Option<Vec<f64>>,
}

impl Case {
    fn new(name: &'static str, network: Network, steps: usize, batch: usize) -> Self {
        let out = network.hidden * network.directions();
        let states = network.layers * batch * out;
        let of_c = if network.cell == Cell::Lstm { states } else { 0 };
        let values = |(at, p): (usize, Parameter)| {
            (p.name, noise(p.shape.iter().product(), 100 + at as u64))
        };
        Self {
            name,
            network,
            batch,
            parameters: network.parameters().into_iter().enumerate().map(values).collect(),
            x: noise(steps * batch * network.inputs, 1),
            h0: noise(states, 2),
            c0: noise(of_c, 3),
            dy: noise(steps * batch * out, 4),
            dhn: noise(states, 5),
            dcn: noise(of_c, 6),
            lengths: None,
            dropout: None,
        }
    }

    fn with_lengths(mut self, lengths: &[usize]) -> Self {
        self.lengths = Some(lengths.to_vec());
        self
    }

    /// Dropout with a probability of a quarter or about.
    fn with_dropout(mut self) -> Self {
        let len = (self.network.layers - 1) * self.dy.len();
        let mask = |v: f64| if v < -0.5 { 0.0 } else { 1.0 / 0.75 };
        self.dropout = Some(noise(len, 7).into_iter().map(mask).collect());
        self
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            batch: self.batch,
            x: &self.x,
            h0: Some(&self.h0),
            c0: (self.network.cell == Cell::Lstm).then_some(&self.c0),
            lengths: self.lengths.as_deref(),
            dropout: self.dropout.as_deref(),
        }
    }

    fn forward(&self) -> Outputs {
        self.network.forward(&self.parameters, self.inputs())
    }

    fn backward(&self) -> Gradients {
        let dcn = (self.network.cell == Cell::Lstm).then_some(self.dcn.as_slice());
        let d = Upstream { dy: Some(&self.dy), dhn: Some(&self.dhn), dcn };
        self.network.backward(&self.parameters, self.inputs(), d)
    }

    /// A tensor that goes in, by its name.
    fn tensor(&mut self, name: &str) -> &mut Vec<f64> {
        match name {
            "x" => &mut self.x,
            "h0" => &mut self.h0,
            "c0" => &mut self.c0,
            _ => self.parameters.get_mut(name).unwrap(),
        }
    }
}

impl Gradients {
    /// All of them, each under the name of what it is by.
    fn by_name(&self) -> Vec<(&str, &[f64])> {
        let parameters =
            self.parameters.iter().map(|(name, d)| (name.strip_prefix('d').unwrap(), d.as_slice()));
        [("x", &self.dx), ("h0", &self.dh0), ("c0", &self.dc0)]
            .into_iter()
            .map(|(name, d)| (name, d.as_slice()))
            .chain(parameters)
            .filter(|(_, d)| !d.is_empty())
            .collect()
    }
}

/// Each option alone, and together.
fn cases() -> Vec<Case> {
    let (lstm, gru) = (Network::lstm(3, 4), Network::gru(3, 4));
    let both = |network| Network { layers: 2, bidirectional: true, ..network };
    let norm = Some(1e-5);
    let of = |name, network| Case::new(name, network, 5, 3);
    let all = Network { peephole: true, layer_norm: norm, ..both(lstm) };
    vec![
        of("lstm", lstm),
        of("lstm without biases", Network { bias: false, ..lstm }),
        of("lstm, two layers", Network { layers: 2, ..lstm }),
        of("lstm, two directions", Network { bidirectional: true, ..lstm }),
        of("lstm, peepholes", Network { peephole: true, ..lstm }),
        of("lstm, layer norm", Network { layer_norm: norm, ..lstm }),
        of("lstm, lengths", lstm).with_lengths(&[3, 5, 1]),
        of("lstm, lengths, reverse", Network { bidirectional: true, ..lstm })
            .with_lengths(&[3, 0, 5]),
        of("lstm, dropout", Network { layers: 3, ..lstm }).with_dropout(),
        of("lstm, all", all).with_lengths(&[5, 2, 4]).with_dropout(),
        Case::new("lstm, one of each", Network::lstm(1, 1), 1, 1),
        of("gru", gru),
        of("gru without biases", Network { bias: false, ..gru }),
        of("gru, lengths", gru).with_lengths(&[3, 0, 5]),
        of("gru, dropout", Network { layers: 3, ..gru }).with_dropout(),
        of("gru, all", both(gru)).with_lengths(&[5, 2, 4]).with_dropout(),
        Case::new("gru, one of each", Network::gru(1, 1), 1, 1),
        of("slstm", Network::slstm(3, 4, 2)),
        of("slstm without biases, one head", Network { bias: false, ..Network::slstm(3, 4, 1) }),
        of("slstm, dropout", Network { layers: 3, ..Network::slstm(3, 4, 2) }).with_dropout(),
        Case::new("slstm, one of each", Network::slstm(1, 1, 1), 1, 1),
    ]
}
