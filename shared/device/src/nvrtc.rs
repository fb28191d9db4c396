//! CUDA's run-time compiler.
//!
//! Bound here rather than through cudarc, which looks for the library under the names of its
//! pinned CUDA version only and panics where there is none; a wheel's `libnvrtc.so.13` is on no
//! search path and is found by [`crate::toolkit`].

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::toolkit::{NotFound, Toolkit};
use crate::{Error, KernelSource};

type Program = *mut c_void;

/// The functions that are called; the names are NVRTC's own.
struct Api {
    create: Symbol<
        unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int,
    >,
    destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int>,
    add_name: Symbol<unsafe extern "C" fn(Program, *const c_char) -> c_int>,
    lowered_name: Symbol<unsafe extern "C" fn(Program, *const c_char, *mut *const c_char) -> c_int>,
    compile: Symbol<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>,
    cubin_size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int>,
    cubin: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int>,
    ptx_size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int>,
    ptx: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int>,
    log_size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int>,
    log: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int>,
    error_string: Symbol<unsafe extern "C" fn(c_int) -> *const c_char>,
    version: Symbol<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>,
    _library: Library,
}

/// The compiler, loaded.
pub struct Nvrtc {
    api: Api,
    toolkit: Toolkit,
    version: (i32, i32),
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc").field("version", &self.version).finish_non_exhaustive()
    }
}

/// A compiled kernel file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// From the C++ expression of each instantiation to its symbol in the image.
    pub symbols: BTreeMap<String, String>,
    /// What the compiler and the assembler said: registers, spills, warnings.
    pub log: String,
}

/// A kernel file as PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// With the places in the source that its instructions come from.
    pub text: String,
    /// From the C++ expression of each instantiation to its symbol in the text.
    pub symbols: BTreeMap<String, String>,
}

/// What the assembler reports of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory a block, in bytes.
    pub shared: u32,
    /// Stack frame a thread, in bytes.
    pub stack: u32,
    /// Bytes of registers stored to and loaded from local memory.
    pub spills: (u32, u32),
}

/// Asks for the lines of the source.
const LINES: &str = "--generate-line-info";

impl Nvrtc {
    /// The process's compiler, loaded when first asked for.
    ///
    /// # Errors
    /// There is no toolkit here, or it cannot be loaded.
    pub fn get() -> Result<&'static Self, Error> {
        enum Missing {
            Toolkit(NotFound),
            Library(String),
        }
        static NVRTC: OnceLock<Result<Nvrtc, Missing>> = OnceLock::new();
        let found = NVRTC.get_or_init(|| {
            let toolkit = crate::toolkit::find().map_err(Missing::Toolkit)?;
            Self::load(toolkit).map_err(|e| Missing::Library(e.to_string()))
        });
        found.as_ref().map_err(|missing| match missing {
            Missing::Toolkit(not_found) => not_found.clone().into(),
            Missing::Library(message) => {
                Error::Driver { call: "loading NVRTC", message: message.clone() }
            }
        })
    }

    fn load(toolkit: Toolkit) -> Result<Self, libloading::Error> {
        // SAFETY: NVIDIA's libraries, whose constructors have no requirements; the types are those
        // of nvrtc.h.
        unsafe {
            if let Some(builtins) = &toolkit.builtins {
                // Kept for good: NVRTC opens it by name later.
                std::mem::forget(Library::open(Some(builtins), RTLD_NOW | RTLD_GLOBAL)?);
            }
            let library = Library::open(Some(&toolkit.nvrtc), RTLD_NOW | RTLD_LOCAL)?;
            let api = Api {
                create: library.get(b"nvrtcCreateProgram\0")?,
                destroy: library.get(b"nvrtcDestroyProgram\0")?,
                add_name: library.get(b"nvrtcAddNameExpression\0")?,
                lowered_name: library.get(b"nvrtcGetLoweredName\0")?,
                compile: library.get(b"nvrtcCompileProgram\0")?,
                cubin_size: library.get(b"nvrtcGetCUBINSize\0")?,
                cubin: library.get(b"nvrtcGetCUBIN\0")?,
                ptx_size: library.get(b"nvrtcGetPTXSize\0")?,
                ptx: library.get(b"nvrtcGetPTX\0")?,
                log_size: library.get(b"nvrtcGetProgramLogSize\0")?,
                log: library.get(b"nvrtcGetProgramLog\0")?,
                error_string: library.get(b"nvrtcGetErrorString\0")?,
                version: library.get(b"nvrtcVersion\0")?,
                _library: library,
            };
            let (mut major, mut minor) = (0, 0);
            (api.version)(&mut major, &mut minor);
            Ok(Self { api, toolkit, version: (major, minor) })
        }
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where it was found.
    pub fn toolkit(&self) -> &Toolkit {
        &self.toolkit
    }

    /// The options that every kernel is compiled with, include paths aside.
    pub fn options(arch: &str) -> Vec<String> {
        vec![
            format!("--gpu-architecture={arch}"),
            "--std=c++17".into(),
            LINES.into(),
            "--ptxas-options=-v".into(),
        ]
    }

    /// Compiles a kernel file for `arch` (`sm_90a`), with these of its instantiations.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's log.
    pub fn compile(
        &self,
        source: &KernelSource,
        names: &[&str],
        arch: &str,
    ) -> Result<Image, Error> {
        self.compile_with(source, "", names, arch)
    }

    /// With more text behind the file's.
    pub(crate) fn compile_with(
        &self,
        source: &KernelSource,
        appended: &str,
        names: &[&str],
        arch: &str,
    ) -> Result<Image, Error> {
        self.compile_under(&Self::options(arch), source, appended, names, arch)
    }

    /// As [`compile`](Self::compile), without the lines of the source and the PTX, which are two thirds of an image and
    /// which only profilers show.
    ///
    /// # Errors
    /// As `compile`.
    pub fn compile_bare(
        &self,
        source: &KernelSource,
        names: &[&str],
        arch: &str,
    ) -> Result<Image, Error> {
        let mut options = Self::options(arch);
        options.retain(|option| option != LINES);
        self.compile_under(&options, source, "", names, arch)
    }

    fn compile_under(
        &self,
        options: &[String],
        source: &KernelSource,
        appended: &str,
        names: &[&str],
        arch: &str,
    ) -> Result<Image, Error> {
        let (program, log) = self.program(source, appended, names, arch, options)?;
        let cubin = self.read(&program, &self.api.cubin_size, &self.api.cubin);
        let cubin = cubin.map_err(|log| failed(source, arch, log))?;
        let symbols = self.symbols(&program, names).map_err(|log| failed(source, arch, log))?;
        Ok(Image { cubin, symbols, log })
    }

    /// A kernel file as PTX for `arch` (`sm_90a`), with these of its instantiations. No assembler sees it.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's log.
    pub fn ptx(&self, source: &KernelSource, names: &[&str], arch: &str) -> Result<Ptx, Error> {
        self.ptx_with(source, names, arch, &[])
    }

    /// The same with a rounding behind each product, which the compiler else joins with a sum: what the host's compiler
    /// makes of the kernel.
    ///
    /// # Errors
    /// As [`ptx`](Self::ptx).
    pub fn unfused_ptx(
        &self,
        source: &KernelSource,
        names: &[&str],
        arch: &str,
    ) -> Result<Ptx, Error> {
        self.ptx_with(source, names, arch, &["--fmad=false"])
    }

    fn ptx_with(
        &self,
        source: &KernelSource,
        names: &[&str],
        arch: &str,
        more: &[&str],
    ) -> Result<Ptx, Error> {
        let of_ptx = arch.replacen("sm_", "compute_", 1);
        let mut options = Self::options(&of_ptx);
        options.extend(more.iter().map(|&option| option.to_owned()));
        let (program, _) = self.program(source, "", names, arch, &options)?;
        let text = self.read(&program, &self.api.ptx_size, &self.api.ptx);
        let text = text.map_err(|log| failed(source, arch, log))?;
        let symbols = self.symbols(&program, names).map_err(|log| failed(source, arch, log))?;
        let text = String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned();
        Ok(Ptx { text, symbols })
    }

    /// A compiled program, and the log. `target` is what is compiled for: `arch`, or its PTX.
    fn program(
        &self,
        source: &KernelSource,
        appended: &str,
        names: &[&str],
        arch: &str,
        options: &[String],
    ) -> Result<(Guard<'_>, String), Error> {
        let failed = |log| failed(source, arch, log);
        if !source.runs_on(arch) {
            return Err(failed(format!("it needs {} or newer", source.least_arch)));
        }
        let c = |text: &str| CString::new(text).map_err(|e| failed(e.to_string()));
        let text = c(&[source.source, appended].concat())?;
        let file = c(source.file)?;
        let header_names: Vec<CString> =
            source.headers.iter().map(|h| c(h.0)).collect::<Result<_, _>>()?;
        let header_texts: Vec<CString> =
            source.headers.iter().map(|h| c(h.1)).collect::<Result<_, _>>()?;
        let includes =
            self.toolkit.includes.iter().map(|i| format!("--include-path={}", i.display()));
        let options = options.iter().cloned().chain(includes);
        let options: Vec<CString> = options.map(|o| c(&o)).collect::<Result<_, _>>()?;
        let names: Vec<CString> = names.iter().map(|n| c(n)).collect::<Result<_, _>>()?;
        let pointers = |v: &[CString]| v.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();

        let program = Guard { nvrtc: self, program: std::ptr::null_mut() };
        let mut program = program;
        // SAFETY: every string lives to the end of this function; the program is destroyed by its
        // guard, once.
        unsafe {
            self.check((self.api.create)(
                &mut program.program,
                text.as_ptr(),
                file.as_ptr(),
                header_names.len() as c_int,
                pointers(&header_texts).as_ptr(),
                pointers(&header_names).as_ptr(),
            ))
            .map_err(failed)?;
            for name in &names {
                self.check((self.api.add_name)(program.program, name.as_ptr())).map_err(failed)?;
            }
            let status = (self.api.compile)(
                program.program,
                options.len() as c_int,
                pointers(&options).as_ptr(),
            );
            let log = self.log(program.program);
            match self.check(status) {
                Ok(()) => Ok((program, log)),
                Err(message) => Err(failed(if log.trim().is_empty() { message } else { log })),
            }
        }
    }

    /// What a compiled program has come to.
    fn read(
        &self,
        program: &Guard<'_>,
        size_of: &Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int>,
        copy: &Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int>,
    ) -> Result<Vec<u8>, String> {
        let mut size = 0usize;
        // SAFETY: the program is alive; the buffer has the size that was asked for.
        unsafe {
            self.check(size_of(program.program, &mut size))?;
            let mut bytes = vec![0u8; size];
            self.check(copy(program.program, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }

    /// The symbols of these instantiations of a compiled program.
    fn symbols(
        &self,
        program: &Guard<'_>,
        names: &[&str],
    ) -> Result<BTreeMap<String, String>, String> {
        let symbol = |name: &&str| {
            let text = CString::new(*name).map_err(|e| e.to_string())?;
            let mut lowered = std::ptr::null();
            // SAFETY: the program is alive, and was compiled with this name; the symbol is the program's.
            let lowered = unsafe {
                let lower = &self.api.lowered_name;
                self.check(lower(program.program, text.as_ptr(), &mut lowered))?;
                CStr::from_ptr(lowered).to_string_lossy().into_owned()
            };
            Ok(((*name).to_owned(), lowered))
        };
        names.iter().map(symbol).collect()
    }

    /// # Safety
    /// `program` is alive.
    unsafe fn log(&self, program: Program) -> String {
        let mut size = 0usize;
        // SAFETY: the program is alive, as this function's caller says; the buffer has the size that was asked for.
        unsafe {
            if (self.api.log_size)(program, &mut size) != 0 || size <= 1 {
                return String::new();
            }
            let mut bytes = vec![0u8; size];
            if (self.api.log)(program, bytes.as_mut_ptr().cast()) != 0 {
                return String::new();
            }
            bytes.pop(); // NUL
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC answers any code with a static string.
        Err(unsafe { CStr::from_ptr((self.api.error_string)(status)) }
            .to_string_lossy()
            .into_owned())
    }
}

fn failed(source: &KernelSource, arch: &str, log: String) -> Error {
    Error::Compile { kernel: source.file.to_owned(), arch: arch.to_owned(), log }
}

struct Guard<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created by this NVRTC, not destroyed before.
            unsafe { (self.nvrtc.api.destroy)(&mut self.program) };
        }
    }
}

impl Image {
    /// What the assembler had to do to wgmma and setmaxnreg, line by line, that nobody asked for: products
    /// made one after the other, waits and fences put in, registers that stay (its messages C75xx). Such a
    /// kernel computes what it should, slowly, or does so by the assembler's grace.
    pub fn complaints(&self) -> Vec<&str> {
        self.log.lines().filter(|line| line.contains("(C75")).collect()
    }

    /// What the assembler said of each kernel, by symbol.
    pub fn resources(&self) -> BTreeMap<String, Resources> {
        let mut all = BTreeMap::new();
        let mut symbol = None;
        let number_before = |line: &str, unit: &str| -> u32 {
            let before = line.split(unit).next().unwrap_or("");
            let digits = before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|d| d.parse().ok()).unwrap_or(0)
        };
        for line in self.log.lines() {
            if let Some(rest) = line.split("Compiling entry function '").nth(1) {
                let name = rest.split('\'').next().unwrap_or("").to_owned();
                all.insert(name.clone(), Resources::default());
                symbol = Some(name);
            }
            let Some(r) = symbol.as_ref().and_then(|s| all.get_mut(s)) else { continue };
            if line.contains("bytes stack frame") {
                r.stack = number_before(line, " bytes stack frame");
                r.spills = (
                    number_before(line, " bytes spill stores"),
                    number_before(line, " bytes spill loads"),
                );
            }
            if line.contains(" registers") {
                r.registers = number_before(line, " registers");
            }
            if line.contains(" bytes smem") {
                r.shared = number_before(line, " bytes smem");
            }
        }
        all
    }
}
