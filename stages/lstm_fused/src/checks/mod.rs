//! What must hold beside the error bounds.

mod refused;
mod results;
mod same;
mod slstm;

use lab_device::{DType, Device};
use lab_harness::suite::{Check, VersionCheck};
use lab_harness::{Tensors, Version, version_checks};
use lab_reference::lstm::{Cell, Network};

use results::{
    every_option_is_right, gates_that_are_shut_give_numbers, large_problems,
    rows_of_unlike_lengths, what_is_left_out_is_zero,
};
use same::{
    a_sequence_in_parts_is_the_same, any_schedule_gives_the_same, bytes_are_as_counted,
    gates_computed_again_are_right, nan_stays_in_its_row, rows_do_not_meet,
    the_forward_pass_alone_is_the_same,
};

use crate::posed::{Posed, errors};
use crate::{Lstm, Pass, VERSIONS, Way};

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    of "lstm";
    every_option_is_right,
    rows_of_unlike_lengths,
    what_is_left_out_is_zero,
    gates_that_are_shut_give_numbers,
    nan_stays_in_its_row,
    rows_do_not_meet,
    a_sequence_in_parts_is_the_same,
    the_forward_pass_alone_is_the_same,
    gates_computed_again_are_right,
    bytes_are_as_counted,
    any_schedule_gives_the_same in Ends,
    large_problems in Large,
];

pub(crate) static CHECKS: &[Check] = &[
    Check::new("what_does_not_fit_is_refused", refused::what_does_not_fit_is_refused),
    Check::new("a_mean_far_from_zero", results::a_mean_far_from_zero),
    Check::new("networks_of_slstms_are_right", slstm::networks_of_slstms_are_right),
    Check::new("an_slstm_goes_on_from_its_states", slstm::an_slstm_goes_on_from_its_states),
    Check::new("what_no_slstm_has_is_refused", slstm::what_no_slstm_has_is_refused),
];

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Those that a way takes, the nearest to f32 first.
fn dtypes(way: Way) -> &'static [DType] {
    if way.on_tensor_cores() { &DTYPES[2..] } else { &DTYPES }
}

/// Without what the way does not take, and with as many units as its products take.
fn taken_by(way: Way, network: Network) -> Network {
    let eights = |size: usize| if way.has_products() { size.next_multiple_of(8) } else { size };
    Network {
        peephole: network.peephole && !way.on_tensor_cores(),
        hidden: eights(network.hidden),
        ..network
    }
}

/// How a version goes through the steps: with all the options that versions do not have.
fn way_of(version: &dyn Version) -> Way {
    let found = VERSIONS.iter().find(|v| v.info().name == version.info().name);
    found.expect("a version of this stage").way
}

fn run(device: &Device, posed: &Posed, tensors: &Tensors) -> Tensors {
    let lstm = Lstm::by(posed.way, posed.network).unwrap();
    lstm.run(device, tensors, Pass::ForwardBackward).unwrap()
}

/// At most four times what was seen of all networks.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 5e-15,
        DType::F32 => 2e-6,
        DType::F16 => 1.5e-3,
        _ => 1e-2,
    }
}

/// Every output within the bound of its type.
#[track_caller]
fn assert_right(device: &Device, posed: &Posed, tensors: &Tensors) {
    assert_near(posed, tensors, &run(device, posed, tensors));
}

#[track_caller]
fn assert_near(posed: &Posed, tensors: &Tensors, out: &Tensors) {
    for (name, error) in errors(out, &posed.reference(tensors), 0.0) {
        assert!(error <= bound(posed.dtype), "{posed:?}: {name}: error {error:.2e}");
    }
}

/// Whether a row has a block: a norm is over all its units.
fn takes_norm(way: Way) -> bool {
    matches!(way, Way::Cell | Way::Sequence)
}

fn normed(network: Network) -> Network {
    Network { layer_norm: Some(1e-5), ..network }
}

/// And with layer norm, where that goes.
fn with_norm(way: Way, network: Network) -> Vec<Network> {
    let mut all = vec![network];
    all.extend(takes_norm(way).then(|| normed(network)));
    all
}

/// Networks with each option, and with all of them; GRUs where they go.
fn networks(way: Way) -> Vec<Network> {
    let (plain, wide) = (Network::lstm(5, 7), Network::lstm(1, 33));
    let mut all = vec![
        plain,
        Network { bias: false, ..plain },
        Network { peephole: true, ..plain },
        Network { bidirectional: true, ..plain },
        Network { layers: 3, ..plain },
        Network { layers: 2, bidirectional: true, peephole: true, ..plain },
        Network { layers: 2, bidirectional: true, bias: false, ..wide },
    ];
    if way == Way::Grid {
        all.drain(..5); // the cluster's kernels, but for the way that numbers take
    }
    if way.on_tensor_cores() {
        // Eight blocks of 256 threads are slow to emulate: few, and of the first of both ways, but for the products
        // that of the other, fewer still.
        let both = Network { layers: 2, bidirectional: true, ..plain };
        all = vec![Network { bias: false, ..plain }];
        // Sixteen blocks that wait for each other: as few as there can be.
        all.extend((way.has_products() && way != Way::TensorGrid).then_some(both));
        all = all.into_iter().map(|network| taken_by(way, network)).collect();
    }
    if takes_norm(way) {
        all.extend([
            normed(plain),
            normed(Network { layers: 2, bidirectional: true, peephole: true, ..plain }),
            normed(Network { bias: false, peephole: true, ..Network::lstm(3, 150) }),
            normed(Network::lstm(3, 1)),
        ]);
    }
    if way == Way::Sequence {
        // Warps of which all units are there, some and none; few columns of x.
        all.extend([normed(wide), normed(Network::lstm(2, 70))]);
    }
    if way == Way::Cell {
        let (plain, wide) = (Network::gru(5, 7), Network::gru(2, 35));
        all.extend([
            plain,
            Network { bias: false, ..plain },
            Network { layers: 2, bidirectional: true, ..wide },
        ]);
    }
    all
}

fn stack() -> Network {
    let one = Network::lstm(4, 5);
    Network { layers: 2, bidirectional: true, peephole: true, ..one }
}

/// Several layers and directions; on tensor cores, which are slow to emulate, one layer, and of the first way there one
/// direction.
fn stack_of(way: Way) -> Network {
    let layers = if way.on_tensor_cores() { 1 } else { 2 };
    taken_by(way, Network { layers, bidirectional: way != Way::Tensor, ..stack() })
}

/// And with layer norm, and as a GRU, where that goes.
fn stacks(way: Way) -> Vec<Network> {
    let mut all = with_norm(way, stack_of(way));
    if way == Way::Cell {
        all.push(Network { cell: Cell::Gru, peephole: false, ..stack() });
    }
    all
}
