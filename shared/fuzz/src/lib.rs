//! A fuzzer for loaders: functions that read what a user gives.
//!
//! # The problem
//!
//! A file may be cut short, damaged, of another kind, or made to do harm. A loader then has to refuse it in one
//! clear line. Nobody thinks of every such file; a random change of a good one finds many.
//!
//! # How
//!
//! [`Loader::fuzz`] gives a loader each file of its corpus, a folder of small files, and then so many changes of
//! them: bytes flipped, parts cut out, repeated or exchanged with those of another file, numbers made huge, words
//! of the format inserted, UTF-8 broken. They come from a fixed seed: every run has the same. Of each input this
//! must hold:
//!
//! * No panic, and an end within [`SLOW`].
//! * The memory that the loader takes stays in proportion to the input ([`Counting`] counts it).
//! * A refusal is one line, not longer than [`LINE`], with nothing in it that a terminal acts on and no debug
//!   output of Rust.
//! * Whatever the caller asserts of what was loaded: that it is the same once written and loaded again.
//!
//! A file `good-…` of the corpus must be loaded, a file `bad-…` must be refused. An input that breaks a rule is kept
//! in `target/tmp` and named in the message.

mod counting;
mod message;
mod mutator;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

pub use counting::Counting;
pub use message::complaint;
pub use mutator::Mutator;

/// Within this a loader has to end.
pub const SLOW: Duration = Duration::from_secs(60);

/// The most characters of a refusal, the input's path left out.
pub const LINE: usize = 320;

/// Inputs of a run that nobody asked more of, and the seconds after which it ends before that.
const INPUTS: usize = 2000;
const SECONDS: f64 = 1.0;

/// A loader, and what its inputs look like.
#[derive(Clone, Copy, Debug)]
pub struct Loader {
    /// The folder of its corpus.
    pub name: &'static str,
    /// What its inputs' file is called.
    pub file: &'static str,
    /// Words of the format.
    pub words: &'static [&'static str],
    /// Bytes that it may take beside 64 times those of the input.
    pub memory: usize,
    /// The most characters of a refusal.
    pub line: usize,
    /// Changes an input; [`Mutator::mutate`] in general.
    pub mutate: fn(&mut Mutator, &[u8]) -> Vec<u8>,
}

impl Loader {
    /// What most have.
    pub const PLAIN: Self = Self {
        name: "",
        file: "",
        words: &[],
        memory: 1 << 20,
        line: LINE,
        mutate: Mutator::mutate,
    };

    /// The files of its corpus, by name.
    ///
    /// # Panics
    /// There are none.
    pub fn corpus(&self) -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut all: Vec<(String, Vec<u8>)> = entries
            .map(|entry| entry.expect("an entry of the folder").path())
            .map(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                (name, fs::read(&path).expect("a file of the corpus"))
            })
            .collect();
        all.sort();
        assert!(all.iter().any(|(name, _)| name.starts_with("good-")), "{}: none good", self.name);
        all
    }

    /// Gives `load` a path at which an input lies, once for each input, and judges what becomes of it. `load` asserts
    /// what must hold of what it has loaded, and gives the message of a refusal. `LAB_FUZZ=N` asks for N inputs;
    /// without it there are few, within a second.
    ///
    /// # Panics
    /// A rule is broken; the message names the input's file.
    pub fn fuzz(&self, mut load: impl FnMut(&Path) -> Result<(), String>) {
        let asked = std::env::var("LAB_FUZZ").ok().map(|text| {
            text.parse::<usize>()
                .unwrap_or_else(|_| panic!("LAB_FUZZ: expected a number, got {text}"))
        });
        let inputs = asked.unwrap_or(INPUTS);
        let corpus = self.corpus();
        let directory = folder();
        let path = directory.path().join(self.file);
        let start = Instant::now();
        let (mut loaded, mut refused) = (0, 0);
        let watch = Watch::begin(self.name, &path);
        let mut judge = |bytes: &[u8]| {
            let ended = self.judge(&path, bytes, &mut load);
            watch.ended();
            if ended {
                loaded += 1
            } else {
                refused += 1
            }
            ended
        };
        for (name, bytes) in &corpus {
            let ended = judge(bytes);
            let right = if ended { !name.starts_with("bad-") } else { !name.starts_with("good-") };
            assert!(right, "corpus/{}/{name}: loaded: {ended}", self.name);
        }
        let mut mutator = Mutator::new(corpus.into_iter().map(|c| c.1).collect(), self.words);
        let mut done = 0;
        while done < inputs && (asked.is_some() || start.elapsed().as_secs_f64() < SECONDS) {
            let seed = mutator.seed();
            let bytes = (self.mutate)(&mut mutator, &seed);
            judge(&bytes);
            done += 1;
        }
        println!(
            "{}: {done} inputs in {:.1} s, {loaded} loaded, {refused} refused",
            self.name,
            start.elapsed().as_secs_f64()
        );
    }

    /// Whether the input was loaded.
    fn judge(
        &self,
        path: &Path,
        bytes: &[u8],
        load: &mut impl FnMut(&Path) -> Result<(), String>,
    ) -> bool {
        fs::write(path, bytes).expect("a file for the input");
        let start = Instant::now();
        Counting::begin();
        let outcome = catch_unwind(AssertUnwindSafe(|| load(path)));
        let (peak, took) = (Counting::peak(), start.elapsed());
        let wrong = match &outcome {
            Err(_) => Some("a panic".to_owned()),
            Ok(_) if took > SLOW => Some(format!("{took:?} without an end")),
            Ok(_) if peak > self.memory + 64 * bytes.len() => {
                Some(format!("{peak} bytes of memory for {} of input", bytes.len()))
            }
            Ok(Err(said)) => {
                let own = said.replace(&path.to_string_lossy()[..], self.file);
                complaint(&own, self.line).map(|wrong| format!("{wrong}: {own:?}"))
            }
            Ok(Ok(())) => None,
        };
        if let Some(wrong) = wrong {
            let kept = keep_copy(self.name, path);
            match outcome {
                Err(panic) => {
                    println!("{}: {wrong}; the input is {}", self.name, kept.display());
                    resume_unwind(panic);
                }
                Ok(_) => panic!("{}: {wrong}; the input is {}", self.name, kept.display()),
            }
        }
        outcome.is_ok_and(|o| o.is_ok())
    }
}

/// A folder for inputs: in memory where there is such a place, for many file systems write a file that replaces
/// another to the disk at once.
///
/// # Panics
/// There is no room for it.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for inputs")
}

/// A copy of an input that is not deleted.
fn keep_copy(name: &str, path: &Path) -> PathBuf {
    let mut folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    folder.extend(["..", "..", "target", "tmp"]);
    let kept = folder.join(format!("fuzz-{name}"));
    let _ = fs::create_dir_all(&folder).and_then(|()| fs::copy(path, &kept));
    kept
}

/// Ends the process where a loader does not end.
struct Watch(std::sync::mpsc::Sender<()>);

impl Watch {
    fn begin(name: &'static str, path: &Path) -> Self {
        let (sender, receiver) = channel();
        let path = path.to_owned();
        std::thread::spawn(move || {
            loop {
                match receiver.recv_timeout(10 * SLOW) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!(
                            "{name}: no end; the input is {}",
                            keep_copy(name, &path).display()
                        );
                        std::process::abort();
                    }
                }
            }
        });
        Self(sender)
    }

    fn ended(&self) {
        let _ = self.0.send(());
    }
}
