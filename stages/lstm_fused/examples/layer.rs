//! An LSTM layer from your own code, forward and backward, on the GPU where there is one. Its parameters
//! go by the names of `torch.nn.LSTM`: a state dict saved as safetensors is read as it is.
//!
//! ```sh
//! cargo run -p lstm_fused --example layer                      # random parameters
//! cargo run -p lstm_fused --example layer state.safetensors    # of torch.nn.LSTM(3, 64)
//! ```

use std::path::Path;

use lab_device::{DType, Device, Selector};
use lab_harness::{Tensor, tensor};
use lab_reference::lstm::Parameter;
use lstm_fused::{Lstm, Network, Pass};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Selector::from_env()?)?;
    let network = Network::lstm(3, 64);
    let mut tensors = match std::env::args().nth(1) {
        Some(path) => tensor::read(Path::new(&path))?,
        None => {
            let mut random = ChaCha8Rng::seed_from_u64(7);
            let values = network.initial(|| random.random_range(-1.0..=1.0));
            let parameter = |p: Parameter| {
                let rounded = Tensor::rounded(DType::F32, &p.shape, &values[&p.name]);
                (p.name, rounded)
            };
            network.parameters().into_iter().map(parameter).collect()
        }
    };
    tensors.retain(|name, _| !name.starts_with("head_")); // the linear layer of a model

    // Twenty steps of two rows; the loss is the sum of the last y.
    let (steps, rows) = (20, 2);
    let x: Vec<f32> = (0..steps * rows * 3).map(|n| (n as f32 / 10.0).sin()).collect();
    let mut dy = vec![0f32; (steps - 1) * rows * 64];
    dy.resize(steps * rows * 64, 1.0);
    tensors.insert("x".into(), Tensor::new(&[steps, rows, 3], &x));
    tensors.insert("dy".into(), Tensor::new(&[steps, rows, 64], &dy));

    let lstm = Lstm::new(network)?;
    let out = lstm.run(&device, &tensors, Pass::ForwardBackward)?;
    println!("{}, {:?}:", device.name(), lstm.way());
    for (name, tensor) in &out {
        let norm = tensor.values().iter().map(|v| v * v).sum::<f64>().sqrt();
        println!("  {name:16} {:12} norm {norm:.4}", format!("{:?}", tensor.shape));
    }
    Ok(())
}
