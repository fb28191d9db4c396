//! A kernel of the lab from your own code, on the GPU where there is one:
//!
//! ```sh
//! cargo run -p playg --example softmax
//! ```

use lab_device::{Device, Selector};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Tensor, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Selector::from_env()?)?;
    let x = tensors([("x", Tensor::new(&[2, 3], &[1f32, 2.0, 3.0, 0.0, 0.0, 1e9]))]);
    let out = run(&playg::SOFTMAX_REGISTERS, &device, &x, &Options::default())?;
    println!("{}: {:.4?}", device.name(), out["out"].values());
    Ok(())
}
