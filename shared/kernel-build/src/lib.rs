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

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A `.cu` file, what is wanted of it, and the variables that the host may set.
#[derive(Debug)]
struct Entry {
    file: String,
    names: Vec<String>,
    globals: Vec<String>,
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
        self.kernels.push(Entry { file: file.to_owned(), names, globals: Vec::new() });
        self
    }

    /// Lists `__device__` and `__constant__` variables of the file added last.
    pub fn globals(mut self, names: &[&str]) -> Self {
        if let Some(entry) = self.kernels.last_mut() {
            entry.globals.extend(names.iter().map(|n| (*n).to_owned()));
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
        rerun_if_changed(&shared.join("cuda"));
        let mut generated = String::new();
        generated += &headers_table(&shared.join("cuda"))?;
        let mut all = Vec::new();
        for Entry { file, names, globals } in &self.kernels {
            let source = crate_root.join(file);
            let object = compile(&source, names, globals, &out)?;
            rerun_if_changed(&source);
            let stem = stem(&source);
            let constant = stem.to_uppercase();
            let (text, object) = (source.display().to_string(), object.display().to_string());
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
    object: include_bytes!({object:?}),
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

fn stem(path: &Path) -> String {
    path.file_stem().expect("a kernel file has a name").to_string_lossy().into_owned()
}

/// The device headers, embedded: NVRTC takes them from memory, so a binary needs no files.
fn headers_table(directory: &Path) -> Result<String, String> {
    let mut table = String::from("static HEADERS: &[(&str, &str)] = &[\n");
    let folder = directory.join("lab");
    rerun_if_changed(&folder);
    let mut entries: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .collect();
    entries.sort();
    for path in entries {
        rerun_if_changed(&path);
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        writeln!(
            table,
            "    ({:?}, include_str!({:?})),",
            format!("lab/{name}"),
            path.display().to_string()
        )
        .expect("writing to a string");
    }
    Ok(table + "];\n")
}

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

fn shared_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("shared/").to_owned()
}

/// Compiles one `.cu` file, with these instantiations of its templates and these global variables,
/// into a shared object in the directory `out`. Objects are apart so that each has its own static shared memory, and are
/// loaded locally so that equal names do not meet.
///
/// # Errors
/// No compiler, or its message where the kernel does not compile.
pub fn compile<S: AsRef<str>>(
    source: &Path,
    names: &[S],
    globals: &[S],
    out: &Path,
) -> Result<PathBuf, String> {
    let root = shared_directory().parent().expect("the workspace's root").to_owned();
    let compiled = compile_in(&root, source, names, globals, out)?;
    for line in compiled.warnings {
        println!("cargo::warning={line}");
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
    out: &Path,
) -> Result<Compiled, String> {
    let shared = root.join("shared");
    let include = shared.join("emulator/include");
    // The compiler runs elsewhere: see below.
    let absolute = |p: &Path| p.canonicalize().map_err(|e| format!("{}: {e}", p.display()));
    let (source, out) = (&absolute(source)?, &absolute(out)?);
    let object = out.join(format!("{}.so", stem(source)));
    let wrapper = out.join(format!("{}.cpp", stem(source)));
    let mut text = String::from("#include \"emulator.h\"\n");
    writeln!(text, "#include {:?}", source.display().to_string()).expect("writing to a string");
    text += "#define EMU_VISIBLE extern \"C\" __attribute__((visibility(\"default\")))\n";
    text += "EMU_VISIBLE const EmuExport emu_exports[];\nEMU_VISIBLE const unsigned emu_export_count;\n";
    text += "const EmuExport emu_exports[] = {\n";
    for name in names.iter().map(AsRef::as_ref) {
        writeln!(text, "    EMU_EXPORT({name:?}, {name}),").expect("writing to a string");
    }
    writeln!(text, "}};\nconst unsigned emu_export_count = {};", names.len())
        .expect("writing to a string");
    text += "EMU_VISIBLE const EmuGlobal emu_globals[];\nEMU_VISIBLE const unsigned emu_global_count;\n";
    text += "const EmuGlobal emu_globals[] = {\n";
    for name in globals.iter().map(AsRef::as_ref) {
        writeln!(text, "    {{{name:?}, (void*)&{name}, sizeof {name}}},")
            .expect("writing to a string");
    }
    writeln!(
        text,
        "    {{nullptr, nullptr, 0}}}};\nconst unsigned emu_global_count = {};",
        globals.len()
    )
    .expect("writing to a string");
    std::fs::write(&wrapper, text).map_err(|e| format!("{}: {e}", wrapper.display()))?;

    let compiler = compiler()?;
    let mut command = Command::new(&compiler);
    command
        .args(["-x", "c++", "-std=c++17", "-O2", "-g", "-fPIC", "-shared", "-Wl,-z,defs"])
        // Kernels throw nothing and pun types; fused multiply-adds only where they are written.
        .args(["-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-ffp-contract=off"])
        // Places of barriers must stay apart, and callers must stay on the stack.
        .args(["-fno-thread-jumps", "-fno-optimize-sibling-calls", "-fvisibility=hidden"])
        .args(["-Wall", "-Wno-unknown-pragmas", "-Wframe-larger-than=16384"])
        // Raises false alarms over rows kept in arrays; a test with poisoned memory sees the rest.
        .arg("-Wno-maybe-uninitialized")
        // Line tables name files from the workspace's root, whatever machine built them.
        .current_dir(root)
        .arg(format!("-ffile-prefix-map={}=.", root.display()))
        .arg("-I")
        .arg(&include)
        .arg("-I")
        .arg(shared.join("cuda"))
        .arg(&wrapper)
        .arg(include.join("glue.cpp"))
        .arg("-o")
        .arg(&object);
    let output =
        command.output().map_err(|e| no_compiler(&format!("{}: {e}", compiler.display())))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} does not compile for the emulator:\n{said}", source.display()));
    }
    let warnings = said.lines().filter(|l| l.contains("warning")).map(str::to_owned).collect();
    Ok(Compiled { object, warnings })
}
