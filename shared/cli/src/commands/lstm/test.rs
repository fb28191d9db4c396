//! `lab lstm test MODEL`.

use lab_harness::Error;

use super::saved::{self, Meaning};
use super::settings::Kind;
use super::tested::{Arguments, Tested};
use super::{forecast, text};
use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model, data, column, .. } = arguments;
    let (checkpoint, notes) = saved::read(model)?;
    let trained = Kind::of(&notes.settings.data);
    let fits = |data: &String| match trained {
        Kind::Text => Kind::of(data) == Kind::Text,
        _ => Kind::of(data) != Kind::Text,
    };
    if let Some(other) = data.as_ref().filter(|d| !fits(d)) {
        let expected = match trained {
            Kind::Text => "a text, as the model was trained on",
            _ => "sine or a CSV file, for the model was trained on a series",
        };
        return Err(Error::bad("--data", expected, format!("'{other}'")).into());
    }
    let kind = data.as_deref().map_or(trained, Kind::of);
    if let Some(column) = column.as_ref().filter(|_| data.is_none() || kind != Kind::Csv) {
        return Err(Error::bad("--column", "none without a CSV file in --data", column).into());
    }
    if let Some(path) = &arguments.states {
        check_target(path)?;
        let known = path.extension().is_some_and(|e| e == "csv" || e == "safetensors");
        if !known {
            let got = format!("'{}'", path.display());
            return Err(Error::bad("--states", "a .csv or a .safetensors file", got).into());
        }
    }
    let device = common.open()?;
    note!("{} on {}", model.display(), device.name());
    let tested = Tested { common, arguments, model, device, checkpoint, notes };
    match tested.notes.meaning.clone() {
        Meaning::Series(scale) => forecast::run(&tested, kind, scale),
        Meaning::Text(vocabulary) => text::run(&tested, &vocabulary),
    }
}
