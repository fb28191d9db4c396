//! `lab dev doors`: the lab's own kernels by the other door of the emulator. NVRTC makes PTX of them, which becomes C++ again: what
//! Triton's kernels go through. The objects stand in for the embedded ones (`LAB_KERNEL_OBJECTS`), so that any command runs on them.
//! With `--compare` each version runs its small problem by both.

mod compare;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lab_device::nvrtc::Nvrtc;
use lab_device::{Build, KernelSource};
use lab_harness::Error;
use lab_kernel_build::{Through, compile_through};
use lab_ptx::{Module, SCOPE};
use serde_json::json;

use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Stages, or corpus for the planted bugs; with --compare also versions, STAGE:VERSION. All stages where none is named
    stages: Vec<String>,
    /// The directory for the objects, of which LAB_KERNEL_OBJECTS is to be told
    #[arg(long, value_name = "DIR", required_unless_present = "compare")]
    write: Option<PathBuf>,
    /// Runs each version's small problem as C++ and as PTX, and says where bits or counts differ
    #[arg(long, conflicts_with_all = ["write", "source"])]
    compare: bool,
    /// With --compare: adds the rows to this file, in place of those of the same versions
    #[arg(long, value_name = "FILE", requires = "compare")]
    record: Option<PathBuf>,
    /// What the PTX is made for
    #[arg(long, default_value = "sm_90a")]
    arch: String,
    /// Only kernels of this file, such as kernels/sum.cu; may be repeated
    #[arg(long)]
    source: Vec<String>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    common.selector()?;
    let nvrtc = Nvrtc::get().map_err(|e| Failure::Unavailable(e.to_string()))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("shared/cuda").is_dir() {
        let reason =
            "expected the tree of sources that this tool was built from, which is not there";
        return Err(Failure::Unavailable(reason.into()));
    }
    let Some(write) = &arguments.write else {
        return compare::run(common, nvrtc, &root, arguments);
    };
    std::fs::create_dir_all(write).map_err(|e| Failure::file(write, e))?;
    let sources = match &arguments.stages[..] {
        [] => crate::STAGES.iter().flat_map(|stage| stage.kernels).copied().collect(),
        some => some.iter().map(|name| sources_of(name)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    let wanted = |source: &&KernelSource| {
        let of_file = |file: &String| source.place.ends_with(file.as_str());
        arguments.source.is_empty() || arguments.source.iter().any(of_file)
    };
    let mut failed = Vec::new();
    let mut made = 0;
    let all = || sources.iter().copied();
    let is_of = |file: &String| all().any(|source| source.place.ends_with(file.as_str()));
    if let Some(file) = arguments.source.iter().find(|file| !is_of(file)) {
        let known: Vec<_> = all().map(|source| source.file).collect();
        return Err(Error::bad("--source", known.join(", "), format!("'{file}'")).into());
    }
    for source in all().filter(wanted) {
        let start = Instant::now();
        let of = Of { source, names: source.instantiations, arch: &arguments.arch };
        match of.write_object(nvrtc, &root, write) {
            Ok(()) => made += source.instantiations.len(),
            Err(message) => failed.push(format!("{}: {message}", source.place)),
        }
        note!("{} in {:.1} s", source.place, start.elapsed().as_secs_f64());
    }
    if common.json {
        say!("{}", json!({ "instantiations": made, "failed": failed }));
    } else {
        say!("{made} instantiations by way of their PTX, in {}", write.display());
    }
    match &failed[..] {
        [] => Ok(()),
        all => Err(Failure::Wrong(all.join("\n"))),
    }
}

/// The kernel files of a stage, or of the planted bugs.
fn sources_of(name: &str) -> Result<Vec<&'static KernelSource>, Failure> {
    match name {
        "corpus" => Ok(lab_corpus::kernels::KERNELS.to_vec()),
        name => Ok(crate::stage(name)?.kernels.to_vec()),
    }
}

/// Instantiations of one file.
struct Of<'a> {
    source: &'static KernelSource,
    names: &'a [&'static str],
    arch: &'a str,
}

impl Of<'_> {
    /// Writes the object for the checks; the message says what was not understood.
    fn write_object(&self, nvrtc: &Nvrtc, root: &Path, write: &Path) -> Result<(), String> {
        let Self { source, names, arch } = *self;
        let ptx = nvrtc.unfused_ptx(source, names, arch).map_err(|e| e.to_string())?;
        let name = PathBuf::from(format!("{}.ptx", source.place));
        let place = |file: &str| file.to_owned();
        let module = Module::read(&ptx.text, &name, &place).map_err(|e| e.to_string())?;
        let translated = module.translate();
        let function = |instantiation: &&str| {
            let symbol = ptx.symbols.get(*instantiation).ok_or("NVRTC has no symbol for it")?;
            let entry = translated.entries.iter().find(|entry| entry.name == *symbol);
            let entry = entry.ok_or_else(|| format!("{symbol} is no kernel of the module"))?;
            match &entry.refusal {
                Some(refusal) => Err(format!("{instantiation}: {refusal}")),
                None => Ok(format!("::{SCOPE}::{}", entry.cpp_name)),
            }
        };
        let functions = names.iter().map(function);
        let functions: Vec<String> = functions.collect::<Result<_, String>>()?;
        let global = |name: &&str| {
            let found = translated.variables.iter().find(|variable| variable.name == **name);
            let found = found.ok_or_else(|| format!("{name} is no variable of the module"))?;
            Ok(format!("::{SCOPE}::{}", found.cpp_name))
        };
        let globals: Vec<String> =
            source.globals.iter().map(global).collect::<Result<_, String>>()?;
        let helpers = root.join("shared/emulator/compat/ptx.h");
        let module = with_dynamic_shared(&translated.text);
        let text = format!("#include {:?}\n{module}", helpers.display().to_string());
        let out = tempfile::tempdir().map_err(|e| e.to_string())?;
        let through = Through { text: &text, functions: &functions, globals: &globals };
        let file = root.join(source.place);
        let names = [names, source.globals];
        let compiled = compile_through(root, &file, names, through, Build::Checked, out.path());
        let first =
            |said: String| said.lines().find(|l| l.contains("error")).unwrap_or(&said).to_owned();
        let object = compiled.map_err(first)?.object;
        let to = write.join(source.object_file(".checked"));
        std::fs::copy(&object, &to).map(drop).map_err(|e| format!("{}: {e}", to.display()))
    }
}

/// The module's text, in which dynamic shared memory is what the emulator has for it: CUDA's own declaration of it is no C++.
fn with_dynamic_shared(text: &str) -> String {
    let line = |line: &str| {
        let declared = line.trim_start().strip_prefix("extern __shared__ ");
        let name = declared.and_then(|rest| rest.strip_suffix("[];")?.rsplit(' ').next());
        match name {
            Some(name) => format!("char* {name} = (char*)emu_dynamic_shared();\n"),
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_shared_memory_is_the_emulators() {
        let text = "int x;\nextern __shared__ __align__(16) char all[];\n";
        let expected = "int x;\nchar* all = (char*)emu_dynamic_shared();\n";
        assert_eq!(with_dynamic_shared(text), expected);
    }
}
