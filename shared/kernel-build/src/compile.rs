//! Compiles a kernel file for the emulator.
//!
//! What stands in this file, in `common.rs`, `signature.rs`, `starts.rs`, `tools.rs` and `waits.rs` decides what an object holds: all
//! go into the hash by which objects are kept.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::prelude::Prelude;
use crate::starts::watch_starts;
use crate::tools::{Build, Common, Tools, kernel_flags, no_compiler, run, write};
use crate::waits::mark_waits;
use crate::{shared_directory, signature, stem, texts};

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
    let tools = Tools { compiler: compiler()?, root: &workspace_root(), common: None };
    Ok(warn(compile_with(&tools, source, names, globals, build, out)?, build))
}

/// As [`compile`]; keeps what it has in common with the other kernels in the directory `kept`.
pub(crate) fn compile_sharing<S: AsRef<str>>(
    source: &Path,
    names: &[S],
    globals: &[S],
    build: Build,
    out: &Path,
    kept: &Path,
) -> Result<PathBuf, String> {
    let root = workspace_root();
    Ok(warn(compile_keeping(&root, source, names, globals, build, out, kept)?, build))
}

/// As [`compile_in`]; keeps what it has in common with the other kernels in the directory `kept`.
pub(crate) fn compile_keeping<S: AsRef<str>>(
    root: &Path,
    source: &Path,
    names: &[S],
    globals: &[S],
    build: Build,
    out: &Path,
    kept: &Path,
) -> Result<Compiled, String> {
    let mut tools = Tools { compiler: compiler()?, root, common: None };
    tools.common = Some(Common::of(&tools, build, kept)?);
    compile_with(&tools, source, names, globals, build, out)
}

/// Hands on what the compiler warns of, as a build script does.
fn warn(compiled: Compiled, build: Build) -> PathBuf {
    // Both builds say the same.
    if build == Build::Plain {
        for line in compiled.warnings {
            println!("cargo::warning={line}");
        }
    }
    compiled.object
}

fn workspace_root() -> PathBuf {
    shared_directory().parent().expect("the workspace's root").to_owned()
}

/// What [`compile_in`] made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The shared object.
    pub object: PathBuf,
    /// Lines in which the compiler warns.
    pub warnings: Vec<String>,
}

/// The host's C++ compiler, looked for once a process.
///
/// # Errors
/// There is none; the message says how to get one.
pub fn compiler() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(find_compiler).clone()
}

fn find_compiler() -> Result<PathBuf, String> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .cargo_metadata(false)
        .cargo_warnings(false)
        .opt_level(2)
        .host(&host)
        .target(&host);
    match build.try_get_compiler() {
        Ok(compiler) => Ok(compiler.path().to_owned()),
        Err(e) => Err(no_compiler(&e)),
    }
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
    let mut tools = Tools { compiler: compiler()?, root, common: None };
    tools.common = Common::beside_build(&tools, build);
    compile_with(&tools, source, names, globals, build, out)
}

/// Other code in place of a file's kernels: C++ behind the file's own text, which says what parameters are called and of
/// which types they are.
#[derive(Clone, Copy, Debug)]
pub struct Through<'a> {
    /// The C++.
    pub text: &'a str,
    /// Of each instantiation the function in it that is run, which takes what its parameters convert to.
    pub functions: &'a [String],
    /// Of each global variable the one in it.
    pub globals: &'a [String],
}

/// As [`compile_in`], with other code in place of the kernels.
///
/// # Errors
/// As [`compile`].
pub fn compile_through<S: AsRef<str>>(
    root: &Path,
    source: &Path,
    [names, globals]: [&[S]; 2],
    through: Through<'_>,
    build: Build,
    out: &Path,
) -> Result<Compiled, String> {
    let source = &absolute(source)?;
    let mut tools = Tools { compiler: compiler()?, root, common: None };
    tools.common = Common::beside_build(&tools, build);
    compile_text(&tools, source, build, out, |kernels| {
        wrapper_text(source, names, globals, kernels, Some(through))
    })
}

fn compile_with<S: AsRef<str>>(
    tools: &Tools<'_>,
    source: &Path,
    names: &[S],
    globals: &[S],
    build: Build,
    out: &Path,
) -> Result<Compiled, String> {
    let source = &absolute(source)?;
    compile_text(tools, source, build, out, |kernels| {
        wrapper_text(source, names, globals, kernels, None)
    })
}

fn compile_text(
    tools: &Tools<'_>,
    source: &Path,
    build: Build,
    out: &Path,
    text: impl FnOnce(&signature::Kernels) -> String,
) -> Result<Compiled, String> {
    // The compiler runs elsewhere: see `Tools::start`.
    let (source, out) = (&absolute(source)?, &absolute(out)?);
    let object = out.join(build.file_name(&stem(source)));
    let wrapper = object.with_extension("cpp");
    let kernels = signature::kernels(&texts(source, &tools.root.join("shared/cuda"))?);
    write(&wrapper, &text(&kernels))?;
    let assembly = object.with_extension("s");
    let said = tools.assemble(&wrapper, &assembly, &kernel_flags(tools.root), build, source)?;
    let warnings = said.lines().filter(|l| l.contains("warning")).map(str::to_owned).collect();
    let glue = tools.common.as_ref().map(Common::glue);
    let glue = glue.unwrap_or_else(|| tools.include().join("glue.cpp"));
    tools.link(&[glue, assembly], &[], &said, build, &object, source)?;
    Ok(Compiled { object, warnings })
}

/// C++ files that together are a program with its own `main`, or kernels without one.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What files begin with that include CUDA's headers; each has it in its text. It is compiled in advance for the
    /// next program of the same flags.
    pub prelude: String,
    /// What is compiled: text and the name that messages have for it.
    pub units: Vec<(String, PathBuf)>,
    /// For the compiler, such as `-DN=4`; directories are absolute.
    pub flags: Vec<String>,
    /// For the linker, such as `-lm`.
    pub libraries: Vec<String>,
}

/// Compiles a program, host code and all, into `out/program.so`. Its files are C++ already: launches are
/// calls. `root` is as for [`compile_in`]; the headers of `shared/emulator/compat` stand in for CUDA's. What all
/// programs have in common is kept in `root/objects`.
///
/// # Errors
/// As [`compile`].
pub fn compile_program(
    root: &Path,
    program: &Program,
    build: Build,
    out: &Path,
) -> Result<Compiled, String> {
    let out = &absolute(out)?;
    let tools = Tools { compiler: compiler()?, root, common: None };
    let compat = root.join("shared/emulator/compat");
    let mut flags = vec!["-I".into(), compat.display().to_string(), "-pthread".into()];
    if build == Build::Checked {
        // Of parts as well: kernels of this workspace do not pay for it.
        flags.push("-fsanitize=alignment,object-size".into());
        // What g++ makes of a memset itself calls no hook: what it sets would count as unwritten.
        if cfg!(target_arch = "x86_64") {
            let strategy = |of: &str| format!("-m{of}-strategy=libcall:-1:noalign");
            flags.extend(["memset", "memcpy"].map(strategy));
        }
    }
    flags.extend(program.flags.iter().cloned());
    let object = out.join(build.file_name("program"));
    let prelude = Prelude::of(&tools, &program.prelude, &flags, build)?;
    let (mut assemblies, mut said) = (Vec::new(), String::new());
    for (number, (text, source)) in program.units.iter().enumerate() {
        let unit = out.join(format!("unit{number}.cpp"));
        let assembly = unit.with_extension("s");
        let mut flags = flags.clone();
        let text = match (&prelude, text.strip_prefix(&program.prelude)) {
            (Some(prelude), Some(rest)) => {
                flags.extend(["-include".to_owned(), prelude.header().display().to_string()]);
                rest
            }
            _ => text,
        };
        write(&unit, text)?;
        said += &tools.assemble(&unit, &assembly, &flags, build, source)?;
        assemblies.push(assembly);
    }
    let main = &program.units.first().ok_or("expected a file to compile, got none")?.1;
    for file in [tools.include().join("glue.cpp"), compat.join("program.cpp")] {
        assemblies.push(tools.kept_object(&file, &program.libraries, build)?);
    }
    tools.link(&assemblies, &program.libraries, &said, build, &object, main)?;
    Ok(Compiled { object, warnings: Vec::new() })
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))
}

impl Tools<'_> {
    /// Compiles a file to assembly, fit for this build; what the compiler said. Messages of errors name
    /// `source`.
    fn assemble(
        &self,
        unit: &Path,
        assembly: &Path,
        flags: &[String],
        build: Build,
        source: &Path,
    ) -> Result<String, String> {
        // As its own compiler does, where a program's file is one of C.
        let is_c = source.extension().is_some_and(|e| e == "c");
        let (language, own): (_, Vec<String>) = if is_c {
            ("c", flags.iter().filter(|f| !f.starts_with("-std=")).cloned().collect())
        } else {
            ("c++", flags.to_vec())
        };
        let mut command = self.read(language, &own, build);
        command.arg("-S").arg(unit).arg("-o").arg(assembly);
        let said = run(&mut command, source)?;
        let text = std::fs::read_to_string(assembly);
        let text = text.map_err(|e| format!("{}: {e}", assembly.display()))?;
        let (code, debug) = split_debug(&text);
        let code = with_first_symbols(with_aligned_shared(code));
        let code = match build {
            Build::Plain => code,
            Build::Checked => {
                watch_starts(&mark_waits(&prepare_for_checks(&code, !writes_pattern(source))))
            }
        };
        write(assembly, &(code + debug))?;
        Ok(said)
    }

    /// The object of a file of the headers' tree that every program has, compiled once: the directory of a
    /// tree that is kept is named by its content.
    fn kept_object(
        &self,
        source: &Path,
        libraries: &[String],
        build: Build,
    ) -> Result<PathBuf, String> {
        let flags: Vec<_> = libraries.iter().filter(|f| !f.starts_with("-l")).collect();
        let mut hasher = DefaultHasher::new();
        (
            include_str!("compile.rs"),
            include_str!("tools.rs"),
            &flags,
            build.flags(),
            crate::compiler_version()?,
        )
            .hash(&mut hasher);
        let folder = self.root.join("objects");
        let object = folder.join(format!("{}.{:016x}.o", stem(source), hasher.finish()));
        if !object.is_file() {
            let said = |e: std::io::Error| format!("{}: {e}", object.display());
            std::fs::create_dir_all(&folder).map_err(said)?;
            let part = folder.join(format!("{}.{}.o", stem(source), std::process::id()));
            let mut command = self.read_glue(build);
            run(command.args(flags).arg("-c").arg(source).arg("-o").arg(&part), source)?;
            std::fs::rename(&part, &object).map_err(said)?;
        }
        Ok(object)
    }

    /// Makes the shared object. `said` is what the compiler said of all that is in it.
    fn link(
        &self,
        parts: &[PathBuf],
        more: &[String],
        said: &str,
        build: Build,
        object: &Path,
        source: &Path,
    ) -> Result<(), String> {
        let mut command = self.read_glue(build);
        command.args(["-shared", "-Wl,-z,defs"]).args(parts);
        if build == Build::Checked {
            let table = object.with_extension("suspects.s");
            let suspects = suspects(said, self.root);
            write(
                &table,
                &format!(
                    "\t.section\t.rodata\n\t.globl\temu_suspects\nemu_suspects:\n\t.string\t{suspects:?}\n\
                     \t.section\t.note.GNU-stack,\"\"\n"
                ),
            )?;
            command.arg(table);
        }
        command.args(more).arg("-o").arg(object);
        run(&mut command, source).map(|_| ())
    }
}

/// A kernel with the parameters of one function and the code of another.
const THROUGH: &str = "namespace emu_through {
template <class F, auto G> struct Call;
template <class... A, auto G> struct Call<void (*)(A...), G> { static void call(A... a) { G(a...); } };
}";

/// The file that is compiled: the shim, the kernels, and the tables by which they are found.
fn wrapper_text<S: AsRef<str>>(
    source: &Path,
    names: &[S],
    globals: &[S],
    kernels: &signature::Kernels,
    through: Option<Through<'_>>,
) -> String {
    let mut text = String::from("#include \"emulator.h\"\n");
    let mut line = |line: String| {
        text += &line;
        text.push('\n');
    };
    line(format!("#include {:?}", source.display().to_string()));
    let is_listed =
        |kernel: &str| names.iter().any(|name| signature::kernel_of(name.as_ref()) == kernel);
    for (name, kernel) in kernels.iter().filter(|(name, _)| is_listed(name)) {
        if let Some([definition, ..]) = kernel.block(name, name) {
            line(definition);
        }
    }
    if let Some(through) = through {
        line(through.text.to_owned());
        line(THROUGH.to_owned());
    }
    line("#define EMU_VISIBLE extern \"C\" __attribute__((visibility(\"default\")))".into());
    line("EMU_VISIBLE const EmuExport emu_exports[];".into());
    line("EMU_VISIBLE const unsigned emu_export_count;".into());
    line("const EmuExport emu_exports[] = {".into());
    for (n, name) in names.iter().map(AsRef::as_ref).enumerate() {
        let kernel = kernels.get(signature::kernel_of(name)).cloned().unwrap_or_default();
        let block = match kernel.block(signature::kernel_of(name), name) {
            Some([_, threads, shared]) => format!("({threads}), ({shared})"),
            None => "0, 0".into(),
        };
        let parameters = kernel.parameters.join(",");
        let function = match through {
            Some(through) => {
                format!("::emu_through::Call<decltype(&{name}), &{}>::call", through.functions[n])
            }
            None => name.to_owned(),
        };
        line(format!("    EMU_EXPORT({name:?}, {parameters:?}, {block}, {function}),"));
    }
    line(format!("}};\nconst unsigned emu_export_count = {};", names.len()));
    line("EMU_VISIBLE const EmuGlobal emu_globals[];".into());
    line("EMU_VISIBLE const unsigned emu_global_count;".into());
    line("const EmuGlobal emu_globals[] = {".into());
    for (n, name) in globals.iter().map(AsRef::as_ref).enumerate() {
        let own = through.map_or(name, |through| &through.globals[n]);
        line(format!("    {{{name:?}, (void*)&{own}, sizeof {own}}},"));
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
/// g++'s pattern as it writes it into assembly, of four bytes and of eight, and words of 0x7FFEFEFE
/// likewise, which the runtime knows as well.
const PATTERN_WORDS: [(&str, &str); 2] =
    [("-16843010", "2147417854"), ("-72340172838076674", "9223089455923920638")];

/// Whether a file may mean 0xFE itself: then its constants stay as they are.
fn writes_pattern(source: &Path) -> bool {
    let text = std::fs::read_to_string(source).unwrap_or_default().to_lowercase();
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| word == "254" || word.starts_with("0xfe"))
}

/// What is changed in the assembly, and what g++ writes for debuggers behind it, which is two thirds of the text.
fn split_debug(assembly: &str) -> (&str, &str) {
    assembly.split_at(assembly.find("\t.section\t.debug_info").unwrap_or(assembly.len()))
}

/// Functions of the C library that later versions of it have under a version of their own.
const RENEWED: [&str; 9] =
    ["exp", "exp2", "log", "log2", "pow", "hypot", "hypotf", "fmod", "fmodf"];

/// The assembly, which asks for the first version of these functions. The newer ones differ in how they
/// report errors, not in results; with the first, a shared object that is built here also loads beside an
/// older C library.
pub(crate) fn with_first_symbols(mut assembly: String) -> String {
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        for name in RENEWED {
            let called = format!("{name}@");
            let is_asked_for = assembly.match_indices(&called).any(|(at, _)| {
                let before = assembly[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && !"_.$".contains(c))
            });
            if is_asked_for {
                writeln!(assembly, "\t.symver\t{name}, {name}@GLIBC_2.2.5")
                    .expect("writing to a string");
            }
        }
    }
    assembly
}

/// Static shared arrays are thread-local variables, for which g++ asks for no more than their declared
/// alignment. What a GPU would find aligned must be so here: `place_on_gpu` of the emulator judges.
pub(crate) fn with_aligned_shared(assembly: &str) -> String {
    let mut aligned = String::with_capacity(assembly.len());
    let mut rest = assembly;
    while let Some(at) = rest.find("\t.section\t.tbss") {
        aligned += &rest[..at];
        rest = &rest[at..];
        while let Some(end) = rest.find('\n').map(|at| at + 1) {
            let line;
            (line, rest) = rest.split_at(end);
            let mut words = line.split_whitespace();
            let (directive, operand) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let is_alignment = directive == ".align";
            if is_alignment && operand.parse().is_ok_and(|bytes: u32| bytes < 16) {
                aligned += "\t.align 16\n"
            } else {
                aligned += line
            }
            let is_other = directive == ".section" && !operand.starts_with(".tbss");
            if is_other || matches!(directive, ".text" | ".data" | ".bss") {
                break;
            }
        }
    }
    aligned + rest
}

/// Static shared arrays are thread-local variables, which the linker puts side by side: an index
/// past the end of one would be an element of the next. Bytes between them belong to nobody. And
/// calls of `memcpy` and the like, which the thread sanitizer leaves alone, go to the emulator.
///
/// g++ fills local variables without a value with bytes 0xFE: as a number that is −1.7e38, which a
/// second one and a sum make infinite. With `nan` each word of them becomes 0x7FFEFEFE, a NaN
/// that the processor hands on, bits and all, through any sum and product. As an integer it is so large that few
/// programs have one near it: what a forgotten one was added to is told by that.
fn prepare_for_checks(assembly: &str, nan: bool) -> String {
    const APART: usize = 256;
    let mut prepared = String::with_capacity(assembly.len());
    let (mut in_shared, mut in_constants, mut pattern_bytes) = (false, false, 0usize);
    for line in assembly.lines() {
        let (directive, operand) = line.trim().split_once('\t').unwrap_or((line.trim(), ""));
        match directive {
            ".section" => {
                in_shared = operand.starts_with(".tbss");
                in_constants = operand.starts_with(".rodata.cst");
            }
            ".text" | ".data" | ".bss" => (in_shared, in_constants) = (false, false),
            _ => {}
        }
        let is_pattern_byte = in_constants && (directive, operand) == (".byte", "-2");
        pattern_bytes = if is_pattern_byte { pattern_bytes + 1 } else { 0 };
        if nan && is_pattern_byte && pattern_bytes.is_multiple_of(4) {
            prepared += "\t.byte\t127\n";
            continue;
        }
        let patterned = nan && PATTERN_WORDS.iter().any(|words| operand.contains(words.0));
        if patterned {
            let [word, double] = PATTERN_WORDS;
            let line = line.replace(double.0, double.1).replace(word.0, word.1);
            writeln!(prepared, "{line}").expect("writing to a string");
            continue;
        }
        match operand.strip_suffix("@PLT").unwrap_or(operand) {
            function @ ("memcpy" | "memmove" | "memset") if !directive.starts_with('.') => {
                writeln!(prepared, "\t{directive}\temu_{function}").expect("writing to a string");
            }
            _ => {
                prepared += line;
                prepared.push('\n');
            }
        }
        if in_shared && directive == ".zero" {
            writeln!(prepared, "\t.zero\t{APART}").expect("writing to a string");
        }
    }
    prepared
}
