//! 200 steps of PyTorch, followed by the kernels: `shared/reference/recorded/mlp.py` says of what.
#![allow(missing_docs)]

use std::path::Path;

use lab_device::DType;
use lab_harness::suite::{devices, each};
use lab_harness::{Options, Tensor, Tensors, Version, distance, run, tensor};
use mlp_fused::{BATCH, GRAPH, RECOMPUTED, TENSOR, WGMMA};

const NAMES: [&str; 5] = ["emb", "w1", "b1", "w2", "b2"];

#[test]
fn pytorch_is_followed() {
    let path = "../../shared/reference/recorded/mlp.safetensors";
    let file = tensor::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let mut inputs = Tensors::new();
    for name in ["tokens", "targets"] {
        let ids: Vec<i64> = file[name].values().into_iter().map(|id| id as i64).collect();
        inputs.insert(name.into(), Tensor::new(&file[name].shape, &ids));
    }
    for name in NAMES {
        let first = &file[&format!("first.{name}")];
        let rounded = Tensor::rounded(DType::F32, &first.shape, &first.values());
        inputs.insert(name.into(), rounded);
    }
    let lr = format!("lr={}", file["lr"].values()[0]);
    // Four times what was seen, and of the roundings to bf16, which lead elsewhere, twice.
    let f32 = [&BATCH, &RECOMPUTED, &GRAPH].map(|version| (version, 1.4e-6));
    let all: Vec<_> = f32.into_iter().chain([(&TENSOR, 0.2), (&WGMMA, 0.2)]).collect();
    for device in devices().unwrap() {
        each(&device, &all, |&(version, bound)| {
            let options = Options::parse(&[&lr], version.info()).unwrap();
            let out = run(version, &device, &inputs, &options).unwrap();
            let of_losses = distance(&out["loss"].values(), &file["losses"].values());
            let name = version.info().name;
            println!("{name}: losses {of_losses:.2e}");
            assert!(of_losses <= bound, "{name}: losses: {of_losses:.2e}");
            for parameter in NAMES {
                let expected = file[&format!("last.{parameter}")].values();
                let apart = distance(&out[parameter].values(), &expected);
                println!("{name}: {parameter} {apart:.2e}");
                assert!(apart <= bound, "{name}: {parameter}: {apart:.2e}");
            }
            Some(())
        });
    }
}
