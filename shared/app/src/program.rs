//! A program: read, compiled, run.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lab_emulator::{Finding, Module, Order};
use lab_kernel_build::{Build, compile_program};

use crate::Error;
use crate::arch::Arch;
use crate::cache;
use crate::compiling::{Compiling, time_to_run};
use crate::conditions::Macros;
use crate::cuts::Cuts;
use crate::fault;
use crate::headers;
use crate::host::{self, HOST_TABLE};
use crate::instructions;
use crate::limit::limit_memory;
use crate::made::name_kernels_of_macros;
use crate::object::{Initialisers, check_shared};
use crate::reading::program_of;
use crate::rewrite::Kernel;
use crate::sources::Sources;
use crate::tokens::Tokens;

/// How a program is compiled.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where headers are looked for.
    pub include: Vec<PathBuf>,
    /// `NAME` or `NAME=VALUE`.
    pub define: Vec<String>,
    /// The language, such as `c++17`, which it is without.
    pub standard: Option<String>,
    /// Not checked, and so faster.
    pub plain: bool,
    /// Not optimised, with all local variables, and stopping at a thread: for a debugger.
    pub debug: bool,
    /// How long it may run. It is ended then, with exit code 1 of its own.
    pub timeout: Option<Duration>,
    /// So many bytes it may have in all.
    pub memory: Option<u64>,
    /// The GPU that is stood for.
    pub arch: Arch,
    /// Of the threads; `None` leaves it to the environment.
    pub order: Option<Order>,
}

impl Options {
    /// What a file can ask for by `#if`.
    pub(crate) fn macros(&self) -> Macros {
        let arch = format!("__CUDA_ARCH__={}", self.arch.number());
        let version =
            ["__CUDACC_VER_MAJOR__=12", "__CUDACC_VER_MINOR__=4", "__CUDACC_VER_BUILD__=0"];
        let of_cuda = ["__CUDACC__", "__NVCC__", &arch].into_iter().chain(version);
        Macros::of(of_cuda.chain(self.define.iter().map(String::as_str)))
    }
}

/// A program that is compiled and not run yet.
#[derive(Debug)]
pub struct Program {
    module: Arc<Module>,
    initialisers: Initialisers,
    kernels: Vec<(PathBuf, Kernel)>,
    missing: Vec<String>,
    timeout: Option<Duration>,
    begun: Instant,
    memory: Option<u64>,
    arch: Arch,
    order: Option<Order>,
}

/// What is known when a program has ended.
#[derive(Debug)]
pub struct Report {
    /// Its own exit code.
    pub exit: i32,
    /// Launches.
    pub launches: usize,
    /// Each finding once, with its kernel; formal ones among them.
    pub findings: Vec<(String, Finding)>,
    /// Findings at places that were told.
    pub repeated: usize,
    /// Calls of the runtime API that were refused.
    pub refused: Vec<String>,
    /// Those of them that are the program's errors, which a GPU refuses, too; the others are not supported here.
    pub api_errors: usize,
    /// Kernels that were launched and cannot be run here, and why.
    pub not_run: Vec<String>,
    /// The signal that has ended its host code: which, and where.
    pub fault: Option<String>,
    /// Why a part of what it printed on stdout is lost.
    pub lost: Option<String>,
}

impl Program {
    /// Compiles the files of a program.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Compile`], [`Error::Module`].
    pub fn build(files: &[PathBuf], options: &Options) -> Result<Self, Error> {
        let begun = Instant::now();
        let scratch = scratch()?;
        let compiling = Compiling::begin(scratch.path(), options);
        let built = compiling.end(Self::build_in(scratch.path(), files, options))?;
        Ok(Self { begun, ..built })
    }

    fn build_in(scratch: &Path, files: &[PathBuf], options: &Options) -> Result<Self, Error> {
        let (mut cuts, mut missing, mut first) = (Cuts::default(), Vec::new(), None);
        let ((module, initialisers), kernels) = loop {
            let sources = Sources::read_without(&cuts, None, files, options, scratch)?;
            let kernels = sources.kernels.clone();
            let error = match compile(sources, options, scratch) {
                Ok(module) => break (module, kernels),
                Err(error) => error,
            };
            // Many a header is included and not used.
            let text =
                |file: &str| Some(String::from_utf8_lossy(&std::fs::read(file).ok()?).into_owned());
            let next = match &error {
                Error::Compile { said, .. } if missing.len() < MAX_MISSING => {
                    missing_header(said, text)
                }
                _ => None,
            };
            let is_new = next.as_ref().is_some_and(|(line, _)| cuts.add(line));
            match next {
                Some((_, header)) if is_new => missing.push(header),
                _ => return Err(first.unwrap_or(error)),
            }
            first.get_or_insert(error);
        };
        Ok(Self {
            module,
            initialisers,
            kernels,
            missing,
            timeout: options.timeout,
            begun: Instant::now(),
            memory: options.memory,
            arch: options.arch,
            order: options.order,
        })
    }

    /// Headers that are not there, and that nothing turned out to need: `file:line: name` each.
    pub fn missing_headers(&self) -> &[String] {
        &self.missing
    }

    /// The kernels that these files and the headers of theirs define, each with its file. Nothing is
    /// compiled.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn kernels(files: &[PathBuf], options: &Options) -> Result<Vec<(PathBuf, Kernel)>, Error> {
        let scratch = scratch()?;
        let mut sources = Sources::read(files, options, scratch.path())?;
        name_kernels_of_macros(&mut sources, options, scratch.path())?;
        Ok(sources.kernels)
    }

    /// Whether a file defines a function `main`, as far as its text says.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn has_main(file: &Path) -> Result<bool, Error> {
        let text = std::fs::read(file)
            .map_err(|e| Error::File { path: file.to_owned(), reason: e.to_string() })?;
        let text = String::from_utf8_lossy(&text);
        let tokens = Tokens::read(&text);
        Ok((1..tokens.all.len()).any(|i| tokens.at(i - 1) == "main" && tokens.at(i) == "("))
    }

    /// Runs `main` and ends the process with what `end` makes of the report, also where the program
    /// calls `exit`.
    ///
    /// # Errors
    /// It has no `main`, or the process has run one before. Otherwise it does not return.
    pub fn run(&self, arguments: &[String], end: fn(Report) -> u8) -> Result<(), Error> {
        let missing = || Error::NoMain {
            kernels: self.kernels.iter().map(|(_, k)| k.name.clone()).collect(),
        };
        let function = |name| self.module.symbol(name).ok_or_else(missing);
        let (bind, has_main, main) =
            (function("emu_bind_host")?, function("emu_has_main")?, function("emu_run_main")?);
        // SAFETY: compat/program.cpp defines these symbols with these types.
        let (bind, has_main, main) = unsafe {
            (
                std::mem::transmute::<*mut c_void, extern "C" fn(*const host::Host)>(bind),
                std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(has_main),
                std::mem::transmute::<*mut c_void, extern "C" fn(c_int, *mut *mut c_char) -> c_int>(
                    main,
                ),
            )
        };
        if has_main() == 0 {
            return Err(missing());
        }
        let mut options = lab_emulator::Options::from_env()?;
        options.order = self.order.unwrap_or(options.order);
        if !host::begin(options, self.arch) || END.set(end).is_err() {
            return Err(Error::Second);
        }
        host::watch_host(&self.module);
        host::add_module(Arc::clone(&self.module));
        bind(&raw const HOST_TABLE);
        let texts: Vec<CString> =
            arguments.iter().filter_map(|a| CString::new(a.as_str()).ok()).collect();
        let mut pointers: Vec<*mut c_char> = texts.iter().map(|t| t.as_ptr().cast_mut()).collect();
        let count = pointers.len() as c_int;
        pointers.push(std::ptr::null_mut());
        let _ = PROCESS.set(std::process::id());
        // SAFETY: a function that takes nothing of this one's; what has ended the program comes there.
        unsafe { on_exit(ended, std::ptr::null_mut()) };
        if let Some(timeout) = self.timeout {
            let left = time_to_run(timeout, self.begun);
            std::thread::spawn(move || {
                std::thread::sleep(left);
                end_without_fail();
                eprintln!("program: expected an end within {} s, got none", timeout.as_secs_f32());
                ended(1, std::ptr::null_mut());
            });
        }
        fault::watch(Arc::clone(&self.module), |line, code| {
            let _ = FAULT.set(line);
            ended(code, std::ptr::null_mut());
        });
        if let Some(bytes) = self.memory {
            limit_memory(bytes).map_err(Error::Refused)?;
        }
        // SAFETY: those of this module, before anything else of it.
        let early = unsafe { self.initialisers.run(&self.module, count, pointers.as_mut_ptr()) };
        let code = early.unwrap_or_else(|| main(count, pointers.as_mut_ptr()));
        // SAFETY: ends the process, by way of `ended`.
        unsafe { libc::exit(code) }
    }
}

/// Compiles what was read, and loads it.
pub(crate) fn compile(
    sources: Sources,
    options: &Options,
    scratch: &Path,
) -> Result<(Arc<Module>, Initialisers), Error> {
    load_object(compile_object(sources, options, scratch)?)
}

/// Loads what [`compile_object`] has made.
pub(crate) fn load_object(mut bytes: Vec<u8>) -> Result<(Arc<Module>, Initialisers), Error> {
    let initialisers = Initialisers::take(&mut bytes);
    // SAFETY: just compiled, from a program that its user wants to be run here; its constructors run later, as the program does. The
    // module keeps the bytes for its line tables.
    let module = unsafe { Module::load(bytes.leak())? };
    Ok((module, initialisers))
}

/// Compiles what was read. What is kept for all programs may be damaged, as a full disk leaves it: then it is made again,
/// once.
pub(crate) fn compile_object(
    sources: Sources,
    options: &Options,
    scratch: &Path,
) -> Result<Vec<u8>, Error> {
    let root = &headers::root()?;
    let objects = headers::objects(root);
    cache::remove_damaged_preludes(&objects);
    cache::remove_damaged_objects(&objects);
    let done = match compile_at(root, sources.clone(), options, scratch) {
        Err(error) if cache::is_at_fault(&error, &objects) && cache::forget(&objects) => {
            compile_at(root, sources, options, scratch)
        }
        done => done,
    };
    if done.is_ok() {
        cache::seal_objects(&objects);
    }
    done
}

fn compile_at(
    root: &Path,
    sources: Sources,
    options: &Options,
    scratch: &Path,
) -> Result<Vec<u8>, Error> {
    let program = program_of(root, sources.clone(), options)?;
    let build = if options.plain { Build::Plain } else { Build::Checked };
    let compiled = compile_program(root, &program, build, scratch);
    let refused = |said: String| {
        let said = instructions::at_own_places(&said);
        Error::Compile { summary: summary(&said), said }
    };
    let object = compiled.map_err(refused)?.object;
    let bytes = std::fs::read(&object)
        .map_err(|e| Error::File { path: object.clone(), reason: e.to_string() })?;
    check_shared(&bytes, sources.kernels.iter().map(|(_, kernel)| kernel))?;
    Ok(bytes)
}

static FAULT: OnceLock<String> = OnceLock::new();
/// That which runs the program, and not one that the program has forked.
static PROCESS: OnceLock<u32> = OnceLock::new();
static END: OnceLock<fn(Report) -> u8> = OnceLock::new();

unsafe extern "C" {
    // Of glibc; the crate libc does not name them.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    static stdout: *mut libc::FILE;
}

/// Writes what streams of C still hold, which stands before ours. Why stdout did not take all of it; a reader that has gone
/// has had enough.
fn flush_streams() -> Option<String> {
    // SAFETY: flushes all streams of C; asks one that the C library made for its state.
    let (flushed, failed) = unsafe { (libc::fflush(std::ptr::null_mut()), libc::ferror(stdout)) };
    let error = std::io::Error::last_os_error();
    match (flushed, failed) {
        (_, 0) => None,
        (0, _) => Some("not all of it could be written".to_owned()),
        _ if error.kind() == ErrorKind::BrokenPipe => None,
        _ => Some(error.to_string()),
    }
}

/// Lets this process end within some seconds, whatever is locked: a thread that is stuck in a stream of C has it locked.
pub fn end_without_fail() {
    extern "C" fn end(_: c_int) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(1) }
    }
    // SAFETY: a handler that only ends the process.
    unsafe {
        libc::signal(libc::SIGALRM, end as *const () as usize);
        libc::alarm(3);
    }
}

/// In the place of a status: another program takes the place of this one (`program.cpp`).
const REPLACED: c_int = 1 << 16;

/// The program ends itself by `_exit` or `quick_exit`, which flush nothing; or by another one in its place, where that is
/// let go on if nothing was found so far.
pub(crate) extern "C" fn end_at_once(status: c_int) {
    if status == REPLACED {
        // One that was forked may have taken the lock of the state with it.
        let own = PROCESS.get() == Some(&std::process::id());
        if own && host::state().findings.iter().any(|(_, finding)| finding.formal.is_none()) {
            eprintln!(
                "lab: the program executes another one, which is left out, for something was found"
            );
            report(0, flush_streams())
        }
        return;
    }
    crate::early::tell(status);
    if PROCESS.get() == Some(&std::process::id()) { report(status, None) } else { end_forked() }
}

/// The exit code of a forked process in which something was found.
const FOUND: c_int = 3;

/// A process that the program has forked ends: the report is its parent's, but its exit code says that something was found in it.
fn end_forked() {
    if host::state().findings.iter().any(|(_, finding)| finding.formal.is_none()) {
        flush_streams();
        // SAFETY: ends the process.
        unsafe { libc::_exit(FOUND) }
    }
}

/// The program has ended, by `return` or by `exit`.
extern "C" fn ended(status: c_int, _: *mut c_void) {
    if PROCESS.get() == Some(&std::process::id()) {
        report(status, flush_streams())
    } else {
        end_forked()
    }
}

/// Says what is to be made of the report. Once.
pub(crate) fn set_end(end: fn(Report) -> u8) -> bool {
    END.set(end).is_ok()
}

/// A program of another process has ended, by a signal perhaps, which `fault` tells.
pub(crate) fn end_other(status: c_int, fault: Option<String>) {
    if let Some(fault) = fault {
        let _ = FAULT.set(fault);
    }
    report(status, flush_streams());
}

/// Tells how it went, and ends the process.
fn report(status: c_int, lost: Option<String>) {
    if status == 0 && FAULT.get().is_none() {
        host::end();
    }
    let mut state = host::state();
    let report = Report {
        exit: status & 0xff,
        launches: state.launches,
        findings: std::mem::take(&mut state.findings),
        repeated: state.repeated,
        refused: state.refused.iter().cloned().collect(),
        api_errors: state.api_errors,
        not_run: state.not_run.iter().cloned().collect(),
        fault: FAULT.get().cloned(),
        lost,
    };
    drop(state);
    let code = END.get().map_or(1, |end| end(report));
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process. What the program does after its end is not waited for.
    unsafe { libc::_exit(c_int::from(code)) }
}

/// So many headers may be missing.
const MAX_MISSING: usize = 8;

/// The error for a header of others that is not there, and `file:line: name` of it. `source` gives the text of a file.
fn missing_header(said: &str, source: impl Fn(&str) -> Option<String>) -> Option<(&str, String)> {
    let line = said.lines().find(|l| l.contains("error: "))?;
    let (place, what) = line.split_once(" fatal error: ")?;
    let name = what.strip_suffix(": No such file or directory")?;
    let mut parts = place.split(':');
    let (file, number) = (parts.next()?, parts.next()?);
    // What stands in quotes is the program's own.
    let text = source(file)?;
    let included = text.lines().nth(number.parse::<usize>().ok()?.checked_sub(1)?)?;
    included.contains(&format!("<{name}>")).then(|| (line, format!("{file}:{number}: {name}")))
}

pub(crate) fn scratch() -> Result<tempfile::TempDir, Error> {
    tempfile::tempdir()
        .map_err(|e| Error::File { path: std::env::temp_dir(), reason: e.to_string() })
}

/// Where, and what: the first error of a compiler's report.
pub(crate) fn summary(said: &str) -> String {
    // The linker's words for shared memory that no 32 bits reach across; less than that is counted later.
    if said.contains("relocation truncated to fit") && said.contains("shared_anchor") {
        return "a kernel: expected at most 49152 bytes of static shared memory, got 2 GiB or more; more must be dynamic".into();
    }
    match first_error(said) {
        // Such as: it has no memory left.
        "" => {
            let is_of_use = |line: &&str| !line.is_empty() && !line.contains("ld returned");
            let mut lines = said.lines().map(str::trim).filter(is_of_use);
            let first = lines.next().unwrap_or("the compiler said nothing");
            lines.next_back().map_or_else(|| first.to_owned(), |last| format!("{first} {last}"))
        }
        line => {
            let line = line.replacen("fatal error: ", "error: ", 1);
            let line = line.replacen("static assertion failed: ", "", 1);
            at_caller(said, line.trim())
        }
    }
}

/// An error within the emulator's headers, at the place of the program that leads there.
fn at_caller(said: &str, line: &str) -> String {
    let is_ours = |place: &str| place.contains("/shared/emulator/");
    let Some((place, message)) = line.split_once(" error: ") else { return line.to_owned() };
    if !is_ours(place) {
        return line.to_owned();
    }
    let before = said.lines().take_while(|l| !l.contains("error: "));
    let places = before.filter_map(|l| Some(l.split_once("required from")?.0.trim_end()));
    match places.filter(|p| !is_ours(p)).last() {
        Some(place) => format!("{place} error: {message}"),
        None => line.to_owned(),
    }
}

/// The line of it; empty where there is none.
pub(crate) fn first_error(said: &str) -> &str {
    // What the linker says comes before its own last line, which says nothing.
    let is_error = |l: &&str| {
        l.contains("error: ") && !l.contains("ld returned")
            || ["undefined reference", "multiple definition"].iter().any(|s| l.contains(s))
    };
    said.lines().find(is_error).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_at_a_place_of_the_program() {
        let header = "/c/shared/emulator/include/mma.h";
        let said = format!(
            "In file included from {header}:15,\n{header}: In instantiation of 'x':\n\
             k.cu:261:92:   required from here\n\
             {header}:23:21: error: static assertion failed: the emulator knows\nk.cu:270:1: error: y"
        );
        assert_eq!(summary(&said), "k.cu:261:92: error: the emulator knows");
        assert_eq!(summary("k.cu:1:10: fatal error: a.h: No"), "k.cu:1:10: error: a.h: No");
        let linker = "k.o: multiple definition of `x'\ncollect2: error: ld returned 1 exit status";
        assert_eq!(summary(linker), "k.o: multiple definition of `x'");
        let memory = "x.cu does not compile:\n\ncc1plus: out of memory allocating 65536 bytes\n";
        assert_eq!(
            summary(memory),
            "x.cu does not compile: cc1plus: out of memory allocating 65536 bytes"
        );
        assert_eq!(summary("the compiler has crashed\n"), "the compiler has crashed");
        let far = "g.o:(.debug_info+0xf): relocation truncated to fit: R_X86_64_DTPOFF32 against `shared_anchor'";
        let expected = "a kernel: expected at most 49152 bytes of static shared memory, got 2 GiB or more; more must be dynamic";
        assert_eq!(summary(far), expected);
        assert_eq!(summary(&format!("{header}:1:1: error: z")), format!("{header}:1:1: error: z"));
    }

    #[test]
    fn a_header_of_others_may_be_missing() {
        let said = "x.cu:2:10: fatal error: GL/a.h: No such file or directory";
        let source =
            |text: &'static str| move |file: &str| (file == "x.cu").then(|| text.to_owned());
        let found = missing_header(said, source("\n#include <GL/a.h>\n"));
        assert_eq!(found.unwrap().1, "x.cu:2: GL/a.h");
        assert!(missing_header(said, source("\n#include \"GL/a.h\"\n")).is_none());
        assert!(missing_header("x.cu:2:10: error: no", source("\n#include <GL/a.h>\n")).is_none());
    }
}
