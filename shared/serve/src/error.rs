//! What is refused, as clients of OpenAI's interface read it.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An answer that is none: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field of the request that is wrong.
    pub(crate) param: Option<String>,
    pub(crate) code: &'static str,
}

/// Seconds until a client should try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code }
    }

    /// 400: a field of the request.
    pub(crate) fn field(name: &str, expected: &str, got: impl std::fmt::Display) -> Self {
        let message = format!("{name}: expected {expected}, got {got}");
        let refusal = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        Self { param: Some(name.to_owned()), ..refusal }
    }

    /// 503: later there will be room.
    pub(crate) fn busy(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let Self { status, message, param, code } = self;
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = as_json(self.status, &self.json());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            // Of a server that is full or stops, connections that are idle have places that others wait for.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// An answer of JSON.
pub(crate) fn as_json(status: StatusCode, value: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
