//! The thread that owns the device: sequences join, read a token each, and leave.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use axum::http::StatusCode;
use lab_harness::Error;
use lab_lm::{Batch, Sampler, Sequence, Stream, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::Refusal;
use crate::metrics::{End, Metrics, add, set};
use crate::text::Text;

/// The last tokens of a prompt, within which the character and the space before a text lie.
const LOOKED_BACK: usize = 64;

/// What the thread is told.
pub(crate) enum Message {
    /// A client wants a text.
    Job(Box<Job>),
    /// All sequences end now.
    Abort,
}

/// A text that a client wants. What comes of it goes to `to`, whose other end is dropped when the client goes.
pub(crate) struct Job {
    pub(crate) prompt: Vec<i32>,
    pub(crate) max_tokens: usize,
    pub(crate) sampler: Sampler,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_tokens: Vec<i32>,
    pub(crate) begun: Instant,
    pub(crate) deadline: Instant,
    pub(crate) to: UnboundedSender<Piece>,
    /// Its place among those that the server has taken.
    pub(crate) _place: Place,
}

/// What a client gets.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The text goes on.
    Text(String),
    /// It has ended: why, and how many tokens were written.
    End(End, usize),
    /// There is no more of it.
    Failed(Refusal),
}

/// One of the places for sequences, running or waiting. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// One of so many; none where all are taken.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |n: usize| (n < most).then_some(n + 1);
        taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A sequence that has a slot.
struct Running<'t> {
    job: Box<Job>,
    stream: Stream<'t>,
    text: Text,
    /// The prompt, and what was written.
    tokens: Vec<i32>,
}

/// Works on what comes, until nobody can send any more or all is to end.
///
/// # Errors
/// The device's: all sequences have been told.
pub(crate) fn work(
    batch: &mut Batch,
    tokenizer: &Tokenizer,
    metrics: &Metrics,
    messages: &Receiver<Message>,
) -> Result<(), Error> {
    let mut engine = Engine::new(batch, tokenizer, metrics);
    loop {
        let goes_on = engine.take(messages);
        if !goes_on {
            engine.fail_all(messages, "the server stops");
            return Ok(());
        }
        if let Err(error) = engine.step() {
            engine.fail_all(messages, "the device has failed");
            return Err(error);
        }
        engine.tell_metrics();
    }
}

pub(crate) struct Engine<'t> {
    batch: &'t mut Batch,
    tokenizer: &'t Tokenizer,
    /// Of the tokenizer, which would count anew each time.
    vocabulary: usize,
    metrics: &'t Metrics,
    waiting: VecDeque<Box<Job>>,
    running: HashMap<Sequence, Running<'t>>,
}

impl<'t> Engine<'t> {
    pub(crate) fn new(
        batch: &'t mut Batch,
        tokenizer: &'t Tokenizer,
        metrics: &'t Metrics,
    ) -> Self {
        let (waiting, running) = (VecDeque::new(), HashMap::new());
        let vocabulary = tokenizer.vocabulary();
        Self { batch, tokenizer, vocabulary, metrics, waiting, running }
    }

    /// Takes what has come, and waits where there is nothing to do. Whether it goes on.
    pub(crate) fn take(&mut self, messages: &Receiver<Message>) -> bool {
        if self.running.is_empty() && self.waiting.is_empty() {
            match messages.recv() {
                Ok(Message::Job(job)) => self.waiting.push_back(job),
                Ok(Message::Abort) | Err(_) => return false,
            }
        }
        loop {
            match messages.try_recv() {
                Ok(Message::Job(job)) => self.waiting.push_back(job),
                Ok(Message::Abort) => return false,
                // Nobody sends any more; what there is ends.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// A piece of a long prompt, if there is one, and a token of each other sequence.
    pub(crate) fn step(&mut self) -> Result<(), Error> {
        self.drop_gone_and_late()?;
        while self.batch.len() < self.batch.slots() {
            let Some(job) = self.waiting.pop_front() else { break };
            self.join(job);
        }
        self.tell_metrics();
        self.read_piece()?;
        let (start, bucket) = (Instant::now(), self.batch.bucket());
        if self.batch.len() == self.batch.reading() {
            return Ok(());
        }
        let (running, vocabulary) = (&mut self.running, self.vocabulary);
        let all = self.batch.advance_drawing(|sequence| {
            let Running { job, tokens, .. } = running.get_mut(&sequence).expect("in the batch");
            job.sampler.next(tokens, vocabulary)
        })?;
        self.metrics.stepped(bucket, start.elapsed());
        for (sequence, token) in all {
            self.write(sequence, token)?;
        }
        Ok(())
    }

    fn join(&mut self, job: Box<Job>) {
        let sequence = match self.batch.join(&job.prompt) {
            Ok(sequence) => sequence,
            Err(error) => return self.fail_prompt(job, &error),
        };
        add(&self.metrics.prompt_tokens, job.prompt.len());
        // The text goes on where the prompt ends: within a character, or before a space that only a first token loses.
        // All others wait while its tokens become text: of a long prompt only the last ones do.
        let mut stream = self.tokenizer.stream();
        let last = job.prompt.len().saturating_sub(LOOKED_BACK);
        job.prompt[last..].iter().for_each(|&token| drop(stream(token)));
        let (text, tokens) = (Text::new(job.stops.clone()), job.prompt.clone());
        self.running.insert(sequence, Running { stream, text, tokens, job });
    }

    /// Reads a piece of the prompt that is read now. What only this prompt is too much for, its memory say, ends this job alone.
    fn read_piece(&mut self) -> Result<(), Error> {
        let Some(sequence) = self.batch.next_to_read() else { return Ok(()) };
        let start = Instant::now();
        match self.batch.read_piece() {
            Ok(tokens) => self.metrics.read_piece(tokens, start.elapsed()),
            Err(error) => {
                self.batch.leave(sequence)?;
                if let Some(Running { job, .. }) = self.running.remove(&sequence) {
                    self.fail_prompt(job, &error);
                }
            }
        }
        Ok(())
    }

    fn fail_prompt(&self, job: Box<Job>, error: &Error) {
        let message = format!("the prompt could not be read: {error}");
        let refusal = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "prompt", message);
        self.metrics.ended(End::Failed);
        // Its place is free before its client hears of it.
        let to = job.to.clone();
        drop(job);
        let _ = to.send(Piece::Failed(refusal));
    }

    /// Tells the client of a sequence its next token, and lets the sequence read that, or leave.
    fn write(&mut self, sequence: Sequence, token: i32) -> Result<(), Error> {
        let running = self.running.get_mut(&sequence).expect("in the batch");
        let Running { job, stream, text, tokens } = running;
        tokens.push(token);
        let written = tokens.len() - job.prompt.len();
        add(&self.metrics.generated_tokens, 1);
        if written == 1 {
            self.metrics.first_token(job.begun.elapsed());
        }
        let ends_here = job.stop_tokens.contains(&token);
        let (mut told, stops) =
            if ends_here { (String::new(), false) } else { text.push(&stream(token)) };
        let end = match (ends_here || stops, written >= job.max_tokens) {
            (true, _) => Some(End::Stop),
            (false, true) => Some(End::Length),
            (false, false) => None,
        };
        if end.is_some() && !stops {
            told += &text.finish();
        }
        // Whoever has gone is seen before the next step.
        if !told.is_empty() {
            let _ = job.to.send(Piece::Text(told));
        }
        match end {
            None => self.batch.put(sequence, token),
            Some(end) => {
                // Its place is free and it is counted before its client hears of the end.
                let to = job.to.clone();
                self.leave(sequence, end)?;
                let _ = to.send(Piece::End(end, written));
                Ok(())
            }
        }
    }

    fn leave(&mut self, sequence: Sequence, end: End) -> Result<(), Error> {
        self.running.remove(&sequence);
        self.metrics.ended(end);
        self.batch.leave(sequence)
    }

    /// Those whose client has gone, and those that have taken too long, leave.
    fn drop_gone_and_late(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let metrics = self.metrics;
        self.waiting.retain(|job| match ends(job, now) {
            Some(end) => {
                metrics.ended(end);
                false
            }
            None => true,
        });
        let ended: Vec<(Sequence, End)> = self
            .running
            .iter()
            .filter_map(|(sequence, running)| Some((*sequence, ends(&running.job, now)?)))
            .collect();
        ended.into_iter().try_for_each(|(sequence, end)| self.leave(sequence, end))
    }

    /// Tells all clients that there is no more, and those who have come meanwhile.
    fn fail_all(&mut self, messages: &Receiver<Message>, why: &str) {
        let running = self.running.drain().map(|(_, running)| running.job);
        let come = messages.try_iter().filter_map(|message| match message {
            Message::Job(job) => Some(job),
            Message::Abort => None,
        });
        for job in running.chain(self.waiting.drain(..)).chain(come) {
            let _ = job.to.send(Piece::Failed(Refusal::busy("stopped", why)));
            self.metrics.ended(End::Failed);
        }
        self.tell_metrics();
    }

    fn tell_metrics(&self) {
        set(&self.metrics.running, self.running.len());
        set(&self.metrics.reading, self.batch.reading());
        set(&self.metrics.waiting, self.waiting.len());
    }
}

/// Whether a text ends before its time, and how; its client is told.
fn ends(job: &Job, now: Instant) -> Option<End> {
    if job.to.is_closed() {
        return Some(End::Gone);
    }
    if now < job.deadline {
        return None;
    }
    let seconds = (now - job.begun).as_secs_f64();
    let message = format!("the request took longer than the server lets it: {seconds:.1} s");
    let refusal = Refusal::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message);
    let _ = job.to.send(Piece::Failed(refusal));
    Some(End::Timeout)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
