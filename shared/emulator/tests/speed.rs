//! What the emulator costs. The limits are loose (a test must not fail on a busy machine); run
//! `cargo test -p lab-emulator --release --test speed -- --include-ignored --nocapture --test-threads 1` to read the figures.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{Config, Module, Options};

fn best_of(times: usize, mut work: impl FnMut()) -> Duration {
    (0..times)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .min()
        .expect("at least one run")
}

/// 256 x 256 in tiles of 16, on one core: 2,097,152 waits at barriers, 38 million accesses.
fn tiled_matmul(module: &Arc<Module>, count: bool) -> Duration {
    let n = 256usize;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 5) as f32 - 2.0).collect();
    let mut arrays = Arrays::new();
    let (pa, pb, pc) = (arrays.of(&a), arrays.of(&b), arrays.unwritten::<f32>(n * n));
    let config = Config {
        grid: [16, 16, 1],
        block: [16, 16, 1],
        dynamic_shared: 0,
        cooperative: false,
        cluster: 0,
        overlap_previous: false,
    };
    let options = Options { threads: 1, count, ..Options::default() };
    let best = best_of(3, || {
        let (mut pa, mut pb, mut pc) = (pa, pb, pc);
        let mut size = n as i32;
        let mut args = [arg(&mut pa), arg(&mut pb), arg(&mut pc), arg(&mut size)];
        run(module, "matmul<16>", &config, &mut args, &options).unwrap();
    });
    let c: Vec<f32> = arrays.read(pc);
    for (row, column) in [(0, 0), (17, 200), (255, 255), (100, 3)] {
        let expected: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
        assert_eq!(c[row * n + column], expected, "small integers: exact");
    }
    best
}

#[test]
#[ignore = "measures, and takes long: --include-ignored runs it"]
fn a_tiled_matmul_of_256() {
    let plain = tiled_matmul(&module("matmul.cu", &["matmul<16>"]), false);
    let object = checked("matmul.cu", &["matmul<16>"]);
    let checks = tiled_matmul(&object, false);
    let counts = tiled_matmul(&object, true);
    let ratio = |t: Duration| t.as_secs_f64() / plain.as_secs_f64();
    println!("matmul 256, 16x16 tiles, one core: plain {plain:?}");
    println!("checked {checks:?}, {:.1} times plain", ratio(checks));
    println!("checked and counted {counts:?}, {:.1} times plain", ratio(counts));
    assert!(plain < Duration::from_millis(1000), "{plain:?}");
    assert!(ratio(checks) < 24.0 && ratio(counts) < 40.0);
}

#[test]
fn a_cooperative_grid_of_132_blocks() {
    let m = module("features.cu", &["grid_rounds"]);
    let config = Config { cooperative: true, ..plain(132, 256) };
    let mut values = vec![1f32; 132];
    let best = best_of(3, || {
        values.fill(1.0);
        let (mut p, mut rounds) = (values.as_mut_ptr(), 8i32);
        run(&m, "grid_rounds", &config, &mut [arg(&mut p), arg(&mut rounds)], &Options::default())
            .unwrap();
    });
    assert!(values.iter().all(|v| (v - 9.0).abs() < 1e-4), "{values:?}");
    println!("132 blocks x 256 threads, 16 grid syncs: {best:?}");
    assert!(best < Duration::from_secs(5), "{best:?}");
}
