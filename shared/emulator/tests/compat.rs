//! What foreign CUDA code uses, as `compat/` stands in for it, in both builds.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{Kind, LaunchError, Module, Options};

const FILE: &str = "../compat/compat.cu";
const NAMES: [&str; 12] = [
    "integers",
    "numbers",
    "halves",
    "narrowed",
    "widened",
    "groups",
    "atomics",
    "vectors",
    "asserts",
    "last_block",
    "handed_over",
    "piped",
];

static PLAIN: LazyLock<Arc<Module>> = LazyLock::new(|| module(FILE, &NAMES));
static CHECKED: LazyLock<Arc<Module>> = LazyLock::new(|| checked(FILE, &NAMES));

fn both() -> [&'static Arc<Module>; 2] {
    [&PLAIN, &CHECKED]
}

#[test]
fn intrinsics_give_what_cuda_documents() {
    for module in both() {
        for name in ["integers", "numbers", "halves"] {
            let mut arrays = Arrays::new();
            let out = arrays.unwritten::<i32>(32);
            let mut p = out;
            run(module, name, &plain(1, 32), &mut [arg(&mut p)], &Options::default()).unwrap();
            assert_eq!(arrays.read(out), [0; 32], "{name}: lines of compat.cu");
        }
    }
}

/// What a number of 8 bits is, by its definition; of so many bits of exponent and mantissa.
fn value_of(bits: u8, exponent_bits: i32, mantissa_bits: i32) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let (exponent, mantissa) = (
        i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1),
        bits & ((1 << mantissa_bits) - 1),
    );
    let last = exponent == (1 << exponent_bits) - 1;
    let magnitude = match (exponent_bits, last, mantissa) {
        (4, true, 7) | (5, true, 1..) => f64::NAN,
        (5, true, 0) => f64::INFINITY,
        _ => {
            let whole = f64::from(mantissa)
                + if exponent > 0 { f64::from(1 << mantissa_bits) } else { 0.0 };
            whole * f64::powi(2.0, exponent.max(1) - bias - mantissa_bits)
        }
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

/// The nearest of these numbers, at a tie the even one; `beyond` behind the middle between the largest and what would be next.
fn nearest(x: f64, finite: &[f64], beyond: u8) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    let (x, largest) = (x.abs(), finite.len() - 1);
    let limit = finite[largest] + (finite[largest] - finite[largest - 1]) / 2.0;
    let above = finite.partition_point(|&v| v < x);
    sign | match above {
        0 => 0,
        _ if x > limit || x == limit && largest % 2 == 1 => beyond,
        _ if above > largest => largest as u8,
        _ => {
            let (low, high) = (x - finite[above - 1], finite[above] - x);
            let is_low = low < high || low == high && (above - 1) % 2 == 0;
            (if is_low { above - 1 } else { above }) as u8
        }
    }
}

#[test]
fn numbers_of_eight_bits_are_the_nearest_of_all() {
    for module in both() {
        let mut arrays = Arrays::new();
        let (bytes, values) =
            (arrays.unwritten::<[u8; 4]>(65536), arrays.unwritten::<[f32; 2]>(256));
        let (mut p, mut q) = (bytes, values);
        run(module, "narrowed", &plain(1, 256), &mut [arg(&mut p)], &Options::default()).unwrap();
        run(module, "widened", &plain(1, 256), &mut [arg(&mut q)], &Options::default()).unwrap();
        let (bytes, values) = (arrays.read(bytes), arrays.read(values));
        for (kind, (e, m, infinity)) in [(4, 3, 0x7f), (5, 2, 0x7c)].into_iter().enumerate() {
            for bits in 0..=255u8 {
                let (got, expected) =
                    (f64::from(values[usize::from(bits)][kind]), value_of(bits, e, m));
                assert!(
                    got == expected || got.is_nan() && expected.is_nan(),
                    "{bits:#x}: {got}, {expected}"
                );
            }
            let finite: Vec<f64> =
                (0..128).map(|bits| value_of(bits, e, m)).take_while(|v| v.is_finite()).collect();
            let largest = finite.len() as u8 - 1;
            for half in 0..=u16::MAX {
                let x = half::f16::from_bits(half).to_f64();
                let both = if x.is_nan() {
                    [0x7f; 2]
                } else {
                    [infinity, largest].map(|beyond| nearest(x, &finite, beyond))
                };
                let got = &bytes[usize::from(half)][2 * kind..][..2];
                assert_eq!(got, both, "{x} of {half:#06x}, {e} bits of exponent");
            }
        }
    }
}

#[test]
fn groups_of_every_kind_reduce_and_scan() {
    for module in both() {
        let mut arrays = Arrays::new();
        let out = arrays.unwritten::<i32>(64);
        let x = arrays.of(&(100..164).collect::<Vec<i32>>());
        let (mut p, mut q) = (out, x);
        let mut arguments = [arg(&mut p), arg(&mut q)];
        run(module, "groups", &plain(1, 64), &mut arguments, &Options::default()).unwrap();
        assert_eq!(arrays.read(out), [0; 64], "lines of compat.cu");
    }
}

#[test]
fn scoped_atomics_are_indivisible() {
    for module in both() {
        let mut arrays = Arrays::new();
        let (sums, total) = (arrays.of(&[0u32; 3]), arrays.of(&[0f64]));
        let locks = arrays.of(&[0u16; 2]);
        let (mut p, mut q, mut r) = (sums, total, locks);
        let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut r)];
        run(module, "atomics", &plain(4, 64), &mut arguments, &Options::default()).unwrap();
        assert_eq!(arrays.read(sums), [256, 63, 6]);
        assert_eq!((arrays.read(total)[0], arrays.read(locks)[0]), (128.0, 256));
    }
}

#[test]
fn wide_vectors_move_in_steps_of_sixteen_bytes() {
    for module in both() {
        let mut arrays = Arrays::new();
        let wide = arrays.unwritten::<[f64; 4]>(32);
        let pairs = arrays.of(&(0..32).map(|i| [i, -i]).collect::<Vec<[i64; 2]>>());
        let bytes = arrays.of(&[[1i8, 2, 3, -4]; 32]);
        let (mut p, mut q, mut r) = (wide, pairs, bytes);
        let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut r)];
        run(module, "vectors", &plain(1, 32), &mut arguments, &Options::default()).unwrap();
        assert_eq!(arrays.read(wide)[5], [5.0, -5.0, 1.0, 2.0]);
        assert_eq!(arrays.read(bytes), [[-4, 3, 2, 1]; 32]);
    }
}

#[test]
fn an_assertion_is_a_finding_with_its_text_and_thread() {
    for module in both() {
        let mut arrays = Arrays::new();
        let mut values = [1i32; 32];
        values[7] = -1;
        let mut p = arrays.of(&values);
        let outcome =
            run(module, "asserts", &plain(1, 32), &mut [arg(&mut p)], &Options::default());
        let Err(LaunchError::Kernel { findings, .. }) = outcome else { panic!("{outcome:?}") };
        let said = findings.to_string();
        assert_eq!(findings.all[0].kind, Kind::Stopped, "{said}");
        assert!(said.contains("x[threadIdx.x] >= 0 && \"not negative\""), "{said}");
        assert!(said.contains("thread (7,0,0)") && said.contains("compat.cu:"), "{said}");
        values[7] = 0;
        let mut p = arrays.of(&values);
        run(module, "asserts", &plain(1, 32), &mut [arg(&mut p)], &Options::default()).unwrap();
    }
}

#[test]
fn orders_of_atomics_order_what_stands_around_them() {
    for module in both() {
        let mut arrays = Arrays::new();
        let (parts, count) = (arrays.of(&[0i32; 4]), arrays.of(&[0u32]));
        let (out, x) = (arrays.unwritten::<i32>(2), arrays.of(&(0..64).collect::<Vec<i32>>()));
        let (mut p, mut q, mut r, mut s) = (parts, count, out, x);
        let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut r), arg(&mut s)];
        run(module, "last_block", &plain(4, 64), &mut arguments, &Options::default()).unwrap();
        assert_eq!(arrays.read(out), [4 * 2016, 2016]);

        let (data, flag) = (arrays.unwritten::<i32>(2), arrays.of(&[0i32]));
        let (mut p, mut q) = (data, flag);
        let mut arguments = [arg(&mut p), arg(&mut q)];
        run(module, "handed_over", &plain(1, 64), &mut arguments, &Options::default()).unwrap();
        assert_eq!((arrays.read(data), arrays.read(flag)), (vec![42, 42], vec![7]));
    }
}

#[test]
fn a_pipeline_of_a_block_hands_stages_on_and_back() {
    for module in both() {
        let mut arrays = Arrays::new();
        let (x, out) = (arrays.of(&(0..256).collect::<Vec<i32>>()), arrays.unwritten::<i32>(128));
        let (mut p, mut q) = (x, out);
        let mut arguments = [arg(&mut p), arg(&mut q)];
        run(module, "piped", &plain(2, 64), &mut arguments, &Options::default()).unwrap();
        // Element 31 - i of each of the 8 tiles.
        let expected: Vec<i32> = (0..128).map(|i| 8 * (31 - i % 32) + 32 * 28).collect();
        assert_eq!(arrays.read(out), expected);
    }
}
