//! What must hold of training, on every device.

pub(crate) mod follow;
pub(crate) mod outputs;
pub(crate) mod runs;
pub(crate) mod scale;
pub(crate) mod stops;

use lab_harness::suite::{Check, Suite};
use lab_reference::lstm::Network;

use super::{Config, Data, Model, Schedule};

/// The checks of this crate: they need kernels of lstm_fused that nothing else launches.
pub static SUITE: Suite = Suite { name: "lab-lstm", stage: "lstm_fused", checks: CHECKS };

static CHECKS: &[Check] = &[
    Check { name: "training_follows_the_reference", run: follow::training_follows_the_reference },
    Check {
        name: "a_batch_may_be_larger_than_the_data",
        run: follow::a_batch_may_be_larger_than_the_data,
    },
    Check { name: "training_in_halves_stays_near", run: follow::training_in_halves_stays_near },
    Check {
        name: "gradients_are_those_of_differences",
        run: follow::gradients_are_those_of_differences,
    },
    Check { name: "dropout_is_philox", run: follow::dropout_is_philox },
    Check { name: "a_power_of_two_as_loss_scale", run: scale::a_power_of_two_as_loss_scale },
    Check {
        name: "a_step_left_out_starts_the_count_anew",
        run: scale::a_step_left_out_starts_the_count_anew,
    },
    Check {
        name: "the_loss_scale_follows_the_gradients",
        run: scale::the_loss_scale_follows_the_gradients,
    },
    Check { name: "the_first_bad_tensor_is_named", run: stops::the_first_bad_tensor_is_named },
    Check { name: "outputs_without_training", run: outputs::outputs_without_training },
    Check { name: "far_apart_outputs_give_numbers", run: outputs::far_apart_outputs_give_numbers },
    Check { name: "training_again_is_the_same", run: runs::training_again_is_the_same },
    Check {
        name: "a_step_of_one_layer_is_six_launches",
        run: runs::a_step_of_one_layer_is_six_launches,
    },
    Check {
        name: "training_with_gates_computed_again",
        run: runs::training_with_gates_computed_again,
    },
    Check { name: "a_resumed_run_is_the_same", run: runs::a_resumed_run_is_the_same },
    Check {
        name: "training_that_cannot_be_is_refused",
        run: stops::training_that_cannot_be_is_refused,
    },
    Check { name: "the_sine_is_learnt", run: runs::the_sine_is_learnt },
    Check { name: "a_text_is_learnt", run: runs::a_text_is_learnt },
];

/// Two waves of unlike lengths, side by side.
fn waves(rows: usize) -> Data {
    let row = |t: usize| [(t as f64 * 0.7).sin(), (t as f64 * 0.31).cos() * 0.5];
    Data::Series { values: (0..rows).flat_map(row).collect(), columns: 2 }
}

fn text(rows: usize) -> Data {
    let token = |t: usize| [0, 1, 2, 1, 3][t % 5] + i32::from(t % 7 == 3);
    Data::Text { tokens: (0..rows).map(token).collect(), classes: 5 }
}

/// A small training, and what it is of: ten windows in threes.
fn series(config: Config) -> (Model, Config, Data, Vec<usize>) {
    let config = Config { window: 4, batch: 3, schedule: Schedule::constant(0.05), ..config };
    let data = waves(14);
    let starts = data.starts(4, 1);
    (Model::forecast(Network { layers: 2, ..Network::lstm(2, 5) }), config, data, starts)
}
