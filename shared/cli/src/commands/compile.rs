//! `lab compile`: every kernel through NVRTC, with its registers, shared memory and spills. It fails where one
//! spills more than its stage says, and where the assembler serialises wgmma. Of one version it also shows the PTX
//! or the machine code beside the source, and what differs from another version.

mod listing;
mod ptx;
mod sass;
mod show;
pub(crate) mod versions;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lab_device::nvrtc::{Nvrtc, Resources};
use lab_device::{KernelSource, cache, toolkit};
use lab_harness::{Error, Stage};
use rayon::prelude::*;
use serde_json::json;

use crate::failure::Failure;
use crate::part::Part;
use crate::table::{cut, table, terminal_width};
use crate::{Common, MODELS, STAGES, named};
use versions::{Language, Launched};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A stage; STAGE:VERSION: only the kernels that this version launches; or a model with kernels of its own, such as
    /// lab-lstm. All of them where none is named
    stage: Option<String>,
    /// Architectures, such as sm_80,sm_90a
    #[arg(long, value_delimiter = ',', default_value = "sm_90a", value_parser = architecture)]
    arch: Vec<String>,
    /// The PTX of the version's kernels, beside the lines of the source that it comes from
    #[arg(long, requires = "stage", conflicts_with_all = ["part", "write", "images"])]
    ptx: bool,
    /// The machine code (SASS) of the version's kernels, beside the lines of the source that it comes from; with --against,
    /// machine code is counted, not PTX. It needs nvdisasm
    #[arg(long, requires = "stage", conflicts_with_all = ["part", "write", "images", "ptx", "resources"])]
    sass: bool,
    /// What each of the version's kernels takes: threads, registers, shared and constant memory, spills
    #[arg(long, requires = "stage", conflicts_with_all = ["part", "write", "images", "ptx"])]
    resources: bool,
    /// Another version: how many instructions of each kind both have, in PTX or with --sass in machine code, and what their
    /// kernels take
    #[arg(long, value_name = "STAGE:VERSION", requires = "stage", conflicts_with_all = ["part", "write", "images", "ptx", "resources"])]
    against: Option<String>,
    /// The problem whose kernels are shown; a version's small one, unless it is given
    #[arg(long, requires = "stage")]
    shape: Option<String>,
    /// The type whose kernels are shown; with --ptx, --sass and --against the version's first one, unless it is given
    #[arg(long, requires = "stage")]
    dtype: Option<String>,
    /// The instructions in the kernel's own order, not by source lines; of machine code with addresses, and with the cycles
    /// and barriers that the assembler has given to each
    #[arg(long, requires = "stage", conflicts_with_all = ["part", "write", "images", "resources", "against"])]
    in_order: bool,
    /// All instructions of each line, whole lines, and all kinds of instructions, not only the most frequent
    #[arg(long)]
    wide: bool,
    /// A part of each kernel's instantiations, such as 1/2: always the same ones, at least one of each kernel
    #[arg(long, conflicts_with = "write")]
    part: Option<Part>,
    /// Writes a table of each stage into this directory, STAGE.md: the pages that the book includes
    #[arg(long, hide = true)]
    write: Option<PathBuf>,
    /// Writes the compiled images into this directory, for a package that brings them along
    #[arg(long, hide = true)]
    images: Option<PathBuf>,
}

impl Arguments {
    /// Refuses what only `lab dev compile` does.
    pub(crate) fn refuse_upkeep(&self) -> Result<(), Failure> {
        crate::commands::refuse_options(
            "compile",
            &[(self.write.is_some(), "--write"), (self.images.is_some(), "--images")],
        )
    }
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
    constant: u64,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if let Some(stage) = &arguments.stage
        && crate::model(stage).is_none()
    {
        named(stage)?;
    }
    let nvrtc = Nvrtc::get()?;
    let language = if arguments.sass {
        Language::Sass(toolkit::find_nvdisasm().map_err(lab_device::Error::from)?)
    } else {
        Language::Ptx
    };
    let start = Instant::now();
    let one = arguments.ptx || arguments.sass || arguments.resources || arguments.against.is_some();
    let version = arguments.stage.as_deref().filter(|name| one || name.contains(':'));
    let is_model = arguments.stage.as_deref().is_some_and(|name| crate::model(name).is_some());
    if is_model && (version.is_some() || arguments.write.is_some()) {
        let message = "a model has no versions and no page: name a stage, or the model alone";
        return Err(Failure::Usage(message.into()));
    }
    if version.is_some() && arguments.write.is_some() {
        let message = "--write: a page has all kernels of a stage: name the stage alone";
        return Err(Failure::Usage(message.into()));
    }
    let launched = match version {
        Some(name) => Some(kernels_asked_for(arguments, name)?),
        None => None,
    };
    if let Some(kernels) = &launched {
        if let Some(other) = &arguments.against {
            let others = kernels_asked_for(arguments, other)?;
            let names = [arguments.stage.as_deref().unwrap_or(""), other];
            return show_difference(common, arguments, nvrtc, &language, names, [kernels, &others]);
        }
        if arguments.in_order && !arguments.sass && !arguments.ptx {
            return Err(Failure::Usage(
                "--in-order: expected --sass or --ptx beside it, got neither".into(),
            ));
        }
        if arguments.ptx || arguments.sass {
            return show_listing(common, arguments, nvrtc, &language, kernels);
        }
    }
    let of_stages = STAGES.iter().map(|s| (s.name, s.kernels));
    let of_models = MODELS.iter().map(|m| (m.name, m.kernels));
    let sources: Vec<&KernelSource> = of_stages
        .chain(of_models)
        .filter(|(own, _)| {
            launched.is_some() || arguments.stage.as_ref().is_none_or(|name| name == own)
        })
        .flat_map(|(_, kernels)| kernels.iter().copied())
        .filter(|s| {
            launched.as_ref().is_none_or(|all| all.iter().any(|l| std::ptr::eq(l.source, *s)))
        })
        .collect();
    let all = sources.iter().flat_map(|s| arguments.arch.iter().map(move |a| (*s, a)));
    let (work, skipped): (Vec<(&KernelSource, &String)>, Vec<_>) =
        all.partition(|(source, arch)| source.runs_on(arch));
    // In parallel, each file once an architecture; the first failure is the one that is told.
    let compiled: Vec<Compiled> = work
        .par_iter()
        .map(|(source, arch)| {
            let mut instantiations = part_of(source.instantiations, arguments.part);
            if let Some(all) = &launched {
                instantiations.retain(|i| all.iter().any(|l| l.name == *i));
            }
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
                constant: versions::constant_bytes(&image.cubin, symbol).unwrap_or(0),
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
    let launched_as = |row: &Row| launched.iter().flatten().find(|l| l.name == row.kernel);
    if common.json {
        let all = rows.iter().map(|r| {
            json!({ "file": r.file, "kernel": r.kernel, "arch": r.arch, "registers": r.resources.registers,
                    "shared": r.resources.shared, "constant": r.constant, "stack": r.resources.stack,
                    "threads": launched_as(r).map(|l| l.threads), "dynamic_shared": launched_as(r).map(|l| l.dynamic),
                    "spill_stores": r.resources.spills.0, "spill_loads": r.resources.spills.1 })
        });
        let skipped = skipped.iter().map(|(source, arch)| {
            json!({ "file": source.file, "arch": arch, "least_arch": source.least_arch })
        });
        say!(
            "{}",
            json!({ "nvrtc": format!("{major}.{minor}"), "kernels": all.collect::<Vec<_>>(),
                    "skipped": skipped.collect::<Vec<_>>(), "complaints": complaints })
        );
        return judge(&complaints);
    }
    let mut shown = if arguments.resources {
        table(&RESOURCES)
    } else {
        table(&[
            "kernel",
            "arch",
            ">registers",
            ">shared, bytes",
            ">stack, bytes",
            ">spilled, bytes",
        ])
    };
    for row in &rows {
        let r = &row.resources;
        let spills = format!("{} / {}", r.spills.0, r.spills.1);
        match launched_as(row).filter(|_| arguments.resources) {
            Some(launched) => shown.add_row(resources_row(&row.kernel, launched, r, row.constant)),
            None => shown.add_row([
                row.kernel.clone(),
                row.arch.clone(),
                r.registers.to_string(),
                r.shared.to_string(),
                r.stack.to_string(),
                spills,
            ]),
        };
    }
    say!("{shown}");
    for (source, arch) in skipped {
        say!("skipped for {arch}: {}, which needs {}", source.file, source.least_arch);
    }
    say!(
        "{} compiled by NVRTC {major}.{minor} in {:.1} s",
        match rows.len() {
            1 => "1 kernel".to_owned(),
            n => format!("{n} kernels"),
        },
        start.elapsed().as_secs_f64()
    );
    complaints.iter().for_each(|line| say!("{line}"));
    judge(&complaints)
}

const RESOURCES: [&str; 8] = [
    "kernel",
    ">threads",
    ">registers",
    ">spilled",
    ">static shared",
    ">dynamic shared",
    ">constant",
    ">stack",
];

fn resources_row(kernel: &str, launched: &Launched, r: &Resources, constant: u64) -> [String; 8] {
    [
        kernel.to_owned(),
        launched.threads.to_string(),
        r.registers.to_string(),
        format!("{} / {}", r.spills.0, r.spills.1),
        r.shared.to_string(),
        launched.dynamic.to_string(),
        constant.to_string(),
        r.stack.to_string(),
    ]
}

/// The kernels of a version that the arguments ask for.
fn kernels_asked_for(arguments: &Arguments, name: &str) -> Result<Vec<Launched>, Failure> {
    let one_type = arguments.ptx || arguments.sass || arguments.against.is_some();
    versions::launched(name, arguments.shape.as_deref(), arguments.dtype.as_deref(), one_type)
}

/// `sm_90a` and the like; whether there is such a one NVRTC knows.
fn architecture(given: &str) -> Result<String, String> {
    let number = given.strip_prefix("sm_").unwrap_or("").trim_end_matches(['a', 'f']);
    let is_one = (2..=3).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    is_one.then(|| given.to_owned()).ok_or_else(|| "expected sm_NN, such as sm_80 or sm_90a".into())
}

/// The architecture of what is shown of one.
fn only_arch(arguments: &Arguments) -> Result<&str, Failure> {
    match &arguments.arch[..] {
        [one] => Ok(one),
        all => Err(Failure::Usage(format!("--arch: expected one, got {}", all.join(",")))),
    }
}

/// So many instructions of a line are shown without `--wide`, and kinds of instructions.
const FEW: usize = 12;

fn show_listing(
    common: &Common,
    arguments: &Arguments,
    nvrtc: &Nvrtc,
    language: &Language,
    kernels: &[Launched],
) -> Result<(), Failure> {
    let arch = only_arch(arguments)?;
    let all = versions::disassemble(nvrtc, language, kernels, arch)?;
    if common.json {
        let kernel = |(launched, kernel): &(&Launched, listing::Kernel)| {
            let instructions = kernel.instructions.iter();
            json!({ "kernel": launched.name, "file": launched.source.file, "symbol": kernel.symbol,
                    "instructions": instructions.map(show::instruction_json).collect::<Vec<_>>() })
        };
        say!(
            "{}",
            json!({ "arch": arch, "language": language.name(), "kernels": all.iter().map(kernel).collect::<Vec<_>>() })
        );
        return Ok(());
    }
    let most = if arguments.wide { usize::MAX } else { FEW };
    let width = terminal_width().filter(|_| !arguments.wide);
    let mut cuts = 0;
    for (launched, kernel) in &all {
        let source = launched.source;
        let head = [
            format!(
                "{}, {arch}: {} instructions of {}",
                launched.name,
                kernel.instructions.len(),
                language.name()
            ),
            source.file.to_owned(),
        ];
        let lines = if arguments.in_order {
            show::in_order(kernel)
        } else {
            show::beside_source(source.source, kernel, most, width)
        };
        for line in head.iter().chain(&lines) {
            let (line, is_cut) = cut(line, width);
            cuts += usize::from(is_cut);
            say!("{line}");
        }
        say!();
    }
    if arguments.in_order && arguments.sass {
        say!("{}", show::LEGEND);
    }
    if cuts > 0 {
        say!("A line that ends with … is cut: --wide shows whole lines.");
    }
    Ok(())
}

/// What two versions have in each kind of instruction, and what their kernels take.
fn show_difference(
    common: &Common,
    arguments: &Arguments,
    nvrtc: &Nvrtc,
    language: &Language,
    names: [&str; 2],
    kernels: [&[Launched]; 2],
) -> Result<(), Failure> {
    let arch = only_arch(arguments)?;
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut taken: Vec<(usize, &Launched, Resources, u64)> = Vec::new();
    for (which, own) in kernels.into_iter().enumerate() {
        for (_, kernel) in versions::disassemble(nvrtc, language, own, arch)? {
            for (opcode, count) in kernel.opcodes() {
                counts.entry(opcode.to_owned()).or_default()[which] += count;
            }
        }
        let resources = versions::resources_of(nvrtc, own, arch)?;
        taken.extend(
            resources.into_iter().map(|(launched, r, constant)| (which, launched, r, constant)),
        );
    }
    let mut counts: Vec<(String, [usize; 2])> = counts.into_iter().collect();
    counts.sort_by_key(|(_, [a, b])| std::cmp::Reverse(a.abs_diff(*b)));
    if common.json {
        let kinds = counts.iter().map(|(opcode, both)| json!({ "opcode": opcode, "count": both }));
        let resources = taken.iter().map(|(which, launched, r, constant)| {
            json!({ "version": names[*which], "kernel": launched.name, "threads": launched.threads,
                    "registers": r.registers, "shared": r.shared, "dynamic_shared": launched.dynamic,
                    "constant": constant, "stack": r.stack, "spill_stores": r.spills.0, "spill_loads": r.spills.1 })
        });
        say!(
            "{}",
            json!({ "arch": arch, "language": language.name(), "versions": names, "opcodes": kinds.collect::<Vec<_>>(),
                    "kernels": resources.collect::<Vec<_>>() })
        );
        return Ok(());
    }
    let total = |which: usize| counts.iter().map(|(_, both)| both[which]).sum::<usize>();
    say!(
        "Instructions in the {} of all kernels that each version launches, {arch}. They are counted as they are written: \
         a loop counts once.",
        language.name()
    );
    let headings = [names[0], names[1]].map(|name| format!(">{name}"));
    let mut shown = table(&["instruction", &headings[0], &headings[1], ">difference"]);
    let row = |name: &str, [a, b]: [usize; 2]| {
        let difference = a as i64 - b as i64;
        [name.to_owned(), a.to_string(), b.to_string(), format!("{difference:+}")]
    };
    shown.add_row(row("all", [total(0), total(1)]));
    let differing: Vec<_> = counts.iter().filter(|(_, [a, b])| a != b).collect();
    let most = if arguments.wide { usize::MAX } else { FEW };
    for (opcode, both) in differing.iter().take(most) {
        shown.add_row(row(opcode, *both));
    }
    say!("{shown}");
    if differing.len() > most {
        say!("… and {} more kinds that differ: --wide shows them", differing.len() - most);
    }
    say!("{} kinds have the same count in both.", counts.len() - differing.len());
    for (which, name) in names.iter().enumerate() {
        say!("\n{name}");
        let mut shown = table(&RESOURCES);
        for (_, launched, r, constant) in taken.iter().filter(|t| t.0 == which) {
            shown.add_row(resources_row(launched.name, launched, r, *constant));
        }
        say!("{shown}");
    }
    Ok(())
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
            lab_plots::write(&path, &page(stage, &own, (major, minor)))?;
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
