//! The correctness suite of a version: what `cargo test` and `lab selftest` both run.

use std::time::Instant;

use lab_device::emulator::{Finding, Landing, Options as EmulatorOptions, Order};
use lab_device::{DType, Device, DeviceKind, KernelSource, Mode, Selector};
use rayon::prelude::*;

use crate::{Comparison, Dims, Error, Expected, Mistake, Problem, Stage, Version, compare, run};

/// One problem of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// The version, `playg:saxpy`.
    pub version: String,
    /// Sizes.
    pub dims: Dims,
    /// Type.
    pub dtype: DType,
    /// Outputs against the reference, or why there are none.
    pub outcome: Result<Vec<Comparison>, String>,
    /// The checks by which the emulator found the kernel at fault: `racecheck`, …
    pub found_by: Vec<&'static str>,
    /// What must come of it.
    pub expected: Expected,
    /// Whether the emulator looked at every access, and what it found.
    pub findings: Option<Vec<Finding>>,
}

impl Case {
    /// Whether it ran and every output is within its bound.
    pub fn right(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|all| !all.is_empty() && all.iter().all(Comparison::passed))
    }

    /// Whether what came is what must come: of a version that is wrong on purpose, its mistake's
    /// findings and no others; where nothing looks for them, a wrong result.
    pub fn passed(&self) -> bool {
        match self.expected {
            Expected::Right => self.right(),
            Expected::Wrong(mistake) => match &self.findings {
                Some(found) => !found.is_empty() && found.iter().all(|f| mistake.explains(f)),
                None => self.outcome.is_ok() && !self.right(),
            },
        }
    }

    /// The mistake that it showed, as it must.
    pub fn wrong_on_purpose(&self) -> Option<&'static Mistake> {
        self.expected.mistake().filter(|_| self.passed())
    }

    /// `playg:softmax R=3,C=33 f16: out: error 1.2e-3, bound 8e-4, 35 % of what an element may be off`, the worst of which
    /// takes that share of what it may be off by.
    pub fn describe(&self) -> String {
        let mut head = format!("{} {} {}", self.version, self.dims, self.dtype);
        match (self.expected.mistake(), self.passed()) {
            (Some(_), true) => head += " (wrong, as expected)",
            (Some(mistake), false) => {
                head += &format!(" (expected to be wrong, and otherwise: {})", mistake.because);
            }
            _ => {}
        }
        match &self.outcome {
            Err(message) => format!("{head}: {message}"),
            Ok(all) => {
                let each = all.iter().map(|c| if c.passed() {
let percent = 100.0 * c.element_share;
                        let Comparison { name, relative_error, bound, .. } = c;
                        format!("{name}: error {relative_error:.2e}, bound {bound:.2e}, {percent:.0} % of what an element may be off")
} else {
c.complaint()
});
                format!("{head}: {}", each.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// Runs one problem and compares.
pub fn check(version: &dyn Version, device: &Device, problem: &Problem) -> Case {
    let outcome = || -> Result<Vec<Comparison>, Error> {
        let inputs = version.inputs(problem);
        let outputs = run(version, device, &inputs, &problem.options)?;
        Ok(compare(version, &inputs, &outputs, &problem.options, problem.dtype))
    };
    let outcome = outcome();
    let findings = match &outcome {
        Err(Error::Device(e)) => e.findings().map_or_else(Vec::new, |f| f.all.clone()),
        _ => Vec::new(),
    };
    let mut found_by: Vec<_> = findings.iter().map(|f| f.kind.check().name()).collect();
    found_by.sort_unstable();
    found_by.dedup();
    Case {
        version: version.info().full_name(),
        dims: problem.dims.clone(),
        dtype: problem.dtype,
        found_by,
        expected: version.expected(&problem.options),
        findings: matches!(device.mode(), Some(Mode::Checked | Mode::Counted)).then_some(findings),
        outcome: outcome.map_err(|e| e.to_string()),
    }
}

/// Every test shape in every type, the cheapest first: a mistake shows early.
pub fn problems(version: &dyn Version) -> Vec<Problem> {
    let shapes = version.test_shapes();
    let dtypes = version.info().dtypes;
    let all = shapes.iter().flat_map(|s| dtypes.iter().map(move |&d| (s.clone(), d)));
    let mut all: Vec<_> = all
        .enumerate()
        .map(|(seed, (dims, dtype))| Problem { seed: seed as u64, ..Problem::new(dims, dtype) })
        .collect();
    let work = |p: &Problem| {
        let cost = version.cost(&p.dims, p.dtype);
        cost.flops + cost.bytes
    };
    all.sort_by(|a, b| work(a).total_cmp(&work(b)));
    all
}

/// Of these problems, those that `cargo test` runs on the emulator: each shape in one type of the version's, by turns, and
/// each type at least once. All of them where `LAB_TEST_TYPES` is `all`, as `lab selftest` always does.
fn by_turns(problems: Vec<Problem>) -> Vec<Problem> {
    if std::env::var("LAB_TEST_TYPES").is_ok_and(|types| types == "all") {
        return problems;
    }
    let (mut shapes, mut dtypes): (Vec<&Dims>, Vec<DType>) = (Vec::new(), Vec::new());
    for Problem { dims, dtype, .. } in &problems {
        if !shapes.contains(&dims) {
            shapes.push(dims);
        }
        if !dtypes.contains(dtype) {
            dtypes.push(*dtype);
        }
    }
    let is_its_turn = |p: &Problem| {
        let shape = shapes.iter().position(|dims| **dims == p.dims);
        let dtype = dtypes.iter().position(|dtype| *dtype == p.dtype);
        let (Some(shape), Some(dtype)) = (shape, dtype) else { return false };
        // Of few shapes some are run in several types.
        shape % dtypes.len() == dtype || dtype >= shapes.len() && dtype % shapes.len() == shape
    };
    let chosen: Vec<bool> = problems.iter().map(is_its_turn).collect();
    problems.into_iter().zip(chosen).filter_map(|(p, chosen)| chosen.then_some(p)).collect()
}

/// The emulator for tests: every access is checked, unless `LAB_EMULATOR_MODE` says otherwise.
///
/// # Errors
/// The variable is not understood.
pub fn emulator() -> Result<Device, lab_device::Error> {
    Device::emulator_in(Mode::from_env_or(Mode::Checked)?)
}

/// For what is too large to be checked: the emulator in its plain mode in place of one that checks.
///
/// # Errors
/// As [`emulator`].
pub fn without_checks(device: &Device) -> Result<Device, lab_device::Error> {
    match device.mode() {
        Some(_) => Device::emulator_in(Mode::Plain),
        None => Ok(device.clone()),
    }
}

/// The device as it is; of an emulator also one, two and five OS threads, each in other orders, and with
/// copies that land early, late or at random.
pub fn schedules(device: &Device) -> Vec<Device> {
    in_schedules(
        device,
        &[
            (Order::Reverse, Landing::Early, 1),
            (Order::Random(1), Landing::Random(1), 2),
            (Order::Random(2), Landing::Random(2), 5),
            (Order::Warps, Landing::Late, 2),
            // A late copy holds back whoever waits for it, whatever its priority: so early ones, too.
            (Order::Starve(1), Landing::Early, 2),
            (Order::Starve(2), Landing::Late, 2),
        ],
    )
}

/// The device as it is; of an emulator also one, two and five OS threads, each in other orders.
pub fn orders(device: &Device) -> Vec<Device> {
    let EmulatorOptions { copies, .. } = EmulatorOptions::default();
    let orders = [Order::Reverse, Order::Random(1), Order::Random(2), Order::Warps];
    let threads = [1, 2, 5, 2];
    let all: Vec<_> = orders.into_iter().zip(threads).map(|(o, n)| (o, copies, n)).collect();
    in_schedules(device, &all)
}

/// The device as it is; of an emulator also one in each of these orders, with copies that land so, on so many OS threads.
fn in_schedules(device: &Device, schedules: &[(Order, Landing, usize)]) -> Vec<Device> {
    let mut all = vec![device.clone()];
    if let Some(mode) = device.mode() {
        for &(order, copies, threads) in schedules {
            let options = EmulatorOptions { order, copies, threads, ..EmulatorOptions::default() };
            all.push(Device::emulator_with(mode, options).unwrap());
        }
    }
    all
}

/// The devices that a test must pass on: the emulator always, and the first GPU where there is
/// one. `LAB_DEVICE=cuda` insists on the GPU: without one, that is an error and no silent pass.
///
/// # Errors
/// The emulator cannot run, or a GPU was insisted on and there is none.
pub fn devices() -> Result<Vec<Device>, lab_device::Error> {
    let mut all = vec![emulator()?];
    match Selector::from_env()? {
        Selector::Emulator => {}
        Selector::Cuda(n) => all.push(Device::open(Selector::Cuda(n))?),
        Selector::Auto => {
            let found = Device::open(Selector::Auto)?;
            if found.kind() == DeviceKind::Cuda {
                all.push(found);
            }
        }
    }
    Ok(all)
}

/// Something that must hold of each version of a stage; `run` panics where it does not.
#[derive(Clone, Copy, Debug)]
pub struct VersionCheck {
    /// What must hold.
    pub name: &'static str,
    /// Shows it.
    pub run: fn(&dyn Version, &Device),
    /// Of versions of this family only.
    pub family: Option<&'static str>,
    /// Of versions only of which this holds.
    pub only: fn(&dyn Version) -> bool,
    /// How much it does.
    pub tier: Tier,
}

impl VersionCheck {
    /// Whether it is of this version.
    pub fn concerns(&self, version: &dyn Version) -> bool {
        self.family.is_none_or(|family| family == version.info().family.name())
            && (self.only)(version)
    }
}

/// How much a check does, and so where tests on the emulator run it. A GPU is soon done with each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// It is soon done: a plain `cargo test` asks it of versions by turns.
    Short,
    /// It goes through many sizes, or through all: versions take turns, among what takes long.
    ManySizes,
    /// Long sequences, extremes, all orders of threads: the first and the last version of a stage are asked it, among what takes
    /// long.
    Ends,
    /// Large problems: as [`Tier::Ends`], and `lab selftest --small` leaves it out.
    Large,
}

impl Tier {
    /// Whether only the first and the last version of a stage are asked it.
    fn is_of_ends(self) -> bool {
        matches!(self, Self::Ends | Self::Large)
    }

    /// Whether it is left out of a plain `cargo test`.
    fn takes_long(self) -> bool {
        self != Self::Short
    }
}

/// Functions as checks of a version, each under its own name; `of FAMILY;` before them where they
/// concern one family of a stage's, `if CONDITION` behind one that concerns only some versions, and `in TIER` behind one that is
/// not of [`Tier::Short`].
#[macro_export]
macro_rules! version_checks {
    (of $family:expr; $($check:ident $(if $only:ident)? $(in $tier:ident)?),+ $(,)?) => {
        $crate::version_checks!(@ Some($family); $($check $(if $only)? $(in $tier)?),+)
    };
    (@ $family:expr; $($check:ident $(if $only:ident)? $(in $tier:ident)?),+) => {
        &[$($crate::suite::VersionCheck {
            name: stringify!($check),
            run: $check,
            family: $family,
            only: $crate::version_checks!(@only $($only)?),
            tier: $crate::version_checks!(@tier $($tier)?),
        }),+]
    };
    (@only) => { |_| true };
    (@only $only:ident) => { $only };
    (@tier) => { $crate::suite::Tier::Short };
    (@tier $tier:ident) => { $crate::suite::Tier::$tier };
    ($($check:ident $(if $only:ident)? $(in $tier:ident)?),+ $(,)?) => {
        $crate::version_checks!(@ None; $($check $(if $only)? $(in $tier)?),+)
    };
}

/// What `work` makes of items, in their order: on the emulator in parallel, on a GPU one after the other.
pub fn each<T: Sync, R: Send>(
    device: &Device,
    items: &[T],
    work: impl Fn(&T) -> Option<R> + Sync,
) -> Vec<R> {
    match device.kind() {
        DeviceKind::Cuda => items.iter().filter_map(&work).collect(),
        // One at a time: whoever is done takes the next, and nobody waits for the last few of another.
        DeviceKind::Emulator => items.par_iter().with_max_len(1).filter_map(&work).collect(),
    }
}

/// Runs checks of a version on a device; the message of each that failed.
pub fn version_failures(
    checks: &[VersionCheck],
    version: &dyn Version,
    device: &Device,
) -> Vec<(&'static str, String)> {
    let name = version.info().full_name();
    each(device, checks, |c| {
        Some((c.name, timed(&name, c.name, || panic_of(|| (c.run)(version, device)))?))
    })
}

/// Does the work, and says on stderr how long it took, where `LAB_TEST_TIMES` is set.
fn timed<R>(version: &str, what: &str, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    if std::env::var_os("LAB_TEST_TIMES").is_some() {
        eprintln!("{:8.2} s  {version} {what}", start.elapsed().as_secs_f64());
    }
    result
}

/// What a check says as it panics; `None` where it holds.
fn panic_of(check: impl FnOnce()) -> Option<String> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    outcome.err().map(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        plain(message.unwrap_or("it panicked"))
    })
}

/// What an assertion says, without Rust's words for it: `row 3: 1, expected 2`.
fn plain(panic: &str) -> String {
    let sides = || {
        let rest = panic.strip_prefix("assertion `left == right` failed")?;
        let (what, sides) = rest.split_once("\n  left: ")?;
        let (got, expected) = sides.split_once("\n right: ")?;
        let what = what.strip_prefix(": ").map_or(String::new(), |what| format!("{what}: "));
        Some(format!("{what}{got}, expected {expected}"))
    };
    let holds = || Some(format!("this must hold: {}", panic.strip_prefix("assertion failed: ")?));
    sides().or_else(holds).unwrap_or_else(|| panic.to_owned())
}

/// Something that must hold on a device; `run` panics where it does not.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What must hold.
    pub name: &'static str,
    /// Shows it.
    pub run: fn(&Device),
    /// How much it does.
    pub tier: Tier,
    /// Kernel files that it launches nothing of.
    pub apart_from: &'static [&'static str],
}

impl Check {
    /// One that is soon done, and may launch any kernel.
    pub const fn new(name: &'static str, run: fn(&Device)) -> Self {
        Self { name, run, tier: Tier::Short, apart_from: &[] }
    }

    /// One that launches nothing of these kernel files, such as kernels/sum.cu: where one of them alone has changed, it is not run.
    pub const fn apart_from(self, files: &'static [&'static str]) -> Self {
        Self { apart_from: files, ..self }
    }

    /// One that does as much as this.
    pub const fn in_tier(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }
}

/// Checks of what stands on a stage, such as a model that is trained by its kernels. They belong to the
/// stage's suite wherever its kernels are judged.
#[derive(Debug)]
pub struct Suite {
    /// The crate that has them.
    pub name: &'static str,
    /// The stage whose kernels they run.
    pub stage: &'static str,
    /// What must hold.
    pub checks: &'static [Check],
    /// Kernel files of its own, which no stage has.
    pub kernels: &'static [&'static KernelSource],
    /// The directory of the crate, from the workspace's root, where it has kernels: `shared/models/lstm`.
    pub home: &'static str,
}

impl Suite {
    /// Of a crate without kernels of its own.
    pub const fn new(name: &'static str, stage: &'static str, checks: &'static [Check]) -> Self {
        Self { name, stage, checks, kernels: &[], home: "" }
    }

    /// With these kernels, of the crate in this directory.
    pub const fn with_kernels(
        self,
        home: &'static str,
        kernels: &'static [&'static KernelSource],
    ) -> Self {
        Self { kernels, home, ..self }
    }
}

/// Runs checks on a device; the message of each that failed.
pub fn failures(checks: &[Check], device: &Device) -> Vec<(&'static str, String)> {
    each(device, checks, |c| Some((c.name, timed("", c.name, || panic_of(|| (c.run)(device)))?)))
}

/// The check that each stage has, as [`every_kernel_loads`] makes it.
pub const KERNELS_LOAD: &str = "every_kernel_loads_on_every_device";

/// As [`failures`], of [`KERNELS_LOAD`].
pub fn loading_failures(stage: &Stage, device: &Device) -> Vec<(&'static str, String)> {
    let load = || panic_of(|| every_kernel_loads(stage, device));
    timed("", KERNELS_LOAD, load).map(|said| (KERNELS_LOAD, said)).into_iter().collect()
}

/// For tests: every check on every device.
///
/// # Panics
/// With the checks that failed.
pub fn assert_checks(checks: &[Check]) {
    assert!(!checks.is_empty());
    for device in devices().expect("the devices that LAB_DEVICE asks for") {
        let failed = failures(checks, &device);
        println!("{} checks on {}", checks.len(), device.name());
        assert!(failed.is_empty(), "on {}: {failed:?}", device.name());
    }
}

/// Checks of models that share the emulator's checks between them.
const MODELS_TURNS: usize = 4;

/// As [`assert_checks`], for what stands on stages, whose own tests run each kernel under the emulator's checks: on the emulator
/// one check of four looks at every access, by turns, and the others run in the plain mode, three times as fast. All of them look
/// where `LAB_ALL_CHECKS` is set, as `lab selftest` always does, and `LAB_EMULATOR_MODE` decides for all.
///
/// # Panics
/// With the checks that failed.
pub fn assert_checks_of_models(checks: &[Check]) {
    let is_said =
        ["LAB_ALL_CHECKS", "LAB_EMULATOR_MODE"].iter().any(|v| std::env::var_os(v).is_some());
    if is_said {
        return assert_checks(checks);
    }
    assert!(!checks.is_empty());
    for device in devices().expect("the devices that LAB_DEVICE asks for") {
        let plain = without_checks(&device).expect("the emulator");
        let is_its_turn = |n: usize| n % MODELS_TURNS == test_turn() % MODELS_TURNS;
        let numbered: Vec<(usize, Check)> = checks.iter().copied().enumerate().collect();
        let failed = each(&device, &numbered, |&(number, check)| {
            let device = if is_its_turn(number) { &device } else { &plain };
            Some((check.name, timed("", check.name, || panic_of(|| (check.run)(device)))?))
        });
        println!("{} checks on {}", checks.len(), device.name());
        assert!(failed.is_empty(), "on {}: {failed:?}", device.name());
    }
}

/// Versions that share the shorter checks between them.
const TURNS: usize = 6;

/// Whose turn it is, of what tests do by turns: `LAB_TEST_TURN`, so that in time everything is run; 0 where it is not set.
pub fn test_turn() -> usize {
    std::env::var("LAB_TEST_TURN").ok().and_then(|turn| turn.parse().ok()).unwrap_or(0)
}

/// The tests of what must hold beside the error bounds, of each version of a stage and else: a test of what is soon done, and
/// one of what takes long, which is ignored until `cargo test -- --include-ignored`.
#[macro_export]
macro_rules! stage_checks {
    ($stage:expr) => {
        #[test]
        fn what_else_must_hold() {
            $crate::suite::assert_stage(&$stage, $crate::suite::Share::Short);
        }

        #[test]
        #[ignore = "takes long: --include-ignored runs it"]
        fn what_takes_long_must_hold() {
            $crate::suite::assert_stage(&$stage, $crate::suite::Share::Long);
        }
    };
}

/// The tests of a stage's versions against the f64 reference, each under its own name, and one that none is left out. A test is
/// of one version, or of those in brackets:
///
/// ```text
/// version_tests! {
///     STAGE:
///     naive = NAIVE,
///     tensor_cores = [MMA, WGMMA],
/// }
/// ```
#[macro_export]
macro_rules! version_tests {
    (@ [$($version:expr),+ $(,)?]) => { [$(&$version as &dyn $crate::Version),+] };
    (@ $version:ident) => { $crate::version_tests!(@ [$version]) };
    ($stage:ident: $($test:ident = $versions:tt),+ $(,)?) => {
        $(#[test]
        fn $test() {
            for version in $crate::version_tests!(@ $versions) {
                $crate::suite::assert_version(&$stage, version);
            }
        })+

        #[test]
        fn every_version_is_tested_above() {
            let tested = [$(&$crate::version_tests!(@ $versions)[..]),+].concat();
            $crate::suite::assert_all_tested(&$stage, &tested);
        }
    };
}

/// For a stage's tests, by [`version_tests!`](crate::version_tests): these versions are those of the stage, each once.
///
/// # Panics
/// They are not.
pub fn assert_all_tested(stage: &Stage, tested: &[&dyn Version]) {
    let names = |versions: &[&dyn Version]| {
        let mut all: Vec<String> = versions.iter().map(|v| v.info().full_name()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(names(tested), names(stage.versions), "versions that tests of {} name", stage.name);
}

/// A share of the checks that a stage's tests run on the emulator: each check of a version is in one of them. On a GPU the
/// short share has all, for there none takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// What is soon done; six versions that follow each other share it, in turns.
    Short,
    /// Large problems, long sequences, extremes, all orders of threads, many sizes. And of the shorter checks those that
    /// are another version's turn.
    Long,
}

/// For a stage's tests, by [`stage_checks!`](crate::stage_checks): a share of what must hold beside the error bounds, of each
/// version and else, on every device; of each stage also [`KERNELS_LOAD`]. On the emulator the first version and the last are
/// asked all of it by both shares together; those between only what is their turn. `lab selftest` asks all of all, and so do
/// both shares together where `LAB_ALL_CHECKS` is set.
///
/// # Panics
/// With the checks that failed.
pub fn assert_stage(stage: &Stage, share: Share) {
    for device in devices().expect("the devices that LAB_DEVICE asks for") {
        let is_emulator = device.kind() == DeviceKind::Emulator;
        if !is_emulator && share == Share::Long {
            continue;
        }
        let is_in_share = |is_short| !is_emulator || is_short == (share == Share::Short);
        let of_stage = stage.checks.iter().filter(|check| is_in_share(!check.tier.takes_long()));
        let of_stage: Vec<Check> = of_stage.copied().collect();
        let mut failed =
            if is_in_share(true) { loading_failures(stage, &device) } else { Vec::new() };
        failed.extend(failures(&of_stage, &device));
        let all = std::env::var_os("LAB_ALL_CHECKS").is_some();
        let turns = TURNS.min(stage.versions.len());
        let ends = [stage.versions.first(), stage.versions.last()];
        let ends = ends.map(|v| v.map(|v| v.info().full_name()));
        let of_version = |&(number, version): &(usize, &&dyn Version)| {
            let name = version.info().full_name();
            let is_end = ends.contains(&Some(name.clone()));
            let mut place = number + test_turn();
            let mut checks = stage.checks_of(*version);
            checks.retain(|check| {
                let mut is_its_turn = false;
                if !check.tier.is_of_ends() {
                    is_its_turn = place.is_multiple_of(turns);
                    place += 1;
                }
                let is_asked = !is_emulator || is_end || all || is_its_turn;
                is_asked && is_in_share(is_its_turn && !check.tier.takes_long())
            });
            let own = version_failures(&checks, *version, &device).into_iter();
            Some(own.map(|(check, said)| (check, format!("{name}: {said}"))).collect::<Vec<_>>())
        };
        let versions: Vec<(usize, &&dyn Version)> = stage.versions.iter().enumerate().collect();
        failed.extend(each(&device, &versions, of_version).into_iter().flatten());
        assert!(failed.is_empty(), "on {}: {failed:?}", device.name());
    }
}

/// Two tests of random problems on the emulator, by proptest: the one runs each problem in one version and type, the other in
/// all the others, and is ignored until `cargo test -- --include-ignored`. The block judges one, and panics where it is wrong:
///
/// ```text
/// random_problems! {
///     cases: 12, of: in_all_types(VERSIONS);
///     (n in 1usize..300) |version, dtype, seed| {
///         assert_right(version, &Problem { seed, ..Problem::new(Dims::new([("N", n)]), dtype) });
///     }
/// }
/// ```
#[macro_export]
macro_rules! random_problems {
    (cases: $cases:expr, of: $pairs:expr;
     ($($size:ident in $sizes:expr),+ $(,)?) |$version:ident, $dtype:ident, $seed:ident| $judge:block) => {
        ::proptest::proptest! {
            #![proptest_config(::proptest::prelude::ProptestConfig {
                cases: $cases,
                ..::proptest::prelude::ProptestConfig::default()
            })]

            #[test]
            fn any_shape_is_right($($size in $sizes,)+ $seed in 0u64..1000) {
                let pairs = $pairs;
                let ($version, $dtype) = pairs[$seed as usize % pairs.len()];
                $judge
            }

            #[test]
            #[ignore = "takes long: --include-ignored runs it"]
            fn any_shape_is_right_in_all_others($($size in $sizes,)+ $seed in 0u64..1000) {
                let mut others = $pairs.to_vec();
                others.remove($seed as usize % others.len());
                let emulator = $crate::suite::emulator().expect("the emulator");
                $crate::suite::each(&emulator, &others, |&($version, $dtype)| {
                    $judge
                    None::<()>
                });
            }
        }
    };
}

/// Each of these versions with each of its types.
pub fn in_all_types<'a>(versions: &[&'a dyn Version]) -> Vec<(&'a dyn Version, DType)> {
    let types_of = |version: &&'a dyn Version| {
        let version = *version;
        version.info().dtypes.iter().map(move |&dtype| (version, dtype))
    };
    versions.iter().flat_map(types_of).collect()
}

/// This problem is right on the [`emulator`].
///
/// # Panics
/// It is not.
pub fn assert_right(version: &dyn Version, problem: &Problem) {
    let case = check(version, &emulator().expect("the emulator"), problem);
    assert!(case.passed(), "{}\n{}", case.describe(), again(&case.version, problem));
}

/// No error of this problem on the [`emulator`] is more than so many times its bound.
///
/// # Panics
/// One is.
pub fn assert_right_within(times: f64, version: &dyn Version, problem: &Problem) {
    let case = check(version, &emulator().expect("the emulator"), problem);
    let is_within = case.outcome.as_ref().is_ok_and(|all| all.iter().all(|c| c.within(times)));
    assert!(is_within, "{}\n{}", case.describe(), again(&case.version, problem));
}

/// The command that runs a problem again. The one that proptest names in the end need not be the one it has said this of.
fn again(version: &str, problem: &Problem) -> String {
    let Problem { dims, dtype, seed, .. } = problem;
    format!("again: lab run {version} --shape {dims} --dtype {dtype} --seed {seed}")
}

/// Versions between the first and the last of a family, of which one has its turn.
const VERSION_TURNS: usize = 3;

/// Whether it is the turn of the version with this number; where `LAB_TEST_TURN` is not set, of each.
fn has_its_turn(number: usize) -> bool {
    std::env::var_os("LAB_TEST_TURN").is_none()
        || (number + test_turn()).is_multiple_of(VERSION_TURNS)
}

/// Of these problems every second one, the first or the second of each two.
fn every_second(problems: Vec<Problem>, number: usize) -> Vec<Problem> {
    // Of a single one, that.
    let first = if problems.len() > 1 { number % 2 } else { 0 };
    problems.into_iter().skip(first).step_by(2).collect()
}

/// For a stage's tests: every shape of a version on every device. On the emulator the types take turns, and
/// of two versions between the first and the last of a family each takes one of two shapes. Where `LAB_TEST_TURN` is set, of three
/// such versions one does, and the others take their cheapest problem. `lab selftest` runs all, and so does this where
/// `LAB_TEST_TYPES` is `all` and `LAB_ALL_CHECKS` is set.
///
/// # Panics
/// With one line for each problem that fails.
pub fn assert_version(stage: &Stage, version: &dyn Version) {
    let (full_name, family) = (version.info().full_name(), version.info().family.name());
    let of_family: Vec<_> =
        stage.versions.iter().filter(|v| v.info().family.name() == family).collect();
    let number = of_family.iter().position(|v| v.info().full_name() == full_name);
    let number = number.unwrap_or_else(|| panic!("{full_name} is no version of {}", stage.name));
    let is_end = number == 0 || number + 1 == of_family.len();
    let all_shapes = is_end || std::env::var_os("LAB_ALL_CHECKS").is_some();
    for device in devices().expect("the devices that LAB_DEVICE asks for") {
        device.compile_missing(&version.sources()).unwrap_or_else(|e| panic!("{e}"));
        let all = problems(version);
        let problems = match device.kind() {
            DeviceKind::Emulator if all_shapes => by_turns(all),
            DeviceKind::Emulator if has_its_turn(number) => every_second(by_turns(all), number),
            DeviceKind::Emulator => by_turns(all).into_iter().take(1).collect(),
            DeviceKind::Cuda => all,
        };
        let name = version.info().full_name();
        let case = |p: &Problem| {
            timed(&name, &format!("{} {}", p.dims, p.dtype), || check(version, &device, p))
        };
        let cases: Vec<Case> = each(&device, &problems, |problem| Some(case(problem)));
        println!("{}: {} problems on {}", version.info().full_name(), cases.len(), device.name());
        for case in &cases {
            println!("  {}", case.describe());
        }
        let failed: Vec<_> = cases.iter().filter(|c| !c.passed()).map(Case::describe).collect();
        assert!(!cases.is_empty(), "a version without test shapes proves nothing");
        assert!(failed.is_empty(), "on {}:\n{}", device.name(), failed.join("\n"));
    }
    if let Some(reason) = Device::why_no_cuda() {
        println!("ran on the emulator only: {reason}");
    }
}

/// Every instantiation of every kernel of the stage compiles on this device, or is of a file that
/// needs a newer GPU; those are named.
///
/// # Panics
/// One does not.
pub fn every_kernel_loads(stage: &Stage, device: &Device) {
    let loaded = stage.load_all(device).unwrap_or_else(|e| panic!("{e}"));
    let arch = &device.facts().arch;
    for source in &loaded.skipped {
        assert!(!source.runs_on(arch), "{} is left out, and runs on {arch}", source.file);
        eprintln!("{}: left out on {arch}, it needs {}", source.file, source.least_arch);
    }
    let runs = stage.kernels.iter().filter(|k| k.runs_on(arch));
    let listed: usize = runs.map(|k| k.instantiations.len()).sum();
    assert!(listed > 0, "no kernel of {} runs on {arch}", stage.name);
    assert_eq!(loaded.kernels.len(), listed);
    // Launches ask for what the kernels' sources say, and nothing else says that it fits there.
    let everywhere = stage.kernels.iter().filter(|k| k.runs_on("sm_89"));
    let names: Vec<&str> = everywhere.flat_map(|k| k.instantiations).copied().collect();
    for kernel in loaded.kernels.iter().filter(|kernel| names.contains(&kernel.name())) {
        let bytes = kernel.block().map_or(0, |block| block.dynamic_shared);
        assert!(bytes <= 99 * 1024, "{}: {bytes} bytes of an RTX 4060's 99 KB", kernel.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_has_one_type_by_turns_and_each_type_a_shape() {
        let chosen = |shapes: usize, types: &[DType]| -> Vec<(usize, DType)> {
            let all = (1..=shapes).flat_map(|n| types.iter().map(move |&t| (n, t)));
            let all = all.map(|(n, t)| Problem::new(Dims::new([("N", n)]), t)).collect();
            by_turns(all).iter().map(|p| (p.dims.get("N"), p.dtype)).collect()
        };
        let [f32, f16, bf16] = [DType::F32, DType::F16, DType::BF16];
        let all = [f32, f16, bf16];
        assert_eq!(chosen(4, &all), [(1, f32), (2, f16), (3, bf16), (4, f32)]);
        assert_eq!(chosen(2, &all), [(1, f32), (1, bf16), (2, f16)]);
        assert_eq!(chosen(1, &all), [(1, f32), (1, f16), (1, bf16)]);
        assert_eq!(chosen(3, &[bf16]).len(), 3);
    }

    #[test]
    fn two_versions_that_follow_each_other_have_all_shapes_between_them() {
        let all: Vec<_> =
            (1..=5).map(|n| Problem::new(Dims::new([("N", n)]), DType::F32)).collect();
        let chosen = |count: usize, number: usize| -> Vec<usize> {
            let chosen = every_second(all[..count].to_vec(), number);
            chosen.iter().map(|p| p.dims.get("N")).collect()
        };
        assert_eq!((chosen(5, 2), chosen(5, 3)), (vec![1, 3, 5], vec![2, 4]));
        assert_eq!((chosen(1, 2), chosen(1, 3)), (vec![1], vec![1]));
    }

    #[test]
    fn what_is_wrong_says_how_to_run_it_again() {
        let dims = Dims::new([("R", 3), ("C", 4)]);
        let problem = Problem { seed: 7, ..Problem::new(dims, DType::F16) };
        let expected = "again: lab run playg:copy --shape C=4,R=3 --dtype f16 --seed 7";
        assert_eq!(again("playg:copy", &problem), expected);
    }

    #[test]
    fn assertions_speak_plainly() {
        let equal =
            |what: &str| format!("assertion `left == right` failed{what}\n  left: 1\n right: 2");
        assert_eq!(plain(&equal(": row 3")), "row 3: 1, expected 2");
        assert_eq!(plain(&equal("")), "1, expected 2");
        assert_eq!(plain("assertion failed: p.is_empty()"), "this must hold: p.is_empty()");
        assert_eq!(plain("row 3 is NaN"), "row 3 is NaN");
    }
}
