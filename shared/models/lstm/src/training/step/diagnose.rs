//! Where training left the numbers.

use lab_harness::Tensor;

use super::Step;
use crate::training::{Error, Position};

impl Step {
    /// What of a step was the first that was not finite. The device has repeated the step since, with
    /// the same parameters: all tensors are those of it.
    pub(super) fn find_first_bad(
        &self,
        Position { epoch, step, .. }: Position,
        starts: &[usize],
    ) -> Result<Error, Error> {
        let Self { binding, arena, slots, .. } = self;
        let training = self.training();
        let parameters = arena.unpack(&binding.read(training.master)?);
        let gradients = arena.unpack(&binding.read(training.gradient)?);
        let of = |name: &str| match layer_of(name) {
            Some(layer) => format!("layer {layer}"),
            None => "the head".to_owned(),
        };
        let mut all: Vec<(String, String, Vec<f64>)> =
            self.rows_of(&binding.read(slots.values)?, starts);
        all.push(("layer 0".into(), "x".into(), binding.read(slots.x)?.values()));
        for (layer, y) in slots.ys.iter().enumerate() {
            for (name, values) in parameters.iter().filter(|p| layer_of(p.0) == Some(layer)) {
                all.push((of(name), name.clone(), values.values()));
            }
            all.push((format!("layer {layer}"), "y".into(), binding.read(*y)?.values()));
        }
        for name in ["head_weight", "head_bias"] {
            all.push((of(name), name.into(), parameters[name].values()));
        }
        all.push(("the head".into(), "z".into(), binding.read(slots.z)?.values()));
        let loss = binding.read(training.losses)?.values()[step];
        all.push(("the loss".into(), "the mean".into(), vec![loss]));
        // From the head to the first layer.
        let mut names: Vec<&String> = gradients.keys().collect();
        names.sort_by_key(|name| std::cmp::Reverse(layer_of(name).map_or(usize::MAX, |l| l)));
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
        let tensor = format!("{tensor} of {layer}");
        Ok(Error::NotFinite { epoch, step, tensor, index, value })
    }

    /// The rows of the data that the step under way reads, inputs and targets.
    fn rows_of(&self, data: &Tensor, starts: &[usize]) -> Vec<(String, String, Vec<f64>)> {
        let window = self.config.window;
        let (values, columns) = (data.values(), data.len() / self.rows);
        let mut rows: Vec<usize> = starts.iter().flat_map(|&s| s..=s + window).collect();
        rows.sort_unstable();
        rows.dedup();
        let row = |r: usize| {
            ("the data".to_owned(), format!("row {r}"), values[r * columns..][..columns].to_vec())
        };
        rows.into_iter().map(row).collect()
    }
}

fn layer_of(name: &str) -> Option<usize> {
    let (_, layer) = name.strip_suffix("_reverse").unwrap_or(name).rsplit_once("_l")?;
    layer.parse().ok()
}
