//! What foreign CUDA code uses, as `compat/` stands in for it, in both builds.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{Kind, LaunchError, Module, Options};

const FILE: &str = "../compat/compat.cu";
const NAMES: [&str; 10] = [
    "integers",
    "numbers",
    "halves",
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
