//! A kernel's object that is not embedded is compiled when it is first used, and kept.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab_device::emulator::cache_directory;
use lab_device::{Build, Device, Error, KernelFile, KernelSource, Launch, Mode, Object};

const TEXT: &str = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n";

/// A kernel of this text, whose objects have these names in `target/kernels` of a directory.
fn kernel(
    directory: &Path,
    text: &'static str,
    [plain, checked]: [&'static str; 2],
) -> &'static KernelSource {
    let target = directory.join("target");
    fs::create_dir_all(&target).unwrap();
    let file = KernelFile {
        crate_name: "demo",
        name: "twice",
        file: "kernels/twice.cu",
        place: "stages/demo/kernels/twice.cu",
        source: text,
        headers: &[],
        instantiations: &["twice"],
        templates: &[],
        globals: &[],
        least_arch: "",
        spills: 0,
        plain: Object::at_first_use(plain),
        checked: Object::at_first_use(checked),
        kept_in: target.join("kernels").display().to_string().leak(),
    };
    // SAFETY: a test's text, which is compiled when it is first used.
    Box::leak(Box::new(unsafe { KernelSource::new(file) }))
}

fn files(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = listed.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with("headers."));
    names.sort();
    names
}

#[test]
fn it_is_compiled_once_and_kept() {
    const PLAIN: &str = "demo-twice.so.00000000000000a1";
    const CHECKED: &str = "demo-twice.checked.so.00000000000000a1";
    let directory = tempfile::tempdir().unwrap();
    let source = kernel(directory.path(), TEXT, [PLAIN, CHECKED]);
    let kept = directory.path().join("target/kernels");
    assert_eq!(source.kept(Build::Checked), None);
    fs::create_dir_all(&kept).unwrap();
    // Of an earlier text.
    fs::write(kept.join("demo-twice.checked.so.00000000000000a0"), "old").unwrap();
    fs::write(kept.join("demo-twice.checked.so.00000000000000a0.seconds"), "old").unwrap();
    let device = Device::emulator_in(Mode::Checked).unwrap();
    // Both at once, by several threads.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| device.compile_missing(&[source]).unwrap());
            scope.spawn(|| Device::emulator().unwrap().compile_missing(&[source]).unwrap());
        }
    });
    assert_eq!(source.kept(Build::Checked), Some(kept.join(CHECKED)));
    let both = [CHECKED, PLAIN].map(|name| [name.to_owned(), format!("{name}.seconds")]);
    assert_eq!(files(&kept), both.concat());
    let of_this_program = fs::read_to_string(kept.join(format!("{CHECKED}.seconds"))).unwrap();
    assert!(of_this_program.contains(" first_use-"), "{of_this_program}");
    assert_eq!(fs::read(kept.join(CHECKED)).unwrap(), source.object(Build::Checked).unwrap());

    let mut x = device.upload(&[1f32, 2.0]).unwrap();
    let twice = device.kernel(source, "twice").unwrap();
    // SAFETY: two elements.
    unsafe { twice.launch(Launch::new(1, 2), &[("x", x.arg_mut())]) }.unwrap();
    assert_eq!(x.download().unwrap(), [2.0, 4.0]);
    // SAFETY: the checks stop the third thread before it leaves x.
    let beyond = unsafe { twice.launch(Launch::new(1, 3), &[("x", x.arg_mut())]) }.unwrap_err();
    assert!(beyond.to_string().contains("stages/demo/kernels/twice.cu:1:"), "{beyond}");
}

#[test]
fn what_is_kept_is_not_compiled() {
    const CHECKED: &str = "demo-twice.checked.so.00000000000000b1";
    let directory = tempfile::tempdir().unwrap();
    let source = kernel(directory.path(), TEXT, ["", CHECKED]);
    let kept = directory.path().join("target/kernels");
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join(CHECKED), "an object").unwrap();
    assert_eq!(source.object(Build::Checked).unwrap(), b"an object");
    assert_eq!(files(&kept), [CHECKED]);
}

#[test]
fn a_kernel_that_does_not_compile_is_an_error_with_its_message() {
    let names = ["", "demo-twice.checked.so.00000000000000c1"];
    let directory = tempfile::tempdir().unwrap();
    let source = kernel(directory.path(), "__global__ void twice(float* x) { nonsense; }\n", names);
    let device = Device::emulator_in(Mode::Checked).unwrap();
    let refused = device.kernel(source, "twice").unwrap_err();
    let Error::ObjectRefused { kernel, log } = &refused else { panic!("{refused}") };
    assert_eq!(kernel, "stages/demo/kernels/twice.cu");
    assert!(log.contains("stages/demo/kernels/twice.cu:1:") && log.contains("nonsense"), "{log}");
    assert!(!refused.is_unavailable());
    assert_eq!(files(&directory.path().join("target/kernels")), [""; 0]);
}

/// This program once more, with one test and other variables; what it prints.
fn again(test: &str, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env("AGAIN", "1")
        .envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "{said}");
    said
}

fn is_again() -> bool {
    std::env::var_os("AGAIN").is_some()
}

#[test]
fn without_a_compiler_the_error_says_what_helps() {
    if !is_again() {
        again("without_a_compiler_the_error_says_what_helps", &[("PATH", Path::new("/nowhere"))]);
        return;
    }
    let names = ["", "demo-twice.checked.so.00000000000000d1"];
    let directory = tempfile::tempdir().unwrap();
    let error = kernel(directory.path(), TEXT, names).object(Build::Checked).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    for part in [
        "stages/demo/kernels/twice.cu: ",
        "apt install g++",
        "LAB_EMBED_KERNELS=all",
        "lab dev bundle",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// As where a program was copied to another machine.
#[test]
fn where_the_target_directory_is_gone_the_cache_has_it() {
    const CHECKED: &str = "demo-twice.checked.so.00000000000000e1";
    let cache = tempfile::tempdir().unwrap();
    if !is_again() {
        again(
            "where_the_target_directory_is_gone_the_cache_has_it",
            &[("LAB_CACHE", cache.path())],
        );
        return;
    }
    let gone = tempfile::tempdir().unwrap();
    let source = kernel(gone.path(), TEXT, ["", CHECKED]);
    let target: PathBuf = gone.path().join("target");
    fs::remove_dir(&target).unwrap();
    source.object(Build::Checked).unwrap();
    assert!(!target.exists());
    let kept = cache_directory().unwrap().join("kernels");
    assert_eq!(source.kept(Build::Checked), Some(kept.join(CHECKED)));
}

#[test]
fn where_nothing_can_be_kept_it_is_compiled_all_the_same() {
    if !is_again() {
        let nowhere = [("LAB_CACHE", Path::new("/proc/nowhere"))];
        again("where_nothing_can_be_kept_it_is_compiled_all_the_same", &nowhere);
        return;
    }
    let names = ["", "demo-twice.checked.so.00000000000000f1"];
    let gone = tempfile::tempdir().unwrap();
    let source = kernel(gone.path(), TEXT, names);
    fs::remove_dir(gone.path().join("target")).unwrap();
    assert!(source.object(Build::Checked).unwrap().starts_with(b"\x7fELF"));
    assert_eq!(source.kept(Build::Checked), None);
}
