//! What the book shows of the records is what the records say.

use std::collections::BTreeMap;
use std::path::Path;

use assert_cmd::Command;

fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    let read = |p: std::path::PathBuf| {
        let name = p.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&p).unwrap())
    };
    entries.map(read).collect()
}

/// `cargo run -- dev history --write book/src/generated` writes them anew.
#[test]
fn the_pages_of_the_book_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fresh = tempfile::tempdir().unwrap();
    let output = Command::cargo_bin("lab")
        .unwrap()
        .current_dir(&root)
        .args(["dev", "history", "--write"])
        .arg(fresh.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (fresh, committed) = (files(fresh.path()), files(&root.join("book/src/generated")));
    assert!(!fresh.is_empty());
    assert!(fresh.keys().eq(committed.keys()), "{:?}, {:?}", fresh.keys(), committed.keys());
    let mut pages = vec![root.join("README.md")];
    for directory in ["book/src", "book/src/generated", "stages"] {
        let entries = std::fs::read_dir(root.join(directory)).unwrap().map(|e| e.unwrap().path());
        pages.extend(entries.map(|p| if p.is_dir() { p.join("README.md") } else { p }));
    }
    pages.retain(|page| page.extension().is_some_and(|e| e == "md") && page.is_file());
    let pages: String = pages.iter().map(|page| std::fs::read_to_string(page).unwrap()).collect();
    for (name, text) in fresh {
        assert_eq!(committed[&name], text, "{name} is not what the records say");
        assert!(pages.contains(&format!("generated/{name}")), "nothing shows {name}");
    }
}

#[test]
fn the_report_that_is_shown_is_the_tools() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut lab = Command::cargo_bin("lab").unwrap();
    let output = lab.args(["dev", "corpus", "tile_without_barrier"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report = text.split("\n\n").find(|t| t.contains("race on tile")).unwrap().trim();
    let page = std::fs::read_to_string(root.join("book/src/checks.md")).unwrap();
    assert!(page.contains(report), "{report}");
}

/// What pages say of the corpus is what its record says, which [`the_pages_of_the_book_are_current`] holds.
#[test]
fn the_figures_of_the_corpus_are_the_records() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src");
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let record = page("generated/sanitizers.md");
    let cells =
        |row: &str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    // Of a row: bugs, the emulator's, compute-sanitizer's.
    let row = |name: &str| {
        let line = record.lines().find(|l| l.starts_with(&format!("| {name} |"))).unwrap();
        cells(line)
    };
    let number = |name: &str, column: usize| row(name)[column].parse::<usize>().unwrap();
    let checks = page("checks.md");
    for kind in ["memory", "init", "race", "sync"] {
        let line = checks.lines().find(|l| l.starts_with(&format!("| {kind} |"))).unwrap();
        assert_eq!(cells(line)[2..5], row(kind)[2..5], "{kind}");
    }
    let all = &row("**in all**")[2..5];
    let line = checks.lines().find(|l| l.starts_with("| **all** |")).unwrap();
    assert_eq!(cells(line)[2..5], [all[0].clone(), format!("**{}**", all[1]), all[2].clone()]);
    let right = record.split(" right kernels").next().unwrap().rsplit(' ').next().unwrap();
    let text = checks.replace('\n', " ");
    for said in [
        format!("Of {} planted bugs the emulator names the line of all", all[0]),
        format!("compute-sanitizer's four tools together name {} (", all[2]),
        format!("accuses three of {right} right kernels"),
    ] {
        assert!(text.contains(&said), "{said}");
    }
    // The asynchronous ones: bugs, right kernels, both, and compute-sanitizer's.
    let of = |files: &[&str]| -> [usize; 4] {
        let sum = |column: usize| files.iter().map(|file| number(file, column)).sum::<usize>();
        let (bugs, right) = (sum(2), sum(9));
        [bugs, right, bugs + right, sum(4)]
    };
    let flight = page("emulator.md");
    let files = ["mbarrier.cu", "bulk.cu", "wgmma.cu", "tensor_copy.cu"];
    for (name, files) in [
        ("`mbarrier.cu`, `bulk.cu`", &files[..2]),
        ("`wgmma.cu`", &files[2..3]),
        ("`tensor_copy.cu`", &files[3..]),
        ("**all**", &files[..]),
    ] {
        let line = flight.lines().find(|l| l.starts_with(&format!("| {name} |"))).unwrap();
        let [bugs, right, both, named] = of(files);
        let told = cells(&line.replace("**", ""));
        assert_eq!(told[2..4], [bugs.to_string(), right.to_string()], "{name}");
        assert_eq!(told[5], both.to_string(), "{name}: now");
        assert_eq!(told[6], format!("{named} of {bugs}"), "{name}");
    }
    let [bugs, _, both, named] = of(&files);
    let silent = files.iter().map(|file| number(file, 5)).sum::<usize>();
    let ends = files.iter().map(|file| number(file, 6)).sum::<usize>();
    let text = flight.replace('\n', " ");
    for said in [
        format!("All {both} are judged correctly now ("),
        format!(
            "name a planted line in {named} of the {bugs} bugs, and say nothing at all of {silent}."
        ),
        format!("Without a tool {ends} of them end without an error"),
    ] {
        assert!(text.contains(&said), "{said}");
    }
}

#[test]
fn a_directory_without_records_or_with_others_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let run = || {
        let output = Command::cargo_bin("lab")
            .unwrap()
            .args(["history", "--from"])
            .arg(directory.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run().0, Some(0), "no records are no error");
    std::fs::write(directory.path().join("a.json"), "{}").unwrap();
    let (code, said) = run();
    assert_eq!(code, Some(2));
    assert!(said.contains("a.json: missing field"), "{said}");
    std::fs::remove_dir_all(directory.path()).unwrap();
    assert_eq!(run().0, Some(2));
}

/// The corpus's records are read only for its pages.
#[test]
fn a_record_of_the_corpus_that_is_missing_or_another_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (corpus, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = || {
        let mut lab = Command::cargo_bin("lab").unwrap();
        lab.current_dir(&root).args(["dev", "history", "--corpus"]).arg(corpus.path());
        let output = lab.arg("--write").arg(pages.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("sanitizers.json: No such file"), "{said}");
    std::fs::write(corpus.path().join("sanitizers.json"), "{}").unwrap();
    let (code, said) = run();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("sanitizers.json: missing field"), "{said}");
}

/// `cargo run -- dev compile matmul --write book/src/compiled` writes it anew. Another version
/// of the compiler may well say something else. A part of the rows is compiled, another one for each page: with
/// `LAB_ALL_CHECKS` all are.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_page_of_registers_is_current() {
    const PARTS: usize = 6;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let committed = std::fs::read_to_string(root.join("book/src/compiled/matmul.md")).unwrap();
    let part = 1 + committed.bytes().map(usize::from).sum::<usize>() % PARTS;
    let parts = match std::env::var_os("LAB_ALL_CHECKS") {
        Some(_) => "1/1".to_owned(),
        None => format!("{part}/{PARTS}"),
    };
    let mut lab = Command::cargo_bin("lab").unwrap();
    let output = lab.args(["--json", "compile", "matmul", "--part", &parts]).output().unwrap();
    if output.status.code() == Some(4) && std::env::var_os("LAB_REQUIRE_NVRTC").is_none() {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let compiled: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let compiler = format!("As NVRTC {} compiles", compiled["nvrtc"].as_str().unwrap());
    if !committed.starts_with(&compiler) {
        println!("skipped: here is {compiler}, the page is of {:.30}", committed);
        return;
    }
    let rows = compiled["kernels"].as_array().unwrap();
    assert!(rows.len() >= matmul::STAGE.kernels.len());
    for row in rows {
        let text = |name: &str| row[name].as_str().unwrap();
        let number = |name: &str| row[name].as_u64().unwrap();
        let line = format!(
            "| {} | `{}` | {} | {} | {} | {} / {} |\n",
            text("file").rsplit('/').next().unwrap(),
            text("kernel"),
            text("arch"),
            number("registers"),
            number("shared"),
            number("spill_stores"),
            number("spill_loads"),
        );
        assert!(committed.contains(&line), "the page has no {line}");
    }
    let kernels: usize = matmul::STAGE.kernels.iter().map(|k| k.instantiations.len()).sum();
    // Each row of the table, and no other place, begins so.
    assert_eq!(committed.matches(".cu | `").count(), kernels, "rows of the page of registers");
}

/// Two commits of which there are records of the same family.
#[test]
fn what_moved_from_one_record_to_another() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let said = |arguments: &[&str]| {
        let mut lab = Command::cargo_bin("lab").unwrap();
        lab.current_dir(&root).args(["--json", "history", "--moved"]).args(arguments);
        let output = lab.output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let moved = said(&["ba6def8ccbda", "0ca5beb8"]);
    let of = |line: &&serde_json::Value| {
        line["version"] == "mlp_fused:v1_tensor"
            && line["shape"] == "B=1024,E=256,H=512,N=4,V=10000"
    };
    let line = moved["moved"].as_array().unwrap().iter().find(of).unwrap();
    assert!(line["percent"].as_f64().unwrap() < -30.0, "{line}");
    assert_eq!(said(&["0ca5beb8", "0ca5beb8"])["moved"], serde_json::json!([]));
    let error = said(&["0ca5beb8", "no-such-commit"])["error"].to_string();
    assert!(
        error.contains("--moved: expected the commit of a record, one of ae1046f5ea7d, "),
        "{error}"
    );
}
