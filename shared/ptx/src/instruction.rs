//! An instruction as a statement of C++: that of one of the families, under its predicate.

use crate::statement::{Instruction, Operand, Value, label_name};
use crate::text::{Call, Space, Text};

impl Text<'_> {
    pub(crate) fn instruction(&self, own: &Instruction) -> Option<String> {
        let done = self.branch(own).or_else(|| {
            let words: Vec<&str> = own.words.iter().map(String::as_str).collect();
            let call = Call { text: self, words: &words, operands: &own.operands };
            let families =
                [Call::numbers, Call::memory, Call::warps, Call::asynchronous, Call::functions];
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

    fn branch(&self, own: &Instruction) -> Option<String> {
        match (&own.words[0][..], &own.operands[..]) {
            ("bra", [Operand::Value(Value::Register(label))]) => {
                Some(format!("goto emu_l_{}", label_name(label)))
            }
            ("ret" | "exit", []) if self.is_module => Some("return".into()),
            _ => None,
        }
    }
}

impl Call<'_> {
    /// `call.uni (result), name, (first, second);`: each is called with the bytes of what it takes.
    fn functions(&self) -> Option<String> {
        if self.words[0] != "call" || self.words[1..].iter().any(|word| *word != "uni") {
            return None;
        }
        let (results, rest) = match self.operands {
            [Operand::Arguments(results), rest @ ..] => (&results[..], rest),
            rest => (&[][..], rest),
        };
        let (name, arguments) = match rest {
            [Operand::Value(Value::Register(name))] => (name, &[][..]),
            [Operand::Value(Value::Register(name)), Operand::Arguments(arguments)] => {
                (name, &arguments[..])
            }
            _ => return None,
        };
        let function = self.text.symbol(name).filter(|symbol| symbol.space == Space::Function)?;
        let each = results.iter().chain(arguments).map(|value| match value {
            Value::Register(name) => {
                let symbol = self.text.symbol(name)?;
                (symbol.space == Space::Parameter).then(|| symbol.cpp.clone())
            }
            _ => None,
        });
        Some(format!("{}({})", function.cpp, each.collect::<Option<Vec<_>>>()?.join(", ")))
    }
}
