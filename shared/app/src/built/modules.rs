//! A module of a built program, on the emulator: translated, compiled once, loaded.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lab_emulator::{Kernel, Module, write_atomically};
use lab_ptx::{SCOPE, Translated, type_macro};
use sha2::{Digest, Sha256};

use crate::compiling::Compiling;
use crate::host::{HOST_TABLE, Host};
use crate::names::{pointer_types, short_name};
use crate::program::{compile_object, load_object, scratch};
use crate::sources::Sources;
use crate::{Error, Options, headers};

/// A module that has been loaded.
pub(crate) struct Loaded {
    module: Arc<Module>,
    /// By name: the place in the table of kernels, or why it is not run.
    kernels: HashMap<String, Result<usize, String>>,
    /// By name: the place in the table of variables, and the size.
    variables: HashMap<String, (usize, u64)>,
    /// What each kernel asks of its launches.
    bounds: HashMap<String, Bounds>,
}

/// What a kernel asks of its launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The most threads of a block.
    pub(crate) threads: u32,
    /// Blocks of a cluster, along x; 0 where the launch decides.
    pub(crate) cluster: u32,
}

/// As compat's `EmuExport` and `EmuGlobal` lie in memory.
const EXPORT: usize = 56;
const GLOBAL: usize = 24;

impl Loaded {
    /// The same text is compiled once for all programs.
    pub(crate) fn of(text: &str, options: &Options) -> Result<Self, Error> {
        let root = headers::root()?;
        let kept = headers::objects(&root);
        let path = named(text, options, &kept)?;
        let (sources, translated) = Sources::of_module(text, &path, options, [types, tables])?;
        let object = kept.join(format!("module.{}.kept", key(&sources.units[0].0, options)));
        let bytes = match read_kept(&object) {
            Some(bytes) => bytes,
            None => {
                let mut sources = sources;
                // It has no main.
                sources.libraries.push("-DEMU_ONE_KERNEL".into());
                let scratch = scratch()?;
                // Device memory is reserved by now, which would count.
                let unlimited = Options { memory: None, ..options.clone() };
                let compiling = Compiling::begin(scratch.path(), &unlimited);
                let bytes = compiling.end(compile_object(sources, options, scratch.path()))?;
                keep(&object, &bytes);
                bytes
            }
        };
        let (module, initialisers) = load_object(bytes)?;
        let bind = module.symbol("emu_bind_host").ok_or_else(|| no_symbol("emu_bind_host"))?;
        // SAFETY: compat/program.cpp defines it with this type.
        let bind = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(*const Host)>(bind)
        };
        bind(&raw const HOST_TABLE);
        // SAFETY: those of this module, before anything else of it.
        unsafe { initialisers.run(&module, 0 as c_int, std::ptr::null_mut()) };
        let shown = runnable(&translated).enumerate().map(|(n, e)| (e.name.clone(), Ok(n)));
        let mut kernels: HashMap<_, _> = shown.collect();
        for entry in &translated.entries {
            let name = short_name(&entry.name);
            if let Some(refusal) = &entry.refusal {
                let why = format!("{name}: {}: {refusal}", path.display());
                kernels.insert(entry.name.clone(), Err(why));
            } else if entry.required_cluster.is_some_and(|[_, y, z]| y > 1 || z > 1) {
                let why = format!("{name}: a cluster of blocks along y or z is not supported");
                kernels.insert(entry.name.clone(), Err(why));
            }
        }
        let variables = translated.variables.iter().enumerate();
        let variables = variables.map(|(n, v)| (v.name.clone(), (n, v.bytes))).collect();
        let bounds = translated.entries.iter().map(|entry| {
            let block = entry.required_block.or(entry.largest_block).unwrap_or([1024, 1, 1]);
            let threads = block.into_iter().fold(1u32, u32::saturating_mul).min(1024);
            let cluster = entry.required_cluster.map_or(0, |[x, ..]| if x > 1 { x } else { 0 });
            (entry.name.clone(), Bounds { threads, cluster })
        });
        let bounds = bounds.collect();
        Ok(Self { module, kernels, variables, bounds })
    }

    pub(crate) fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// A kernel, and what it asks of its launches; or why there is none.
    pub(crate) fn kernel(&self, name: &str) -> Result<(Kernel, Bounds), String> {
        let place = self.kernels.get(name);
        let place =
            place.ok_or_else(|| format!("{}: no such kernel", short_name(name)))?.clone()?;
        let table = self.module.symbol("emu_kernels").ok_or("no table of kernels")?;
        // SAFETY: `tables` has written the table, with an entry for each of these kernels.
        let kernel = unsafe { self.module.kernel_at(table.byte_add(place * EXPORT)) };
        let bounds = self.bounds.get(name).copied();
        Ok((kernel, bounds.unwrap_or(Bounds { threads: 1024, cluster: 0 })))
    }

    /// Address and size of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<(usize, u64)> {
        let &(place, bytes) = self.variables.get(name)?;
        let table = self.module.symbol("emu_variables")?;
        // SAFETY: `tables` has written the table, with an entry for each of these variables: its address is the second word.
        let address = unsafe { table.byte_add(place * GLOBAL + 8).cast::<usize>().read() };
        Some((address, bytes))
    }
}

fn no_symbol(name: &str) -> Error {
    Error::Refused(format!("no symbol {name}"))
}

fn runnable(translated: &Translated) -> impl Iterator<Item = &lab_ptx::Entry> {
    translated.entries.iter().filter(|entry| entry.refusal.is_none())
}

/// Bytes of a SHA-256.
const SUM: usize = 32;

/// An object that was kept, behind its sum: it is run, so not a bit of it may have changed.
fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let object = bytes.split_off(SUM.min(bytes.len()));
    (bytes[..] == Sha256::digest(&object)[..]).then_some(object)
}

/// Where it cannot be kept, it is made again the next time.
fn keep(path: &Path, object: &[u8]) {
    let all = [&Sha256::digest(object)[..], object].concat();
    let _ = write_atomically(path, &all);
}

/// What tells one text from another, for a GPU and a build.
fn key(text: &str, options: &Options) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{} {} ", options.arch, options.plain));
    hash.update(text);
    format!("{:x}", hash.finalize())[..16].to_owned()
}

/// Where the text is kept: what has no line of a source is told by a line of it.
fn named(text: &str, options: &Options, kept: &Path) -> Result<PathBuf, Error> {
    let path = kept.join(format!("module.{}.ptx", key(text, options)));
    if !std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        write_atomically(&path, text.as_bytes())
            .map_err(|e| Error::File { path: path.clone(), reason: e.to_string() })?;
    }
    Ok(path)
}

/// What a module has behind its text: a table of its kernels and one of its variables.
fn tables(translated: &Translated) -> String {
    let mut text = String::from("\n#line 1 \"tables\"\nextern \"C\" {\n");
    let shown = "__attribute__((visibility(\"default\"), used))";
    let table = |text: &mut String, of: &str, name: &str, all: Vec<String>| {
        let _ = writeln!(
            text,
            "{shown} extern const {of} {name}[];\nconst {of} {name}[] = {{{}{{}}}};",
            all.concat()
        );
    };
    let kernels = runnable(translated).map(|entry| {
        let names: Vec<String> =
            (0..entry.parameters.len()).map(|n| format!("argument_{n}")).collect();
        format!(
            "::emu::trampoline<&::{SCOPE}::{}>::entry({:?}, \"{}\", 0, 0),\n",
            entry.cpp_name,
            short_name(&entry.name),
            names.join(",")
        )
    });
    table(&mut text, "EmuExport", "emu_kernels", kernels.collect());
    let variables = translated.variables.iter().map(|variable| {
        format!(
            "{{{:?}, (void*)&::{SCOPE}::{}, {}}},\n",
            variable.name, variable.cpp_name, variable.bytes
        )
    });
    table(&mut text, "EmuGlobal", "emu_variables", variables.collect());
    text + "}\n"
}

/// What stands before a module's text: what the pointers of its kernels point to, as far as their names say it.
fn types(translated: &Translated) -> String {
    let mut all = String::new();
    for entry in runnable(translated) {
        for (n, pointee) in pointer_types(&entry.name).into_iter().enumerate() {
            let is_address = entry
                .parameters
                .get(n)
                .is_some_and(|p| ["void*", "::emu::ptx::Word"].contains(&p.cpp.as_str()));
            if let Some(pointee) = pointee.filter(|_| is_address) {
                let _ = writeln!(all, "#define {} {pointee}*", type_macro(&entry.cpp_name, n));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{keep, read_kept};

    #[test]
    fn an_object_that_was_changed_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("module.kept");
        assert_eq!(read_kept(&path), None);
        keep(&path, b"object");
        assert_eq!(read_kept(&path).unwrap(), b"object");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_kept(&path), None);
        std::fs::write(&path, "").unwrap();
        assert_eq!(read_kept(&path), None);
    }
}
