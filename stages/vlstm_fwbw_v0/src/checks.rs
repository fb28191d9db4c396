//! What must hold beside the error bounds.

use lab_device::Device;
use lab_harness::suite::Check;

use crate::STAGE;

pub(crate) static CHECKS: &[Check] = &[Check {
    name: "every_kernel_loads_on_every_device",
    run: every_kernel_loads_on_every_device,
}];

fn every_kernel_loads_on_every_device(device: &Device) {
    let listed: usize = STAGE.kernels.iter().map(|k| k.instantiations.len()).sum();
    assert_eq!(STAGE.load_all(device).unwrap().len(), listed);
}
