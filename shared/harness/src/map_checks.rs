//! What must hold of tensor maps as arguments, on every device that has them.

use lab_device::{DType, Device, Kernel, Launch, Swizzle, TensorMap};

use crate::device_checks::kernels;
use crate::plan::{Argument, Plan, Slot};
use crate::suite::Check;
use crate::{Error, Tensor, arguments};

/// Each panics where it does not hold.
pub static CHECKS: &[Check] = &[
    Check::new("boxes_go_through_a_plan", boxes_go_through_a_plan),
    Check::new("maps_of_other_memory_are_refused", maps_of_other_memory_are_refused),
    Check::new("maps_are_no_pointers", maps_are_no_pointers),
];

/// Rows and columns.
const SIZES: [usize; 2] = [6, 12];

/// The kernel, where the device has one.
fn move_box(device: &Device) -> Option<Kernel> {
    let arch = &device.facts().arch;
    let has = arch.is_empty() || kernels::BOXES.runs_on(arch);
    has.then(|| device.kernel(&kernels::BOXES, "move_box").unwrap())
}

/// Of a tensor of SIZES, in boxes of 4 rows by 8 columns.
fn map(dtype: DType) -> TensorMap {
    TensorMap::new(dtype, &[SIZES[1], SIZES[0]], &[8, 4]).unwrap()
}

/// A plan that moves a box from x to out, with these arguments for them.
fn box_copy_plan(
    device: &Device,
    kernel: &Kernel,
    of: impl Fn(Slot, Slot) -> [Argument; 2],
) -> Result<(Plan, Slot), Error> {
    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &SIZES);
    let out = plan.state("out", DType::F32, &SIZES);
    let [from, to] = of(x, out);
    plan.launch(kernel, Launch::new(1, 32), arguments![from: from, to: to, bytes: 128])?;
    Ok((plan, out))
}

fn boxes_go_through_a_plan(device: &Device) {
    let Some(kernel) = move_box(device) else { return };
    let map = map(DType::F32);
    let (plan, out) =
        box_copy_plan(device, &kernel, |x, out| [x.loaded_by(map), out.stored_by(map)]).unwrap();
    let x: Vec<f32> = (0..72).map(|n| n as f32).collect();
    let (x, before) = (Tensor::new(&SIZES, &x), Tensor::new(&SIZES, &[-1f32; 72]));
    let binder = plan.bind().upload("x", &x).unwrap();
    let mut run = binder.upload("out", &before).unwrap().finish().unwrap();
    run.run().unwrap();
    let inside = |n: usize| n / 12 < 4 && n % 12 < 8;
    let expected: Vec<f64> = (0..72).map(|n| if inside(n) { n as f64 } else { -1.0 }).collect();
    assert_eq!(run.read(out).unwrap().values(), expected);
}

fn maps_of_other_memory_are_refused(device: &Device) {
    let Some(kernel) = move_box(device) else { return };
    let said = |of: &dyn Fn(Slot, Slot) -> [Argument; 2]| {
        box_copy_plan(device, &kernel, of).map(drop).unwrap_err().to_string()
    };
    let own = map(DType::F32);
    let refused = said(&|x, out| [x.loaded_by(map(DType::I32)), out.stored_by(own)]);
    assert_eq!(refused, "move_box: argument 'from': expected a tensor map of f32, got one of i32");
    let refused = said(&|x, _| [x.loaded_by(own), x.stored_by(own)]);
    assert_eq!(refused, "move_box: argument 'to': expected a slot to store to, got an input");
    let refused = said(&|_, out| [out.loaded_by(own), out.stored_by(own)]);
    assert!(refused.ends_with("expected memory that lies apart"), "{refused}");
    let refused = said(&|x, out| [x.part(0, 71).loaded_by(own), out.stored_by(own)]);
    assert!(
        refused.ends_with("expected a tensor of at most 284 bytes, got one of 288"),
        "{refused}"
    );
    let wide = TensorMap::new(DType::F32, &[12, 6], &[12, 4]).unwrap().swizzle(Swizzle::Bytes32);
    let refused = said(&|x, out| [x.loaded_by(wide), out.stored_by(own)]);
    assert!(refused.ends_with("expected at most the 32 bytes of the swizzle, got 48"), "{refused}");
}

fn maps_are_no_pointers(device: &Device) {
    let Some(kernel) = move_box(device) else { return };
    let own = map(DType::F32);
    let refused = box_copy_plan(device, &kernel, |x, out| [x.into(), out.stored_by(own)]).map(drop);
    let refused = refused.unwrap_err().to_string();
    assert_eq!(refused, "move_box: argument 'from': expected TensorMap, got const f32*");
    // At an address that no tensor of a map has.
    let memory = device.raw_buffer(512).unwrap();
    let refused = memory.tensor_map(1..128, &own, false).map(drop).unwrap_err().to_string();
    assert!(
        refused.starts_with("tensor map: address of the tensor: expected a multiple of 16"),
        "{refused}"
    );
}
