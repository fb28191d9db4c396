//! Arithmetic, comparisons, conversions, moves. PTX ISA, "Integer Arithmetic Instructions" and the sections behind it.

use crate::statement::{Operand, Value};
use crate::text::{Call, Type, block, of_type};

/// Types of 16-bit real numbers, and of two of them.
pub(crate) const HALVES: [&str; 4] = ["f16", "bf16", "f16x2", "bf16x2"];

/// What reads and writes the bits of such a type in C++.
pub(crate) fn half_format(name: &str) -> Option<&'static str> {
    match name {
        "f16" | "f16x2" => Some("F16"),
        "bf16" | "bf16x2" => Some("BF16"),
        _ => None,
    }
}

/// What needs no code of its own: a rounding that is the usual one, less exact functions, hints, and `.ftz`, which operands and
/// results are read and written by ([`Call::read`], [`Call::write_real`]).
const USUAL: [&str; 6] = ["rn", "ftz", "approx", "full", "wrap", "sync"];

impl Call<'_> {
    pub(crate) fn numbers(&self) -> Option<String> {
        let middle = &self.words[1..self.words.len().max(2) - 1];
        let usual = middle.iter().all(|word| USUAL.contains(word));
        let is_real = self.own_type().is_some_and(|kind| kind.is_real());
        match (self.words[0], self.operands.len()) {
            ("mov", 2) => self.moved(),
            ("cvt", _) => self.converted(),
            // Addresses of global memory are the same in both, and so are those of what is a thread's own.
            ("cvta", 2) => {
                let to = self.read(1, "uint64_t")?;
                let same = ["global", "local", "const", "param"];
                if matches!(self.words[1], "local" | "param") {
                    return self.write(0, &format!("uint64_t(::emu::ptx::local({to}))"));
                }
                match (self.words.get(1).copied()?, self.words.get(2).copied()?) {
                    ("to", "shared" | "shared::cta") => {
                        self.write(0, &format!("::emu::ptx::window({to})"))
                    }
                    ("to", space) | (space, _) if same.contains(&space) => self.write(0, &to),
                    ("shared" | "shared::cta", _) => {
                        self.write(0, &format!("uint64_t(::emu::ptx::shared({to}))"))
                    }
                    _ => None,
                }
            }
            ("setp", 3 | 4) => self.compared(),
            ("set", 3) => self.compared_as_number(),
            ("selp", 4) => {
                let cpp = self.own_type()?.cpp;
                let [a, b, p] = [self.read(1, cpp)?, self.read(2, cpp)?, self.read(3, "bool")?];
                self.write(0, &format!("({p} ? {a} : {b})"))
            }
            ("slct", 4) => {
                let [.., of, by] = self.words else { return None };
                let (cpp, by) = (of_type(of)?.cpp, of_type(by)?.cpp);
                // `.ftz` is about the one that decides.
                let [a, b] = [self.read_as_it_is(1, cpp)?, self.read_as_it_is(2, cpp)?];
                self.write(0, &format!("({} >= 0 ? {a} : {b})", self.read(3, by)?))
            }
            ("mad" | "madc", 4) if self.has("cc") || self.words[0] == "madc" => {
                self.carried_product()
            }
            ("mul" | "mad", _) if self.own_type().is_some() && !is_real && !self.is_halves() => {
                self.product()
            }
            ("mul24" | "mad24", 3 | 4) if self.words[1] == "lo" => {
                let cpp = self.own_type().filter(|kind| kind.bytes == 4)?.cpp;
                let [a, b] = [self.read(1, cpp)?, self.read(2, cpp)?];
                let product =
                    format!("::emu::ptx::mul(::emu::ptx::of_24({a}), ::emu::ptx::of_24({b}))");
                match self.words[0] {
                    "mul24" => self.write(0, &product),
                    _ => {
                        let sum = format!("::emu::ptx::add({product}, {})", self.read(3, cpp)?);
                        self.write(0, &sum)
                    }
                }
            }
            ("add" | "sub", 3) if self.has("cc") => self.carried(false),
            ("addc" | "subc", 3) => self.carried(true),
            ("lop3", 5) if self.words.len() == 2 => self.of_words("lop3", 3, Some(4)),
            ("vabsdiff4", 4) if self.is("vabsdiff4.u32.u32.u32.add") => {
                self.of_words("vabsdiff4", 3, None)
            }
            ("prmt", 4) if self.words.len() == 2 => self.of_words("prmt", 3, None),
            ("dp4a", 4) => {
                let byte = |word: &str| match word {
                    "s32" => Some("int8_t"),
                    "u32" => Some("uint8_t"),
                    _ => None,
                };
                let [_, a, b] = self.words else { return None };
                self.of_words(&format!("dp4a<{}, {}>", byte(a)?, byte(b)?), 3, None)
            }
            ("bfe", 4) => {
                let cpp = self.own_type()?.cpp;
                let [from, len] = [self.read(2, "uint32_t")?, self.read(3, "uint32_t")?];
                let value = self.read(1, cpp)?;
                self.write(0, &format!("::emu::ptx::bfe<{cpp}>({value}, {from}, {len})"))
            }
            ("bfi", 5) => {
                let cpp = self.own_type()?.cpp;
                let [a, b] = [self.read(1, cpp)?, self.read(2, cpp)?];
                let [at, len] = [self.read(3, "uint32_t")?, self.read(4, "uint32_t")?];
                self.write(0, &format!("::emu::ptx::bfi<{cpp}>({a}, {b}, {at}, {len})"))
            }
            ("sad", 4) => {
                let cpp = self.own_type()?.cpp;
                let [a, b, c] = [self.read(1, cpp)?, self.read(2, cpp)?, self.read(3, cpp)?];
                let distance =
                    format!("({a} < {b} ? ::emu::ptx::sub({b}, {a}) : ::emu::ptx::sub({a}, {b}))");
                self.write(0, &format!("::emu::ptx::add({c}, {distance})"))
            }
            ("shf", 4) => {
                let name = match (self.words[1], self.words[2]) {
                    ("l", "wrap") => "__funnelshift_l",
                    ("r", "wrap") => "__funnelshift_r",
                    ("l", "clamp") => "__funnelshift_lc",
                    ("r", "clamp") => "__funnelshift_rc",
                    _ => return None,
                };
                self.of_words(name, 3, None)
            }
            ("copysign", 3) => self.of_two("copysign_of"),
            ("rem", 3) if !is_real => self.of_two("rem"),
            _ if self.is_halves() => self.of_halves(),
            ("add" | "sub" | "mul" | "div" | "fma" | "sqrt" | "rcp", _) if is_real && !usual => {
                self.rounded()
            }
            ("min" | "max", 3) if is_real => self.extreme(),
            (
                "add" | "sub" | "mul" | "div" | "min" | "max" | "and" | "or" | "xor" | "shl"
                | "shr",
                3,
            ) if usual => self.binary(),
            ("fma" | "mad", 4) if usual => {
                let cpp = self.own_type().filter(Type::is_real)?.cpp;
                let [a, b, c] = [self.read(1, cpp)?, self.read(2, cpp)?, self.read(3, cpp)?];
                let done = format!("std::fma({a}, {b}, {c})");
                self.write_rounded("fma", &[a, b, c], done, cpp)
            }
            ("bfind", 2) => {
                let (cpp, shift) = (self.own_type()?.cpp, self.has("shiftamt"));
                let value = self.read(1, cpp)?;
                self.write(0, &format!("::emu::ptx::bfind<{cpp}>({value}, {shift})"))
            }
            ("testp", 2) => {
                let cpp = self.own_type().filter(Type::is_real)?.cpp;
                let value = self.read(1, cpp)?;
                let test = match self.words[1] {
                    "finite" => "std::isfinite",
                    "infinite" => "std::isinf",
                    "number" => "!std::isnan",
                    "notanumber" => "std::isnan",
                    // Zeros are among them.
                    "normal" => "::emu::ptx::is_normal",
                    _ => return None,
                };
                self.write(0, &format!("{test}({value})"))
            }
            (_, 2) if usual => self.unary(),
            _ => None,
        }
    }

    /// Whether it works on halves, one or two.
    fn is_halves(&self) -> bool {
        self.words.last().is_some_and(|name| HALVES.contains(name))
    }

    /// Such a format, with `.ftz` one in which subnormal numbers are zeros of their sign.
    fn own_half_format(&self, name: &str) -> Option<String> {
        let format = format!("::emu::ptx::{}", half_format(name)?);
        Some(if self.has("ftz") { format!("::emu::ptx::Flushed<{format}>") } else { format })
    }

    fn of_two(&self, function: &str) -> Option<String> {
        let cpp = self.own_type()?.cpp;
        let [a, b] = [self.read(1, cpp)?, self.read(2, cpp)?];
        self.write_real(0, &format!("::emu::ptx::{function}<{cpp}>({a}, {b})"), cpp)
    }

    /// `add.cc`, `addc`, `addc.cc` and those of differences.
    fn carried(&self, with: bool) -> Option<String> {
        let kind = self.own_type().filter(|kind| !kind.is_real())?;
        let name = if self.words[0].starts_with("add") { "add_carry" } else { "sub_borrow" };
        let [a, b] = [self.read(1, kind.cpp)?, self.read(2, kind.cpp)?];
        let keeps = self.has("cc");
        let cpp = kind.cpp;
        self.write(0, &format!("::emu::ptx::{name}<{cpp}>({a}, {b}, {with}, emu_carry, {keeps})"))
    }

    /// `mad.lo.cc.u32` and `madc.hi.cc.u32`: a half of a product, and a sum with a carry.
    fn carried_product(&self) -> Option<String> {
        let kind = self.own_type().filter(|kind| !kind.is_real())?;
        let cpp = kind.cpp;
        let [a, b, c] = [self.read(1, cpp)?, self.read(2, cpp)?, self.read(3, cpp)?];
        let product = match *self.words.get(1)? {
            "lo" => format!("::emu::ptx::mul({a}, {b})"),
            "hi" => format!("::emu::ptx::high<{cpp}>({a}, {b})"),
            _ => return None,
        };
        let (with, keeps) = (self.words[0] == "madc", self.has("cc"));
        self.write(
            0,
            &format!("::emu::ptx::add_carry<{cpp}>({product}, {c}, {with}, emu_carry, {keeps})"),
        )
    }

    /// `add.rz.f32`, `fma.rn.sat.f32`: rounded another way, or between 0 and 1.
    fn rounded(&self) -> Option<String> {
        let cpp = self.own_type()?.cpp;
        let middle = &self.words[1..self.words.len() - 1];
        let way = |word: &&&str| ["rz", "rm", "rp"].contains(*word);
        let is_known = |word: &&str| USUAL.contains(word) || *word == "sat" || way(&word);
        if !middle.iter().all(is_known) {
            return None;
        }
        let values = (1..self.operands.len()).map(|n| self.read(n, cpp));
        let values = values.collect::<Option<Vec<_>>>()?;
        let computed = match (self.words[0], values.len()) {
            ("add", 2) => "a + b",
            ("sub", 2) => "a - b",
            ("mul", 2) => "a * b",
            ("div", 2) => "a / b",
            ("fma", 3) => "std::fma(a, b, c)",
            ("sqrt", 1) => "std::sqrt(a)",
            ("rcp", 1) => "1 / a",
            _ => return None,
        };
        let names: Vec<String> =
            ["a", "b", "c"][..values.len()].iter().map(|n| format!("{cpp} {n}")).collect();
        let function = format!("[]({}) {{ return {cpp}({computed}); }}", names.join(", "));
        let mode = match middle.iter().find(way).copied() {
            Some("rz") => "FE_TOWARDZERO",
            Some("rm") => "FE_DOWNWARD",
            Some(_) => "FE_UPWARD",
            None => "FE_TONEAREST",
        };
        let done = format!("::emu::rounded({mode}, {function}, {})", values.join(", "));
        self.write_rounded(self.words[0], &values, done, cpp)
    }

    /// Writes a rounded result. With `.ftz` the size of the exact one decides; `.sat` comes last.
    fn write_rounded(
        &self,
        name: &str,
        values: &[String],
        done: String,
        cpp: &str,
    ) -> Option<String> {
        let flushed = match (name, values) {
            _ if cpp != "float" || !self.has("ftz") => done,
            ("mul", [a, b]) => format!("::emu::ptx::flushed({done}, double({a}) * {b})"),
            ("div", [a, b]) => format!("::emu::ptx::flushed({done}, double({a}) / {b})"),
            ("rcp", [a]) => format!("::emu::ptx::flushed({done}, 1 / double({a}))"),
            ("fma", [a, b, c]) => {
                format!("::emu::ptx::flushed({done}, ::emu::fma_odd({a}, {b}, {c}))")
            }
            // Sums are exact where they are as small, and roots are not.
            _ => format!("::emu::ptx::flushed({done})"),
        };
        let is_saturated = self.has("sat");
        self.write(
            0,
            &if is_saturated { format!("::emu::ptx::saturated({flushed})") } else { flushed },
        )
    }

    /// `min` and `max` of real numbers.
    fn extreme(&self) -> Option<String> {
        let middle = &self.words[1..self.words.len() - 1];
        middle.iter().all(|word| ["ftz", "NaN"].contains(word)).then_some(())?;
        self.of_two(match (self.words[0], self.has("NaN")) {
            ("min", false) => "least",
            ("min", true) => "least_or_nan",
            (_, false) => "greatest",
            (_, true) => "greatest_or_nan",
        })
    }

    /// Of halves, one or two in a register.
    fn of_halves(&self) -> Option<String> {
        let name = *self.words.last()?;
        let (format, cpp) = (self.own_half_format(name)?, of_type(name)?.cpp);
        let middle = &self.words[1..self.words.len() - 1];
        let usual = |more: &[&str]| {
            middle.iter().all(|w| ["rn", "ftz", "approx"].contains(w) || more.contains(w))
        };
        let function = match (self.words[0], self.operands.len()) {
            ("add", 3) if usual(&[]) => "Sum",
            ("sub", 3) if usual(&[]) => "Difference",
            ("mul", 3) if usual(&[]) => "Product",
            ("fma", 4) if usual(&["relu"]) => "Fused",
            ("min", 3) if usual(&[]) => "Least",
            ("max", 3) if usual(&[]) => "Greatest",
            ("min", 3) if usual(&["NaN"]) => "LeastOrNan",
            ("max", 3) if usual(&["NaN"]) => "GreatestOrNan",
            ("ex2", 2) if usual(&[]) => "PowerOfTwo",
            ("tanh", 2) if usual(&[]) => "HyperbolicTangent",
            ("neg", 2) if self.has("ftz") => "Negative",
            ("abs", 2) if self.has("ftz") => "Magnitude",
            ("neg" | "abs", 2) if usual(&[]) => {
                let both = if cpp == "uint32_t" { "0x80008000u" } else { "0x8000u" };
                let sign = if self.words[0] == "neg" { "^ " } else { "& ~" };
                let value = self.read(1, cpp)?;
                return self.write(0, &format!("{cpp}({value} {sign}{both})"));
            }
            _ => return None,
        };
        let values = (1..self.operands.len()).map(|n| self.read(n, cpp));
        let values = values.collect::<Option<Vec<_>>>()?.join(", ");
        let call = |function: &str, values: &str| {
            format!("::emu::ptx::halves<{format}>({function}, {values})")
        };
        let mut done = call(&format!("::emu::ptx::{function}{{}}"), &values);
        if self.has("relu") {
            done = call("[](float v) { return ::emu::ptx::rectified(v); }", &done);
        }
        self.write(0, &done)
    }

    /// A function of words, and of a number behind them.
    fn of_words(&self, name: &str, words: usize, number: Option<usize>) -> Option<String> {
        let mut all = (1..=words).map(|n| self.read(n, "uint32_t")).collect::<Option<Vec<_>>>()?;
        if let Some(index) = number {
            all.push(self.read(index, "uint32_t")?);
        }
        let scope = if name.starts_with('_') { "" } else { "::emu::ptx::" };
        self.write(0, &format!("{scope}{name}({})", all.join(", ")))
    }

    fn moved(&self) -> Option<String> {
        let kind = self.own_type();
        if self.words.last() == Some(&"pred") {
            return self.write(0, &self.read(1, "bool")?);
        }
        let kind = kind?;
        match (&self.operands[0], &self.operands[1]) {
            // The first is what is lowest.
            (Operand::Value(to), Operand::Vector(parts)) => {
                let part = kind.part(parts.len())?;
                let read =
                    parts.iter().map(|p| self.text.read(p, part)).collect::<Option<Vec<_>>>()?;
                let joined =
                    format!("::emu::ptx::joined<{}, {part}>({{{}}})", kind.cpp, read.join(", "));
                self.text.write(to, &joined)
            }
            (Operand::Vector(parts), Operand::Value(from)) => {
                let (part, from) = (kind.part(parts.len())?, self.text.read(from, kind.cpp)?);
                let each = parts.iter().enumerate().map(|(n, to)| {
                    self.text.write(to, &format!("::emu::ptx::part<{part}>({from}, {n})"))
                });
                Some(each.collect::<Option<Vec<_>>>()?.join("; "))
            }
            (Operand::Value(to), Operand::Value(from)) => {
                self.text.write(to, &self.text.read(from, kind.cpp)?)
            }
            _ => None,
        }
    }

    /// What compares two values, as C++.
    fn comparison(&self, how: &str, name: &str, a: &str, b: &str) -> Option<String> {
        let is_real = of_type(name)?.is_real() || HALVES.contains(&name);
        // Of real numbers `ne` and the like are false where one is no number; with a `u` they are true.
        let (sign, or_nan) = match how {
            "eq" => ("==", false),
            "ne" if is_real => return Some(format!("({a} < {b} || {a} > {b})")),
            "ne" => ("!=", false),
            "lt" | "lo" => ("<", false),
            "le" => ("<=", false),
            "gt" | "hi" => (">", false),
            "ge" | "hs" => (">=", false),
            "ls" => ("<=", false),
            "num" if is_real => return Some(format!("({a} == {a} && {b} == {b})")),
            "nan" if is_real => return Some(format!("({a} != {a} || {b} != {b})")),
            "equ" if is_real => return Some(format!("!({a} < {b} || {a} > {b})")),
            "neu" if is_real => ("!=", false),
            "ltu" if is_real => (">=", true),
            "leu" if is_real => (">", true),
            "gtu" if is_real => ("<=", true),
            "geu" if is_real => ("<", true),
            _ => return None,
        };
        Some(if or_nan { format!("!({a} {sign} {b})") } else { format!("({a} {sign} {b})") })
    }

    /// Operand `index` as what it is compared by: halves as f32.
    fn comparable(&self, index: usize, name: &str) -> Option<String> {
        let cpp = of_type(name)?.cpp;
        let value = self.read(index, cpp)?;
        Some(match half_format(name) {
            Some(_) if cpp == "uint16_t" => {
                format!("{}::widen({value})", self.own_half_format(name)?)
            }
            Some(_) => return None,
            None => value,
        })
    }

    fn compared(&self) -> Option<String> {
        let words: Vec<&str> = self.words.iter().copied().filter(|word| *word != "ftz").collect();
        let (how, with, name) = match words[..] {
            [_, how, name] => (how, None, name),
            [_, how, with, name] => (how, Some(with), name),
            _ => return None,
        };
        let third = self.read(3, "bool");
        let combined = |compared: String| match (with, &third) {
            (None, _) => Some(compared),
            (Some("and"), Some(c)) => Some(format!("({compared} & {c})")),
            (Some("or"), Some(c)) => Some(format!("({compared} | {c})")),
            (Some("xor"), Some(c)) => Some(format!("({compared} != {c})")),
            _ => None,
        };
        (self.operands.len() == 3 + usize::from(with.is_some())).then_some(())?;
        // Two halves have two results.
        if let ("f16x2" | "bf16x2", Some(Operand::Pair(p, q))) = (name, self.operands.first()) {
            let format = self.own_half_format(name)?;
            let [a, b] = [self.read(1, "uint32_t")?, self.read(2, "uint32_t")?];
            let of = |n: usize| {
                let half =
                    |value: &str| format!("{format}::widen(::emu::ptx::half_of({value}, {n}))");
                combined(self.comparison(how, name, &half(&a), &half(&b))?)
            };
            let [low, high] = [of(0)?, of(1)?];
            return Some(format!(
                "bool emu_v = {low}, emu_u = {high}; {}; {}",
                self.text.write(p, "emu_v")?,
                self.text.write(q, "emu_u")?
            ))
            .map(block);
        }
        let compared =
            self.comparison(how, name, &self.comparable(1, name)?, &self.comparable(2, name)?)?;
        match self.operands.first()? {
            Operand::Pair(p, q) => {
                let [yes, no] = [combined("emu_v".into())?, combined("!emu_v".into())?];
                Some(format!(
                    "bool emu_v = {compared}, emu_p = {yes}, emu_q = {no}; {}; {}",
                    self.text.write(p, "emu_p")?,
                    self.text.write(q, "emu_q")?
                ))
                .map(block)
            }
            _ => self.write(0, &combined(compared)?),
        }
    }

    /// `set.gt.u32.f32`: all bits where it holds, or 1.0 of a real number.
    fn compared_as_number(&self) -> Option<String> {
        let words: Vec<&str> = self.words.iter().copied().filter(|word| *word != "ftz").collect();
        let [_, how, to, from] = words[..] else { return None };
        let compared =
            self.comparison(how, from, &self.comparable(1, from)?, &self.comparable(2, from)?)?;
        let cpp = of_type(to)?.cpp;
        let yes = match to {
            "u32" | "s32" => "-1",
            "f32" => "1.0f",
            "f16" => "0x3c00",
            "bf16" => "0x3f80",
            _ => return None,
        };
        self.write(0, &format!("({compared} ? {cpp}({yes}) : {cpp}(0))"))
    }

    /// Of whole numbers: the lower half, the upper one, or both.
    fn product(&self) -> Option<String> {
        let kind = self.own_type().filter(|_| self.words.len() == 3)?;
        let [a, b] = [self.read(1, kind.cpp)?, self.read(2, kind.cpp)?];
        let (product, cpp) = match (self.words[1], kind.bytes) {
            ("lo", 2 | 4 | 8) => (format!("::emu::ptx::mul({a}, {b})"), kind.cpp),
            ("wide", 2 | 4) if kind.letter != 'b' => {
                let wide = kind.twice()?;
                (format!("({wide}({a}) * {wide}({b}))"), wide)
            }
            ("hi", 2 | 4 | 8) => (format!("::emu::ptx::high<{0}>({a}, {b})", kind.cpp), kind.cpp),
            _ => return None,
        };
        match self.words[0] {
            "mul" => self.write(0, &product),
            _ => self.write(0, &format!("::emu::ptx::add({product}, {})", self.read(3, cpp)?)),
        }
    }

    fn binary(&self) -> Option<String> {
        let name = *self.words.last()?;
        if name == "pred" {
            let sign = match self.words[0] {
                "and" => "&",
                "or" => "|",
                "xor" => "^",
                _ => return None,
            };
            return self.write(
                0,
                &format!("bool({} {sign} {})", self.read(1, "bool")?, self.read(2, "bool")?),
            );
        }
        let kind = of_type(name)?;
        let cpp = kind.cpp;
        let [a, b] = [self.read(1, cpp)?, self.read(2, cpp)?];
        let sign = match self.words[0] {
            "min" | "max" => {
                return self.write(0, &format!("std::{}<{cpp}>({a}, {b})", self.words[0]));
            }
            "shl" | "shr" => {
                let by = self.read(2, "uint32_t")?;
                return self.write(0, &format!("::emu::ptx::{}({a}, {by})", self.words[0]));
            }
            name @ ("add" | "sub" | "mul" | "div") => {
                let is_rough = name == "div" && self.has("approx");
                let function = if is_rough { "div_approx" } else { name };
                let done = format!("::emu::ptx::{function}({a}, {b})");
                return self.write_rounded(name, &[a, b], done, cpp);
            }
            "and" => "&",
            "or" => "|",
            "xor" => "^",
            _ => return None,
        };
        self.write(0, &format!("{cpp}({a} {sign} {b})"))
    }

    fn unary(&self) -> Option<String> {
        let name = *self.words.last()?;
        if let ("not", "pred") = (self.words[0], name) {
            return self.write(0, &format!("!{}", self.read(1, "bool")?));
        }
        let kind = of_type(name)?;
        let a = self.read(1, kind.cpp)?;
        let result = match (self.words[0], name) {
            ("ex2", "f32") => format!("::exp2f({a})"),
            ("lg2", "f32") => format!("::log2f({a})"),
            ("rcp", "f64") if self.has("approx") => {
                format!("::emu::ptx::upper_half(1 / ::emu::ptx::upper_half({a}))")
            }
            ("rsqrt", "f64") if self.has("ftz") => {
                format!("::emu::ptx::upper_half(1 / std::sqrt(::emu::ptx::upper_half({a})))")
            }
            ("rcp", "f32" | "f64") => format!("{}(1 / {a})", kind.cpp),
            ("rsqrt", "f32" | "f64") => format!("{}(1 / std::sqrt({a}))", kind.cpp),
            ("sqrt", "f32" | "f64") => format!("std::sqrt({a})"),
            ("sin" | "cos" | "tanh", "f32") => format!("std::{}({a})", self.words[0]),
            ("abs", "f32" | "f64") => format!("std::fabs({a})"),
            ("abs", "s16" | "s32" | "s64") => format!("::emu::ptx::magnitude<{}>({a})", kind.cpp),
            ("neg", "f32" | "f64") => format!("-{a}"),
            ("neg", "s16" | "s32" | "s64") => format!("::emu::ptx::sub({}(0), {a})", kind.cpp),
            ("not", "b16" | "b32" | "b64") => format!("{}(~{a})", kind.cpp),
            ("popc", "b32") => format!("__popc({a})"),
            ("popc", "b64") => format!("__popcll({a})"),
            ("clz", "b32") => format!("__clz({a})"),
            ("clz", "b64") => format!("__clzll({a})"),
            ("brev", "b64") => format!("__brevll({a})"),
            ("cnot", "b16" | "b32" | "b64") => format!("{}({a} == 0)", kind.cpp),
            ("brev", "b32") => format!("__brev({a})"),
            _ => return None,
        };
        self.write_real(0, &result, kind.cpp)
    }
}

impl Type {
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.cpp, "float" | "double")
    }

    /// Of which two have its bytes, or four.
    fn part(&self, parts: usize) -> Option<&'static str> {
        match self.bytes as usize / parts {
            1 => Some("uint8_t"),
            2 => Some("uint16_t"),
            4 => Some("uint32_t"),
            _ => None,
        }
    }

    fn twice(&self) -> Option<&'static str> {
        match self.cpp {
            "uint16_t" => Some("uint32_t"),
            "int16_t" => Some("int32_t"),
            "uint32_t" => Some("uint64_t"),
            "int32_t" => Some("int64_t"),
            _ => None,
        }
    }
}

impl Value {
    pub(crate) fn is_wanted(&self) -> bool {
        *self != Self::Nowhere
    }
}
