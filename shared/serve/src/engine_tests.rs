//! The engine step by step, on the emulator: what happens is counted, not timed.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use lab_device::{DType, Device};
use lab_lm::{Batched, Model};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

/// Tokens of a piece, and of a prompt of four pieces with six tokens behind them.
const PIECE: usize = 16;
const LONG: usize = 70;

/// In bf16, where the vLSTM's prompts are read in pieces.
fn batch() -> Batch {
    let model = Model { hidden: 32, ..Model::xlstm(256, 32, 1, 1) };
    let of = Batched { model, types: DType::BF16.into(), slots: 3, room: 0, piece: PIECE };
    let device = Device::emulator().unwrap();
    Batch::new(&device, of, &model.parameters().initial(5)).unwrap()
}

/// An engine, and what it is told by and tells.
struct Told<'t> {
    engine: Engine<'t>,
    metrics: &'t Metrics,
    jobs: Sender<Message>,
    messages: Receiver<Message>,
    taken: Arc<AtomicUsize>,
}

impl<'t> Told<'t> {
    fn new(batch: &'t mut Batch, metrics: &'t Metrics) -> Self {
        let (jobs, messages) = channel();
        let engine = Engine::new(batch, &Tokenizer::Bytes, metrics);
        Self { engine, metrics, jobs, messages, taken: Arc::default() }
    }

    fn ask(&self, prompt: Vec<i32>, max_tokens: usize) -> UnboundedReceiver<Piece> {
        let (to, pieces) = unbounded_channel();
        let begun = Instant::now();
        let job = Job {
            prompt,
            max_tokens,
            sampler: Sampler::new(0.0, 0, 1.0, 1.0, 0).unwrap(),
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            begun,
            deadline: begun + Duration::from_secs(600),
            to,
            _place: Place::take(&self.taken, 8).unwrap(),
        };
        self.jobs.send(Message::Job(Box::new(job))).unwrap();
        pieces
    }

    /// What has come is taken, and all go a step. Whether the engine goes on.
    fn step(&mut self) -> bool {
        let goes_on = self.engine.take(&self.messages);
        if goes_on {
            self.engine.step().unwrap();
            self.engine.tell_metrics();
        }
        goes_on
    }

    fn sample(&self, name: &str) -> f64 {
        let text = self.metrics.text(3);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }

    /// Tokens that were written, pieces that were read, sequences whose prompts are read.
    fn counts(&self) -> [f64; 3] {
        ["lab_generated_tokens_total", "lab_prompt_pieces_total", "lab_sequences_reading"]
            .map(|name| self.sample(name))
    }
}

fn long(first: i32) -> Vec<i32> {
    (0..LONG as i32).map(|n| (first + 7 * n) % 256).collect()
}

/// The text, once it has ended.
fn text(pieces: &mut UnboundedReceiver<Piece>) -> (String, usize) {
    let mut all = String::new();
    while let Ok(piece) = pieces.try_recv() {
        match piece {
            Piece::Text(more) => all += &more,
            Piece::End(End::Length, written) => return (all, written),
            other => panic!("{other:?}"),
        }
    }
    panic!("no end behind '{all}'")
}

#[test]
fn a_text_goes_on_between_the_pieces_of_long_prompts() {
    let (mut batch, metrics) = (batch(), Metrics::default());
    let mut told = Told::new(&mut batch, &metrics);
    let alone = [3, 90].map(|first| {
        let mut pieces = told.ask(long(first), 4);
        // Four pieces, with the last of which the steps begin: six tokens of the prompt, and three that were written.
        (0..4 + 8).for_each(|_| assert!(told.step()));
        text(&mut pieces)
    });
    assert_eq!(alone.each_ref().map(|(_, written)| *written), [4, 4]);
    let [written, pieces, reading] = told.counts();
    assert_eq!([written, pieces, reading], [8.0, 8.0, 0.0]);
    assert_eq!(told.sample("lab_prompt_piece_tokens_total"), 8.0 * PIECE as f64);

    let mut short = told.ask(vec![97], 100);
    assert!(told.step());
    assert_eq!(told.counts(), [written + 1.0, pieces, 0.0]);
    let mut both = [3, 90].map(|first| told.ask(long(first), 4));
    for step in 1..=8 {
        assert!(told.step());
        let n = f64::from(step);
        // One piece, of the prompt that came first, and a token of the text that is under way; the first prompt still has six tokens when
        // it takes part in the steps, from the fourth on.
        let reading = [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0][step as usize - 1];
        assert_eq!(told.counts(), [written + 1.0 + n, pieces + n, reading], "step {step}");
    }
    (0..8).for_each(|_| assert!(told.step()));
    for (alone, pieces) in alone.iter().zip(&mut both) {
        assert_eq!(*alone, text(pieces), "as alone");
    }
    assert!(matches!(short.try_recv(), Ok(Piece::Text(_))));
    drop(short);
    assert!(told.step());
    assert_eq!(told.sample("lab_sequences_running"), 0.0);
}

#[test]
fn who_goes_between_two_pieces_leaves_nothing_behind() {
    let (mut batch, metrics) = (batch(), Metrics::default());
    let mut told = Told::new(&mut batch, &metrics);
    let mut first = told.ask(long(50), 3);
    (0..4 + 7).for_each(|_| assert!(told.step()));
    let alone = text(&mut first);

    let gone = told.ask(long(9), 3);
    (0..2).for_each(|_| assert!(told.step()));
    let mut next = told.ask(long(50), 3);
    drop(gone);
    (0..4 + 7).for_each(|_| assert!(told.step()));
    assert_eq!(text(&mut next), alone);
    assert_eq!(told.sample("lab_sequences_total{end=\"gone\"}"), 1.0);

    // A server that stops ends it between two pieces, too.
    let mut stopped = told.ask(long(9), 3);
    (0..2).for_each(|_| assert!(told.step()));
    assert_eq!(told.sample("lab_sequences_reading"), 1.0);
    told.jobs.send(Message::Abort).unwrap();
    assert!(!told.step());
    told.engine.fail_all(&told.messages, "the server stops");
    assert!(matches!(stopped.try_recv(), Ok(Piece::Failed(_))));
    assert_eq!(told.taken.load(Ordering::SeqCst), 0, "all places are free");
}
