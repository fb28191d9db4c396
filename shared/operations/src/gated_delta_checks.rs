//! What must hold of the gated delta rule, over sequences and for one position.

use lab_device::{DType, Device};
use lab_families::gdn;
use lab_harness::plan::Slot;
use lab_harness::{Options, Plan, Problem, Tensor, Tensors, Version, distance};

use crate::check_data::{TYPES, inputs, of, relative};
use crate::{GatedDelta, GatedDeltaSizes, GatedDeltaStep, GatedDeltaUpstream};

static BOTH: &dyn Version = &gdn_fwbw::CHUNKS;

pub(crate) const SIZES: GatedDeltaSizes =
    GatedDeltaSizes { batch: 1, heads: 4, shared_heads: 2, positions: 70, keys: 16, values: 32 };

pub(crate) fn drawn(dtype: DType) -> Tensors {
    let GatedDeltaSizes { batch, heads, shared_heads, positions, keys, values } = SIZES;
    let dims = gdn::sizes([batch, heads, shared_heads, positions, keys, values]);
    BOTH.inputs(&Problem::new(dims, dtype))
}

fn options(scale: f64) -> Options {
    Options::parse(&[format!("scale={scale}")], BOTH.info()).expect("an option of the family")
}

/// Two layers with the same q, k and gates. The second one's v is what the first one makes; each is held against the reference of
/// what it has been given in this run.
pub(crate) fn gated_delta_layers_of_one_plan_are_right(device: &Device) {
    for (dtype, bound) in TYPES {
        let all = drawn(dtype);
        let mut plan = Plan::new(device);
        let [q, k, v, g, beta, dh] = inputs(&mut plan, &all, ["q", "k", "v", "g", "beta", "dh"]);
        let first = GatedDelta::new(dtype, SIZES, [q, k, v], [g, beta]);
        let (of_first, saved_first) = first.add_forward_saving(&mut plan).unwrap();
        let second = GatedDelta { v: of_first.h, scale: Some(0.7), ..first };
        let (of_second, saved_second) = second.add_forward_saving(&mut plan).unwrap();
        let alone = second.add_forward(&mut plan).unwrap();
        let by_second = second.add_backward(&mut plan, &saved_second, dh).unwrap();
        let [by_first, again] =
            [(); 2].map(|()| first.add_backward(&mut plan, &saved_first, by_second.v).unwrap());
        let gradients = [by_second, by_first, again].map(|by| [by.q, by.k, by.v, by.g, by.beta]);
        let results = [of_first.h, of_second.h, alone.h];
        results.iter().chain(gradients.as_flattened()).for_each(|slot| plan.keep(*slot));
        let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
        run.run().unwrap();

        let read = |slot: Slot| run.read(slot).unwrap();
        let like_v = |slot| Tensor { shape: all["v"].shape.clone(), ..read(slot) };
        let expected = |changes: [(&str, Tensor); 1], scale| {
            let mut own = all.clone();
            own.extend(changes.map(|(name, tensor)| (name.to_owned(), tensor)));
            BOTH.reference(&own, &options(scale))
        };
        let of_layers = [
            expected([("dh", like_v(by_second.v))], 0.25),
            expected([("v", like_v(of_first.h))], 0.7),
        ];
        let [first, second] = &of_layers;
        let named = ["dq", "dk", "dv", "dg", "dbeta"];
        let mut found = vec![("h", of_first.h, first), ("h", of_second.h, second)];
        found.push(("h", alone.h, second));
        for (slots, expected) in gradients.iter().zip([second, first]) {
            found.extend(named.into_iter().zip(*slots).map(|(name, slot)| (name, slot, expected)));
        }
        for (n, (name, slot, expected)) in found.into_iter().enumerate() {
            let error = relative(&read(slot), &of(expected, name));
            assert!(error <= bound, "{dtype}, result {n}, {name}: {error}");
        }
        for (once, twice) in gradients[1].iter().zip(&gradients[2]) {
            assert!(read(*once) == read(*twice), "{dtype}: a backward pass added twice");
        }
    }
}

/// A sequence in two parts, of which the second begins with the state that the first ends with, has the results and gradients of
/// the whole; the last position, as a step behind the state of all before, too.
pub(crate) fn gated_delta_parts_and_a_step_are_the_whole(device: &Device) {
    for (dtype, bound) in TYPES {
        let (whole, end) = (drawn(dtype), SIZES.positions - 1);
        let parts = [0..37, 37..SIZES.positions];
        let mut all = Tensors::new();
        for (n, positions) in parts.iter().enumerate() {
            let own = |(name, t): (&String, &Tensor)| {
                (format!("{name} of part {n}"), t.positions(positions.clone()))
            };
            all.extend(whole.iter().map(own));
        }
        let step = |(name, t): (&String, &Tensor)| (format!("{name} of step"), t.position(end));
        all.extend(whole.iter().map(step));
        let before =
            |(name, t): (&String, &Tensor)| (format!("{name} before"), t.positions(0..end));
        all.extend(whole.iter().map(before));

        let mut plan = Plan::new(device);
        let operation = |plan: &mut Plan, of: &str, positions| {
            let names = ["q", "k", "v", "g", "beta", "dh"].map(|name| format!("{name} {of}"));
            let [q, k, v, g, beta, dh] = inputs(plan, &all, names.each_ref().map(String::as_str));
            let sizes = GatedDeltaSizes { positions, ..SIZES };
            let delta = GatedDelta::new(dtype, sizes, [q, k, v], [g, beta]);
            (GatedDelta { state_gradients: true, ..delta }, dh)
        };
        let (first, dh_first) = operation(&mut plan, "of part 0", parts[0].len());
        let (second, dh_second) = operation(&mut plan, "of part 1", parts[1].len());
        let first = GatedDelta { last_state: true, ..first };
        let (of_first, saved_first) = first.add_forward_saving(&mut plan).unwrap();
        let second = GatedDelta { state: of_first.state, last_state: true, ..second };
        let (of_second, saved_second) = second.add_forward_saving(&mut plan).unwrap();
        let by_second = second.add_backward(&mut plan, &saved_second, dh_second).unwrap();
        let from = GatedDeltaUpstream { dh: dh_first, state: by_second.state };
        let by_first = first.add_backward(&mut plan, &saved_first, from).unwrap();
        let cut_off = first.add_backward(&mut plan, &saved_first, dh_first).unwrap();
        let found = [
            ("h", [of_first.h, of_second.h]),
            ("dq", [by_first.q, by_second.q]),
            ("dk", [by_first.k, by_second.k]),
            ("dv", [by_first.v, by_second.v]),
            ("dg", [by_first.g, by_second.g]),
            ("dbeta", [by_first.beta, by_second.beta]),
        ];

        let (ahead, _) = operation(&mut plan, "before", end);
        let state = GatedDelta { last_state: true, ..ahead }.add_forward(&mut plan).unwrap().state;
        let state = state.expect("it is wanted");
        let names = ["q", "k", "v", "g", "beta"].map(|name| format!("{name} of step"));
        let [q, k, v, g, beta] = inputs(&mut plan, &all, names.each_ref().map(String::as_str));
        let (sizes, qkv, gates) = (SIZES, [q, k, v], [g, beta]);
        let step = GatedDeltaStep { dtype, sizes, qkv, gates, state, scale: None, version: None };
        let of_step = step.add(&mut plan).unwrap();

        found.iter().flat_map(|(_, slots)| slots).for_each(|slot| plan.keep(*slot));
        let last = of_second.state.expect("it is wanted");
        [cut_off.v, of_step, last, state].iter().for_each(|slot| plan.keep(*slot));
        let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
        run.run().unwrap();

        let set = Options::parse(&["last_state=yes"], BOTH.info()).unwrap();
        let expected = BOTH.reference(&whole, &set);
        for (name, slots) in found {
            let like = &whole[if name == "h" { "v" } else { &name[1..] }];
            let exact = Tensor::rounded(DType::F64, &like.shape, &of(&expected, name));
            let [found, exact] = [
                slots.map(|slot| run.read(slot).unwrap().values()).concat(),
                parts.clone().map(|positions| exact.positions(positions).values()).concat(),
            ];
            let error = distance(&found, &exact);
            assert!(error <= bound, "{dtype}, {name}: {error}");
        }
        let h = Tensor::rounded(DType::F64, &whole["v"].shape, &of(&expected, "h"));
        let states = of(&expected, "CN");
        for (name, slot, expected) in [
            ("h of the step", of_step, &h.position(end).values()),
            ("the last state", last, &states),
            ("the state that the step leaves", state, &states),
        ] {
            let error = relative(&run.read(slot).unwrap(), expected);
            assert!(error <= bound, "{dtype}, {name}: {error}");
        }
        let [through, cut_off] = [by_first.v, cut_off.v].map(|slot| run.read(slot).unwrap());
        assert!(through != cut_off, "{dtype}: nothing comes through the state");
    }
}
