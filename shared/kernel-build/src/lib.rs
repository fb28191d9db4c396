//! What a stage's `build.rs` calls.
//!
//! ```no_run
//! lab_kernel_build::Stage::new()
//!     .kernel("kernels/saxpy.cu", &["saxpy<float>", "saxpy<double>"])
//!     .build();
//! ```
//!
//! The list is the one table of a stage's instantiations. From it come the emulator's exports, the
//! name expressions given to NVRTC, the list that CI compiles for each GPU architecture, and what
//! `lab list` prints. `build` writes `$OUT_DIR/kernels.rs`, which defines one `KernelSource` a file, named after it; the
//! stage says `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));`.
//!
//! Embedded C++ is foreign code, and so the generated file has the crate's only `unsafe`: each file is loaded and run as the
//! crate's own code is, and `PROMISE` says of the crate's launches that they stay within their memory (`lab_device::LaunchPromise`). A
//! crate that allows no unsafe code besides says `#![deny(unsafe_code)]`, and `#[allow(unsafe_code)]` at the module that includes
//! the file.
//!
//! # What is embedded, and what is compiled when it is first used
//!
//! Each file has two objects: a plain one, and one for the emulator's checks. A command needs few of them, and all take
//! minutes to compile. So each is compiled when it is first used, by [`compile_embedded`], from the texts that the program has
//! embedded. It is kept in `target/kernels`; where there is no such directory, in the user's cache.
//!
//! A program for another machine, which may have no compiler, has them inside. The environment variable
//! [`EMBED_VARIABLE`] decides, where a build script reads it:
//!
//! | `LAB_EMBED_KERNELS` | embedded |
//! |---|---|
//! | `all` | both objects; a kernel that does not compile ends the build |
//! | `plain` | the plain ones; likewise |
//! | `none` | nothing |
//! | not set | `all` in a release build, as of `cargo install` and of a wheel; else `none` |

#![forbid(unsafe_code)]

mod common;
mod compile;
mod first_use;
mod prelude;
mod signature;
mod starts;
#[cfg(test)]
mod tests;
mod tools;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use compile::compile_sharing;
pub use compile::{
    Compiled, Program, Through, compile, compile_in, compile_program, compile_through, compiler,
};
pub use first_use::{EmbeddedSource, Made, compile_embedded};
pub use tools::Build;
use tools::no_compiler;

/// A `.cu` file, what is wanted of it, and the variables that the host may set.
#[derive(Debug, Default)]
struct Entry {
    file: String,
    names: Vec<String>,
    globals: Vec<String>,
    least_arch: String,
    spills: u32,
}

/// The kernels of one crate.
#[derive(Debug, Default)]
pub struct Stage {
    kernels: Vec<Entry>,
}

impl Stage {
    /// A stage without kernels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a `.cu` file, relative to the crate, and the instantiations wanted of its templates.
    pub fn kernel<S: AsRef<str>>(mut self, file: &str, instantiations: &[S]) -> Self {
        let names = instantiations.iter().map(|s| s.as_ref().to_owned()).collect();
        self.kernels.push(Entry { file: file.to_owned(), names, ..Entry::default() });
        self
    }

    /// Lists `__device__` and `__constant__` variables of the file added last.
    pub fn globals(mut self, names: &[&str]) -> Self {
        if let Some(entry) = self.kernels.last_mut() {
            entry.globals.extend(names.iter().map(|n| (*n).to_owned()));
        }
        self
    }

    /// Names the first GPU architecture that has the instructions of the file added last (`sm_80`):
    /// for older ones it is not compiled.
    pub fn needs(mut self, arch: &str) -> Self {
        if let Some(entry) = self.kernels.last_mut() {
            entry.least_arch = arch.to_owned();
        }
        self
    }

    /// Says how many bytes a thread of the file added last stores at most for lack of registers, on an
    /// sm_90a GPU: `lab compile` fails where it is more.
    pub fn spills(mut self, bytes: u32) -> Self {
        if let Some(entry) = self.kernels.last_mut() {
            entry.spills = bytes;
        }
        self
    }

    /// Compiles and generates. Ends the build with the compiler's message where that fails.
    pub fn build(self) {
        if let Err(message) = self.try_build() {
            eprintln!("{message}");
            std::process::exit(1);
        }
    }

    fn try_build(&self) -> Result<(), String> {
        println!("cargo::rerun-if-env-changed={EMBED_VARIABLE}");
        let variable = |name| std::env::var(name).map_err(|e| format!("{name}: {e}"));
        let crate_root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let out = PathBuf::from(variable("OUT_DIR")?);
        let named = std::env::var(EMBED_VARIABLE).ok();
        let embed = Embed::from_names(named.as_deref(), &variable("PROFILE")?)?;
        let generated = self.generate(&crate_root, &variable("CARGO_PKG_NAME")?, &out, embed)?;
        std::fs::write(out.join("kernels.rs"), generated).map_err(|e| format!("kernels.rs: {e}"))
    }

    /// The text of `kernels.rs`; compiles what it embeds.
    fn generate(
        &self,
        crate_root: &Path,
        crate_name: &str,
        out: &Path,
        embed: Embed,
    ) -> Result<String, String> {
        let shared = shared_directory();
        rerun_if_changed(&shared.join("emulator/include"));
        let sources = self.kernels.iter().map(|k| crate_root.join(&k.file));
        let mut generated = headers_table(sources, &shared.join("cuda"))?;
        let mut all = Vec::new();
        self.compile(crate_root, crate_name, out, embed)?;
        // What has all inside names no directory of the machine that it was built on.
        let kept_in = match embed {
            Embed::None | Embed::Plain => kept_in(out).display().to_string(),
            Embed::All => String::new(),
        };
        for entry in &self.kernels {
            let Entry { file, names, globals, least_arch, spills, .. } = entry;
            let source = crate_root.join(file);
            rerun_if_changed(&source);
            let stem = stem(&source);
            let constant = stem.to_uppercase();
            let read = signature::kernels(&texts(&source, &shared.join("cuda"))?);
            let is_listed = |kernel: &str| names.iter().any(|n| signature::kernel_of(n) == kernel);
            let templates: String = read
                .iter()
                .filter(|(name, _)| is_listed(name))
                .map(|(name, signature::Kernel { template, head, threads, has_shared, .. })| {
                    format!(
                        "::lab_device::Template {{ kernel: {name:?}, parameters: &{template:?}, \
                         head: {head:?}, threads: {threads:?}, has_shared: {has_shared} }}, "
                    )
                })
                .collect();
            let text = source.display().to_string();
            let place = place(&source, crate_name, file);
            let object = |build: Build| {
                if embed.has(build) {
                    let object = out.join(build.file_name(&stem)).display().to_string();
                    Ok(format!("::lab_device::Object::embedded(include_bytes!({object:?}))"))
                } else {
                    let kept = Kept::of(&source, entry, build, out)?.file();
                    Ok::<_, String>(format!("::lab_device::Object::at_first_use({kept:?})"))
                }
            };
            let (plain, checked) = (object(Build::Plain)?, object(Build::Checked)?);
            writeln!(
                generated,
                "/// `{file}`.
// SAFETY: the objects are made of this text, with these names, by this build or as it says how.
pub static {constant}: ::lab_device::KernelSource = unsafe {{ ::lab_device::KernelSource::new(::lab_device::KernelFile {{
    crate_name: {crate_name:?},
    name: {stem:?},
    file: {file:?},
    place: {place:?},
    source: include_str!({text:?}),
    headers: HEADERS,
    instantiations: &{names:?},
    templates: &[{templates}],
    globals: &{globals:?},
    least_arch: {least_arch:?},
    spills: {spills},
    plain: {plain},
    checked: {checked},
    kept_in: {kept_in:?},
}}) }};"
            )
            .expect("writing to a string");
            all.push(format!("&{constant}"));
        }
        writeln!(
            generated,
            "/// What this crate promises of its launches.
#[allow(dead_code)] // of a crate that makes none
// SAFETY: this crate gives its kernels numbers with which they stay within the memory of its slots, with values that its documentation allows.
pub(crate) const PROMISE: ::lab_device::LaunchPromise = unsafe {{ ::lab_device::LaunchPromise::new() }};
/// Every kernel file of this stage.\npub static KERNELS: &[&::lab_device::KernelSource] = &[{}];",
            all.join(", ")
        )
        .expect("writing to a string");
        Ok(generated)
    }

    /// Compiles what is embedded of each file, on all cores.
    fn compile(
        &self,
        root: &Path,
        crate_name: &str,
        out: &Path,
        embed: Embed,
    ) -> Result<(), String> {
        let next = AtomicUsize::new(0);
        let both = self.kernels.iter().flat_map(|e| [(e, Build::Plain), (e, Build::Checked)]);
        let work: Vec<(&Entry, Build)> = both.filter(|(_, build)| embed.has(*build)).collect();
        let worker = || {
            while let Some((entry, build)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let source = root.join(&entry.file);
                let object = out.join(build.file_name(&stem(&source)));
                let kept = Kept::of(&source, entry, *build, out)?;
                if !kept.fetch(&object) {
                    let (names, globals) = (&entry.names, &entry.globals);
                    compile_sharing(&source, names, globals, *build, out, &kept.folder)?;
                    kept.keep(&object);
                }
            }
            Ok::<_, String>(())
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spending = Spending::begin();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..cores.min(work.len())).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|w| w.join().expect("it does not panic"))
        })?;
        note_seconds(out, crate_name, spending.end());
        Ok(())
    }
}

/// The environment variable that says which objects of kernels a build embeds: `all`, `plain` or `none`.
pub const EMBED_VARIABLE: &str = "LAB_EMBED_KERNELS";

/// Which objects are embedded. The others are compiled when they are first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Embed {
    None,
    Plain,
    All,
}

impl Embed {
    /// By the variable's value, and by cargo's PROFILE where it has none.
    fn from_names(named: Option<&str>, profile: &str) -> Result<Self, String> {
        match (named.filter(|name| !name.is_empty()), profile) {
            (Some("all"), _) | (None, "release") => Ok(Self::All),
            (Some("plain"), _) => Ok(Self::Plain),
            (Some("none") | None, _) => Ok(Self::None),
            (Some(other), _) => {
                Err(format!("{EMBED_VARIABLE}: expected all, plain or none, got '{other}'"))
            }
        }
    }

    fn has(self, build: Build) -> bool {
        self == Self::All || self == Self::Plain && build == Build::Plain
    }
}

/// A kernel file's path from the workspace's root; of a crate elsewhere, from the directory that the crate lies in.
fn place(source: &Path, crate_name: &str, file: &str) -> String {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let shared = shared_directory();
    let root = whole(shared.parent().expect("the workspace's root"));
    match whole(source).strip_prefix(&root) {
        Ok(place) => place.display().to_string(),
        Err(_) => format!("{crate_name}/{file}"),
    }
}

/// Why a kernel has no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotCompiled {
    /// There is no C++ compiler; how to get one.
    NoCompiler(String),
    /// What the compiler said, or which file could not be read or written.
    Refused(String),
}

impl From<String> for NotCompiled {
    fn from(said: String) -> Self {
        Self::Refused(said)
    }
}

/// Measures what processors work for the compiler. Where several threads compile at once, each second is counted once,
/// for the one that ends first.
struct Spending;

impl Spending {
    /// How many measure, and the seconds when the last of them ended.
    fn state() -> std::sync::MutexGuard<'static, (usize, f64)> {
        static STATE: Mutex<(usize, f64)> = Mutex::new((0, 0.0));
        STATE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin() -> Self {
        let mut state = Self::state();
        if state.0 == 0 {
            state.1 = children_seconds();
        }
        state.0 += 1;
        Self
    }

    fn end(self) -> f64 {
        let mut state = Self::state();
        let now = children_seconds();
        let spent = now - state.1;
        *state = (state.0 - 1, now);
        spent
    }
}

/// What all processors together have worked for the programs that this one ran, in seconds; 0 where
/// the system does not tell.
fn children_seconds() -> f64 {
    // proc(5): the fields behind the program's name, the 16th and 17th in all, are in ticks of 10 ms.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Leaves a crate's seconds beside its objects, where anything was compiled: CI holds them to a budget.
fn note_seconds(out: &Path, crate_name: &str, seconds: f64) {
    if seconds > 0.5 {
        let folder = kept_in(out);
        let _ = std::fs::create_dir_all(&folder);
        let _ =
            std::fs::write(folder.join(format!("{crate_name}.seconds")), format!("{seconds:.1}\n"));
    }
}

/// The directory of the objects that are kept: in `target`, whatever lies between that and OUT_DIR, for a workspace apart
/// builds in a directory within it. Where no directory has that name OUT_DIR is taken to be PROFILE/build/CRATE/out of it.
fn kept_in(out: &Path) -> PathBuf {
    let named = out.ancestors().find(|directory| directory.ends_with("target"));
    named.or(out.ancestors().nth(4)).unwrap_or(out).join("kernels")
}

/// A compiled object in the target directory, for all profiles: they compile kernels alike, and of some
/// stages that takes minutes.
struct Kept {
    folder: PathBuf,
    /// Of one kernel file and build; behind it the hash of all that goes into the object: a header that
    /// changes costs the kernels that include it.
    name: String,
    hash: String,
}

impl Kept {
    fn of(source: &Path, entry: &Entry, build: Build, out: &Path) -> Result<Self, String> {
        let shared = shared_directory();
        let mut files = included(source, &shared.join("cuda"))?;
        files.extend(emulator_headers(&shared.join("emulator/include"))?);
        let mut hasher = DefaultHasher::new();
        // How it is compiled stands here.
        let how = [
            include_str!("common.rs"),
            include_str!("compile.rs"),
            include_str!("signature.rs"),
            include_str!("starts.rs"),
            include_str!("tools.rs"),
            include_str!("waits.rs"),
        ];
        (how, &entry.names, &entry.globals, build.flags()).hash(&mut hasher);
        compiler_version()?.hash(&mut hasher);
        // By its place in the tree, not on this machine: another checkout may bring its objects along.
        let root = shared.parent().expect("the workspace's root");
        for file in files {
            let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            (file.strip_prefix(root).unwrap_or(&file), bytes).hash(&mut hasher);
        }
        let of_crate = source.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default();
        let name = format!("{}-{}", of_crate.display(), build.file_name(&stem(source)));
        Ok(Self { folder: kept_in(out), name, hash: format!("{:016x}", hasher.finish()) })
    }

    fn file(&self) -> String {
        format!("{}.{}", self.name, self.hash)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(self.file())
    }

    fn fetch(&self, object: &Path) -> bool {
        std::fs::copy(self.path(), object).is_ok()
    }

    /// Where that fails, the next profile compiles again.
    fn keep(&self, object: &Path) {
        let _ = std::fs::create_dir_all(&self.folder);
        remove_kept(&self.folder, &self.name);
        let part = self.folder.join(format!("{}.{}", self.name, std::process::id()));
        if std::fs::copy(object, &part).is_ok() {
            let _ = std::fs::rename(&part, self.path());
        }
    }
}

/// Removes the objects of a kernel file and build, `NAME.HASH`, which are not needed any more, and what lies beside them.
pub fn remove_kept(folder: &Path, name: &str) {
    for old in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = old.file_name();
        let of =
            Path::new(&file).file_stem().filter(|_| file.as_encoded_bytes().ends_with(b".seconds"));
        if is_kept_of(name, of.unwrap_or(&file)) {
            let _ = std::fs::remove_file(old.path());
        }
    }
}

/// Whether a file is `NAME.HASH`.
fn is_kept_of(name: &str, file: &OsStr) -> bool {
    let file = file.to_str().and_then(|f| f.strip_prefix(name)?.strip_prefix('.'));
    file.is_some_and(|hash| hash.len() == 16)
}

/// What the compiler says of itself, asked for once a process.
fn compiler_version() -> Result<Vec<u8>, String> {
    static SAID: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let ask = || {
        let output = Command::new(compiler()?).arg("--version").output();
        Ok(output.map_err(|e| no_compiler(&format!("its version: {e}")))?.stdout)
    };
    SAID.get_or_init(ask).clone()
}

/// Every file of the directory, in order.
fn emulator_headers(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = std::fs::read_dir(directory);
    let listed = listed.map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut files: Vec<_> = listed.filter_map(|e| e.ok().map(|e| e.path())).collect();
    files.sort();
    Ok(files)
}

/// The text of the file and of what it includes from `directory`.
fn texts(source: &Path, directory: &Path) -> Result<String, String> {
    let read =
        |p: PathBuf| std::fs::read_to_string(&p).map_err(|e| format!("{}: {e}", p.display()));
    let all: Result<Vec<_>, _> = included(source, directory)?.into_iter().map(read).collect();
    Ok(all?.join("\n"))
}

/// The file, and what it includes by name or through another: headers beside it, and those of
/// `directory`.
fn included(source: &Path, directory: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let mut all = BTreeSet::new();
    let mut left = vec![source.to_owned()];
    let folder = source.parent().expect("a file lies in a folder");
    while let Some(file) = left.pop() {
        let text = std::fs::read_to_string(&file);
        let text = text.map_err(|e| format!("{}: {e}", file.display()))?;
        let quoted = |line: &str| {
            Some(line.trim().strip_prefix("#include \"")?.split_once('"')?.0.to_owned())
        };
        let named = text.lines().filter_map(quoted).filter_map(|name| {
            [folder, directory].map(|d| d.join(&name)).into_iter().find(|path| path.is_file())
        });
        left.extend(named.filter(|path| !all.contains(path)));
        all.insert(file);
    }
    Ok(all)
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a kernel file has a name").to_string_lossy().into_owned()
}

/// The device headers that the kernels include, embedded under the names that they are included by:
/// NVRTC takes them from memory, so a binary needs no files.
fn headers_table(
    sources: impl Iterator<Item = PathBuf>,
    directory: &Path,
) -> Result<String, String> {
    let mut headers = BTreeMap::new();
    for source in sources {
        let folder = source.parent().expect("a file lies in a folder");
        for path in included(&source, directory)?.into_iter().filter(|path| *path != source) {
            let name = path.strip_prefix(folder).or_else(|_| path.strip_prefix(directory));
            let name = name.expect("a header of one of the two").display().to_string();
            headers.insert(name, path);
        }
    }
    let mut table = String::from("static HEADERS: &[(&str, &str)] = &[\n");
    for (name, path) in headers {
        rerun_if_changed(&path);
        let path = path.display().to_string();
        writeln!(table, "    ({name:?}, include_str!({path:?})),").expect("writing to a string");
    }
    Ok(table + "];\n")
}

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

fn shared_directory() -> PathBuf {
    shared_of(std::env::var_os("CARGO_MANIFEST_DIR").as_deref().map(Path::new))
}

/// The directory `shared` of the tree that a package, whose build script this may be, lies in; of another package's, the
/// one that this was built in. Cargo keeps build scripts when a tree is moved, and they would know the old one.
fn shared_of(package: Option<&Path>) -> PathBuf {
    let mut all = package.into_iter().flat_map(Path::ancestors).map(|d| d.join("shared"));
    let moved = all.find(|shared| shared.join("kernel-build/src/lib.rs").is_file());
    moved.unwrap_or_else(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("shared/").to_owned()
    })
}
