//! What must hold of gradients that go through states.

use std::ops::Range;

use lab_device::{DType, Device};
use lab_families::vlstm::forward_backward_reference;
use lab_harness::{Plan, Tensor, Tensors, Version, distance};

use crate::check_data::{drawn_of, inputs, of};
use crate::choose::needed_arch;
use crate::{NormalizerGrad, Sizes, Upstream, Vlstm};

static BOTH: &dyn Version = &vlstm_fwbw_v4::SEGMENTED;

const WHOLE: Sizes = Sizes { batch: 1, heads: 2, positions: 104, keys: 16, values: 32 };
/// More keys and values than a walk's registers hold.
const WIDE: Sizes = Sizes { batch: 1, heads: 1, positions: 70, keys: 144, values: 272 };
const NAMES: [&str; 6] = ["q", "k", "v", "i", "f", "dh"];

/// Some positions of all heads of values \[1, NH, S, …\].
fn cut(of: Sizes, values: &[f64], positions: Range<usize>) -> Vec<f64> {
    let columns = values.len() / (of.heads * of.positions);
    let heads = values.chunks_exact(of.positions * columns);
    heads
        .flat_map(|head| &head[positions.start * columns..positions.end * columns])
        .copied()
        .collect()
}

/// A sequence in two parts, of which the second begins with the state that the first ends with, has the results and the gradients of
/// the whole: what the second part's loss says of the first part's tensors comes through the state alone.
pub(crate) fn a_sequence_in_two_parts_has_the_gradients_of_the_whole(device: &Device) {
    if needed_arch(BOTH, &vlstm_fwbw_v4::STAGE, device).is_some() {
        return;
    }
    let (dtype, bound) = (DType::BF16, 2e-2);
    for (of_whole, at) in [(WHOLE, 1), (WHOLE, 64), (WIDE, 64)] {
        let whole = drawn_of(of_whole, dtype);
        let parts = [0..at, at..of_whole.positions];
        let mut all = Tensors::new();
        let mut plan = Plan::new(device);
        let mut operations = Vec::new();
        for (n, positions) in parts.iter().enumerate() {
            let own = |name: &str| format!("{name} of part {n}");
            for name in NAMES {
                let mut shape = whole[name].shape.clone();
                shape[2] = positions.len();
                let values = cut(of_whole, &whole[name].values(), positions.clone());
                all.insert(own(name), Tensor::rounded(whole[name].dtype, &shape, &values));
            }
            let names = NAMES.map(own);
            let [q, k, v, i, f, dh] = inputs(&mut plan, &all, names.each_ref().map(String::as_str));
            let sizes = Sizes { positions: positions.len(), ..of_whole };
            let vlstm = Vlstm {
                state_gradients: true,
                normalizer_grad: NormalizerGrad::Exact,
                ..Vlstm::new(dtype, sizes, [q, k, v], [i, f])
            };
            operations.push((vlstm, dh));
        }
        let [(first, dh_first), (second, dh_second)] = operations[..] else { unreachable!() };
        let first = Vlstm { last_state: true, ..first };
        let (of_first, saved_first) = first.add_forward_saving(&mut plan).unwrap();
        let second = Vlstm { state: of_first.state, ..second };
        let (of_second, saved_second) = second.add_forward_saving(&mut plan).unwrap();
        let by_second = second.add_backward(&mut plan, &saved_second, dh_second).unwrap();
        let from = Upstream { dh: dh_first, state: by_second.state };
        let by_first = first.add_backward(&mut plan, &saved_first, from).unwrap();
        // The last state's gradient is zero where none is given.
        let cut_off = first.add_backward(&mut plan, &saved_first, dh_first).unwrap();

        let expected = forward_backward_reference(&whole, 1e-6, NormalizerGrad::Exact);
        let both = |name, first, second| (name, [first, second]);
        let found = [
            both("h", of_first.h, of_second.h),
            both("dq", by_first.q, by_second.q),
            both("dk", by_first.k, by_second.k),
            both("dv", by_first.v, by_second.v),
            both("di", by_first.i, by_second.i),
            both("df", by_first.f, by_second.f),
        ];
        found.iter().flat_map(|(_, slots)| slots).for_each(|slot| plan.keep(*slot));
        plan.keep(cut_off.v);
        let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
        run.run().unwrap();
        for (name, slots) in found {
            // Of both parts together: of one position alone dq is nothing but roundings.
            let found = slots.map(|slot| run.read(slot).unwrap().values()).concat();
            let expected = of(&expected, name);
            let expected =
                parts.clone().map(|positions| cut(of_whole, &expected, positions)).concat();
            let error = distance(&found, &expected);
            assert!(error <= bound, "{name} of {of_whole:?}, cut at {at}: {error}");
        }
        let [through, cut_off] = [by_first.v, cut_off.v].map(|slot| run.read(slot).unwrap());
        assert!(through != cut_off, "cut at {at}: nothing comes through the state");
    }
}
