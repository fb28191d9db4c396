//! The table agrees with the files, and what is said to be right is right.

use std::collections::{BTreeMap, BTreeSet};

use lab_corpus::kernels::{self, KERNELS};
use lab_corpus::{
    Case, Judgement, Kind, PRODUCTS, Verdict, cases, cases_beyond_sanitizer, counted, descriptors,
    emulator, formal, instructions, judge, lines, maps, mark, run,
};
use lab_device::emulator::Options;
use lab_device::nvrtc::Nvrtc;
use lab_device::{Device, KernelSource, Mode};
use lab_harness::suite::{devices, each};

#[test]
fn every_kernel_is_one_case() {
    let mut cases: Vec<&str> = cases().iter().chain(&counted()).map(|c| c.name).collect();
    cases.extend(
        instructions().iter().chain(&formal()).chain(&cases_beyond_sanitizer()).map(|c| c.name),
    );
    cases.extend(descriptors().map(|c| c.name));
    // Those of random maps are no cases.
    let files = KERNELS.iter().filter(|k| k.name != kernels::MAPS.name);
    let mut kernels: Vec<&str> = files.flat_map(|k| k.instantiations).copied().collect();
    cases.sort_unstable();
    kernels.sort_unstable();
    assert_eq!(cases, kernels);
    assert!(cases.windows(2).all(|pair| pair[0] != pair[1]), "{cases:?}");
}

#[test]
fn there_are_many_of_each() {
    let mut count = BTreeMap::<Option<Kind>, usize>::new();
    cases().iter().for_each(|c| *count.entry(c.bug()).or_default() += 1);
    println!("{count:?}");
    let right = count.remove(&None).unwrap();
    assert!(right >= 42, "{right}");
    assert!(count.values().sum::<usize>() >= 42, "{count:?}");
    for kind in [Kind::Memory, Kind::Init, Kind::Race, Kind::Sync] {
        assert!(count.get(&Some(kind)).is_some_and(|&n| n >= 12), "{kind:?}: {count:?}");
    }
}

#[test]
fn bugs_are_marked_and_nothing_else_is() {
    let all: Vec<Case> = cases()
        .into_iter()
        .chain(instructions())
        .chain(formal())
        .chain(cases_beyond_sanitizer())
        .collect();
    let has_bug = |c: &&Case| !matches!(c.verdict, Verdict::Correct { .. });
    for case in &all {
        assert_eq!(has_bug(&case), !lines(case).is_empty(), "{}", case.name);
    }
    let bugs: BTreeSet<(&str, &str)> =
        all.iter().filter(has_bug).map(|c| (c.source.file, c.name)).collect();
    for file in KERNELS {
        for name in file.source.lines().filter_map(mark) {
            assert!(bugs.contains(&(file.file, name)), "{}: {name}", file.file);
        }
    }
}

#[test]
fn every_kernel_says_what_it_shows() {
    for file in KERNELS {
        let lines: Vec<&str> = file.source.lines().collect();
        for pair in lines.windows(2).filter(|p| p[1].contains("__global__ void")) {
            assert!(pair[0].starts_with("//"), "{}: {}", file.file, pair[1]);
        }
    }
}

/// Whether a device has what a file's kernels use.
fn has(device: &Device, source: &KernelSource) -> bool {
    let arch = &device.facts().arch;
    arch.is_empty() || source.runs_on(arch)
}

#[test]
fn the_right_ones_compute_what_they_should() {
    for device in devices().unwrap() {
        let all = cases()
            .into_iter()
            .chain(counted())
            .chain(instructions())
            .chain(formal())
            .chain(cases_beyond_sanitizer())
            .filter(|c| has(&device, c.source));
        let right: Vec<Case> = all.filter(|c| c.bug().is_none()).collect();
        println!("{} cases on {}", right.len(), device.name());
        let failed = each(&device, &right, |case| match run(case, &device) {
            // By the letter it is wrong.
            Err(error)
                if matches!(case.verdict, Verdict::Formal { .. }) && error.findings().is_some() =>
            {
                None
            }
            Ok(got) if !case.holds(&got) => {
                let first: Vec<_> = got.iter().map(|x| &x[..x.len().min(8)]).collect();
                Some(format!("{}: not what it should be: {first:?} …", case.name))
            }
            Ok(_) => None,
            Err(error) => Some(format!("{}: {error}", case.name)),
        });
        assert!(failed.is_empty(), "on {}:\n{}", device.name(), failed.join("\n"));
    }
}

/// `async.cu` needs sm_80, `mbarrier.cu` and `bulk.cu` sm_90.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn every_file_is_cuda() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required: {error}");
            println!("skipped, no NVRTC here: {error}");
            return;
        }
    };
    let archs = |file| ["sm_80", "sm_90a"].map(|arch| (file, arch));
    let all: Vec<(&KernelSource, &str)> = KERNELS.iter().copied().flat_map(archs).collect();
    each(&Device::emulator().unwrap(), &all, |&(file, arch)| {
        if file.runs_on(arch) {
            let image = nvrtc.compile(file, file.instantiations, arch);
            let image = image.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(image.symbols.len(), file.instantiations.len());
            assert!(!image.log.contains("warning"), "{arch}: {}", image.log);
            // What the assembler mends of planted bugs it says, and only of wgmma.
            let complains = |kernel: &str| image.complaints().iter().any(|c| c.contains(kernel));
            assert_eq!(complains("wgmma_read_before_wait"), file.name == "wgmma", "{}", file.file);
            assert!(!complains("wgmma_product"), "{:?}", image.complaints());
        }
        None::<()>
    });
}

/// By each of more than a thousand random descriptors, to the bit.
#[test]
fn wgmma_finds_its_operands() {
    let device = Device::emulator_in(Mode::Checked).unwrap();
    let mut products = 0;
    for case in descriptors() {
        assert_eq!(judge(&case, &device).unwrap().0, Judgement::Clean, "{}", case.name);
        products += PRODUCTS;
    }
    assert!(products >= 1000, "{products}");
    let others = devices().unwrap().into_iter().filter(|d| d.mode() != Some(Mode::Checked));
    for device in others.filter(|d| has(d, &kernels::DESCRIPTORS)) {
        for case in descriptors() {
            let got = run(&case, &device).unwrap();
            assert!(case.holds(&got), "{} on {}", case.name, device.name());
        }
    }
}

/// By each of hundreds of random tensor maps, byte by byte.
#[test]
fn tensor_copies_leave_what_they_should() {
    let mut all = devices().unwrap();
    all.retain(|d| has(d, &kernels::MAPS) && d.mode() != Some(Mode::Checked));
    all.push(Device::emulator_in(Mode::Checked).unwrap());
    for device in &all {
        for n in 0..maps::LOADS + maps::STORES {
            let differs = maps::copy(device, n as u64, n >= maps::LOADS).unwrap();
            assert!(differs.is_none(), "{} on {}", n, device.name());
        }
    }
}

#[test]
fn a_right_one_with_other_numbers_is_not_clean() {
    let device = Device::emulator_in(Mode::Checked).unwrap();
    let mut case = instructions().into_iter().find(|c| c.name == "named_crossed").unwrap();
    assert_eq!(judge(&case, &device).unwrap().0, Judgement::Clean);
    let Verdict::Correct { expect } = &mut case.verdict else { panic!("{case:?}") };
    expect[0][63] += 1.0;
    let (judgement, findings) = judge(&case, &device).unwrap();
    assert_eq!((judgement, findings.len()), (Judgement::Differs, 0));
}

/// Every planted bug at its line, no word about the rest; whichever thread comes first.
#[test]
fn the_emulator_tells_right_from_wrong() {
    let device = emulator(Options::from_env().unwrap()).unwrap();
    device.compile_missing(KERNELS).unwrap();
    let all = cases().into_iter().chain(counted()).chain(instructions()).chain(formal());
    let all: Vec<Case> = all.chain(cases_beyond_sanitizer()).collect();
    let wrong = each(&device, &all, |case| match judge(case, &device) {
        Ok((judgement, _)) if judgement.right() => None,
        Ok((judgement, findings)) => {
            let said: String = findings.iter().map(|f| format!("\n{f}")).collect();
            Some(format!("{} ({:?}): {judgement:?}{said}", case.name, case.bug()))
        }
        Err(error) => Some(format!("{}: {error}", case.name)),
    });
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}
