//! Where training left the numbers.

use lab_harness::Tensor;

use super::{Trainer, order};
use crate::training::step::Step;
use crate::training::{Config, Error};

impl Trainer {
    /// What of a step was the first that was not finite. The device has repeated the step since, with
    /// the same parameters: all tensors are those of it.
    pub(super) fn first_bad(&self) -> Result<Error, Error> {
        let step = self.step.borrow();
        let Step { program, layout, ys, .. } = &*step;
        let training = self.training(&step);
        let parameters = layout.unpack(&program.read(training.master)?);
        let gradients = layout.unpack(&program.read(training.gradient)?);
        let of = |name: &str| match self.layer_of(name) {
            Some(layer) => format!("layer {layer}"),
            None => "the head".to_owned(),
        };
        let mut all: Vec<(String, String, Vec<f64>)> = self.rows_of(&program.read(step.values)?);
        all.push(("layer 0".into(), "x".into(), program.read(step.x)?.values()));
        for (layer, y) in ys.iter().enumerate() {
            for (name, values) in parameters.iter().filter(|p| self.layer_of(p.0) == Some(layer)) {
                all.push((of(name), name.clone(), values.values()));
            }
            all.push((format!("layer {layer}"), "y".into(), program.read(*y)?.values()));
        }
        for name in ["head_weight", "head_bias"] {
            all.push((of(name), name.into(), parameters[name].values()));
        }
        all.push(("the head".into(), "z".into(), program.read(step.z)?.values()));
        let loss = program.read(training.losses)?.values()[self.done];
        all.push(("the loss".into(), "the mean".into(), vec![loss]));
        // From the head to the first layer.
        let mut names: Vec<&String> = gradients.keys().collect();
        names.sort_by_key(|name| std::cmp::Reverse(self.layer_of(name).map_or(usize::MAX, |l| l)));
        for name in names {
            all.push((of(name), format!("the gradient by {name}"), gradients[name].values()));
        }
        let found = all.into_iter().find_map(|(layer, tensor, values)| {
            let index = values.iter().position(|v| !v.is_finite())?;
            Some((layer, tensor, index, values[index]))
        });
        // Gradients may all be finite, and the sum of their squares not.
        let (layer, tensor, index, value) =
            found.unwrap_or(("the gradient".into(), "the norm".into(), 0, f64::INFINITY));
        Ok(Error::NotFinite { epoch: self.epoch, step: self.done, layer, tensor, index, value })
    }

    /// The rows of the data that the step under way reads, inputs and targets.
    fn rows_of(&self, data: &Tensor) -> Vec<(String, String, Vec<f64>)> {
        let Config { window, batch, .. } = self.config;
        let (values, columns) = (data.values(), data.len() / self.rows);
        let order = order(&self.starts, &self.config, self.epoch);
        let starts = order.chunks(batch).nth(self.done).expect("a step of the epoch");
        let mut rows: Vec<usize> = starts.iter().flat_map(|&s| s..=s + window).collect();
        rows.sort_unstable();
        rows.dedup();
        let row = |r: usize| {
            ("the data".to_owned(), format!("row {r}"), values[r * columns..][..columns].to_vec())
        };
        rows.into_iter().map(row).collect()
    }

    fn layer_of(&self, name: &str) -> Option<usize> {
        let (_, layer) = name.strip_suffix("_reverse").unwrap_or(name).rsplit_once("_l")?;
        layer.parse().ok()
    }
}
