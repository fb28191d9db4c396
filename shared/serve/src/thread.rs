//! The engine's thread: it makes the batch, works, and tells that it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use lab_device::{DType, Device, DeviceKind, Selector};
use lab_harness::Error;
use lab_lm::{Batch, Batched, LEAST_PIECE, Loaded, Tokenizer, Types};
use tokio::sync::watch;

use crate::engine::{Message, work};
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// What the engine's thread takes with it.
pub(crate) struct EngineThread {
    pub(crate) loaded: Loaded,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) works: Arc<AtomicBool>,
    pub(crate) settings: Settings,
    pub(crate) stop: watch::Sender<bool>,
}

/// How the thread ends.
pub(crate) type Worked = Result<(), Failure>;

impl EngineThread {
    /// Begins the thread; once it is ready.
    pub(crate) fn start(
        self,
        messages: Receiver<Message>,
    ) -> Result<thread::JoinHandle<Worked>, Failure> {
        let (ready, is_ready) = mpsc::channel();
        let named = thread::Builder::new().name("engine".into());
        let run = move || {
            let Self { loaded, tokenizer, metrics, works, settings, stop } = self;
            let end = Ended { works, stop };
            let worked = match batch(loaded, &settings) {
                Ok(mut batch) => {
                    let _ = ready.send(Ok(()));
                    work(&mut batch, &tokenizer, &metrics, &messages).map_err(Failure::from)
                }
                Err(failure) => {
                    let _ = ready.send(Err(failure.clone()));
                    Err(failure)
                }
            };
            drop(end);
            worked
        };
        let thread = named.spawn(run).map_err(|e| Failure::usage(format!("thread: {e}")))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure { code: 1, message: "the engine has panicked".into() }),
        }
    }
}

/// On the device, which has all weights from here on.
fn batch(loaded: Loaded, settings: &Settings) -> Result<Batch, Failure> {
    let Settings { model: path, slots, length, prompt_piece, device, dtype, states, .. } = settings;
    let selector = if device.is_empty() { Selector::Auto } else { device.parse()? };
    let device = Device::open(selector)?;
    let dtype = match (dtype.as_str(), device.kind()) {
        ("f32", _) | ("auto", DeviceKind::Emulator) => DType::F32,
        ("bf16", _) | ("auto", DeviceKind::Cuda) => DType::BF16,
        (other, _) => return Err(Error::bad("--dtype", "auto, f32 or bf16", other).into()),
    };
    let states = match states.as_str() {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        other => return Err(Error::bad("--states", "f32 or bf16", other).into()),
    };
    let types = Types::new(dtype, states)?;
    // No prompt has a longer piece.
    let piece = (*prompt_piece).min(1 << length.max(&LEAST_PIECE).ilog2());
    let of = Batched { model: loaded.model, types, slots: *slots, room: *length, piece };
    let batch = Batch::new(&device, of, &loaded.parameters)?;
    let buckets: Vec<String> = batch.buckets().iter().map(ToString::to_string).collect();
    let prompts = match batch.piece_lengths().first() {
        Some(longest) => format!("; long prompts in pieces of {longest} tokens"),
        None => "; no prompt in pieces".into(),
    };
    eprintln!(
        "{} in {dtype} with states of {states} on {}; steps of {} sequences{prompts}",
        path.display(),
        device.name(),
        buckets.join(", ")
    );
    Ok(batch)
}

/// Says that the engine has ended, also where it has panicked.
struct Ended {
    works: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.works.store(false, Ordering::SeqCst);
        self.stop.send_replace(true);
    }
}
