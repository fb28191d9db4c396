//! A module as C++, each statement at the line and column of the source that it was made from.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use crate::coalesced::{coalesce, is_same};
use crate::constants::Constants;
use crate::module::{Entry, Error, Function, Line, Module, Parameter, Place, Variable, What};
use crate::statement::{Instruction, Operand, Statement, Value, label_name, whole_number};
use crate::text::{Space, Symbol, Text, cpp_name, names_of, of_register, of_type};

/// The namespace of what a module becomes.
pub const SCOPE: &str = "ptx";

/// Functions that the driver brings along.
const BUILT_IN: [(&str, &str); 2] =
    [("vprintf", "::emu::ptx::print"), ("__assertfail", "::emu::ptx::fail_assertion")];

/// A module as C++, with its kernels.
#[derive(Clone, Debug, Default)]
pub struct Translated {
    /// CUDA C++: kernels that can be run here, in a namespace of their own.
    pub text: String,
    /// All kernels, those that cannot be run among them.
    pub entries: Vec<Entry>,
    /// The variables that host code may ask for.
    pub variables: Vec<Global>,
}

/// A variable of a module, in device memory or constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// What it is called in C++.
    pub cpp_name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Module {
    /// The module as C++. What is not known is told with the kernels that need it.
    #[must_use]
    pub fn translate(&self) -> Translated {
        let mut globals = HashMap::new();
        for variable in &self.variables {
            globals.insert(variable.name.clone(), symbol(variable));
        }
        for function in &self.functions {
            let cpp = format!("emu_f_{}", cpp_name(&function.name));
            globals.insert(function.name.clone(), Symbol { space: Space::Function, cpp });
        }
        for (name, cpp) in BUILT_IN {
            let cpp = cpp.to_owned();
            globals.insert(name.to_owned(), Symbol { space: Space::Function, cpp });
        }
        let mut bodies: HashMap<&str, Result<String, Error>> = HashMap::new();
        for function in &self.functions {
            bodies.insert(&function.name, self.body(function, &globals));
        }
        let mut text = format!(
            "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#line 1 {}\nnamespace {SCOPE} {{\n",
            quoted(&self.name)
        );
        for function in self.functions.iter().filter(|function| function.is_entry) {
            for (n, variable) in function.parameters.iter().enumerate() {
                let Parameter { cpp, .. } = parameter(variable);
                let own = type_macro(&cpp_name(&function.name), n);
                let _ = write!(text, "#ifndef {own}\n#define {own} {cpp}\n#endif\n");
            }
        }
        // Triton gives an element to several threads where a tile has fewer than the block.
        if self.functions.iter().any(|function| self.hidden(function) > 0) {
            text += "extern \"C\" __attribute__((visibility(\"default\"), used)) const int emu_has_twins = 1;\n";
        }
        let mut refused: HashMap<&str, Error> = HashMap::new();
        for variable in &self.variables {
            match definition(variable) {
                Ok(defined) => text += &defined,
                Err(error) => drop(refused.insert(&variable.name, error)),
            }
        }
        let refusal = |function: &Function| self.refusal(function, &bodies, &refused);
        let runs = |function: &&Function| function.body.is_some() && refusal(function).is_none();
        for function in self.functions.iter().filter(|f| !f.is_entry).filter(runs) {
            let _ = writeln!(text, "{};", head(function, 0));
        }
        for function in self.functions.iter().filter(runs) {
            let hidden = self.hidden(function);
            let Some(Ok(body)) = bodies.get(function.name.as_str()) else { continue };
            let place = first_place(function);
            text += &line_of(&self.name, function.line, place.as_ref());
            let _ = writeln!(text, "{} {{\n{body}}}", head(function, hidden));
        }
        text += "}\n";
        let entries = self.functions.iter().filter(|f| f.is_entry && f.body.is_some());
        let entry = |function: &Function| Entry {
            name: function.name.clone(),
            cpp_name: cpp_name(&function.name),
            place: first_place(function),
            line: function.line,
            parameters: function.parameters.iter().map(parameter).collect(),
            hidden: self.hidden(function),
            target: self.target.clone(),
            required_block: function.required_block,
            largest_block: function.largest_block,
            required_cluster: function.required_cluster,
            dynamic_shared: self.uses_dynamic_shared(function),
            refusal: refusal(function),
        };
        let is_global = |v: &&Variable| matches!(v.space, Space::Global | Space::Constant);
        let whole = self
            .variables
            .iter()
            .filter(is_global)
            .filter(|v| !refused.contains_key(v.name.as_str()));
        let variables = whole.map(|v| Global {
            name: v.name.clone(),
            cpp_name: cpp_name(&v.name),
            bytes: v.bytes(),
        });
        let variables = variables.collect();
        Translated { text, entries: entries.map(entry).collect(), variables }
    }

    /// What Triton's launcher adds to a kernel's parameters, at most: memory for the whole launch, and for a profiler. Older
    /// ones add the first alone.
    fn hidden(&self, function: &Function) -> usize {
        let pointers = function.parameters.iter().rev().take_while(|p| p.is_pointer).count();
        if self.is_llvm && function.required_block.is_some() { pointers.min(2) } else { 0 }
    }

    fn uses_dynamic_shared(&self, function: &Function) -> bool {
        let is_dynamic = |v: &&Variable| v.space == Space::Shared && v.count.is_none();
        let names: Vec<&str> =
            self.variables.iter().filter(is_dynamic).map(|v| v.name.as_str()).collect();
        used_names(function).iter().any(|name| names.contains(name))
    }

    /// Why a function is not run here: for what stands in it, in what it calls, or in a variable that it names.
    fn refusal(
        &self,
        function: &Function,
        bodies: &HashMap<&str, Result<String, Error>>,
        variables: &HashMap<&str, Error>,
    ) -> Option<Error> {
        let (mut seen, mut left) = (HashSet::new(), vec![function]);
        while let Some(own) = left.pop() {
            if !seen.insert(&own.name) {
                continue;
            }
            if let Some(Err(error)) = bodies.get(own.name.as_str()) {
                return Some(error.clone());
            }
            for name in used_names(own) {
                if let Some(error) = variables.get(name) {
                    return Some(error.clone());
                }
                left.extend(self.functions.iter().find(|f| f.name == *name));
            }
        }
        None
    }

    /// The statements of a function.
    fn body(
        &self,
        function: &Function,
        globals: &HashMap<String, Symbol>,
    ) -> Result<String, Error> {
        let Some(lines) = &function.body else {
            return if BUILT_IN.iter().any(|(name, _)| *name == function.name) {
                Ok(String::new())
            } else {
                let reason = format!("{}: expected a function with a body", function.name);
                Err(Error::new(function.line, reason))
            };
        };
        let mut own = HashMap::new();
        let taken = |variable: &Variable| {
            let name = name_in_cpp(variable);
            let cpp = if function.is_entry { format!("((char*)&{name})") } else { name };
            (variable.name.clone(), Symbol { space: Space::Parameter, cpp })
        };
        own.extend(function.parameters.iter().chain(&function.results).map(taken));
        let places = arrays(lines)?;
        let mut text = Text {
            is_module: true,
            places: places.names,
            registers: vec![HashMap::new()],
            symbols: vec![globals.clone(), own],
            ..Text::default()
        };
        let mut body = places.declared;
        body += "[[maybe_unused]] bool emu_carry = false;\n";
        if let Some([x, y, z]) = function.required_block {
            body += &at(&self.name, function.line, first_place(function).as_ref());
            let _ = writeln!(body, "EMU_AT(::emu::ptx::require_block({x}, {y}, {z});)");
        }
        if let Some([x, y, z]) = function.largest_block {
            body += &at(&self.name, function.line, first_place(function).as_ref());
            let _ = writeln!(body, "EMU_AT(::emu::ptx::limit_block({});)", x * y * z);
        }
        for variable in self.variables.iter().filter(|v| v.space == Space::Shared) {
            if variable.count.is_none() && used_names(function).contains(&variable.name.as_str()) {
                let (cpp, align) = (cpp_name(&variable.name), variable.alignment);
                let _ = writeln!(body, "extern __shared__ __align__({align}) char {cpp}[];");
            }
        }
        let used = used_names(function);
        let mut scopes = labels(lines).into_iter();
        let mut constants = Constants::of(lines);
        for Line { line, place, what } in lines {
            let constant = match what {
                What::Statement(statement) => constants.step(statement),
                _ => Vec::new(),
            };
            body += &at(&self.name, *line, place.as_ref());
            let unknown = |what: &str| Error::new(*line, format!("'{what}' is not run here"));
            match what {
                What::Statement(Statement::Open) => {
                    let labels = scopes.next().unwrap_or_default();
                    let declared = if labels.is_empty() {
                        String::new()
                    } else {
                        format!("__label__ {};", labels.join(", "))
                    };
                    let _ = writeln!(body, "{{ {declared}");
                    text.registers.push(HashMap::new());
                    text.symbols.push(HashMap::new());
                }
                What::Statement(Statement::Close) => {
                    text.registers.pop();
                    text.symbols.pop();
                    body += "}\n";
                }
                What::Statement(Statement::Label(name)) => {
                    let _ = writeln!(body, "emu_l_{name}: ;");
                }
                What::Statement(Statement::Registers(kind, names)) => {
                    let cpp = of_register(kind).ok_or_else(|| unknown(&format!(".reg .{kind}")))?;
                    let is_used = |n: &&String| used.contains(n.as_str());
                    let in_array = |n: &&String| text.places.contains_key(*n);
                    let (placed, plain): (Vec<&String>, Vec<&String>) =
                        names.iter().filter(is_used).partition(in_array);
                    let declared: Vec<String> =
                        plain.iter().map(|n| format!("emu_r_{}", cpp_name(n))).collect();
                    if !declared.is_empty() {
                        let _ = writeln!(body, "[[maybe_unused]] {cpp} {};", declared.join(", "));
                    } else {
                        body.push('\n');
                    }
                    if let Some(scope) = text.registers.last_mut() {
                        scope.extend(plain.into_iter().map(|n| (n.clone(), cpp)));
                        scope.extend(placed.into_iter().map(|n| (n.clone(), "float")));
                    }
                }
                What::Statement(Statement::Instruction(instruction))
                    if is_same(instruction, &text.places) =>
                {
                    body.push('\n');
                }
                What::Statement(Statement::Instruction(instruction)) => {
                    let name = name_of(instruction);
                    if let Some(label) = missing_label(instruction, lines) {
                        let reason =
                            format!("'{name}': expected a label of this function, got {label}");
                        return Err(Error::new(*line, reason));
                    }
                    let done = text.instruction(instruction);
                    let done = done.ok_or_else(|| match text.undeclared(instruction) {
                        Some(register) => Error::new(
                            *line,
                            format!("'{name}': register %{register} is not declared"),
                        ),
                        None => unknown(&name),
                    })?;
                    let given = constant.iter().filter_map(|name| text.places.get(*name));
                    let given: String =
                        given.map(|own| format!(" EMU_LOOKED_AT(&{own}, EMU_ANYWHERE);")).collect();
                    let _ = writeln!(body, "EMU_AT({done}){given}");
                }
                What::Variable(variable) => {
                    let own = symbol(variable);
                    body += &match variable.space {
                        Space::Parameter | Space::Local => format!(
                            "__attribute__((aligned({}))) char {}[{}];\n",
                            variable.alignment,
                            own.cpp,
                            variable.bytes().max(1)
                        ),
                        _ => definition(variable)?,
                    };
                    if let Some(scope) = text.symbols.last_mut() {
                        scope.insert(variable.name.clone(), own);
                    }
                }
                What::Unknown(text) => return Err(unknown(text)),
            }
        }
        Ok(body)
    }
}

/// `add.rn.f32` of `@p add.rn.f32 a, b, c;`.
fn name_of(instruction: &Instruction) -> String {
    instruction.words.join(".")
}

/// The label that a branch goes to and that stands nowhere in the function.
fn missing_label<'a>(instruction: &'a Instruction, lines: &[Line]) -> Option<&'a str> {
    let (word, operands) = (instruction.words.first()?, &instruction.operands[..]);
    let ("bra", [Operand::Value(Value::Register(label))]) = (word.as_str(), operands) else {
        return None;
    };
    let own = label_name(label);
    let is_own =
        |line: &Line| matches!(&line.what, What::Statement(Statement::Label(name)) if *name == own);
    (!lines.iter().any(is_own)).then_some(label.as_str())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// What makes the compiler say that the next line is that of a place, or of the module.
fn line_of(module: &str, line: usize, place: Option<&Place>) -> String {
    match place {
        Some(place) => format!("#line {} {}\n", place.line, quoted(&place.file)),
        None => format!("#line {line} {}\n", quoted(module)),
    }
}

/// The same, with spaces up to the place's column.
fn at(module: &str, line: usize, place: Option<&Place>) -> String {
    let column = place.map_or(1, |place| place.column.clamp(1, 400));
    line_of(module, line, place) + &" ".repeat(column - 1)
}

fn first_place(function: &Function) -> Option<Place> {
    function.body.iter().flatten().find_map(|line| line.place.clone())
}

fn used_names(function: &Function) -> HashSet<&str> {
    let each = function.body.iter().flatten().filter_map(|line| match &line.what {
        What::Statement(Statement::Instruction(instruction)) => Some(names_of(instruction)),
        _ => None,
    });
    each.flatten().collect()
}

/// The labels of each scope, in the order of their braces.
fn labels(lines: &[Line]) -> Vec<Vec<String>> {
    let (mut all, mut open): (Vec<Vec<String>>, Vec<usize>) = (Vec::new(), Vec::new());
    for line in lines {
        match &line.what {
            What::Statement(Statement::Open) => {
                open.push(all.len());
                all.push(Vec::new());
            }
            What::Statement(Statement::Close) => drop(open.pop()),
            What::Statement(Statement::Label(name)) => {
                if let Some(&scope) = open.last() {
                    all[scope].push(format!("emu_l_{name}"));
                }
            }
            _ => {}
        }
    }
    all
}

/// What wgmma reads and writes while the thread goes on, side by side in arrays.
#[derive(Default)]
struct Arrays {
    declared: String,
    /// `emu_w0[3]` of a register.
    names: HashMap<String, String>,
}

fn arrays(lines: &[Line]) -> Result<Arrays, Error> {
    let one = coalesce(lines);
    let mut arrays = Arrays::default();
    let mut count = 0;
    for Line { line, what, .. } in lines {
        let What::Statement(Statement::Instruction(own)) = what else { continue };
        if own.words.get(1).map(String::as_str) != Some("mma_async") {
            continue;
        }
        for operand in own.operands.iter().take(2) {
            let Operand::Vector(values) = operand else { continue };
            let names: Vec<&String> = values
                .iter()
                .filter_map(|value| match value {
                    Value::Special(name) | Value::Register(name) => {
                        Some(one.get(name).unwrap_or(name))
                    }
                    _ => None,
                })
                .collect();
            let known = names.first().and_then(|name| arrays.names.get(*name)).cloned();
            match known {
                None if names.iter().all(|name| !arrays.names.contains_key(*name)) => {
                    let _ = writeln!(arrays.declared, "float emu_w{count}[{}];", names.len());
                    for (n, name) in names.iter().enumerate() {
                        arrays.names.insert((*name).clone(), format!("emu_w{count}[{n}]"));
                    }
                    count += 1;
                }
                known => {
                    // The same registers again, or a part of them in their order.
                    let first = known.as_deref().and_then(|k| k.split_once('['));
                    let is_same = first.is_some_and(|(array, at)| {
                        let at = at.trim_end_matches(']').parse::<usize>().unwrap_or(0);
                        names.iter().enumerate().all(|(n, name)| {
                            arrays
                                .names
                                .get(*name)
                                .is_some_and(|own| *own == format!("{array}[{}]", at + n))
                        })
                    });
                    if !is_same {
                        let reason = "wgmma: expected the same registers in the same order in each, got others";
                        return Err(Error::new(*line, reason));
                    }
                }
            }
        }
    }
    for (name, first) in &one {
        if let Some(place) = arrays.names.get(first).cloned() {
            arrays.names.insert(name.clone(), place);
        }
    }
    Ok(arrays)
}

fn name_in_cpp(variable: &Variable) -> String {
    cpp_name(variable.shown.as_ref().unwrap_or(&variable.name))
}

fn symbol(variable: &Variable) -> Symbol {
    Symbol { space: variable.space, cpp: cpp_name(&variable.name) }
}

/// A parameter of a kernel as C++ takes it.
fn parameter(variable: &Variable) -> Parameter {
    let is_array = variable.count != Some(1);
    let cpp = match (variable.kind.as_str(), variable.is_pointer) {
        _ if is_array => {
            format!("::emu::ptx::Bytes<{}, {}>", variable.bytes(), variable.alignment)
        }
        (_, true) => "void*".into(),
        // A pointer or a number: only a compiler of today says which.
        ("u64" | "b64", _) => "::emu::ptx::Word".into(),
        (kind, _) => match of_type(kind).map_or("", |kind| kind.cpp) {
            "uint8_t" => "unsigned char".into(),
            "int8_t" => "signed char".into(),
            "uint16_t" => "unsigned short".into(),
            "int16_t" => "short".into(),
            // Signed or not, the bits are the same: PTX says it where it computes.
            "uint32_t" | "int32_t" => "int".into(),
            "int64_t" => "long long".into(),
            other => other.to_owned(),
        },
    };
    let pointer = if variable.is_pointer { " .ptr" } else { "" };
    let size = match variable.count {
        Some(count) if is_array => format!("[{count}]"),
        _ => String::new(),
    };
    let ptx = format!(".{}{pointer}{size}", variable.kind);
    Parameter { name: name_in_cpp(variable), cpp, ptx }
}

/// The macro that is the type of a kernel's parameter. A launch that knows what a pointer points to says so before the
/// module's text; then reports name elements.
#[must_use]
pub fn type_macro(entry: &str, parameter: usize) -> String {
    format!("EMU_TYPE_{entry}_{parameter}")
}

/// A function as C++ declares it; the last parameters of a kernel, so many, are null where they are not given.
fn head(function: &Function, hidden: usize) -> String {
    if function.is_entry {
        let shown = function.parameters.len() - hidden;
        let all = function.parameters.iter().map(parameter).enumerate().map(|(n, parameter)| {
            let null = if n < shown { "" } else { " = nullptr" };
            let own = type_macro(&cpp_name(&function.name), n);
            format!("{own} {}{null}", parameter.name)
        });
        let all: Vec<String> = all.collect();
        return format!("__global__ void {}({})", cpp_name(&function.name), all.join(", "));
    }
    let all = function.results.iter().chain(&function.parameters);
    let all: Vec<String> = all.map(|p| format!("char* {}", name_in_cpp(p))).collect();
    format!("static void emu_f_{}({})", cpp_name(&function.name), all.join(", "))
}

/// A variable of a module, or one that all calls of a function share.
fn definition(variable: &Variable) -> Result<String, Error> {
    let (name, align) = (cpp_name(&variable.name), variable.alignment);
    let refuse = |what: &str| {
        Error::new(variable.line, format!("{}: {what} is not run here", variable.name))
    };
    let element = of_type(&variable.kind).ok_or_else(|| refuse("a variable of its type"))?.cpp;
    let attribute = format!("__attribute__((aligned({align})))");
    if variable.space == Space::Shared {
        return Ok(match variable.count {
            // Each kernel has it where it uses it.
            None => String::new(),
            Some(count) => format!("__shared__ {attribute} {element} {name}[{count}];\n"),
        });
    }
    if variable.is_external {
        return Err(refuse("a variable of another module"));
    }
    let Some(initial) = &variable.initial else {
        let count = variable.count.ok_or_else(|| refuse("a variable without a size"))?;
        return Ok(format!("static {attribute} {element} {name}[{count}];\n"));
    };
    let inner = initial.trim_start_matches('{').trim_end_matches('}');
    let numbers = inner.split(',').map(|one| {
        let one = one.trim();
        for (prefix, cpp) in [("0f", "float"), ("0d", "double")] {
            if let Some(bits) = one.to_lowercase().strip_prefix(prefix)
                && let Ok(bits) = u64::from_str_radix(bits, 16)
                && (cpp == "float") == (bits_of(one) == 8)
            {
                return Ok(format!("::emu::from_bits<{cpp}>({bits}ull)"));
            }
        }
        let (sign, digits) = one.strip_prefix('-').map_or(("", one), |rest| ("-", rest));
        let number =
            whole_number(digits).ok_or_else(|| refuse("an initial value that is no number"))?;
        Ok(format!("{element}({sign}{number}ull)"))
    });
    let numbers = numbers.collect::<Result<Vec<_>, Error>>()?;
    let count = variable.count.unwrap_or(numbers.len() as u64);
    Ok(format!("static {attribute} {element} {name}[{count}] = {{{}}};\n", numbers.join(", ")))
}

/// Digits behind `0f` and `0d`.
fn bits_of(number: &str) -> usize {
    number.len().saturating_sub(2)
}
