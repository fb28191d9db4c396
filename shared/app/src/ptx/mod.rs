//! Inline PTX, as C++ that the emulator runs: each instruction becomes a call of what the emulator has for it
//! (`compat/ptx.h`), on the line where the program has it.
//!
//! What is not known is left alone: the whole text is a trap then, that says it.

mod asynchronous;
mod memory;
mod numbers;
mod statement;
mod warps;

use std::collections::HashSet;

use statement::{Instruction, Operand, Statement, Value, label_name, statements};

/// What stands behind the colons: `"=r"(x)`, or as clang takes it, `[name] "=r"(x)`.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) name: Option<String>,
    /// `=r`, `+f`, `l`.
    pub(crate) constraint: String,
    pub(crate) expression: String,
}

/// The statements of C++ that do what a text does, without its quotes; `None` if there is an instruction that is not known.
pub(crate) fn translated(text: &str, given: &[Given]) -> Option<String> {
    let statements = statements(text)?;
    let (mut names, mut predicates) = (HashSet::new(), HashSet::new());
    let mut labels = Vec::new();
    for statement in &statements {
        match statement {
            Statement::Registers(kind, declared) => {
                names.extend(declared.iter().cloned());
                if kind == "pred" {
                    predicates.extend(declared.iter().cloned());
                }
            }
            // In scopes of their own two may have one name; here they may not.
            Statement::Label(name) if labels.contains(&format!("emu_l_{name}")) => return None,
            Statement::Label(name) => labels.push(format!("emu_l_{name}")),
            _ => {}
        }
    }
    let text = Text { given, names, predicates };
    let kept: Vec<String> = statements.iter().flat_map(|one| text.read_later(one)).collect();
    let mut body = String::new();
    if !labels.is_empty() {
        body += &format!("__label__ {}; ", labels.join(", "));
    }
    for (n, Given { constraint, expression, .. }) in given.iter().enumerate() {
        // What goes in has a register of its own: what comes out may be the same variable. But what is read when the text
        // is over is the variable itself.
        let is_variable = constraint.starts_with(['=', '+']) || kept.contains(&format!("emu_o{n}"));
        let kind = if is_variable { "auto&&" } else { "auto" };
        body += &format!("[[maybe_unused]] {kind} emu_o{n} = ({expression}); ");
    }
    for statement in statements {
        body += &match statement {
            Statement::Open => "{ ".to_owned(),
            Statement::Close => "} ".to_owned(),
            // A label stands before a statement.
            Statement::Label(name) => format!("emu_l_{name}: ; "),
            Statement::Registers(kind, names) => {
                let kind = if kind == "pred" { "bool" } else { of_type(&kind)?.cpp };
                let each =
                    names.iter().map(|name| format!("[[maybe_unused]] {kind} emu_r_{name}; "));
                each.collect()
            }
            Statement::Instruction(instruction) => text.instruction(&instruction)?,
        };
    }
    Some(body)
}

/// A type of PTX, and what has its bits in C++.
#[derive(Clone, Copy, Debug)]
struct Type {
    cpp: &'static str,
    bytes: u32,
    /// The letters of its name: `s`, `u`, `b`, `f`.
    letter: char,
}

fn of_type(name: &str) -> Option<Type> {
    let cpp = match name {
        "b8" | "u8" => "uint8_t",
        "s8" => "int8_t",
        "b16" | "u16" | "f16" | "bf16" => "uint16_t",
        "s16" => "int16_t",
        "b32" | "u32" | "f16x2" | "bf16x2" | "tf32" => "uint32_t",
        "s32" => "int32_t",
        "b64" | "u64" => "uint64_t",
        "s64" => "int64_t",
        "f32" => "float",
        "f64" => "double",
        _ => return None,
    };
    let bits = name.trim_start_matches(char::is_alphabetic).trim_end_matches("x2");
    let bytes = bits.parse::<u32>().ok()? / 8 * if name.ends_with("x2") { 2 } else { 1 };
    Some(Type { cpp, bytes, letter: name.chars().next()? })
}

/// What a text has to work on.
struct Text<'a> {
    given: &'a [Given],
    /// Of the registers that it declares.
    names: HashSet<String>,
    /// Those of one bit.
    predicates: HashSet<String>,
}

impl Text<'_> {
    fn instruction(&self, own: &Instruction) -> Option<String> {
        let done = self.branch(own).or_else(|| {
            let words: Vec<&str> = own.words.iter().map(String::as_str).collect();
            let call = Call { text: self, words: &words, operands: &own.operands };
            let families = [Call::numbers, Call::memory, Call::warps, Call::asynchronous];
            families.iter().find_map(|family| family(&call))
        })?;
        Some(match &own.guard {
            None => format!("{done}; "),
            Some((predicate, negated)) => {
                let not = if *negated { "!" } else { "" };
                format!("if ({not}{}) {{ {done}; }} ", self.read(predicate, "bool")?)
            }
        })
    }

    /// The variables that an instruction reads while the thread goes on: those of wgmma's A.
    fn read_later(&self, statement: &Statement) -> Vec<String> {
        let Statement::Instruction(own) = statement else { return Vec::new() };
        match (own.words.get(1).map(String::as_str), own.operands.get(1)) {
            (Some("mma_async"), Some(Operand::Vector(values))) => {
                values.iter().filter_map(|value| self.variable(value)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn branch(&self, own: &Instruction) -> Option<String> {
        match (&own.words[0][..], &own.operands[..]) {
            ("bra", [Operand::Value(Value::Register(label))]) => {
                Some(format!("goto emu_l_{}", label_name(label)))
            }
            _ => None,
        }
    }

    /// The variable that a value is.
    fn variable(&self, value: &Value) -> Option<String> {
        match value {
            Value::Own(name) => {
                let named = self.given.iter().position(|g| g.name.as_ref() == Some(name));
                let index =
                    named.or_else(|| name.parse().ok()).filter(|&n| n < self.given.len())?;
                Some(format!("emu_o{index}"))
            }
            Value::Register(name) | Value::Special(name) if self.names.contains(name) => {
                Some(format!("emu_r_{name}"))
            }
            _ => None,
        }
    }

    /// A value as one of this C++ type.
    fn read(&self, value: &Value, cpp: &str) -> Option<String> {
        match value {
            Value::Number(number) => Some(format!("{cpp}({number})")),
            Value::Real(bits, real) if ["float", "double"].contains(&cpp) => {
                Some(format!("{cpp}(::emu::from_bits<{real}>({bits}ull))"))
            }
            Value::Real(bits, _) => Some(format!("{cpp}({bits}ull)")),
            Value::Special(name) if !self.names.contains(name) => {
                Some(format!("{cpp}({})", numbers::special(name)?))
            }
            value => Some(format!("::emu::ptx::as<{cpp}>({})", self.variable(value)?)),
        }
    }

    fn is_predicate(&self, value: &Value) -> bool {
        matches!(value, Value::Register(name) | Value::Special(name) if self.predicates.contains(name))
    }

    fn write(&self, to: &Value, value: &str) -> Option<String> {
        match to {
            Value::Nowhere => Some(format!("(void)({value})")),
            to => Some(format!("::emu::ptx::put({}, {value})", self.variable(to)?)),
        }
    }
}

/// An instruction, and what it works on.
struct Call<'a> {
    text: &'a Text<'a>,
    words: &'a [&'a str],
    operands: &'a [Operand],
}

impl Call<'_> {
    /// Whether its name begins so.
    fn is(&self, beginning: &str) -> bool {
        beginning.split('.').enumerate().all(|(n, word)| self.words.get(n) == Some(&word))
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// The type that it ends with.
    fn own_type(&self) -> Option<Type> {
        of_type(self.words.last()?)
    }

    fn value(&self, index: usize) -> Option<&Value> {
        match self.operands.get(index)? {
            Operand::Value(value) => Some(value),
            _ => None,
        }
    }

    /// The values of a vector, or the one value.
    fn vector(&self, index: usize) -> Option<&[Value]> {
        match self.operands.get(index)? {
            Operand::Vector(values) => Some(values),
            Operand::Value(value) => Some(std::slice::from_ref(value)),
            _ => None,
        }
    }

    fn read(&self, index: usize, cpp: &str) -> Option<String> {
        match self.operands.get(index)? {
            Operand::Value(value) => self.text.read(value, cpp),
            Operand::Not(value) => Some(format!("!{}", self.text.read(value, cpp)?)),
            _ => None,
        }
    }

    fn read_all(&self, index: usize, cpp: &str) -> Option<Vec<String>> {
        self.vector(index)?.iter().map(|value| self.text.read(value, cpp)).collect()
    }

    fn write(&self, index: usize, value: &str) -> Option<String> {
        self.text.write(self.value(index)?, value)
    }

    /// Into the values of a vector what an array of C++ holds.
    fn write_all(&self, index: usize, array: &str) -> Option<String> {
        let values = self.vector(index)?.iter().enumerate();
        let each = values.map(|(n, to)| self.text.write(to, &format!("{array}[{n}]")));
        Some(each.collect::<Option<Vec<_>>>()?.join("; "))
    }

    /// What an address points to, in shared memory or wherever it says.
    fn place(&self, index: usize, shared: bool) -> Option<String> {
        let Operand::Address { base, offset, .. } = self.operands.get(index)? else { return None };
        let space = if shared { "shared" } else { "anywhere" };
        let base = self.text.read(base, "uint64_t")?;
        Some(format!("::emu::ptx::{space}({base} + {offset})"))
    }

    fn is_shared(&self) -> bool {
        self.words.iter().any(|word| matches!(*word, "shared" | "shared::cta" | "shared::cluster"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, given: &[&str]) -> Option<String> {
        let one = |e: &&str| {
            let constraint = if *e == "y" { "r" } else { "=r" }.into();
            Given { name: None, constraint, expression: (*e).to_owned() }
        };
        translated(text, &given.iter().map(one).collect::<Vec<_>>())
    }

    #[test]
    fn an_instruction_is_a_call_on_its_operands() {
        let add = of("add.u32 %0, %1, 4;", &["x", "y"]).unwrap();
        assert_eq!(
            add,
            "[[maybe_unused]] auto&& emu_o0 = (x); [[maybe_unused]] auto emu_o1 = (y); \
             ::emu::ptx::put(emu_o0, ::emu::ptx::add(::emu::ptx::as<uint32_t>(emu_o1), uint32_t(4))); "
        );
    }

    #[test]
    fn predicates_registers_and_labels() {
        let text =
            "{ .reg .pred p;\n setp.ne.b32 p, %0, 0;\n @p membar.gl; AGAIN_%=: @!p bra AGAIN_%=; }";
        let got = of(text, &["x"]).unwrap();
        for part in [
            "__label__ emu_l_AGAIN___; ",
            "bool emu_r_p; ",
            "if (::emu::ptx::as<bool>(emu_r_p)) { __threadfence(); } ",
            "emu_l_AGAIN___: ; if (!::emu::ptx::as<bool>(emu_r_p)) { goto emu_l_AGAIN___; } ",
        ] {
            assert!(got.contains(part), "{part}: {got}");
        }
    }

    /// Of wgmma's A in registers the program's own variables, not copies that are gone behind the text.
    #[test]
    fn what_is_read_later_is_no_copy() {
        let text = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;";
        let given = ["x", "x", "x", "x", "y", "y", "y", "y", "y"];
        let got = of(text, &given).unwrap();
        assert!(
            got.contains("auto&& emu_o4 = (y); ") && got.contains(" auto emu_o8 = (y); "),
            "{got}"
        );
        assert!(got.contains("::emu::ptx::register_of<decltype(emu_o4)>(emu_o4)"), "{got}");
    }

    /// Words, operands and characters that are missing: refused or read, and no panic.
    #[test]
    fn what_is_malformed_is_no_panic() {
        let texts = [
            "{ .reg .pred p; setp.ne.b32 p, %0, 0; @!p bra L; L: }",
            "cvt.rn.f16x2.f32 %0, %1, %2;",
            "mov.b64 {%0, %1}, %2;",
            "mad.lo.s32 %0, %1, -3, %2;",
            "red.release.gpu.global.add.u32 [%0+0x10], %1;",
            "ld.global.nc.v2.u32 {%0, %1}, [%2-8];",
            "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};",
            "shfl.sync.bfly.b32 %0, %1, 1, 0x1f, -1;",
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};",
            "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;",
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];",
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;",
            "elect.sync _|p, %0;",
        ];
        let given = ["x"; 8];
        for text in texts {
            for from in 0..text.len() {
                for to in [from + 1, from + 3, from + 9, text.len()] {
                    if let Some(end) = text.get(to..) {
                        of(&(text[..from].to_owned() + end), &given);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_known_is_left_alone() {
        for text in [
            "tcgen05.alloc %0;",
            "add.u32 %0, %7, 1;",
            "add.u32 %0",
            "add.u32 %0, q, 1;",
            "mov.u32 %0, %nothing;",
        ] {
            assert!(of(text, &["x"]).is_none(), "{text}");
        }
    }
}
