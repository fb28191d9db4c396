//! Arenas of random weights, made where they are used: what a timing needs of a model that nobody has trained.

use lab_device::{DType, Device};
use lab_harness::plan::Slot;
use lab_harness::{Binding, Error, Plan, arguments};
use lab_layers::{Init, Parameter};

use crate::kernels;
use crate::store::Store;

/// All arenas, of numbers as wide as those that a training begins with, but uniform: a draw is a hash.
///
/// # Errors
/// What the device says.
pub(crate) fn random(device: &Device, store: &Store, dtype: DType) -> Result<Binding, Error> {
    let mut plan = Plan::new(device);
    let arenas = store.arenas(dtype);
    let of_matrix =
        |name: &str| arenas.iter().find_map(|(_, _, all)| all.iter().find(|p| p.name == name));
    for (name, dtype, all) in &arenas {
        let arena = plan.output(name, *dtype, &[all.len()]);
        // What lies between parameters, too.
        add(&mut plan, *dtype, arena, [0.0, 0.0], 0)?;
        for (seed, parameter) in all.iter().enumerate() {
            let to = all.part(arena, &parameter.name)?;
            let range = match (dtype, parameter.name.strip_suffix(".scale").and_then(of_matrix)) {
                (DType::I8, _) => [0.0, 127.9],
                (_, Some(matrix)) => [range_of(matrix)[1] / 127.0, 0.0],
                _ => range_of(parameter),
            };
            add(&mut plan, *dtype, to, range, seed as u32)?;
        }
    }
    let mut binding = plan.bind().finish()?;
    binding.run()?;
    Ok(binding)
}

/// The middle of what a parameter begins with, and how far it goes from there.
fn range_of(parameter: &Parameter) -> [f32; 2] {
    match parameter.init {
        Init::Constant(value) => [value as f32, 0.0],
        Init::Linear(from, to) => [0.5 * (from + to) as f32, 0.5 * (to - from) as f32],
        // As wide: the standard deviation of a uniform number in ±1 is 1 / √3.
        Init::Normal(deviation) => [0.0, (deviation * 3f64.sqrt()) as f32],
        Init::Within(..) => [0.0, 1.0],
    }
}

fn add(
    plan: &mut Plan,
    dtype: DType,
    to: Slot,
    [middle, spread]: [f32; 2],
    seed: u32,
) -> Result<(), Error> {
    let name = format!("fill_uniform<{}>", dtype.cpp());
    let kernel = plan.device().kernel(&kernels::FILL, &name)?;
    let threads = to.len().div_ceil(16 / dtype.size());
    let blocks = u32::try_from(threads.div_ceil(256)).ok().filter(|b| *b <= i32::MAX as u32);
    let blocks = blocks
        .ok_or_else(|| Error::bad("parameters to fill", "at most 2^39 bytes of them", to.len()))?;
    let launch = kernel.grid([blocks, 1, 1])?;
    let aligned = (to.start() * dtype.size()).is_multiple_of(16);
    plan.launch(&kernel, launch, arguments![to, n: to.len(), middle, spread, seed, aligned])
}
