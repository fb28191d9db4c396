//! A decode loop: a prompt is read at once and leaves its state; from there one position at a time, each of which
//! updates that state where it lies. The loop allocates nothing on the device, and the state is never copied.
//!
//! ```sh
//! cargo run -p vlstm_step --example decode
//! ```

use lab_device::{DType, Device, Selector};
use lab_families::qkv;
use lab_families::vlstm::step::sizes;
use lab_harness::plan::Slot;
use lab_harness::request::shapes_of;
use lab_harness::{Options, Problem, Request, Version};

const PROMPT: usize = 100;
const POSITIONS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Selector::from_env()?)?;
    let (b, nh, dhqk, dhhv) = (2, 4, 64, 128);
    let position = |seed| Problem { seed, ..Problem::new(sizes([b, nh, dhqk, dhhv]), DType::BF16) };

    // ANCHOR: prompt
    let forward = &vlstm_fw_v4::ROLES;
    let with_state = Options::parse(&["last_state=yes"], forward.info())?;
    let prompt =
        forward.inputs(&Problem::new(qkv::sizes([b, nh, PROMPT, dhqk, dhhv]), DType::BF16));
    let request = Request::of(forward.info(), &prompt, &with_state)?;
    let plan = forward.plan(&device, &request)?;
    let mut read = plan.bind().upload_inputs(&prompt)?.finish()?;
    read.run()?;
    // ANCHOR_END: prompt

    // ANCHOR: loop
    let step = &vlstm_step::SLICES;
    let state_in_f32 = Options::parse(&["state=f32"], step.info())?;
    let problem = Problem { options: state_in_f32.clone(), ..position(0) };
    let shapes = shapes_of(&step.inputs(&problem));
    let plan = step.plan(&device, &Request::new(step.info(), shapes, &state_in_f32)?)?;
    let slot = |name: &str| plan.slot(name).expect("a tensor of the step");
    let names = ["q", "k", "v", "i", "f"];
    let tokens: Vec<(&str, Slot)> = names.into_iter().map(|name| (name, slot(name))).collect();
    let h = slot("h");

    let first = step.inputs(&problem);
    let mut binder = plan.bind();
    for name in names {
        binder = binder.upload(name, &first[name])?;
    }
    // What the prompt has left is what the first step begins with, and the memory that all steps update.
    for (ours, theirs) in [("C0", "CN"), ("n0", "nN"), ("m0", "mN")] {
        binder = binder.share(ours, &read, theirs)?;
    }
    let mut decode = binder.finish()?;
    for t in 0..POSITIONS {
        // In a model: the projections of the token that the step before has chosen.
        let token = step.inputs(&position(t as u64));
        for (name, slot) in &tokens {
            decode.write(*slot, &token[*name])?;
        }
        decode.run()?;
        let values = decode.read(h)?.values();
        println!("position {}: h begins with {:.4?}", PROMPT + t, &values[..4]);
    }
    // ANCHOR_END: loop
    Ok(())
}
