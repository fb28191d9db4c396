//! A language model over HTTP, for clients of OpenAI's interface: `POST /v1/completions`, many sequences at once.
//!
//! One thread, the *engine*, owns the device. It decodes a [`Batch`](lab_lm::Batch): before each token sequences join that have a
//! slot now, and those leave that have ended or whose clients have gone. Of a long prompt it reads a piece between two tokens. Another
//! thread speaks HTTP (axum). A request waits in a queue of a limited length; its tokens come over a channel, whose dropped end tells the
//! engine that nobody reads them.
//!
//! ```text
//! clients ══ axum ── Job ──▶ queue ──▶ engine: Batch::join, read_piece, advance, leave ──▶ device
//!              ▲                          │
//!              └──── Piece: text, end ◀───┘
//! ```
//!
//! There is no authentication: the server listens on the loopback interface unless it is told otherwise.
#![forbid(unsafe_code)]

mod answer;
mod connections;
mod engine;
mod error;
mod failure;
mod http;
mod metrics;
mod request;
mod serve;
mod settings;
mod text;
mod thread;

pub use failure::Failure;
pub use serve::serve;
pub use settings::Settings;
