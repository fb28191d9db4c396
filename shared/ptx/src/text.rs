//! What instructions work on, and the C++ that reads and writes it.

use std::collections::{HashMap, HashSet};

use crate::special::special;
use crate::statement::{Instruction, Operand, Statement, Value};

/// A type of PTX, and what has its bits in C++.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type {
    pub(crate) cpp: &'static str,
    pub(crate) bytes: u32,
    /// The letters of its name: `s`, `u`, `b`, `f`.
    pub(crate) letter: char,
}

pub(crate) fn of_type(name: &str) -> Option<Type> {
    let cpp = match name {
        "b8" | "u8" => "uint8_t",
        "s8" => "int8_t",
        "b16" | "u16" | "f16" | "bf16" | "e4m3x2" | "e5m2x2" => "uint16_t",
        "s16" => "int16_t",
        "b32" | "u32" | "f16x2" | "bf16x2" | "tf32" => "uint32_t",
        "s32" => "int32_t",
        "b64" | "u64" => "uint64_t",
        "s64" => "int64_t",
        "f32" => "float",
        "f64" => "double",
        _ => return None,
    };
    let bytes = match cpp {
        "uint8_t" | "int8_t" => 1,
        "uint16_t" | "int16_t" => 2,
        "uint64_t" | "int64_t" | "double" => 8,
        _ => 4,
    };
    Some(Type { cpp, bytes, letter: name.chars().next()? })
}

/// The C++ type of registers that are declared with this type.
pub(crate) fn of_register(name: &str) -> Option<&'static str> {
    if name == "pred" { Some("bool") } else { Some(of_type(name)?.cpp) }
}

/// Where a variable of a module lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Constant,
    Local,
    Shared,
    /// A parameter of a kernel, or what a function is called with; its C++ name is an array of its bytes.
    Parameter,
    Function,
}

/// A variable or a function, and its name in C++.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Symbol {
    pub(crate) space: Space,
    pub(crate) cpp: String,
}

/// What stands behind the colons: `"=r"(x)`, or as clang takes it, `[name] "=r"(x)`.
#[derive(Clone, Debug)]
pub struct Given {
    /// Between brackets before it.
    pub name: Option<String>,
    /// `=r`, `+f`, `l`.
    pub constraint: String,
    /// What stands in the parentheses.
    pub expression: String,
}

/// What a text has to work on.
#[derive(Default)]
pub(crate) struct Text<'a> {
    pub(crate) given: &'a [Given],
    /// Of a module, whose functions may return.
    pub(crate) is_module: bool,
    /// Registers with their C++ types, scope by scope.
    pub(crate) registers: Vec<HashMap<String, &'static str>>,
    /// Registers that have a place in an array: those that wgmma reads and writes.
    pub(crate) places: HashMap<String, String>,
    /// Variables and functions, scope by scope.
    pub(crate) symbols: Vec<HashMap<String, Symbol>>,
}

impl Text<'_> {
    /// The variables that an instruction reads while the thread goes on: those of wgmma's A.
    pub(crate) fn read_later(&self, statement: &Statement) -> Vec<String> {
        let Statement::Instruction(own) = statement else { return Vec::new() };
        match (own.words.get(1).map(String::as_str), own.operands.get(1)) {
            (Some("mma_async"), Some(Operand::Vector(values))) => {
                values.iter().filter_map(|value| self.variable(value)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The type of a register in C++.
    pub(crate) fn register(&self, name: &str) -> Option<&'static str> {
        self.registers.iter().rev().find_map(|scope| scope.get(name)).copied()
    }

    /// The first register of an instruction that is neither declared nor a special one.
    pub(crate) fn undeclared<'a>(&self, own: &'a Instruction) -> Option<&'a str> {
        values_in(own.guard.as_ref(), &own.operands).into_iter().find_map(|value| match value {
            Value::Special(name) if self.register(name).is_none() && special(name).is_none() => {
                Some(name.as_str())
            }
            _ => None,
        })
    }

    pub(crate) fn symbol(&self, name: &str) -> Option<&Symbol> {
        self.symbols.iter().rev().find_map(|scope| scope.get(name))
    }

    /// The variable that a value is.
    pub(crate) fn variable(&self, value: &Value) -> Option<String> {
        match value {
            Value::Own(name) => {
                let named = self.given.iter().position(|g| g.name.as_ref() == Some(name));
                let index =
                    named.or_else(|| name.parse().ok()).filter(|&n| n < self.given.len())?;
                Some(format!("emu_o{index}"))
            }
            Value::Register(name) | Value::Special(name) if self.register(name).is_some() => {
                let place = self.places.get(name).cloned();
                Some(place.unwrap_or_else(|| format!("emu_r_{}", cpp_name(name))))
            }
            _ => None,
        }
    }

    /// A value as one of this C++ type.
    pub(crate) fn read(&self, value: &Value, cpp: &str) -> Option<String> {
        match value {
            Value::Number(number) => Some(format!("{cpp}({number})")),
            Value::Real(bits, real) if ["float", "double"].contains(&cpp) => {
                Some(format!("{cpp}(::emu::from_bits<{real}>({bits}ull))"))
            }
            Value::Real(bits, _) => Some(format!("{cpp}({bits}ull)")),
            Value::Special(name) if self.register(name).is_none() => {
                Some(format!("{cpp}({})", special(name)?))
            }
            Value::Register(name) if self.register(name).is_none() => self.address(name, cpp),
            value => {
                let variable = self.variable(value)?;
                // The usual case, without a call: there are thousands of them.
                let (Value::Register(name) | Value::Special(name)) = value else {
                    return Some(format!("::emu::ptx::as<{cpp}>({variable})"));
                };
                if self.register(name) == Some(cpp) {
                    Some(variable)
                } else {
                    Some(format!("::emu::ptx::as<{cpp}>({variable})"))
                }
            }
        }
    }

    /// The address of a variable, as a number of its space.
    fn address(&self, name: &str, cpp: &str) -> Option<String> {
        if name == "WARP_SZ" {
            return Some(format!("{cpp}(32)"));
        }
        let Symbol { space, cpp: variable } = self.symbol(name)?;
        let generic = format!("uint64_t({variable})");
        Some(match space {
            Space::Shared => format!("{cpp}(::emu::ptx::window({generic}))"),
            _ => format!("{cpp}({generic})"),
        })
    }

    pub(crate) fn is_predicate(&self, value: &Value) -> bool {
        matches!(value, Value::Register(name) | Value::Special(name) if self.register(name) == Some("bool"))
    }

    pub(crate) fn write(&self, to: &Value, value: &str) -> Option<String> {
        match to {
            Value::Nowhere => Some(format!("(void)({value})")),
            to => Some(format!("::emu::ptx::put({}, {value})", self.variable(to)?)),
        }
    }
}

/// A name of PTX as one of C++.
pub(crate) fn cpp_name(name: &str) -> String {
    let plain = name.replace('$', "_24_");
    // What a module calls so is no word of the language there.
    let words = ["int", "float", "double", "char", "short", "long", "new", "this", "and", "or"];
    if words.contains(&name) { plain + "_" } else { plain }
}

/// An instruction, and what it works on.
pub(crate) struct Call<'a> {
    pub(crate) text: &'a Text<'a>,
    pub(crate) words: &'a [&'a str],
    pub(crate) operands: &'a [Operand],
}

impl Call<'_> {
    /// Whether its name begins so.
    pub(crate) fn is(&self, beginning: &str) -> bool {
        beginning.split('.').enumerate().all(|(n, word)| self.words.get(n) == Some(&word))
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// The type that it ends with.
    pub(crate) fn own_type(&self) -> Option<Type> {
        of_type(self.words.last()?)
    }

    pub(crate) fn value(&self, index: usize) -> Option<&Value> {
        match self.operands.get(index)? {
            Operand::Value(value) => Some(value),
            _ => None,
        }
    }

    /// The values of a vector, or the one value.
    pub(crate) fn vector(&self, index: usize) -> Option<&[Value]> {
        match self.operands.get(index)? {
            Operand::Vector(values) => Some(values),
            Operand::Value(value) => Some(std::slice::from_ref(value)),
            _ => None,
        }
    }

    /// Operand `index` as a C++ type. With `.ftz` an f32 that is subnormal is a zero of its sign.
    pub(crate) fn read(&self, index: usize, cpp: &str) -> Option<String> {
        let value = self.read_as_it_is(index, cpp)?;
        let flushes = cpp == "float" && self.has("ftz");
        Some(if flushes { format!("::emu::ptx::flushed({value})") } else { value })
    }

    pub(crate) fn read_as_it_is(&self, index: usize, cpp: &str) -> Option<String> {
        match self.operands.get(index)? {
            Operand::Value(value) => self.text.read(value, cpp),
            Operand::Not(value) => Some(format!("!{}", self.text.read(value, cpp)?)),
            _ => None,
        }
    }

    pub(crate) fn read_all(&self, index: usize, cpp: &str) -> Option<Vec<String>> {
        self.vector(index)?.iter().map(|value| self.text.read(value, cpp)).collect()
    }

    pub(crate) fn write(&self, index: usize, value: &str) -> Option<String> {
        self.text.write(self.value(index)?, value)
    }

    /// Writes an f32 or f64 result: with `.ftz` a subnormal f32 becomes a zero of its sign.
    pub(crate) fn write_real(&self, index: usize, value: &str, cpp: &str) -> Option<String> {
        if cpp == "float" && self.has("ftz") {
            return self.write(index, &format!("::emu::ptx::flushed({value})"));
        }
        self.write(index, value)
    }

    /// Into the values of a vector what an array of C++ holds.
    pub(crate) fn write_all(&self, index: usize, array: &str) -> Option<String> {
        let values = self.vector(index)?.iter().enumerate();
        let each = values.map(|(n, to)| self.text.write(to, &format!("{array}[{n}]")));
        Some(each.collect::<Option<Vec<_>>>()?.join("; "))
    }

    /// What an address points to, in shared memory or wherever it says.
    pub(crate) fn place(&self, index: usize, shared: bool) -> Option<String> {
        let Operand::Address { base, offset, .. } = self.operands.get(index)? else { return None };
        if let Value::Register(name) = base
            && self.text.register(name).is_none()
            && let Some(symbol) = self.text.symbol(name)
        {
            return match symbol.space {
                Space::Parameter => Some(format!("({} + {offset})", symbol.cpp)),
                _ => Some(format!("((char*){} + {offset})", symbol.cpp)),
            };
        }
        // Parameters are on the stack as well.
        let is_local = |w: &&str| *w == "local" || w.starts_with("param");
        let space = if shared {
            "shared"
        } else if self.words.iter().any(is_local) {
            "local"
        } else {
            "anywhere"
        };
        let base = self.text.read(base, "uint64_t")?;
        Some(format!("::emu::ptx::{space}({base} + {offset})"))
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.words.iter().any(|word| matches!(*word, "shared" | "shared::cta" | "shared::cluster"))
    }
}

/// Statements as one.
pub(crate) fn block(statements: String) -> String {
    format!("{{ {statements}; }}")
}

/// The names of the registers that a statement may have.
pub(crate) fn names_of(instruction: &Instruction) -> HashSet<&str> {
    names_in(instruction.guard.as_ref(), &instruction.operands)
}

/// Those of a predicate and of operands.
pub(crate) fn names_in<'a>(
    guard: Option<&'a (Value, bool)>,
    operands: &'a [Operand],
) -> HashSet<&'a str> {
    let names = values_in(guard, operands).into_iter().filter_map(|value| match value {
        Value::Register(name) | Value::Special(name) => Some(name.as_str()),
        _ => None,
    });
    names.collect()
}

/// The values of a predicate and of operands, in their order.
fn values_in<'a>(guard: Option<&'a (Value, bool)>, operands: &'a [Operand]) -> Vec<&'a Value> {
    let mut values: Vec<&Value> = guard.iter().map(|(value, _)| value).collect();
    for operand in operands {
        match operand {
            Operand::Value(value) | Operand::Not(value) => values.push(value),
            Operand::Pair(first, second) => values.extend([first, second]),
            Operand::Vector(all) | Operand::Arguments(all) => values.extend(all),
            Operand::Address { base, coordinates, .. } => {
                values.push(base);
                values.extend(coordinates);
            }
        }
    }
    values
}
