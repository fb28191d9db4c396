//! A module as its text has it: variables, functions, and the statements of each, with the line of each and the place in
//! the source that it was made from. PTX ISA, "Directives".

use std::collections::HashMap;
use std::path::Path;

use crate::statement::{Statement, label, parts, statement, whole_number, without_comments};
use crate::text::{Space, of_type};

/// A module cannot be read, or not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Error {
    /// Of the module's text, from 1.
    pub line: usize,
    /// What was expected, and what came.
    pub reason: String,
}

impl Error {
    pub(crate) fn new(line: usize, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// A place in a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As `.file` names it.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1; 0 where it is not known.
    pub column: usize,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type in C++: `void*`, `int`, `float`, or a struct's bytes.
    pub cpp: String,
    /// Its type as the module has it: `.u64 .ptr`, `.b8[128]`.
    pub ptx: String,
}

/// A kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its name in C++.
    pub cpp_name: String,
    /// Where its source is, if the module says so.
    pub place: Option<Place>,
    /// Where it stands in the module, from 1.
    pub line: usize,
    /// In order.
    pub parameters: Vec<Parameter>,
    /// So many parameters, the last ones, are those that Triton's launcher adds: null where no argument is given.
    pub hidden: usize,
    /// What the module was made for: `sm_90a`.
    pub target: String,
    /// The threads that a block must have.
    pub required_block: Option<[u32; 3]>,
    /// Those that it may have at most.
    pub largest_block: Option<[u32; 3]>,
    /// The blocks that a cluster must have.
    pub required_cluster: Option<[u32; 3]>,
    /// It has dynamic shared memory.
    pub dynamic_shared: bool,
    /// Why it is not run here.
    pub refusal: Option<Error>,
}

/// A module that has been read.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// `sm_90a`.
    pub target: String,
    /// Its own name, for what no `.loc` names a place of.
    pub(crate) name: String,
    /// LLVM has written it.
    pub(crate) is_llvm: bool,
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
}

/// A variable, of a module, a function or a scope.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Variable {
    pub(crate) space: Space,
    pub(crate) name: String,
    /// What reports call it, if that is another name.
    pub(crate) shown: Option<String>,
    pub(crate) alignment: u64,
    /// Bytes of one element.
    pub(crate) element: u32,
    /// `f32` and the like.
    pub(crate) kind: String,
    /// Elements; none where the launch decides.
    pub(crate) count: Option<u64>,
    /// `{1, 2}`, as it is written.
    pub(crate) initial: Option<String>,
    /// It says that it points to something.
    pub(crate) is_pointer: bool,
    pub(crate) is_external: bool,
    pub(crate) line: usize,
}

impl Variable {
    pub(crate) fn bytes(&self) -> u64 {
        self.count.unwrap_or(0).saturating_mul(u64::from(self.element))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    pub(crate) line: usize,
    pub(crate) results: Vec<Variable>,
    pub(crate) parameters: Vec<Variable>,
    pub(crate) required_block: Option<[u32; 3]>,
    pub(crate) largest_block: Option<[u32; 3]>,
    pub(crate) required_cluster: Option<[u32; 3]>,
    /// None where it is only declared.
    pub(crate) body: Option<Vec<Line>>,
}

/// A statement and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Of the module.
    pub(crate) line: usize,
    pub(crate) place: Option<Place>,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Statement(Statement),
    Variable(Variable),
    /// A statement that is none this crate reads, as it is written.
    Unknown(String),
}

/// A `.loc`: file, line and column, and where it was inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Location {
    at: [usize; 3],
    inlined: Option<[usize; 3]>,
}

impl Module {
    /// Reads a module; `name` is what messages call it, and `source` says where a file is that the module names.
    ///
    /// # Errors
    /// A directive that is not understood, with its line.
    pub fn read(text: &str, name: &Path, source: &dyn Fn(&str) -> String) -> Result<Self, Error> {
        let is_llvm = text.contains("LLVM NVPTX");
        let is_nvvm = text.contains("NVIDIA NVVM Compiler");
        let text = without_comments(&marked(text));
        let files = files(&text, source);
        let inlined = text.lines().filter_map(location).filter_map(|l| Some((l.at, l.inlined?)));
        let inlined = inlined.collect();
        let mut reader = Reader { text: &text, at: 0, line: 1, files: &files, inlined: &inlined };
        let mut module = Self { name: name.display().to_string(), is_llvm, ..Self::default() };
        let mut has_version = false;
        while let Some(word) = reader.word() {
            let line = reader.line;
            match word {
                ".version" => {
                    has_version = true;
                    reader.rest_of_line();
                }
                ".target" => {
                    let all = reader.rest_of_line();
                    module.target = all.split(',').next().unwrap_or_default().trim().to_owned();
                }
                ".address_size" => {
                    let size = reader.rest_of_line();
                    if size.trim() != "64" {
                        let got = size.trim();
                        return Err(Error::new(
                            line,
                            format!(".address_size: expected 64, got '{got}'"),
                        ));
                    }
                }
                ".file" | ".loc" => {
                    reader.rest_of_line();
                }
                ".section" => reader.skip_section()?,
                ".pragma" | ".alias" => {
                    reader.until(';')?;
                }
                ".visible" | ".weak" | ".common" | ".extern" | ".entry" | ".func" | ".global"
                | ".const" | ".shared" => reader.definition(word, line, &mut module)?,
                "}" | ";" => {}
                other if !has_version => {
                    let got = other.chars().take(40).collect::<String>();
                    return Err(Error::new(
                        line,
                        format!(
                            "expected a module of PTX, which begins with .version, got '{got}'"
                        ),
                    ));
                }
                other => {
                    return Err(Error::new(line, format!("expected a directive, got '{other}'")));
                }
            }
        }
        // nvcc puts numbers behind its mangled names.
        for function in module.functions.iter_mut().filter(|_| is_nvvm) {
            for (n, parameter) in function.parameters.iter_mut().enumerate() {
                let is_numbered = parameter.name == format!("{}_param_{n}", function.name);
                parameter.shown = is_numbered.then(|| format!("argument_{n}"));
            }
        }
        if !has_version {
            return Err(Error::new(
                1,
                "expected a module of PTX, which begins with .version, got an empty one",
            ));
        }
        Ok(module)
    }
}

/// LLVM marks the text of inline asm by comments alone, and it gives each line of that text a line more of the source: these
/// marks are kept.
fn marked(text: &str) -> String {
    let marks = [("// begin inline asm", BEGIN_ASM), ("// end inline asm", END_ASM)];
    let line = |line: &str| {
        let mark = marks.iter().find(|(comment, _)| line.trim() == *comment);
        mark.map_or_else(|| line.to_owned(), |(_, mark)| format!(".pragma \"{mark}\";"))
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

const BEGIN_ASM: &str = "begin inline asm";
const END_ASM: &str = "end inline asm";

/// What `.file` calls each number. Compilers write it behind the code that it is about.
fn files(text: &str, source: &dyn Fn(&str) -> String) -> HashMap<usize, String> {
    let each = text.lines().filter_map(|line| {
        let (number, name) = line.trim().strip_prefix(".file")?.trim().split_once('"')?;
        Some((number.trim().parse().ok()?, source(name.split('"').next()?)))
    });
    each.collect()
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    files: &'a HashMap<usize, String>,
    inlined: &'a HashMap<[usize; 3], [usize; 3]>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let passed = &self.text[self.at..self.at + bytes];
        self.line += passed.matches('\n').count();
        self.at += bytes;
        passed
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.advance(rest.len() - rest.trim_start().len());
    }

    /// The next word, or sign.
    fn word(&mut self) -> Option<&'a str> {
        self.skip_space();
        let rest = self.rest();
        let is_sign = |c: char| c.is_whitespace() || "{}()[];,=\"".contains(c);
        let end = rest.find(is_sign).unwrap_or(rest.len()).max(rest.chars().next()?.len_utf8());
        Some(self.advance(end))
    }

    fn rest_of_line(&mut self) -> &'a str {
        let end = self.rest().find('\n').unwrap_or(self.rest().len());
        self.advance(end)
    }

    /// What stands before the next such sign, which is passed.
    fn until(&mut self, sign: char) -> Result<&'a str, Error> {
        let line = self.line;
        let end = self.rest().find(sign);
        let end = end.ok_or_else(|| Error::new(line, format!("expected '{sign}', got none")))?;
        let before = self.advance(end);
        self.advance(1);
        Ok(before)
    }

    /// Debug information: names and bytes between braces.
    fn skip_section(&mut self) -> Result<(), Error> {
        self.until('{')?;
        self.until('}').map(drop)
    }

    fn definition(
        &mut self,
        first: &'a str,
        line: usize,
        module: &mut Module,
    ) -> Result<(), Error> {
        let (mut word, mut is_external) = (first, false);
        while [".visible", ".weak", ".common", ".extern"].contains(&word) {
            is_external |= word == ".extern";
            word = self.word().unwrap_or_default();
        }
        match word {
            ".entry" | ".func" => {
                let function = self.function(word == ".entry", line)?;
                // A declaration may stand before the definition.
                let known = module.functions.iter().position(|f| f.name == function.name);
                match known {
                    Some(n) if module.functions[n].body.is_none() => module.functions[n] = function,
                    Some(_) if function.body.is_none() => {}
                    Some(_) => {
                        let reason = format!("expected one {}, got another", function.name);
                        return Err(Error::new(line, reason));
                    }
                    None => module.functions.push(function),
                }
                Ok(())
            }
            ".global" | ".const" | ".shared" => {
                let text = self.until(';')?;
                for mut variable in variables(&format!("{word}{text}"), line)? {
                    variable.is_external = is_external;
                    module.variables.push(variable);
                }
                Ok(())
            }
            other => {
                Err(Error::new(line, format!("expected a function or a variable, got '{other}'")))
            }
        }
    }

    fn function(&mut self, is_entry: bool, line: usize) -> Result<Function, Error> {
        self.skip_space();
        let list = |reader: &mut Self| -> Result<Vec<Variable>, Error> {
            reader.skip_space();
            if !reader.rest().starts_with('(') {
                return Ok(Vec::new());
            }
            reader.advance(1);
            let at = reader.line;
            let text = reader.until(')')?;
            let each = parts(text, ',').into_iter().map(|one| variables(one, at));
            Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
        };
        let results = list(self)?;
        let name = self.word().unwrap_or_default().to_owned();
        let parameters = list(self)?;
        let (mut required_block, mut largest_block, mut required_cluster) = (None, None, None);
        let body = loop {
            let at = self.line;
            match self.word() {
                Some(";") => break None,
                Some("{") => break Some(self.body()?),
                Some(word @ (".reqntid" | ".maxntid" | ".reqnctapercluster")) => {
                    let end = self.rest().find(['\n', '{', '.']).unwrap_or(0);
                    let mut sizes = [1; 3];
                    for (n, size) in self.advance(end).split(',').enumerate() {
                        let wrong = || Error::new(at, format!("{word}: expected 1 to 3 sizes"));
                        let size = size.trim().parse().map_err(|_| wrong())?;
                        *sizes.get_mut(n).ok_or_else(wrong)? = size;
                    }
                    match word {
                        ".reqntid" => required_block = Some(sizes),
                        ".reqnctapercluster" => required_cluster = Some(sizes),
                        _ => largest_block = Some(sizes),
                    }
                }
                Some(
                    ".minnctapersm" | ".maxnreg" | ".maxnctapersm" | ".noreturn"
                    | ".explicitcluster" | ".maxclusterrank" | ".attribute",
                ) => {
                    let end = self.rest().find(['\n', '{']).unwrap_or(0);
                    self.advance(end);
                }
                Some(".pragma") => {
                    self.until(';')?;
                }
                other => {
                    let got = other.unwrap_or("the end");
                    return Err(Error::new(at, format!("{name}: expected a body, got '{got}'")));
                }
            }
        };
        Ok(Function {
            name,
            is_entry,
            line,
            results,
            parameters,
            required_block,
            largest_block,
            required_cluster,
            body,
        })
    }

    /// The statements of a body, as far as its last brace.
    fn body(&mut self) -> Result<Vec<Line>, Error> {
        let (mut all, mut depth) = (Vec::new(), 0);
        let mut place = None;
        // Within inline asm: whether its place is known.
        let mut asm: Option<bool> = None;
        let mut locations = Locations {
            known: HashMap::new(),
            own: None,
            inlined: self.inlined,
            files: self.files,
        };
        loop {
            self.skip_space();
            let (line, rest) = (self.line, self.rest());
            let mut push = |what| all.push(Line { line, place: place.clone(), what });
            match rest.chars().next() {
                None => return Err(Error::new(line, "expected '}' behind a body, got the end")),
                Some('{') => {
                    depth += 1;
                    self.advance(1);
                    push(What::Statement(Statement::Open));
                }
                Some('}') if depth == 0 => {
                    self.advance(1);
                    return Ok(all);
                }
                Some('}') => {
                    depth -= 1;
                    self.advance(1);
                    push(What::Statement(Statement::Close));
                }
                Some(';') => {
                    self.advance(1);
                }
                _ if rest.starts_with(".loc\t") || rest.starts_with(".loc ") => {
                    let text = self.rest_of_line();
                    let of_line = locations.read(text).ok_or_else(|| {
                        Error::new(line, format!("expected .loc file line column, got '{text}'"))
                    })?;
                    // What has no line of its own, such as the loop that a compiler makes of memcpy, is of the one before.
                    if asm != Some(true) {
                        place = of_line.or(place);
                    }
                    asm = asm.map(|_| true);
                }
                _ if rest.starts_with(".pragma") => {
                    let text = self.until(';')?;
                    if text.contains(BEGIN_ASM) {
                        asm = Some(false);
                    } else if text.contains(END_ASM) {
                        asm = None;
                    }
                }
                _ => match label(rest) {
                    Some((name, len)) => {
                        self.advance(len);
                        push(What::Statement(Statement::Label(name)));
                    }
                    None => {
                        let text = self.until(';')?.trim();
                        let space = [".param", ".local", ".shared", ".global", ".const"];
                        if space.iter().any(|space| text.starts_with(space)) {
                            for variable in variables(text, line)? {
                                push(What::Variable(variable));
                            }
                            continue;
                        }
                        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                        push(match registers(&text).or_else(|| statement(&text)) {
                            Some(statement) => What::Statement(statement),
                            None => What::Unknown(text),
                        });
                    }
                },
            }
        }
    }
}

/// `.reg .b32 %r<14>, %x;`: `%r0` to `%r13`, and `%x`.
fn registers(text: &str) -> Option<Statement> {
    let declared = text.strip_prefix(".reg")?;
    let (kind, names) = declared.trim().split_once(char::is_whitespace)?;
    let mut all = Vec::new();
    for name in names.split(',') {
        let name = name.trim().trim_start_matches('%');
        match name.split_once('<') {
            Some((stem, count)) => {
                let count: u32 = count.strip_suffix('>')?.trim().parse().ok()?;
                all.extend((0..count).map(|n| format!("{stem}{n}")));
            }
            None => all.push(name.to_owned()),
        }
    }
    Some(Statement::Registers(kind.strip_prefix('.')?.to_owned(), all))
}

/// `.shared .align 16 .b8 tile[4096]`, `.param .u64 .ptr .global .align 1 name`, `.global .u32 x = 5, y`.
fn variables(text: &str, line: usize) -> Result<Vec<Variable>, Error> {
    let wrong = |what: &str| {
        let shown: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown: String = shown.chars().take(80).collect();
        Error::new(line, format!("expected {what}, got '{shown}'"))
    };
    let mut rest = text.trim();
    let (mut space, mut kind, mut alignment, mut is_pointer) = (None, None, None, false);
    while rest.starts_with('.') {
        let end = rest.find(|c: char| c.is_whitespace()).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        rest = behind.trim_start();
        match word {
            ".align" => {
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                // Behind .ptr it is that of what is pointed to.
                let own = rest[..end].parse::<u64>().ok().filter(|a| a.is_power_of_two());
                let own = own.ok_or_else(|| wrong("an alignment"))?;
                if !is_pointer {
                    alignment = Some(own);
                }
                rest = rest[end..].trim_start();
            }
            ".ptr" => is_pointer = true,
            _ if is_pointer => {}
            ".param" => space = Some(Space::Parameter),
            ".global" => space = Some(Space::Global),
            ".const" => space = Some(Space::Constant),
            ".local" => space = Some(Space::Local),
            ".shared" => space = Some(Space::Shared),
            ".attribute" | ".managed" => return Err(wrong("a variable without attributes")),
            word => kind = Some(word[1..].to_owned()),
        }
    }
    let space = space.ok_or_else(|| wrong("a variable in a state space"))?;
    let kind = kind.ok_or_else(|| wrong("a variable with a type"))?;
    let element = of_type(&kind).ok_or_else(|| wrong("a type that is known"))?.bytes;
    let each = parts(rest, ',').into_iter().map(|one| {
        let (declared, initial) = match one.split_once('=') {
            Some((declared, initial)) => (declared.trim(), Some(initial.trim().to_owned())),
            None => (one.trim(), None),
        };
        let (name, sizes) = declared.split_once('[').unwrap_or((declared, ""));
        let mut count = Some(1u64);
        for size in sizes.split('[').filter(|_| declared.contains('[')) {
            let size = size.trim().strip_suffix(']').ok_or_else(|| wrong("sizes in brackets"))?;
            count = match size.trim() {
                "" => None,
                size => {
                    let size = whole_number(size).ok_or_else(|| wrong("a size"))?;
                    count.and_then(|count| count.checked_mul(size))
                }
            };
        }
        Ok(Variable {
            space,
            name: name.trim().trim_start_matches('%').to_owned(),
            shown: None,
            alignment: alignment.unwrap_or(u64::from(element)),
            element,
            kind: kind.clone(),
            count,
            initial,
            is_pointer,
            is_external: false,
            line,
        })
    });
    each.collect()
}

/// What a `.loc` says; `None` of other lines.
fn location(text: &str) -> Option<Location> {
    let mut groups = text.trim().strip_prefix(".loc")?.split(',');
    let place = |words: &str| -> Option<[usize; 3]> {
        let mut numbers = words.split_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some([next()?, next()?, next()?])
    };
    let at = place(groups.next()?)?;
    let inlined = groups.find_map(|g| place(g.trim().strip_prefix("inlined_at")?));
    Some(Location { at, inlined })
}

/// What the `.loc` of one function say.
struct Locations<'a> {
    /// Where a place was inlined.
    known: HashMap<[usize; 3], Location>,
    /// The file that the function's own lines are of.
    own: Option<usize>,
    /// Where places were inlined that a `.loc` further on names.
    inlined: &'a HashMap<[usize; 3], [usize; 3]>,
    files: &'a HashMap<usize, String>,
}

impl Locations<'_> {
    /// The place that a `.loc` means: the innermost one in the function's own file. What is wrong in a function of a
    /// library is wrong where that is called.
    fn read(&mut self, text: &str) -> Option<Option<Place>> {
        let location = location(text)?;
        let at = location.at;
        let own = *self.own.get_or_insert(at[0]);
        self.known.insert(at, location);
        let mut chosen = location;
        // A circle ends: there are not more places than these.
        for _ in 0..self.known.len() {
            match chosen.inlined {
                Some(outer) if chosen.at[0] != own => {
                    chosen = self
                        .known
                        .get(&outer)
                        .copied()
                        .filter(|known| known.at != chosen.at)
                        .unwrap_or_else(|| Location {
                            at: outer,
                            inlined: self.inlined.get(&outer).copied(),
                        });
                }
                _ => break,
            }
        }
        let [file, line, column] = chosen.at;
        // Line 0: of no line.
        let named = self.files.get(&file).filter(|_| line > 0);
        Some(named.map(|name| Place { file: name.clone(), line, column }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = r#"// Generated by LLVM NVPTX Back-End
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 tile[];
.global .align 4 .b8 table[8] = {1, 0x2, 3, 4};
.visible .entry double_it(.param .u64 .ptr .global .align 1 x_ptr, .param .u32 n)
.reqntid 64
{
	.local .align 4 .b8 __local_depot0[8];
	.reg .pred %p<2>; .reg .b32 %r<4>; /* two
	lines */ .reg .b64 %rd<3>;
	.loc 1 10 5
	ld.param.b64 %rd1, [x_ptr];
	mov.u32 %r1, %tid.x;
	.loc 2 7 9, function_name $L__info_string0, inlined_at 2 3 1
	mul.wide.u32 %rd2, %r1, 4;
	.loc 2 3 1, function_name $L__info_string0, inlined_at 1 12 20
	add.s64 %rd1, %rd1, %rd2;
	// begin inline asm
	.loc 1 13 9
	mov.u32 %r2, 0;
	.loc 1 14 9
	ld.global.b32 { %r2 }, [ %rd1 + 0 ];
	// end inline asm
	.loc 1 15 1
	ret;
}
	.file 1 "kernel.py"
	.file 2 "library.py"
	.section .debug_info
	{
.b32 34
	}
"#;

    fn read(text: &str) -> Result<Module, Error> {
        Module::read(text, Path::new("k.ptx"), &|name| name.to_owned())
    }

    #[test]
    fn statements_have_the_places_of_their_own_file() {
        let module = read(MODULE).unwrap();
        let body = module.functions[0].body.as_ref().unwrap();
        let places: Vec<(usize, usize)> = body
            .iter()
            .filter(|line| matches!(&line.what, What::Statement(Statement::Instruction(_))))
            .map(|line| (line.line, line.place.as_ref().unwrap().line))
            .collect();
        // In a library's function it is the call; of inline asm the statement that has it.
        assert_eq!(places, [(14, 10), (15, 10), (17, 12), (19, 12), (22, 13), (24, 13), (27, 15)]);
        assert!(body.iter().flat_map(|line| &line.place).all(|place| place.file == "kernel.py"));
    }

    #[test]
    fn what_a_module_says_of_its_kernels() {
        let [entry] = &read(MODULE).unwrap().translate().entries[..] else { panic!("one kernel") };
        assert_eq!((entry.name.as_str(), entry.line), ("double_it", 7));
        assert_eq!(entry.place.as_ref().map(|place| (place.line, place.column)), Some((10, 5)));
        assert_eq!((entry.target.as_str(), entry.required_block), ("sm_90a", Some([64, 1, 1])));
        let types: Vec<&str> = entry.parameters.iter().map(|p| p.cpp.as_str()).collect();
        assert_eq!(types, ["void*", "int"]);
        assert_eq!((entry.hidden, entry.dynamic_shared, &entry.refusal), (0, false, &None));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name_and_line() {
        for (known, unknown, line, reason) in [
            (
                "mov.u32 %r1, %tid.x",
                "tcgen05.alloc.b32 [%r1], 4",
                15,
                "'tcgen05.alloc.b32' is not run here",
            ),
            (
                "mov.u32 %r1, %tid.x",
                "mov.u32 %r1, %nothing",
                15,
                "'mov.u32': register %nothing is not declared",
            ),
            (
                "mov.u32 %r1, %tid.x",
                "bra NOWHERE",
                15,
                "'bra': expected a label of this function, got NOWHERE",
            ),
            ("mov.u32 %r1, %tid.x", "bra (", 15, "'bra (' is not run here"),
            (".reg .b32 %r<4>", ".reg .b999 %r<4>", 11, "'.reg .b999' is not run here"),
            ("ld.param.b64 %rd1, [x_ptr]", "call.uni far, ()", 14, "'call.uni' is not run here"),
        ] {
            let entries = read(&MODULE.replace(known, unknown)).unwrap().translate().entries;
            assert_eq!(entries[0].refusal, Some(Error::new(line, reason)), "{unknown}");
        }
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(
            error("__global__ void k() {}"),
            "line 1: expected a module of PTX, which begins with .version, got '__global__'"
        );
        assert_eq!(
            error(&MODULE.replace(".address_size 64", ".address_size 32")),
            "line 4: .address_size: expected 64, got '32'"
        );
        assert_eq!(
            error(&MODULE.replace(".extern .shared", ".what")),
            "line 5: expected a directive, got '.what'"
        );
    }

    /// Refused or read, and no panic.
    #[test]
    fn what_is_malformed_is_no_panic() {
        for from in 0..MODULE.len() {
            for to in [from, from + 1, from + 7, from + 40, MODULE.len()] {
                if let Some(end) = MODULE.get(to..)
                    && let Ok(module) = read(&(MODULE[..from].to_owned() + end))
                {
                    let _ = module.translate();
                }
            }
        }
    }
}
