//! The book's moving pictures are what the emulator does.

use std::path::Path;

use assert_cmd::Command;

/// `cargo run -- dev trace --write book/src/traces` writes them anew.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_moving_pictures_are_current() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src/traces");
    let fresh = tempfile::tempdir().unwrap();
    let mut lab = Command::cargo_bin("lab").unwrap();
    // Whatever order a suite is run in: each picture has one of its own.
    lab.env("LAB_EMULATOR_ORDER", "random:1").args(["dev", "trace", "--write"]).arg(fresh.path());
    let output = lab.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(fresh.path()), names(&committed));
    for name in names(&committed) {
        let [now, then] =
            [fresh.path(), &committed].map(|d| std::fs::read_to_string(d.join(&name)).unwrap());
        assert!(
            now == then,
            "{name:?} is not what the emulator does: lab dev trace --write book/src/traces"
        );
        assert!(
            !now.trim_end().contains('\n'),
            "{name:?}: a line's end could end it within Markdown"
        );
    }
}

/// Each step of a stepper is in a line that its listing shows.
#[test]
fn a_listing_has_the_lines_of_all_steps() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src/traces");
    let mut steps = 0;
    for page in std::fs::read_dir(pages).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        for data in text.split("<script type=\"application/json\">").skip(1) {
            let data = data.split("</script>").next().unwrap();
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            let runs = data["runs"].as_array().cloned().unwrap_or_else(|| vec![data]);
            for run in &runs {
                let code = run["code"].as_array().unwrap();
                for step in run["steps"].as_array().unwrap() {
                    let shown = code.iter().any(|line| line[0] == step["line"]);
                    assert!(shown, "{}: no line {} in its listing", page.display(), step["line"]);
                    steps += 1;
                }
            }
        }
    }
    assert!(steps > 100, "{steps} steps");
}
