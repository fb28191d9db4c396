//! What a client gets: one answer, or events as they come.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::engine::Piece;
use crate::error::{Refusal, as_json};
use crate::metrics::End;

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What each piece of an answer says.
pub(crate) struct Answer {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) prompt_tokens: usize,
}

impl Answer {
    fn object(&self, choices: &Value) -> Value {
        let Self { id, created, model, .. } = self;
        json!({
            "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices,
        })
    }

    fn of_text(&self, text: &str, end: Option<End>) -> Value {
        let reason = end.map(|end| if end == End::Stop { "stop" } else { "length" });
        self.object(&json!([
            { "index": 0, "text": text, "logprobs": null, "finish_reason": reason }
        ]))
    }

    fn usage(&self, written: usize) -> Value {
        let Self { prompt_tokens, .. } = self;
        json!({
            "prompt_tokens": prompt_tokens, "completion_tokens": written,
            "total_tokens": prompt_tokens + written,
        })
    }
}

fn engine_ended() -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "engine", "the engine has ended")
}

/// One answer with all of the text, which begins with what is given.
pub(crate) async fn whole(
    answer: Answer,
    mut pieces: UnboundedReceiver<Piece>,
    mut text: String,
) -> Result<Response, Refusal> {
    loop {
        match pieces.recv().await {
            Some(Piece::Text(more)) => text += &more,
            Some(Piece::Failed(refusal)) => return Err(refusal),
            None => return Err(engine_ended()),
            Some(Piece::End(end, written)) => {
                let mut all = answer.of_text(&text, Some(end));
                all["usage"] = answer.usage(written);
                return Ok(as_json(StatusCode::OK, &all));
            }
        }
    }
}

/// Server-sent events. What fails before the first of them is an answer of its own.
pub(crate) async fn stream(
    answer: Answer,
    mut pieces: UnboundedReceiver<Piece>,
    echo: String,
    include_usage: bool,
) -> Result<Response, Refusal> {
    let first = match pieces.recv().await {
        Some(Piece::Failed(refusal)) => return Err(refusal),
        None => return Err(engine_ended()),
        Some(first) => first,
    };
    let mut events = Events { answer, pieces, next: Vec::new(), include_usage, ended: false };
    if !echo.is_empty() {
        let text = events.answer.of_text(&echo, None);
        events.add(&text);
    }
    events.take(Some(first));
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// The events of a stream.
struct Events {
    answer: Answer,
    pieces: UnboundedReceiver<Piece>,
    /// Those that are there and not sent.
    next: Vec<u8>,
    include_usage: bool,
    ended: bool,
}

impl Events {
    fn add(&mut self, value: &Value) {
        self.next.extend(format!("data: {value}\n\n").into_bytes());
    }

    fn take(&mut self, piece: Option<Piece>) {
        match piece {
            Some(Piece::Text(text)) => {
                let text = self.answer.of_text(&text, None);
                self.add(&text);
                return;
            }
            Some(Piece::End(end, written)) => {
                let last = self.answer.of_text("", Some(end));
                self.add(&last);
                if self.include_usage {
                    let mut usage = self.answer.object(&json!([]));
                    usage["usage"] = self.answer.usage(written);
                    self.add(&usage);
                }
                self.next.extend(b"data: [DONE]\n\n");
            }
            Some(Piece::Failed(refusal)) => self.add(&refusal.json()),
            None => self.add(&engine_ended().json()),
        }
        self.ended = true;
    }
}

impl futures_core::Stream for Events {
    type Item = Result<Vec<u8>, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.next.is_empty() && !self.ended {
            let Poll::Ready(piece) = self.pieces.poll_recv(context) else { return Poll::Pending };
            self.take(piece);
        }
        Poll::Ready(Some(std::mem::take(&mut self.next)).filter(|next| !next.is_empty()).map(Ok))
    }
}
