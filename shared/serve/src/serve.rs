//! The server's life: model, engine, listener, signals, end.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use lab_harness::Error;
use lab_lm::{LEAST_PIECE, Loaded, MOST_PIECE, MOST_SLOTS, Tokenizer};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::connections::serve_all;
use crate::engine::Message;
use crate::failure::Failure;
use crate::http::{Limits, Shared, router};
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::thread::EngineThread;

/// Connections beyond those of requests that run or wait: for /health, /metrics and who is to be refused.
const SPARE: usize = 64;

/// The exit code behind a second signal: as a shell has it of a program that Ctrl-C has ended.
const ENDED_AT_ONCE: i32 = 130;

/// Seconds that are as good as for ever.
const MOST_SECONDS: u64 = 1 << 30;

/// Serves until SIGINT or SIGTERM. The address stands on stdout as one line, as soon as it can be asked.
///
/// # Errors
/// A setting, the model, the address or the device.
pub fn serve(settings: &Settings) -> Result<(), Failure> {
    check(settings)?;
    // First of all: a port that is taken is told before a large model is read.
    let address = SocketAddr::new(settings.host, settings.port);
    let bound = |e: std::io::Error| Failure::usage(format!("{address}: {e}"));
    let listener = std::net::TcpListener::bind(address).map_err(bound)?;
    listener.set_nonblocking(true).map_err(bound)?;
    let loaded = Loaded::read(&settings.model).map_err(|e| Failure::usage(e.to_string()))?;
    let tokenizer =
        Tokenizer::of_model(&settings.model).map_err(|e| Failure::usage(e.to_string()))?;
    let (tokenizer, vocabulary) = (Arc::new(tokenizer), loaded.model.vocabulary);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::usage(format!("runtime: {e}")))?;
    let metrics = Arc::new(Metrics::default());
    let works = Arc::new(AtomicBool::new(true));
    let (jobs, messages) = mpsc::channel();
    let (stop, stopped) = watch::channel(false);
    let engine = EngineThread {
        loaded,
        tokenizer: Arc::clone(&tokenizer),
        metrics: Arc::clone(&metrics),
        works: Arc::clone(&works),
        settings: settings.clone(),
        stop: stop.clone(),
    };
    let engine = engine.start(messages)?;
    let limits = Limits {
        slots: settings.slots,
        queue: settings.queue,
        length: settings.length,
        body: settings.body,
        timeout: Duration::from_secs(settings.timeout),
    };
    let shared = Shared {
        name: settings.name.clone().unwrap_or_else(|| name_of(&settings.model)),
        vocabulary,
        end_tokens: end_tokens(&settings.model)?,
        tokenizer,
        limits,
        metrics,
        jobs,
        taken: Arc::new(AtomicUsize::new(0)),
        stops: AtomicBool::new(false),
        works,
        begun: SystemTime::now(),
        requests: AtomicU64::new(0),
    };
    let grace = Duration::from_secs(settings.grace);
    let served = runtime.block_on(listen(listener, Arc::new(shared), (stop, stopped), grace));
    // Whoever still sends is dropped with it, so that the engine ends.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let worked = engine
        .join()
        .unwrap_or_else(|_| Err(Failure { code: 1, message: "the engine has panicked".into() }));
    served.and(worked)
}

fn check(settings: &Settings) -> Result<(), Failure> {
    let Settings { slots, queue, length, body, timeout, grace, .. } = *settings;
    let most = usize::MAX >> 8;
    for (name, value, least, most) in [
        ("--slots", slots, 1, MOST_SLOTS),
        ("--queue", queue, 0, 1 << 20),
        ("--length", length, 2, 1 << 20),
        ("--body", body, 2, most),
        ("--timeout", timeout as usize, 1, MOST_SECONDS as usize),
        ("--grace", grace as usize, 0, MOST_SECONDS as usize),
    ] {
        if !(least..=most).contains(&value) {
            return Err(Error::bad(name, format!("{least} to {most}"), value).into());
        }
    }
    let piece = settings.prompt_piece;
    if !piece.is_power_of_two() || !(LEAST_PIECE..=MOST_PIECE).contains(&piece) {
        let expected = format!("a power of two from {LEAST_PIECE} to {MOST_PIECE}");
        return Err(Error::bad("--prompt-piece", expected, piece).into());
    }
    Ok(())
}

/// What clients call a model where nobody says it.
fn name_of(model: &Path) -> String {
    let whole = std::fs::canonicalize(model).unwrap_or_else(|_| model.to_owned());
    let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// Those that the `config.json` of a directory names.
fn end_tokens(model: &Path) -> Result<Vec<i32>, Failure> {
    let file = model.join("config.json");
    if !model.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |e: &dyn std::fmt::Display| Failure::usage(format!("{}: {e}", file.display()));
    let text = std::fs::read(&file).map_err(|e| failed(&e))?;
    let config: serde_json::Value = serde_json::from_slice(&text).map_err(|e| failed(&e))?;
    let ids = match &config["eos_token_id"] {
        serde_json::Value::Array(all) => all.clone(),
        one => vec![one.clone()],
    };
    Ok(ids.iter().filter_map(|id| i32::try_from(id.as_i64()?).ok()).collect())
}

async fn listen(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    (stop, stopped): (watch::Sender<bool>, watch::Receiver<bool>),
    grace: Duration,
) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::usage(format!("listener: {e}"));
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    let own = listener.local_addr().map_err(failed)?;
    if !own.ip().is_loopback() {
        eprintln!(
            "{own} is not a loopback address: whoever reaches it may ask, for there is no authentication"
        );
    }
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind).map_err(failed)?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            stop.send_replace(true);
            // Whoever asks twice does not want to wait.
            signals.recv().await;
            std::process::exit(ENDED_AT_ONCE);
        });
    }
    drop(stop);
    // A reader of stdout that has gone is no reason to end.
    let _ = writeln!(std::io::stdout(), "http://{own}");
    let _ = std::io::stdout().flush();
    let Limits { slots, queue, timeout, .. } = shared.limits;
    let all = serve_all(
        listener,
        router(Arc::clone(&shared)),
        slots + queue + SPARE,
        timeout,
        stopped.clone(),
    );
    let mut served = tokio::spawn(all);
    let mut told = stopped;
    let _ = told.wait_for(|stops| *stops).await;
    shared.stops.store(true, Ordering::SeqCst);
    eprintln!("stops: what runs has {} s to end", grace.as_secs());
    if tokio::time::timeout(grace, &mut served).await.is_err() {
        eprintln!("what still runs ends now");
        let _ = shared.jobs.send(Message::Abort);
        let _ = tokio::time::timeout(Duration::from_secs(2), &mut served).await;
        served.abort();
    }
    let _ = shared.jobs.send(Message::Abort);
    Ok(())
}
