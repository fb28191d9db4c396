//! Routes: what comes over HTTP, and what goes back.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use lab_lm::{Sampler, Tokenizer};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use crate::answer::{Answer, seconds, stream, whole};
use crate::engine::{Job, Message, Place};
use crate::error::{Refusal, as_json};
use crate::metrics::Metrics;
use crate::request::{Asked, Prompt};

/// What all requests share.
pub(crate) struct Shared {
    /// What clients call the model.
    pub(crate) name: String,
    pub(crate) vocabulary: usize,
    /// Tokens that end a text of this model.
    pub(crate) end_tokens: Vec<i32>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) jobs: Sender<Message>,
    /// Sequences that were taken and have not ended.
    pub(crate) taken: Arc<AtomicUsize>,
    pub(crate) stops: AtomicBool,
    pub(crate) works: Arc<AtomicBool>,
    pub(crate) begun: SystemTime,
    pub(crate) requests: AtomicU64,
}

/// What a client may ask for at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) slots: usize,
    /// Sequences that wait for a slot.
    pub(crate) queue: usize,
    /// Tokens of a prompt and of what follows it, together.
    pub(crate) length: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// From a request to the end of its answer.
    pub(crate) timeout: Duration,
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let body = shared.limits.body;
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "not_found", "no such page") })
        .method_not_allowed_fallback(|| async {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "not by this method")
        })
        .layer(DefaultBodyLimit::max(body))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), count_in_time))
        .with_state(shared)
}

fn refuse(status: StatusCode, code: &'static str, message: &str) -> Refusal {
    Refusal::new(status, code, message)
}

fn too_large(limit: usize) -> Refusal {
    let message = format!("body: expected at most {limit} bytes, got more");
    refuse(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &message)
}

/// Bytes that a client asks whether it may send them.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::EXPECT)?;
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// How long a body may take at most, from its head on: a connection that waits for one keeps others from being accepted.
const MOST_FOR_BODY: Duration = Duration::from_secs(30);

/// When the head of a request was there, and whether its body was, later.
#[derive(Clone)]
struct Arrival {
    begun: Instant,
    is_whole: Arc<AtomicBool>,
}

/// Counts the response. A body that is too large is not asked for, and one that does not come in time is not waited for.
async fn count_in_time(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let limit = shared.limits.body;
    let is_too_large = announced(request.headers()).is_some_and(|bytes| bytes > limit as u64);
    let response = if is_too_large {
        too_large(limit).into_response()
    } else {
        answer_in_time(&shared, request, next).await
    };
    shared.metrics.responded(response.status().as_u16());
    response
}

async fn answer_in_time(shared: &Shared, mut request: Request, next: Next) -> Response {
    // The engine ends a request in time itself, between two steps.
    let limit = shared.limits.timeout + Duration::from_secs(1);
    let for_body = limit.min(MOST_FOR_BODY);
    let arrival = Arrival { begun: Instant::now(), is_whole: Arc::default() };
    request.extensions_mut().insert(arrival.clone());
    let mut answer = pin!(next.run(request));
    let mut answered = tokio::time::timeout(for_body, answer.as_mut()).await;
    let is_whole = arrival.is_whole.load(Ordering::SeqCst);
    if answered.is_err() && is_whole {
        answered = tokio::time::timeout(limit - for_body, answer).await;
    }
    answered.unwrap_or_else(|_| {
        let (status, message) = if is_whole {
            (StatusCode::GATEWAY_TIMEOUT, "the request took longer than the server lets it")
        } else {
            (StatusCode::REQUEST_TIMEOUT, "the request has not come in time")
        };
        refuse(status, "timeout", message).into_response()
    })
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (status, text) = if shared.works.load(Ordering::SeqCst) && !shared.stops() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    };
    as_json(status, &json!({ "status": text }))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut response = Response::new(Body::from(shared.metrics.text(shared.limits.slots)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    as_json(StatusCode::OK, &json!({ "object": "list", "data": [shared.model()] }))
}

async fn model(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, PathRejection>,
) -> Response {
    match name {
        Ok(Path(name)) if name == shared.name => as_json(StatusCode::OK, &shared.model()),
        Ok(Path(name)) => shared.no_model(&name).into_response(),
        Err(error) => refuse(error.status(), "path", &error.body_text()).into_response(),
    }
}

async fn completions(
    State(shared): State<Arc<Shared>>,
    Extension(arrival): Extension<Arrival>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    arrival.is_whole.store(true, Ordering::SeqCst);
    match complete(&shared, arrival.begun, &headers, body).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn complete(
    shared: &Arc<Shared>,
    begun: Instant,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    check_content_type(headers)?;
    let body = body.map_err(|error| {
        let limit = shared.limits.body;
        match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => too_large(limit),
            status => refuse(status, "body", &error.body_text()),
        }
    })?;
    let asked = Asked::of_body(&body)?;
    if let Some(name) = asked.model.as_ref().filter(|name| **name != shared.name) {
        return Err(shared.no_model(name));
    }
    // Before the tokens are made: a server that is full refuses at little cost.
    let place = shared.place()?;
    let (prompt, text) = encode(shared, asked.prompt.clone()).await?;
    shared.check_length(prompt.len(), asked.max_tokens)?;
    let (to, pieces) = unbounded_channel();
    let mut stop_tokens = shared.end_tokens.clone();
    stop_tokens.extend(&asked.stop_tokens);
    let prompt_tokens = prompt.len();
    let job = Job {
        prompt,
        max_tokens: asked.max_tokens,
        sampler: sampler(&asked, shared)?,
        stops: asked.stop.clone(),
        stop_tokens,
        begun,
        deadline: begun + shared.limits.timeout,
        to,
        _place: place,
    };
    let gone = |_| Refusal::busy("stopped", "the server stops");
    shared.jobs.send(Message::Job(Box::new(job))).map_err(gone)?;
    let answer = Answer {
        id: format!("cmpl-{}", shared.requests.fetch_add(1, Ordering::Relaxed)),
        created: seconds(SystemTime::now()),
        model: shared.name.clone(),
        prompt_tokens,
    };
    let echo = if asked.echo { text } else { String::new() };
    if asked.stream {
        stream(answer, pieces, echo, asked.include_usage).await
    } else {
        whole(answer, pieces, echo).await
    }
}

/// A page of another site can post other types without asking. Before this one its browser asks, and the answer is no.
fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = found.and_then(|value| value.split(';').next()).map(str::trim);
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message =
        format!("content-type: expected application/json, got {}", found.unwrap_or("none"));
    Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", &message))
}

/// The tokens of a prompt, and its text.
async fn encode(shared: &Arc<Shared>, prompt: Prompt) -> Result<(Vec<i32>, String), Refusal> {
    let own = Arc::clone(shared);
    // A long text takes some time: meanwhile others get their tokens.
    let encoded = tokio::task::spawn_blocking(move || own.encode(prompt)).await;
    let failed = |_| refuse(StatusCode::INTERNAL_SERVER_ERROR, "tokenizer", "the tokenizer failed");
    encoded.map_err(failed)?
}

fn sampler(asked: &Asked, shared: &Shared) -> Result<Sampler, Refusal> {
    let Asked { temperature, top_p, top_k, repetition, seed, .. } = *asked;
    // Another one each time.
    let any = || {
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(shared.requests.load(Ordering::Relaxed))
    };
    let sampler = Sampler::new(temperature, top_k, top_p, repetition, seed.unwrap_or_else(any));
    sampler.map_err(|e| refuse(StatusCode::BAD_REQUEST, "invalid_value", &e.to_string()))
}

impl Shared {
    pub(crate) fn stops(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }

    fn model(&self) -> Value {
        json!({
            "id": self.name, "object": "model", "created": seconds(self.begun), "owned_by": "lab",
            "max_model_len": self.limits.length,
        })
    }

    fn no_model(&self, name: &str) -> Refusal {
        let name: String = name.chars().take(100).collect();
        let message = format!("model: expected '{}', got '{name}'", self.name);
        let refusal = refuse(StatusCode::NOT_FOUND, "model_not_found", &message);
        Refusal { param: Some("model".into()), ..refusal }
    }

    fn encode(&self, prompt: Prompt) -> Result<(Vec<i32>, String), Refusal> {
        let (tokens, text) = match prompt {
            Prompt::Text(text) => {
                let tokens = self.tokenizer.encode(text.as_bytes());
                (tokens.map_err(|e| Refusal::field("prompt", "what has tokens", e))?, text)
            }
            Prompt::Tokens(tokens) => {
                let vocabulary = self.vocabulary;
                if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
                    let expected = format!("tokens from 0 to {}", vocabulary - 1);
                    return Err(Refusal::field("prompt", &expected, id));
                }
                let mut stream = self.tokenizer.stream();
                let bytes: Vec<u8> = tokens.iter().flat_map(|id| stream(*id)).collect();
                (tokens, String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        if let Some(id) = tokens.iter().find(|id| **id as usize >= self.vocabulary) {
            let expected = format!("tokens below {}, which the model knows", self.vocabulary);
            return Err(Refusal::field("prompt", &expected, id));
        }
        if tokens.is_empty() {
            Err(Refusal::field("prompt", "at least one token", "none"))
        } else {
            Ok((tokens, text))
        }
    }

    fn check_length(&self, prompt: usize, more: usize) -> Result<(), Refusal> {
        let limit = self.limits.length;
        if prompt.saturating_add(more) <= limit {
            return Ok(());
        }
        let expected = format!("at most {limit} tokens together with the prompt's");
        let refusal = Refusal::field("max_tokens", &expected, format!("{prompt} and {more}"));
        Err(Refusal { code: "context_length_exceeded", ..refusal })
    }

    fn place(&self) -> Result<Place, Refusal> {
        if self.stops() || !self.works.load(Ordering::SeqCst) {
            return Err(Refusal::busy("stopped", "the server stops"));
        }
        let Limits { slots, queue, .. } = self.limits;
        let full = || {
            let message = format!("{slots} sequences run and {queue} wait: try again later");
            Refusal::busy("queue_full", message)
        };
        Place::take(&self.taken, slots + queue).ok_or_else(full)
    }
}
