//! Whether a GPU agrees with the emulator, feature by feature and bit by bit.
//!
//! The kernels are the emulator's own test kernels. Each runs here and on the emulator, on the same
//! inputs; the outputs must be the same bits, NaN for NaN. Only the fast-maths intrinsics may
//! differ: by definition they are less exact on a GPU. On the emulator itself the check is that a
//! second run gives what the first gave.

use half::{bf16, f16};
use lab_device::{Arg, DType, Device, KernelSource, Launch};

use crate::Tensor;
use crate::device_checks::kernels::{FEATURES, GROUPS, PROMISE};
use crate::plan::{Argument, Arguments, Plan};
use crate::suite::Check;

/// Each panics where the device and the emulator differ.
pub static CHECKS: &[Check] = &[
    Check::new("coordinates_votes_and_exits", coordinates_votes_and_exits),
    Check::new("warp_collectives", warp_collectives),
    Check::new("atomics", atomics),
    Check::new("conversions_of_halves", conversions_of_halves),
    Check::new("arithmetic_of_halves", arithmetic_of_halves),
    Check::new("grids_that_wait", grids_that_wait),
    Check::new("vectors_and_fast_maths", vectors_and_fast_maths),
    Check::new("parts_of_a_block", parts_of_a_block),
];

/// A launch: buffers that are read, buffers that are written (with what they hold before), numbers.
struct Run<'a> {
    source: &'static KernelSource,
    kernel: &'a str,
    launch: Launch,
    reads: Vec<Tensor>,
    writes: Vec<Tensor>,
    numbers: Vec<Arg<'static>>,
}

impl Run<'_> {
    fn new(kernel: &str, grid: u32, block: u32, writes: Vec<Tensor>) -> Run<'_> {
        let launch = Launch::new(grid, block);
        Run { source: &FEATURES, kernel, launch, reads: Vec::new(), writes, numbers: Vec::new() }
    }

    fn on(&self, device: &Device) -> Vec<Tensor> {
        let kernel = device.kernel(self.source, self.kernel).unwrap();
        let names = || kernel.parameters().iter().map(|p| p.name.as_str());
        let tensors = || self.reads.iter().chain(&self.writes);
        let mut plan = Plan::new(device);
        let slots: Vec<_> =
            names().zip(tensors()).map(|(name, t)| plan.state(name, t.dtype, &t.shape)).collect();
        let numbers = self.numbers.iter().copied().map(Argument::Number);
        let arguments = slots.iter().copied().map(Argument::Slot).chain(numbers);
        let arguments = Arguments::new(PROMISE, names().zip(arguments));
        plan.launch(&kernel, self.launch, arguments).unwrap();
        let mut binder = plan.bind();
        for (name, tensor) in names().zip(tensors()) {
            binder = binder.upload(name, tensor).unwrap();
        }
        let mut binding = binder.finish().unwrap();
        binding.run().unwrap();
        slots[self.reads.len()..].iter().map(|slot| binding.read(*slot).unwrap()).collect()
    }

    /// The written buffers of both devices, the device's first.
    fn run_on_both(&self, device: &Device) -> Vec<(Tensor, Tensor)> {
        let emulator = Device::emulator().unwrap();
        self.on(device).into_iter().zip(self.on(&emulator)).collect()
    }

    #[track_caller]
    fn agrees(&self, device: &Device) {
        for (index, (got, expected)) in self.run_on_both(device).iter().enumerate() {
            self.same_bits(index, got, expected);
        }
    }

    #[track_caller]
    fn same_bits(&self, index: usize, got: &Tensor, expected: &Tensor) {
        let width = got.dtype.size();
        let (g, e) = (got.values(), expected.values());
        let bits = got.bytes.chunks(width).zip(expected.bytes.chunks(width));
        for (i, (a, b)) in bits.enumerate() {
            let same = a == b || g[i].is_nan() && e[i].is_nan();
            assert!(same, "{}: output {index}[{i}]: {:e}, emulator {:e}", self.kernel, g[i], e[i]);
        }
    }
}

fn zeros(dtype: DType, len: usize) -> Tensor {
    Tensor::rounded(dtype, &[len], &vec![0.0; len])
}

fn coordinates_votes_and_exits(device: &Device) {
    let out = || vec![zeros(DType::U32, 6 * 12 * 30)];
    let launch = Launch::new_3d([3, 2, 2], [5, 3, 2]);
    Run { launch, ..Run::new("coordinates", 1, 1, out()) }.agrees(device);
    Run::new("block_votes", 1, 100, vec![zeros(DType::I32, 100)]).agrees(device);
    Run::new("early_exit", 1, 100, vec![zeros(DType::I32, 100)]).agrees(device);
}

fn warp_collectives(device: &Device) {
    let lanes: Vec<f64> = (0..32).map(f64::from).collect();
    for (kernel, dtype) in [("warp_sum<float>", DType::F32), ("warp_sum<__half>", DType::F16)] {
        let reads = vec![Tensor::rounded(dtype, &[32], &lanes)];
        Run { reads, ..Run::new(kernel, 1, 32, vec![zeros(dtype, 32)]) }.agrees(device);
    }
    Run::new("divergent_halves", 1, 32, vec![zeros(DType::I32, 32)]).agrees(device);
    Run::new("tiles", 1, 64, vec![zeros(DType::I32, 64)]).agrees(device);
    Run::new("match_and_reduce", 1, 32, vec![zeros(DType::U32, 256)]).agrees(device);
}

/// Named barriers, registers that change hands, matrices that a warp stores.
fn parts_of_a_block(device: &Device) {
    let arch = &device.facts().arch;
    if !arch.is_empty() && !GROUPS.runs_on(arch) {
        return;
    }
    let source = &GROUPS;
    let x: Vec<i32> = (0..5 * 64).collect();
    let run = Run {
        source,
        reads: vec![Tensor::new(&[x.len()], &x)],
        numbers: vec![5.into()],
        ..Run::new("handed<NONE>", 1, 128, vec![zeros(DType::I32, x.len())])
    };
    run.agrees(device);
    Run { source, ..Run::new("budget<FITS>", 1, 384, vec![zeros(DType::I32, 384)]) }.agrees(device);
    let fragments: Vec<u32> = (0..128).map(|n| n * 0x0101_0003).collect();
    for kernel in ["stored<1, 0>", "stored<2, 0>", "stored<4, 0>", "stored<4, 1>"] {
        let reads = vec![Tensor::new(&[128], &fragments)];
        let writes = vec![zeros(DType::U32, 256)];
        Run { source, reads, ..Run::new(kernel, 1, 32, writes) }.agrees(device);
    }
}

fn atomics(device: &Device) {
    let least = Tensor::new(&[1], &[i32::MIN]);
    let writes = vec![zeros(DType::I32, 3), zeros(DType::F32, 1), zeros(DType::U64, 1), least];
    Run::new("atomics", 7, 96, writes).agrees(device);
    let integers = Tensor::new(&[5], &[0, -1, 0, 0, 0]);
    let writes = vec![integers, zeros(DType::U32, 2), Tensor::new(&[2], &[0f32, 2.0])];
    Run::new("integer_atomics", 8, 64, writes).agrees(device);
}

fn conversions_of_halves(device: &Device) {
    // Every half, its neighbours in f32, the ties between halves, and a dense sample.
    let mut x: Vec<f32> = Vec::new();
    for bits in 0..=u16::MAX {
        for base in [f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32()] {
            let b = base.to_bits();
            let near =
                [b, b.wrapping_add(1), b.wrapping_sub(1), b ^ 0x1000, b ^ 0x1001, b ^ 0x8000];
            x.extend(near.map(f32::from_bits));
        }
    }
    x.extend((0..u32::MAX).step_by(40_009).map(f32::from_bits));
    let n = x.len();
    let grid = (n as u32).div_ceil(256);
    let run = Run {
        reads: vec![Tensor::new(&[n], &x)],
        numbers: vec![(n as i32).into()],
        ..Run::new("half_types", grid, 256, vec![zeros(DType::F16, n), zeros(DType::BF16, n)])
    };
    run.agrees(device);
    let h: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let b: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let run = Run {
        reads: vec![Tensor::new(&[65536], &h), Tensor::new(&[65536], &b)],
        numbers: vec![65536i32.into()],
        ..Run::new("half_back", 256, 256, vec![zeros(DType::F32, 65536), zeros(DType::F32, 65536)])
    };
    run.agrees(device);
}

fn arithmetic_of_halves(device: &Device) {
    let n = 1usize << 18;
    let mut state = 1u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as u16
    };
    let (a, b): (Vec<u16>, Vec<u16>) = (0..n).map(|_| (draw(), draw())).unzip();
    for (kernel, dtype) in
        [("half_arithmetic<__half>", DType::F16), ("half_arithmetic<__nv_bfloat16>", DType::BF16)]
    {
        let tensor = |bits: &[u16]| {
            let bytes = bits.iter().flat_map(|b| b.to_ne_bytes()).collect();
            Tensor { dtype, shape: vec![n], bytes }
        };
        let run = Run {
            reads: vec![tensor(&a), tensor(&b)],
            numbers: vec![(n as i32).into()],
            ..Run::new(kernel, (n / 256) as u32, 256, vec![zeros(dtype, 4 * n)])
        };
        run.agrees(device);
    }
    let pairs: Vec<f64> = (0..64).map(|i| f64::from(i) * 0.37).collect();
    let run = Run {
        reads: vec![Tensor::rounded(DType::F16, &[64], &pairs)],
        ..Run::new("half_pairs", 1, 32, vec![zeros(DType::F16, 64), zeros(DType::F16, 1)])
    };
    // The second output is a sum by atomics: in which order is nobody's to say.
    let (got, expected) = &run.run_on_both(device)[0];
    run.same_bits(0, got, expected);
}

fn grids_that_wait(device: &Device) {
    let run = Run {
        numbers: vec![5i32.into()],
        ..Run::new("grid_rounds", 20, 64, vec![Tensor::new(&[20], &[1f32; 20])])
    };
    Run { launch: run.launch.cooperative(), ..run }.agrees(device);
    let run = Run::new("flag_chain", 16, 32, vec![zeros(DType::I32, 16)]);
    Run { launch: run.launch.cooperative(), ..run }.agrees(device);
}

fn vectors_and_fast_maths(device: &Device) {
    let x: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let run = Run {
        reads: vec![Tensor::new(&[128], &x), Tensor::new(&[64], &x[..64])],
        ..Run::new("vectors_and_maths", 1, 32, vec![zeros(DType::F32, 128), zeros(DType::F32, 11)])
    };
    let both = run.run_on_both(device);
    run.same_bits(0, &both[0].0, &both[0].1);
    for (got, expected) in both[1].0.values().iter().zip(both[1].1.values()) {
        assert!((got - expected).abs() <= 2e-6 * expected.abs(), "{got} {expected}");
    }
}
