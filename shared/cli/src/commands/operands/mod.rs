//! `lab dev operands`: instructions of PTX, each on some twelve thousand operands, on a GPU and on the emulator. What a GPU has
//! computed is kept in a record, to which the emulator is held without a GPU.

mod compare;
mod emulated;
mod forms;
mod module;
mod pools;
mod results;

use std::path::PathBuf;

use clap::Args;
use lab_device::{Device, DeviceKind, Fill, Image, Launch};
use lab_harness::Error;

use crate::Common;
use crate::failure::Failure;
use forms::Form;
use pools::CASES;
use results::{Head, Kept, Results};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only forms whose names contain this; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Writes the results into a file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Of each 1024 cases how many the file has in full
    #[arg(long, value_name = "CASES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1024))]
    keep: u32,
    /// Compares with a file of results, case by case
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Compares with a record, or with --against writes it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Of a record: the commit that was measured
    #[arg(long, value_name = "COMMIT", requires = "against")]
    commit: Option<String>,
    /// Writes the module of PTX into a file, and runs nothing
    #[arg(long, value_name = "FILE")]
    ptx: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let mut forms = forms::forms();
    let is_wanted = |form: &Form| {
        arguments.only.is_empty() || arguments.only.iter().any(|text| form.name.contains(text))
    };
    forms.retain(is_wanted);
    // Of none all would be the same.
    if forms.is_empty() {
        let got = format!("'{}'", arguments.only.join("', '"));
        return Err(Error::bad("--only", "a part of the name of a form", got).into());
    }
    if let Some(path) = &arguments.ptx {
        return std::fs::write(path, module::module(&forms).text())
            .map_err(|e| Failure::file(path, e));
    }
    let device = common.open()?;
    let operands = module::operands();
    let all = run_on(&device, &forms, &operands)?;
    if let Some(path) = &arguments.write {
        let kept = |(form, results): (&Form, &Results)| Kept {
            name: form.name.clone(),
            bytes: form.results.iter().map(|result| result.bytes()).collect(),
            digests: results::digests(form, results),
        };
        let head = Head {
            device: device.facts().name.clone(),
            driver: device.facts().driver.clone(),
            operands: results::digest_of(&operands),
            kept: arguments.keep as usize,
            forms: forms.iter().zip(&all).map(kept).collect(),
        };
        results::write(path, &head, &forms, &all)?;
    }
    let forms_and_cases = format!("{} forms of {CASES} cases", forms.len());
    match (&arguments.against, &arguments.record) {
        (None, None) => {
            say!("{forms_and_cases} on {}", device.name());
            Ok(())
        }
        (Some(file), record) => compare::with_file(
            file,
            &forms,
            &operands,
            &all,
            record.as_deref().zip(arguments.commit.as_deref()),
        ),
        (None, Some(record)) => {
            let is_whole = arguments.only.is_empty();
            compare::with_record(common, record, &forms, &operands, &all, is_whole)
        }
    }
}

/// The results of all forms.
fn run_on(device: &Device, forms: &[Form], operands: &[u8]) -> Result<Vec<Results>, Failure> {
    let module = module::module(forms);
    let bytes = module::places_of_results(forms).last().copied().unwrap_or(0);
    let from = device.raw_buffer(operands.len())?;
    let to = device.raw_buffer(bytes)?;
    // SAFETY: nothing runs yet.
    unsafe {
        from.write(0, operands)?;
        to.fill(0..bytes, Fill::Poison, None)?;
    }
    let launch = Launch::new((CASES / module::THREADS) as u32, module::THREADS as u32);
    let run = |image: &Image, kernel: &str| {
        // SAFETY: `module` writes kernels that take these two addresses, and read and write behind them what the buffers have.
        unsafe { image.launch(kernel, &launch, &[&from, &to]) }
    };
    if device.kind() == DeviceKind::Cuda {
        // SAFETY: PTX of this program.
        let image = unsafe { device.load_image(module.text().into_bytes())? };
        module.kernels.iter().try_for_each(|(kernel, _)| run(&image, kernel))?;
    } else {
        for emulated::Object { bytes, kernels } in emulated::objects(&module)? {
            // SAFETY: it has just been made of this program's PTX.
            let image = unsafe { device.load_image(bytes)? };
            kernels.iter().try_for_each(|kernel| run(&image, kernel))?;
        }
    }
    let mut written = vec![0; bytes];
    to.read(0, &mut written)?;
    Ok(results::split(forms, &written))
}
