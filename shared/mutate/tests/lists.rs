//! bugs.toml, exercises.toml and equivalent.toml: what is refused, and that entries that fit nothing are noticed.
#![allow(missing_docs)]

use std::path::Path;

use lab_device::{KernelFile, KernelSource, Object};
use lab_mutate::{Bugs, Catch, Equivalents, Error, Exercise, Mutant, Sources, Workspace, mutants};

const HEADER: &str = "__device__ int twice(int i) { return i < 0 ? 0 : 2 * i; }\n";
const KERNEL: &str = "#include \"lab/twice.cuh\"
__global__ void f(int* x, int n) { if (0 < n) x[0] = twice(n); }
__global__ void g(int* x, int n) { if (0 < n) x[1] = twice(n); }
";

static SOURCE: KernelSource = {
    let file = KernelFile {
        crate_name: "demo",
        name: "f",
        file: "kernels/f.cu",
        place: "stages/demo/kernels/f.cu",
        source: KERNEL,
        headers: &[("lab/twice.cuh", HEADER), ("lab/other.cuh", "")],
        instantiations: &["f", "g"],
        templates: &[],
        globals: &[],
        least_arch: "",
        spills: 0,
        plain: Object::embedded(&[]),
        checked: Object::embedded(&[]),
        kept_in: "",
    };
    // SAFETY: its objects are empty: nothing is loaded.
    unsafe { KernelSource::new(file) }
};

fn tree() -> (tempfile::TempDir, Sources) {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("Cargo.toml", "");
    write("shared/cuda/lab/twice.cuh", HEADER);
    write("stages/demo/kernels/f.cu", KERNEL);
    let deep = directory.path().join("stages/demo/kernels");
    let workspace = Workspace::find(&deep).unwrap();
    let sources = Sources::read(&workspace, "stages/demo", &[&SOURCE]).unwrap();
    (directory, sources)
}

fn bug(name: &str, file: &str, find: &str, replace: &str) -> String {
    format!(
        "[[bug]]\nname = '{name}'\nfile = '{file}'\nfind = '{find}'\nreplace = '{replace}'\n\
         symptom = 's'\ncheck = 'result'\nchapter = 'c'\n"
    )
}

#[test]
fn bugs_fit_the_sources() {
    let (_directory, sources) = tree();
    let text = bug("one", "kernels/f.cu", "x[0] =", "x[1] =")
        + &bug("two", "shared/cuda/lab/twice.cuh", "2 * i", "i");
    let bugs = Bugs::parse("bugs.toml", &text, &sources).unwrap();
    let (bug, edit) = &bugs.entries[1];
    assert_eq!((bug.check, edit.file.as_str()), (Catch::Result, "shared/cuda/lab/twice.cuh"));
    assert!(edit.apply(HEADER).unwrap().contains("0 : i;"));
    assert!(Bugs::read(&sources).unwrap().entries.is_empty(), "no file, no bugs");
}

#[test]
fn bugs_that_do_not_fit_are_refused() {
    let (_directory, sources) = tree();
    let refused = |text: &str, said: &[&str]| {
        let error = Bugs::parse("stages/demo/bugs.toml", text, &sources).unwrap_err();
        let message = error.to_string();
        for part in said.iter().chain(&["stages/demo/bugs.toml"]) {
            assert!(message.contains(part), "'{part}' in: {message}");
        }
        error
    };
    let f = "kernels/f.cu";
    refused(
        &bug("a", f, "y[0]", "x"),
        &["entry 'a': find: expected text that occurs once", "got 0 times"],
    );
    refused(&bug("a", f, "0 < n", "x"), &["got 2 times"]);
    refused(&bug("a", f, "", "x"), &["got 0 times"]);
    refused(&bug("a", f, "x[0]", "x[0]"), &["replace: expected another text"]);
    refused(&bug("a", "kernels/g.cu", "x", "y"), &["file: expected", "stages/demo/kernels/g.cu"]);
    // A header that nothing includes.
    refused(&bug("a", "shared/cuda/lab/other.cuh", "x", "y"), &["file: expected"]);
    let twice = bug("a", f, "x[0]", "x[1]").repeat(2);
    refused(&twice, &["entry 'a': name: expected each name once"]);
    let entry = bug("a", f, "x[0]", "x[1]");
    refused(&entry.replace("'result'", "'luck'"), &["luck", "race"]);
    refused(&entry.replace("symptom", "sympton"), &["sympton"]);
    let error = refused("[[bug", &[]);
    assert!(matches!(error, Error::Toml { .. }));
}

#[test]
fn equivalents_explain_and_do_not_rot() {
    let (_directory, sources) = tree();
    let file = "stages/demo/kernels/f.cu";
    let all = mutants(file, sources.text(file).unwrap()).unwrap();
    let entry = "[[equivalent]]\nfile = 'kernels/f.cu'\nfunction = 'g'\nreason = 'so'\n\
        before = '__global__ void g(int* x, int n) {  if (0 < n) x[1] = twice(n); }'\n\
        after = '__global__ void g(int* x, int n) { if (0 <= n) x[1] = twice(n); }'\n";
    let read = |text: &str| Equivalents::parse("equivalent.toml", text, "stages/demo").unwrap();
    let list = read(entry);
    list.check(&all, &sources).unwrap();
    let explained: Vec<&Mutant> = all.iter().filter(|m| list.reason(m, KERNEL).is_some()).collect();
    let [only] = explained[..] else { panic!("{explained:?}") };
    assert_eq!((only.function.as_str(), only.change().as_str()), ("g", "0 < n → 0 <= n"));
    for stale in
        [entry.replace("x[1]", "x[7]"), entry.replace("'g'", "'f'"), entry.replace("f.cu", "h.cu")]
    {
        let message = read(&stale).check(&all, &sources).unwrap_err().to_string();
        assert!(
            message.starts_with("equivalent.toml: entry '1': before, after: expected"),
            "{message}"
        );
    }
    let bad = Equivalents::parse("equivalent.toml", "[[equivalent]]\nfile = 'x'", "stages/demo");
    assert!(bad.unwrap_err().to_string().contains("missing field"));
}

#[test]
fn sources_must_be_those_of_the_binary() {
    let (directory, sources) = tree();
    let path = directory.path().join("stages/demo/kernels/f.cu");
    std::fs::write(&path, "other").unwrap();
    let message =
        Sources::read(&sources.workspace, "stages/demo", &[&SOURCE]).unwrap_err().to_string();
    assert!(message.contains("stages/demo/kernels/f.cu: expected the text"), "{message}");
    std::fs::remove_file(&path).unwrap();
    let message =
        Sources::read(&sources.workspace, "stages/demo", &[&SOURCE]).unwrap_err().to_string();
    assert!(message.contains("No such file"), "{message}");
    let message = Workspace::find(Path::new("/")).unwrap_err().to_string();
    assert!(message.contains("current directory: expected one inside"), "{message}");
}

#[test]
fn a_change_reaches_the_files_that_include_it() {
    let (_directory, sources) = tree();
    assert_eq!(sources.reached("shared/cuda/lab/twice.cuh", Some("twice")).len(), 1);
    assert_eq!(sources.reached("shared/cuda/lab/other.cuh", None).len(), 0);
    assert_eq!(sources.files().count(), 2);
}

fn exercise(file: &str, find: &str, more: &str) -> String {
    format!(
        "[[exercise]]\nname = 'e'\nfile = '{file}'\ntask = 't'\nhint = 'h'\n{more}\
         [[exercise.cut]]\nfind = '{find}'\nreplace = ''\n"
    )
}

#[test]
fn an_exercise_leaves_a_gap_that_the_kernel_itself_fills() {
    let (_directory, sources) = tree();
    let text = exercise("kernels/f.cu", "x[1] = twice(n);", "");
    let all = Exercise::parse("exercises.toml", &text, &sources).unwrap();
    let given = all[0].start(&sources);
    assert_eq!(given, KERNEL.replace("x[1] = twice(n);", ""));
    let edit = all[0].solved_by(&sources, &given);
    assert_eq!(edit.apply(KERNEL).as_deref(), Some(given.as_str()));
    assert!(Exercise::read(&sources).unwrap().is_empty(), "no file, no exercises");

    // The book's marks of what it includes are nothing to a reader of the file.
    let marked = exercise(
        "kernels/f.cu",
        "__global__ void g(int* x, int n) { if (0 < n) x[1] = twice(n); }",
        "",
    )
    .replace("replace = ''", "replace = '// ANCHOR: gap'");
    let marked = Exercise::parse("exercises.toml", &marked, &sources).unwrap();
    assert_eq!(marked[0].start(&sources).lines().count(), 2);
}

#[test]
fn exercises_that_fit_nothing_are_refused() {
    let (_directory, sources) = tree();
    let refused = |text: &str, parts: &[&str]| {
        let error = Exercise::parse("exercises.toml", text, &sources).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "'{part}' in: {error}"));
    };
    let one = exercise("kernels/f.cu", "x[1]", "");
    refused(&(one.clone() + &one), &["'e'", "name: expected each name once"]);
    refused(&exercise("kernels/g.cu", "x[1]", ""), &["file: expected kernels/f.cu, got kernels/g"]);
    refused(&exercise("kernels/f.cu", "if (0 < n)", ""), &["find: expected", "2 times"]);
    refused(&exercise("kernels/f.cu", "", ""), &["find: expected", "0 times"]);
    let limit = "limit = [{ operation = 'shared load', ratio = 1.0 }]\n";
    refused(&exercise("kernels/f.cu", "x[1]", limit), &["version: expected one"]);
    let neither = "version = 'f'\nlimit = [{ operation = 'shared load' }]\n";
    refused(&exercise("kernels/f.cu", "x[1]", neither), &["limit: expected a ratio or a cost"]);
    refused("[[exercise]]\nname = 1", &["exercises.toml"]);
}
