//! Arithmetic, comparisons, conversions, moves. PTX ISA, "Integer Arithmetic Instructions" and the sections behind it.

use super::statement::{Operand, Value};
use super::{Call, Type, of_type};

/// What a special register holds; `None` of those that there are not.
pub(super) fn special(name: &str) -> Option<String> {
    let axis = |of: &str| {
        let (own, axis) = name.split_once('.')?;
        (own == of && ["x", "y", "z"].contains(&axis)).then(|| axis.to_owned())
    };
    for (own, variable) in
        [("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim")]
    {
        if let Some(axis) = axis(own) {
            return Some(format!("{variable}.{axis}"));
        }
    }
    let call = match name {
        "laneid" | "warpid" | "nwarpid" | "smid" | "nsmid" | "lanemask_eq" | "lanemask_lt"
        | "lanemask_le" | "lanemask_gt" | "lanemask_ge" => format!("::emu::ptx::{name}()"),
        "clock" | "clock64" => "clock64()".into(),
        "globaltimer" => "__globaltimer()".into(),
        "dynamic_smem_size" => "emu_dynamic_shared_bytes()".into(),
        "cluster_ctarank" => "emu_coordinate(EMU_CLUSTER_RANK)".into(),
        // Clusters lie along x.
        "clusterid.x" => "(blockIdx.x / emu_coordinate(EMU_CLUSTER_SIZE))".into(),
        "nclusterid.x" => "(gridDim.x / emu_coordinate(EMU_CLUSTER_SIZE))".into(),
        "clusterid.y" => "blockIdx.y".into(),
        "clusterid.z" => "blockIdx.z".into(),
        "cluster_ctaid.x" => "emu_coordinate(EMU_CLUSTER_RANK)".into(),
        "cluster_nctaid.x" => "emu_coordinate(EMU_CLUSTER_SIZE)".into(),
        "cluster_nctarank" => "emu_coordinate(EMU_CLUSTER_SIZE)".into(),
        _ => return None,
    };
    Some(call)
}

/// What changes no result here: a rounding that is the usual one, less exact functions, hints.
const USUAL: [&str; 6] = ["rn", "ftz", "approx", "full", "wrap", "sync"];

impl Call<'_> {
    pub(super) fn numbers(&self) -> Option<String> {
        let middle = &self.words[1..self.words.len().max(2) - 1];
        let usual = middle.iter().all(|word| USUAL.contains(word));
        match (self.words[0], self.operands.len()) {
            ("mov", 2) => self.moved(),
            ("cvt", _) => self.converted(),
            // Addresses of global memory are the same in both.
            ("cvta", 2) => {
                let to = self.read(1, "uint64_t")?;
                match (self.words.get(1).copied()?, self.words.get(2).copied()?) {
                    ("to", "shared") => self.write(0, &format!("::emu::ptx::window({to})")),
                    ("to", "global") | ("global", _) => self.write(0, &to),
                    ("shared", _) => self.write(0, &format!("uint64_t(::emu::ptx::shared({to}))")),
                    _ => None,
                }
            }
            ("setp", 3) => self.compared(),
            ("selp", 4) => {
                let cpp = self.own_type()?.cpp;
                let [a, b, p] = [self.read(1, cpp)?, self.read(2, cpp)?, self.read(3, "bool")?];
                self.write(0, &format!("({p} ? {a} : {b})"))
            }
            ("mul" | "mad", _) if self.own_type().is_some_and(|kind| !kind.is_real()) => {
                self.product()
            }
            ("lop3", 5) => self.of_words("lop3", 3, Some(4)),
            ("vabsdiff4", 4) if self.is("vabsdiff4.u32.u32.u32.add") => {
                self.of_words("vabsdiff4", 3, None)
            }
            ("prmt", 4) if self.words.len() == 2 => self.of_words("prmt", 3, None),
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
            (
                "add" | "sub" | "mul" | "div" | "min" | "max" | "and" | "or" | "xor" | "shl"
                | "shr",
                3,
            ) if usual => self.binary(),
            ("fma", 4) if usual => {
                let cpp = self.own_type().filter(Type::is_real)?.cpp;
                let [a, b, c] = [self.read(1, cpp)?, self.read(2, cpp)?, self.read(3, cpp)?];
                self.write(0, &format!("std::fma({a}, {b}, {c})"))
            }
            (_, 2) if usual => self.unary(),
            _ => None,
        }
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

    fn compared(&self) -> Option<String> {
        let kind = self.own_type()?;
        if self.words.len() != 3 || kind.is_half(self.words[2]) {
            return None;
        }
        let sign = match self.words[1] {
            "eq" => "==",
            "ne" => "!=",
            "lt" | "lo" => "<",
            "le" | "ls" => "<=",
            "gt" | "hi" => ">",
            "ge" | "hs" => ">=",
            _ => return None,
        };
        let [a, b] = [self.read(1, kind.cpp)?, self.read(2, kind.cpp)?];
        // NaN is not unequal to anything here: `neu` says that.
        match sign {
            "!=" if kind.is_real() => self.write(0, &format!("({a} < {b} || {a} > {b})")),
            _ => self.write(0, &format!("({a} {sign} {b})")),
        }
    }

    /// Of whole numbers: the lower half, the upper one, or both.
    fn product(&self) -> Option<String> {
        let kind = self.own_type().filter(|_| self.words.len() == 3)?;
        let [a, b] = [self.read(1, kind.cpp)?, self.read(2, kind.cpp)?];
        let (product, cpp) = match (self.words[1], kind.bytes) {
            ("lo", 2 | 4 | 8) => (format!("::emu::ptx::mul({a}, {b})"), kind.cpp),
            ("wide", 2 | 4) => {
                let wide = kind.twice()?;
                (format!("({wide}({a}) * {wide}({b}))"), wide)
            }
            ("hi", 4) => {
                let wide = kind.twice()?;
                (format!("{}({wide}({a}) * {wide}({b}) >> 32)", kind.cpp), kind.cpp)
            }
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
        if kind.is_half(name) {
            return None;
        }
        let cpp = kind.cpp;
        let [a, b] = [self.read(1, cpp)?, self.read(2, cpp)?];
        let sign = match self.words[0] {
            "min" | "max" => {
                let of = if kind.is_real() {
                    format!("std::f{}", self.words[0])
                } else {
                    format!("std::{}", self.words[0])
                };
                return self.write(0, &format!("{of}({a}, {b})"));
            }
            "shl" | "shr" => {
                let by = self.read(2, "uint32_t")?;
                return self.write(0, &format!("::emu::ptx::{}({a}, {by})", self.words[0]));
            }
            name @ ("add" | "sub" | "mul" | "div") => {
                return self.write(0, &format!("::emu::ptx::{name}({a}, {b})"));
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
        let kind = of_type(name)?;
        let a = self.read(1, kind.cpp)?;
        let result = match (self.words[0], name) {
            ("ex2", "f32") => format!("::exp2f({a})"),
            ("lg2", "f32") => format!("::log2f({a})"),
            ("rcp", "f32" | "f64") => format!("{}(1 / {a})", kind.cpp),
            ("rsqrt", "f32" | "f64") => format!("{}(1 / std::sqrt({a}))", kind.cpp),
            ("sqrt", "f32" | "f64") => format!("std::sqrt({a})"),
            ("sin" | "cos" | "tanh", "f32") => format!("std::{}({a})", self.words[0]),
            ("abs", "f32" | "f64") => format!("std::fabs({a})"),
            ("abs", "s32") => format!("({a} < 0 ? ::emu::ptx::sub(0, {a}) : {a})"),
            ("neg", "f32" | "f64") => format!("-{a}"),
            ("neg", "s32" | "s64") => format!("::emu::ptx::sub({}(0), {a})", kind.cpp),
            ("not", "b16" | "b32" | "b64") => format!("{}(~{a})", kind.cpp),
            ("popc", "b32") => format!("__popc({a})"),
            ("popc", "b64") => format!("__popcll({a})"),
            ("clz", "b32") => format!("__clz({a})"),
            ("brev", "b32") => format!("__brev({a})"),
            _ => return None,
        };
        self.write(0, &result)
    }

    fn converted(&self) -> Option<String> {
        let [.., to, from] = self.words else { return None };
        let how = self.words.get(1..self.words.len() - 2)?;
        let how: Vec<&str> = how.iter().copied().filter(|w| *w != "ftz").collect();
        let (to_type, from_type) = (of_type(to)?, of_type(from)?);
        let value = match (&how[..], *to, *from) {
            (["rn"], "f16x2" | "bf16x2", "f32") => {
                let [high, low] = [self.read(1, "float")?, self.read(2, "float")?];
                return self.write(0, &format!("::emu::ptx::two_{to}({high}, {low})"));
            }
            (["rna"], "tf32", "f32") => format!("::emu::to_tf32({})", self.read(1, "uint32_t")?),
            (["rn"], "f16" | "bf16", "f32") => {
                format!("::emu::ptx::{to}({})", self.read(1, "float")?)
            }
            ([], "f32", "f16" | "bf16") => {
                format!("::emu::ptx::from_{from}({})", self.read(1, "uint16_t")?)
            }
            _ if to_type.is_half(to) || from_type.is_half(from) => return None,
            // What does not fit loses its upper bits.
            ([], ..) if !to_type.is_real() && !from_type.is_real() => {
                format!("{}({})", to_type.cpp, self.read(1, from_type.cpp)?)
            }
            ([], "f64", "f32") | (["rn"], "f32", "f64") => {
                format!("{}({})", to_type.cpp, self.read(1, from_type.cpp)?)
            }
            (["rn"], "f32" | "f64", _) if !from_type.is_real() => {
                format!("{}({})", to_type.cpp, self.read(1, from_type.cpp)?)
            }
            ([way @ ("rni" | "rzi" | "rmi" | "rpi")], ..)
                if from_type.is_real() && to_type.bytes >= 4 =>
            {
                let round = match *way {
                    "rni" => "rint",
                    "rzi" => "trunc",
                    "rmi" => "floor",
                    _ => "ceil",
                };
                let rounded = format!("std::{round}({})", self.read(1, from_type.cpp)?);
                if to_type.is_real() {
                    rounded
                } else {
                    format!("::emu::to_integer<{}>({rounded})", to_type.cpp)
                }
            }
            _ => return None,
        };
        (self.operands.len() == 2).then(|| self.write(0, &value))?
    }
}

impl Type {
    fn is_real(&self) -> bool {
        matches!(self.cpp, "float" | "double")
    }

    /// Halves, whose bits alone are known here.
    fn is_half(&self, name: &str) -> bool {
        ["f16", "bf16", "f16x2", "bf16x2", "tf32"].contains(&name)
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
    pub(super) fn is_wanted(&self) -> bool {
        *self != Self::Nowhere
    }
}
