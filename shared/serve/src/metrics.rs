//! What has been done, as Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How a sequence has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A string or a token that ends it has come.
    Stop,
    /// It has all tokens that were asked for.
    Length,
    /// Its client has gone.
    Gone,
    /// It has taken too long.
    Timeout,
    /// The server stops, or its device has failed.
    Failed,
}

const ENDS: [(&str, End); 5] = [
    ("stop", End::Stop),
    ("length", End::Length),
    ("gone", End::Gone),
    ("timeout", End::Timeout),
    ("failed", End::Failed),
];

/// Counts since the start, and what is now.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    responses: Mutex<BTreeMap<u16, u64>>,
    ends: [AtomicU64; ENDS.len()],
    /// Sequences that have a slot, and those that wait for one.
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
    /// Of those that have a slot, those whose prompts are read ahead of their first step.
    pub(crate) reading: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    steps: Mutex<BTreeMap<usize, (u64, Duration)>>,
    first_tokens: Mutex<(u64, Duration)>,
    pieces: Mutex<Pieces>,
}

/// Pieces of prompts that were read between two steps.
#[derive(Clone, Copy, Debug, Default)]
struct Pieces {
    count: u64,
    tokens: usize,
    time: Duration,
    longest: Duration,
}

/// Adds to a counter.
pub(crate) fn add(to: &AtomicU64, count: usize) {
    to.fetch_add(count as u64, Ordering::Relaxed);
}

/// Sets what is now.
pub(crate) fn set(to: &AtomicU64, count: usize) {
    to.store(count as u64, Ordering::Relaxed);
}

impl Metrics {
    /// A response of this status has begun.
    pub(crate) fn responded(&self, status: u16) {
        *self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(status)
            .or_default() += 1;
    }

    /// A sequence has ended.
    pub(crate) fn ended(&self, end: End) {
        let at = ENDS.iter().position(|(_, own)| *own == end).expect("one of all");
        add(&self.ends[at], 1);
    }

    /// A step of a bucket has taken so long.
    pub(crate) fn stepped(&self, bucket: usize, time: Duration) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, sum) = steps.entry(bucket).or_default();
        *count += 1;
        *sum += time;
    }

    /// A piece of so many tokens of a prompt has taken so long.
    pub(crate) fn read_piece(&self, tokens: usize, time: Duration) {
        let mut all = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        all.count += 1;
        all.tokens += tokens;
        all.time += time;
        all.longest = all.longest.max(time);
    }

    /// The first token of a request has come so long behind it.
    pub(crate) fn first_token(&self, time: Duration) {
        let mut all = self.first_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += 1;
        all.1 += time;
    }

    /// The text that `/metrics` answers.
    pub(crate) fn text(&self, slots: usize) -> String {
        let mut out = String::new();
        let mut add = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for (labels, value) in samples {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        let one = |value: &AtomicU64| vec![(String::new(), value.load(Ordering::Relaxed) as f64)];
        let responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of_status = responses.iter().map(|(s, n)| (format!("{{status=\"{s}\"}}"), *n as f64));
        add("lab_responses_total", "counter", "Responses by status", of_status.collect());
        let of_end = ENDS.iter().zip(&self.ends);
        let of_end = of_end.map(|((name, _), n)| {
            (format!("{{end=\"{name}\"}}"), n.load(Ordering::Relaxed) as f64)
        });
        add("lab_sequences_total", "counter", "Sequences by how they ended", of_end.collect());
        let all = vec![(String::new(), slots as f64)];
        add("lab_slots", "gauge", "Sequences that may run at once", all);
        add("lab_sequences_running", "gauge", "Sequences that have a slot", one(&self.running));
        let reading =
            "Sequences that have a slot and whose prompts are read ahead of their first step";
        add("lab_sequences_reading", "gauge", reading, one(&self.reading));
        add("lab_sequences_waiting", "gauge", "Sequences that wait for a slot", one(&self.waiting));
        add("lab_prompt_tokens_total", "counter", "Tokens of prompts", one(&self.prompt_tokens));
        let generated = one(&self.generated_tokens);
        add("lab_generated_tokens_total", "counter", "Tokens written", generated);
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let label = |bucket: &usize| format!("{{bucket=\"{bucket}\"}}");
        let counts = steps.iter().map(|(b, (count, _))| (label(b), *count as f64)).collect();
        add("lab_steps_total", "counter", "Steps by their bucket of sequences", counts);
        let sums = steps.iter().map(|(b, (_, sum))| (label(b), sum.as_secs_f64())).collect();
        add("lab_step_seconds_total", "counter", "Time of these steps", sums);
        let pieces = *self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, kind, help, value) in [
            (
                "pieces_total",
                "counter",
                "Pieces of prompts read between two steps",
                pieces.count as f64,
            ),
            ("piece_tokens_total", "counter", "Tokens of these pieces", pieces.tokens as f64),
            ("piece_seconds_total", "counter", "Time of these pieces", pieces.time.as_secs_f64()),
            ("piece_seconds_max", "gauge", "Time of the longest", pieces.longest.as_secs_f64()),
        ] {
            add(&format!("lab_prompt_{name}"), kind, help, vec![(String::new(), value)]);
        }
        let (count, sum) = *self.first_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = write!(
            out,
            "# HELP lab_first_token_seconds From a request to its first token\n# TYPE lab_first_token_seconds summary\n\
             lab_first_token_seconds_sum {}\nlab_first_token_seconds_count {count}\n",
            sum.as_secs_f64()
        );
        out
    }
}
