//! What a client asks for: the body of `/v1/completions`.

use axum::http::StatusCode;
use serde_json::{Map, Value};

use crate::error::Refusal;

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<i32>),
}

/// A request whose fields are of the right types and ranges.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    /// The served model, where it is said.
    pub(crate) model: Option<String>,
    pub(crate) prompt: Prompt,
    pub(crate) max_tokens: usize,
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    pub(crate) top_k: usize,
    pub(crate) repetition: f64,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<i32>,
    pub(crate) echo: bool,
    pub(crate) stream: bool,
    /// Whether a stream ends with its usage.
    pub(crate) include_usage: bool,
}

/// The most strings that end a text, as OpenAI has it, and bytes of each.
const MOST_STOPS: usize = 4;
const MOST_OF_STOP: usize = 1024;

/// Fields of the interface that are not served: as here they change nothing.
const NEUTRAL: &[(&str, &[&str])] = &[
    ("best_of", &["1"]),
    ("frequency_penalty", &["0", "0.0"]),
    ("presence_penalty", &["0", "0.0"]),
    ("logit_bias", &["{}"]),
    ("logprobs", &[]),
    ("suffix", &["\"\""]),
    ("n", &["1"]),
];

impl Asked {
    /// Of a body.
    ///
    /// # Errors
    /// It is no JSON object, or a field is missing, unknown, not served or wrong.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, Refusal> {
        let refuse = |got: String| {
            let message = format!("body: expected a JSON object, got {got}");
            Refusal::new(StatusCode::BAD_REQUEST, "invalid_json", message)
        };
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Self::of_fields(Fields(fields)),
            Ok(other) => Err(refuse(kind_of(&other).into())),
            Err(error) => Err(refuse(format!("none: {error}"))),
        }
    }

    fn of_fields(mut all: Fields) -> Result<Self, Refusal> {
        for (name, neutral) in NEUTRAL {
            if let Some(value) = all.take(name).filter(|v| !neutral.contains(&&*v.to_string())) {
                let expected = neutral.first().map_or("none", |value| *value);
                let refusal = Refusal::field(name, expected, shortened(&value));
                return Err(Refusal { code: "unsupported_value", ..refusal });
            }
        }
        // Who asks is no matter of ours.
        all.text("user")?;
        let stream = all.flag("stream")?;
        let asked = Self {
            model: all.text("model")?,
            prompt: all.prompt()?,
            max_tokens: all.integer("max_tokens", [1, u64::from(u32::MAX)])?.unwrap_or(16) as usize,
            temperature: all.number("temperature", [0.0, 2.0])?.unwrap_or(1.0),
            top_p: all.number("top_p", [f64::MIN_POSITIVE, 1.0])?.unwrap_or(1.0),
            top_k: all.integer("top_k", [0, u64::from(u32::MAX)])?.unwrap_or(0) as usize,
            repetition: all.number("repetition_penalty", [1.0, 1e3])?.unwrap_or(1.0),
            seed: all.seed()?,
            stop: all.stops()?,
            stop_tokens: all.stop_tokens()?,
            echo: all.flag("echo")?,
            stream,
            include_usage: all.include_usage(stream)?,
        };
        match all.0.keys().next() {
            None => Ok(asked),
            Some(unknown) => {
                let name: String = unknown.chars().take(100).collect();
                let message = format!("unknown field '{name}'");
                let refusal = Refusal::new(StatusCode::BAD_REQUEST, "unknown_field", message);
                Err(Refusal { param: Some(name), ..refusal })
            }
        }
    }
}

/// Fields that nobody has taken yet.
struct Fields(Map<String, Value>);

impl Fields {
    /// null is as good as nothing.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(Refusal::field(name, "true or false", shortened(&other))),
        }
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(Refusal::field(name, "a string", shortened(&other))),
        }
    }

    fn integer(&mut self, name: &str, [least, most]: [u64; 2]) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = value.as_u64().filter(|n| (least..=most).contains(n));
        let expected = format!("an integer from {least} to {most}");
        found.map(Some).ok_or_else(|| Refusal::field(name, &expected, shortened(&value)))
    }

    fn number(&mut self, name: &str, [least, most]: [f64; 2]) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = value.as_f64().filter(|n| (least..=most).contains(n));
        let expected = if least == f64::MIN_POSITIVE {
            format!("a number above 0 and at most {most}")
        } else {
            format!("a number from {least} to {most}")
        };
        found.map(Some).ok_or_else(|| Refusal::field(name, &expected, shortened(&value)))
    }

    /// Negative ones are seeds, too.
    fn seed(&mut self) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.take("seed") else { return Ok(None) };
        let found = value.as_u64().or_else(|| value.as_i64().map(|n| n as u64));
        found.map(Some).ok_or_else(|| Refusal::field("seed", "an integer", shortened(&value)))
    }

    /// One: a text, its tokens, or a list with one of these.
    fn prompt(&mut self) -> Result<Prompt, Refusal> {
        const EXPECTED: &str = "a string, an array of token ids, or an array of one of these";
        let refuse = |got: String| Err(Refusal::field("prompt", EXPECTED, got));
        let mut value = match self.take("prompt") {
            None => return refuse("none".into()),
            Some(value) => value,
        };
        if let Value::Array(items) = &mut value
            && items.iter().any(|item| item.is_string() || item.is_array())
        {
            match items.len() {
                1 => value = items.remove(0),
                several => return refuse(format!("{several} prompts")),
            }
        }
        match value {
            Value::String(text) => Ok(Prompt::Text(text)),
            Value::Array(ids) => match ids.iter().map(token).collect() {
                Some(ids) => Ok(Prompt::Tokens(ids)),
                None => refuse("an array of something else".into()),
            },
            other => refuse(shortened(&other)),
        }
    }

    fn stops(&mut self) -> Result<Vec<String>, Refusal> {
        let all = match self.take("stop") {
            None => return Ok(Vec::new()),
            Some(Value::Array(all)) => all,
            Some(one) => vec![one],
        };
        let as_stop = |value: &Value| {
            let text = value.as_str().filter(|s| (1..=MOST_OF_STOP).contains(&s.len()));
            text.map(str::to_owned)
        };
        let expected =
            format!("up to {MOST_STOPS} strings of 1 to {MOST_OF_STOP} bytes, or one of them");
        let refuse = |got: String| Refusal::field("stop", &expected, got);
        if all.len() > MOST_STOPS {
            return Err(refuse(format!("{} of them", all.len())));
        }
        let stops = all.iter().map(|value| as_stop(value).ok_or_else(|| refuse(shortened(value))));
        stops.collect()
    }

    fn stop_tokens(&mut self) -> Result<Vec<i32>, Refusal> {
        let Some(value) = self.take("stop_token_ids") else { return Ok(Vec::new()) };
        let ids = value.as_array().filter(|ids| ids.len() <= 64);
        let ids = ids.and_then(|ids| ids.iter().map(token).collect());
        let expected = "an array of up to 64 token ids";
        ids.ok_or_else(|| Refusal::field("stop_token_ids", expected, shortened(&value)))
    }

    fn include_usage(&mut self, stream: bool) -> Result<bool, Refusal> {
        let Some(value) = self.take("stream_options") else { return Ok(false) };
        let refuse =
            |expected: &str| Err(Refusal::field("stream_options", expected, shortened(&value)));
        if !stream {
            return refuse("none without 'stream'");
        }
        match value.as_object() {
            Some(options) if options.is_empty() => Ok(false),
            Some(options) if options.len() == 1 => match options.get("include_usage") {
                Some(Value::Bool(flag)) => Ok(*flag),
                _ => refuse("{\"include_usage\": true or false}"),
            },
            _ => refuse("{\"include_usage\": true or false}"),
        }
    }
}

fn token(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|id| i32::try_from(id).ok()).filter(|id| *id >= 0)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A value as a message quotes it.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 {
        format!("{}, {}…", kind_of(value), text.chars().take(60).collect::<String>())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &str) -> String {
        Asked::of_body(body.as_bytes()).expect_err(body).message
    }

    #[test]
    fn a_request_is_read() {
        let asked = Asked::of_body(
            br#"{"model": "m", "prompt": ["ab"], "max_tokens": 3, "temperature": 0, "top_p": 0.5, "top_k": 7, "seed": -1,
                "stop": "x", "stop_token_ids": [3], "echo": true, "stream": true, "stream_options": {"include_usage": true},
                "n": 1, "logprobs": null, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "u"}"#,
        );
        let expected = Asked {
            model: Some("m".into()),
            prompt: Prompt::Text("ab".into()),
            max_tokens: 3,
            temperature: 0.0,
            top_p: 0.5,
            top_k: 7,
            repetition: 1.0,
            seed: Some(u64::MAX),
            stop: vec!["x".into()],
            stop_tokens: vec![3],
            echo: true,
            stream: true,
            include_usage: true,
        };
        assert_eq!(asked, Ok(expected));
        for prompt in ["[1, 2]", "[[1, 2]]"] {
            let asked = Asked::of_body(format!(r#"{{"prompt": {prompt}}}"#).as_bytes()).unwrap();
            assert_eq!(asked.prompt, Prompt::Tokens(vec![1, 2]));
            assert_eq!((asked.max_tokens, asked.temperature, asked.seed), (16, 1.0, None));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, expected) in [
            ("[1]", "body: expected a JSON object, got an array"),
            (
                r#"{"x": 1}"#,
                "prompt: expected a string, an array of token ids, or an array of one of these, got none",
            ),
            (r#"{"prompt": "a", "max_token": 1}"#, "unknown field 'max_token'"),
            (r#"{"prompt": "a", "n": 2}"#, "n: expected 1, got 2"),
            (r#"{"prompt": "a", "logprobs": 1}"#, "logprobs: expected none, got 1"),
            (
                r#"{"prompt": "a", "max_tokens": 0}"#,
                "max_tokens: expected an integer from 1 to 4294967295, got 0",
            ),
            (
                r#"{"prompt": "a", "temperature": 3}"#,
                "temperature: expected a number from 0 to 2, got 3",
            ),
            (
                r#"{"prompt": "a", "top_p": 0}"#,
                "top_p: expected a number above 0 and at most 1, got 0",
            ),
            (
                r#"{"prompt": "a", "stop": ""}"#,
                r#"stop: expected up to 4 strings of 1 to 1024 bytes, or one of them, got """#,
            ),
            (
                r#"{"prompt": "a", "stream_options": {}}"#,
                "stream_options: expected none without 'stream', got {}",
            ),
        ] {
            assert_eq!(said(body), expected);
        }
        for body in [
            "",
            "{",
            "\u{1}",
            r#"{"prompt": [1, "a"]}"#,
            r#"{"prompt": [-1]}"#,
            r#"{"prompt": ["a", "b"]}"#,
        ] {
            assert!(!said(body).is_empty());
        }
    }
}
