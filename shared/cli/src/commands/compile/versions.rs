//! The kernels of one version, and what the compiler made of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lab_device::nvrtc::{Nvrtc, Resources};
use lab_device::{Device, KernelSource, Mode};
use lab_harness::{Dims, Options};

use super::listing::Kernel;
use super::{ptx, sass};
use crate::commands::run::random_inputs;
use crate::failure::Failure;
use crate::{STAGES, named_one};

/// A kernel that a version launches.
pub(crate) struct Launched {
    pub(crate) source: &'static KernelSource,
    /// Its instantiation.
    pub(crate) name: &'static str,
    /// Threads of a block, and bytes of dynamic shared memory, of its first launch.
    pub(super) threads: u32,
    pub(super) dynamic: usize,
}

/// What `STAGE[:VERSION]` launches on a problem of this shape, or its small one, in this type; else in all of its types, or in
/// `one_type` of them, the first. Each kernel comes once, in the order of the launches.
pub(crate) fn launched(
    name: &str,
    shape: Option<&str>,
    dtype: Option<&str>,
    one_type: bool,
) -> Result<Vec<Launched>, Failure> {
    let version = named_one(name, None, "")?.version;
    let info = version.info();
    let device = Device::emulator_in(Mode::Plain)?;
    let types: Vec<String> = match dtype {
        Some(one) => vec![one.to_owned()],
        None => {
            let most = if one_type { 1 } else { usize::MAX };
            info.dtypes.iter().take(most).map(ToString::to_string).collect()
        }
    };
    let dims = match shape {
        Some(shape) => Dims::parse(shape)?,
        None => info.small(),
    };
    let options = Options::parse::<&str>(&[], info)?;
    let mut all: Vec<Launched> = Vec::new();
    for dtype in types {
        let inputs = random_inputs(version, &dims, Some(&dtype), 0, &options)?;
        let prepared = version.prepare(&device, &inputs, &options)?;
        for (kernel, launch) in prepared.launches() {
            if all.iter().any(|l| l.name == kernel.name()) {
                continue;
            }
            let found = find(info.stage, kernel.name());
            let (source, name) = found.ok_or_else(|| {
                Failure::Wrong(format!("{}: no stage has this kernel", kernel.name()))
            })?;
            let threads = launch.block.iter().product();
            all.push(Launched { source, name, threads, dynamic: launch.dynamic_shared });
        }
    }
    if all.is_empty() {
        Err(Failure::Usage(format!("version: {name} launches no kernel of the lab")))
    } else {
        Ok(all)
    }
}

/// The file of an instantiation: of this stage, or of another one whose kernels it takes.
fn find(stage: &str, name: &str) -> Option<(&'static KernelSource, &'static str)> {
    let own = STAGES.iter().filter(|s| s.name == stage);
    let others = STAGES.iter().filter(|s| s.name != stage);
    own.chain(others).flat_map(|s| s.kernels.iter().copied()).find_map(|source| {
        let instantiation = source.instantiations.iter().find(|i| **i == name)?;
        Some((source, *instantiation))
    })
}

/// Kernels by the stage and the file that they are of.
pub(crate) fn by_file(kernels: &[Launched]) -> BTreeMap<(&str, &str), Vec<&Launched>> {
    let mut files: BTreeMap<(&str, &str), Vec<&Launched>> = BTreeMap::new();
    for kernel in kernels {
        let source = kernel.source;
        files.entry((source.crate_name, source.file)).or_default().push(kernel);
    }
    files
}

/// What a kernel is shown in.
pub(super) enum Language {
    Ptx,
    /// Machine code, by this disassembler.
    Sass(PathBuf),
}

impl Language {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ptx => "PTX",
            Self::Sass(_) => "SASS",
        }
    }
}

/// The instructions of these kernels, in their order; each file is compiled once.
pub(super) fn disassemble<'a>(
    nvrtc: &Nvrtc,
    language: &Language,
    kernels: &'a [Launched],
    arch: &str,
) -> Result<Vec<(&'a Launched, Kernel)>, Failure> {
    let mut found: BTreeMap<&str, Kernel> = BTreeMap::new();
    for ((_, file), own) in by_file(kernels) {
        let names: Vec<&'static str> = own.iter().map(|k| k.name).collect();
        let source = own[0].source;
        let (mut all, symbols) = match language {
            Language::Ptx => {
                let compiled = nvrtc.ptx(source, &names, arch)?;
                (ptx::kernels(&compiled.text, file), compiled.symbols)
            }
            Language::Sass(nvdisasm) => {
                let image = nvrtc.compile(source, &names, arch)?;
                let text = sass::disassemble(nvdisasm, &image.cubin)?;
                (sass::kernels(&text, file), image.symbols)
            }
        };
        for name in names {
            let symbol = symbols.get(name);
            if let Some(at) = all.iter().position(|k| Some(&k.symbol) == symbol) {
                found.insert(name, all.swap_remove(at));
            }
        }
    }
    let take = |kernel: &'a Launched| {
        let missing =
            || Failure::Wrong(format!("{}: the {} lacks it", kernel.name, language.name()));
        Ok((kernel, found.remove(kernel.name).ok_or_else(missing)?))
    };
    kernels.iter().map(take).collect()
}

/// Bytes of constant memory that a kernel takes of its own, by its symbol: its parameters, and what the compiler keeps beside
/// them. The image has a section for them; `None` of what is no such image.
pub(super) fn constant_bytes(cubin: &[u8], symbol: &str) -> Option<u64> {
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let own = cubin.get(at..at.checked_add(bytes)?)?;
        Some(own.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let place = |at: usize, bytes: usize| number(at, bytes).and_then(|n| usize::try_from(n).ok());
    if !cubin.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    // The header of ELF for 64 bits, little-endian: where the sections are, how long each entry is, how many there are,
    // and which one has their names.
    let (sections, entry) = (place(0x28, 8)?, place(0x3a, 2)?);
    let (count, names) = (place(0x3c, 2)?, place(0x3e, 2)?);
    let section = |n: usize| sections.checked_add(n.checked_mul(entry)?);
    let names = place(section(names)?.checked_add(0x18)?, 8)?;
    let wanted = format!(".nv.constant0.{symbol}\0");
    (0..count).find_map(|n| {
        let at = section(n)?;
        let name = names.checked_add(place(at, 4)?)?;
        let same = cubin.get(name..)?.starts_with(wanted.as_bytes());
        if same { number(at.checked_add(0x20)?, 8) } else { None }
    })
}

/// What these kernels take, in their order, and their bytes of constant memory.
pub(super) fn resources_of<'a>(
    nvrtc: &Nvrtc,
    kernels: &'a [Launched],
    arch: &str,
) -> Result<Vec<(&'a Launched, Resources, u64)>, Failure> {
    let mut found: BTreeMap<&str, (Resources, u64)> = BTreeMap::new();
    for own in by_file(kernels).into_values() {
        let names: Vec<&'static str> = own.iter().map(|k| k.name).collect();
        let image = nvrtc.compile(own[0].source, &names, arch)?;
        let mut all = image.resources();
        for name in names {
            let Some(symbol) = image.symbols.get(name) else { continue };
            let constant = constant_bytes(&image.cubin, symbol).unwrap_or(0);
            found.insert(name, (all.remove(symbol).unwrap_or_default(), constant));
        }
    }
    let take = |kernel: &'a Launched| {
        let (taken, constant) = found.remove(kernel.name).unwrap_or_default();
        (kernel, taken, constant)
    };
    Ok(kernels.iter().map(take).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_has_no_constants() {
        let cut = b"\x7fELF\x02\x01 and nothing more, though the header is longer than this text is, by some bytes";
        for bytes in [&b""[..], b"text", cut, &[0xff; 100]] {
            assert_eq!(constant_bytes(bytes, "f"), None);
        }
    }
}
