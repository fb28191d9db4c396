//! What each feature of CUDA that the emulator offers must compute.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use half::{bf16, f16};
use lab_emulator::{Config, Module, Options, Order};

static FEATURES: LazyLock<Arc<Module>> = LazyLock::new(|| {
    module(
        "features.cu",
        &[
            "coordinates",
            "block_votes",
            "early_exit",
            "warp_sum<float>",
            "warp_sum<int>",
            "warp_sum<__half>",
            "warp_sum<double>",
            "divergent_halves",
            "atomics",
            "half_types",
            "half_back",
            "half_arithmetic<__half>",
            "half_arithmetic<__nv_bfloat16>",
            "grid_rounds",
            "flag_chain",
            "tiles",
            "match_and_reduce",
            "in_branches",
            "integer_atomics",
            "vectors_and_maths",
            "half_pairs",
            "clock_and_printf",
        ],
    )
});

/// Every schedule that a result must not depend on.
fn schedules() -> impl Iterator<Item = Options> {
    [
        Order::Forward,
        Order::Reverse,
        Order::Random(1),
        Order::Random(2),
        Order::Warps,
        Order::Starve(1),
    ]
    .into_iter()
    .flat_map(|order| [1, 2].map(|threads| Options { order, threads, ..Options::default() }))
}

#[test]
fn coordinates_cover_the_grid_in_every_schedule() {
    for options in schedules() {
        let (grid, block) = ([3u32, 2, 2], [5u32, 3, 2]);
        let total = (grid.iter().product::<u32>() * block.iter().product::<u32>()) as usize;
        let mut out = vec![u32::MAX; 6 * total];
        let mut p = out.as_mut_ptr();
        let config = Config { grid, block, ..plain(1, 1) };
        run(&FEATURES, "coordinates", &config, &mut [arg(&mut p)], &options).unwrap();
        let mut expected = Vec::new();
        let each = |[x, y, z]: [u32; 3]| {
            (0..z).flat_map(move |k| (0..y).flat_map(move |j| (0..x).map(move |i| [i, j, k])))
        };
        for b in each(grid) {
            for t in each(block) {
                expected.extend(t.into_iter().chain(b));
            }
        }
        assert_eq!(out, expected, "{options:?}");
    }
}

#[test]
fn barriers_vote_and_do_not_wait_for_threads_that_left() {
    for options in schedules() {
        let mut out = vec![-1i32; 100];
        let mut p = out.as_mut_ptr();
        run(&FEATURES, "block_votes", &plain(1, 100), &mut [arg(&mut p)], &options).unwrap();
        assert_eq!(out, vec![50 * 8 + 4 + 1; 100]);
        out.fill(-1);
        run(&FEATURES, "early_exit", &plain(1, 100), &mut [arg(&mut p)], &options).unwrap();
        assert!(out.iter().enumerate().all(|(i, &v)| v == if i % 2 == 0 { 50 } else { -1 }));
    }
}

#[test]
fn shuffles_move_every_type_and_divergent_halves_meet_apart() {
    fn sum<T: Copy + PartialEq + std::fmt::Debug>(name: &str, from: fn(f64) -> T) {
        for options in schedules() {
            let x: Vec<T> = (0..32).map(|i| from(f64::from(i))).collect();
            let mut out = x.clone();
            let (mut px, mut po) = (x.as_ptr(), out.as_mut_ptr());
            run(&FEATURES, name, &plain(1, 32), &mut [arg(&mut px), arg(&mut po)], &options)
                .unwrap();
            assert_eq!(out, vec![from(496.0); 32], "{name}");
        }
    }
    sum("warp_sum<float>", |v| v as f32);
    sum("warp_sum<double>", |v| v);
    sum("warp_sum<int>", |v| v as i32);
    sum("warp_sum<__half>", f16::from_f64);
    for options in schedules() {
        let mut out = vec![-1i32; 32];
        let mut p = out.as_mut_ptr();
        run(&FEATURES, "divergent_halves", &plain(1, 32), &mut [arg(&mut p)], &options).unwrap();
        assert_eq!(out, [vec![3; 16], vec![8; 16]].concat());
    }
}

#[test]
fn shared_memory_starts_poisoned_in_every_block() {
    let (mut fixed, mut dynamic) = (vec![0f32; 64], vec![0f32; 64]);
    let (mut pf, mut pd) = (fixed.as_mut_ptr(), dynamic.as_mut_ptr());
    let config = Config { dynamic_shared: 256, ..plain(3, 64) };
    run(
        &module("poison.cu", &["poison"]),
        "poison",
        &config,
        &mut [arg(&mut pf), arg(&mut pd)],
        &Options::default(),
    )
    .unwrap();
    assert!(fixed.iter().chain(&dynamic).all(|v| v.is_nan()));
}

/// As GPUs have it, though nothing promises it: ThunderKittens makes matrix descriptors of generic addresses.
#[test]
fn a_generic_address_of_shared_memory_ends_in_its_place() {
    let module = module("poison.cu", &["places"]);
    for dynamic_shared in [64, 200_000] {
        let mut out = [0u32; 4];
        let mut p = out.as_mut_ptr();
        let config = Config { dynamic_shared, ..plain(2, 1) };
        run(&module, "places", &config, &mut [arg(&mut p)], &Options::default()).unwrap();
        assert_eq!(out, [1024 + 48; 4]);
    }
}

#[test]
fn atomics_count_and_a_lock_guards() {
    for options in schedules() {
        let (mut counter, mut sum, mut big, mut largest) = ([0i32; 3], 0f32, 0u64, i32::MIN);
        let mut p = (counter.as_mut_ptr(), &raw mut sum, &raw mut big, &raw mut largest);
        let mut args = [arg(&mut p.0), arg(&mut p.1), arg(&mut p.2), arg(&mut p.3)];
        run(&FEATURES, "atomics", &plain(7, 96), &mut args, &options).unwrap();
        assert_eq!((counter, sum, big, largest), ([672, 0, 672], 336.0, 672 << 33, 671));
    }
}

#[test]
fn conversions_agree_with_the_half_crate_on_every_pattern() {
    // All halves, and f32 values around every rounding boundary, and a dense sample.
    let mut x: Vec<f32> = Vec::new();
    for bits in 0..=u16::MAX {
        for base in [f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32()] {
            let b = base.to_bits();
            x.extend(
                [
                    b,
                    b.wrapping_add(1),
                    b.wrapping_sub(1),
                    b ^ 0x1000,
                    b ^ 0x1001,
                    b ^ 0x8000,
                    b ^ 0x7FFF,
                ]
                .map(f32::from_bits),
            );
        }
    }
    x.extend((0..u32::MAX).step_by(4099).map(f32::from_bits));
    let n = x.len();
    let (mut h, mut b) = (vec![f16::ZERO; n], vec![bf16::ZERO; n]);
    let (mut px, mut ph, mut pb, mut count) =
        (x.as_ptr(), h.as_mut_ptr(), b.as_mut_ptr(), n as i32);
    let config = plain((n as u32).div_ceil(256), 256);
    let mut args = [arg(&mut px), arg(&mut ph), arg(&mut pb), arg(&mut count)];
    run(&FEATURES, "half_types", &config, &mut args, &Options::default()).unwrap();
    for i in 0..n {
        let (eh, eb) = (f16::from_f32(x[i]), bf16::from_f32(x[i]));
        let same = |a: u16, b: u16, nan: (bool, bool)| a == b || nan == (true, true);
        assert!(same(h[i].to_bits(), eh.to_bits(), (h[i].is_nan(), eh.is_nan())), "f16 {:e}", x[i]);
        assert!(
            same(b[i].to_bits(), eb.to_bits(), (b[i].is_nan(), eb.is_nan())),
            "bf16 {:e}",
            x[i]
        );
    }
    let h: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let b: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let (mut x, mut y) = (vec![0f32; 65536], vec![0f32; 65536]);
    let mut p = (h.as_ptr(), b.as_ptr(), x.as_mut_ptr(), y.as_mut_ptr(), 65536i32);
    let mut args = [arg(&mut p.0), arg(&mut p.1), arg(&mut p.2), arg(&mut p.3), arg(&mut p.4)];
    run(&FEATURES, "half_back", &plain(256, 256), &mut args, &Options::default()).unwrap();
    for i in 0..65536 {
        assert!(x[i].to_bits() == h[i].to_f32().to_bits() || h[i].is_nan() && x[i].is_nan());
        assert!(y[i].to_bits() == b[i].to_f32().to_bits() || b[i].is_nan() && y[i].is_nan());
    }
}

#[test]
fn half_arithmetic_rounds_once_after_each_operation() {
    fn check<H: Copy + num_traits_like::Half>(name: &str) {
        let mut state = 1u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            H::from_bits((state >> 16) as u16)
        };
        let n = 200_000usize;
        let a: Vec<H> = (0..n).map(|_| draw()).collect();
        let b: Vec<H> = (0..n).map(|_| draw()).collect();
        let mut out = vec![H::from_bits(0); 4 * n];
        let (mut pa, mut pb, mut po, mut count) =
            (a.as_ptr(), b.as_ptr(), out.as_mut_ptr(), n as i32);
        let mut args = [arg(&mut pa), arg(&mut pb), arg(&mut po), arg(&mut count)];
        let config = plain((n as u32).div_ceil(256), 256);
        run(&FEATURES, name, &config, &mut args, &Options::default()).unwrap();
        for i in 0..n {
            let (x, y) = (a[i].to_f64(), b[i].to_f64());
            // Sums and products of two halves are exact in f64 up to bf16's range of exponents;
            // where a sum is not, the smaller term is far below the last place of the result.
            let expected = [x + y, x * y, x / y].map(H::from_f64);
            for (k, e) in expected.into_iter().enumerate() {
                let got = out[4 * i + k];
                let same = got.to_bits() == e.to_bits() || got.nan() && e.nan();
                assert!(same, "{name} op {k}: {x:e}, {y:e}: {:e}, {:e}", got.to_f64(), e.to_f64());
            }
        }
    }
    check::<f16>("half_arithmetic<__half>");
    check::<bf16>("half_arithmetic<__nv_bfloat16>");
}

/// What the test above needs of both half types.
mod num_traits_like {
    pub(crate) trait Half {
        fn from_bits(bits: u16) -> Self;
        fn to_bits(self) -> u16;
        fn from_f64(v: f64) -> Self;
        fn to_f64(self) -> f64;
        fn nan(self) -> bool;
    }
    macro_rules! half {
        ($t:ty) => {
            impl Half for $t {
                fn from_bits(bits: u16) -> Self {
                    <$t>::from_bits(bits)
                }
                fn to_bits(self) -> u16 {
                    <$t>::to_bits(self)
                }
                fn from_f64(v: f64) -> Self {
                    <$t>::from_f64(v)
                }
                fn to_f64(self) -> f64 {
                    <$t>::to_f64(self)
                }
                fn nan(self) -> bool {
                    <$t>::is_nan(self)
                }
            }
        };
    }
    half!(half::f16);
    half!(half::bf16);
}

#[test]
fn the_whole_grid_meets() {
    for options in schedules() {
        let mut values = vec![1f32; 20];
        let (mut p, mut rounds) = (values.as_mut_ptr(), 5i32);
        let config = Config { cooperative: true, ..plain(20, 64) };
        let mut args = [arg(&mut p), arg(&mut rounds)];
        run(&FEATURES, "grid_rounds", &config, &mut args, &options).unwrap();
        assert!(values.iter().all(|v| (v - 6.0).abs() < 1e-5), "{values:?} {options:?}");
    }
}

#[test]
fn resident_blocks_may_poll_for_each_other() {
    for options in schedules() {
        let mut flags = vec![0i32; 16];
        let mut p = flags.as_mut_ptr();
        let config = Config { cooperative: true, ..plain(16, 32) };
        run(&FEATURES, "flag_chain", &config, &mut [arg(&mut p)], &options).unwrap();
        assert_eq!(flags, vec![1; 16]);
    }
}

#[test]
fn tiles_of_a_warp_reduce_apart() {
    for options in schedules() {
        let mut out = vec![0i32; 64];
        let mut p = out.as_mut_ptr();
        run(&FEATURES, "tiles", &plain(1, 64), &mut [arg(&mut p)], &options).unwrap();
        assert!(out.iter().enumerate().all(|(i, &v)| v == 2800 + i as i32 / 8), "{out:?}");
    }
}

#[test]
fn matches_and_reductions_of_a_warp() {
    for options in schedules() {
        let mut out = vec![0u32; 256];
        let mut p = out.as_mut_ptr();
        run(&FEATURES, "match_and_reduce", &plain(1, 32), &mut [arg(&mut p)], &options).unwrap();
        for lane in 0..32 {
            assert_eq!(out[lane], 0x1111_1111 << (lane % 4));
            assert_eq!((out[32 + lane], out[64 + lane]), (u32::MAX, 1));
            assert_eq!((out[96 + lane], out[128 + lane] as i32), (496, -5));
            assert_eq!((out[160 + lane], out[192 + lane]), (u32::MAX, 0));
            assert_eq!(out[224 + lane], u32::MAX);
        }
    }
}

#[test]
fn the_active_lanes_are_those_of_the_branch() {
    for options in schedules() {
        let (mut out, mut sums) = (vec![0u32; 64 * 32], vec![0i32; 2]);
        let (mut p, mut q) = (out.as_mut_ptr(), sums.as_mut_ptr());
        run(&FEATURES, "in_branches", &plain(1, 64), &mut [arg(&mut p), arg(&mut q)], &options)
            .unwrap();
        let third = (0..32).filter(|lane| lane % 3 == 1).fold(0u32, |mask, lane| mask | 1 << lane);
        assert_eq!(sums, [11, 11]);
        assert!(out[..64].iter().all(|&mask| mask == third), "{options:?}: {:x?}", &out[..64]);
        for (i, row) in out[64..].chunks(64).enumerate() {
            let both = if i < 30 { 3 << 30 } else { 1 << 31 };
            assert_eq!((row[31], row[63]), (both, both), "{options:?}, step {i}");
            assert_eq!(row[30], if i < 30 { both } else { 0 });
        }
    }
}

/// A thread that polls sees what another wrote in the meantime, and that alone is what it has read.
#[test]
fn a_polled_flag_orders_what_is_read_behind_it() {
    let module = checked("features.cu", &["polls"]);
    for options in schedules() {
        let mut arrays = Arrays::new();
        let data = arrays.unwritten::<i32>(32);
        let flag = arrays.of(&[0i32]);
        let out = arrays.unwritten::<i32>(32);
        let (mut p, mut f, mut o) = (data, flag, out);
        let config = Config { cooperative: true, ..plain(2, 32) };
        let mut arguments = [arg(&mut p), arg(&mut f), arg(&mut o)];
        run(&module, "polls", &config, &mut arguments, &options)
            .unwrap_or_else(|e| panic!("{options:?}: {e}"));
        let expected: Vec<i32> = (0..32).map(|i| 7 + 31 - i).collect();
        assert_eq!(arrays.read(out), expected);
    }
}

#[test]
fn every_atomic_is_indivisible() {
    for options in schedules() {
        let (mut i, mut u, mut f) = ([0i32, -1, 0, 0, 0], [0u32, 0], [0f32, 2.0]);
        let (mut pi, mut pu, mut pf) = (i.as_mut_ptr(), u.as_mut_ptr(), f.as_mut_ptr());
        let mut args = [arg(&mut pi), arg(&mut pu), arg(&mut pf)];
        run(&FEATURES, "integer_atomics", &plain(8, 64), &mut args, &options).unwrap();
        // 0 ^ 1 ^ … ^ 511 is 0; 512 steps modulo 10, up and down.
        assert_eq!(i, [-511, i32::MIN, i32::MAX, 0, -1024]);
        assert_eq!((u, f), ([2, 8], [2.0, 5.0]));
    }
}

#[test]
fn vectors_move_whole_and_fast_maths_is_close() {
    let x: Vec<[f32; 4]> = (0..32).map(|i| [0.0, 1.0, 2.0, 3.0].map(|k| k + i as f32)).collect();
    let y: Vec<[f32; 2]> = (0..32).map(|i| [0.0, 100.0 * i as f32]).collect();
    let (mut out, mut maths) = (vec![[0f32; 4]; 32], [0f32; 11]);
    let (mut px, mut po) = (x.as_ptr(), out.as_mut_ptr());
    let (mut py, mut pm) = (y.as_ptr(), maths.as_mut_ptr());
    let mut args = [arg(&mut px), arg(&mut py), arg(&mut po), arg(&mut pm)];
    run(&FEATURES, "vectors_and_maths", &plain(1, 32), &mut args, &Options::default()).unwrap();
    for i in 0..32 {
        let [a, b, c, d] = x[i];
        assert_eq!(out[i], [d + 100.0 * i as f32, c, b, a]);
    }
    let expected = [
        std::f32::consts::E,
        std::f32::consts::LN_2,
        1.0 / 3.0,
        0.5,
        0.125,
        1.0,
        8.0,
        1.0,
        8.0,
        31.0,
        4.0,
    ];
    assert!(maths.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{maths:?}");
}

#[test]
fn pairs_of_halves_round_each_half() {
    let x: Vec<[f16; 2]> =
        (0..32).map(|i| [0.1, 1.7].map(|k| f16::from_f32(k * i as f32))).collect();
    let (mut out, mut total) = (vec![[f16::ZERO; 2]; 32], f16::ZERO);
    let (mut px, mut po, mut pt) = (x.as_ptr(), out.as_mut_ptr(), &raw mut total);
    let mut args = [arg(&mut px), arg(&mut po), arg(&mut pt)];
    let options = Options { threads: 1, ..Options::default() };
    run(&FEATURES, "half_pairs", &plain(1, 32), &mut args, &options).unwrap();
    let mut sum = f16::ZERO;
    for i in 0..32 {
        for k in 0..2 {
            let v = f16::from_f64(x[i][k].to_f64().mul_add(x[i][k].to_f64(), 1.0));
            let square = f16::from_f64(v.to_f64() * v.to_f64());
            assert_eq!(out[i][k], f16::from_f64(square.to_f64() - v.to_f64()), "{i} {k}");
            if k == 0 {
                sum = f16::from_f64(sum.to_f64() + v.to_f64());
            }
        }
    }
    assert_eq!(total, sum, "forward order, rounded after each addition");
}

#[test]
fn clocks_run_forward() {
    let mut out = [i64::MIN; 32];
    let mut p = out.as_mut_ptr();
    run(&FEATURES, "clock_and_printf", &plain(1, 32), &mut [arg(&mut p)], &Options::default())
        .unwrap();
    assert!(out.iter().all(|&t| t >= 0), "{out:?}");
}
