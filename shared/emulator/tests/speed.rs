//! What the emulator costs. The limits are loose (a test must not fail on a busy machine); run
//! `cargo test -p lab-emulator --release --test speed -- --nocapture --test-threads 1` to read the figures.
#![allow(missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::{arg, module, plain, run};
use lab_emulator::{Config, Options};

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

#[test]
fn a_tiled_matmul_of_256() {
    let m = module("matmul.cu", &["matmul<16>"]);
    let n = 256usize;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 5) as f32 - 2.0).collect();
    let mut c = vec![f32::NAN; n * n];
    let config =
        Config { grid: [16, 16, 1], block: [16, 16, 1], dynamic_shared: 0, cooperative: false };
    let options = Options { threads: 1, ..Options::default() };
    let best = best_of(5, || {
        let (mut pa, mut pb, mut pc) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        let mut size = n as i32;
        let mut args = [arg(&mut pa), arg(&mut pb), arg(&mut pc), arg(&mut size)];
        run(&m, "matmul<16>", &config, &mut args, &options).unwrap();
    });
    for (row, column) in [(0, 0), (17, 200), (255, 255), (100, 3)] {
        let expected: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
        assert_eq!(c[row * n + column], expected, "small integers: exact");
    }
    println!("matmul 256, 16x16 tiles, one core: {best:?} (2,097,152 barrier waits)");
    assert!(best < Duration::from_millis(1000), "{best:?}");
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
