//! Kernels broken on purpose are caught; what is not understood is refused.

use assert_cmd::Command;
use serde_json::Value;

fn lab() -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").env_remove("LAB_KERNEL_OBJECTS").args(["--device", "emulator"]);
    lab
}

/// The one object on stdout, and the exit code.
#[track_caller]
fn json(command: &mut Command) -> (Value, i32) {
    let output = command.arg("--json").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let object = serde_json::from_str(&text).unwrap_or_else(|e| {
        panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    (object, output.status.code().unwrap_or(-1))
}

#[track_caller]
fn refused(command: &mut Command, code: i32, said: &[&str]) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in said {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
}

#[test]
fn an_emptied_kernel_is_caught_and_a_harmless_one_survives() {
    let (report, code) = json(lab().args([
        "dev",
        "mutate",
        "playg",
        "--file",
        "saxpy.cu",
        "--operator",
        "empty-kernel",
    ]));
    assert_eq!(code, 0, "{report}");
    let mutants = report["mutants"].as_array().unwrap();
    assert_eq!(mutants.len(), 1);
    assert_eq!(mutants[0]["verdict"], "result");
    assert_eq!(mutants[0]["function"], "saxpy");
    assert_eq!(report["score"], 1.0);
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_change_of_a_header_reaches_the_kernels_that_include_it() {
    let arguments = ["dev", "mutate", "playg", "--file", "reduce.cuh", "--operator", "last-step"];
    let (report, code) = json(lab().args(arguments));
    assert_eq!((code, report["mutants"][0]["verdict"].as_str()), (0, Some("result")), "{report}");
}

#[test]
fn mutants_are_listed() {
    let (list, _) = json(lab().args(["dev", "mutate", "playg", "--list", "--operator", "barrier"]));
    let all = list["mutants"].as_array().unwrap();
    assert!(all.iter().any(|m| m["file"] == "shared/cuda/lab/reduce.cuh"));
    assert!(all.iter().all(|m| m["replacement"] == ";"));
}

/// The kernel files that include the header run: a planted bug that is no longer found is a result.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_header_of_instructions_is_judged_by_the_corpus() {
    let arguments = ["dev", "mutate", "corpus", "--file", "named_barrier.cuh", "--operator"];
    let (report, code) = json(lab().args(arguments).arg("instruction"));
    assert_eq!((code, &report["score"]), (0, &1.0.into()), "{report}");
    let mutants = report["mutants"].as_array().unwrap();
    assert_eq!(mutants.len(), 2, "of the one header, on the emulator's side: {report}");
    let said = mutants[0]["said"].as_str().unwrap();
    assert!(said.contains("named_handover: "), "a case of a file that includes it: {said}");
}

#[test]
fn of_the_corpus_headers_of_instructions_are_broken() {
    let (list, code) = json(lab().args(["dev", "mutate", "corpus", "--list"]));
    assert_eq!(code, 0, "{list}");
    let all = list["mutants"].as_array().unwrap();
    let file = |m: &Value| m["file"].as_str().unwrap().to_owned();
    assert!(all.iter().all(|m| file(m).starts_with("shared/cuda/lab/ptx/")), "{list}");
    assert!(all.iter().any(|m| m["operator"] == "argument"));
    // Those of a stage are broken as any other header is.
    let (list, _) =
        json(lab().args(["dev", "mutate", "matmul", "--list", "--file", "cp_async.cuh"]));
    let all = list["mutants"].as_array().unwrap();
    assert!(!all.is_empty() && all.iter().all(|m| m["operator"] != "argument"), "{list}");
}

/// Every entry of an `equivalent.toml` must fit a mutant, or the list is refused.
#[test]
fn what_is_called_equivalent_is_a_mutant() {
    let models = lab_registry::MODELS.iter().filter(|m| !m.kernels.is_empty()).map(|m| m.name);
    for name in lab_registry::STAGES.iter().map(|s| s.name).chain(models).chain(["corpus"]) {
        let (list, code) = json(lab().args(["dev", "mutate", name, "--list"]));
        assert_eq!(code, 0, "{list}");
        assert!(!list["mutants"].as_array().unwrap().is_empty(), "{name}");
    }
}

/// A mutant of one version's kernel is judged by that version's suite, and its file has a score.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_mutant_of_one_version_is_judged_by_that_version() {
    let arguments =
        ["dev", "mutate", "vlstm_step", "--file", "v0_simple.cu", "--operator", "initialisation"];
    let (report, code) = json(lab().args(arguments));
    let verdict = |n: usize| &report["mutants"][n]["verdict"];
    assert_eq!(
        (code, verdict(0), verdict(1)),
        (0, &"sanitizer".into(), &"sanitizer".into()),
        "{report}"
    );
    for mutant in report["mutants"].as_array().unwrap() {
        let said = mutant["said"].as_str().unwrap();
        assert!(said.contains("vlstm_step:v0_simple") && !said.contains("v1_packs"), "{said}");
    }
    assert_eq!(report["files"][0]["file"], "stages/vlstm_step/kernels/v0_simple.cu");
    assert_eq!(report["files"][0]["score"], 1.0);
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_bug_of_the_museum_is_caught_and_its_fix_is_clean() {
    let (list, code) = json(lab().arg("bug"));
    assert_eq!((code, list["bugs"].as_array().unwrap().is_empty()), (0, false));
    let (said, code) = json(lab().args(["bug", "zeros-that-weigh"]));
    assert_eq!(code, 0, "{said}");
    assert_eq!((&said["caught"], &said["clean"]), (&true.into(), &true.into()));
    let broken = said["broken"].as_str().unwrap();
    assert!(broken.contains("infinity_meets_no_zeros_that_fill_a_tile"), "{broken}");
}

/// The whole museum takes minutes: CI runs a part of it by `lab bug --all`.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_bugs_of_a_stage_are_caught_and_clean_when_fixed() {
    let (list, _) = json(lab().args(["bug", "--stage", "qkv_v1"]));
    let (said, code) = json(lab().args(["bug", "--all", "--stage", "qkv_v1"]));
    assert_eq!(code, 0, "{said}");
    let (listed, ran) = (list["bugs"].as_array().unwrap(), said["bugs"].as_array().unwrap());
    assert!(!ran.is_empty() && ran.iter().all(|b| b["caught"] == true && b["clean"] == true));
    assert!(ran.iter().map(|b| &b["name"]).eq(listed.iter().map(|b| &b["name"])), "{said}");
    assert!(ran.iter().any(|b| b["check"] == "race"), "{said}");
}

#[test]
fn what_is_not_understood_is_refused() {
    refused(lab().args(["dev", "mutate", "nothing"]), 2, &["stage: expected playg", "'nothing'"]);
    refused(
        lab().args(["dev", "mutate", "playg", "--operator", "magic"]),
        2,
        &["--operator: expected barrier, fence", "'magic'"],
    );
    refused(
        lab().args(["dev", "mutate", "playg", "--file", "matmul.cu"]),
        2,
        &["--file: expected one of", "stages/playg/kernels/saxpy.cu", "'matmul.cu'"],
    );
    refused(
        lab().args(["dev", "mutate", "corpus", "--file", "bulk.cu"]),
        2,
        &["--file: expected one of shared/cuda/lab/ptx/bulk.cuh", "'bulk.cu'"],
    );
    refused(
        lab().args(["dev", "corpus", "--fail-fast", "--source", "kernels/none.cu"]),
        2,
        &["--source: expected one of kernels/memory.cu", "'kernels/none.cu'"],
    );
    refused(lab().args(["dev", "corpus", "--source", "kernels/bulk.cu"]), 2, &["--fail-fast"]);
    refused(lab().args(["dev", "mutate", "playg", "--jobs", "0"]), 2, &["--jobs"]);
    refused(lab().args(["dev", "mutate", "playg", "--timeout", "0"]), 2, &["--timeout"]);
    refused(
        lab().args(["bug", "unknown"]),
        2,
        &["bug: expected ", "more that `lab bug` lists, got 'unknown'"],
    );
    refused(lab().args(["bug", "nothing", "--all"]), 2, &["cannot be used with"]);
    refused(lab().args(["bug", "--part", "1/4"]), 2, &["--all"]);
    refused(lab().args(["bug", "--all", "--part", "5/4"]), 2, &["--part", "got '5/4'"]);
    refused(lab().args(["dev", "exercise", "--part", "1/2"]), 2, &["--all"]);
    refused(lab().args(["selftest", "--part", "1/2"]), 2, &["--quick"]);
    refused(lab().args(["bug", "--stage", "nothing"]), 2, &["stage: expected playg"]);
    refused(lab().args(["selftest", "nothing"]), 2, &["stage: expected playg"]);
    let outside = ["current directory: expected one inside a clone of the lab's repository"];
    refused(lab().current_dir("/").args(["dev", "mutate", "playg"]), 2, &outside);
    refused(lab().current_dir("/").arg("bug"), 2, &outside);
    let mut command = lab();
    command.env("PATH", "/nowhere").env_remove("CXX").args(["dev", "mutate", "playg"]);
    refused(&mut command, 4, &["a C++ compiler is needed", "apt install g++"]);
}

#[test]
fn objects_are_replaced_or_the_directory_is_refused() {
    let run = |directory: &str| {
        let mut lab = lab();
        lab.env("LAB_KERNEL_OBJECTS", directory).args(["run", "playg:saxpy"]);
        lab
    };
    let expected = ["LAB_KERNEL_OBJECTS: expected a directory of kernel objects, got "];
    refused(&mut run("/nowhere"), 2, &expected);
    refused(&mut run("/proc/version"), 2, &expected);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert_eq!(run(path).output().unwrap().status.code(), Some(0), "an empty one changes nothing");
    std::fs::write(directory.path().join("playg-saxpy.so"), "no object").unwrap();
    refused(&mut run(path), 2, &["loading the kernel object"]);
    let (doctor, _) = json(lab().env("LAB_KERNEL_OBJECTS", path).arg("doctor"));
    assert!(doctor.to_string().contains("1 replaced: playg-saxpy.so"), "{doctor}");
}

#[test]
fn a_stage_tests_itself() {
    let (said, code) = json(lab().args(["selftest", "vlstm_fw_v0", "--small", "--fail-fast"]));
    assert_eq!((code, &said["passed"]), (0, &true.into()));
    assert!(said["devices"][0]["checks"].as_u64().unwrap() > 0);
}
