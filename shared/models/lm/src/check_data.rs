//! Small models, their parameters and tokens, for what must hold of them.

use lab_device::DType;
use lab_harness::Tensors;
use lab_layers::Init;

use crate::{Mixer, Mixers, Model, Tokens};

/// Two blocks, three words that no eight divides.
pub(crate) fn small() -> Model {
    Model { hidden: 48, ..Model::xlstm(19, 64, 2, 2) }
}

/// The same sizes, with attention in the second block, whose two heads share keys and values.
pub(crate) fn mixed() -> Model {
    small().with_mixers("1 vlstm : 1 attention".parse().expect("a pattern"), Some(1))
}

/// One block, with attention whose heads share nothing, and one matrix for what comes in and what goes out.
pub(crate) fn attention() -> Model {
    Model { blocks: 1, tied: true, ..small() }.with_mixers(Mixers::only(Mixer::Attention), None)
}

/// An LSTM and an sLSTM.
pub(crate) fn recurrent() -> Model {
    Model { hidden: 24, ..Model::xlstm(19, 32, 2, 2) }
        .with_mixers("lstm : slstm".parse().expect("a pattern"), None)
}

pub(crate) fn tokens(len: usize, words: usize) -> Tokens {
    let id = |n: usize| ((n * n / 3 + n % 7 * 5) % words) as i32;
    Tokens::of_ids((0..len).map(id).collect())
}

/// Parameters none of which is as nothing to the loss: gates that open, norms that are not all alike.
pub(crate) fn spread(model: &Model, seed: u64) -> Tensors {
    let parameters = model.parameters();
    let mut all = parameters.initial(seed);
    let other = model.parameters();
    let other = lab_layers::Parameters::new(
        other
            .iter()
            .map(|p| lab_layers::Parameter { init: Init::Normal(0.1), ..p.clone() })
            .collect(),
    );
    let noise = other.initial(seed + 1);
    for (name, tensor) in &mut all {
        let is_gate = name.ends_with("igate_preact.bias");
        let base = if is_gate { vec![0.0; tensor.len()] } else { tensor.values() };
        let values: Vec<f64> = base.iter().zip(noise[name].values()).map(|(a, b)| a + b).collect();
        // What halves hold as well: the reference is of the same model in both types.
        let values = lab_harness::Tensor::rounded(DType::BF16, &tensor.shape, &values).values();
        *tensor = lab_harness::Tensor::rounded(DType::F32, &tensor.shape, &values);
    }
    all
}

pub(crate) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

pub(crate) fn tempfile_directory() -> std::path::PathBuf {
    let name = format!("lab-lm-{}-{:?}", std::process::id(), std::thread::current().id());
    let directory = std::env::temp_dir().join(name.replace(['(', ')'], ""));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
