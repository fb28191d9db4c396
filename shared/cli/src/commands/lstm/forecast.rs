//! The test of a model of a series.

use std::path::{Path, PathBuf};

use lab_harness::Error;
use lab_lstm::data::{Errors, Linear, Scale, Series, Windows, free_run, persistence};
use lab_lstm::training::Evaluator;
use lab_plots::Curve;
use lab_plots::lines::{Axes, lines};
use serde_json::json;

use super::free_run::by_network;
use super::settings::Kind;
use super::source::{POINTS, Source, scale_values};
use super::states;
use super::tested::Tested;
use crate::commands::run::check_target;
use crate::commands::training::{beside, digits};
use crate::failure::Failure;
use crate::table::table;

/// Times the frequency of the training.
const FREQUENCIES: [f64; 6] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0];

/// A series of which a part is forecast.
struct Case {
    name: String,
    series: Series,
    /// The first value that is forecast.
    from: usize,
}

/// A forecast of a case by one of those that are compared.
struct Forecast {
    by: &'static str,
    one_step: Vec<f64>,
    free: Vec<f64>,
}

pub(super) fn run(tested: &Tested<'_>, kind: Kind, scale: Scale) -> Result<(), Failure> {
    let settings = &tested.notes.settings;
    let Source::Series { series: trained, split, .. } = Source::load(settings)? else {
        unreachable!("a model of a series was trained on one")
    };
    let linear = Linear::fit(&trained.windows(settings.window, split.train.clone())?)?;
    let cases = cases(tested, kind, &trained, split.test.start)?;
    let of_states = beside(tested.model, "states.svg");
    let pictures = pictures(&cases);
    let paths = pictures.iter().map(|(_, ending)| beside(tested.model, ending));
    let paths: Vec<PathBuf> = paths.chain([of_states.clone()]).collect();
    for path in &paths {
        check_target(path)?;
    }
    let mut all = Vec::new();
    for case in &cases {
        all.push(forecasts(tested, case, scale, &linear)?);
    }
    for ((shown, _), path) in pictures.iter().zip(&paths) {
        lab_plots::write(path, &picture(&cases[*shown], &all[*shown], tested.model)?)?;
    }
    let own = &cases[pictures[0].0];
    let inputs: Vec<f64> = own.series.values[own.from..].iter().map(|v| scale.scaled(*v)).collect();
    let analysis = states::of_series(tested, &inputs, &of_states)?;
    say(tested, &cases, &all, &analysis, &paths);
    Ok(())
}

/// Which cases are drawn, and how their files end: of a sine that of its own frequency, and another.
fn pictures(cases: &[Case]) -> Vec<(usize, String)> {
    let at = |name: &str| cases.iter().position(|c| c.name == name);
    match (at("1"), at("1.5")) {
        (Some(own), Some(other)) => {
            vec![(own, "forecast.svg".into()), (other, "forecast-1.5.svg".into())]
        }
        _ => vec![(0, "forecast.svg".into())],
    }
}

/// What is forecast.
fn cases(
    tested: &Tested<'_>,
    kind: Kind,
    trained: &Series,
    test: usize,
) -> Result<Vec<Case>, Failure> {
    let settings = &tested.notes.settings;
    let window = settings.window;
    let all = match kind {
        Kind::Sine => {
            // Points that were not trained on: those that come next.
            let of = |times: f64| Case {
                name: times.to_string(),
                series: Series::sine(POINTS, times * settings.frequency, POINTS),
                from: window,
            };
            FREQUENCIES.map(of).into()
        }
        _ => match tested.other() {
            Some(path) => {
                let column = tested.arguments.column.as_deref().or(settings.column.as_deref());
                let series = Series::from_csv(Path::new(path), column)?;
                vec![Case { name: "all of it".into(), series, from: window }]
            }
            None if test == trained.values.len() => {
                let expected = "another file, for the training left no part for a test";
                return Err(Error::bad("--data", expected, "none").into());
            }
            None => {
                vec![Case { name: "test part".into(), series: trained.clone(), from: test }]
            }
        },
    };
    Ok(all)
}

fn forecasts(
    tested: &Tested<'_>,
    case: &Case,
    scale: Scale,
    linear: &Linear,
) -> Result<Vec<Forecast>, Failure> {
    let Tested { device, checkpoint, .. } = tested;
    let window = tested.notes.settings.window;
    let values = &case.series.values;
    let windows = Windows::new(values, window, case.from..values.len())?;
    let first = values.len() - windows.len() - window;
    let starts: Vec<usize> = (first..first + windows.len()).collect();
    let data = scale_values(values, scale);
    let mut evaluator = Evaluator::new(device, checkpoint.model, checkpoint.config, &data)?;
    evaluator.load(&checkpoint.parameters)?;
    let one_step = evaluator.predict(&starts)?.into_iter().map(|v| scale.original(v)).collect();
    let steps = windows.len().min(tested.arguments.steps as usize);
    let begin = windows.get(0).0;
    let free = by_network(device, checkpoint, scale, begin, steps)?;
    let by = |name, next: &dyn Fn(&[f64]) -> f64| Forecast {
        by: name,
        one_step: windows.iter().map(|(window, _)| next(window)).collect(),
        free: free_run(begin, steps, next),
    };
    Ok(vec![
        Forecast { by: "network", one_step, free },
        by("linear", &|w| linear.next(w)),
        by("persistence", &persistence),
    ])
}

impl Forecast {
    /// One step ahead, and of the free run.
    fn errors(&self, case: &Case) -> [Errors; 2] {
        let truth = &case.series.values[case.series.values.len() - self.one_step.len()..];
        [Errors::of(&self.one_step, truth), Errors::of(&self.free, &truth[..self.free.len()])]
    }
}

/// The truth, and what each says.
fn picture(case: &Case, all: &[Forecast], model: &Path) -> Result<String, Error> {
    let values = &case.series.values;
    let first = values.len() - all[0].one_step.len();
    let steps = all[0].free.len();
    let curve = |label: &str, dashed: bool, values: &[f64]| Curve {
        label: label.to_owned(),
        dashed,
        points: values[..steps].iter().enumerate().map(|(n, v)| (n as f64, *v)).collect(),
    };
    // What runs away does not make the rest flat.
    let truth = &values[first..first + steps];
    let (low, high) =
        truth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |r, v| (r.0.min(*v), r.1.max(*v)));
    let room = (high - low).max(f64::MIN_POSITIVE) / 2.0;
    let kept = |values: &[f64]| -> Vec<f64> {
        values
            .iter()
            .map(|v| if v.is_nan() { *v } else { v.clamp(low - room, high + room) })
            .collect()
    };
    let curves = vec![
        curve("truth", false, truth),
        curve("network, one step", false, &kept(&all[0].one_step)),
        curve("network, free", true, &kept(&all[0].free)),
        curve("linear, free", true, &kept(&all[1].free)),
    ];
    let name = model.file_stem().unwrap_or_default().to_string_lossy();
    let of = match case.name.parse::<f64>() {
        Ok(times) if times != 1.0 => format!(" at {times} times its frequency"),
        _ => String::new(),
    };
    let title = format!("{name}: forecasts of '{}'{of}", case.series.name);
    lines(
        &Axes { title: &title, x: "step of the forecast", logarithmic: false, truth_first: true },
        curves,
    )
}

fn say(
    tested: &Tested<'_>,
    cases: &[Case],
    all: &[Vec<Forecast>],
    analysis: &states::Analysis,
    paths: &[PathBuf],
) {
    let sine = cases.len() > 1;
    if tested.common.json {
        let rows = cases.iter().zip(all).map(|(case, all)| {
            let by = all.iter().map(|f| {
                let [one, free] = f.errors(case);
                (f.by.to_owned(), json!({ "one_step": one, "free_running": free }))
            });
            json!({
                "series": case.series.name, "of": case.name, "forecasts": all[0].one_step.len(),
                "free_running_steps": all[0].free.len(),
                "errors": by.collect::<serde_json::Map<_, _>>(),
            })
        });
        let mut report = tested.json();
        report["cases"] = rows.collect();
        report["states"] = json!(analysis);
        report["files"] = paths.iter().map(|p| p.display().to_string()).collect();
        say!("{report}");
        return;
    }
    let first = if sine { "times the frequency" } else { "of" };
    let mut rows = table(&[
        first,
        "forecast by",
        ">RMSE, one step",
        ">MAE",
        ">RMSE, free run",
        ">MAE, free run",
    ]);
    for (case, all) in cases.iter().zip(all) {
        for (n, forecast) in all.iter().enumerate() {
            let [one, free] = forecast.errors(case);
            let name = if n == 0 { case.name.clone() } else { String::new() };
            let numbers = [one.rmse, one.mae, free.rmse, free.mae].map(digits);
            rows.add_row([name, forecast.by.into()].into_iter().chain(numbers));
        }
    }
    say!("{rows}");
    let [one, free] = [all[0][0].one_step.len(), all[0][0].free.len()];
    say!(
        "'{}', {one} forecasts each one step ahead; free: {free} steps, forecasts from forecasts",
        cases[0].series.name
    );
    if sine {
        say!(
            "a sine is a linear recurrence: at its own frequency the linear model is exact, at others \
             neither has seen what comes"
        );
    }
    say!("{analysis}");
    for path in paths.iter().chain(tested.arguments.states.as_ref()) {
        say!("wrote {}", path.display());
    }
}
