//! Which copies give a register a constant. A compiler puts those anywhere: `d = {}` in front of a `wgmma.fence` becomes a `mov`
//! behind it, next to the product, and the assembler sees to it that it is there in time.

use std::collections::HashSet;

use crate::coalesced::{name, written};
use crate::module::{Line, What};
use crate::statement::{Instruction, Operand, Statement, Value};

/// What is known on the way through a function.
#[derive(Default)]
pub(crate) struct Constants<'a> {
    /// Registers that hold nothing else anywhere.
    always: HashSet<&'a str>,
    /// Those that hold a constant here, since the last label.
    here: HashSet<&'a str>,
}

impl<'a> Constants<'a> {
    pub(crate) fn of(lines: &'a [Line]) -> Self {
        let (mut always, mut others) = (HashSet::new(), HashSet::new());
        for line in lines {
            let What::Statement(Statement::Instruction(own)) = &line.what else { continue };
            match copy(own) {
                Some((to, Value::Number(_) | Value::Real(..))) => drop(always.insert(to)),
                _ => others.extend(written(own)),
            }
        }
        always.retain(|name| !others.contains(name));
        Self { always, here: HashSet::new() }
    }

    /// Goes on by one statement: of a copy of a constant the registers, the one that gets it first.
    pub(crate) fn step(&mut self, statement: &'a Statement) -> Vec<&'a str> {
        let own = match statement {
            Statement::Label(_) => {
                self.here.clear();
                return Vec::new();
            }
            Statement::Instruction(own) => own,
            _ => return Vec::new(),
        };
        let given = copy(own).filter(|(_, from)| match from {
            Value::Number(_) | Value::Real(..) => true,
            from => {
                name(from).is_some_and(|own| self.always.contains(own) || self.here.contains(own))
            }
        });
        for name in written(own) {
            self.here.remove(name);
        }
        let Some((to, from)) = given else { return Vec::new() };
        self.here.insert(to);
        [Some(to), name(from)].into_iter().flatten().collect()
    }
}

/// `mov.b32 to, from;` without a condition.
fn copy(own: &Instruction) -> Option<(&str, &Value)> {
    let [Operand::Value(to), Operand::Value(from)] = &own.operands[..] else { return None };
    (own.words[0] == "mov" && own.guard.is_none()).then_some(())?;
    Some((name(to)?, from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::statements;

    #[test]
    fn constants_are_followed_until_a_label() {
        let text = "mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; add.f32 %f1, %f1, %f3; mov.f32 %f4, %f1; L: \
                    mov.f32 %f5, %f2; mov.f32 %f6, %f7; @%p mov.f32 %f8, 0f00000000; mov.f32 %f7, 0f3F800000;";
        let lines: Vec<Line> = statements(text)
            .unwrap()
            .into_iter()
            .map(|(_, statement)| Line { line: 1, place: None, what: What::Statement(statement) })
            .collect();
        let mut constants = Constants::of(&lines);
        let given: Vec<Vec<&str>> = lines
            .iter()
            .map(|line| match &line.what {
                What::Statement(statement) => constants.step(statement),
                _ => Vec::new(),
            })
            .filter(|names| !names.is_empty())
            .collect();
        // f7 is one wherever it is read; f2 may be another at the label.
        assert_eq!(given, [vec!["f1"], vec!["f2", "f1"], vec!["f6", "f7"], vec!["f7"]]);
    }
}
