//! The server as clients see it, on the emulator: over a socket, with a tiny model that is made here.
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lab_lm::{Model, Pretrained};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server, killed where a test ends.
struct Server {
    child: Child,
    address: String,
    _directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer: its status, its head, its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// What a refusal says, which must look as clients of OpenAI's expect it.
    fn refused(&self) -> (u16, String) {
        let error = &self.json()["error"];
        assert!(error["type"].is_string() && error["code"].is_string(), "{}", self.body);
        assert!(error.as_object().unwrap().contains_key("param"), "{}", self.body);
        (self.status, error["message"].as_str().unwrap().to_owned())
    }

    /// The text of an answer, whole or in pieces.
    fn text(&self) -> String {
        assert_eq!(self.status, 200, "{}", self.body);
        if !self.head.contains("text/event-stream") {
            return self.json()["choices"][0]["text"].as_str().unwrap().to_owned();
        }
        let events: Vec<&str> =
            self.body.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
        assert_eq!(events.last(), Some(&"[DONE]"), "{}", self.body);
        let text = |event: &&str| {
            let value: Value = serde_json::from_str(event).unwrap();
            value["choices"][0]["text"].as_str().unwrap_or("").to_owned()
        };
        events[..events.len() - 1].iter().map(text).collect()
    }
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let model = Model { hidden: 32, ..Model::xlstm(256, 32, 1, 1) };
        let parameters = model.parameters().initial(5);
        let path = directory.path().join("tiny");
        Pretrained { model, parameters }.write_directory(&path, None).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_lab-serve"))
            .arg(&path)
            .args(["--port", "0", "--device", "emulator"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").expect("its address").to_owned();
        Self { child, address, _directory: directory }
    }

    fn send(&self, head: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head =
            format!("{head}host: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // Who refuses a body for its length does not read it.
        let _ = stream.write_all(body);
        stream
    }

    fn ask(&self, head: &str, body: &[u8]) -> Answer {
        answer(self.send(head, body))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\n"), b"")
    }

    fn post(&self, body: &Value) -> Answer {
        self.ask(POST, body.to_string().as_bytes())
    }

    /// A sample of /metrics.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }

    /// Waits until a sample has a value.
    fn wait_for(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != value {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}", self.metric(name));
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

const POST: &str = "POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\n";

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A connection that is closed over a body that nobody reads may be reset behind the answer.
    let _ = stream.read_to_end(&mut bytes);
    let all = String::from_utf8(bytes).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: '{all}'"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body =
        if head.contains("transfer-encoding: chunked") { joined(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

/// The body of chunks.
fn joined(mut chunks: &str) -> String {
    let mut all = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        all += &rest[..length];
        chunks = rest[length..].strip_prefix("\r\n").unwrap();
    }
    all
}

#[test]
fn texts_are_those_that_each_client_would_get_alone() {
    let server = Server::start(&["--slots", "4"]);
    let asked: Vec<Value> = (0..9)
        .map(|n| {
            let hot = [0.0, 0.8, 1.5][n % 3];
            json!({
                "prompt": &"a text to go on from"[..3 + n], "max_tokens": 8 + 5 * (n % 4),
                "temperature": hot, "seed": n, "stream": n % 2 == 1,
            })
        })
        .collect();
    let alone: Vec<String> = asked.iter().map(|body| server.post(body).text()).collect();
    assert!(alone.iter().all(|text| !text.is_empty()));
    thread::scope(|scope| {
        let server = &server;
        let ask = |body| scope.spawn(move || server.post(body).text());
        let together: Vec<_> = asked.iter().map(ask).collect();
        for (expected, found) in alone.iter().zip(together) {
            assert_eq!(&found.join().unwrap(), expected);
        }
    });
    assert!(server.metric("lab_steps_total{bucket=\"4\"}") > 0.0, "they ran together");
    assert_eq!(server.metric("lab_sequences_total{end=\"length\"}"), 18.0);
}

#[test]
fn a_completion_has_what_was_asked_for() {
    let server = Server::start(&["--slots", "1", "--name", "m"]);
    let body = json!({ "model": "m", "prompt": "ab", "max_tokens": 12, "temperature": 0 });
    let whole = server.post(&body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(
        whole["usage"],
        json!({ "prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14 })
    );
    assert_eq!((&whole["object"], &whole["model"]), (&json!("text_completion"), &json!("m")));
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let with = |name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    assert_eq!(server.post(&with("prompt", json!([97, 98]))).text(), text);
    assert_eq!(server.post(&with("prompt", json!(["ab"]))).text(), text);
    assert_eq!(server.post(&with("echo", json!(true))).text(), format!("ab{text}"));
    let third = text.char_indices().nth(2).unwrap().0;
    let stop: String = text[third..].chars().take(2).collect();
    let stopped = server.post(&with("stop", json!([stop]))).json();
    let end = text.find(&stop).unwrap();
    assert_eq!(stopped["choices"][0]["text"], text[..end]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(server.get("/v1/models/m").json()["object"], "model");
    assert_eq!(server.get("/health").json(), json!({ "status": "ok" }));
}

#[test]
fn what_is_not_served_is_refused_and_nothing_is_lost() {
    let server = Server::start(&["--slots", "1", "--length", "32", "--body", "2000"]);
    for (body, status, expected) in [
        ("{", 400, "body: expected a JSON object, got none"),
        (r#"{"prompt": "a", "n": 2}"#, 400, "n: expected 1, got 2"),
        (r#"{"prompt": "a", "model": "other"}"#, 404, "model: expected 'tiny', got 'other'"),
        (r#"{"prompt": ""}"#, 400, "prompt: expected at least one token, got none"),
        (r#"{"prompt": [256]}"#, 400, "prompt: expected tokens from 0 to 255, got 256"),
        (
            r#"{"prompt": "a", "max_tokens": 32}"#,
            400,
            "max_tokens: expected at most 32 tokens together with the prompt's, got 1 and 32",
        ),
    ] {
        let (found, said) = server.ask(POST, body.as_bytes()).refused();
        assert_eq!((found, &said[..expected.len()]), (status, expected), "{body}");
    }
    let large = server.ask(POST, &[b' '; 2001]).refused();
    assert_eq!(large, (413, "body: expected at most 2000 bytes, got more".to_owned()));
    // A client that asks first is not told to send it.
    let mut announced = TcpStream::connect(&server.address).unwrap();
    announced.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = 1u64 << 40;
    write!(
        announced,
        "{POST}host: test\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    )
    .unwrap();
    assert_eq!(answer(announced).refused(), large);
    let plain = server.ask("POST /v1/completions HTTP/1.1\r\ncontent-type: text/plain\r\n", b"{}");
    assert_eq!(plain.refused().0, 415);
    assert_eq!(server.get("/v1/completions").refused().0, 405);
    assert_eq!(server.get("/").refused().0, 404);
    // No HTTP at all.
    assert!(server.ask("\u{1}\r\n", b"").head.contains(" 400 "));
    assert_eq!(server.post(&json!({ "prompt": "a", "max_tokens": 2, "seed": 1 })).status, 200);
    assert_eq!(server.metric("lab_sequences_total{end=\"length\"}"), 1.0);
    assert_eq!(server.metric("lab_responses_total{status=\"413\"}"), 2.0);
}

#[test]
fn who_goes_leaves_a_free_slot_and_who_comes_to_a_full_queue_is_told() {
    let server = Server::start(&["--slots", "1", "--queue", "1", "--length", "100000"]);
    let long = |stream| json!({ "prompt": "a", "max_tokens": 90000, "stream": stream }).to_string();
    let first = server.send(POST, long(true).as_bytes());
    server.wait_for("lab_sequences_running", 1.0);
    let second = server.send(POST, long(false).as_bytes());
    server.wait_for("lab_sequences_waiting", 1.0);
    let third = server.post(&json!({ "prompt": "a" }));
    assert_eq!(third.refused(), (503, "1 sequences run and 1 wait: try again later".into()));
    assert!(third.head.contains("retry-after: 1"), "{}", third.head);
    // Before its prompt is looked at.
    assert_eq!(server.post(&json!({ "prompt": "" })).refused().0, 503);
    // A client that would ask again over the same connection is told to leave it, before the head of its next request is waited for.
    let mut kept = TcpStream::connect(&server.address).unwrap();
    kept.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let begun = Instant::now();
    write!(kept, "{POST}host: test\r\ncontent-length: 15\r\n\r\n{{\"prompt\": \"a\"}}").unwrap();
    assert_eq!(answer(kept).refused().0, 503);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    drop(first);
    server.wait_for("lab_sequences_waiting", 0.0);
    assert_eq!(server.metric("lab_sequences_total{end=\"gone\"}"), 1.0);
    drop(second);
    server.wait_for("lab_sequences_running", 0.0);
    assert_eq!(server.metric("lab_sequences_total{end=\"gone\"}"), 2.0);
    assert_eq!(server.post(&json!({ "prompt": "a", "max_tokens": 3 })).status, 200);
}

#[test]
fn what_takes_too_long_is_ended() {
    let server = Server::start(&["--slots", "1", "--length", "100000", "--timeout", "1"]);
    let body = json!({ "prompt": "a", "max_tokens": 90000 });
    let (status, said) = server.post(&body).refused();
    assert_eq!(status, 504, "{said}");
    // A body that does not come.
    let mut stream = TcpStream::connect(&server.address).unwrap();
    write!(stream, "{POST}host: test\r\ncontent-length: 10\r\n\r\n{{").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut begins = [0; 12];
    stream.read_exact(&mut begins).unwrap();
    assert_eq!(&begins, b"HTTP/1.1 408");
    // Neither does a head: the connection ends.
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let begun = std::time::Instant::now();
    write!(stream, "POST /v1/completions HTTP/1.1\r\n").unwrap();
    assert!(stream.read_to_end(&mut Vec::new()).is_ok());
    // As `--timeout` has it, not as heads may take at most.
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!(server.metric("lab_sequences_total{end=\"timeout\"}"), 1.0);
}

#[test]
fn a_long_prompt_is_read_in_pieces() {
    let server = Server::start(&["--slots", "2", "--dtype", "bf16", "--prompt-piece", "32"]);
    let of = |len: usize, max_tokens: usize| {
        let prompt: Vec<usize> = (0..len).map(|n| 7 * n % 256).collect();
        json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0 })
    };
    let alone = server.post(&of(150, 4)).json();
    assert_eq!(alone["usage"]["prompt_tokens"], 150);
    // 149 tokens before the last: four pieces of 32 and one of 16, and five tokens by steps.
    assert_eq!(server.metric("lab_prompt_pieces_total"), 5.0);
    assert_eq!(server.metric("lab_prompt_piece_tokens_total"), 144.0);
    assert!(server.metric("lab_prompt_piece_seconds_max") > 0.0);
    let beside = server.send(POST, of(3, 200).to_string().as_bytes());
    server.wait_for("lab_sequences_running", 1.0);
    assert_eq!(server.post(&of(150, 4)).text(), alone["choices"][0]["text"]);
    assert_eq!(answer(beside).json()["usage"]["completion_tokens"], 200);
    assert_eq!(server.metric("lab_sequences_reading"), 0.0);
}

#[test]
fn a_server_that_is_stopped_ends_what_runs() {
    let mut server = Server::start(&["--slots", "1"]);
    // A connection that asks for nothing is nothing to wait for.
    let _idle = TcpStream::connect(&server.address).unwrap();
    let body = json!({ "prompt": "a", "max_tokens": 40, "seed": 2, "stream": true });
    let expected = server.post(&body).text();
    let running = server.send(POST, body.to_string().as_bytes());
    server.wait_for("lab_sequences_running", 1.0);
    server.signal("-TERM");
    assert_eq!(answer(running).text(), expected);
    let ended = std::time::Instant::now();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    // Less than the head of a request may take.
    assert!(ended.elapsed() < Duration::from_secs(5), "{:?}", ended.elapsed());
    assert!(TcpStream::connect(&server.address).is_err(), "nobody listens");
}

#[test]
fn a_server_that_is_stopped_waits_no_longer_than_it_may() {
    let mut server = Server::start(&["--length", "100000", "--grace", "0"]);
    let body = json!({ "prompt": "a", "max_tokens": 90000 }).to_string();
    let running = server.send(POST, body.as_bytes());
    server.wait_for("lab_sequences_running", 1.0);
    server.signal("-INT");
    assert_eq!(answer(running).refused(), (503, "the server stops".into()));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn bad_settings_end_it_with_a_message() {
    let run = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_lab-serve")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, said) = run(&["m", "--port", &port]);
    assert_eq!(code, Some(2));
    assert!(said.starts_with(&format!("lab-serve: 127.0.0.1:{port}: ")), "{said}");
    for (arguments, code, expected) in [
        (&["m", "--slots", "0"][..], 2, "lab-serve: --slots: expected 1 to 256, got 0"),
        (
            &["m", "--prompt-piece", "100"],
            2,
            "lab-serve: --prompt-piece: expected a power of two from 16 to 65536, got 100",
        ),
        (
            &["/nowhere/model.safetensors", "--port", "0"],
            2,
            "lab-serve: /nowhere/model.safetensors: ",
        ),
        (&["--port", "x", "m"], 2, "error: invalid value 'x' for '--port <PORT>'"),
    ] {
        let (found, said) = run(arguments);
        assert_eq!(found, Some(code), "{said}");
        assert!(said.starts_with(expected), "{said}");
    }
}
