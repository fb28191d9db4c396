//! A program that nvcc has built, as it is: its host code runs in a process of its own, and finds the emulator where it looks
//! for CUDA's runtime library.
//!
//! ```text
//! a.out ──libcudart.so──▶ questions ──▶ this process: the emulator, PTX of the program's fat binaries
//!    └────── device memory, mapped in both processes at the same addresses ──────┘
//! ```
//!
//! The library is `compat/cudart`; the host's compiler makes it once for a version of the tool.

mod fat_binary;
mod library;
mod message;
mod modules;

use std::ffi::{c_int, c_void};
use std::io::Read as _;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lab_emulator::{Config, Kernel};
use object::{Object, ObjectSection};

use crate::arch::Arch;
use crate::compiling::end_processes_below;
use crate::program::{Report, end_other, end_without_fail, set_end};
use crate::{Error, Options, host, limit};
use message::{Question, Reply, Request};
use modules::{Bounds, Loaded};

pub(crate) use library::folder;

/// As `cudaError`.
const SUCCESS: c_int = 0;
const MEMORY_ALLOCATION: c_int = 2;
const INVALID_VALUE: c_int = 1;
const INVALID_SYMBOL: c_int = 13;
const INVALID_DEVICE_FUNCTION: c_int = 98;
const NO_KERNEL_IMAGE: c_int = 209;
const NOT_SUPPORTED: c_int = 801;

/// Versions of the runtime library that there are.
const VERSIONS: [u32; 2] = [12, 13];

/// A program that is there and not run yet.
#[derive(Debug)]
pub struct Built {
    path: PathBuf,
    options: Options,
    folder: PathBuf,
    /// Where the program lies, if that goes when it has been started.
    held: Option<tempfile::TempDir>,
}

impl Built {
    /// Whether a file is a program, and not the text of one.
    #[must_use]
    pub fn is_program(file: &Path) -> bool {
        let mut magic = [0; 4];
        let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut magic));
        read.is_ok() && magic == *b"\x7fELF"
    }

    /// Looks at a program, and makes the library that it wants. Where no architecture was asked for, it is the newest that
    /// the program has PTX for.
    ///
    /// # Errors
    /// It has no PTX, or no `libcudart.so`; the library does not compile.
    pub fn open(path: &Path, options: &Options, arch: Option<Arch>) -> Result<Self, Error> {
        let refuse = |reason: String| Error::File { path: path.to_owned(), reason };
        let bytes = lab_emulator::read_file(path).map_err(|e| refuse(e.to_string()))?;
        let file = object::File::parse(&*bytes).map_err(|e| refuse(e.to_string()))?;
        let section = file.section_by_name(".nv_fatbin");
        let binaries = section.as_ref().and_then(|s| s.data().ok()).unwrap_or_default();
        let imports = file.imports().into_iter().flatten().flatten();
        let is_runtime = |library: &&[u8]| library.starts_with(b"libcudart.so.");
        let runtime = imports.map(|import| import.library()).find(is_runtime);
        if runtime.is_none() && !binaries.is_empty() {
            let reason = "expected a program that finds libcudart.so when it starts, got one that has it inside";
            return Err(refuse(format!("{reason}; {}", fat_binary::ADVICE)));
        }
        let number = |library: &[u8]| {
            std::str::from_utf8(&library[b"libcudart.so.".len()..]).ok()?.parse::<u32>().ok()
        };
        let versions = match runtime.map(|library| (library, number(library))) {
            None => VERSIONS.to_vec(),
            Some((_, Some(version))) if VERSIONS.contains(&version) => vec![version],
            Some((library, _)) => {
                let got = String::from_utf8_lossy(library);
                return Err(refuse(format!(
                    "expected libcudart.so.12 or libcudart.so.13, got {got}"
                )));
            }
        };
        let mut options = options.clone();
        options.arch = match arch {
            Some(arch) => arch,
            None => newest(binaries).unwrap_or_default(),
        };
        let folder = folder(&versions, options.arch)?;
        Ok(Self { path: path.to_owned(), options, folder, held: None })
    }

    /// The same program, which lies in a directory that is not needed any more when it has been started.
    pub(crate) fn hold(self, scratch: tempfile::TempDir) -> Self {
        Self { held: Some(scratch), ..self }
    }

    /// The GPU that is stood for.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.options.arch
    }

    /// Runs the program, whose name `arguments` begin with, and ends this process with what `end` makes of the report.
    ///
    /// # Errors
    /// It cannot be started, or the process has run one before. Otherwise it does not return.
    pub fn run(mut self, arguments: &[String], end: fn(Report) -> u8) -> Result<(), Error> {
        let refuse =
            |e: std::io::Error| Error::File { path: self.path.clone(), reason: e.to_string() };
        let mut options = lab_emulator::Options::from_env()?;
        options.order = self.options.order.unwrap_or(options.order);
        let memory = lab_emulator::share().map_err(refuse)?;
        if !host::begin(options, self.options.arch) || !set_end(end) {
            return Err(Error::Second);
        }
        if let Some(bytes) = self.options.memory {
            limit::limit_device_memory(bytes);
        }
        let (own, other) = UnixStream::pair().map_err(refuse)?;
        let mut command = Command::new(self.path.canonicalize().map_err(refuse)?);
        if let Some((name, rest)) = arguments.split_first() {
            command.arg0(name).args(rest);
        }
        let given =
            format!("{}:{}:{:x}:{:x}", other.as_raw_fd(), memory.file, memory.base, memory.size);
        let mut paths = vec![self.folder.clone()];
        let before = std::env::var_os("LD_LIBRARY_PATH");
        paths.extend(before.iter().flat_map(std::env::split_paths));
        let paths = std::env::join_paths(paths).map_err(|e| Error::Refused(e.to_string()))?;
        command.env("LAB_CUDART", given).env("LD_LIBRARY_PATH", paths);
        let (ends, limit) = ([other.as_raw_fd(), memory.file], self.options.memory);
        // SAFETY: what runs between fork and exec asks the system for flags and a limit alone.
        unsafe { command.pre_exec(move || prepare(ends, limit)) };
        let child = command.spawn().map_err(refuse)?;
        drop((other, self.held.take()));
        let late = Arc::new(AtomicBool::new(false));
        if let Some(timeout) = self.options.timeout {
            let late = Arc::clone(&late);
            std::thread::spawn(move || {
                std::thread::sleep(timeout);
                // Before the program is killed, which ends the wait below.
                late.store(true, Ordering::SeqCst);
                end_without_fail();
                end_processes_below();
                eprintln!("program: expected an end within {} s, got none", timeout.as_secs_f32());
                end_other(1, None);
            });
        }
        let arena = memory.base..memory.base + memory.size;
        let mut server =
            Server { options: &self.options, arena, binaries: Vec::new(), kernels: Vec::new() };
        server.serve(own);
        let (status, fault) = wait(child);
        while late.load(Ordering::SeqCst) {
            // The thread that has killed it ends this process.
            std::thread::park();
        }
        end_other(status, fault);
        Ok(())
    }
}

/// Lets a new program have what it is given by number.
fn prepare(files: [RawFd; 2], memory: Option<u64>) -> std::io::Result<()> {
    for file in files {
        // SAFETY: the flags of a descriptor.
        if unsafe { libc::fcntl(file, libc::F_SETFD, 0) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    if let Some(bytes) = memory {
        // Of the host's memory: device memory is a file.
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: a limit of the new process.
        if unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The program's exit code as a shell has it, and the signal that has ended it.
fn wait(mut child: Child) -> (c_int, Option<String>) {
    let Ok(status) = child.wait() else { return (1, None) };
    match (status.code(), status.signal()) {
        (Some(code), _) => (code, None),
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            (128 + signal, Some(format!("the program's host code was ended: {status}")))
        }
    }
}

/// The architecture of the newest PTX that there is.
fn newest(binaries: &[u8]) -> Option<Arch> {
    let magic = fat_binary::MAGIC.to_le_bytes();
    let starts = (0..binaries.len()).step_by(8).filter(|&at| binaries[at..].starts_with(&magic));
    let (number, text) = starts
        .filter_map(|at| fat_binary::newest(&binaries[at..]))
        .max_by_key(|(arch, _)| *arch)?;
    let target = text.lines().find_map(|line| line.trim().strip_prefix(".target"))?;
    let name = target.split(',').next()?.trim();
    name.parse().or_else(|_| format!("sm_{number}").parse()).ok()
}

/// A fat binary that the program has registered.
struct Binary {
    version: u64,
    bytes: Vec<u8>,
    /// Made when it is first asked for.
    loaded: Option<Result<Loaded, String>>,
}

struct Server<'a> {
    options: &'a Options,
    arena: std::ops::Range<usize>,
    binaries: Vec<Binary>,
    kernels: Vec<(Kernel, Bounds)>,
}

impl Server<'_> {
    fn serve(&mut self, mut program: UnixStream) {
        while let Some(request) = Request::read(&mut program) {
            let reply = self.answer(&request);
            if reply.write(&mut program).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, request: &Request) -> Reply {
        let [a, b, c, d, ..] = request.words;
        match request.question {
            Question::Register => {
                let bytes = request.bytes.clone();
                self.binaries.push(Binary { version: a, bytes, loaded: None });
                Reply { words: [self.binaries.len() as u64 - 1, 0, 0], ..Reply::default() }
            }
            Question::Kernel => self.kernel(a, &request.text()),
            Question::Launch => Reply::code(self.launch(request)),
            Question::Allocate => {
                let address = host::allocate(a as usize, b as c_int) as u64;
                let code = if address == 0 { MEMORY_ALLOCATION } else { SUCCESS };
                Reply { code, words: [address, 0, 0], ..Reply::default() }
            }
            Question::Release => Reply::code(host::release(a as *mut c_void, b as c_int)),
            Question::Copy => self.copy(a as usize, b as usize, c as usize, d as c_int),
            Question::Fill => {
                // SAFETY: `fill` looks at whether the bytes lie in an allocation, or in a variable.
                let code = unsafe { host::fill(a as *mut c_void, b as c_int, c as usize) };
                Reply::code(code)
            }
            Question::TypeOf => {
                let mut bytes = 0;
                // SAFETY: room for the length.
                let code = unsafe { host::type_of(a as *const c_void, &raw mut bytes) };
                Reply { code, words: [bytes as u64, 0, 0], ..Reply::default() }
            }
            Question::Variable => match self.loaded(a) {
                Ok(loaded) => match loaded.variable(&request.text()) {
                    Some((address, bytes)) => {
                        Reply { words: [address as u64, bytes, 0], ..Reply::default() }
                    }
                    None => Reply::code(INVALID_SYMBOL),
                },
                Err(why) => refuse_module(why),
            },
            Question::Write if is_in_variable(a, request.bytes.len() as u64) => {
                // SAFETY: both ends are in the program's objects, which stay; no kernel runs meanwhile.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        request.bytes.as_ptr(),
                        a as *mut u8,
                        request.bytes.len(),
                    );
                }
                Reply::default()
            }
            Question::Read if is_in_variable(a, b) => {
                // SAFETY: the bytes are in the program's objects, which stay; no kernel writes them meanwhile.
                let bytes = unsafe { std::slice::from_raw_parts(a as *const u8, b as usize) };
                Reply { bytes: bytes.to_vec(), ..Reply::default() }
            }
            Question::Write | Question::Read => Reply::code(INVALID_VALUE),
            Question::Refuse => {
                let (mut state, what) = (host::state(), request.text());
                // What the lab lacks is no error of the program's.
                if what.ends_with("is not supported") {
                    state.refused.insert(what);
                } else {
                    state.refuse(&what);
                }
                Reply::default()
            }
        }
    }

    /// The module of a fat binary, or why there is none.
    fn loaded(&mut self, number: u64) -> Result<&Loaded, String> {
        let most = self.options.arch.capability();
        let options = self.options;
        let binary = self.binaries.get_mut(number as usize).ok_or("no such module")?;
        let (version, bytes) = (binary.version, &binary.bytes);
        let load = || {
            if version != 1 {
                return Err("device code: expected that of whole files, got relocatable code (nvcc -rdc=true)".into());
            }
            let loaded =
                Loaded::of(&fat_binary::ptx(bytes, most)?, options).map_err(|e| e.to_string())?;
            host::add_module(loaded.module().clone());
            Ok(loaded)
        };
        binary.loaded.get_or_insert_with(load).as_ref().map_err(Clone::clone)
    }

    fn kernel(&mut self, module: u64, name: &str) -> Reply {
        let found = match self.loaded(module) {
            Ok(loaded) => loaded.kernel(name),
            Err(why) => return refuse_module(why),
        };
        match found {
            Ok((kernel, bounds)) => {
                let sizes = kernel.parameters().iter().flat_map(|p| (p.size as u32).to_le_bytes());
                let bytes = sizes.collect();
                self.kernels.push((kernel, bounds));
                let number = self.kernels.len() as u64 - 1;
                Reply { words: [number, u64::from(bounds.threads), 0], bytes, ..Reply::default() }
            }
            Err(why) => {
                host::state().not_run.insert(why);
                Reply::code(INVALID_DEVICE_FUNCTION)
            }
        }
    }

    fn launch(&self, request: &Request) -> c_int {
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let [number, a, b, c, shared, cooperative, cluster, _] = request.words;
        let Some((kernel, bounds)) = self.kernels.get(number as usize) else {
            return INVALID_DEVICE_FUNCTION;
        };
        let ([gx, gy], [gz, bx], [by, bz]) = (halves(a), halves(b), halves(c));
        let config = Config {
            grid: [gx, gy, gz],
            block: [bx, by, bz],
            dynamic_shared: shared as usize,
            cooperative: cooperative != 0,
            cluster: if cluster == 0 { bounds.cluster } else { cluster as u32 },
            overlap_previous: false,
        };
        // Each argument at a multiple of 64, as a tensor map has to be.
        #[repr(C, align(64))]
        #[derive(Clone)]
        struct Line([u8; 64]);
        let (mut from, mut places) = (0, Vec::new());
        for parameter in kernel.parameters() {
            let Some(bytes) = request.bytes.get(from..from + parameter.size) else {
                return INVALID_VALUE;
            };
            from += parameter.size;
            let mut place = vec![Line([0; 64]); parameter.size.div_ceil(64)];
            for (line, part) in place.iter_mut().zip(bytes.chunks(64)) {
                line.0[..part.len()].copy_from_slice(part);
            }
            places.push(place);
        }
        let arguments: Vec<*mut c_void> =
            places.iter_mut().map(|place| place.as_mut_ptr().cast()).collect();
        let code = host::launch_kernel(kernel, &config, &arguments);
        // SAFETY: flushes all streams of C: what the kernel has printed stands before what the program prints next.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        code
    }

    /// A copy: by whom, or that it is done.
    fn copy(&self, to: usize, from: usize, bytes: usize, kind: c_int) -> Reply {
        const BY_PROGRAM: u64 = 0;
        const DONE: u64 = 1;
        const TO_VARIABLE: u64 = 2;
        const FROM_VARIABLE: u64 = 3;
        let code = host::check_copy(to, from, bytes, kind);
        if code != SUCCESS {
            return Reply::code(code);
        }
        host::note_copy(to, from, bytes);
        let is_variable = [to, from].map(host::is_variable);
        let is_here = [to, from].map(|address| self.arena.contains(&address));
        let who = match (is_variable, is_here) {
            ([false, false], [true, true])
            | ([true, _], [_, true])
            | ([_, true], [true, _])
            | ([true, true], _) => {
                // SAFETY: memory of this process; `check_copy` has looked at what lies in allocations.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                DONE
            }
            ([true, false], _) => TO_VARIABLE,
            ([false, true], _) => FROM_VARIABLE,
            ([false, false], _) => BY_PROGRAM,
        };
        Reply { words: [who, 0, 0], ..Reply::default() }
    }
}

/// Whether so many bytes, of which a part comes at a time, lie where variables of the program do.
fn is_in_variable(address: u64, bytes: u64) -> bool {
    const PART: u64 = 1 << 20;
    let last = address.saturating_add(bytes.saturating_sub(1));
    (1..=PART).contains(&bytes) && [address, last].iter().all(|&at| host::is_variable(at as usize))
}

/// Nothing of a module can be run.
fn refuse_module(why: String) -> Reply {
    let code = if why.starts_with("device code") { NO_KERNEL_IMAGE } else { NOT_SUPPORTED };
    host::state().not_run.insert(why);
    Reply::code(code)
}
