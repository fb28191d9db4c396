//! What must hold of training, on every device.

pub(crate) mod follow;
pub(crate) mod outputs;
pub(crate) mod runs;
pub(crate) mod scale;
pub(crate) mod stops;

use lab_harness::suite::{Check, Suite};
use lab_reference::lstm::Network;

use super::{Config, Data, Model, Schedule};

/// The checks of this crate and of its kernels.
pub static SUITE: Suite = Suite::new("lab-lstm", "lstm_fused", CHECKS)
    .with_kernels("shared/models/lstm", crate::kernels::KERNELS);

static CHECKS: &[Check] = &[
    Check::new("training_follows_the_reference", follow::training_follows_the_reference),
    Check::new("a_batch_may_be_larger_than_the_data", follow::a_batch_may_be_larger_than_the_data),
    Check::new("training_in_halves_stays_near", follow::training_in_halves_stays_near),
    Check::new("gradients_are_those_of_differences", follow::gradients_are_those_of_differences),
    Check::new("dropout_is_philox", follow::dropout_is_philox),
    Check::new("a_power_of_two_as_loss_scale", scale::a_power_of_two_as_loss_scale),
    Check::new(
        "a_step_left_out_starts_the_count_anew",
        scale::a_step_left_out_starts_the_count_anew,
    ),
    Check::new("the_loss_scale_follows_the_gradients", scale::the_loss_scale_follows_the_gradients),
    Check::new("the_first_bad_tensor_is_named", stops::the_first_bad_tensor_is_named),
    Check::new("outputs_without_training", outputs::outputs_without_training),
    Check::new("far_apart_outputs_give_numbers", outputs::far_apart_outputs_give_numbers),
    Check::new("training_again_is_the_same", runs::training_again_is_the_same),
    Check::new("a_step_of_one_layer_is_six_launches", runs::a_step_of_one_layer_is_six_launches),
    Check::new("training_with_gates_computed_again", runs::training_with_gates_computed_again),
    Check::new("a_resumed_run_is_the_same", runs::a_resumed_run_is_the_same),
    Check::new("training_that_cannot_be_is_refused", stops::training_that_cannot_be_is_refused),
    Check::new("the_sine_is_learnt", runs::the_sine_is_learnt),
    Check::new("a_text_is_learnt", runs::a_text_is_learnt),
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
