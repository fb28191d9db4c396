//! What must hold beside every operation's error bounds.

use lab_device::Device;
use lab_harness::suite::{Check, every_kernel_loads};
use lab_harness::{Problem, run};

use crate::STAGE;

pub(crate) static CHECKS: &[Check] = &[
    Check {
        name: "results_do_not_change_from_run_to_run",
        run: results_do_not_change_from_run_to_run,
    },
    Check { name: "every_kernel_loads_on_every_device", run: every_kernel_loads_on_every_device },
];

fn results_do_not_change_from_run_to_run(device: &Device) {
    for version in STAGE.versions {
        let info = version.info();
        for &dtype in info.dtypes {
            let problem = Problem::new(info.small(), dtype);
            let inputs = version.inputs(&problem);
            let once = run(*version, device, &inputs, &problem.options).unwrap();
            let twice = run(*version, device, &inputs, &problem.options).unwrap();
            assert_eq!(once, twice, "{} {dtype} on {}", info.full_name(), device.name());
        }
    }
}

fn every_kernel_loads_on_every_device(device: &Device) {
    every_kernel_loads(&STAGE, device);
}
