//! `lab list`.

use lab_harness::{Options, Output, Stage, Version};
use serde_json::json;

use crate::commands::bench::choose;
use crate::failure::Failure;
use crate::table::table;
use crate::{Common, STAGES, named, own};

fn names(outputs: &[Output]) -> Vec<&'static str> {
    outputs.iter().map(|o| o.name).collect()
}

type Chosen = (&'static Stage, Vec<&'static dyn Version>);

/// Every stage that has chosen versions, with these.
fn stages_with_versions(name: Option<&str>) -> Result<Vec<Chosen>, Failure> {
    let versions = match name {
        Some(name) if name.contains(':') => named(name)?,
        name => choose(name)?,
    };
    let is_chosen = |v: &&dyn Version| {
        versions.iter().any(|chosen| chosen.info().full_name() == v.info().full_name())
    };
    let stages = STAGES.iter().map(|stage| {
        (*stage, stage.versions.iter().copied().filter(is_chosen).collect::<Vec<_>>())
    });
    Ok(stages.filter(|(_, versions)| !versions.is_empty()).collect())
}

pub(crate) fn run(common: &Common, name: Option<&str>) -> Result<(), Failure> {
    let chosen = stages_with_versions(name)?;
    if common.json {
        let stages = chosen.iter().map(|(stage, versions)| {
            let versions = versions.iter().map(|v| {
                let info = v.info();
                json!({
                    "name": info.full_name(), "family": info.family.name(), "parent": info.parent,
                    "change": info.change,
                    "wrong_on_purpose":
                        v.expected(&Options::default()).mistake().map(|m| m.because),
                    "dtypes": info.dtypes.iter().map(|d| d.name()).collect::<Vec<_>>(),
                    "dims": info.dims.iter().map(|d| json!({
                        "name": d.name, "meaning": d.meaning, "small": d.small, "max": d.max,
                        "step": d.step
                    })).collect::<Vec<_>>(),
                    "settings": info.settings.iter().map(|s| json!({
                        "name": s.name, "meaning": s.meaning, "default": s.default,
                        "adds": s.adds.map(|(value, outputs)| json!({
                            "value": value, "outputs": names(outputs)
                        }))
                    })).collect::<Vec<_>>(),
                    "inputs": info.inputs.iter().map(|i| json!({
                        "name": i.name, "axes": i.axes, "dtype": i.always.map(|d| d.name()),
                        "optional": i.group
                    })).collect::<Vec<_>>(),
                    "outputs": names(info.outputs),
                })
            });
            json!({ "name": stage.name, "teaches": stage.teaches, "versions": versions.collect::<Vec<_>>() })
        });
        say!("{}", json!({ "stages": stages.collect::<Vec<_>>() }));
        return Ok(());
    }
    if name.is_none() {
        let mut rows = table(&["stage", "versions", "what it teaches"]);
        for (stage, versions) in &chosen {
            rows.add_row([stage.name, &versions.len().to_string(), stage.teaches]);
        }
        say!(
            "{rows}\n{} list playg tells a stage's versions, their types and tensors",
            own::shell()
        );
        return Ok(());
    }
    for (stage, versions) in chosen {
        say!("{}: {}", stage.name, stage.teaches);
        let mut rows =
            table(&["version", "family", "the one change", "types", "tensors", "options"]);
        for version in versions {
            let info = version.info();
            let change = match info.parent {
                Some(parent) => format!("from {parent}: {}", info.change),
                None => info.change.to_owned(),
            };
            let change = match version.expected(&Options::default()).mistake() {
                Some(mistake) => format!("{change}. Wrong on purpose: {}", mistake.because),
                None => change,
            };
            let dtypes: Vec<_> = info.dtypes.iter().map(|d| d.name()).collect();
            let inputs = info.inputs.iter().map(|i| {
                let own = i.always.map_or(String::new(), |d| format!(" {d}"));
                let optional = if i.group.is_some() { ", optional" } else { "" };
                format!("{} [{}]{own}{optional}", i.name, i.axes.join(", "))
            });
            let inputs = inputs.collect::<Vec<_>>().join(", ");
            let mut tensors = format!("{inputs} → {}", names(info.outputs).join(", "));
            for (setting, (value, outputs)) in
                info.settings.iter().filter_map(|s| Some((s.name, s.adds?)))
            {
                tensors += &format!(", with {setting}={value} {}", names(outputs).join(", "));
            }
            let settings = info.settings.iter().map(|s| format!("{}={}", s.name, s.default));
            rows.add_row([
                info.full_name(),
                info.family.name().to_owned(),
                change,
                dtypes.join(" "),
                tensors,
                settings.collect::<Vec<_>>().join(" "),
            ]);
        }
        say!("{rows}");
    }
    Ok(())
}
