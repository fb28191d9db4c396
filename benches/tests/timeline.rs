//! `benches/timeline/draw.py`, on a trace that is made up.
#![allow(missing_docs)]

use std::process::Command;

use serde_json::{Value, json};

const MS: u64 = 1_000_000;

/// Four steps of ten kernels, of 1 ms each. In the last whole one a collective of half a millisecond lies beside the fifth, which
/// takes half a millisecond more; another follows the last kernel.
fn trace() -> Vec<Value> {
    let mut all = Vec::new();
    let kernel = |name: &str, stream: u32, start: u64, end: u64| json!({"device": 0, "stream": stream, "blocks": 132, "threads": 384, "start": start, "end": end, "name": name});
    let mut now = 5 * MS;
    for step in 0..4 {
        for n in 0..10 {
            let name = if n == 0 { "_Z13gather_tokensPKi" } else { "_Z7productPKf" };
            let longer = if step == 2 && n == 4 { MS / 2 } else { 0 };
            all.push(kernel(name, 7, now, now + MS + longer));
            if longer > 0 {
                all.push(kernel("_Z23ncclDevKernel_AllReduce", 9, now, now + MS / 2));
            }
            now += MS + longer;
        }
        if step == 2 {
            all.push(kernel("_Z23ncclDevKernel_AllReduce", 9, now, now + MS));
            now += MS;
        }
    }
    all.push(json!({"device": 1, "stream": 7, "blocks": 1, "threads": 1, "start": 0, "end": 1, "name": "other"}));
    all
}

fn draw(trace: &[Value], arguments: &[&str]) -> (bool, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["step.json", "step.svg"].map(|name| directory.path().join(name));
    std::fs::write(&from, serde_json::to_string(trace).unwrap()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/timeline/draw.py");
    let mut command = Command::new("python3");
    let output =
        command.arg(script).arg(&from).arg("--out").arg(&to).args(arguments).output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let svg = std::fs::read_to_string(&to).unwrap_or_default();
    (output.status.success(), String::from_utf8(said).unwrap(), svg)
}

#[test]
fn a_step_is_drawn_with_what_its_collectives_cost() {
    let (succeeded, said, svg) = draw(&trace(), &[]);
    assert!(succeeded, "{said}");
    let figures: Value = serde_json::from_str(&said).unwrap();
    let expected = json!({
        "step_ms": 11.5, "kernels_ms": 10.5, "collectives": 2, "collectives_ms": 1.5, "alone_ms": 1.0, "beside": 1,
        "longer_ms": 0.5, "without_a_time_alone": 0
    });
    assert_eq!(figures, expected);
    for style in ["box", "slow", "hot"] {
        assert_eq!(svg.matches(&format!("<path class=\"{style}\"")).count(), 1, "{svg}");
    }
    let (_, _, half) = draw(&trace(), &["--from", "0.6"]);
    assert!(!half.contains("<path class=\"slow\"") && half.contains("<path class=\"hot\""));
}

/// In every step the third kernel takes twice as long as the others of its grid, and half a millisecond more beside a collective: only a
/// trace without collectives tells how long it takes alone.
#[test]
fn another_trace_says_how_long_kernels_take_alone() {
    let steps = |collective: bool| {
        let (mut now, mut all) = (0, Vec::new());
        for n in (0..4).flat_map(|_| 0..10) {
            let name = if n == 0 { "_Z13gather_tokensPKi" } else { "_Z7productPKf" };
            let beside = collective && n == 2;
            let takes = if n == 2 { 2 * MS } else { MS } + if beside { MS / 2 } else { 0 };
            let end = now + takes;
            all.push(json!({"device": 0, "stream": 7, "blocks": 132, "threads": 384, "start": now, "end": end, "name": name}));
            if beside {
                all.push(json!({"device": 0, "stream": 9, "blocks": 24, "threads": 544, "start": now, "end": now + MS,
                    "name": "_Z23ncclDevKernel_AllReduce"}));
            }
            now = end;
        }
        all
    };
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("alone.json");
    std::fs::write(&alone, serde_json::to_string(&steps(false)).unwrap()).unwrap();
    let longer = |arguments: &[&str]| {
        let (succeeded, said, _) = draw(&steps(true), arguments);
        assert!(succeeded, "{said}");
        let figures: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&figures["beside"], &figures["without_a_time_alone"]), (&json!(1), &json!(0)));
        figures["longer_ms"].as_f64().unwrap()
    };
    assert_eq!(longer(&["--alone", alone.to_str().unwrap()]), 0.5);
    assert_eq!(longer(&[]), 1.5);
}

#[test]
fn a_trace_without_steps_is_refused() {
    let (succeeded, said, _) = draw(&trace()[..4], &[]);
    assert!(!succeeded);
    assert_eq!(said.trim(), "kernels named gather_tokens: expected at least 3, one a step, got 1");
}
