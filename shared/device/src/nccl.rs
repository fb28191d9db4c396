//! NCCL: collectives among GPUs.
//!
//! Bound as [`crate::cublas`] is, and for the same reasons. Of NCCL's calls those that a plan makes: its communicators block, and
//! a thread of its own looks after each ([`crate::Communicator`]).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::{DType, Error};

/// The environment variable that names the library's file.
pub const LIBRARY_VARIABLE: &str = "LAB_NCCL";

/// The first version whose calls can be recorded in a graph beside others on one GPU, and knows bf16.
const LEAST: c_int = 21000;

/// The first one whose collectives the copy engines make, where it is asked for (`src/ce_coll.cc`).
const LEAST_FOR_COPIES: c_int = 22803;

pub(crate) type Handle = *mut c_void;

/// What tells a communicator from others: rank 0 makes it, all have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Id(pub(crate) [u8; 128]);

// The values of nccl.h.
pub(crate) const SUM: c_int = 0;
pub(crate) const MEAN: c_int = 4;
const IN_PROGRESS: c_int = 7;
const SYMMETRIC_WINDOW: c_int = 1;
const UNDEFINED: c_int = c_int::MIN;

/// ncclConfig_t of 2.28, which later versions take by its size and version.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: c_int,
    blocking: c_int,
    cluster_size: c_int,
    least_blocks: c_int,
    most_blocks: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    name: *const c_char,
    collnet: c_int,
    block_policy: c_int,
    shrink_share: c_int,
    multicast_blocks: c_int,
    channels_per_peer: c_int,
    nvlink_centric: c_int,
}

impl Config {
    /// Of collectives without blocks, where NCCL has such: NCCL_CTA_POLICY_ZERO.
    const WITHOUT_BLOCKS: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: LEAST_FOR_COPIES,
        blocking: UNDEFINED,
        cluster_size: UNDEFINED,
        least_blocks: UNDEFINED,
        most_blocks: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        name: std::ptr::null(),
        collnet: UNDEFINED,
        block_policy: 2,
        shrink_share: UNDEFINED,
        multicast_blocks: UNDEFINED,
        channels_per_peer: UNDEFINED,
        nvlink_centric: UNDEFINED,
    };
}

/// ncclDataType_t.
pub(crate) fn type_of(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Handle,
    *mut c_void,
) -> c_int;

type Move =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, *mut c_void) -> c_int;

/// What moves without blocks: see [`Api::copies`].
pub(crate) struct CopyApi {
    init_with: Symbol<unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> c_int>,
    allocate: Symbol<unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int>,
    free: Symbol<unsafe extern "C" fn(*mut c_void) -> c_int>,
    register: Symbol<unsafe extern "C" fn(Handle, *mut c_void, usize, *mut Handle, c_int) -> c_int>,
    deregister: Symbol<unsafe extern "C" fn(Handle, Handle) -> c_int>,
    pub(crate) all_to_all: Symbol<Move>,
}

/// The functions that are called; the names are NCCL's own.
pub(crate) struct Api {
    get_version: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int>,
    get_unique_id: Symbol<unsafe extern "C" fn(*mut Id) -> c_int>,
    comm_init_rank: Symbol<unsafe extern "C" fn(*mut Handle, c_int, Id, c_int) -> c_int>,
    comm_destroy: Symbol<unsafe extern "C" fn(Handle) -> c_int>,
    comm_abort: Symbol<unsafe extern "C" fn(Handle) -> c_int>,
    async_error: Symbol<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>,
    error_string: Symbol<unsafe extern "C" fn(c_int) -> *const c_char>,
    group_start: Symbol<unsafe extern "C" fn() -> c_int>,
    group_end: Symbol<unsafe extern "C" fn() -> c_int>,
    pub(crate) all_reduce: Symbol<Reduce>,
    pub(crate) reduce_scatter: Symbol<Reduce>,
    pub(crate) all_gather: Symbol<Move>,
    pub(crate) broadcast: Symbol<Reduce>,
    copies: Option<CopyApi>,
    path: PathBuf,
    _library: Library,
}

impl Api {
    /// The process's library, loaded when first asked for.
    pub(crate) fn get() -> Result<&'static Self, Error> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let no_library =
            |reason: &String| Error::NoLibrary { library: "NCCL", reason: reason.clone() };
        API.get_or_init(Self::find).as_ref().map_err(no_library)
    }

    /// The file that [`LIBRARY_VARIABLE`] names; else from the loader's path, then from the places of [`crate::toolkit`].
    fn find() -> Result<Self, String> {
        if let Some(named) = std::env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty()) {
            let path = PathBuf::from(named);
            let shown = path.display().to_string();
            return Self::load(path).map_err(|e| format!("{LIBRARY_VARIABLE}: {shown}: {e}"));
        }
        let mut looked = vec!["the loader's path".to_owned()];
        // One that is too old is told of where there is no other.
        let mut why = None;
        for name in ["libnccl.so.2", "libnccl.so"] {
            match Self::load(PathBuf::from(name)) {
                Ok(api) => return Ok(api),
                Err(LoadError::Old(e)) => why = Some(e),
                Err(LoadError::Loader(_)) => {}
            }
        }
        for directory in crate::toolkit::library_directories() {
            if let Some(library) = crate::toolkit::newest_library(&directory, "libnccl.so") {
                return Self::load(library).map_err(|e| e.to_string());
            }
            looked.push(directory.display().to_string());
        }
        if let Some(why) = why {
            return Err(why);
        }
        let looked = looked.join(", ");
        Err(format!(
            "not found (looked in {looked}); pip install nvidia-nccl-cu12 (of CUDA 13: nvidia-nccl-cu13), or set \
             {LIBRARY_VARIABLE} to the file libnccl.so.2"
        ))
    }

    fn load(path: PathBuf) -> Result<Self, LoadError> {
        // SAFETY: NVIDIA's library, whose constructors have no requirements; the types are those of nccl.h.
        let api = unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL)?;
            Self {
                get_version: library.get(b"ncclGetVersion\0")?,
                get_unique_id: library.get(b"ncclGetUniqueId\0")?,
                comm_init_rank: library.get(b"ncclCommInitRank\0")?,
                comm_destroy: library.get(b"ncclCommDestroy\0")?,
                comm_abort: library.get(b"ncclCommAbort\0")?,
                async_error: library.get(b"ncclCommGetAsyncError\0")?,
                error_string: library.get(b"ncclGetErrorString\0")?,
                group_start: library.get(b"ncclGroupStart\0")?,
                group_end: library.get(b"ncclGroupEnd\0")?,
                all_reduce: library.get(b"ncclAllReduce\0")?,
                reduce_scatter: library.get(b"ncclReduceScatter\0")?,
                all_gather: library.get(b"ncclAllGather\0")?,
                broadcast: library.get(b"ncclBroadcast\0")?,
                copies: CopyApi::of(&library).ok(),
                path,
                _library: library,
            }
        };
        let number = api.number();
        if number < LEAST {
            let (file, got) = (api.path.display(), version(number));
            return Err(LoadError::Old(format!(
                "{file}: expected version {} or later, got {got}",
                version(LEAST)
            )));
        }
        Ok(api)
    }

    /// The calls of collectives that copy engines make.
    ///
    /// # Errors
    /// This version has none, in words.
    pub(crate) fn copies(&self) -> Result<&CopyApi, String> {
        let least = version(LEAST_FOR_COPIES);
        let is_there = self.copies.as_ref().filter(|_| self.number() >= LEAST_FOR_COPIES);
        is_there.ok_or_else(|| {
            format!("NCCL: expected version {least} or later, got {}", self.version())
        })
    }

    pub(crate) fn version(&self) -> String {
        version(self.number())
    }

    fn number(&self) -> c_int {
        let mut number = 0;
        // SAFETY: writes one integer.
        if unsafe { (self.get_version)(&mut number) } == 0 { number } else { 0 }
    }

    pub(crate) fn check(&self, call: &'static str, status: c_int) -> Result<(), Error> {
        if status == 0 || status == IN_PROGRESS {
            return Ok(());
        }
        Err(Error::Driver { call, message: self.words(status) })
    }

    fn words(&self, status: c_int) -> String {
        // SAFETY: NCCL answers any status with a static string.
        unsafe { CStr::from_ptr((self.error_string)(status)) }.to_string_lossy().into_owned()
    }

    pub(crate) fn new_id(&self) -> Result<Id, Error> {
        let mut id = Id([0; 128]);
        // SAFETY: writes one id.
        let status = unsafe { (self.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", status)?;
        Ok(id)
    }

    /// Waits for all other ranks, whatever happens to them.
    ///
    /// # Safety
    /// The rank's device is current.
    pub(crate) unsafe fn init(
        &self,
        world: usize,
        id: Id,
        rank: usize,
        copies: Option<&CopyApi>,
    ) -> Result<Handle, Error> {
        let mut handle = std::ptr::null_mut();
        let (world, rank) = (world as c_int, rank as c_int);
        // SAFETY: the caller's promise; the configuration is read before the call returns.
        let status = unsafe {
            match copies {
                None => (self.comm_init_rank)(&mut handle, world, id, rank),
                Some(copies) => {
                    let mut config = Config::WITHOUT_BLOCKS;
                    (copies.init_with)(&mut handle, world, id, rank, &mut config)
                }
            }
        };
        self.check("ncclCommInitRank", status)?;
        Ok(handle)
    }

    /// What has gone wrong behind NCCL's calls, if anything has.
    ///
    /// # Safety
    /// The communicator is alive.
    pub(crate) unsafe fn asynchronous_error(&self, handle: Handle) -> Option<String> {
        let mut status = 0;
        // SAFETY: the caller's promise; writes one integer.
        let asked = unsafe { (self.async_error)(handle, &mut status) };
        let status = if asked == 0 { status } else { asked };
        (status != 0 && status != IN_PROGRESS).then(|| self.words(status))
    }

    /// # Safety
    /// The communicator is alive, and nobody uses it any more.
    pub(crate) unsafe fn destroy(&self, handle: Handle) {
        // SAFETY: the caller's promise.
        let _ = unsafe { (self.comm_destroy)(handle) };
    }

    /// Ends what is under way as well.
    ///
    /// # Safety
    /// The communicator is alive, and nobody uses it any more.
    pub(crate) unsafe fn abort(&self, handle: Handle) {
        // SAFETY: the caller's promise.
        let _ = unsafe { (self.comm_abort)(handle) };
    }

    /// Lets the calls that `calls` makes be one launch.
    pub(crate) fn together(&self, calls: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // SAFETY: each start has its end.
        self.check("ncclGroupStart", unsafe { (self.group_start)() })?;
        let called = calls();
        // SAFETY: the group that ends was started just before.
        let ended = unsafe { (self.group_end)() };
        called?;
        self.check("ncclGroupEnd", ended)
    }
}

impl CopyApi {
    /// # Safety
    /// The library is NCCL.
    unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: the types are those of nccl.h.
        unsafe {
            Ok(Self {
                init_with: library.get(b"ncclCommInitRankConfig\0")?,
                allocate: library.get(b"ncclMemAlloc\0")?,
                free: library.get(b"ncclMemFree\0")?,
                register: library.get(b"ncclCommWindowRegister\0")?,
                deregister: library.get(b"ncclCommWindowDeregister\0")?,
                all_to_all: library.get(b"ncclAlltoAll\0")?,
            })
        }
    }

    /// Memory of the current device that all ranks of a communicator reach, and what it is known by there. All ranks must ask for as much
    /// at the same time.
    ///
    /// # Safety
    /// The communicator is alive, and its device current.
    pub(crate) unsafe fn window(
        &self,
        api: &Api,
        handle: Handle,
        bytes: usize,
    ) -> Result<(u64, Handle), Error> {
        let (mut memory, mut window) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the caller's promise; writes an address.
        api.check("ncclMemAlloc", unsafe { (self.allocate)(&mut memory, bytes.max(1)) })?;
        // SAFETY: the memory was allocated just now; writes a handle.
        let status =
            unsafe { (self.register)(handle, memory, bytes.max(1), &mut window, SYMMETRIC_WINDOW) };
        api.check("ncclCommWindowRegister", status)?;
        Ok((memory as u64, window))
    }

    /// # Safety
    /// They are a window's, of a communicator that is alive, and nothing uses the memory any more.
    pub(crate) unsafe fn close(&self, handle: Handle, memory: u64, window: Handle) {
        // SAFETY: the caller's promise.
        unsafe {
            let _ = (self.deregister)(handle, window);
            let _ = (self.free)(memory as *mut c_void);
        }
    }
}

enum LoadError {
    Loader(libloading::Error),
    Old(String),
}

impl From<libloading::Error> for LoadError {
    fn from(error: libloading::Error) -> Self {
        Self::Loader(error)
    }
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loader(e) => e.fmt(f),
            Self::Old(e) => f.write_str(e),
        }
    }
}

/// 22703 is 2.27.3.
fn version(number: c_int) -> String {
    format!("{}.{}.{}", number / 10000, number / 100 % 100, number % 100)
}

/// Where NCCL was found on this machine, under its bare name where the loader found it; and its version.
///
/// # Errors
/// [`Error::NoLibrary`], with what was looked for and how to get it.
pub fn locate() -> Result<(&'static Path, String), Error> {
    Api::get().map(|api| (api.path.as_path(), api.version()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever this machine has, looking for the library ends in it or in the fix.
    #[test]
    fn a_missing_library_names_the_fix() {
        match locate() {
            Ok((_, version)) => assert!(version.starts_with("2."), "{version}"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.starts_with("NCCL: not found (looked in the loader's path"), "{said}");
                assert!(said.contains("pip install nvidia-nccl-cu12"), "{said}");
                assert!(error.is_unavailable());
            }
        }
    }

    #[test]
    fn versions_are_as_nccl_counts_them() {
        assert_eq!(version(22703), "2.27.3");
    }
}
