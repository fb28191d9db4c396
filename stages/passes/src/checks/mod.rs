//! What must hold beside every operation's error bounds: other layouts and options than the versions have, extremes, what is
//! refused, and the same bits each run.

mod embedding;
mod layouts;
mod loss;
mod norms;
mod optimizer;
mod positions;
mod refused;

use lab_device::{DType, Device};
use lab_harness::suite::{Check, Tier};
use lab_harness::{Plan, Problem, Tensor, Tensors, run};

use crate::STAGE;

/// Functions as checks, each under its own name.
macro_rules! checks {
    ($($module:ident::$check:ident $(in $tier:ident)?),+ $(,)?) => {
        &[
            Check::new("results_do_not_change_from_run_to_run", results_do_not_change_from_run_to_run),
            $(Check::new(stringify!($check), $module::$check)$(.in_tier(Tier::$tier))?),+
        ]
    };
}

pub(crate) static CHECKS: &[Check] = checks![
    norms::norms_are_right_in_all_their_forms,
    norms::heads_are_normed_where_they_lie,
    norms::a_norm_of_large_values_does_not_overflow,
    layouts::gates_are_columns_of_wider_rows,
    layouts::gates_are_shut_where_documents_begin,
    layouts::heads_are_columns_of_wider_rows,
    layouts::swiglu_need_not_write_u_again,
    layouts::widened_gradients_take_the_place_or_join,
    layouts::narrowed_numbers_are_rounded_once,
    positions::positions_turn_columns_of_wider_rows,
    positions::a_cache_fills_as_all_positions_at_once,
    positions::dropout_chooses_by_seed_stream_and_step,
    embedding::a_tied_gradient_is_added_to,
    embedding::rows_that_were_used_are_cleared,
    embedding::rows_are_sorted_whatever_their_tokens,
    embedding::any_schedule_gives_the_same_gradient in Ends,
    loss::losses_are_right_under_all_options,
    loss::large_logits_are_right in Large,
    loss::padding_has_no_loss_and_no_gradient,
    loss::wide_rows_come_one_behind_the_other,
    loss::masks_and_nan_are_what_they_are,
    loss::nan_among_masks_is_not_lost,
    loss::pieces_of_rows_are_as_all_at_once,
    loss::the_gradient_has_the_scale_of_the_device,
    optimizer::many_steps_follow_the_reference,
    optimizer::gradients_of_ranks_are_added_up,
    optimizer::rounded_gradients_are_as_good_as_floats,
    optimizer::every_gradient_counts_for_the_norm,
    optimizer::squares_that_others_have_made_join,
    optimizer::a_step_that_is_not_finite_is_left_out,
    optimizer::a_loss_scale_follows_the_gradients,
    refused::what_does_not_fit_is_refused_by_name,
];

fn results_do_not_change_from_run_to_run(device: &Device) {
    for version in STAGE.versions {
        let info = version.info();
        for &dtype in info.dtypes {
            let problem = Problem::new(info.small(), dtype);
            let inputs = version.inputs(&problem);
            let once = run(*version, device, &inputs, &problem.options).unwrap();
            let twice = run(*version, device, &inputs, &problem.options).unwrap();
            assert_eq!(once, twice, "{} {dtype} on {}", info.full_name(), device.name());
        }
    }
}

/// Runs a plan once over these tensors; what has come out.
fn run_plan(plan: Plan, inputs: &Tensors) -> Tensors {
    let mut run = plan.bind().upload_inputs(inputs).unwrap().finish().unwrap();
    run.run().unwrap();
    lab_harness::Prepared::all_written(&run).unwrap();
    lab_harness::Prepared::outputs(&run).unwrap()
}

/// Numbers like noise, rounded.
fn noise(seed: u64, dtype: DType, shape: &[usize]) -> Tensor {
    Problem { seed, ..Problem::new(lab_harness::Dims::default(), dtype) }.normal(0, shape)
}

/// That the [distance](lab_harness::distance()) is within the bound.
fn assert_close(what: &str, got: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    let error = lab_harness::distance(got, expected);
    assert!(error <= bound, "{what}: error {error:.2e}, bound {bound:.0e}");
}

/// What one rounding to a type, and sums in f32, may be off.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 8e-4,
        DType::BF16 => 6e-3,
        _ => 6e-7,
    }
}
