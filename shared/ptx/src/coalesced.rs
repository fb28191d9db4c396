//! Which registers of a function are one: those that a compiler copies a warpgroup's sums between.
//!
//! A module is in a form in which most registers are written once, so a sum goes from register to register between the
//! products that add to it, also while it is in flight. The assembler makes one register of those, as their lives do not
//! overlap, and no copy is left. So does this: a copy of what is in flight would be a finding that no machine code has.

use std::collections::{HashMap, HashSet};

use crate::module::{Line, What};
use crate::statement::{Instruction, Operand, Statement, Value, label_name};
use crate::text::names_in;

/// Registers, each with the one that stands for it: those alone that are another's.
pub(crate) fn coalesce(lines: &[Line]) -> HashMap<String, String> {
    let sums: Vec<Vec<&str>> = lines.iter().filter_map(instruction).filter_map(sums).collect();
    let copies: Vec<[&str; 2]> = lines.iter().filter_map(instruction).filter_map(copy).collect();
    let Some(mut classes) = Classes::of(lines, &sums, &copies) else { return HashMap::new() };
    let of_product: HashSet<&str> = sums.iter().flatten().copied().collect();
    let place = |name: &str| sums.iter().position(|sum| sum.contains(&name));
    // What is one lives shorter than its parts, so that more can be one.
    while {
        let before = classes.joined;
        // First what lies between two sums, register by register; then sums, all of a product's or none.
        for copy in &copies {
            if !copy.iter().all(|name| of_product.contains(name)) {
                classes.join(&[*copy]);
            }
        }
        classes.find_lives(lines);
        let mut between: HashMap<[usize; 2], Vec<[&str; 2]>> = HashMap::new();
        for copy in &copies {
            if let [Some(to), Some(from)] =
                copy.map(|name| place(classes.member(name, &of_product)))
            {
                between.entry([to, from]).or_default().push(*copy);
            }
        }
        let mut between: Vec<_> = between.into_iter().collect();
        between.sort_unstable();
        between.iter().for_each(|(_, copies)| classes.join(copies));
        classes.find_lives(lines);
        classes.joined > before
    } {}
    classes.names()
}

fn instruction(line: &Line) -> Option<&Instruction> {
    match &line.what {
        What::Statement(Statement::Instruction(own)) => Some(own),
        _ => None,
    }
}

/// The accumulators of a wgmma.
fn sums(own: &Instruction) -> Option<Vec<&str>> {
    let is_product = own.words.get(1).is_some_and(|word| word == "mma_async");
    let (true, Some(Operand::Vector(values))) = (is_product, own.operands.first()) else {
        return None;
    };
    values.iter().map(name).collect()
}

/// The register that a value is.
pub(crate) fn name(value: &Value) -> Option<&str> {
    match value {
        Value::Special(name) | Value::Register(name) => Some(name),
        _ => None,
    }
}

/// `mov.b32 to, from;` of two registers.
fn copy(own: &Instruction) -> Option<[&str; 2]> {
    let is_word = matches!(own.words.get(1)?.as_str(), "b32" | "f32" | "u32" | "s32");
    let [Operand::Value(to), Operand::Value(from)] = &own.operands[..] else { return None };
    (own.words[0] == "mov" && is_word && own.guard.is_none()).then_some(())?;
    Some([name(to)?, name(from)?])
}

/// Whether two operands of a copy are one register.
pub(crate) fn is_same(own: &Instruction, places: &HashMap<String, String>) -> bool {
    copy(own)
        .is_some_and(|[to, from]| places.contains_key(to) && places.get(to) == places.get(from))
}

/// What an instruction writes: its first operand, of most.
pub(crate) fn written(own: &Instruction) -> Vec<&str> {
    let reads_alone = ["bar", "barrier", "nanosleep", "bra", "brx", "call", "setmaxnreg", "cp"];
    if reads_alone.contains(&own.words[0].as_str()) {
        return Vec::new();
    }
    let values = match own.operands.first() {
        Some(Operand::Value(value)) => vec![value],
        Some(Operand::Pair(first, second)) => vec![first, second],
        Some(Operand::Vector(all)) => all.iter().collect(),
        _ => Vec::new(),
    };
    values.into_iter().filter_map(name).collect()
}

/// What it reads: the others; sums, too, if it may add to them.
fn read(own: &Instruction) -> HashSet<&str> {
    let sets = matches!(own.operands.get(3), Some(Operand::Value(Value::Number(n))) if n == "0");
    let is_read = written(own).is_empty() || sums(own).is_some() && !sets;
    names_in(own.guard.as_ref(), &own.operands[usize::from(!is_read)..])
}

/// A set of the registers that are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn empty(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn put(&mut self, n: usize) {
        self.0[n / 64] |= 1 << (n % 64);
    }

    fn remove(&mut self, n: usize) {
        self.0[n / 64] &= !(1 << (n % 64));
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }

    fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(own, other)| own & other != 0)
    }

    fn members(&self) -> impl Iterator<Item = usize> + '_ {
        let of_word = |(n, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * n + bit)
        };
        self.0.iter().enumerate().flat_map(of_word)
    }
}

/// Registers, which of them are one, and which live at the same time.
struct Classes<'a> {
    numbers: HashMap<&'a str, usize>,
    names: Vec<&'a str>,
    /// Of each register, the one that stands for it, which stands for itself.
    first: Vec<usize>,
    /// Of those that stand for some: all of them, and all that live when one of them is written.
    own: Vec<Set>,
    meets: Vec<Set>,
    /// How often two have become one.
    joined: usize,
}

impl<'a> Classes<'a> {
    /// The sums, and what is copied to them or from them on whatever way; `None` where nothing is, where a name means two
    /// registers, or where a function's ways are not known.
    fn of(lines: &'a [Line], sums: &[Vec<&'a str>], copies: &[[&'a str; 2]]) -> Option<Self> {
        let mut looked_at: HashSet<&str> = sums.iter().flatten().copied().collect();
        loop {
            let before = looked_at.len();
            for [to, from] in copies {
                if looked_at.contains(to) || looked_at.contains(from) {
                    looked_at.extend([to, from]);
                }
            }
            if looked_at.len() == before {
                break;
            }
        }
        // Where a jump by a table goes is not followed here, nor what a function writes that is called.
        let is_followed = |own: &Instruction| match own.words[0].as_str() {
            "brx" => false,
            "call" => names_in(own.guard.as_ref(), &own.operands).is_disjoint(&looked_at),
            _ => true,
        };
        lines.iter().filter_map(instruction).all(is_followed).then_some(())?;
        let mut declared = HashSet::new();
        let mut names = Vec::new();
        for line in lines {
            let What::Statement(Statement::Registers(_, own)) = &line.what else { continue };
            for name in own.iter().map(String::as_str).filter(|name| looked_at.contains(name)) {
                declared.insert(name).then_some(())?;
                names.push(name);
            }
        }
        copies.iter().any(|[to, _]| declared.contains(to)).then_some(())?;
        let numbers = names.iter().enumerate().map(|(n, name)| (*name, n)).collect();
        let count = names.len();
        let own = (0..count).map(|n| {
            let mut own = Set::empty(count);
            own.put(n);
            own
        });
        let own = own.collect();
        let first = (0..count).collect();
        let meets = vec![Set::empty(count); count];
        let mut classes = Self { numbers, names, first, own, meets, joined: 0 };
        classes.find_lives(lines);
        Some(classes)
    }

    /// From the end of the function to its start, until nothing changes: what lives behind each statement.
    fn find_lives(&mut self, lines: &[Line]) {
        let labels = Labels::of(lines);
        self.meets.fill(Set::empty(self.names.len()));
        let mut at_label = HashMap::new();
        while !self.pass(lines, &labels, &mut at_label, false) {}
        self.pass(lines, &labels, &mut at_label, true);
    }

    /// Whether nothing has changed.
    fn pass(
        &mut self,
        lines: &[Line],
        labels: &Labels,
        at_label: &mut HashMap<usize, Set>,
        keeps: bool,
    ) -> bool {
        let count = self.names.len();
        let mut live = Set::empty(count);
        let mut is_stable = true;
        for (n, line) in lines.iter().enumerate().rev() {
            match &line.what {
                What::Statement(Statement::Label(_)) if at_label.get(&n) != Some(&live) => {
                    at_label.insert(n, live.clone());
                    is_stable = false;
                }
                What::Statement(Statement::Instruction(own)) => {
                    match own.words[0].as_str() {
                        "bra" => {
                            let target = labels.of_jump.get(&n).and_then(|to| at_label.get(to));
                            if own.guard.is_none() {
                                live = Set::empty(count);
                            }
                            target.iter().for_each(|target| live.add(target));
                        }
                        "ret" | "exit" | "trap" if own.guard.is_none() => live = Set::empty(count),
                        _ => {}
                    }
                    self.step(own, &mut live, keeps);
                }
                _ => {}
            }
        }
        is_stable
    }

    /// From what lives behind an instruction to what lives before it; `keeps` what meets there.
    fn step(&mut self, own: &Instruction, live: &mut Set, keeps: bool) {
        let number = |name: &&str| self.numbers.get(name).map(|&n| self.first[n]);
        let written: Vec<usize> = written(own).iter().filter_map(number).collect();
        let read: Vec<usize> = read(own).iter().filter_map(number).collect();
        if written.is_empty() && read.is_empty() {
            return;
        }
        let source = copy(own).and_then(|[_, from]| number(&from));
        if source.is_some() && source == written.first().copied() {
            return;
        }
        if keeps {
            for &to in &written {
                let others = live.members().chain(written.iter().copied());
                for other in others.filter(|&other| other != to && Some(other) != source) {
                    self.meets[to].put(other);
                    self.meets[other].put(to);
                }
            }
        }
        if own.guard.is_none() {
            written.iter().for_each(|&to| live.remove(to));
        }
        read.iter().for_each(|&n| live.put(n));
    }

    /// Makes one of each pair, if all of them can be.
    fn join(&mut self, pairs: &[[&str; 2]]) {
        let number = |name: &str| self.numbers.get(name).map(|&n| self.first[n]);
        let pairs: Option<Vec<[usize; 2]>> =
            pairs.iter().map(|[to, from]| Some([number(to)?, number(from)?])).collect();
        let mut pairs = pairs.unwrap_or_default();
        pairs.retain(|[to, from]| to != from);
        if pairs.iter().any(|&[to, from]| self.meets[to].meets(&self.own[from])) {
            return;
        }
        for [to, from] in pairs {
            let [to, from] = [self.first[to], self.first[from]];
            // Of three that are one in pairs, two may meet.
            if to == from || self.meets[to].meets(&self.own[from]) {
                continue;
            }
            let (own, meets) = (self.own[from].clone(), self.meets[from].clone());
            own.members().for_each(|n| self.first[n] = to);
            self.joined += 1;
            self.own[to].add(&own);
            self.meets[to].add(&meets);
            for n in meets.members() {
                let other = self.first[n];
                self.meets[other].put(to);
            }
        }
    }

    /// One of these names in the class of a register, or the register.
    fn member<'b>(&self, name: &'b str, of: &HashSet<&'b str>) -> &'b str
    where
        'a: 'b,
    {
        if of.contains(name) {
            return name;
        }
        let Some(&number) = self.numbers.get(name) else { return name };
        let own = self.own[self.first[number]].members().map(|n| self.names[n]);
        own.into_iter().find(|name| of.contains(name)).unwrap_or(name)
    }

    fn names(&self) -> HashMap<String, String> {
        let others = self.first.iter().enumerate().filter(|(n, first)| n != *first);
        others.map(|(n, &first)| (self.names[n].to_owned(), self.names[first].to_owned())).collect()
    }
}

/// Where jumps go.
struct Labels {
    of_jump: HashMap<usize, usize>,
}

impl Labels {
    /// A label is known in the braces that it stands in.
    fn of(lines: &[Line]) -> Self {
        let (mut scopes, mut parents) = (vec![0], vec![0]);
        let (mut labels, mut jumps) = (HashMap::new(), Vec::new());
        for (n, line) in lines.iter().enumerate() {
            let scope = *scopes.last().unwrap_or(&0);
            match &line.what {
                What::Statement(Statement::Open) => {
                    scopes.push(parents.len());
                    parents.push(scope);
                }
                What::Statement(Statement::Close) => drop(scopes.pop()),
                What::Statement(Statement::Label(name)) => {
                    labels.insert((scope, name.as_str()), n);
                }
                What::Statement(Statement::Instruction(own)) if own.words[0] == "bra" => {
                    if let Some(Operand::Value(Value::Register(to))) = own.operands.first() {
                        jumps.push((n, scope, label_name(to)));
                    }
                }
                _ => {}
            }
        }
        let target = |(n, mut scope, to): (usize, usize, String)| {
            loop {
                match labels.get(&(scope, to.as_str())) {
                    Some(&at) => return Some((n, at)),
                    None if scope == 0 => return None,
                    None => scope = parents[scope],
                }
            }
        };
        Self { of_jump: jumps.into_iter().filter_map(target).collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Module;

    /// Two products in a loop, with copies between their sums, and `behind` the second: which registers are one.
    fn of(behind: &str) -> Vec<[String; 2]> {
        let product = |sums: &str| {
            format!(
                "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{sums}}}, %rd1, %rd1, 1, 1, 1, 0, 0;\n"
            )
        };
        let text = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
             .reg .pred %p<2>; .reg .f32 %f<20>; .reg .b64 %rd<3>;\n\
             L: {}mov.f32 %f5, %f1; mov.f32 %f6, %f2; mov.f32 %f7, %f3; mov.f32 %f8, %f4;\n\
             {}{behind}\n\
             mov.f32 %f9, %f5; mov.f32 %f1, %f9; mov.f32 %f2, %f6; mov.f32 %f3, %f7; mov.f32 %f4, %f8;\n\
             @%p1 bra L;\nst.global.f32 [%rd1], %f5;\nret;\n}}\n",
            product("%f1, %f2, %f3, %f4"),
            product("%f5, %f6, %f7, %f8")
        );
        let module = Module::read(&text, Path::new("k.ptx"), &|name| name.to_owned()).unwrap();
        let one = coalesce(module.functions[0].body.as_ref().unwrap());
        let mut all: Vec<_> = one.into_iter().map(|(name, first)| [name, first]).collect();
        all.iter_mut().for_each(|pair| pair.sort());
        all.sort();
        all
    }

    #[test]
    fn copies_between_products_are_none() {
        let pairs = of("");
        assert_eq!(pairs.len(), 5, "four sums with their copies, and one between: {pairs:?}");
        for n in 2..=4 {
            let pair = [format!("f{n}"), format!("f{}", n + 4)];
            assert!(pairs.contains(&pair), "{pair:?} of {pairs:?}");
        }
    }

    #[test]
    fn where_ways_are_not_known_all_registers_stay() {
        assert!(of("brx.idx %r1, ts;").is_empty());
        assert!(of("call (%f9), g, (%f1);").is_empty());
    }

    #[test]
    fn registers_that_live_at_once_stay_two() {
        // The first product's sum is read behind the second: none of its sums is the second's.
        let pairs = of("add.f32 %f10, %f10, %f1;");
        assert!(pairs.iter().all(|pair| pair.contains(&"f9".into())), "{pairs:?}");
        assert_eq!(pairs.len(), 1, "{pairs:?}");
    }
}
