//! Training on the host in f64, by [`lab_reference`]: what the device is held against.

use lab_reference::lstm::{Inputs, Tensors, Upstream};
use lab_reference::training::{
    Adam, AdamState, Sgd, clip_factor, cross_entropy, global_norm, mean_squared_error,
};
use lab_training::Configuration;

use super::{Config, Data, Head, Model, Optimizer};

/// A training, with no regard to speed.
pub(crate) struct Reference<'a> {
    pub(crate) model: Model,
    pub(crate) config: Config,
    pub(crate) data: &'a Data,
    pub(crate) starts: &'a [usize],
    pub(crate) parameters: Tensors,
    /// By parameter: Adam's moments, or the velocity of SGD in the first.
    states: Vec<AdamState>,
    pub(crate) steps: usize,
}

/// The outputs of a batch, its loss, and the gradients by the parameters.
pub(crate) struct Pass {
    pub(crate) z: Vec<f64>,
    pub(crate) loss: f64,
    pub(crate) gradients: Vec<Vec<f64>>,
}

/// Philox 4x32-10 (Salmon et al. 2011), all four words.
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c, mut k], multipliers) =
        ([counter, [key[0], key[1], 0, 0]], [0xD251_1F53, 0xCD9E_8D57]);
    for _ in 0..10 {
        let product = |m: u64, c: u32| m * u64::from(c);
        let [p, q] = [product(multipliers[0], c[0]), product(multipliers[1], c[2])];
        let high = |p: u64| (p >> 32) as u32;
        c = [high(q) ^ c[1] ^ k[0], q as u32, high(p) ^ c[3] ^ k[1], p as u32];
        k[0] = k[0].wrapping_add(0x9E37_79B9);
        k[1] = k[1].wrapping_add(0xBB67_AE85);
    }
    c
}

/// What dropout multiplies a layer's output by.
pub(crate) fn mask(config: &Config, step: usize, layer: usize, len: usize) -> Vec<f64> {
    let key = [config.seed as u32, (config.seed >> 32) as u32];
    let at = (layer as u64) << 48 | step as u64;
    let word = |n: u64| philox([n as u32, (n >> 32) as u32, at as u32, (at >> 32) as u32], key)[0];
    let kept = |n: u64| f64::from(word(n)) >= (config.dropout * 2f64.powi(32)).floor();
    (0..len as u64).map(|n| if kept(n) { 1.0 / (1.0 - config.dropout) } else { 0.0 }).collect()
}

impl<'a> Reference<'a> {
    pub(crate) fn new(
        model: Model,
        config: Config,
        data: &'a Data,
        starts: &'a [usize],
        parameters: &lab_harness::Tensors,
    ) -> Self {
        let parameters: Tensors =
            parameters.iter().map(|(name, t)| (name.clone(), t.values())).collect();
        let states = parameters.values().map(|p| AdamState::new(p.len())).collect();
        Self { model, config, data, starts, parameters, states, steps: 0 }
    }

    /// The rows of a batch with windows at `starts`, `[T, B, I]`.
    fn x(&self, starts: &[usize]) -> Vec<f64> {
        let rows = (0..self.config.window).flat_map(|t| starts.iter().map(move |s| s + t));
        match self.data {
            Data::Series { values, columns } => {
                rows.flat_map(|r| values[r * columns..][..*columns].to_vec()).collect()
            }
            Data::Text { tokens, classes } => {
                let one_hot =
                    |r: usize| (0..*classes).map(move |c| f64::from(tokens[r] == c as i32));
                rows.flat_map(one_hot).collect()
            }
        }
    }

    /// Without dropout where `training` is none, else with that of this step.
    pub(crate) fn pass(&self, starts: &[usize], training: Option<usize>) -> Pass {
        let Model { network, outputs, head } = &self.model;
        let (steps, batch) = (self.config.window, starts.len());
        let features = network.hidden * network.directions();
        let x = self.x(starts);
        let of_layer = steps * batch * features;
        let masks: Vec<f64> = match training.filter(|_| self.config.dropout > 0.0) {
            None => vec![1.0; (network.layers - 1) * of_layer],
            Some(step) => (0..network.layers - 1)
                // The device counts elements of all B rows, those that are not there too.
                .flat_map(|layer| {
                    let all = mask(&self.config, step, layer, steps * self.config.batch * features);
                    let rows: Vec<&[f64]> = all.chunks(features).collect();
                    let live = (0..steps).flat_map(|t| (0..batch).map(move |b| (t, b)));
                    live.flat_map(|(t, b)| rows[t * self.config.batch + b].to_vec())
                        .collect::<Vec<f64>>()
                })
                .collect(),
        };
        let inputs = Inputs { dropout: Some(&masks), ..Inputs::new(batch, &x) };
        let y = network.forward(&self.parameters, inputs).y;
        let from = match head {
            Head::Last => steps - 1,
            Head::EveryStep => 0,
        };
        let read = &y[from * batch * features..];
        let (weight, bias) = (&self.parameters["head_weight"], &self.parameters["head_bias"]);
        let z: Vec<f64> = read
            .chunks(features)
            .flat_map(|y| {
                let row = |o: usize| &weight[o * features..][..features];
                let dot = move |o: usize| row(o).iter().zip(y).map(|(w, y)| w * y).sum::<f64>();
                (0..*outputs).map(move |o| bias[o] + dot(o)).collect::<Vec<f64>>()
            })
            .collect();
        let targets = (from..steps).flat_map(|t| starts.iter().map(move |s| s + t + 1));
        let (loss, dz) = match self.data {
            Data::Series { values, columns } => {
                let target: Vec<f64> =
                    targets.flat_map(|r| values[r * columns..][..*outputs].to_vec()).collect();
                mean_squared_error(&z, &target)
            }
            Data::Text { tokens, .. } => {
                cross_entropy(&z, &targets.map(|r| tokens[r] as usize).collect::<Vec<_>>())
            }
        };
        let mut dy = vec![0.0; y.len()];
        let [mut dweight, mut dbias] = [vec![0.0; weight.len()], vec![0.0; bias.len()]];
        let of_rows = dz.chunks(*outputs).zip(read.chunks(features));
        let dy_read = dy[from * batch * features..].chunks_mut(features);
        for ((dz, y), dy) in of_rows.zip(dy_read) {
            for (o, dz) in dz.iter().enumerate() {
                dbias[o] += dz;
                for k in 0..features {
                    dweight[o * features + k] += dz * y[k];
                    dy[k] += dz * weight[o * features + k];
                }
            }
        }
        let upstream = Upstream { dy: Some(&dy), ..Upstream::default() };
        let mut by = network.backward(&self.parameters, inputs, upstream).parameters;
        by.insert("dhead_weight".into(), dweight);
        by.insert("dhead_bias".into(), dbias);
        let own = |name: &String| by.remove(&format!("d{name}")).expect("of each parameter");
        Pass { z, loss, gradients: self.parameters.keys().map(own).collect() }
    }

    /// One step; its loss.
    pub(crate) fn step(&mut self) -> f64 {
        let per_epoch = self.starts.len().div_ceil(self.config.batch);
        let (epoch, at) = (self.steps / per_epoch, self.steps % per_epoch);
        let order = self.config.course().order(self.starts, epoch);
        let batch = order.chunks(self.config.batch).nth(at).expect("a step of the epoch");
        let Pass { loss, mut gradients, .. } = self.pass(batch, Some(self.steps));
        let norm = global_norm(gradients.iter().map(Vec::as_slice));
        let factor = self.config.clip.map_or(1.0, |clip| clip_factor(norm, clip));
        gradients.iter_mut().flatten().for_each(|g| *g *= factor);
        let lr = self.config.schedule.at(self.steps);
        for ((p, g), state) in self.parameters.values_mut().zip(&gradients).zip(&mut self.states) {
            match self.config.optimizer {
                Optimizer::Sgd { momentum, weight_decay } => {
                    Sgd { lr, momentum, weight_decay }.step(p, g, &mut state.m);
                }
                Optimizer::Adam { betas, eps, weight_decay, decoupled } => {
                    Adam { lr, betas, eps, weight_decay, decoupled }.step(p, g, state);
                }
            }
        }
        self.steps += 1;
        loss
    }
}
