//! Compiled kernel objects: loading, exports, signatures, this OS thread's shared memory.

use std::ffi::{CStr, CString, OsString, c_char, c_void};
use std::fs::File;
use std::io::{ErrorKind, Seek, Write};
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use sha2::{Digest, Sha256};

use crate::abi::{CONTRACT_HASH, Runtime};
use crate::callers::Unwinder;
use crate::locals;
use crate::matrix::{Row, Share};
use crate::names::Names;
use crate::report::Suspect;
use crate::symbols::{Symbols, is_stand_in};

/// A kernel object could not be loaded, or has no such kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The dynamic linker refused the object.
    #[error("loading the kernel object: {0}")]
    Load(#[from] libloading::Error),
    /// Neither the cache directory nor memory could hold the object.
    #[error("writing the kernel object where the dynamic linker can read it: {0}")]
    Write(#[from] std::io::Error),
    /// The object was compiled with headers of another version.
    #[error(
        "binding the kernel object: expected one compiled with this version of the emulator's headers \
         (contract {expected:x?}), got {}: compile it again",
        got.map_or("one without a contract".to_owned(), |c| format!("contract {c:x?}"))
    )]
    Contract {
        /// A hash of `contract.def`, and the sizes in bytes of what both sides lay out.
        expected: [u64; 7],
        /// The object's; `None` where it has none.
        got: Option<[u64; 7]>,
    },
    /// No such instantiation was compiled.
    #[error("kernel: expected one of {}, got '{name}'", available.join(", "))]
    NoSuchKernel {
        /// The name asked for.
        name: String,
        /// What the object holds.
        available: Vec<String>,
    },
}

/// One parameter of a kernel, as the C++ function declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; its number where the source does not show one (a kernel that a macro makes).
    pub name: String,
    /// `f32`, `const f16*`, `const float2*`, …; a struct's own name.
    pub type_name: String,
    /// Its size in bytes.
    pub size: usize,
    /// The size of what it points to; 0 where it is no pointer.
    pub pointee_size: usize,
    /// The fields of a struct by value; none where the source does not name them (`LAB_FIELDS`).
    pub fields: Vec<Field>,
}

/// A field of a struct that host and kernel share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// As of a parameter; of an array, that of its elements.
    pub type_name: String,
    /// Bytes before it.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

#[repr(C)]
struct RawField {
    name: *const c_char,
    type_name: *const c_char,
    offset: u32,
    size: u32,
}

#[repr(C)]
struct RawParameter {
    type_name: *const c_char,
    size: u32,
    pointee_size: u32,
    fields: *const RawField,
    field_count: u32,
}

#[repr(C)]
struct RawExport {
    name: *const c_char,
    parameter_names: *const c_char,
    call: unsafe extern "C" fn(*mut *mut c_void),
    function: unsafe extern "C" fn() -> *const c_void,
    parameters: *const RawParameter,
    parameter_count: u32,
    threads: u32,
    dynamic_shared: u32,
}

#[repr(C)]
struct RawGlobal {
    name: *const c_char,
    address: *mut u8,
    size: u64,
}

/// What an object must have been compiled with: the hash of the table, and the sizes of what both
/// sides lay out. glue.cpp has it as `emu_contract`.
const CONTRACT: [u64; 7] = [
    CONTRACT_HASH,
    size_of::<Runtime>() as u64,
    size_of::<Row>() as u64,
    size_of::<Share>() as u64,
    size_of::<RawParameter>() as u64,
    size_of::<RawExport>() as u64,
    size_of::<RawGlobal>() as u64,
];

/// Unpacks the arguments and runs the kernel's body for the calling coroutine.
pub(crate) type Trampoline = unsafe extern "C" fn(*mut *mut c_void);

/// One instantiation of a kernel template.
#[derive(Debug)]
struct Export {
    name: String,
    call: Trampoline,
    /// Where the kernel's own code begins.
    function: usize,
    parameters: Vec<Parameter>,
    block: Option<BlockSize>,
}

/// What a launch gives each block of a kernel, as its source says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Threads: those of its `__launch_bounds__`.
    pub threads: u32,
    /// Bytes of dynamic shared memory: a constant with the kernel's name and `_shared`, by the same
    /// template parameters. 0 where there is none.
    pub dynamic_shared: usize,
}

/// A shared object made from one `.cu` file, loaded.
#[derive(Debug)]
pub struct Module {
    // Field order: the exports point into the library.
    exports: Vec<Arc<Export>>,
    globals: Vec<Global>,
    touch_shared: unsafe extern "C" fn() -> *mut u8,
    bind_address: usize,
    image: OnceLock<Image>,
    bytes: &'static [u8],
    symbols: OnceLock<Symbols>,
    unwinder: OnceLock<Option<Unwinder>>,
    names: OnceLock<Names>,
    checked: bool,
    /// A line each: place, a space, name.
    suspects: String,
    library: Library,
}

#[derive(Debug)]
struct Global {
    name: String,
    address: *mut u8,
    size: usize,
}

// SAFETY: it is never read or written here: `Kernel::global` gives the address away, and whoever uses that promises that
// nobody else does meanwhile.
unsafe impl Send for Global {}
// SAFETY: a shared reference gives no more than the address, which nobody here follows.
unsafe impl Sync for Global {}

/// Where the dynamic linker put an object.
#[derive(Clone, Copy, Debug)]
struct Image {
    base: usize,
    text: (usize, usize),
    /// Its writable variables.
    data: (usize, usize),
    /// All of it.
    extent: (usize, usize),
    shared_bytes: usize,
}

impl Module {
    /// Loads an object whose kernels call `runtime`.
    ///
    /// # Safety
    /// As [`Module::load`].
    pub(crate) unsafe fn bind(
        bytes: &'static [u8],
        runtime: &'static Runtime,
    ) -> Result<Arc<Self>, ModuleError> {
        let flags = RTLD_NOW | RTLD_LOCAL;
        let library = match cached(bytes) {
            // SAFETY: its constructors may run, as this function's caller says.
            Some(path) => unsafe { Library::open(Some(&path), flags)? },
            None => {
                let file = in_memory(bytes)?;
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                // SAFETY: its constructors may run, as this function's caller says.
                unsafe { Library::open(Some(&path), flags)? }
            }
        };
        // SAFETY: in an object that has it, it is of that type.
        let got = unsafe {
            library.get::<*const [u64; CONTRACT.len()]>(b"emu_contract\0").ok().map(|c| **c)
        };
        if got != Some(CONTRACT) {
            return Err(ModuleError::Contract { expected: CONTRACT, got });
        }
        // SAFETY: `lab-kernel-build` has generated these symbols with exactly these types: the contract above is its own; names are copied,
        // for the object may be unloaded before whoever has asked for them is done.
        unsafe {
            let bind = *library.get::<unsafe extern "C" fn(*const Runtime)>(b"emu_bind\0")?;
            bind(runtime);
            let first = *library.get::<*const RawExport>(b"emu_exports\0")?;
            let count = **library.get::<*const u32>(b"emu_export_count\0")?;
            let exports = std::slice::from_raw_parts(first, count as usize);
            let first = *library.get::<*const RawGlobal>(b"emu_globals\0")?;
            let count = **library.get::<*const u32>(b"emu_global_count\0")?;
            let globals = std::slice::from_raw_parts(first, count as usize);
            Ok(Arc::new(Self {
                globals: globals
                    .iter()
                    .map(|g| Global {
                        name: literal(g.name),
                        address: g.address,
                        size: g.size as usize,
                    })
                    .collect(),
                exports: exports.iter().map(|e| Arc::new(Export::read(e))).collect(),
                touch_shared: *library.get(b"emu_touch_shared\0")?,
                bind_address: bind as usize,
                image: OnceLock::new(),
                bytes,
                symbols: OnceLock::new(),
                unwinder: OnceLock::new(),
                names: OnceLock::new(),
                checked: library.get::<*const u8>(b"emu_checked\0").is_ok(),
                suspects: match library.get::<*const c_char>(b"emu_suspects\0") {
                    Ok(text) => literal(*text),
                    Err(_) => String::new(),
                },
                library,
            }))
        }
    }

    /// The names of all instantiations.
    ///
    /// ```compile_fail
    /// # fn names(module: std::sync::Arc<lab_emulator::Module>) {
    /// // They are the module's, and gone with it.
    /// let first: &'static str = module.kernels().next().unwrap();
    /// # }
    /// ```
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.exports.iter().map(|e| e.name.as_str())
    }

    /// The instantiation of that name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel, ModuleError> {
        match self.exports.iter().find(|e| e.name == name) {
            Some(export) => Ok(Kernel { module: Arc::clone(self), export: Arc::clone(export) }),
            None => Err(ModuleError::NoSuchKernel {
                name: name.to_owned(),
                available: self.kernels().map(str::to_owned).collect(),
            }),
        }
    }

    /// An instantiation that the object's own code describes, where its host code launches it.
    ///
    /// # Safety
    /// `export` points to an `EmuExport` of this object, with its strings.
    pub unsafe fn kernel_at(self: &Arc<Self>, export: *const c_void) -> Kernel {
        // SAFETY: it points to an export of this object, as this function's caller says.
        let export = unsafe { Export::read(&*export.cast::<RawExport>()) };
        Kernel { module: Arc::clone(self), export: Arc::new(export) }
    }

    /// The address of a symbol that the object exports.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        // SAFETY: only its address is taken.
        unsafe { self.library.get::<*mut c_void>(name.as_bytes()) }.ok().map(|s| s.as_raw_ptr())
    }

    fn image(&self) -> Image {
        *self.image.get_or_init(|| locate(self.bind_address))
    }

    /// Where the instructions are.
    pub(crate) fn text(&self) -> (usize, usize) {
        self.image().text
    }

    /// Where the `__device__` variables are.
    pub(crate) fn data(&self) -> (usize, usize) {
        self.image().data
    }

    /// Whether an address lies in the object at all.
    pub fn holds(&self, address: usize) -> bool {
        let (start, end) = self.image().extent;
        (start..end).contains(&address)
    }

    /// Whether it was compiled for the checks.
    pub fn checked(&self) -> bool {
        self.checked
    }

    /// Whether there are any.
    pub(crate) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Local variables that the compiler thinks may get no value.
    pub(crate) fn suspects(&self) -> Vec<Suspect> {
        let line = |line: &str| {
            let (place, name) = line.split_once(' ')?;
            Some(Suspect { name: name.to_owned(), place: place.to_owned() })
        };
        self.suspects.lines().filter_map(line).collect()
    }

    /// What memory is called.
    pub(crate) fn names(&self) -> &Names {
        self.names.get_or_init(|| Names::read(self.bytes))
    }

    /// An address of its code or data, from the object's base.
    pub(crate) fn offset(&self, address: usize) -> usize {
        address.wrapping_sub(self.image().base)
    }

    /// The source place of a return address, and those that it was inlined into.
    pub(crate) fn frames(&self, pc: usize) -> Vec<String> {
        self.symbols().frames(pc.wrapping_sub(self.image().base))
    }

    /// The source place of a return address, and those that it was inlined into: up to the kernel's own file, and within that
    /// from function to function. Not beyond one that a header calls back, as it does a loop's body: that says little.
    pub(crate) fn place_within(&self, pc: usize) -> (String, Vec<String>) {
        let mut frames = self.frames(pc).into_iter().filter(|f| !is_stand_in(f));
        let Some(place) = frames.next() else { return (self.place(pc), Vec::new()) };
        let mut within: Vec<String> = Vec::new();
        for caller in frames {
            let last = within.last().unwrap_or(&place);
            if !is_header(last) && is_header(&caller) {
                break;
            }
            within.push(caller);
        }
        (place, within)
    }

    /// The line of the object's own source that a return address belongs to; `None` where it is not the
    /// object's, or only of headers that stand in for CUDA's.
    pub fn own_source(&self, pc: usize) -> Option<String> {
        let frames = self.holds(pc).then(|| self.frames(pc))?;
        frames.into_iter().find(|f| !is_stand_in(f) && !f.starts_with("/usr/"))
    }

    /// The place in the kernel's own file, of one that may lie in a shared header.
    pub(crate) fn own_place(&self, pc: usize) -> String {
        let (place, within) = self.place_within(pc);
        if !is_header(&place) {
            return place;
        }
        // A function of a header that is not inlined ends there: what it was called for says more than what it called.
        let own = within.iter().find(|place| !is_header(place)).or(within.last());
        own.cloned().unwrap_or(place)
    }

    /// Who has called the function in which a call returns to `pc`, and who has called that, as far as the kernel, which is at
    /// `kernel` from the object's base: return addresses. `stack`: what the running thread has used of its own.
    pub(crate) fn callers(&self, stack: Range<usize>, pc: usize, kernel: usize) -> Vec<usize> {
        let image = self.image();
        let unwinder = self.unwinder.get_or_init(|| Unwinder::read(self.bytes));
        let Some(unwinder) = unwinder else { return Vec::new() };
        // SAFETY: the thread that runs has asked; the text is this object's.
        unsafe { unwinder.callers(stack, pc, kernel, image.base, image.text) }
    }

    /// Where the function in which a call returns to `pc` has its variables on the stack: from the end of its frame on, and so
    /// many bytes. `None` where that is not known of each.
    pub(crate) fn locals(&self, pc: usize) -> Option<Vec<(i64, usize)>> {
        locals::locals(self.bytes, self.offset(pc).checked_sub(1)?)
    }

    /// Where the frame of that function ends, which has just called the runtime. `stack`: what the running thread has used.
    pub(crate) fn frame_end(&self, stack: Range<usize>, pc: usize) -> Option<usize> {
        let image = self.image();
        let unwinder = self.unwinder.get_or_init(|| Unwinder::read(self.bytes)).as_ref()?;
        // SAFETY: the thread that runs has asked; the text is this object's.
        unsafe { unwinder.frame_end(stack, pc, image.base, image.text) }
    }

    fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| Symbols::read(self.bytes))
    }

    /// The source place of a return address.
    pub(crate) fn place(&self, pc: usize) -> String {
        self.symbols().place(pc.wrapping_sub(self.image().base))
    }

    /// Bytes of static shared memory.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.image().shared_bytes
    }

    /// This OS thread's copy of the object's static shared memory.
    pub(crate) fn shared_memory(&self) -> *mut [u8] {
        // SAFETY: touching the thread-local makes the C library allocate this thread's block.
        let anchor = unsafe { (self.touch_shared)() };
        match thread_local_block(self.bind_address) {
            Some(start) => std::ptr::slice_from_raw_parts_mut(start, self.image().shared_bytes),
            // The C library does not say where: the anchor alone is known.
            None => std::ptr::slice_from_raw_parts_mut(anchor, 1),
        }
    }
}

/// Whether a place is one in a header of the kernel's.
fn is_header(place: &str) -> bool {
    let file = place.split(':').next().unwrap_or_default();
    [".cuh", ".h", ".hpp", ".hh", ".inl"].iter().any(|end| file.ends_with(end))
}

/// A copy.
///
/// # Safety
/// `text` is a NUL-terminated literal of an object that is loaded.
unsafe fn literal(text: *const c_char) -> String {
    // SAFETY: it is NUL-terminated, and its object is loaded, as this function's caller says.
    unsafe { CStr::from_ptr(text) }.to_str().expect("C++ names are ASCII").to_owned()
}

/// # Safety
/// `first` leads to `count` entries of a loaded object, or `count` is 0.
unsafe fn table<'a, T>(first: *const T, count: u32) -> &'a [T] {
    match count {
        0 => &[],
        // SAFETY: so many entries of an object that is loaded, as this function's caller says.
        _ => unsafe { std::slice::from_raw_parts(first, count as usize) },
    }
}

impl Export {
    /// # Safety
    /// `raw` comes from the export table of a loaded object.
    unsafe fn read(raw: &RawExport) -> Self {
        // SAFETY: the promise covers the strings of the table.
        let text = |p| unsafe { literal(p) };
        let names = text(raw.parameter_names);
        let names: Vec<&str> = names.split(',').collect();
        // SAFETY: the table is of a loaded object, as this function's caller says, and has as many as it says.
        let raw_parameters = unsafe { table(raw.parameters, raw.parameter_count) };
        let parameters = raw_parameters.iter().enumerate().map(|(n, p)| {
            // SAFETY: the promise covers the tables that this one leads to.
            let fields = unsafe { table(p.fields, p.field_count) };
            let field = |f: &RawField| Field {
                name: text(f.name),
                type_name: text(f.type_name),
                offset: f.offset as usize,
                size: f.size as usize,
            };
            Parameter {
                name: match names.get(n) {
                    Some(name) if !name.is_empty() => (*name).to_owned(),
                    _ => n.to_string(),
                },
                type_name: text(p.type_name),
                size: p.size as usize,
                pointee_size: p.pointee_size as usize,
                fields: fields.iter().map(field).collect(),
            }
        });
        let parameters = parameters.collect();
        // SAFETY: it returns an address and does nothing else.
        let address = unsafe { (raw.function)() } as usize;
        let block = (raw.threads > 0).then_some(BlockSize {
            threads: raw.threads,
            dynamic_shared: raw.dynamic_shared as usize,
        });
        Self { name: text(raw.name), call: raw.call, function: address, parameters, block }
    }
}

/// One instantiation, ready to launch.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Arc<Module>,
    export: Arc<Export>,
}

impl Kernel {
    /// The C++ expression that names the instantiation, such as `saxpy<float>`.
    ///
    /// ```compile_fail
    /// # fn name(kernel: lab_emulator::Kernel) -> &'static str {
    /// // It is the kernel's, and gone with it.
    /// kernel.name()
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.export.name
    }

    /// The parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.export.parameters
    }

    /// What a parameter is called.
    pub(crate) fn parameter(&self, index: usize) -> String {
        let names = self.module().names().parameters(self.function());
        let name = names.get(index).filter(|n| !n.is_empty());
        name.cloned().unwrap_or_else(|| format!("parameter {index}"))
    }

    /// What its blocks are given, where its source says so.
    pub fn block(&self) -> Option<BlockSize> {
        self.export.block
    }

    /// Address and size of a `__device__` or `__constant__` variable that was listed with the
    /// kernel's file.
    pub fn global(&self, name: &str) -> Option<(*mut u8, usize)> {
        self.module.globals.iter().find(|g| g.name == name).map(|g| (g.address, g.size))
    }

    pub(crate) fn trampoline(&self) -> Trampoline {
        self.export.call
    }

    /// Where its code begins, from the object's base.
    pub(crate) fn function(&self) -> usize {
        self.export.function.wrapping_sub(self.module.image().base)
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }
}

/// The object as a file of the user's cache directory, named by its content; `None` where that
/// does not work. The content is compared: a corrupt file is replaced.
fn cached(bytes: &[u8]) -> Option<PathBuf> {
    let directory = cache_directory()?.join("emulator");
    let path = directory.join(format!("{:x}.so", Sha256::digest(bytes)));
    if !std::fs::read(&path).is_ok_and(|found| found == bytes) {
        std::fs::create_dir_all(&directory).ok()?;
        write_atomically(&path, bytes).ok()?;
    }
    Some(path)
}

/// `$LAB_CACHE`, else `vlstm-lab` in the user's cache directory; always an absolute path, for compilers are called in other
/// directories. A relative `$XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification says.
pub fn cache_directory() -> Option<PathBuf> {
    cache_directory_of(|name| std::env::var_os(name))
}

fn cache_directory_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("LAB_CACHE")
        .and_then(|d| std::path::absolute(d).ok())
        .or_else(|| set("XDG_CACHE_HOME").filter(|d| d.is_absolute()).map(|d| d.join("vlstm-lab")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/vlstm-lab")))
}

/// What a path leads to that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file that is there, or can be: what links lead to.
    File(PathBuf),
    /// A device, a pipe or a socket, or an open file of a process: written as it is, and never replaced.
    Through(PathBuf),
}

impl Target {
    /// Follows links, which stay.
    ///
    /// # Errors
    /// It is a directory, or links go in a circle.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        // Such as /dev/stdout, which may lead to a file that somebody has open.
        let open = ["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc"];
        let is_open = |path: &Path| open.iter().any(|d| path.starts_with(d));
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            match std::fs::symlink_metadata(&path) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self::File(path)),
                Err(e) => return Err(e),
                Ok(_) if is_open(&path) && !path.is_dir() => return Ok(Self::Through(path)),
                Ok(facts) if facts.is_symlink() => {
                    let to = std::fs::read_link(&path)?;
                    path = path.parent().unwrap_or(Path::new("")).join(to);
                }
                Ok(facts) if facts.is_dir() => return Err(ErrorKind::IsADirectory.into()),
                Ok(facts) if facts.is_file() => return Ok(Self::File(path)),
                Ok(_) => return Ok(Self::Through(path)),
            }
        }
        Err(std::io::Error::from_raw_os_error(libc::ELOOP))
    }
}

/// As many links as the system follows.
const MOST_LINKS: usize = 40;

/// Writes a temporary file beside the one that `path` leads to and renames it there, so that readers and parallel
/// writers only ever see a whole file. While it is written it has no name, where the file system can do so: a process that is
/// killed leaves nothing. What is no file, such as /dev/null, is written as it is.
///
/// # Errors
/// It cannot be written: what stood there before still does.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    write_atomically_by(path, |file| file.write_all(bytes))
}

/// The same of what `write` writes, piece by piece: nobody need have all of it at once.
///
/// # Errors
/// As [`write_atomically`]; what `write` returns.
pub fn write_atomically_by(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let path = match Target::of(path)? {
        Target::File(path) => path,
        Target::Through(path) => return write(&mut opened_to_append(&path)?),
    };
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As any new file: the umask narrows it. A temporary file's own default is for its owner only.
    const MODE: u32 = 0o666;
    let mut temporary = tempfile::Builder::new();
    temporary.permissions(std::fs::Permissions::from_mode(MODE));
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(MODE);
    let draft = match options.open(directory) {
        Ok(mut file) => {
            write(&mut file)?;
            // The system refuses a name that is taken, and the next is tried.
            match temporary.make_in(directory, |name| give_name(&file, name)) {
                Ok(named) => named.into_temp_path(),
                // Without /proc it gets none.
                Err(_) => {
                    let mut named = temporary.tempfile_in(directory)?;
                    file.rewind()?;
                    std::io::copy(&mut file, named.as_file_mut())?;
                    named.into_temp_path()
                }
            }
        }
        // A file system that cannot. What else is wrong shows here as well.
        Err(_) => {
            let mut named = temporary.tempfile_in(directory)?;
            write(named.as_file_mut())?;
            named.into_temp_path()
        }
    };
    draft.persist(path)?;
    Ok(())
}

/// Enters a file without a name under one.
fn give_name(file: &File, name: &Path) -> std::io::Result<()> {
    let of = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let (of, name) = (CString::new(of)?, CString::new(name.as_os_str().as_bytes())?);
    let (at, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: two paths that end with NUL.
    match unsafe { libc::linkat(at, of.as_ptr(), at, name.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A pipe that nobody reads is refused: opened otherwise, it would be waited for.
fn opened_to_append(path: &Path) -> std::io::Result<File> {
    let file = File::options().append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // SAFETY: flags of an open descriptor.
    unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETFL, libc::O_APPEND) };
    Ok(file)
}

fn in_memory(bytes: &[u8]) -> std::io::Result<File> {
    // SAFETY: the name is a C string; the descriptor that comes back is this function's to own.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"lab-kernel".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    file.write_all(bytes)?;
    Ok(file)
}

/// Calls `visit` with each loaded object until it answers true.
fn each_object(visit: &mut dyn FnMut(&libc::dl_phdr_info) -> bool) {
    unsafe extern "C" fn step(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: `data` is the closure reference passed below, `info` is the C library's.
        let (visit, info) =
            unsafe { (&mut *data.cast::<&mut dyn FnMut(&libc::dl_phdr_info) -> bool>(), &*info) };
        libc::c_int::from(visit(info))
    }
    let mut visit = visit;
    // SAFETY: the callback gets a pointer that lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(step), (&raw mut visit).cast()) };
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the C library gives the object's program headers and their number.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) }
}

fn holds(info: &libc::dl_phdr_info, address: usize) -> bool {
    headers(info).iter().any(|h| {
        let start = info.dlpi_addr as usize + h.p_vaddr as usize;
        h.p_type == libc::PT_LOAD && (start..start + h.p_memsz as usize).contains(&address)
    })
}

fn locate(address: usize) -> Image {
    let mut image = Image { base: 0, text: (0, 0), data: (0, 0), extent: (0, 0), shared_bytes: 0 };
    each_object(&mut |info| {
        if !holds(info, address) {
            return false;
        }
        let base = info.dlpi_addr as usize;
        image.base = base;
        for h in headers(info) {
            let start = base + h.p_vaddr as usize;
            if h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0 {
                image.text = (start, start + h.p_memsz as usize);
            }
            if h.p_type == libc::PT_LOAD {
                let end = start + h.p_memsz as usize;
                let first = if image.extent.1 == 0 { start } else { image.extent.0.min(start) };
                image.extent = (first, image.extent.1.max(end));
                if h.p_flags & libc::PF_W != 0 {
                    image.data = (start, end);
                }
            }
            if h.p_type == libc::PT_TLS {
                image.shared_bytes = h.p_memsz as usize;
            }
        }
        true
    });
    image
}

fn thread_local_block(address: usize) -> Option<*mut u8> {
    let mut block = std::ptr::null_mut();
    each_object(&mut |info| {
        let found = holds(info, address);
        if found {
            block = info.dlpi_tls_data.cast::<u8>();
        }
        found
    });
    (!block.is_null()).then_some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_may_be_read_by_whom_the_umask_says() {
        let directory = tempfile::tempdir().unwrap();
        let (plain, whole) = (directory.path().join("plain"), directory.path().join("whole"));
        std::fs::write(&plain, "x").unwrap();
        write_atomically(&whole, b"x").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&whole), mode(&plain));
    }

    #[test]
    fn the_cache_has_an_absolute_path() {
        let of = |set: &[(&str, &str)]| {
            cache_directory_of(|name| {
                set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
            })
        };
        let here = std::env::current_dir().unwrap();
        assert_eq!(of(&[("LAB_CACHE", "own")]), Some(here.join("own")));
        let home = [("LAB_CACHE", ""), ("XDG_CACHE_HOME", "relative"), ("HOME", "/h")];
        assert_eq!(of(&home), Some(PathBuf::from("/h/.cache/vlstm-lab")));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x")]), Some(PathBuf::from("/x/vlstm-lab")));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn links_stay_and_what_is_no_file_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
        std::fs::create_dir(at("inner")).unwrap();
        link("inner/file", "first");
        link("first", "second");
        // Nothing is there yet, and then something is.
        for text in ["one", "two"] {
            write_atomically(&at("second"), text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(at("inner/file")).unwrap(), text);
        }
        for name in ["first", "second"] {
            assert!(at(name).symlink_metadata().unwrap().is_symlink(), "{name}");
        }
        assert_eq!(std::fs::read_dir(at("inner")).unwrap().count(), 1, "no draft is left");
        link("b", "a");
        link("a", "b");
        let refused = write_atomically(&at("a"), b"").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        let refused = write_atomically(&at("inner"), b"").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::IsADirectory);

        for device in ["/dev/null", "/dev/stdout", "/dev/fd/1"] {
            let path = PathBuf::from(device);
            assert_eq!(Target::of(&path).unwrap(), Target::Through(path), "{device}");
        }
        let stopped = write_atomically_by(&at("second"), |file| {
            file.write_all(b"a part")?;
            Err(ErrorKind::Other.into())
        });
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Other);
        assert_eq!(std::fs::read_to_string(at("inner/file")).unwrap(), "two");
        assert_eq!(std::fs::read_dir(at("inner")).unwrap().count(), 1, "no draft is left");
        link("/dev/null", "nothing");
        write_atomically(&at("nothing"), b"text").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());

        let pipe = at("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let refused = write_atomically(&pipe, b"text").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENXIO), "nobody reads");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        while write_atomically(&pipe, b"text").is_err() {
            std::thread::yield_now();
        }
        assert_eq!(reader.join().unwrap(), "text");
        assert!(!pipe.symlink_metadata().unwrap().is_file());
    }
}
