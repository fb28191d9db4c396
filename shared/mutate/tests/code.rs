//! A change that the compiler makes the same code of is no change.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lab_device::{KernelFile, KernelSource, Object};
use lab_mutate::{Bugs, Code, Codes, How, Judge, Sources, Verdict, Workspace};

const HEADER: &str = "__device__ int used(int i) { return i < 0 ? 0 : 2 * i; }
template <int N> __device__ int unused(int i) { return i < N ? 0 : 3 * i; }
";
const KERNEL: &str = "#include \"lab/twice.cuh\"
__global__ void f(int* x, int n) {
    int own[2] = {n, 1};
    if (0 < n) x[0] = used(own[x[1]]);
}
";

static SOURCE: KernelSource = {
    let file = KernelFile {
        crate_name: "demo",
        name: "f",
        file: "kernels/f.cu",
        place: "stages/demo/kernels/f.cu",
        source: KERNEL,
        headers: &[("lab/twice.cuh", HEADER)],
        instantiations: &["f"],
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
    let emulator = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("emulator");
    std::os::unix::fs::symlink(emulator, directory.path().join("shared/emulator")).unwrap();
    let workspace = Workspace::find(directory.path()).unwrap();
    let sources = Sources::read(&workspace, "stages/demo", &[&SOURCE]).unwrap();
    (directory, sources)
}

/// What becomes of a change of the header, where the tests always end in this way.
fn verdict(sources: &Sources, tests: &str, codes: &Codes, change: [&str; 2]) -> Verdict {
    let judge = Judge {
        program: tests.into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        limit: Duration::from_secs(60),
        limits: BTreeMap::new(),
        one_by_one: false,
        codes: codes.clone(),
    };
    let [find, replace] = change;
    let bug = format!(
        "[[bug]]\nname = 'b'\nfile = 'shared/cuda/lab/twice.cuh'\nfind = '{find}'\n\
         replace = '''{replace}'''\nsymptom = 's'\ncheck = 'result'\nchapter = 'c'\n"
    );
    let bugs = Bugs::parse("bugs.toml", &bug, sources).unwrap();
    judge.judge(sources, &bugs.entries[0].1, None).unwrap()
}

#[test]
fn what_changes_no_code_is_told_without_a_run() {
    let (_directory, sources) = tree();
    let code = Code::unbroken(&sources, &sources.kernels[0]).unwrap();
    assert_eq!(code, Code::unbroken(&sources, &sources.kernels[0]).unwrap(), "nor do directories");
    let codes = Codes::from([(SOURCE.file.to_owned(), code)]);
    let caught = Verdict::Caught(How::Result, String::new());
    // In a template that nobody instantiates, with all lines behind it moved; and of a value.
    for same in [["i < N", "\n\ni <= N"], ["2 * i", "i * 2"]] {
        assert_eq!(verdict(&sources, "false", &codes, same), Verdict::SameCode, "{same:?}");
        assert_eq!(verdict(&sources, "false", &Codes::new(), same), caught, "{same:?}");
    }
    // i <= 0 gives the same results, by other code; 3 differs in a constant alone.
    for other in [["i < 0", "i <= 0"], ["2 * i", "3 * i"], ["0 : 2", "1 : 2"]] {
        assert_eq!(verdict(&sources, "false", &codes, other), caught, "{other:?}");
        assert_eq!(verdict(&sources, "true", &codes, other), Verdict::Survived, "{other:?}");
    }
    let refused = verdict(&sources, "true", &codes, ["2 * i", "2 * j"]);
    assert!(matches!(refused, Verdict::Rejected(said) if said.contains("twice.cuh:1:")), "a place");
}
