//! One kernel of a file, launched with arguments that somebody gives.
//!
//! The file is compiled as a program is, host code and all. Behind its text stands a function that makes the
//! arguments and launches: what a template deduces, which overload is meant, what converts to what is the
//! C++ compiler's affair, as it is in the file itself.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lab_emulator::{Config, Finding, Kind, Module, Profile};

use crate::arch::Arch;
use crate::clusters;
use crate::compiling::Compiling;
use crate::cuts::Cuts;
use crate::early;
use crate::fault;
use crate::given::{Argument, BadArgument, Buffer, Component, Element, Fill, Role, Value};
use crate::host::{self, HOST_TABLE};
use crate::made::name_kernels_of_macros;
use crate::object::Initialisers;
use crate::program::{compile, first_error, scratch};
use crate::rewrite::Kernel;
use crate::sources::{CUDA, Sources};
use crate::values::{Tensor, filled, read_tensor};
use crate::{Error, Options};

/// What is to be launched. Sizes are expressions of C++, which may name the arguments.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// `name`, `name<float, 4>`, `ns::name`.
    pub kernel: String,
    /// Blocks: 1 to 3 sizes.
    pub grid: Vec<String>,
    /// Threads of a block: 1 to 3 sizes.
    pub block: Vec<String>,
    /// Bytes of dynamic shared memory.
    pub shared: Option<String>,
    /// All blocks are resident at once.
    pub cooperative: bool,
    /// Blocks of a cluster, along x: one size, or `x,1,1`. None where the kernel's module says it, or there is none.
    pub cluster: Option<String>,
    /// Arguments of the kernel, in its order or by name.
    pub arguments: Vec<Argument>,
    /// Further values, each with a name, for expressions.
    pub lets: Vec<Argument>,
}

/// A kernel with its arguments, compiled.
#[derive(Debug)]
pub struct Single {
    module: Arc<Module>,
    initialisers: Initialisers,
    /// Where the kernel stands.
    file: PathBuf,
    kernel: Kernel,
    plan: Vec<Planned>,
    left_out: Vec<String>,
    arch: Arch,
}

/// A value of the launch, under the name that it has there.
#[derive(Clone, Debug)]
struct Planned {
    name: String,
    value: Value,
}

impl Planned {
    /// What messages call it.
    fn title(&self) -> String {
        format!("--arg {}", self.name)
    }
}

/// What a launch has left.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The kernel, with the arguments of its template.
    pub kernel: String,
    /// Where it stands: `file:line`.
    pub place: String,
    /// How it was launched.
    pub config: Option<Config>,
    /// Each finding once, formal ones among them.
    pub findings: Vec<Finding>,
    /// Memory of the launch, in the order of the arguments.
    pub arrays: Vec<Array>,
    /// The numbers among the arguments.
    pub numbers: Vec<(String, f64)>,
    /// What was counted, if it was to be.
    pub profile: Profile,
    /// Errors of other code of the file, which was left out for them.
    pub left_out: Vec<String>,
}

/// Memory of a launch.
#[derive(Clone, Debug)]
pub struct Array {
    /// The argument's name.
    pub name: String,
    /// What the kernel does with it.
    pub role: Role,
    /// `f32`, `float4`.
    pub type_name: String,
    /// Type and shape; bytes where the type is the file's own. Values are those after the launch.
    pub tensor: Tensor,
    /// Its values before the launch; none of [`Role::Out`].
    pub before: Option<Vec<u8>>,
}

/// How a launch is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Of random values.
    pub seed: u64,
    /// Of the emulator.
    pub emulator: lab_emulator::Options,
    /// `threadIdx` and `blockIdx` of the thread that a debugger stops at, in a build for one.
    pub wanted: Option<[[i32; 3]; 2]>,
    /// Ends the process where host code of the file faults: the line that says so, and the exit code that a
    /// shell would tell.
    pub fault: Option<fn(String, i32)>,
}

/// So often code that does not compile is cut, and the rest tried again.
const MAX_CUTS: usize = 12;
/// At most so many bytes for one argument.
const MAX_BYTES: u128 = 1 << 33;

impl Single {
    /// Finds the kernel, orders its arguments, and compiles the file with the launch behind it.
    ///
    /// # Errors
    /// [`Error::Argument`], and those of [`crate::Program::build`].
    pub fn build(file: &Path, launch: &Launch, options: &Options) -> Result<Self, Error> {
        let scratch = scratch()?;
        let compiling = Compiling::begin(scratch.path(), options);
        compiling.end(Self::build_in(scratch.path(), file, launch, options))
    }

    fn build_in(
        scratch: &Path,
        file: &Path,
        launch: &Launch,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut sources = Sources::read(&[file.to_owned()], options, scratch)?;
        name_kernels_of_macros(&mut sources, options, scratch)?;
        let (place, kernel) = find(&sources.kernels, launch)?;
        let (place, kernel) = (place.clone(), kernel.clone());
        if let Some(refusal) = kernel.entry.as_ref().and_then(|entry| entry.refusal.as_ref()) {
            let reason = format!("{}: {refusal}", kernel.shown_name());
            return Err(Error::File { path: file.to_owned(), reason });
        }
        let cluster = clusters::along_x(&kernel, launch.cluster.as_deref())?;
        let launch = &Launch { cluster, ..launch.clone() };
        let plan = plan(&kernel, launch)?;
        let launching = text_of(&kernel, launch, &plan);
        if kernel.entry.is_some() {
            let types = pointer_types(&kernel, &plan);
            sources.units[0].0.insert_str(CUDA.len(), &types);
        }
        let (mut cuts, mut left_out) = (Cuts::default(), Vec::new());
        let (module, initialisers) = loop {
            sources.units[0].0 += &launching;
            sources.flags.push("-ffunction-sections".into());
            // What only main needs, functions of other files among it, is not linked.
            sources.libraries.extend(["-DEMU_ONE_KERNEL".into(), "-Wl,--gc-sections".into()]);
            let error = match compile(sources, options, scratch) {
                Err(error) => error,
                Ok(module) => break module,
            };
            let said = match &error {
                Error::Compile { said, .. } => said.clone(),
                _ => return Err(error),
            };
            if first_error(&said).starts_with("argument ") {
                return Err(Error::Argument(of_compiler(&said, &kernel)));
            }
            let summary = crate::program::summary(&said);
            // Of a module each function is needed, or was left out before.
            let is_last = left_out.len() >= MAX_CUTS || kernel.entry.is_some() || !cuts.add(&said);
            let again = Sources::read_without(
                &cuts,
                Some((&place, kernel.line)),
                &[file.to_owned()],
                options,
                scratch,
            );
            sources = match again {
                Ok(again) if !is_last => again,
                // The first error, and what is wrong without it.
                _ => {
                    let summary = match left_out.first() {
                        Some(first) => format!("{first}; and without that, {summary}"),
                        None => summary,
                    };
                    return Err(Error::Compile { summary, said });
                }
            };
            left_out.push(summary);
        };
        Ok(Self { module, initialisers, file: place, kernel, plan, left_out, arch: options.arch })
    }

    /// Launches it, once a process.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::Refused`]; the process has run something before.
    pub fn run(self, settings: &Settings) -> Result<Outcome, Error> {
        let function = |name: &str| {
            self.module.symbol(name).ok_or_else(|| Error::Refused(format!("no symbol {name}")))
        };
        let (bind, launch) = (function("emu_bind_host")?, function("emu_run_given")?);
        // SAFETY: compat/program.cpp and `text_of` define these symbols with these types.
        let (bind, launch) = unsafe {
            (
                std::mem::transmute::<*mut c_void, extern "C" fn(*const host::Host)>(bind),
                std::mem::transmute::<*mut c_void, extern "C" fn(*const Given) -> c_int>(launch),
            )
        };
        if !host::begin(settings.emulator, self.arch) {
            return Err(Error::Second);
        }
        host::add_module(Arc::clone(&self.module));
        lab_emulator::keep_writes();
        host::state().is_quiet = true;
        bind(&raw const HOST_TABLE);
        if let Some(wanted) = settings.wanted {
            for (name, index) in ["emu_wanted_thread", "emu_wanted_block"].iter().zip(wanted) {
                // SAFETY: compat/program.cpp has it as three ints.
                unsafe { *function(name)?.cast::<[i32; 3]>() = index };
            }
        }
        *running() = Some(Running { plan: self.plan, seed: settings.seed, ..Running::default() });
        if let Some(end) = settings.fault {
            fault::watch(Arc::clone(&self.module), end);
            early::watch(end);
        }
        // SAFETY: those of this module, before anything else of it; it has no main.
        let early = unsafe { self.initialisers.run(&self.module, 0, std::ptr::null_mut()) };
        if early.is_some() {
            early::is_over();
            let path = self.file.clone();
            return Err(Error::File { path, reason: "a static initialiser throws".into() });
        }
        launch(&raw const GIVEN);
        early::is_over();
        let done = running().take().unwrap_or_default();
        if let Some(refused) = done.refused {
            return Err(Error::Argument(refused));
        }
        let mut state = host::state();
        if let Some(refused) = state.refused.first() {
            return Err(Error::Refused(refused.clone()));
        }
        let launched = std::mem::take(&mut state.findings);
        let (last, profile) = (state.last.take(), std::mem::take(&mut state.profile));
        drop(state);
        let (name, config) = last.unzip();
        let of_module = self.kernel.entry.as_ref().map(|_| self.kernel.shown_name());
        let mut outcome = Outcome {
            kernel: of_module.or(name).unwrap_or_else(|| self.kernel.name.clone()),
            place: format!("{}:{}", self.file.display(), self.kernel.line),
            config,
            findings: launched.into_iter().map(|(_, finding)| finding).collect(),
            arrays: Vec::new(),
            numbers: done.numbers,
            profile,
            left_out: self.left_out,
        };
        let ends = |f: &Finding| {
            use lab_emulator::Check::{Init, Race};
            f.formal.is_none() && !matches!(f.kind.check(), Race | Init)
        };
        let is_python = self.kernel.entry.as_ref().and_then(|entry| entry.place.as_ref());
        if is_python.is_some_and(|place| place.file.ends_with(".py")) {
            outcome.findings.iter_mut().for_each(in_words_of_triton);
        }
        // A launch that has ended early owes nothing.
        let is_whole = self.module.checked() && !outcome.findings.iter().any(ends);
        for held in done.held {
            if is_whole && held.role == Role::Out {
                outcome.findings.extend(held.unwritten(&outcome.place));
            }
            outcome.arrays.push(held.read());
        }
        Ok(outcome)
    }
}

/// What the pointers of a module's kernel point to, by the arguments that it gets.
fn pointer_types(kernel: &Kernel, plan: &[Planned]) -> String {
    let mut all = String::new();
    for (n, ((of_type, _), planned)) in kernel.parameters.iter().zip(plan).enumerate() {
        if let Value::Buffer(buffer) = &planned.value
            && buffer.element.parts.is_some()
            && ["void*", "::emu::ptx::Word"].contains(&of_type.as_str())
        {
            let own = lab_ptx::type_macro(&kernel.name, n);
            let _ = writeln!(all, "#define {own} {}*", buffer.element.cpp);
        }
    }
    all
}

/// A kernel of a Python file has another barrier than one of a `.cu` file.
fn in_words_of_triton(finding: &mut Finding) {
    let barrier = "tl.debug_barrier()";
    let fix = finding.fix.replace("__syncwarp() between the two, or __syncthreads()", barrier);
    finding.fix = fix.replace("__syncthreads()", barrier);
}

/// The kernel that is meant: by its name, and by its number of parameters where several have that.
fn find<'a>(
    kernels: &'a [(PathBuf, Kernel)],
    launch: &Launch,
) -> Result<&'a (PathBuf, Kernel), Error> {
    let wanted = launch.kernel.trim().trim_start_matches("::");
    let (path, _) = wanted.split_once('<').unwrap_or((wanted, ""));
    let (scope, base) = path.rsplit_once("::").unwrap_or(("", path));
    let is_meant = |(_, k): &&(PathBuf, Kernel)| {
        if k.entry.is_some() {
            return k.is_entry(wanted);
        }
        let own = k.name.split('<').next().unwrap_or_default();
        own == base.trim()
            && format!("::{}", k.scope).ends_with(&match scope {
                "" => String::new(),
                scope => format!("::{scope}::"),
            })
    };
    let meant: Vec<_> = kernels.iter().filter(is_meant).collect();
    let count = launch.arguments.len();
    let fits = |(_, k): &&&(PathBuf, Kernel)| (k.required..=k.parameters.len()).contains(&count);
    // Of a module each instantiation of a template is a kernel.
    let exact = meant.iter().find(|(_, k)| k.entry.is_some() && k.shown_name() == wanted);
    let is_several =
        exact.is_none() && meant.len() > 1 && meant.iter().all(|(_, k)| k.entry.is_some());
    let found = exact.or_else(|| meant.iter().find(fits)).or(meant.first()).copied();
    found.filter(|_| !is_several).ok_or_else(|| {
        let mut names: Vec<String> =
            kernels.iter().map(|(_, k)| format!("{}{}", k.shown_scope(), k.shown_name())).collect();
        names.dedup();
        let expected = if names.is_empty() {
            "a file with kernels".into()
        } else {
            format!("one of {}", names.join(", "))
        };
        Error::Argument(BadArgument::new("--kernel", expected, format!("'{}'", launch.kernel)))
    })
}

/// The values of a launch: those of the kernel's parameters in its order, then the others.
fn plan(kernel: &Kernel, launch: &Launch) -> Result<Vec<Planned>, Error> {
    let signature = || {
        let all: Vec<String> = kernel.parameters.iter().map(|(t, n)| format!("{t} {n}")).collect();
        all.join(", ")
    };
    let is_pack = kernel.parameters.last().is_some_and(|(t, _)| t.contains("..."));
    let mut names: Vec<String> = kernel.parameters.iter().map(|(_, n)| n.clone()).collect();
    let last = names.len();
    if is_pack {
        let pack = names.pop().unwrap_or_default();
        let more = (launch.arguments.len() + 1).saturating_sub(last);
        names.extend((0..more).map(|i| format!("{pack}_{i}")));
    }
    let mut values: Vec<Option<Value>> = vec![None; names.len()];
    for (position, argument) in launch.arguments.iter().enumerate() {
        let title = || match &argument.name {
            Some(name) => format!("--arg {name}"),
            None => format!("--arg {}", argument.text),
        };
        let index = match &argument.name {
            None => position,
            Some(name) => names.iter().position(|n| n == name).ok_or_else(|| {
                let expected = format!("one of {} ({})", names.join(", "), signature());
                BadArgument::new(title(), expected, format!("'{name}'"))
            })?,
        };
        let Some(place) = values.get_mut(index) else {
            let expected = format!("{} arguments ({})", names.len(), signature());
            return Err(
                BadArgument::new("--arg", expected, launch.arguments.len().to_string()).into()
            );
        };
        if place.is_some() {
            let expected = format!("one value for {}", names[index]);
            return Err(BadArgument::new(title(), expected, "a second").into());
        }
        *place = Some(argument.value.clone());
    }
    let given = values.iter().position(Option::is_none).unwrap_or(values.len());
    if given < kernel.required.min(names.len()) || values[given..].iter().any(Option::is_some) {
        let (name, of_type) = (&names[given], &kernel.parameters[given.min(last - 1)].0);
        let expected = format!("a value of {of_type} ({})", signature());
        return Err(BadArgument::new(format!("--arg {name}"), expected, "none").into());
    }
    let mut plan: Vec<Planned> = names
        .into_iter()
        .zip(values.into_iter().flatten())
        .map(|(name, value)| Planned { name, value })
        .collect();
    for extra in &launch.lets {
        let wrong = |expected: &str| {
            BadArgument::new(format!("--let {}", extra.text), expected, "another").into()
        };
        let Some(name) = &extra.name else {
            return Err(wrong("NAME=VALUE"));
        };
        if plan.iter().any(|p| p.name == *name) {
            return Err(wrong("a name that nothing else has"));
        }
        plan.push(Planned { name: name.clone(), value: extra.value.clone() });
    }
    Ok(plan)
}

/// Whether a text of C++ names this.
fn mentions(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        !text[..at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word)
    })
}

/// The function that launches, behind the file's own text.
fn text_of(kernel: &Kernel, launch: &Launch, plan: &[Planned]) -> String {
    let mut text = String::from("\n#include \"runtime/given.h\"\n");
    for planned in plan {
        let _ = writeln!(text, "#undef {}", planned.name);
    }
    text += "namespace {\nvoid emu_launch_given(const ::EmuGiven& emu_given) {\n";
    // Each behind those that it names.
    let texts: Vec<String> = plan.iter().map(|p| expressions(&p.value).join(" ")).collect();
    let mut left: Vec<usize> = (0..plan.len()).collect();
    while !left.is_empty() {
        let waits =
            |&&i: &&usize| left.iter().any(|&j| j != i && mentions(&texts[i], &plan[j].name));
        // In a circle the compiler says what is not declared.
        let next = left.iter().find(|i| !waits(i)).copied().unwrap_or(left[0]);
        left.retain(|&i| i != next);
        let Planned { name, value } = &plan[next];
        let _ = match value {
            Value::Expression(e) => write!(
                text,
                "#line 1 \"argument {name}\"\nauto {name} = {e};\n\
                 ::emu::given_scalar(emu_given, {next}, {name});\n"
            ),
            Value::Buffer(buffer) => {
                let dims = buffer.shape.iter().flatten();
                let dims: Vec<String> = dims.map(|d| format!("(long long)({d})")).collect();
                let (dims, cpp) = (dims.join(", "), &buffer.element.cpp);
                let (each, address) = match buffer.each() {
                    Some(each) => (
                        format!(
                            "const {cpp} emu_each_{name} = {each};\n#line 1 \"argument {name}\"\n"
                        ),
                        format!(", &emu_each_{name}"),
                    ),
                    None => Default::default(),
                };
                write!(
                    text,
                    "#line 1 \"argument {name}\"\n{each}{cpp}* {name} = ::emu::given_buffer<{cpp}>\
                     (emu_given, {next}, {{{dims}}}{address}); if (!{name}) return;\n"
                )
            }
        };
    }
    let scope = if launch.kernel.contains("::") { "" } else { &kernel.scope };
    let size = |text: &mut String, name: &str, sizes: &[String]| {
        let sizes: Vec<String> = sizes.iter().map(|s| format!("unsigned({s})")).collect();
        let _ = write!(
            text,
            "#line 1 \"argument {name}\"\n::dim3 emu_{name}{{{}}};\n",
            sizes.join(", ")
        );
    };
    size(&mut text, "grid", &launch.grid);
    size(&mut text, "block", &launch.block);
    for (name, value) in [("shared", &launch.shared), ("cluster", &launch.cluster)] {
        let value = value.as_deref().unwrap_or("0");
        let _ = write!(text, "#line 1 \"argument {name}\"\nsize_t emu_{name} = size_t({value});\n");
    }
    let given = plan.len() - launch.lets.len();
    let types: Vec<&str> =
        (0..given).map(|at| kernel.parameters.get(at).map_or("", |(of, _)| of.as_str())).collect();
    for (index, planned) in plan.iter().take(given).enumerate() {
        if let (Value::Expression(_), Some(own)) = (&planned.value, number_type(types[index])) {
            let name = &planned.name;
            let _ = writeln!(
                text,
                "::emu::given_number<{own}>(emu_given, {index}, \"{own}\", {name});"
            );
        }
    }
    let _ = write!(
        text,
        "if (!emu_given.ready()) return;\n\
         ::emu::any_shared = true;\n\
         ::emu::configure(emu_grid, emu_block, emu_shared, nullptr, {}, unsigned(emu_cluster));\n\
         #line 1 \"argument kernel\"\n{scope}{}(",
        i32::from(launch.cooperative),
        if kernel.entry.is_some() { &kernel.name } else { &launch.kernel }
    );
    for (index, planned) in plan.iter().take(given).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let name = &planned.name;
        // The same numbers under another name of C++.
        let passed = match &planned.value {
            Value::Buffer(buffer) => match other_name(types[index], &buffer.element.cpp) {
                Some(own) => format!("reinterpret_cast<{own}>({name})"),
                None => name.clone(),
            },
            Value::Expression(_) => name.clone(),
        };
        let _ = write!(text, "{comma}\n#line 1 \"argument {name}\"\n{passed}");
    }
    text += ");\n}\n}\n#line 1 \"launch\"\nextern \"C\" __attribute__((visibility(\"default\"))) \
             int emu_run_given(const EmuGiven* given) {\n\
             emu_launch_given(*given);\nreturn ::emu::last_error;\n}\n";
    text
}

/// Words of types of numbers.
const NUMBERS: [&str; 23] = [
    "half",
    "__half",
    "__nv_bfloat16",
    "int",
    "unsigned",
    "signed",
    "long",
    "short",
    "char",
    "float",
    "double",
    "size_t",
    "int8_t",
    "int16_t",
    "int32_t",
    "int64_t",
    "uint8_t",
    "uint16_t",
    "uint32_t",
    "uint64_t",
    "uint",
    "ptrdiff_t",
    "ssize_t",
];

fn words(of_type: &str) -> Vec<&str> {
    let qualifiers = ["const", "volatile", "__restrict__", "__restrict", "__grid_constant__"];
    let all = of_type.split(|c: char| c.is_whitespace() || c == '*').filter(|w| !w.is_empty());
    all.filter(|word| !qualifiers.contains(word)).collect()
}

/// A parameter's type, if it is a number's by a name that everybody knows.
fn number_type(of_type: &str) -> Option<String> {
    let words = words(of_type);
    let is_number = !of_type.contains('*')
        && !words.is_empty()
        && words.iter().all(|word| NUMBERS.contains(word));
    is_number.then(|| words.join(" "))
}

/// `const long long*` where numbers of such a parameter are given as `int64_t`, `char*` where they are given as those of 8 bits, `float2*`
/// where they are given one by one: the same bits, but C++ has them apart.
fn other_name(of_type: &str, given: &str) -> Option<String> {
    let words = words(of_type);
    if of_type.matches('*').count() != 1 {
        return None;
    }
    let is_long_long = words.iter().filter(|word| **word == "long").count() == 2
        && words.iter().all(|word| ["long", "int", "signed", "unsigned"].contains(word));
    let own = match given {
        "int64_t" if is_long_long && !words.contains(&"unsigned") => "long long",
        "uint64_t" if is_long_long && words.contains(&"unsigned") => "unsigned long long",
        // char is neither signed char nor unsigned char.
        "int8_t" | "uint8_t" if words == ["char"] => "char",
        "float" | "double" if is_vector_of(given, &words) => words[0],
        "int32_t" if is_vector_of("int", &words) => words[0],
        "uint32_t" if is_vector_of("uint", &words) => words[0],
        _ => return None,
    };
    let constant = if of_type.contains("const") { "const " } else { "" };
    Some(format!("{constant}{own}*"))
}

/// `float2`, `float3` or `float4`, of `float`.
fn is_vector_of(element: &str, words: &[&str]) -> bool {
    matches!(words, [word] if matches!(word.strip_prefix(element), Some("2" | "3" | "4")))
}

/// What a value says in C++.
fn expressions(value: &Value) -> Vec<&str> {
    match value {
        Value::Expression(e) => vec![e],
        Value::Buffer(b) => {
            let each = b.each().unwrap_or_default();
            b.shape
                .iter()
                .flatten()
                .map(String::as_str)
                .chain([b.element.cpp.as_str(), each])
                .collect()
        }
    }
}

/// The line without what its types are aliases of: "'uint64_t*' {aka 'long unsigned int*'}".
fn without_aliases(line: &str) -> String {
    let mut parts = line.split(" {aka '");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once("'}").map_or("", |(_, rest)| rest))
}

/// What the compiler says of an argument, as this tool says it.
fn of_compiler(said: &str, kernel: &Kernel) -> BadArgument {
    let line = without_aliases(&first_error(said).replace(['‘', '’'], "'"));
    let (place, message) = line.split_once(" error: ").unwrap_or(("", &line));
    let name = place.trim_start_matches("argument ").split(':').next().unwrap_or_default();
    let is_option = matches!(name, "kernel" | "grid" | "block" | "shared" | "cluster")
        && !kernel.parameters.iter().any(|(_, n)| n == name);
    let title = if is_option { format!("--{name}") } else { format!("--arg {name}") };
    let quoted: Vec<&str> = message.split('\'').skip(1).step_by(2).collect();
    if let [from, to, ..] = quoted[..]
        && (message.starts_with("cannot convert") || message.starts_with("invalid conversion"))
    {
        return BadArgument::new(title, to, from);
    }
    if name == "kernel"
        && message.ends_with("was not declared in this scope")
        && quoted == [kernel.name.as_str()]
    {
        let got = format!("{} of line {}, which an #if leaves out", kernel.name, kernel.line);
        return BadArgument::new(title, "a kernel that is compiled", got);
    }
    let notes = said.replace(['‘', '’'], "'");
    let deduced: Vec<&str> = notes
        .lines()
        .filter_map(|l| {
            Some(l.split_once("couldn't deduce template parameter '")?.1.split_once('\'')?.0)
        })
        .collect();
    match deduced.first() {
        Some(parameter) if name == "kernel" => {
            let all = kernel.template.join(", ");
            let expected = format!("a value for {parameter} of {}<{all}>", kernel.name);
            BadArgument::new(title, expected, "none")
        }
        _ => {
            let why = ["deduced conflicting types", "mismatched types", "no known conversion"];
            let why = notes.lines().find_map(|l| {
                let at = why.iter().find_map(|w| l.find(w))?;
                Some(format!("{message}: {}", l[at..].trim()))
            });
            let message = why.filter(|_| name == "kernel").unwrap_or_else(|| message.to_owned());
            // "expected C++ …, got expected …" would be hard to read.
            let message = if message.starts_with("expected ") {
                format!("an error: {message}")
            } else {
                message
            };
            BadArgument::new(title, "C++ that compiles", message)
        }
    }
}

// ---- what the launch asks for ---------------------------------------------------------------------

/// As compat/runtime/given.h has it.
#[repr(C)]
struct Given {
    buffer: unsafe extern "C" fn(
        c_int,
        *const c_char,
        usize,
        c_int,
        *const i64,
        *const u8,
    ) -> *mut c_void,
    scalar: extern "C" fn(c_int, f64),
    narrowed: unsafe extern "C" fn(c_int, *const c_char, f64),
    ready: extern "C" fn() -> c_int,
}

static GIVEN: Given = Given { buffer, scalar, narrowed, ready };

#[derive(Debug, Default)]
struct Running {
    plan: Vec<Planned>,
    seed: u64,
    held: Vec<Held>,
    numbers: Vec<(String, f64)>,
    refused: Option<BadArgument>,
}

/// Memory that a launch was given.
#[derive(Debug)]
struct Held {
    index: usize,
    name: String,
    role: Role,
    type_name: String,
    part: Component,
    lanes: usize,
    shape: Vec<usize>,
    address: usize,
    len: usize,
    before: Option<Vec<u8>>,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

fn running() -> MutexGuard<'static, Option<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn buffer(
    index: c_int,
    type_name: *const c_char,
    element: usize,
    rank: c_int,
    shape: *const i64,
    each: *const u8,
) -> *mut c_void {
    let shape = match rank {
        0 => &[],
        // SAFETY: given.h passes as many sizes as it says.
        _ => unsafe { std::slice::from_raw_parts(shape, rank as usize) },
    };
    // SAFETY: a literal of emulator.h, or null.
    let type_name = (!type_name.is_null()).then(|| unsafe { CStr::from_ptr(type_name) });
    let part = type_name.and_then(|name| Element::of(name.to_str().ok()?).parts);
    // SAFETY: given.h passes one element, or null.
    let each = (!each.is_null()).then(|| unsafe { std::slice::from_raw_parts(each, element) });
    let mut guard = running();
    let Some(running) = guard.as_mut() else { return std::ptr::null_mut() };
    match running.hold(index as usize, part, element, shape, each) {
        Ok(address) => address as *mut c_void,
        Err(refused) => {
            running.refused = Some(refused);
            std::ptr::null_mut()
        }
    }
}

extern "C" fn scalar(index: c_int, value: f64) {
    if let Some(running) = running().as_mut() {
        let name = running.plan[index as usize].name.clone();
        running.numbers.push((name, value));
    }
}

unsafe extern "C" fn narrowed(argument: c_int, of_type: *const c_char, value: f64) {
    let mut running = running();
    let Some(running) = running.as_mut() else { return };
    // SAFETY: a literal of the file.
    let of_type = unsafe { CStr::from_ptr(of_type) }.to_string_lossy();
    let title = running.plan[argument as usize].title();
    let expected = format!("a number that {of_type} holds");
    let got = if value.abs() < 1e18 { value.to_string() } else { format!("{value:e}") };
    running.refused.get_or_insert(BadArgument::new(title, expected, got));
}

extern "C" fn ready() -> c_int {
    let mut guard = running();
    let Some(running) = guard.as_mut() else { return 0 };
    running.held.sort_by_key(|h| h.index);
    c_int::from(running.refused.is_none())
}

impl Running {
    fn hold(
        &mut self,
        index: usize,
        known: Option<(Component, usize)>,
        element: usize,
        dims: &[i64],
        each: Option<&[u8]>,
    ) -> Result<usize, BadArgument> {
        let planned = self.plan[index].clone();
        let Value::Buffer(Buffer { role, element: of, shape, fill }) = &planned.value else {
            return Err(BadArgument::new(planned.title(), "memory", "an expression"));
        };
        let wrong =
            |expected: String, got: String| BadArgument::new(planned.title(), expected, got);
        // What the file calls by a name of its own may be one of these, too.
        let parts = known.or(of.parts);
        let is_number = match fill {
            Some(Fill::Constant(value)) => *value != 0.0,
            other => matches!(other, Some(Fill::Random { .. } | Fill::Arange)),
        };
        if parts.is_none() && is_number {
            let expected = "={…}, =0 or =@FILE[TENSOR] with a type of the file's own";
            return Err(wrong(expected.into(), of.cpp.clone()));
        }
        let (part, lanes) = parts.unwrap_or((Component::U8, element));
        let file = match fill {
            Some(Fill::File(name)) => Some((name, read_tensor(&planned.title(), name)?)),
            _ => None,
        };
        let given: Option<Vec<usize>> = shape
            .as_ref()
            .map(|_| dims.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect());
        // Of a tensor of vectors the last size is that of a vector.
        let shape = match (&given, &file) {
            (Some(given), _) => given.clone(),
            (None, Some((_, t))) if lanes > 1 => match t.shape.split_last() {
                Some((&last, before)) if last == lanes => before.to_vec(),
                _ => {
                    return Err(wrong(format!("a last size of {lanes}"), format!("{:?}", t.shape)));
                }
            },
            (None, Some((_, t))) => t.shape.clone(),
            (None, None) => Vec::new(),
        };
        let bytes =
            shape.iter().map(|&d| d as u128).product::<u128>().saturating_mul(element as u128);
        if !(1..=MAX_BYTES).contains(&bytes) {
            let expected = format!("a shape of 1 to {MAX_BYTES} bytes");
            return Err(wrong(expected, format!("{dims:?} of {element} bytes each")));
        }
        let limit = crate::limit::device_memory();
        if bytes > u128::from(limit) {
            return Err(wrong(format!("at most {limit} bytes"), format!("{bytes}")));
        }
        let (len, count) = (bytes as usize, bytes as usize / part.bytes());
        let before = match (fill, file) {
            (None, _) => None,
            (_, Some((name, tensor))) => {
                if tensor.part != part || tensor.bytes.len() != len {
                    let got = format!("{} {:?} in {name}", tensor.part.name(), tensor.shape);
                    return Err(wrong(format!("{} {shape:?}", of.name()), got));
                }
                Some(tensor.bytes)
            }
            (Some(Fill::Each(_)), None) => Some(each.unwrap_or_default().repeat(len / element)),
            (Some(fill), None) => {
                let own = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64);
                Some(filled(fill, part, count, own))
            }
        };
        let address = host::hold(len)
            .ok_or_else(|| wrong("memory that this machine has".into(), format!("{len} bytes")))?;
        // SAFETY: so many bytes were allocated.
        unsafe {
            match &before {
                Some(values) => std::ptr::copy_nonoverlapping(values.as_ptr(), address, len),
                // NaN in each floating-point type.
                None => std::ptr::write_bytes(address, 0xFF, len),
            }
        }
        lab_emulator::host_wrote(address, before.is_some());
        self.held.push(Held {
            index,
            name: planned.name.clone(),
            role: *role,
            type_name: of.name().to_owned(),
            part,
            lanes,
            shape,
            address: address as usize,
            len,
            before,
        });
        Ok(address as usize)
    }
}

impl Held {
    /// A finding, where the kernel has left some of it without a value.
    fn unwritten(&self, place: &str) -> Option<Finding> {
        let (first_byte, count) = lab_emulator::never_written(self.address as *const u8, self.len)?;
        let size = self.part.bytes() * self.lanes;
        let whole = count.div_ceil(size);
        let (name, all, first) = (&self.name, self.len / size, first_byte / size);
        Some(Finding {
            kind: Kind::NeverWritten,
            message: format!(
                "{whole} of {all} elements of out '{name}' never got a value from the kernel at {place}, \
                 the first: {name}[{first}]"
            ),
            accesses: lab_emulator::write_beside((self.address + first_byte) as *const u8)
                .into_iter()
                .collect(),
            suspects: Vec::new(),
            standing: Vec::new(),
            missing: Vec::new(),
            formal: None,
            fix: format!(
                "write each of them; if some are to keep the values they had: {name}=inout:…"
            ),
            count: 1,
        })
    }

    fn read(self) -> Array {
        // SAFETY: allocated with this length, and nothing runs any more.
        let bytes = unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len) };
        let mut shape = self.shape;
        if self.lanes > 1 {
            shape.push(self.lanes);
        }
        Array {
            name: self.name,
            role: self.role,
            type_name: self.type_name,
            tensor: Tensor { part: self.part, shape, bytes: bytes.to_vec() },
            before: self.before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_words() {
        assert!(mentions("n * 4", "n") && mentions("f(n)", "n"));
        assert!(!mentions("min(4, nn)", "n"));
    }

    #[test]
    fn what_a_type_is_an_alias_of_is_left_out() {
        let line = "argument x:1:1: error: cannot convert 'uint64_t*' {aka 'long unsigned int*'} \
                    to 'size_t**' {aka 'long unsigned int**'} in initialization";
        assert_eq!(
            without_aliases(line),
            "argument x:1:1: error: cannot convert 'uint64_t*' to 'size_t**' in initialization"
        );
        assert_eq!(without_aliases("no alias of 'float'"), "no alias of 'float'");
    }
}
