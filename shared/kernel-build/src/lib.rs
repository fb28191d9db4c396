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
//! `lab list` prints. `build` compiles each file with the host's C++ compiler into a shared object
//! and writes `$OUT_DIR/kernels.rs`, which defines one `KernelSource` a file, named after it; the
//! stage says `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));`.

mod signature;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A `.cu` file, what is wanted of it, and the variables that the host may set.
#[derive(Debug, Default)]
struct Entry {
    file: String,
    names: Vec<String>,
    globals: Vec<String>,
    least_arch: String,
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

    /// Compiles and generates. Ends the build with the compiler's message where that fails.
    pub fn build(self) {
        if let Err(message) = self.try_build() {
            eprintln!("{message}");
            std::process::exit(1);
        }
    }

    fn try_build(&self) -> Result<(), String> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).ok_or(name);
        let crate_root = variable("CARGO_MANIFEST_DIR").map_err(|n| format!("{n} is not set"))?;
        let out = variable("OUT_DIR").map_err(|n| format!("{n} is not set"))?;
        let crate_name =
            std::env::var("CARGO_PKG_NAME").map_err(|e| format!("CARGO_PKG_NAME: {e}"))?;
        let shared = shared_directory();
        rerun_if_changed(&shared.join("emulator/include"));
        let sources = self.kernels.iter().map(|k| crate_root.join(&k.file));
        let mut generated = headers_table(sources, &shared.join("cuda"))?;
        let mut all = Vec::new();
        for (Entry { file, names, globals, least_arch }, [plain, checked]) in
            self.kernels.iter().zip(self.objects(&crate_root, &out)?)
        {
            let source = crate_root.join(file);
            rerun_if_changed(&source);
            let stem = stem(&source);
            let constant = stem.to_uppercase();
            let text = source.display().to_string();
            let (object, checked) = (plain.display().to_string(), checked.display().to_string());
            writeln!(
                generated,
                "/// `{file}`.
pub static {constant}: ::lab_device::KernelSource = ::lab_device::KernelSource {{
    crate_name: {crate_name:?},
    name: {stem:?},
    file: {file:?},
    source: include_str!({text:?}),
    headers: HEADERS,
    instantiations: &{names:?},
    globals: &{globals:?},
    least_arch: {least_arch:?},
    object: include_bytes!({object:?}),
    checked: include_bytes!({checked:?}),
}};"
            )
            .expect("writing to a string");
            all.push(format!("&{constant}"));
        }
        writeln!(
            generated,
            "/// Every kernel file of this stage.\npub static KERNELS: &[&::lab_device::KernelSource] = &[{}];",
            all.join(", ")
        )
        .expect("writing to a string");
        std::fs::write(out.join("kernels.rs"), generated).map_err(|e| format!("kernels.rs: {e}"))
    }
}

impl Stage {
    /// Both objects of each file, compiled on all cores.
    fn objects(&self, root: &Path, out: &Path) -> Result<Vec<[PathBuf; 2]>, String> {
        let next = AtomicUsize::new(0);
        let work: Vec<(&Entry, Build)> = self
            .kernels
            .iter()
            .flat_map(|e| [Build::Plain, Build::Checked].map(|build| (e, build)))
            .collect();
        let worker = || {
            while let Some((entry, build)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let source = root.join(&entry.file);
                let object = out.join(build.file_name(&stem(&source)));
                let kept = Kept::of(&source, entry, *build, out)?;
                if !kept.fetch(&object) {
                    compile(&source, &entry.names, &entry.globals, *build, out)?;
                    kept.keep(&object);
                }
            }
            Ok::<_, String>(())
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..cores.min(work.len())).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|w| w.join().expect("it does not panic"))
        })?;
        let objects = |entry: &Entry| {
            let stem = stem(Path::new(&entry.file));
            [Build::Plain, Build::Checked].map(|build| out.join(build.file_name(&stem)))
        };
        Ok(self.kernels.iter().map(objects).collect())
    }
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
        let folder = shared.join("emulator/include");
        let listed = std::fs::read_dir(&folder);
        let listed = listed.map_err(|e| format!("{}: {e}", folder.display()))?;
        files.extend(listed.filter_map(|e| e.ok().map(|e| e.path())));
        let mut hasher = DefaultHasher::new();
        // How it is compiled stands here.
        let how = (include_str!("lib.rs"), include_str!("signature.rs"));
        (how, &entry.names, &entry.globals, build.flags()).hash(&mut hasher);
        let version = Command::new(compiler()?).arg("--version").output();
        version.map_err(|e| format!("the C++ compiler's version: {e}"))?.stdout.hash(&mut hasher);
        // By its place in the tree, not on this machine: another checkout may bring its objects along.
        let root = shared.parent().expect("the workspace's root");
        for file in files {
            let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            (file.strip_prefix(root).unwrap_or(&file), bytes).hash(&mut hasher);
        }
        // OUT_DIR is PROFILE/build/CRATE/out in the target directory.
        let target = out.ancestors().nth(4).unwrap_or(out);
        let of_crate = source.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default();
        let name = format!("{}-{}", of_crate.display(), build.file_name(&stem(source)));
        Ok(Self { folder: target.join("kernels"), name, hash: format!("{:016x}", hasher.finish()) })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.{}", self.name, self.hash))
    }

    fn fetch(&self, object: &Path) -> bool {
        std::fs::copy(self.path(), object).is_ok()
    }

    /// Where that fails, the next profile compiles again.
    fn keep(&self, object: &Path) {
        let _ = std::fs::create_dir_all(&self.folder);
        // What is not needed any more goes.
        for old in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let prefix = format!("{}.", self.name);
            let is_of = |name: &str| name.strip_prefix(&prefix).is_some_and(|h| h.len() == 16);
            if old.file_name().to_str().is_some_and(is_of) {
                let _ = std::fs::remove_file(old.path());
            }
        }
        let part = self.folder.join(format!("{}.{}", self.name, std::process::id()));
        if std::fs::copy(object, &part).is_ok() {
            let _ = std::fs::rename(&part, self.path());
        }
    }
}

/// The text of the file and of what it includes from `directory`.
fn texts(source: &Path, directory: &Path) -> Result<String, String> {
    let read =
        |p: PathBuf| std::fs::read_to_string(&p).map_err(|e| format!("{}: {e}", p.display()));
    let all: Result<Vec<_>, _> = included(source, directory)?.into_iter().map(read).collect();
    Ok(all?.join("\n"))
}

/// The file, and those of `directory` that it includes, by name or through another.
fn included(source: &Path, directory: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let mut all = BTreeSet::new();
    let mut left = vec![source.to_owned()];
    while let Some(file) = left.pop() {
        let text = std::fs::read_to_string(&file);
        let text = text.map_err(|e| format!("{}: {e}", file.display()))?;
        let quoted = |line: &str| {
            Some(line.trim().strip_prefix("#include \"")?.split_once('"')?.0.to_owned())
        };
        let named = text.lines().filter_map(quoted).map(|name| directory.join(name));
        left.extend(named.filter(|path| path.is_file() && !all.contains(path)));
        all.insert(file);
    }
    Ok(all)
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a kernel file has a name").to_string_lossy().into_owned()
}

/// The device headers that the kernels include, embedded: NVRTC takes them from memory, so a binary
/// needs no files.
fn headers_table(
    sources: impl Iterator<Item = PathBuf>,
    directory: &Path,
) -> Result<String, String> {
    let mut headers = BTreeSet::new();
    for source in sources {
        headers.append(&mut included(&source, directory)?);
        headers.remove(&source);
    }
    let mut table = String::from("static HEADERS: &[(&str, &str)] = &[\n");
    for path in headers {
        rerun_if_changed(&path);
        let name = path.strip_prefix(directory).expect("a header of that directory");
        let (name, path) = (name.display().to_string(), path.display().to_string());
        writeln!(table, "    ({name:?}, include_str!({path:?})),").expect("writing to a string");
    }
    Ok(table + "];\n")
}

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

fn shared_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("shared/").to_owned()
}

/// What an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// To be fast.
    Plain,
    /// To be checked: every access calls the emulator.
    Checked,
}

impl Build {
    /// `x.so`, `x.checked.so`.
    pub fn file_name(self, stem: &str) -> String {
        match self {
            Self::Plain => format!("{stem}.so"),
            Self::Checked => format!("{stem}.checked.so"),
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["-O2"],
            // The calls of g++'s sanitizers for threads and for array bounds, which the emulator
            // answers (their runtimes are not linked). Local variables that get no value hold a
            // pattern that can be told.
            Self::Checked => &[
                "-O1",
                "-fsanitize=thread,bounds",
                "--param=tsan-distinguish-volatile=1",
                "--param=tsan-instrument-func-entry-exit=0",
                "-ftrivial-auto-var-init=pattern",
            ],
        }
    }
}

/// Compiles one `.cu` file, with these instantiations of its templates and these global variables,
/// into a shared object in the directory `out`. Objects are apart so that each has its own static
/// shared memory, and are loaded locally so that equal names do not meet.
///
/// # Errors
/// No compiler, or its message where the kernel does not compile.
pub fn compile<S: AsRef<str>>(
    source: &Path,
    names: &[S],
    globals: &[S],
    build: Build,
    out: &Path,
) -> Result<PathBuf, String> {
    let root = shared_directory().parent().expect("the workspace's root").to_owned();
    let compiled = compile_in(&root, source, names, globals, build, out)?;
    // Both builds say the same.
    if build == Build::Plain {
        for line in compiled.warnings {
            println!("cargo::warning={line}");
        }
    }
    Ok(compiled.object)
}

/// What [`compile_in`] made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The shared object.
    pub object: PathBuf,
    /// Lines in which the compiler warns.
    pub warnings: Vec<String>,
}

/// The host's C++ compiler.
///
/// # Errors
/// There is none; the message says how to get one.
pub fn compiler() -> Result<PathBuf, String> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cc::Build::new();
    build.cpp(true).cargo_metadata(false).opt_level(2).host(&host).target(&host);
    match build.try_get_compiler() {
        Ok(compiler) => Ok(compiler.path().to_owned()),
        Err(e) => Err(no_compiler(&e)),
    }
}

fn no_compiler(reason: &dyn std::fmt::Display) -> String {
    format!(
        "a C++ compiler is needed to run kernels on the CPU (Debian, Ubuntu: apt install g++): {reason}"
    )
}

/// As [`compile`], with the headers of another tree: `root` holds `shared/cuda` and
/// `shared/emulator/include`, and places are named relative to it. Says nothing itself.
///
/// # Errors
/// As [`compile`].
pub fn compile_in<S: AsRef<str>>(
    root: &Path,
    source: &Path,
    names: &[S],
    globals: &[S],
    build: Build,
    out: &Path,
) -> Result<Compiled, String> {
    let shared = root.join("shared");
    let include = shared.join("emulator/include");
    // The compiler runs elsewhere: see below.
    let absolute = |p: &Path| p.canonicalize().map_err(|e| format!("{}: {e}", p.display()));
    let (source, out) = (&absolute(source)?, &absolute(out)?);
    let object = out.join(build.file_name(&stem(source)));
    let wrapper = object.with_extension("cpp");
    let assembly = object.with_extension("s");
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    let kernels = signature::parameter_names(&texts(source, &shared.join("cuda"))?);
    write(&wrapper, &wrapper_text(source, names, globals, &kernels))?;

    let compiler = compiler()?;
    let start = || {
        let mut command = Command::new(&compiler);
        // Line tables name files from the workspace's root, whatever machine built them.
        command
            .current_dir(root)
            .args(["-g", "-fPIC", "-fvisibility=hidden"])
            // Reports need places, and the names and types of arrays and parameters. Where a local
            // variable lives from instruction to instruction nobody asks, and it is most of -g.
            .args(["-fno-var-tracking", "-fno-var-tracking-assignments"])
            .arg(format!("-ffile-prefix-map={}=.", root.display()))
            .arg("-I")
            .arg(&include);
        command
    };
    let mut command = start();
    command
        .args(["-x", "c++", "-std=c++17", "-S"])
        .args(build.flags())
        // Kernels throw nothing and pun types; fused multiply-adds only where they are written.
        .args(["-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-ffp-contract=off"])
        // Places of barriers must stay apart, and callers must stay on the stack.
        .args(["-fno-thread-jumps", "-fno-optimize-sibling-calls"])
        .args(["-Wall", "-Wno-unknown-pragmas", "-Wframe-larger-than=16384"])
        // Raises false alarms over rows kept in arrays. The checks show what it says of a variable
        // once one is seen to have had no value.
        .arg(match build {
            Build::Plain => "-Wno-maybe-uninitialized",
            Build::Checked => "-Wmaybe-uninitialized",
        })
        .arg("-I")
        .arg(shared.join("cuda"))
        .arg(&wrapper)
        .arg("-o")
        .arg(&assembly);
    let said = run(&mut command, source)?;
    let warnings = said.lines().filter(|l| l.contains("warning")).map(str::to_owned).collect();
    if build == Build::Checked {
        let text = std::fs::read_to_string(&assembly);
        let text = text.map_err(|e| format!("{}: {e}", assembly.display()))?;
        write(&assembly, &prepare_for_checks(&text))?;
    }
    let mut command = start();
    command.args(["-std=c++17", "-O2", "-shared", "-Wl,-z,defs"]);
    if build == Build::Checked {
        let table = object.with_extension("suspects.cpp");
        let text = format!(
            "extern \"C\" {{\n__attribute__((visibility(\"default\"))) extern const char emu_suspects[];\n\
             const char emu_suspects[] = {:?};\n}}\n",
            suspects(&said, root)
        );
        write(&table, &text)?;
        command.arg("-DEMU_CHECKED").arg(&table);
    }
    command.arg(include.join("glue.cpp")).arg(&assembly).arg("-o").arg(&object);
    run(&mut command, source)?;
    Ok(Compiled { object, warnings })
}

/// Runs the compiler; what it said.
fn run(command: &mut Command, source: &Path) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|e| no_compiler(&format!("{}: {e}", command.get_program().display())))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} does not compile for the emulator:\n{said}", source.display()));
    }
    Ok(said.into_owned())
}

/// The file that is compiled: the shim, the kernels, and the tables by which they are found.
fn wrapper_text<S: AsRef<str>>(
    source: &Path,
    names: &[S],
    globals: &[S],
    kernels: &signature::Kernels,
) -> String {
    let mut text = String::from("#include \"emulator.h\"\n");
    let mut line = |line: String| {
        text += &line;
        text.push('\n');
    };
    line(format!("#include {:?}", source.display().to_string()));
    line("#define EMU_VISIBLE extern \"C\" __attribute__((visibility(\"default\")))".into());
    line("EMU_VISIBLE const EmuExport emu_exports[];".into());
    line("EMU_VISIBLE const unsigned emu_export_count;".into());
    line("const EmuExport emu_exports[] = {".into());
    for name in names.iter().map(AsRef::as_ref) {
        let parameters = kernels.get(signature::kernel_of(name)).cloned().unwrap_or_default();
        line(format!("    EMU_EXPORT({name:?}, {:?}, {name}),", parameters.join(",")));
    }
    line(format!("}};\nconst unsigned emu_export_count = {};", names.len()));
    line("EMU_VISIBLE const EmuGlobal emu_globals[];".into());
    line("EMU_VISIBLE const unsigned emu_global_count;".into());
    line("const EmuGlobal emu_globals[] = {".into());
    for name in globals.iter().map(AsRef::as_ref) {
        line(format!("    {{{name:?}, (void*)&{name}, sizeof {name}}},"));
    }
    line("    {nullptr, nullptr, 0}};".into());
    line(format!("const unsigned emu_global_count = {};", globals.len()));
    text
}

/// Local variables that the compiler warns may be used without a value: place (from `root` on) and
/// name, a line each.
fn suspects(said: &str, root: &Path) -> String {
    let root = format!("{}/", root.display());
    let mut all: Vec<String> = Vec::new();
    let mut warned = false;
    for line in said.lines() {
        warned = line.contains("uninitialized [-W") || warned && !line.contains("warning:");
        // x.cu:9:11: note: ‘sum’ was declared here
        let Some((place, note)) = line.split_once(": note: ") else { continue };
        let Some((name, _)) = note.split_once(" was declared here") else { continue };
        let name = name.trim_matches(['‘', '’', '\'']).replace("<anonymous>", "a temporary");
        let place = place.strip_prefix(&root).unwrap_or(place).trim_start_matches("./");
        let line = format!("{place} {name}");
        if warned && !all.contains(&line) {
            all.push(line);
        }
    }
    all.join("\n")
}

/// What the compiler cannot be told, in its assembly.
///
/// Static shared arrays are thread-local variables, which the linker puts side by side: an index
/// past the end of one would be an element of the next. Bytes between them belong to nobody. And
/// calls of `memcpy` and the like, which the thread sanitizer leaves alone, go to the emulator.
fn prepare_for_checks(assembly: &str) -> String {
    const APART: usize = 256;
    let mut prepared = String::with_capacity(assembly.len());
    let mut in_shared = false;
    for line in assembly.lines() {
        let (directive, operand) = line.trim().split_once('\t').unwrap_or((line.trim(), ""));
        match directive {
            ".section" => in_shared = operand.starts_with(".tbss"),
            ".text" | ".data" | ".bss" => in_shared = false,
            _ => {}
        }
        match operand.trim_end_matches("@PLT") {
            function @ ("memcpy" | "memmove" | "memset") if !directive.starts_with('.') => {
                writeln!(prepared, "\t{directive}\temu_{function}")
            }
            _ => writeln!(prepared, "{line}"),
        }
        .expect("writing to a string");
        if in_shared && directive == ".zero" {
            writeln!(prepared, "\t.zero\t{APART}").expect("writing to a string");
        }
    }
    prepared
}
