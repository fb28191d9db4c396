//! What a launch of one kernel is given, and how that is written.
//!
//! ```text
//! ARGUMENT  [NAME=]VALUE                       in the kernel's order, or by the parameter's name
//! VALUE     EXPRESSION                         C++: 1000, 1e-5f, make_float2(1, 2), n * 4
//!           in:TYPE[SHAPE][=FILL]              memory with values, which the kernel reads
//!           inout:TYPE[SHAPE][=FILL]           likewise, which it may also write
//!           out:TYPE[SHAPE]                    memory without values, all of which it must write
//! SHAPE     EXPRESSION, …                      may name the numbers among the arguments: [n, 3 * m]
//! FILL      random | random(LOW, HIGH) | arange | NUMBER | @FILE[TENSOR]
//! ```

use std::fmt;
use std::path::PathBuf;

use lab_emulator::shown;

/// An argument that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: expected {}, got {}", shown(argument, 100), shown(expected, 400), shown(got, 300))]
pub struct BadArgument {
    /// Which: `--arg x`, `--grid`.
    pub argument: String,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub got: String,
}

impl BadArgument {
    /// Says what is wrong with an argument.
    pub fn new(
        argument: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self { argument: argument.into(), expected: expected.into(), got: got.into() }
    }
}

/// One argument of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// The parameter that it is for; `None` where its place says so.
    pub name: Option<String>,
    /// What it is.
    pub value: Value,
    /// As it was written.
    pub text: String,
}

/// What an argument is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An expression of C++.
    Expression(String),
    /// Device memory.
    Buffer(Buffer),
}

/// Device memory of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// What the kernel does with it.
    pub role: Role,
    /// What it holds.
    pub element: Element,
    /// Expressions; `None` where a file says it.
    pub shape: Option<Vec<String>>,
    /// Its values before the launch; `None` of [`Role::Out`].
    pub fill: Option<Fill>,
}

/// What a kernel does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It reads it.
    In,
    /// It writes all of it, and reads nothing that it has not written.
    Out,
    /// It reads and writes it.
    InOut,
}

impl Role {
    /// `in`, `out`, `inout`.
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::InOut => "inout",
        }
    }
}

/// Values of memory before a launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Drawn evenly from a range, its end excluded.
    Random {
        /// Its start.
        low: f64,
        /// Its end.
        high: f64,
    },
    /// 0, 1, 2, …
    Arange,
    /// The same everywhere.
    Constant(f64),
    /// The same everywhere, as C++ has it: `{1, 2.5f}`.
    Each(String),
    /// A tensor of a file in safetensors.
    File(TensorName),
}

/// `@FILE[TENSOR]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorName {
    /// The file.
    pub file: PathBuf,
    /// Its tensor.
    pub tensor: String,
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}[{}]", self.file.display(), self.tensor)
    }
}

/// The type of an element's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Component {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl Component {
    /// `f32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Its size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }
}

/// The type of an element, as C++ has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// What C++ calls it.
    pub cpp: String,
    /// Type and number of its parts; `None` of a type that the file defines.
    pub parts: Option<(Component, usize)>,
}

/// Names of one part, as they are written, in C++, and what they are.
const SCALARS: [(&str, &str, Component); 32] = [
    ("f64", "double", Component::F64),
    ("double", "double", Component::F64),
    ("f32", "float", Component::F32),
    ("float", "float", Component::F32),
    ("f16", "__half", Component::F16),
    ("half", "__half", Component::F16),
    ("__half", "__half", Component::F16),
    ("bf16", "__nv_bfloat16", Component::BF16),
    ("__nv_bfloat16", "__nv_bfloat16", Component::BF16),
    ("i64", "int64_t", Component::I64),
    ("int64_t", "int64_t", Component::I64),
    ("long", "long", Component::I64),
    ("long long", "long long", Component::I64),
    ("u64", "uint64_t", Component::U64),
    ("uint64_t", "uint64_t", Component::U64),
    ("size_t", "size_t", Component::U64),
    ("unsigned long long", "unsigned long long", Component::U64),
    ("i32", "int", Component::I32),
    ("int", "int", Component::I32),
    ("u32", "unsigned", Component::U32),
    ("unsigned", "unsigned", Component::U32),
    ("unsigned int", "unsigned", Component::U32),
    ("uint", "unsigned", Component::U32),
    ("i16", "short", Component::I16),
    ("short", "short", Component::I16),
    ("u16", "unsigned short", Component::U16),
    ("i8", "int8_t", Component::I8),
    ("char", "char", Component::I8),
    ("u8", "uint8_t", Component::U8),
    ("unsigned char", "unsigned char", Component::U8),
    ("unsigned short", "unsigned short", Component::U16),
    ("bool", "bool", Component::Bool),
];

/// CUDA's vectors of 1 to 4.
const VECTORS: [(&str, Component); 11] = [
    ("float", Component::F32),
    ("double", Component::F64),
    ("int", Component::I32),
    ("uint", Component::U32),
    ("longlong", Component::I64),
    ("ulonglong", Component::U64),
    ("short", Component::I16),
    ("ushort", Component::U16),
    ("char", Component::I8),
    ("uchar", Component::U8),
    ("long", Component::I64),
];

impl Element {
    /// By its name: `f32`, `float4`, `half2`; any other is a type of the file.
    pub fn of(name: &str) -> Self {
        if let Some(&(_, cpp, part)) = SCALARS.iter().find(|(n, _, _)| *n == name) {
            return Self { cpp: cpp.to_owned(), parts: Some((part, 1)) };
        }
        let vector = || {
            let split = name.len().checked_sub(1).filter(|&at| name.is_char_boundary(at))?;
            let (own, lanes) = (&name[..split], name[split..].parse().ok()?);
            let (_, part) = VECTORS.iter().find(|(n, _)| *n == own)?;
            (1..=4).contains(&lanes).then_some((*part, lanes))
        };
        let parts = match name {
            "half2" | "__half2" => Some((Component::F16, 2)),
            "__nv_bfloat162" => Some((Component::BF16, 2)),
            "cuComplex" | "cuFloatComplex" => Some((Component::F32, 2)),
            "cuDoubleComplex" => Some((Component::F64, 2)),
            _ => vector(),
        };
        Self { cpp: name.to_owned(), parts }
    }

    /// `f32`, `float4`, `Node`.
    pub fn name(&self) -> &str {
        match self.parts {
            Some((part, 1)) => part.name(),
            _ => &self.cpp,
        }
    }
}

impl Argument {
    /// Reads `[NAME=]VALUE`. `option` is what messages call it, and `names` are the parameters.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(option: &str, text: &str) -> Result<Self, BadArgument> {
        let (name, rest) = split_name(text);
        let named = match &name {
            Some(name) => format!("{option} {name}"),
            None => format!("{option} {text}"),
        };
        Ok(Self { value: Value::parse(&named, rest)?, name, text: text.to_owned() })
    }
}

/// `n=1000`, but not `a == b` and not `in:f32[4]=0`.
fn split_name(text: &str) -> (Option<String>, &str) {
    let Some((name, rest)) = text.split_once('=') else { return (None, text) };
    let name = name.trim();
    let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.starts_with(|c: char| !c.is_ascii_digit());
    if is_word && !rest.starts_with('=') { (Some(name.to_owned()), rest) } else { (None, text) }
}

const BUFFERS: &str = "in:TYPE[SHAPE][=FILL], inout:TYPE[SHAPE][=FILL] or out:TYPE[SHAPE]";
const FILLS: &str = "random, random(LOW, HIGH), arange, a number, {…} or @FILE[TENSOR]";

impl Value {
    fn parse(named: &str, text: &str) -> Result<Self, BadArgument> {
        let text = text.trim();
        let roles = [("in:", Role::In), ("out:", Role::Out), ("inout:", Role::InOut)].into_iter();
        for (prefix, role) in roles {
            if let Some(rest) = text.strip_prefix(prefix).filter(|r| !r.starts_with(':')) {
                return Ok(Self::Buffer(Buffer::parse(named, role, rest)?));
            }
        }
        if text.is_empty() {
            return Err(BadArgument::new(named, "a value of C++ or memory", "nothing"));
        }
        // A type and a shape are no C++: what the kernel does with the memory was left out.
        let of_type = text.split_once('[').map_or("", |(of_type, _)| of_type.trim());
        if Element::of(of_type).parts.is_some() {
            let roles = ["in", "inout", "out"].map(|role| format!("{role}:{text}"));
            let expected = format!("{}, {} or {}", roles[0], roles[1], roles[2]);
            return Err(BadArgument::new(named, expected, format!("'{text}'")));
        }
        Ok(Self::Expression(text.to_owned()))
    }
}

impl Buffer {
    /// What each element is, if that is said in C++.
    pub(crate) fn each(&self) -> Option<&str> {
        match &self.fill {
            Some(Fill::Each(each)) => Some(each),
            _ => None,
        }
    }

    fn parse(named: &str, role: Role, text: &str) -> Result<Self, BadArgument> {
        let wrong =
            |expected: &str| BadArgument::new(named, expected, format!("{}:{text}", role.name()));
        let end = text.find(['[', '=']).unwrap_or(text.len());
        let element = text[..end].trim();
        if element.is_empty() {
            return Err(wrong(BUFFERS));
        }
        let (shape, rest) = match text[end..].strip_prefix('[') {
            Some(inside) => {
                let close = closing(inside).ok_or_else(|| wrong("a ] behind the shape"))?;
                let dims: Vec<String> =
                    split_list(&inside[..close]).into_iter().map(str::to_owned).collect();
                if dims.iter().any(String::is_empty) {
                    return Err(wrong("a shape such as [1000] or [n, 4]"));
                }
                (Some(dims), inside[close + 1..].trim())
            }
            None => (None, text[end..].trim()),
        };
        let fill = match rest.strip_prefix('=') {
            Some(fill) => Some(Fill::parse(fill.trim()).ok_or_else(|| wrong(FILLS))?),
            None if rest.is_empty() => None,
            None => return Err(wrong(BUFFERS)),
        };
        let fill = match (role, fill) {
            (Role::Out, Some(_)) => {
                return Err(wrong("no values, since the kernel writes them (inout: has some)"));
            }
            (Role::Out, None) => None,
            (_, fill) => Some(fill.unwrap_or(Fill::Random { low: f64::NAN, high: f64::NAN })),
        };
        if shape.is_none() && !matches!(fill, Some(Fill::File(_))) {
            return Err(wrong("a shape such as [1000]"));
        }
        let element = Element::of(element);
        Ok(Self { role, element, shape, fill })
    }
}

impl Fill {
    fn parse(text: &str) -> Option<Self> {
        if let Some(name) = text.strip_prefix('@') {
            return TensorName::parse(name).map(Self::File);
        }
        if text.starts_with('{') && text.ends_with('}') {
            return Some(Self::Each(text.to_owned()));
        }
        match text {
            // The type says which range: see `Self::range`.
            "random" => Some(Self::Random { low: f64::NAN, high: f64::NAN }),
            "arange" => Some(Self::Arange),
            _ => match text.strip_prefix("random(").and_then(|t| t.strip_suffix(')')) {
                Some(range) => {
                    let (low, high) = range.split_once(',')?;
                    let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
                    (low < high).then_some(Self::Random { low, high })
                }
                None => text.parse().ok().map(Self::Constant),
            },
        }
    }
}

impl TensorName {
    /// `FILE[TENSOR]`, without the `@`.
    pub fn parse(text: &str) -> Option<Self> {
        let (file, tensor) = text.strip_suffix(']')?.rsplit_once('[')?;
        let whole = !file.is_empty() && !tensor.is_empty();
        whole.then(|| Self { file: file.into(), tensor: tensor.to_owned() })
    }
}

/// Where the bracket that was opened before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' if depth == 0 => return Some(at),
            ']' | ')' | '}' => depth -= 1,
            _ => {}
        }
        None
    })
}

/// Parts between commas that stand in no brackets, without spaces around them.
pub fn split_list(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(text: &str) -> Buffer {
        match Argument::parse("--arg", text).unwrap().value {
            Value::Buffer(buffer) => buffer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_has_a_role_a_type_a_shape_and_values() {
        let x = buffer("in:f32[n, f(1, 2)]=random(0, 1)");
        assert_eq!((x.role, x.element.cpp.as_str()), (Role::In, "float"));
        assert_eq!(x.shape.unwrap(), ["n", "f(1, 2)"]);
        assert_eq!(x.fill, Some(Fill::Random { low: 0.0, high: 1.0 }));
        assert_eq!(buffer("out:float4[3]").element.parts, Some((Component::F32, 4)));
        assert_eq!(buffer("inout:Node[3]=0").element.parts, None);
        let file = buffer("x=in:bf16=@a/b.safetensors[layer.0]").fill;
        let tensor = TensorName { file: "a/b.safetensors".into(), tensor: "layer.0".into() };
        assert_eq!(file, Some(Fill::File(tensor)));
        assert_eq!(buffer("in:i32[4]=-1").fill, Some(Fill::Constant(-1.0)));
    }

    #[test]
    fn all_else_is_cpp() {
        for (text, name, expression) in [
            ("1000", None, "1000"),
            ("n=a == b", Some("n"), "a == b"),
            ("a == b", None, "a == b"),
            ("in::x(1)", None, "in::x(1)"),
            ("p=Params{.n = 4}", Some("p"), "Params{.n = 4}"),
        ] {
            let got = Argument::parse("--arg", text).unwrap();
            assert_eq!(got.name.as_deref(), name, "{text}");
            assert_eq!(got.value, Value::Expression(expression.into()));
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_name() {
        for (text, expected) in [
            ("x=in:f32", "--arg x: expected a shape such as [1000], got in:f32"),
            ("in:f32[4]=ones", "--arg in:f32[4]=ones: expected random, random(LOW, HIGH), arange"),
            ("out:f32[4]=1", "--arg out:f32[4]=1: expected no values, since the kernel"),
            ("in:f32[4", "--arg in:f32[4: expected a ] behind the shape"),
            ("in:[4]", "--arg in:[4]: expected in:TYPE[SHAPE][=FILL]"),
            ("in:f32[]", "--arg in:f32[]: expected a shape such as [1000]"),
            ("in:f32=@x", "--arg in:f32=@x: expected random"),
            ("in:f32[4]=random(2,1)", "--arg in:f32[4]=random(2,1): expected random"),
            ("n=", "--arg n: expected a value of C++ or memory, got nothing"),
        ] {
            let error = Argument::parse("--arg", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
