//! `lab compile`: every kernel through NVRTC, with its registers, shared memory and spills. It fails where one
//! spills more than its stage says, and where the assembler serialises wgmma.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lab_device::nvrtc::{Nvrtc, Resources};
use lab_device::{KernelSource, cache};
use lab_harness::{Error, Stage};
use rayon::prelude::*;
use serde_json::json;

use crate::failure::Failure;
use crate::part::Part;
use crate::plot;
use crate::table::table;
use crate::{Common, STAGES, named};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A stage; all of them where none is named
    stage: Option<String>,
    /// Architectures, such as sm_80,sm_90a
    #[arg(long, value_delimiter = ',', default_value = "sm_90a")]
    arch: Vec<String>,
    /// A part of each kernel's instantiations, such as 1/2: always the same ones, at least one of each kernel
    #[arg(long, conflicts_with = "write")]
    part: Option<Part>,
    /// Writes a table of each stage into this directory, STAGE.md: the pages that the book includes
    #[arg(long)]
    write: Option<PathBuf>,
    /// Writes the compiled images into this directory, for a package that brings them along
    #[arg(long)]
    images: Option<PathBuf>,
}

/// What one file compiles to.
struct Compiled {
    rows: Vec<Row>,
    complaints: Vec<String>,
}

struct Row {
    stage: &'static str,
    file: &'static str,
    kernel: String,
    arch: String,
    resources: Resources,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if let Some(stage) = &arguments.stage {
        named(stage)?;
    }
    let nvrtc = Nvrtc::get()?;
    let start = Instant::now();
    let sources: Vec<&KernelSource> = STAGES
        .iter()
        .filter(|s| arguments.stage.as_ref().is_none_or(|name| name == s.name))
        .flat_map(|s| s.kernels.iter().copied())
        .collect();
    let all = sources.iter().flat_map(|s| arguments.arch.iter().map(move |a| (*s, a)));
    let (work, skipped): (Vec<(&KernelSource, &String)>, Vec<_>) =
        all.partition(|(source, arch)| source.runs_on(arch));
    // In parallel, each file once an architecture; the first failure is the one that is told.
    let compiled: Vec<Compiled> = work
        .par_iter()
        .map(|(source, arch)| {
            let instantiations = part_of(source.instantiations, arguments.part);
            let image = match &arguments.images {
                None => nvrtc.compile(source, &instantiations, arch)?,
                Some(to) => cache::write(nvrtc, source, &instantiations, arch, to)?,
            };
            let resources = image.resources();
            let complaint = |line: &&str| format!("{}: {line}", source.file);
            let mut complaints: Vec<String> = image.complaints().iter().map(complaint).collect();
            let row = |(kernel, symbol): (&String, &String)| Row {
                stage: source.crate_name,
                file: source.file,
                kernel: kernel.clone(),
                arch: (*arch).clone(),
                resources: resources.get(symbol).cloned().unwrap_or_default(),
            };
            let rows: Vec<Row> = image.symbols.iter().map(row).collect();
            let spilled = |r: &&Row| r.arch == "sm_90a" && r.resources.spills.0 > source.spills;
            complaints.extend(rows.iter().filter(spilled).map(|r| {
                let (stored, most) = (r.resources.spills.0, source.spills);
                format!(
                    "{}: {} stores {stored} bytes for lack of registers, not {most}",
                    r.file, r.kernel
                )
            }));
            Ok(Compiled { rows, complaints })
        })
        .collect::<Result<_, lab_device::Error>>()?;
    let complaints: Vec<String> = compiled.iter().flat_map(|c| c.complaints.clone()).collect();
    let rows: Vec<Row> = compiled.into_iter().flat_map(|c| c.rows).collect();
    let (major, minor) = nvrtc.version();
    if let Some(directory) = &arguments.write {
        write_pages(directory, &rows, (major, minor))?;
    }
    if common.json {
        let all = rows.iter().map(|r| {
            json!({ "file": r.file, "kernel": r.kernel, "arch": r.arch, "registers": r.resources.registers,
                    "shared": r.resources.shared, "stack": r.resources.stack,
                    "spill_stores": r.resources.spills.0, "spill_loads": r.resources.spills.1 })
        });
        let skipped = skipped.iter().map(|(source, arch)| {
            json!({ "file": source.file, "arch": arch, "least_arch": source.least_arch })
        });
        println!(
            "{}",
            json!({ "nvrtc": format!("{major}.{minor}"), "kernels": all.collect::<Vec<_>>(),
                    "skipped": skipped.collect::<Vec<_>>(), "complaints": complaints })
        );
        return judge(&complaints);
    }
    let mut shown = table(&[
        "kernel",
        "arch",
        ">registers",
        ">shared, bytes",
        ">stack, bytes",
        ">spilled, bytes",
    ]);
    for row in &rows {
        let r = &row.resources;
        shown.add_row([
            row.kernel.clone(),
            row.arch.clone(),
            r.registers.to_string(),
            r.shared.to_string(),
            r.stack.to_string(),
            format!("{} / {}", r.spills.0, r.spills.1),
        ]);
    }
    println!("{shown}");
    for (source, arch) in skipped {
        println!("skipped for {arch}: {}, which needs {}", source.file, source.least_arch);
    }
    println!(
        "{} kernels compiled by NVRTC {major}.{minor} in {:.1} s",
        rows.len(),
        start.elapsed().as_secs_f64()
    );
    complaints.iter().for_each(|line| println!("{line}"));
    judge(&complaints)
}

/// Of each kernel the instantiations that are in this part, in their order.
fn part_of(all: &[&'static str], part: Option<Part>) -> Vec<&'static str> {
    let kernel = |name: &'static str| name.split('<').next();
    let is_taken = |name: &&'static str| {
        let same: Vec<_> = all.iter().filter(|other| kernel(other) == kernel(name)).collect();
        let place = same.iter().position(|other| *other == name).unwrap_or(0);
        part.is_none_or(|part| part.takes(place, same.len()))
    };
    all.iter().copied().filter(is_taken).collect()
}

/// No kernel spills more than its build script says, and none has its wgmma made one after the other.
fn judge(complaints: &[String]) -> Result<(), Failure> {
    match complaints.len() {
        0 => Ok(()),
        n => Err(Failure::Wrong(format!("the assembler has {n} complaints"))),
    }
}

/// A page a stage: what each kernel takes, in the order of the files and of the build script's
/// table.
fn write_pages(directory: &Path, rows: &[Row], (major, minor): (i32, i32)) -> Result<(), Failure> {
    let refuse = |e: std::io::Error| Error::File {
        path: directory.display().to_string(),
        message: e.to_string(),
    };
    std::fs::create_dir_all(directory).map_err(refuse)?;
    for stage in STAGES {
        let own: Vec<&Row> = rows.iter().filter(|r| r.stage == stage.name).collect();
        if !own.is_empty() {
            let path = directory.join(format!("{}.md", stage.name));
            plot::write(&path, &page(stage, &own, (major, minor)))?;
        }
    }
    Ok(())
}

fn page(stage: &Stage, rows: &[&Row], (major, minor): (i32, i32)) -> String {
    let mut archs: Vec<&str> = Vec::new();
    for row in rows {
        if !archs.contains(&row.arch.as_str()) {
            archs.push(&row.arch);
        }
    }
    let mut text = format!(
        "As NVRTC {major}.{minor} compiles them for {}: registers and spilled bytes (stored / loaded) a thread, \
         static shared memory a block.\n\n\
         | file | kernel | arch | registers | shared, bytes | spilled, bytes |\n\
         |---|---|---|--:|--:|--:|\n",
        archs.join(", ")
    );
    for source in stage.kernels {
        let place = |kernel: &str| source.instantiations.iter().position(|i| *i == kernel);
        let mut own: Vec<&&Row> = rows.iter().filter(|r| r.file == source.file).collect();
        own.sort_by_key(|r| (archs.iter().position(|a| *a == r.arch), place(&r.kernel)));
        for row in own {
            let r = &row.resources;
            let file = row.file.rsplit('/').next().unwrap_or(row.file);
            writeln!(
                text,
                "| {file} | `{}` | {} | {} | {} | {} / {} |",
                row.kernel, row.arch, r.registers, r.shared, r.spills.0, r.spills.1
            )
            .expect("writing to a string");
        }
    }
    text
}
