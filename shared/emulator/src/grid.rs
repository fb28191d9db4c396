//! Whole launches: independent blocks over all cores, cooperative ones all resident.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::block::{BlockRunner, Pause};
use crate::check::LaunchCheck;
use crate::cluster::{Cluster, MAX_CLUSTER};
use crate::completion::Landing;
use crate::copied_out;
use crate::counters::Profile;
use crate::crowd::{self, Crowd, MAX_COOPERATIVE_BLOCKS, Turn};
use crate::geometry::Geometry;
use crate::grids;
use crate::module::Kernel;
use crate::order::{Order, Shuffler};
use crate::report::{Finding, Findings, Kind};
use crate::trace::Tracer;
use crate::watchdog::{self, Watched};

/// Threads that a block may have, as on every GPU since 2010.
pub const MAX_THREADS_PER_BLOCK: usize = 1024;
/// Dynamic shared memory that a block may have: an H100's 227 KiB.
pub const MAX_DYNAMIC_SHARED: usize = 227 * 1024;

/// What a launch asks for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory a block.
    pub dynamic_shared: usize,
    /// All blocks resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// Blocks of a cluster, along x; 0 or 1 for none. Those of one are resident at once.
    pub cluster: u32,
    /// It may begin before the launch before it, in its queue, has ended: `griddepcontrol`.
    pub overlap_previous: bool,
}

/// How the emulator runs a launch.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// OS threads that run blocks, at most: of independent ones no more than the caller and those of
    /// rayon's pool, a thread a core. With one, a run is the same every time.
    pub threads: usize,
    /// The schedule.
    pub order: Order,
    /// A launch in which nothing but polling has happened for so long is ended.
    pub stall_limit: Duration,
    /// Counts what a checked kernel asks of the memory system.
    pub count: bool,
    /// When an asynchronous copy is made.
    pub copies: Landing,
    /// Told what happens in a launch that counts.
    pub trace: Option<&'static Tracer>,
    /// The queue that the launch is in: those of one, by one thread, are in order, and the next may overlap
    /// the one before it.
    pub queue: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            order: Order::Forward,
            stall_limit: Duration::from_secs(10),
            count: false,
            copies: Landing::Late,
            trace: None,
            queue: 0,
        }
    }
}

/// An environment variable holds something else than what it should.
#[derive(Debug, thiserror::Error)]
#[error("{name}: expected {expected}, got '{got}'")]
pub struct BadOption {
    /// The variable.
    pub name: &'static str,
    /// What it may hold.
    pub expected: &'static str,
    /// What it holds.
    pub got: String,
}

impl Options {
    /// The defaults, changed by `LAB_EMULATOR_THREADS`, `LAB_EMULATOR_ORDER`,
    /// `LAB_EMULATOR_STALL_SECONDS` and `LAB_EMULATOR_COPIES`.
    pub fn from_env() -> Result<Self, BadOption> {
        fn read<T>(
            name: &'static str,
            expected: &'static str,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Result<Option<T>, BadOption> {
            let Some(value) = std::env::var_os(name).filter(|v| !v.is_empty()) else {
                return Ok(None);
            };
            // One that is no UTF-8 is none of those that are expected.
            match value.to_str().and_then(parse) {
                Some(value) => Ok(Some(value)),
                None => Err(BadOption { name, expected, got: value.to_string_lossy().into() }),
            }
        }
        let mut options = Self::default();
        if let Some(n) = read("LAB_EMULATOR_THREADS", "a number of threads from 1 to 256", |t| {
            t.parse().ok().filter(|n| (1..=256).contains(n))
        })? {
            options.threads = n;
        }
        if let Some(order) = read(
            "LAB_EMULATOR_ORDER",
            "forward, reverse, warps, random[:SEED] or starve[:SEED]",
            |t| t.parse().ok(),
        )? {
            options.order = order;
        }
        if let Some(seconds) =
            read("LAB_EMULATOR_STALL_SECONDS", "seconds from 0.1 to 86400", |t| {
                t.parse::<f64>().ok().filter(|s| (0.1..=86400.0).contains(s))
            })?
        {
            options.stall_limit = Duration::from_secs_f64(seconds);
        }
        if let Some(copies) =
            read("LAB_EMULATOR_COPIES", "early, late or random[:SEED]", |t| t.parse().ok())?
        {
            options.copies = copies;
        }
        Ok(options)
    }
}

/// A launch was refused, or the kernel is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A size is zero or over its limit.
    #[error("{kernel}: {what}: expected 1 to {max}, got {got}")]
    Size {
        /// The kernel.
        kernel: String,
        /// Which size.
        what: &'static str,
        /// Its largest value.
        max: u64,
        /// What was asked for.
        got: u64,
    },
    /// Clusters that the grid does not fall into, or in a cooperative launch.
    #[error(
        "{kernel}: blocks of a cluster: expected a divisor of grid.x, {grid}, in a launch that is \
         not cooperative, got {cluster}{}",
        if *.cooperative { " in a cooperative one" } else { "" }
    )]
    Cluster {
        /// The kernel.
        kernel: String,
        /// Blocks of a cluster.
        cluster: u32,
        /// Blocks along x.
        grid: u32,
        /// Whether the launch is cooperative.
        cooperative: bool,
    },
    /// A cooperative launch that is to overlap the one before it.
    #[error(
        "{kernel}: expected a launch that is cooperative or overlaps the one before it, got both"
    )]
    OverlapCooperative {
        /// The kernel.
        kernel: String,
    },
    /// The number of arguments is not the number of parameters.
    #[error("{kernel}: expected {expected} arguments, got {got}")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Parameters of the kernel.
        expected: usize,
        /// Arguments given.
        got: usize,
    },
    /// The host is out of memory or threads.
    #[error("{kernel}: {0}", kernel = .1)]
    Host(#[source] std::io::Error, String),
    /// A [`Cancel`](crate::Cancel) has ended it.
    #[error("{kernel}: the launch was cancelled")]
    Cancelled {
        /// The kernel.
        kernel: String,
    },
    /// The kernel is wrong.
    #[error("{kernel}: {findings}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// How.
        findings: Findings,
        /// What was counted nevertheless, where the launch has come to its end.
        profile: Profile,
    },
}

/// Runs a kernel over a grid, to its end. What it counted comes back, if it was to count.
///
/// # Errors
/// [`LaunchError`]: refused before anything ran, or a deadlock, an endless spin, a fault; for a
/// kernel of a checked object also all else that the checks found.
///
/// # Safety
/// Each argument points to a value of its parameter's type, and what those values point to is
/// valid for whatever the kernel does with it. Nobody else touches that meanwhile, nor tells the checks of it
/// ([`host_wrote_bytes`](crate::host_wrote_bytes) and the like).
pub unsafe fn launch(
    kernel: &Kernel,
    config: &Config,
    arguments: &[*mut c_void],
    options: &Options,
) -> Result<Profile, LaunchError> {
    let name = kernel.name();
    let geometry = Geometry {
        grid: config.grid,
        block: config.block,
        dynamic_shared: config.dynamic_shared,
        cooperative: config.cooperative,
        cluster: config.cluster,
    };
    check(name, kernel, &geometry, arguments)?;
    if config.cooperative && config.overlap_previous {
        return Err(LaunchError::OverlapCooperative { kernel: name.to_owned() });
    }
    let checked = kernel.module().checked();
    // The checks want a run that is the same every time.
    let options = &Options { threads: if checked { 1 } else { options.threads }, ..*options };
    let mut checks = if checked {
        // SAFETY: the arguments are what the parameters say.
        Some(
            unsafe { checks(kernel, geometry, arguments, config.overlap_previous, options) }
                .map_err(|error| LaunchError::Host(error, name.to_owned()))?,
        )
    } else {
        None
    };
    let launch = Launch {
        kernel,
        geometry,
        options,
        arguments: arguments.as_ptr().cast_mut(),
        checks: checks.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
        watched: Watched::start(options.stall_limit),
        failure: Mutex::new(None),
    };
    if launch.watched.cancelled() {
    } else if config.cooperative {
        launch.cooperative()
    } else if config.cluster > 1 {
        launch.clusters()
    } else {
        launch.run_independent_blocks()
    };
    if launch.watched.cancelled() {
        return Err(LaunchError::Cancelled { kernel: name.to_owned() });
    }
    let fatal = match launch.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => None,
        Some(Failure::Host(error)) => return Err(LaunchError::Host(error, name.to_owned())),
        Some(Failure::Kernel(finding)) => Some(*finding),
    };
    let is_whole = fatal.is_none();
    let findings = match &mut checks {
        Some(checks) => checks.finish(fatal),
        None => fatal.map(|finding| Findings { all: vec![finding], more: 0 }),
    };
    if let Some(checks) = checks.as_ref().filter(|_| copied_out::keeps()) {
        copied_out::remember(checks.grid());
    }
    match findings {
        Some(findings) => {
            let counted = checks.filter(|_| is_whole).map(|mut checks| checks.profile());
            let profile = counted.unwrap_or_default();
            Err(LaunchError::Kernel { kernel: name.to_owned(), findings, profile })
        }
        None => Ok(checks.map_or_else(Profile::default, |mut checks| {
            let profile = checks.profile();
            grids::put(options.queue, checks.into_earlier());
            profile
        })),
    }
}

/// # Safety
/// Each argument points to a value of its parameter's type.
unsafe fn checks(
    kernel: &Kernel,
    geometry: Geometry,
    arguments: &[*mut c_void],
    overlaps: bool,
    options: &Options,
) -> std::io::Result<LaunchCheck> {
    let is_pointer = |index: &usize| kernel.parameters()[*index].type_name.ends_with('*');
    let pointers = (0..arguments.len()).filter(is_pointer);
    // SAFETY: the caller's promise; these are pointers.
    let pointers = pointers.map(|i| (i, unsafe { *arguments[i].cast::<usize>() })).collect();
    let earlier = grids::take(options.queue);
    let earlier = if overlaps { earlier } else { earlier.ended() };
    let watchers = (options.count, options.trace);
    LaunchCheck::new(kernel, geometry, pointers, watchers, earlier, overlaps)
}

fn check(
    name: &str,
    kernel: &Kernel,
    geometry: &Geometry,
    arguments: &[*mut c_void],
) -> Result<(), LaunchError> {
    let expected = kernel.parameters().len();
    if arguments.len() != expected {
        return Err(LaunchError::ArgumentCount {
            kernel: name.to_owned(),
            expected,
            got: arguments.len(),
        });
    }
    let [gx, gy, gz] = geometry.grid.map(u64::from);
    let [bx, by, bz] = geometry.block.map(u64::from);
    let blocks_max = if geometry.cooperative { MAX_COOPERATIVE_BLOCKS } else { u64::MAX };
    let sizes = [
        ("grid.x", gx, 1, (1 << 31) - 1),
        ("grid.y", gy, 1, 65535),
        ("grid.z", gz, 1, 65535),
        ("block.x", bx, 1, 1024),
        ("block.y", by, 1, 1024),
        ("block.z", bz, 1, 64),
        ("blocks of a cluster", u64::from(geometry.cluster), 0, u64::from(MAX_CLUSTER)),
        ("threads per block", bx * by * bz, 1, MAX_THREADS_PER_BLOCK as u64),
        ("blocks of a cooperative launch", gx * gy * gz, 1, blocks_max),
        (
            "dynamic shared memory in bytes",
            geometry.dynamic_shared as u64,
            0,
            MAX_DYNAMIC_SHARED as u64,
        ),
    ];
    let cluster = u64::from(geometry.cluster.max(1));
    if !gx.is_multiple_of(cluster) || geometry.cooperative && cluster > 1 {
        return Err(LaunchError::Cluster {
            kernel: name.to_owned(),
            cluster: geometry.cluster,
            grid: geometry.grid[0],
            cooperative: geometry.cooperative,
        });
    }
    for (what, got, min, max) in sizes {
        if got < min || got > max {
            return Err(LaunchError::Size { kernel: name.to_owned(), what, max, got });
        }
    }
    Ok(())
}

enum Failure {
    Host(std::io::Error),
    Kernel(Box<Finding>),
}

struct Launch<'a> {
    kernel: &'a Kernel,
    geometry: Geometry,
    options: &'a Options,
    arguments: *mut *mut c_void,
    /// Null where the kernel is not checked.
    checks: *mut LaunchCheck,
    watched: Arc<Watched>,
    failure: Mutex<Option<Failure>>,
}

// SAFETY: the argument array is only read, by every worker; the caller of `launch` vouches for
// what it points to. Of a checked launch one OS thread at a time runs anything.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    /// Keeps the first failure and ends the launch.
    fn fail(&self, failure: Failure) {
        let mut kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert(failure);
        self.watched.abort();
    }

    fn runner(&self, cluster: Option<(Arc<Cluster>, u32)>) -> Option<BlockRunner> {
        watchdog::prepare_thread();
        let Options { order, copies, .. } = *self.options;
        let (arguments, checks) = (self.arguments, self.checks);
        let (kernel, geometry, watched) = (self.kernel, self.geometry, &self.watched);
        BlockRunner::new(kernel, geometry, order, copies, arguments, checks, watched, cluster)
            .map_err(|error| self.fail(Failure::Host(error)))
            .ok()
    }

    /// Runs a block until it pauses; `None` when the launch is over for it.
    fn advance(&self, runner: &mut BlockRunner) -> Option<Pause> {
        match runner.run() {
            Ok(Pause::Polling) if self.watched.is_aborted() => {
                self.stalled(runner, SPIN, "");
                None
            }
            Ok(pause) => Some(pause),
            Err(finding) if finding.kind == Kind::Stalled => {
                self.stalled(runner, &finding.message, &finding.fix);
                None
            }
            Err(finding) => {
                self.fail(Failure::Kernel(finding));
                None
            }
        }
    }

    /// If it was the watchdog that stopped this block, says where it stands; `what` has not come about.
    fn stalled(&self, runner: &BlockRunner, what: &str, fix: &str) {
        if let Some(limit) = self.watched.stalled() {
            let message =
                format!("{what} for {} s (LAB_EMULATOR_STALL_SECONDS)", limit.as_secs_f32());
            let finding = Finding::new(Kind::Stalled, message).standing(runner.standing()).fix(fix);
            self.fail(Failure::Kernel(Box::new(finding)));
        }
    }

    // ---- independent blocks ---------------------------------------------------------------

    fn run_independent_blocks(&self) {
        let blocks = self.geometry.blocks();
        let workers = (self.options.threads as u64).min(blocks).max(1);
        let fixed_shared = self.kernel.module().shared_bytes();
        let all = &Independent {
            next: AtomicU64::new(0),
            crowd: Crowd::new(&self.geometry, fixed_shared, workers, workers == 1),
        };
        std::thread::scope(|threads| {
            // Threads that are there already: to begin one takes longer than many a launch.
            rayon::in_place_scope(|scope| {
                for me in 1..workers {
                    scope.spawn(move |_| self.work(Crew { me, all, threads }));
                }
                self.work(Crew { me: 0, all, threads });
            });
        });
    }

    /// Runs blocks one after the other.
    fn work<'s>(&'s self, crew: Crew<'s, '_>) {
        let Crew { me, all, .. } = crew;
        let _leave = Member(&all.crowd, me);
        let blocks = self.geometry.blocks();
        if all.next.load(Ordering::Relaxed) >= blocks {
            return; // over before this thread woke up
        }
        let _enlisted = self.watched.enlist();
        let Some(mut runner) = self.runner(None) else { return };
        loop {
            if all.crowd.alternates() && !matches!(all.crowd.rest(me, &self.watched), Turn::Own) {
                return;
            }
            let turn = all.next.fetch_add(1, Ordering::Relaxed);
            if turn >= blocks || self.watched.is_aborted() {
                return;
            }
            runner.start(nth_block(self.options.order, turn, blocks));
            if !self.run_to_end(&mut runner, crew) {
                return;
            }
        }
    }

    /// False where the launch is over.
    fn run_to_end<'s>(&'s self, runner: &mut BlockRunner, crew: Crew<'s, '_>) -> bool {
        let mut waits = Waits::default();
        loop {
            match self.advance(runner) {
                Some(Pause::Done) => return true,
                // Of a cluster of one.
                Some(Pause::ClusterSync) => runner.release_cluster(),
                Some(Pause::Awaiting(_)) if runner.hurry() || runner.disappoint() => {}
                Some(Pause::Awaiting(_)) => {
                    self.fail(Failure::Kernel(runner.deadlock()));
                    return false;
                }
                Some(Pause::Restless) => {
                    if waits.has_polled_enough(runner, crew.all.crowd.alternates())
                        && !self.let_others(runner, crew)
                    {
                        return false;
                    }
                }
                // A grid sync is refused where it is called; polling lets others run.
                Some(Pause::GridSync | Pause::Polling) => std::thread::yield_now(),
                None => return false,
            }
        }
    }

    /// The block, or a block of the cluster, that this thread runs waits: others have their turn, or begin. False where the launch
    /// is over.
    fn let_others<'s>(&'s self, runner: &mut BlockRunner, crew: Crew<'s, '_>) -> bool {
        let Crew { me, all, threads } = crew;
        let size = u64::from(self.geometry.cluster.max(1));
        let more = all.next.load(Ordering::Relaxed) < self.geometry.blocks() / size;
        runner.lets_others();
        let turn = match all.crowd.pass(me, more, &self.watched) {
            Turn::Another(new) => {
                let builder = std::thread::Builder::new().stack_size(256 * 1024);
                let begin = move || {
                    let crew = Crew { me: new, ..crew };
                    if size > 1 { self.work_clusters(crew) } else { self.work(crew) }
                };
                if let Err(error) = builder.spawn_scoped(threads, begin) {
                    self.fail(Failure::Host(error));
                    return false;
                }
                if all.crowd.alternates() { all.crowd.wait(me, &self.watched) } else { Turn::Own }
            }
            turn => turn,
        };
        matches!(turn, Turn::Own)
    }

    // ---- cooperative blocks ---------------------------------------------------------------

    /// Every block has an OS thread, for its static shared memory is that thread's; at most
    /// `options.threads` of them run at a time, in the schedule's order.
    fn cooperative(&self) {
        self.run_resident_blocks(self.geometry.blocks() as u32, 0, None);
    }

    /// One cluster after the other, each as a cooperative launch of its own; once one waits for another, several at once, as
    /// blocks do ([`crate::crowd`]).
    fn clusters(&self) {
        // Of a checked launch one OS thread at a time runs.
        let alternates = self.options.threads <= 1;
        let fixed_shared = self.kernel.module().shared_bytes();
        let all = &Independent {
            next: AtomicU64::new(0),
            crowd: Crowd::new(&self.geometry, fixed_shared, 1, alternates),
        };
        std::thread::scope(|threads| self.work_clusters(Crew { me: 0, all, threads }));
    }

    /// Runs clusters one after the other.
    fn work_clusters<'s>(&'s self, crew: Crew<'s, '_>) {
        let Crew { me, all, .. } = crew;
        let _leave = Member(&all.crowd, me);
        let size = self.geometry.cluster;
        let clusters = self.geometry.blocks() / u64::from(size);
        loop {
            if all.crowd.alternates() && !matches!(all.crowd.rest(me, &self.watched), Turn::Own) {
                return;
            }
            let turn = all.next.fetch_add(1, Ordering::Relaxed);
            if turn >= clusters || self.watched.is_aborted() {
                return;
            }
            let nth = nth_block(self.options.order, turn, clusters);
            let cluster = Arc::new(Cluster::new(size));
            self.run_resident_blocks(size, nth * u64::from(size), Some((&cluster, crew)));
        }
    }

    /// Blocks from number `first` on, all resident.
    fn run_resident_blocks<'s>(&'s self, blocks: u32, first: u64, within: Within<'_, 's, '_>) {
        let baton = Baton::new(blocks, self.options, within.is_some());
        std::thread::scope(|scope| {
            for block in 0..blocks {
                let builder = std::thread::Builder::new().stack_size(256 * 1024);
                let baton = &baton;
                let run = move || self.run_resident_block(block, first, baton, within);
                if let Err(error) = builder.spawn_scoped(scope, run) {
                    self.fail(Failure::Host(error));
                    baton.give_up();
                    if let Some((cluster, _)) = within {
                        cluster.stay((blocks - block) as usize);
                    }
                    break;
                }
            }
        });
    }

    fn run_resident_block<'s>(
        &'s self,
        block: u32,
        first: u64,
        baton: &Baton,
        within: Within<'_, 's, '_>,
    ) {
        let runner = self.run_resident(block, first, baton, within);
        if let Some((cluster, _)) = within {
            cluster.stay(1);
        }
        drop(runner);
    }

    /// Runs a block to its end, and gives back the runner, which holds the block's memory.
    fn run_resident<'s>(
        &'s self,
        block: u32,
        first: u64,
        baton: &Baton,
        within: Within<'_, 's, '_>,
    ) -> Option<BlockRunner> {
        let _enlisted = self.watched.enlist();
        let _leave = Leave(baton, block);
        baton.take(block);
        let runner = if self.watched.is_aborted() {
            None
        } else {
            self.runner(within.map(|(c, _)| (c.clone(), block)))
        };
        let Some(mut runner) = runner else {
            baton.give_up();
            return None;
        };
        runner.join_cluster();
        // All of a cluster have their memory before the first runs.
        if within.is_some() && !matches!(baton.meet(block), Meeting::Everybody(_)) {
            return Some(runner);
        }
        self.run_together(&mut runner, block, first, baton, within);
        if let Some((cluster, _)) = within {
            cluster.exit(block);
        }
        Some(runner)
    }

    fn run_together<'s>(
        &'s self,
        runner: &mut BlockRunner,
        block: u32,
        first: u64,
        baton: &Baton,
        within: Within<'_, 's, '_>,
    ) {
        runner.start(first + u64::from(block));
        let (cluster, crew) = within.unzip();
        let mut waits = Waits::default();
        loop {
            match self.advance(runner) {
                Some(Pause::Done) => return,
                Some(Pause::Restless) => {
                    if let Some(crew) = crew
                        && waits.has_polled_enough(runner, crew.all.crowd.alternates())
                        && !self.let_others(runner, crew)
                    {
                        return baton.give_up();
                    }
                    baton.pass(block);
                }
                Some(Pause::Polling) => baton.pass(block),
                Some(Pause::Awaiting(_)) if runner.hurry() => {}
                Some(Pause::Awaiting(events)) => {
                    if baton.pass_idle(block, events, cluster) && !runner.disappoint() {
                        self.fail(Failure::Kernel(runner.deadlock()));
                        return baton.give_up();
                    }
                }
                Some(Pause::ClusterSync) if !baton.exits_count => runner.release_cluster(),
                Some(Pause::ClusterSync) => {
                    runner.bring_to_cluster();
                    if matches!(baton.meet(block), Meeting::Abandoned { .. }) {
                        return;
                    }
                    runner.release_cluster();
                }
                Some(Pause::GridSync) => match baton.meet(block) {
                    Meeting::Everybody(meeting) => runner.release_grid(meeting),
                    Meeting::Abandoned { exited } => {
                        let message = format!(
                            "deadlock: {exited} blocks have exited without the grid sync that the \
                             others wait in"
                        );
                        let finding = Finding::new(Kind::GridSyncAbandoned, message)
                            .standing(runner.standing())
                            .fix("let every block come to every grid sync");
                        self.fail(Failure::Kernel(Box::new(finding)));
                        return baton.give_up();
                    }
                },
                None => return baton.give_up(),
            }
            if self.watched.is_aborted() {
                self.stalled(runner, SPIN, "");
                return baton.give_up();
            }
        }
    }
}

/// What has not come about where a block waits for what nobody does.
const SPIN: &str = "endless spin: no progress";

/// A thread of those that run a launch's blocks or clusters, by its number.
#[derive(Clone, Copy)]
struct Crew<'s, 'e> {
    me: u64,
    all: &'s Independent,
    threads: &'s Scope<'s, 'e>,
}

/// The cluster that a block is of, and who runs that.
type Within<'a, 's, 'e> = Option<(&'a Arc<Cluster>, Crew<'s, 'e>)>;

/// The blocks or clusters of a launch that is not cooperative.
struct Independent {
    /// Which takes its turn next.
    next: AtomicU64,
    crowd: Crowd,
}

/// An OS thread that runs blocks ends, on whatever path.
struct Member<'a>(&'a Crowd, u64);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// How long a block has polled.
#[derive(Default)]
struct Waits {
    restless: u32,
    since: Option<Instant>,
    has_waited: bool,
}

impl Waits {
    /// Whether the block, which is restless once more, has polled for so long that others are to have a turn. `counts`: by
    /// its turns alone, so that a run is the same every time.
    fn has_polled_enough(&mut self, runner: &BlockRunner, counts: bool) -> bool {
        self.restless += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        let patience = if self.has_waited || runner.reads_again() { 1 } else { crowd::PATIENCE };
        if self.restless < patience || !counts && since.elapsed() < crowd::PATIENCE_TIME {
            return false;
        }
        *self = Self { has_waited: true, ..Self::default() };
        true
    }
}

/// Which block takes the `turn`-th turn. Random order steps through the grid by a stride that has
/// no divisor in common with it: a permutation that needs no table.
fn nth_block(order: Order, turn: u64, blocks: u64) -> u64 {
    match order {
        Order::Forward | Order::Warps => turn,
        Order::Reverse => blocks - 1 - turn,
        Order::Random(seed) | Order::Starve(seed) => {
            let gcd = |mut a: u64, mut b: u64| {
                while b != 0 {
                    (a, b) = (b, a % b);
                }
                a
            };
            let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut stride = ((mixed >> 32) % blocks) | 1;
            while gcd(stride, blocks) != 1 {
                stride += 2;
            }
            ((u128::from(turn) * u128::from(stride) + u128::from(mixed % blocks))
                % u128::from(blocks)) as u64
        }
    }
}

/// Who of a cooperative launch's blocks may run.
struct Baton {
    state: Mutex<BatonState>,
    turn: Vec<Condvar>,
    order: Order,
    /// Whether a block that has exited has come to every meeting, as in a cluster.
    exits_count: bool,
}

struct BatonState {
    ready: VecDeque<u32>,
    free: usize,
    blocks: usize,
    met: usize,
    exited: usize,
    /// Of each block, whether it has.
    gone: Vec<bool>,
    generation: u64,
    given_up: bool,
    shuffler: Shuffler,
    /// Of each block that waits at mbarriers alone: how many events of the cluster it had seen.
    idle: Vec<Option<u64>>,
}

enum Meeting {
    /// For which time.
    Everybody(u64),
    Abandoned {
        exited: usize,
    },
}

impl Baton {
    fn new(blocks: u32, options: &Options, exits_count: bool) -> Self {
        let mut ready: Vec<u32> = (0..blocks).collect();
        let mut shuffler = Shuffler::new(options.order, 0);
        shuffler.arrange(&mut ready);
        Self {
            state: Mutex::new(BatonState {
                ready: ready.into(),
                free: options.threads.max(1),
                blocks: blocks as usize,
                met: 0,
                exited: 0,
                gone: vec![false; blocks as usize],
                generation: 0,
                given_up: false,
                shuffler,
                idle: vec![None; blocks as usize],
            }),
            turn: (0..blocks).map(|_| Condvar::new()).collect(),
            order: options.order,
            exits_count,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BatonState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those at the front of the queue run.
    fn wake_those_in_front(&self, state: &BatonState) {
        for &block in state.ready.iter().take(state.free) {
            self.turn[block as usize].notify_one();
        }
    }

    /// Waits for this block's turn; everybody is queued from the start.
    fn take(&self, block: u32) {
        let mut state = self.lock();
        let mine = |s: &BatonState| s.ready.iter().take(s.free).any(|&b| b == block);
        while !state.given_up && !mine(&state) {
            state = self.turn[block as usize].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ready.retain(|&b| b != block);
        state.free = state.free.saturating_sub(1);
    }

    /// To the end of the queue.
    fn pass(&self, block: u32) {
        let mut state = self.lock();
        state.idle[block as usize] = None;
        self.queue(state, block);
    }

    /// The same, of a block that can only go on when another does something. True where none will: all
    /// others are as idle as this one, have exited, or wait for it in a meeting.
    fn pass_idle(&self, block: u32, events: u64, cluster: Option<&Arc<Cluster>>) -> bool {
        let now = || cluster.map_or(0, |c| c.events());
        let mut state = self.lock();
        state.idle[block as usize] = Some(events);
        let idle = |(b, seen): (usize, &Option<u64>)| *seen == Some(now()) && !state.gone[b];
        let idle = state.idle.iter().enumerate().filter(|&pair| idle(pair)).count();
        if idle + state.met + state.exited == state.blocks {
            return true;
        }
        self.queue(state, block);
        false
    }

    fn queue(&self, mut state: MutexGuard<'_, BatonState>, block: u32) {
        state.ready.push_back(block);
        state.free += 1;
        self.wake_those_in_front(&state);
        drop(state);
        self.take(block);
    }

    /// Waits until every block is here.
    fn meet(&self, block: u32) -> Meeting {
        let mut state = self.lock();
        state.idle[block as usize] = None;
        state.met += 1;
        state.free += 1;
        let generation = state.generation;
        if !self.settle(&mut state) {
            self.wake_those_in_front(&state);
        }
        while state.generation == generation {
            let abandoned = state.met + state.exited == state.blocks && !self.exits_count;
            if state.given_up || abandoned {
                return Meeting::Abandoned { exited: state.exited };
            }
            state = self.turn[block as usize].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.take(block);
        Meeting::Everybody(generation + 1)
    }

    /// If all have met, queues them again; if the missing ones have exited, wakes those who wait.
    fn settle(&self, state: &mut BatonState) -> bool {
        if state.met == 0 || state.met + state.exited < state.blocks {
            return false;
        }
        if state.exited == 0 || self.exits_count {
            state.met = 0;
            state.generation += 1;
            let here = |block: &u32| !state.gone[*block as usize];
            let mut all: Vec<u32> = (0..state.blocks as u32).filter(here).collect();
            if self.order != Order::Forward {
                state.shuffler.arrange(&mut all);
            }
            state.ready = all.into();
        }
        self.turn.iter().for_each(Condvar::notify_one);
        true
    }

    fn give_up(&self) {
        self.lock().given_up = true;
        self.turn.iter().for_each(Condvar::notify_one);
    }
}

/// A block's OS thread ends, on whatever path.
struct Leave<'a>(&'a Baton, u32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.exited += 1;
        state.gone[self.1 as usize] = true;
        state.free += 1;
        if !self.0.settle(&mut state) {
            self.0.wake_those_in_front(&state);
        }
    }
}
