//! What a program's host code asks of the device: memory, copies, launches.
//!
//! A process runs one program: its functions have no argument that could say which.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lab_emulator::{Check, Config, Finding, Grids, Kernel, LaunchError, Module, Options, Profile};

use crate::arch::Arch;

/// As `cudaError`.
const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const INVALID_CONFIGURATION: c_int = 9;
const ALREADY_REGISTERED: c_int = 712;
const LAUNCH_FAILURE: c_int = 719;
const NOT_SUPPORTED: c_int = 801;

/// Bytes of an argument that the compiler does not copy word by word.
const LARGE: usize = 16;

/// As `EmuMemory`.
const DEVICE: c_int = 0;
const HOST: c_int = 2;

/// What compat/runtime/launch.h calls `EmuHost`.
#[repr(C)]
pub(crate) struct Host {
    in_kernel: extern "C" fn() -> c_int,
    allocate: extern "C" fn(usize, c_int) -> *mut c_void,
    release: extern "C" fn(*mut c_void, c_int) -> c_int,
    copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int,
    fill: unsafe extern "C" fn(*mut c_void, c_int, usize) -> c_int,
    launch: unsafe extern "C" fn(
        *const c_void,
        *const u32,
        *const u32,
        usize,
        c_int,
        u32,
        c_int,
        *mut *mut c_void,
    ) -> c_int,
    type_of: unsafe extern "C" fn(*const c_void, *mut usize) -> c_int,
    adopt: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    disown: extern "C" fn(*const c_void) -> c_int,
    unsupported: unsafe extern "C" fn(*const c_char),
    nest: unsafe extern "C" fn(*const u32, *const u32, usize),
    is_nested: extern "C" fn() -> c_int,
    launch_later: unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> c_int,
    end: extern "C" fn(c_int),
    refuse: unsafe extern "C" fn(*const c_char),
}

pub(crate) static HOST_TABLE: Host = Host {
    in_kernel,
    allocate,
    release,
    copy,
    fill,
    launch,
    type_of,
    adopt,
    disown,
    unsupported,
    nest,
    is_nested,
    launch_later,
    end: crate::program::end_at_once,
    refuse,
};

/// What a program has done so far.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Length and kind, by address.
    memory: BTreeMap<usize, (usize, c_int)>,
    /// The lengths of all together.
    bytes: u64,
    pub(crate) launches: usize,
    /// Each finding once, with the kernel that it is of.
    pub(crate) findings: Vec<(String, Finding)>,
    /// Those of the same places as one that is kept.
    pub(crate) repeated: usize,
    /// Calls that were refused, and why.
    pub(crate) refused: BTreeSet<String>,
    /// Those of them that a GPU refuses, too.
    pub(crate) api_errors: usize,
    /// A launch has ended early or not begun: what it was to write is missing for that reason.
    is_broken: bool,
    /// Kernels that cannot be run, and why.
    pub(crate) not_run: BTreeSet<String>,
    /// Findings are kept, and told by nobody here.
    pub(crate) is_quiet: bool,
    /// The launch that came last: its kernel, and how.
    pub(crate) last: Option<(String, Config)>,
    /// What all of them have counted.
    pub(crate) profile: Profile,
}

impl State {
    /// Base, length and kind of the allocation that an address lies in.
    fn find(&self, address: usize) -> Option<(usize, usize, c_int)> {
        let (&base, &(len, kind)) = self.memory.range(..=address).next_back()?;
        (address < base + len).then_some((base, len, kind))
    }

    /// Keeps a call that a GPU refuses, too, with the line of the program that makes it: each once.
    pub(crate) fn refuse(&mut self, what: &str) {
        self.refuse_at(what, host_line(false));
    }

    /// The same of a launch.
    fn refuse_launch(&mut self, what: &str) {
        self.refuse_at(what, host_line(true));
        self.is_broken = true;
    }

    fn refuse_at(&mut self, what: &str, line: Option<String>) {
        let place = line.map_or_else(String::new, |line| format!(", at {line}"));
        self.api_errors += usize::from(self.refused.insert(format!("{what}{place}")));
    }
}

static STATE: Mutex<State> = Mutex::new(State {
    memory: BTreeMap::new(),
    bytes: 0,
    launches: 0,
    findings: Vec::new(),
    repeated: 0,
    refused: BTreeSet::new(),
    api_errors: 0,
    is_broken: false,
    not_run: BTreeSet::new(),
    is_quiet: false,
    last: None,
    profile: Profile { lines: Vec::new(), left_out: 0 },
});
static PROGRAM: OnceLock<(Options, Arch)> = OnceLock::new();
/// The program's own, or those of its modules that were used.
static MODULES: Mutex<Vec<Arc<Module>>> = Mutex::new(Vec::new());

/// What this process's program has done.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says how the process runs its program. Once.
pub(crate) fn begin(options: Options, arch: Arch) -> bool {
    PROGRAM.set((options, arch)).is_ok()
}

/// Looks at what the program's own host code reads, which is in its one module.
pub(crate) fn watch_host(module: &Module) {
    if module.checked() {
        lab_emulator::watch_host(|kernel, finding| keep(&readable(kernel), finding));
    }
}

/// The program has ended as it wanted to: what it has copied and not read by now, it does not read.
pub(crate) fn end() {
    let is_broken = state().is_broken;
    if !is_broken {
        lab_emulator::host_gave_back(std::ptr::null(), usize::MAX);
    }
}

/// Adds what the program is made of.
pub(crate) fn add_module(module: Arc<Module>) {
    modules().push(module);
}

fn modules() -> MutexGuard<'static, Vec<Arc<Module>>> {
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a variable of the program's own is there.
pub(crate) fn is_variable(address: usize) -> bool {
    modules().iter().any(|module| module.holds(address))
}

/// The line of the program's own that has called into this one; `None` where the caller is not the program's. A launch is asked for by
/// the kernel's own function, which the program's line calls.
fn host_line(is_launch: bool) -> Option<String> {
    // A kernel's frames lie on a stack of its own.
    let frames = if lab_emulator::in_kernel() { Vec::new() } else { crate::fault::frames() };
    let modules = modules();
    let place = |frame| modules.iter().find_map(|module| module.own_source(frame));
    let mut places = frames.into_iter().filter_map(place);
    let first = places.next();
    if is_launch { places.next().or(first) } else { first }
}

extern "C" fn in_kernel() -> c_int {
    c_int::from(lab_emulator::in_kernel())
}

pub(crate) extern "C" fn allocate(bytes: usize, kind: c_int) -> *mut c_void {
    let mut state = state();
    let limit = crate::limit::device_memory();
    let all = state.bytes.saturating_add(bytes as u64);
    if all > limit {
        let refused = format!("cudaMalloc: expected at most {limit} bytes in all, got {all}");
        state.refused.insert(refused);
        return std::ptr::null_mut();
    }
    let Ok(address) = lab_emulator::allocate(bytes) else { return std::ptr::null_mut() };
    state.memory.insert(address as usize, (bytes, kind));
    state.bytes = all;
    address.cast()
}

/// Device memory that the process itself gives to a launch.
pub(crate) fn hold(bytes: usize) -> Option<*mut u8> {
    let address = allocate(bytes, DEVICE).cast::<u8>();
    (!address.is_null()).then_some(address)
}

pub(crate) extern "C" fn release(address: *mut c_void, kind: c_int) -> c_int {
    let mut state = state();
    let mut gone = 0;
    let code = match state.memory.get(&(address as usize)) {
        Some(&(bytes, k)) if (k == HOST) == (kind == HOST) => {
            state.memory.remove(&(address as usize));
            state.bytes -= bytes as u64;
            gone = bytes;
            // SAFETY: it was allocated above, and is freed once.
            unsafe { lab_emulator::free(address.cast()) };
            SUCCESS
        }
        _ => {
            let call = if kind == HOST { "cudaFreeHost" } else { "cudaFree" };
            let got = format!("{call}: expected an address that was allocated and not freed since");
            state.refuse(&got);
            INVALID_VALUE
        }
    };
    // Who is told of a finding keeps it in the state.
    drop(state);
    lab_emulator::host_gave_back(address.cast(), gone);
    code
}

/// Both ends of a copy, as far as the emulator knows them.
unsafe extern "C" fn copy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> c_int {
    let code = check_copy(to as usize, from as usize, bytes, kind);
    if code == SUCCESS {
        // SAFETY: the program's own promise, as on a GPU; what lies in allocations was looked at.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast(), bytes) };
        note_copy(to as usize, from as usize, bytes);
        if state().is_broken {
            lab_emulator::host_overwrote(to.cast(), bytes);
        } else {
            // SAFETY: they were copied there just now.
            unsafe { lab_emulator::host_copied_out(from.cast(), to.cast(), bytes) };
        }
    }
    code
}

/// Whether a copy's ends are what its kind says and lie in allocations.
pub(crate) fn check_copy(to: usize, from: usize, bytes: usize, kind: c_int) -> c_int {
    let mut state = state();
    // cudaMemcpyHostToDevice, DeviceToHost, DeviceToDevice.
    let (to_device, from_device) = (matches!(kind, 1 | 3), matches!(kind, 2 | 3));
    for (end, address, is_device) in [("destination", to, to_device), ("source", from, from_device)]
    {
        if let Some(wrong) = wrong_end(&state, address, bytes, is_device) {
            state.refuse(&format!("cudaMemcpy: {end}: {wrong}"));
            return INVALID_VALUE;
        }
    }
    SUCCESS
}

/// Tells the checks of a copy.
pub(crate) fn note_copy(to: usize, from: usize, bytes: usize) {
    let kinds = [to, from].map(|a| state().find(a).map(|(_, _, kind)| kind));
    match kinds {
        [Some(_), Some(DEVICE)] => {
            lab_emulator::host_copied_bytes(from as *const u8, to as *const u8, bytes);
        }
        // What the host writes into its own memory nobody sees.
        [Some(_), _] => lab_emulator::host_wrote_bytes(to as *const u8, bytes),
        _ => {}
    }
}

/// What is wrong with one end of a copy.
fn wrong_end(state: &State, address: usize, bytes: usize, is_device: bool) -> Option<String> {
    match state.find(address) {
        Some((base, len, _)) if address + bytes > base + len => Some(format!(
            "expected at most {} bytes, which are left of an allocation of {len}, got {bytes}",
            base + len - address
        )),
        None if is_device && !is_variable(address) => {
            Some(format!("expected device memory, got {address:#x}, which is none"))
        }
        _ => None,
    }
}

pub(crate) unsafe extern "C" fn fill(to: *mut c_void, value: c_int, bytes: usize) -> c_int {
    let mut state = state();
    if let Some(wrong) = wrong_end(&state, to as usize, bytes, true) {
        state.refuse(&format!("cudaMemset: {wrong}"));
        return INVALID_VALUE;
    }
    // Only device memory is the emulator's own mapping, of zeros.
    let device = matches!(state.find(to as usize), Some((_, _, DEVICE)));
    drop(state);
    let (head, large) =
        if value as u8 == 0 && device { pages(to as usize, bytes) } else { (bytes, 0) };
    // SAFETY: the bytes lie in one allocation, or the program vouches for its variable.
    unsafe {
        std::ptr::write_bytes(to.cast::<u8>(), value as u8, head);
        let rest = to.cast::<u8>().add(head);
        if large > 0 && !lab_emulator::forget_pages(rest, large) {
            std::ptr::write_bytes(rest, 0, large);
        }
        std::ptr::write_bytes(rest.add(large), value as u8, bytes - head - large);
    }
    lab_emulator::host_wrote_bytes(to.cast(), bytes);
    SUCCESS
}

/// Bytes ahead of the first whole page, and bytes of whole pages that can be given back: they are zeros when they are
/// touched again. So an array may be larger than this machine's memory, as long as a kernel touches little of
/// it. Of what is small all bytes are ahead.
fn pages(address: usize, bytes: usize) -> (usize, usize) {
    const PAGE: usize = 4096;
    const LARGE: usize = 1 << 28;
    let head = address.next_multiple_of(PAGE) - address;
    if bytes < LARGE { (bytes, 0) } else { (head, (bytes - head) / PAGE * PAGE) }
}

/// Kind and length of the allocation that an address lies in; -1 where there is none.
pub(crate) unsafe extern "C" fn type_of(address: *const c_void, bytes: *mut usize) -> c_int {
    match state().find(address as usize) {
        Some((_, len, kind)) => {
            // SAFETY: the caller's variable.
            unsafe { *bytes = len };
            kind
        }
        None => -1,
    }
}

/// `cudaHostRegister`: memory of the host's that kernels may use.
unsafe extern "C" fn adopt(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the program's own promise.
    match unsafe { lab_emulator::adopt(address.cast(), bytes) } {
        Ok(()) => SUCCESS,
        Err(error) => {
            state().refuse(&format!("cudaHostRegister: {error}"));
            ALREADY_REGISTERED
        }
    }
}

extern "C" fn disown(address: *const c_void) -> c_int {
    lab_emulator::disown(address.cast());
    SUCCESS
}

unsafe extern "C" fn unsupported(name: *const c_char) {
    // SAFETY: a literal of the program.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    state().refused.insert(format!("{name} is not supported"));
}

unsafe extern "C" fn refuse(what: *const c_char) {
    // SAFETY: a literal of the program.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy();
    state().refuse_launch(&what);
}

/// A launch that a kernel has asked for: it begins when that kernel's grid has ended, as CUDA allows.
struct Child {
    kernel: Kernel,
    config: Config,
    /// Each argument, aligned as any type is.
    arguments: Vec<Vec<u128>>,
}

static CHILDREN: Mutex<VecDeque<Child>> = Mutex::new(VecDeque::new());

thread_local! {
    /// Of the next call of a kernel, which follows at once.
    static NESTED: Cell<Option<Config>> = const { Cell::new(None) };
}

fn children() -> MutexGuard<'static, VecDeque<Child>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn nest(grid: *const u32, block: *const u32, shared: usize) {
    // SAFETY: launch.h passes three sizes twice.
    let [grid, block] = [grid, block].map(|s| unsafe { *s.cast::<[u32; 3]>() });
    NESTED.set(Some(Config {
        grid,
        block,
        dynamic_shared: shared,
        cooperative: false,
        cluster: 0,
        overlap_previous: false,
    }));
}

extern "C" fn is_nested() -> c_int {
    let nested = NESTED.get();
    c_int::from(nested.is_some())
}

unsafe extern "C" fn launch_later(export: *const c_void, arguments: *mut *mut c_void) -> c_int {
    let (Some(module), Some(config)) = (modules().first().cloned(), NESTED.take()) else {
        return LAUNCH_FAILURE;
    };
    // SAFETY: launch.h passes a description of the kernel and the address of each argument.
    let (kernel, given) = unsafe {
        let kernel = module.kernel_at(export);
        let count = kernel.parameters().len();
        (kernel, std::slice::from_raw_parts(arguments, count))
    };
    let copied = kernel.parameters().iter().zip(given).map(|(parameter, &from)| {
        let mut copy = vec![0u128; parameter.size.div_ceil(16)];
        // SAFETY: the argument has the parameter's type, and the copy room for it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.cast::<u8>(),
                copy.as_mut_ptr().cast(),
                parameter.size,
            );
        }
        copy
    });
    let arguments = copied.collect();
    children().push_back(Child { kernel, config, arguments });
    SUCCESS
}

unsafe extern "C" fn launch(
    export: *const c_void,
    grid: *const u32,
    block: *const u32,
    shared: usize,
    cooperative: c_int,
    cluster: u32,
    overlaps: c_int,
    arguments: *mut *mut c_void,
) -> c_int {
    let Some(module) = modules().first().cloned() else { return LAUNCH_FAILURE };
    // SAFETY: launch.h passes a description of the kernel, and three sizes twice.
    let (kernel, [grid, block]) =
        unsafe { (module.kernel_at(export), [grid, block].map(|s| *s.cast::<[u32; 3]>())) };
    let config = Config {
        grid,
        block,
        dynamic_shared: shared,
        cooperative: cooperative != 0,
        cluster,
        overlap_previous: overlaps != 0,
    };
    let count = kernel.parameters().len();
    // SAFETY: launch.h passes the address of each argument.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, count) };
    launch_kernel(&kernel, &config, arguments)
}

/// Launches a kernel, and what it launches, if a GPU takes it.
pub(crate) fn launch_kernel(kernel: &Kernel, config: &Config, arguments: &[*mut c_void]) -> c_int {
    let Some((options, arch)) = PROGRAM.get() else { return LAUNCH_FAILURE };
    if let Err((what, code)) = fits(config, *arch) {
        let mut state = state();
        state.refuse_launch(&format!("{}: {what}", readable(kernel.name())));
        return code;
    }
    let mut code = run(kernel, config, arguments, *options);
    // Nobody holds the queue while a child runs: it may have children of its own.
    loop {
        let child = children().pop_front();
        let Some(mut child) = child else { return code };
        if code != LAUNCH_FAILURE {
            let addresses: Vec<*mut c_void> =
                child.arguments.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
            code = code.max(run(&child.kernel, &child.config, &addresses, *options));
        }
    }
}

/// Whether a GPU of this architecture takes a launch; else why not, and the error that it gives.
fn fits(config: &Config, arch: Arch) -> Result<(), (String, c_int)> {
    let (most, shared) = (arch.shared(), config.dynamic_shared);
    if config.cluster > 1 && !arch.has_clusters() {
        let got = config.cluster;
        return Err((
            format!("clusters: expected none on {arch}, got blocks of {got}"),
            NOT_SUPPORTED,
        ));
    }
    if shared > most {
        let expected = format!("at most {most} bytes on {arch}");
        return Err((
            format!("dynamic shared memory: expected {expected}, got {shared}"),
            INVALID_VALUE,
        ));
    }
    Ok(())
}

/// What the last launches have left that the next may overlap.
static GRIDS: Mutex<Grids> = Mutex::new(Grids::NONE);

/// Runs one grid to its end, and keeps what is found.
fn run(kernel: &Kernel, config: &Config, arguments: &[*mut c_void], options: Options) -> c_int {
    {
        let mut state = state();
        state.launches += 1;
        state.last = Some((readable(kernel.name()), *config));
        // The host may have written them since, which nobody has seen.
        let seen = |&(_, &(_, kind)): &(&usize, &(usize, c_int))| kind != DEVICE;
        for (&base, _) in state.memory.iter().filter(seen) {
            lab_emulator::host_wrote(base as *const u8, true);
        }
    }
    // A large argument is copied by a call, which the checks look at.
    let adopt = |at: *mut u8, bytes| {
        // SAFETY: the argument lies there until the launch ends.
        let adopted = unsafe { lab_emulator::adopt(at, bytes) };
        adopted.is_ok().then_some(at)
    };
    let large = kernel.parameters().iter().zip(arguments).filter(|(p, _)| p.size > LARGE);
    let adopted: Vec<*mut u8> = large.filter_map(|(p, &at)| adopt(at.cast(), p.size)).collect();
    let addresses = Addresses(arguments);
    // What is thread_local in the program is shared memory to the emulator: of another thread than the
    // host code's.
    let outcome = std::thread::scope(|scope| {
        let run = || {
            let addresses = &addresses;
            // Of the program's thread, each of whose launches has one of its own here.
            let mut grids = GRIDS.lock().unwrap_or_else(PoisonError::into_inner);
            lab_emulator::exchange_grids(&mut grids);
            // SAFETY: the arguments are of the kernel's own types.
            let outcome = unsafe { lab_emulator::launch(kernel, config, addresses.0, &options) };
            lab_emulator::exchange_grids(&mut grids);
            outcome
        };
        scope.spawn(run).join()
    });
    adopted.into_iter().for_each(|at| lab_emulator::disown(at));
    let name = readable(kernel.name());
    let code = match outcome {
        Ok(Ok(profile)) => {
            state().profile.add(profile);
            SUCCESS
        }
        Ok(Err(LaunchError::Kernel { findings, profile, .. })) => {
            state().profile.add(profile);
            let ends = |f: &Finding| {
                f.formal.is_none() && !matches!(f.kind.check(), Check::Race | Check::Init)
            };
            let ended = findings.all.iter().any(ends);
            findings.all.into_iter().for_each(|finding| keep(&name, finding));
            if ended { LAUNCH_FAILURE } else { SUCCESS }
        }
        Ok(Err(error)) => {
            let mut state = state();
            // It has not begun.
            state.launches -= 1;
            state.refuse_launch(&error.to_string().replace(kernel.name(), &name));
            INVALID_CONFIGURATION
        }
        Err(_) => LAUNCH_FAILURE,
    };
    if code != SUCCESS {
        state().is_broken = true;
    }
    code
}

struct Addresses<'a>(&'a [*mut c_void]);
// SAFETY: the host's thread waits while the other reads them.
unsafe impl Sync for Addresses<'_> {}

/// Tells a finding, and keeps it: each place once, and once more where it was formal before and is not.
fn keep(kernel: &str, finding: Finding) {
    let mut state = state();
    let places = |f: &Finding| f.places().map(str::to_owned).collect::<Vec<_>>();
    let covers = |f: &Finding| {
        f.kind == finding.kind
            && (f.formal.is_none() || finding.formal.is_some())
            && places(f) == places(&finding)
    };
    if state.findings.iter().any(|(_, f)| covers(f)) {
        state.repeated += 1;
        return;
    }
    if !state.is_quiet {
        let check = finding.kind.check().name();
        let formal = if finding.formal.is_some() { "formal, " } else { "" };
        eprintln!("\n{kernel}, launch {}, {formal}{check}: {finding}\n", state.launches);
    }
    state.findings.push((kernel.to_owned(), finding));
}

/// `k<T = float>` of what g++ calls `void k(T*, int) [with T = float]`.
fn readable(pretty: &str) -> String {
    // Of a module it is a name already.
    if !pretty.contains('(') || pretty.starts_with('(') {
        return pretty.to_owned();
    }
    let (head, with) = pretty.split_once(" [with ").unwrap_or((pretty, ""));
    let path = head.split('(').next().unwrap_or(head);
    let name = path.rsplit(' ').next().unwrap_or(path);
    match with.trim_end_matches(']') {
        "" => name.to_owned(),
        arguments => format!("{name}<{}>", arguments.replace("; ", ", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(readable("void ns::k(float*, int)"), "ns::k");
        let template = "void k(T*) [with T = float; int N = 4]";
        assert_eq!(readable(template), "k<T = float, int N = 4>");
    }
}
