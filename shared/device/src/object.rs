//! What the host's compiler has made of a kernel file for the emulator: embedded in this program, or compiled when it is
//! first used.
//!
//! What is compiled is kept: in the `target/kernels` of the build, or else in the user's cache. `lab dev bundle` writes it
//! into a directory beside the program.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lab_emulator::{cache_directory, write_atomically};
use lab_kernel_build::{
    Build, EMBED_VARIABLE, EmbeddedSource, Made, NotCompiled, compile_embedded,
};

use crate::{Error, KernelSource};

/// The directory beside a program that has the objects which are not inside it.
pub const OBJECTS_DIRECTORY: &str = "lab-kernels";

/// One of a kernel file's objects.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    embedded: Option<&'static [u8]>,
    /// What it is called where it is kept: its content is named by the end.
    file: &'static str,
}

impl Object {
    /// One that is inside this program.
    pub const fn embedded(bytes: &'static [u8]) -> Self {
        Self { embedded: Some(bytes), file: "" }
    }

    /// One that is compiled when it is first used, and kept in a file of this name: `NAME.HASH`.
    pub const fn at_first_use(file: &'static str) -> Self {
        Self { embedded: None, file }
    }
}

impl KernelSource {
    /// The object for the emulator. Where it is not embedded it is read from where it is kept; where it is not kept
    /// yet, it is compiled.
    ///
    /// # Errors
    /// [`Error::NoObject`], [`Error::ObjectRefused`].
    pub fn object(&self, build: Build) -> Result<&'static [u8], Error> {
        type Slot = Arc<Mutex<Option<&'static [u8]>>>;
        static READ: OnceLock<Mutex<HashMap<&'static str, Slot>>> = OnceLock::new();
        let object = self.object_of(build);
        if let Some(bytes) = object.embedded {
            return Ok(bytes);
        }
        let slot = {
            let all = READ.get_or_init(Mutex::default).lock();
            Arc::clone(all.unwrap_or_else(PoisonError::into_inner).entry(object.file).or_default())
        };
        // Threads that want this one wait for it; others go on.
        let mut read = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = *read {
            return Ok(bytes);
        }
        let bytes: &'static [u8] = self.kept_or_compiled(build)?.leak();
        *read = Some(bytes);
        Ok(bytes)
    }

    /// One of the two, for what both tell: parameters and sizes of blocks. Nothing is compiled where one is there.
    pub(crate) fn either_object(&self) -> Result<&'static [u8], Error> {
        let is_there = |b: &Build| self.kept_name(*b).is_none() || self.kept(*b).is_some();
        let there = [Build::Plain, Build::Checked].into_iter().find(is_there);
        self.object(there.unwrap_or(Build::Plain))
    }

    /// Where the object is kept that is not embedded: `None` where it is embedded, or not compiled yet.
    pub fn kept(&self, build: Build) -> Option<PathBuf> {
        let file = self.kept_name(build)?;
        self.places().into_iter().map(|place| place.join(file)).find(|path| path.is_file())
    }

    /// The name under which it is kept; `None` where it is embedded.
    pub fn kept_name(&self, build: Build) -> Option<&'static str> {
        let object = self.object_of(build);
        object.embedded.is_none().then_some(object.file)
    }

    fn object_of(&self, build: Build) -> Object {
        match build {
            Build::Plain => self.plain,
            Build::Checked => self.checked,
        }
    }

    /// Where objects are looked for. They are written to the last ones.
    fn places(&self) -> Vec<PathBuf> {
        let beside = std::env::current_exe().ok().and_then(|program| {
            let directory = program.parent()?.join(OBJECTS_DIRECTORY);
            directory.is_dir().then_some(directory)
        });
        beside.into_iter().chain(self.places_to_write()).collect()
    }

    fn places_to_write(&self) -> Vec<PathBuf> {
        // Where that target directory is gone, nobody wants it back.
        let kept_in = Path::new(self.kept_in);
        let built = kept_in.parent().filter(|target| target.is_dir()).map(|_| kept_in.to_owned());
        let cache = cache_directory().map(|cache| cache.join("kernels"));
        built.into_iter().chain(cache).collect()
    }

    fn kept_or_compiled(&self, build: Build) -> Result<Vec<u8>, Error> {
        let file = self.object_of(build).file;
        let read = |place: &Path| fs::read(place.join(file)).ok();
        if let Some(bytes) = self.places().iter().find_map(|place| read(place)) {
            return Ok(bytes);
        }
        for place in self.places_to_write() {
            let Ok(lock) = Lock::take(&place, file) else { continue };
            // Whoever had the lock before may have compiled it.
            if let Some(bytes) = read(&place) {
                return Ok(bytes);
            }
            let (bytes, seconds) = self.compile(build, &place)?;
            keep(&place, file, &bytes, seconds);
            drop(lock);
            return Ok(bytes);
        }
        // Nothing can be kept.
        let directory = self.map_write_error(tempfile::tempdir())?;
        Ok(self.compile(build, directory.path())?.0)
    }

    /// The object's bytes, and the seconds that processors have worked for it.
    fn compile(&self, build: Build, place: &Path) -> Result<(Vec<u8>, f64), Error> {
        let notice = Notice::begin(self.place.to_owned());
        let source = EmbeddedSource {
            place: self.place,
            text: self.source,
            headers: self.headers,
            emulator: crate::headers::EMULATOR,
            instantiations: self.instantiations,
            globals: self.globals,
        };
        let work = self.map_write_error(tempfile::tempdir())?;
        let made = compile_embedded(&source, build, place, work.path());
        let Made { object, warnings, seconds } =
            made.map_err(|reason| self.not_compiled(reason))?;
        // Both builds say the same, but for what the checks show by themselves, and the first that is compiled tells it; where
        // a plain one is embedded, its build has.
        let is_first =
            || self.kept_name(Build::Plain).is_some() && self.kept(Build::Plain).is_none();
        if build == Build::Plain || is_first() {
            let is_told = |line: &&String| !line.contains("-Wmaybe-uninitialized");
            warnings.iter().filter(is_told).for_each(|line| tell(line));
        }
        let bytes = self.map_write_error(fs::read(object))?;
        notice.end();
        Ok((bytes, seconds))
    }

    fn not_compiled(&self, reason: NotCompiled) -> Error {
        let kernel = self.place.to_owned();
        match reason {
            NotCompiled::NoCompiler(reason) => Error::NoObject { kernel, reason },
            NotCompiled::Refused(log) => Error::ObjectRefused { kernel, log },
        }
    }

    fn map_write_error<T>(&self, result: io::Result<T>) -> Result<T, Error> {
        result.map_err(|e| Error::ObjectRefused {
            kernel: self.place.to_owned(),
            log: format!("a directory for temporary files: {e}"),
        })
    }
}

/// Sees to it that the objects of these files are there: what is missing is compiled, on all cores.
///
/// # Errors
/// As [`KernelSource::object`], of the first that fails.
pub fn compile_missing(
    objects: impl IntoIterator<Item = (&'static KernelSource, Build)>,
) -> Result<(), Error> {
    let mut asked = HashSet::new();
    let missing = |(source, build): &(&'static KernelSource, Build)| {
        let name = source.kept_name(*build);
        name.is_some_and(|name| asked.insert(name)) && source.kept(*build).is_none()
    };
    let work: Vec<_> = objects.into_iter().filter(missing).collect();
    let next = AtomicUsize::new(0);
    // Of several, one line tells; of one, its own.
    let notice = (work.len() > 1).then(|| Notice::begin(format!("{} kernel files", work.len())));
    let _told = notice.as_ref().map(|_| Told::new());
    let worker = || {
        while let Some((source, build)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            source.object(*build)?;
        }
        Ok::<_, Error>(())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.min(work.len())).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("it does not panic"))
    })?;
    if let Some(notice) = notice {
        notice.end();
    }
    Ok(())
}

/// As long as it lives nobody is told which kernels are compiled: whoever has it tells of all of them.
#[derive(Debug)]
pub struct Told(());

static TOLD: AtomicUsize = AtomicUsize::new(0);

impl Told {
    /// From now on.
    #[allow(clippy::new_without_default)] // it does something
    pub fn new() -> Self {
        TOLD.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        TOLD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was compiled, for the next process. Where that fails, that one compiles again.
fn keep(place: &Path, file: &str, bytes: &[u8], seconds: f64) {
    if let Some((name, _hash)) = file.rsplit_once('.') {
        lab_kernel_build::remove_kept(place, name);
    }
    let _ = write_atomically(&place.join(file), bytes);
    // CI holds the seconds to a budget: those that a test program has waited for are in its own time already.
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    let text = format!("{seconds:.1} {}\n", program.display());
    let _ = fs::write(place.join(format!("{file}.seconds")), text);
}

/// One process at a time compiles an object: the next one finds it.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits for whoever has it. The system takes it back from a process that has ended.
    fn take(place: &Path, file: &str) -> io::Result<Self> {
        fs::create_dir_all(place)?;
        let path = place.join(format!("{file}.lock"));
        let locked = File::create(&path)?;
        // SAFETY: the descriptor is open for as long as the file lives.
        match unsafe { libc::flock(locked.as_raw_fd(), libc::LOCK_EX) } {
            0 => Ok(Self { path, _file: locked }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Lock {
    /// Who waits for the file that goes here looks for the object next.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Tells somebody who waits what for: at once on a terminal, elsewhere only after a second.
struct Notice {
    what: String,
    begun: Instant,
    is_told: bool,
}

impl Notice {
    fn begin(what: String) -> Self {
        let is_quiet = TOLD.load(Ordering::Relaxed) > 0;
        let is_told = is_quiet || io::stderr().is_terminal();
        if is_told && !is_quiet {
            tell(&format!("compiling {what} for the emulator, at the first use"));
        }
        Self { what, begun: Instant::now(), is_told }
    }

    fn end(self) {
        let took = self.begun.elapsed();
        if !self.is_told && took > Duration::from_secs(1) {
            let seconds = took.as_secs_f64();
            let what = &self.what;
            tell(&format!("compiled {what} for the emulator, at the first use: {seconds:.1} s"));
        }
    }
}

/// On stderr, as `eprintln!`, which tests keep to themselves; but where nobody reads stderr, nothing is lost but the line.
fn tell(line: &str) {
    let _ = std::panic::catch_unwind(|| eprintln!("{line}"));
}

/// What a machine without a compiler needs.
pub(crate) fn advice() -> String {
    format!(
        "on a machine without one, run a program that was built with {EMBED_VARIABLE}=all, or `lab dev bundle`"
    )
}
