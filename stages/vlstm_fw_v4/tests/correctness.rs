//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::assert_version;
use vlstm_fw_v4::SCORES;

#[test]
fn scores() {
    assert_version(&SCORES);
}

#[test]
fn any_schedule() {
    let device = lab_harness::suite::emulator().unwrap();
    let problem = lab_harness::Problem::new(
        lab_harness::qkv::sizes([1, 2, 700, 64, 64]),
        lab_device::DType::BF16,
    );
    use lab_harness::Version;
    let inputs = SCORES.inputs(&problem);
    for device in lab_harness::qkv::checks::schedules(&device) {
        lab_harness::run(&SCORES, &device, &inputs, &Default::default()).unwrap();
        println!("{}", device.name());
    }
}
