//! `lab profile`: figures that can be derived by hand, a page that holds what it should, and what
//! it refuses.

use std::collections::BTreeSet;

use assert_cmd::Command;
use lab_harness::{Options, Version};
use rayon::prelude::*;
use serde_json::Value;

fn lab(arguments: &[&str]) -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").env_remove("LAB_EMULATOR_MODE").arg("profile").args(arguments);
    lab
}

#[track_caller]
fn stdout(arguments: &[&str]) -> String {
    let output = lab(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn profiled(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[arguments, &["--json"]].concat())).unwrap()
}

/// Requests, cost, ideal, worst conflict of the whole run.
#[track_caller]
fn total(profile: &Value, operation: &str) -> [u64; 4] {
    let all = profile["totals"].as_array().unwrap();
    let one = all.iter().find(|t| t["operation"] == operation).expect(operation);
    ["requests", "cost", "ideal", "degree"].map(|n| one[n].as_u64().unwrap())
}

const SQUARE: [&str; 2] = ["--shape", "R=64,C=64"];

/// 64 x 64 floats are four tiles of 32 x 32. A block of eight warps takes each, and every warp
/// comes by four times: 4 * 8 * 4 = 128 requests. A row of 32 floats is 4 sectors. Down a column
/// each lane is a row of 256 bytes further: 32 sectors.
#[test]
fn the_sectors_of_a_transpose() {
    let profile = profiled(&["playg:transpose", SQUARE[0], SQUARE[1]]);
    assert_eq!(profile["passed"], true);
    assert!(profile["note"].as_str().unwrap().starts_with("A model, not a measurement"));
    assert_eq!(total(&profile, "global load"), [128, 128 * 4, 128 * 4, 0]);
    assert_eq!(total(&profile, "global store"), [128, 128 * 32, 128 * 4, 0]);
    assert_eq!(profile["totals"].as_array().unwrap().len(), 2);

    let lines = profile["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 2);
    let store = lines.iter().find(|l| l["operation"] == "global store").unwrap();
    assert_eq!(store["file"], "stages/playg/kernels/transpose.cu");
    assert_eq!(store["source"], "if (r < rows) out[c * 1ll * rows + r] = x[r * columns + c];");
    assert_eq!((&store["ratio"], &store["worst"]), (&8.0.into(), &true.into()));
    let lanes = store["sample"]["lanes"].as_array().unwrap();
    let lanes: Vec<u64> = lanes.iter().map(|l| l.as_u64().unwrap()).collect();
    assert_eq!(lanes.len(), 32);
    assert!(lanes.windows(2).all(|l| l[1] - l[0] == 256), "{lanes:?}");
}

/// A column of a tile of 32 floats a row is one bank; one float more a row, and it is all banks.
#[test]
fn the_banks_of_a_tile() {
    let tiled = profiled(&["playg:transpose_tiled", SQUARE[0], SQUARE[1]]);
    let padded = profiled(&["playg:transpose_padded", SQUARE[0], SQUARE[1]]);
    for profile in [&tiled, &padded] {
        assert_eq!(total(profile, "global load"), [128, 512, 512, 0]);
        assert_eq!(total(profile, "global store"), [128, 512, 512, 0]);
        assert_eq!(total(profile, "shared store"), [128, 128, 128, 1]);
        assert_eq!(total(profile, "barrier")[0], 4 * 8, "every warp of every block once");
    }
    assert_eq!(total(&tiled, "shared load"), [128, 128 * 32, 128, 32]);
    assert_eq!(total(&padded, "shared load"), [128, 128, 128, 1]);
}

#[test]
fn the_text_says_the_same() {
    let text = stdout(&["playg:transpose_tiled", SQUARE[0], SQUARE[1]]);
    for part in [
        "playg:transpose_tiled C=64,R=64 f32 on CPU emulator",
        "A model, not a measurement",
        "As declared: no arithmetic, and",
        "stages/playg/kernels/transpose.cu",
        "32-way conflict ◀",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    ] {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
    let row = text.lines().find(|l| l.starts_with("│ shared load")).unwrap();
    let cells: Vec<&str> = row.split(['│', '┆']).map(str::trim).collect();
    assert_eq!(
        cells[1..10],
        ["shared load", "128", "4,096", "wavefronts", "128", "32.00", "32-way", "16,384", "128.0"]
    );
    assert_eq!(text.matches('◀').count(), 2, "in the heading, and at one line");
    let text = stdout(&["playg:transpose_padded", SQUARE[0], SQUARE[1]]);
    assert!(!text.contains("-way"), "{text}");
}

/// The first version of each stage.
#[test]
fn the_page_stands_by_itself() {
    lab_registry::STAGES.iter().for_each(|stage| page_stands_by_itself(stage.versions[0]));
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_page_of_each_other_version_stands_by_itself() {
    let others = lab_registry::STAGES.iter().flat_map(|stage| &stage.versions[1..]);
    let others: Vec<&dyn Version> = others.copied().collect();
    others.into_par_iter().with_max_len(1).for_each(page_stands_by_itself);
}

/// It is well-formed, needs nothing from elsewhere, and has a picture for each line that was counted.
fn page_stands_by_itself(version: &dyn Version) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let info = version.info();
    // The checks, without which nothing is counted, end what is wrong on purpose.
    if version.expected(&Options::default()).mistake().is_some() {
        let refused = lab(&[&info.full_name()]).output().unwrap();
        assert_eq!(refused.status.code(), Some(3));
        return;
    }
    let (name, dtype) = (info.full_name(), info.dtypes[0].name());
    let profile = profiled(&[&name, "--dtype", dtype, "--html", path.to_str().unwrap()]);
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(!page.contains("http:") && !page.contains("https:"), "{name}");
    assert!(!page.contains("<script"), "{name}");
    assert!(page.contains("A model, not a measurement"), "{name}");
    let options =
        roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    let page = roxmltree::Document::parse_with_options(&page, options)
        .unwrap_or_else(|e| panic!("{name} {dtype}: {e}"));
    let pictures =
        page.descendants().filter(|n| n.has_tag_name("svg") && n.attribute("role") == Some("img"));
    let pictures: Vec<_> = pictures.collect();
    for picture in &pictures {
        let words = picture.children().find(|n| n.has_tag_name("desc")).unwrap();
        assert!(words.text().unwrap().contains("ask"), "{words:?}");
    }
    let lines = profile["lines"].as_array().unwrap();
    let counted = lines.iter().filter(|l| !l["sample"].is_null()).count();
    // Of bulk copies, which no lanes make, there is no picture.
    let bulk =
        |l: &&Value| l["operation"].as_str().is_some_and(|operation| operation.starts_with("bulk"));
    assert!(counted + lines.iter().filter(bulk).count() >= 2, "{name} loads and stores");
    assert_eq!(pictures.len(), counted, "{name} {dtype}");
    // The places are in files whose text is at hand.
    assert!(lines.iter().all(|l| l["source"].is_string()), "{name} {dtype}: {lines:?}");
}

/// The column of words under a bank is as high as the conflict.
#[test]
fn the_picture_of_a_conflict() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let conflicts = |version: &str| {
        stdout(&[version, SQUARE[0], SQUARE[1], "--html", path.to_str().unwrap()]);
        let page = std::fs::read_to_string(&path).unwrap();
        (page.matches("<rect class=\"conflict\"").count(), page.contains("open=\"\""))
    };
    assert_eq!(conflicts("playg:transpose_tiled"), (31, true));
    assert_eq!(conflicts("playg:transpose_padded"), (0, false));
}

#[test]
fn the_same_run_gives_the_same_profile() {
    let once = || stdout(&["playg:softmax", "--json"]);
    assert_eq!(once(), once());
}

#[test]
fn what_is_refused() {
    let refused = |arguments: &[&str], code: i32, said: &str| {
        let output = lab(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(said) && !text.contains("panicked"), "'{said}' in: {text}");
    };
    refused(&["playg"], 2, "version: expected playg:");
    refused(&["playg:nothing"], 2, "version of playg: expected");
    refused(&["playg:sum", "--shape", "M=1"], 2, "--shape of playg:sum: expected N, got 'M'");
    refused(&["playg:sum", "--dtype", "f8"], 2, "--dtype: expected one of");
    refused(&["playg:sum", "--set", "a=1"], 2, "expected no option, got 'a'");
    refused(&["playg:sum", "--html", "/proc/x.html"], 2, "/proc/x.html");
    refused(&["playg:sum", "--html", "/"], 2, "expected a file to write, got a directory");
    for device in ["cuda", "cuda:3"] {
        let said = format!("--device of profile: expected emulator, got '{device}'");
        refused(&["playg:sum", "--device", device], 2, &said);
        refused(&["playg:sum", "--device", device], 2, "ncu --set full lab run playg:sum");
    }
    refused(&["playg:sum", "--device", "abacus"], 2, "got 'abacus'");
}

#[test]
fn compare_counts_on_the_emulator() {
    let compare = |more: &[&str]| {
        let mut lab = Command::cargo_bin("lab").unwrap();
        lab.env_remove("LAB_EMULATOR_MODE").args(["compare", "transpose", "--device", "emulator"]);
        let output = lab.args(SQUARE).args(more).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let said: Value = serde_json::from_str(&compare(&["--json"])).unwrap();
    let ratios = |memory: &str| -> Vec<f64> {
        let all = said["versions"].as_array().unwrap();
        all.iter().filter_map(|v| v[memory]["ratio"].as_f64()).collect()
    };
    assert_eq!(ratios("global"), [4.5, 1.0, 1.0], "(512 + 4096) / 1024");
    assert_eq!(ratios("shared"), [16.5, 1.0], "(128 + 4096) / 256");
    let text = compare(&[]);
    assert!(text.contains("4,608, 4.50×") && text.contains("4,224, 16.50×"), "{text}");
}

/// The words of a text, without the lines and signs between cells, and without the headings of tables.
fn words(text: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_heading = |index: usize| lines.get(index + 1).is_some_and(|l| l.starts_with('╞'));
    let cells = lines.iter().enumerate().filter(|(index, _)| !is_heading(*index));
    let words = cells.flat_map(|(_, line)| {
        line.split(|c: char| c.is_whitespace() || "│┆─┌┐└┘╞╡═╪┬┴".contains(c))
    });
    words.map(|w| w.trim_end_matches([';', ':']).to_owned()).collect()
}

/// Names and numbers are to be copied and read.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn no_table_breaks_a_word_at_a_narrow_terminal() {
    let said = |columns: &str, arguments: &[&str]| {
        let mut lab = Command::cargo_bin("lab").unwrap();
        lab.env("COLUMNS", columns).env("LAB_DEVICE", "emulator").args(arguments);
        let output = lab.output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    for arguments in [
        &["list"][..],
        &["list", "lstm_fused"],
        &["bug"],
        &["profile", "matmul:v2_tiled"],
        &["dev", "mutate", "playg", "--operator", "barrier", "--file", "transpose.cu", "--list"],
        // Needs NVRTC.
        &["compile", "matmul:v2_tiled", "--resources"],
    ] {
        let Some(wide) = said("2000", arguments) else {
            assert_eq!(arguments[0], "compile");
            continue;
        };
        for columns in ["80", "120"] {
            let narrow = said(columns, arguments).unwrap();
            let broken: Vec<_> = words(&wide).difference(&words(&narrow)).cloned().collect();
            // Times differ from run to run.
            let broken: Vec<_> = broken.iter().filter(|w| w.parse::<f64>().is_err()).collect();
            assert!(broken.is_empty(), "{arguments:?} at {columns}: {broken:?} in\n{narrow}");
        }
    }
}
