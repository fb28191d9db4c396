//! The instructions that are compared: all of arithmetic, comparison, conversion and bits that `lab-ptx` takes.

use std::fmt::Write as _;

/// What an operand is made for. The order is that of the pools in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    B16,
    B32,
    B64,
    /// Places and lengths of bits, and predicates: its lowest bit.
    Count,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::B16,
        Self::B32,
        Self::B64,
        Self::Count,
        Self::F16,
        Self::Bf16,
        Self::F16x2,
        Self::Bf16x2,
        Self::F32,
        Self::F64,
    ];

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::B16 | Self::F16 | Self::Bf16 => 2,
            Self::B64 | Self::F64 => 8,
            _ => 4,
        }
    }

    /// Of a type of PTX.
    fn of(name: &str) -> Self {
        match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "b64" | "u64" | "s64" => Self::B64,
            "b32" | "u32" | "s32" | "tf32" => Self::B32,
            _ => Self::B16,
        }
    }
}

/// What a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) kind: Kind,
    /// One byte is written of it: predicates.
    pub(super) is_byte: bool,
}

impl Outcome {
    pub(super) fn bytes(self) -> usize {
        if self.is_byte { 1 } else { self.kind.bytes() }
    }
}

/// An operand of a form: `a`, `b` or `c` of its kind; of a predicate the lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Operand {
    pub(super) kind: Kind,
    pub(super) slot: usize,
    pub(super) is_predicate: bool,
}

/// One form of an instruction.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// As in PTX.
    pub(super) name: String,
    /// PTX: `$d` and `$e` are the results; `$a`, `$b`, `$c` the operands; `$p` and `$q` are predicates, `$t` and `$u` numbers of
    /// 32 bits that it may use.
    pub(super) text: String,
    pub(super) operands: Vec<Operand>,
    pub(super) results: Vec<Outcome>,
    /// PTX leaves open what exactly comes out: the distance is measured.
    pub(super) is_approximate: bool,
}

/// All forms.
pub(super) fn forms() -> Vec<Form> {
    let mut all = All::default();
    all.integers();
    all.carries();
    all.bits();
    all.selections();
    all.reals("f32");
    all.reals("f64");
    all.halves();
    all.approximations();
    all.comparisons();
    all.comparisons_as_numbers();
    all.whole_conversions();
    all.real_conversions();
    all.pair_conversions();
    all.0
}

const WHOLE: [&str; 6] = ["u16", "s16", "u32", "s32", "u64", "s64"];
const WAYS: [&str; 4] = ["rn", "rz", "rm", "rp"];
const WHOLE_WAYS: [&str; 4] = ["rni", "rzi", "rmi", "rpi"];

#[derive(Default)]
struct All(Vec<Form>);

impl All {
    fn push(&mut self, name: &str, text: String, kinds: &[Kind], results: &[Kind]) -> &mut Form {
        let operand =
            |(slot, kind): (usize, &Kind)| Operand { kind: *kind, slot, is_predicate: false };
        self.0.push(Form {
            name: name.to_owned(),
            text,
            operands: kinds.iter().enumerate().map(operand).collect(),
            results: results.iter().map(|kind| Outcome { kind: *kind, is_byte: false }).collect(),
            is_approximate: false,
        });
        self.0.last_mut().expect("just pushed")
    }

    /// `name d, a, b;` with as many operands as there are kinds.
    fn plain(&mut self, name: &str, kinds: &[Kind], result: Kind) -> &mut Form {
        let mut text = format!("{name} $d");
        for operand in &["$a", "$b", "$c"][..kinds.len()] {
            let _ = write!(text, ", {operand}");
        }
        self.push(name, text + ";", kinds, &[result])
    }

    fn integers(&mut self) {
        for name in WHOLE {
            let kind = Kind::of(name);
            for operation in ["add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"] {
                self.plain(&format!("{operation}.{name}"), &[kind; 2], kind);
            }
            for operation in ["mad.lo", "mad.hi", "sad"] {
                self.plain(&format!("{operation}.{name}"), &[kind; 3], kind);
            }
            if name.starts_with('s') {
                self.plain(&format!("abs.{name}"), &[kind], kind);
                self.plain(&format!("neg.{name}"), &[kind], kind);
            }
            if kind != Kind::B64 {
                let wide = if kind == Kind::B16 { Kind::B32 } else { Kind::B64 };
                self.plain(&format!("mul.wide.{name}"), &[kind; 2], wide);
                let text = format!("mad.wide.{name} $d, $a, $b, $c;");
                self.push(&format!("mad.wide.{name}"), text, &[kind, kind, wide], &[wide]);
            }
            if kind == Kind::B32 {
                self.plain(&format!("mul24.lo.{name}"), &[kind; 2], kind);
                self.plain(&format!("mad24.lo.{name}"), &[kind; 3], kind);
            }
        }
        for a in ["s32", "u32"] {
            for b in ["s32", "u32"] {
                self.plain(&format!("dp4a.{a}.{b}"), &[Kind::B32; 3], Kind::B32);
            }
        }
        self.plain("vabsdiff4.u32.u32.u32.add", &[Kind::B32; 3], Kind::B32);
    }

    /// A carry is what the instruction behind makes of it.
    fn carries(&mut self) {
        for name in ["u32", "s32", "u64", "s64"] {
            let kind = Kind::of(name);
            for (first, second) in [("add", "addc"), ("sub", "subc")] {
                let text = format!("{first}.cc.{name} $d, $a, $b; {second}.{name} $e, $c, $a;");
                self.push(&format!("{first}.cc.{name}, {second}"), text, &[kind; 3], &[kind; 2]);
                let text = format!(
                    "{first}.cc.{name} $d, $a, $b; {second}.cc.{name} $d, $b, $c; {second}.{name} $e, $c, $a;"
                );
                let title = format!("{first}.cc.{name}, {second}.cc, {second}");
                self.push(&title, text, &[kind; 3], &[kind; 2]);
            }
            for half in ["lo", "hi"] {
                let text = format!("mad.{half}.cc.{name} $d, $a, $b, $c; addc.{name} $e, $c, $a;");
                self.push(&format!("mad.{half}.cc.{name}, addc"), text, &[kind; 3], &[kind; 2]);
                let text = format!(
                    "add.cc.{name} $d, $a, $b; madc.{half}.cc.{name} $d, $a, $c, $b; addc.{name} $e, $c, $a;"
                );
                let title = format!("add.cc.{name}, madc.{half}.cc, addc");
                self.push(&title, text, &[kind; 3], &[kind; 2]);
                let text = format!("add.cc.{name} $d, $a, $b; madc.{half}.{name} $e, $a, $c, $b;");
                self.push(&format!("add.cc.{name}, madc.{half}"), text, &[kind; 3], &[kind; 2]);
            }
        }
    }

    fn bits(&mut self) {
        use Kind::{B16, B32, B64, Count};
        for (name, kind) in [("b16", B16), ("b32", B32), ("b64", B64)] {
            for operation in ["and", "or", "xor"] {
                self.plain(&format!("{operation}.{name}"), &[kind; 2], kind);
            }
            self.plain(&format!("not.{name}"), &[kind], kind);
            self.plain(&format!("cnot.{name}"), &[kind], kind);
            self.plain(&format!("mov.{name}"), &[kind], kind);
            self.plain(&format!("shl.{name}"), &[kind, Count], kind);
            for letter in ["b", "u", "s"] {
                let name = name.replace('b', letter);
                self.plain(&format!("shr.{name}"), &[kind, Count], kind);
            }
            if kind != B16 {
                self.plain(&format!("popc.{name}"), &[kind], B32);
                self.plain(&format!("clz.{name}"), &[kind], B32);
                self.plain(&format!("brev.{name}"), &[kind], kind);
                let text = format!("bfi.{name} $d, $a, $b, $c, $g;");
                let form = self.push(&format!("bfi.{name}"), text, &[kind, kind, Count], &[kind]);
                form.operands.push(Operand { kind: Count, slot: 0, is_predicate: false });
            }
        }
        for (name, kind) in [("u32", B32), ("s32", B32), ("u64", B64), ("s64", B64)] {
            self.plain(&format!("bfind.{name}"), &[kind], B32);
            self.plain(&format!("bfind.shiftamt.{name}"), &[kind], B32);
            self.plain(&format!("bfe.{name}"), &[kind, Count, Count], kind);
        }
        for way in ["l.wrap", "r.wrap", "l.clamp", "r.clamp"] {
            self.plain(&format!("shf.{way}.b32"), &[B32, B32, Count], B32);
        }
        for table in [0x01, 0x17, 0x2d, 0x80, 0x96, 0xca, 0xe8, 0xfe] {
            let text = format!("lop3.b32 $d, $a, $b, $c, {table};");
            self.push(&format!("lop3.b32 {table:#04x}"), text, &[B32; 3], &[B32]);
        }
        self.plain("prmt.b32", &[B32; 3], B32);
        self.push("mov.b32 of two", "mov.b32 $d, {$a, $b};".into(), &[B16; 2], &[B32]);
        self.push("mov.b64 of two", "mov.b64 $d, {$a, $b};".into(), &[B32; 2], &[B64]);
        self.push("mov.b32 to two", "mov.b32 {$d, $e}, $a;".into(), &[B32], &[B16; 2]);
        self.push("mov.b64 to two", "mov.b64 {$d, $e}, $a;".into(), &[B64], &[B32; 2]);
        for operation in ["and", "or", "xor"] {
            let text = format!("{operation}.pred $p, $a, $b; selp.b32 $d, 1, 0, $p;");
            self.push(&format!("{operation}.pred"), text, &[Count; 2], &[B32]).of_predicates();
        }
        let text = "not.pred $p, $a; selp.b32 $d, 1, 0, $p;".to_owned();
        self.push("not.pred", text, &[Count], &[B32]).of_predicates();
    }

    fn selections(&mut self) {
        for name in ["b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"] {
            let kind = Kind::of(name);
            let form = self.plain(&format!("selp.{name}"), &[kind, kind, Kind::Count], kind);
            form.operands[2].is_predicate = true;
            self.plain(&format!("slct.{name}.s32"), &[kind, kind, Kind::B32], kind);
            self.plain(&format!("slct.{name}.f32"), &[kind, kind, Kind::F32], kind);
            self.plain(&format!("slct.ftz.{name}.f32"), &[kind, kind, Kind::F32], kind);
        }
    }

    fn reals(&mut self, name: &str) {
        let kind = Kind::of(name);
        let ends: &[&str] = if name == "f32" { &["", ".ftz", ".sat", ".ftz.sat"] } else { &[""] };
        for end in ends {
            for operation in ["add", "sub", "mul"] {
                self.plain(&format!("{operation}{end}.{name}"), &[kind; 2], kind);
                for way in WAYS {
                    self.plain(&format!("{operation}.{way}{end}.{name}"), &[kind; 2], kind);
                }
            }
            for way in WAYS {
                self.plain(&format!("fma.{way}{end}.{name}"), &[kind; 3], kind);
                // Only those of the usual rounding are taken, and none that saturates.
                if way == "rn" && !end.contains("sat") {
                    self.plain(&format!("mad.{way}{end}.{name}"), &[kind; 3], kind);
                }
            }
        }
        for end in &ends[..ends.len().min(2)] {
            for way in WAYS {
                self.plain(&format!("div.{way}{end}.{name}"), &[kind; 2], kind);
                self.plain(&format!("rcp.{way}{end}.{name}"), &[kind], kind);
                self.plain(&format!("sqrt.{way}{end}.{name}"), &[kind], kind);
            }
            self.plain(&format!("abs{end}.{name}"), &[kind], kind);
            self.plain(&format!("neg{end}.{name}"), &[kind], kind);
            for operation in ["min", "max"] {
                self.plain(&format!("{operation}{end}.{name}"), &[kind; 2], kind);
                if name == "f32" {
                    self.plain(&format!("{operation}{end}.NaN.{name}"), &[kind; 2], kind);
                }
            }
        }
        self.plain(&format!("copysign.{name}"), &[kind; 2], kind);
        for test in ["finite", "infinite", "number", "notanumber", "normal"] {
            let text = format!("testp.{test}.{name} $p, $a; selp.b32 $d, 1, 0, $p;");
            self.push(&format!("testp.{test}.{name}"), text, &[kind], &[Kind::B32]).of_bytes();
        }
    }

    fn halves(&mut self) {
        for name in ["f16", "f16x2", "bf16", "bf16x2"] {
            let kind = Kind::of(name);
            let ends: &[&str] = if name.starts_with('f') { &["", ".ftz"] } else { &[""] };
            for end in ends {
                for operation in ["add", "sub", "mul"] {
                    self.plain(&format!("{operation}{end}.{name}"), &[kind; 2], kind);
                    self.plain(&format!("{operation}.rn{end}.{name}"), &[kind; 2], kind);
                }
                self.plain(&format!("fma.rn{end}.{name}"), &[kind; 3], kind);
                self.plain(&format!("fma.rn{end}.relu.{name}"), &[kind; 3], kind);
                self.plain(&format!("neg{end}.{name}"), &[kind], kind);
                self.plain(&format!("abs{end}.{name}"), &[kind], kind);
                for operation in ["min", "max"] {
                    self.plain(&format!("{operation}{end}.{name}"), &[kind; 2], kind);
                    self.plain(&format!("{operation}{end}.NaN.{name}"), &[kind; 2], kind);
                }
            }
        }
    }

    fn approximations(&mut self) {
        for end in ["", ".ftz"] {
            for operation in ["ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos"] {
                let name = format!("{operation}.approx{end}.f32");
                self.plain(&name, &[Kind::F32], Kind::F32).is_approximate = true;
            }
            for operation in ["div.approx", "div.full"] {
                let name = format!("{operation}{end}.f32");
                self.plain(&name, &[Kind::F32; 2], Kind::F32).is_approximate = true;
            }
        }
        self.plain("tanh.approx.f32", &[Kind::F32], Kind::F32).is_approximate = true;
        self.plain("rsqrt.approx.f64", &[Kind::F64], Kind::F64).is_approximate = true;
        self.plain("rcp.approx.ftz.f64", &[Kind::F64], Kind::F64).is_approximate = true;
        self.plain("rsqrt.approx.ftz.f64", &[Kind::F64], Kind::F64).is_approximate = true;
        for name in ["f16", "f16x2", "bf16", "bf16x2"] {
            let kind = Kind::of(name);
            let end = if name.starts_with('f') { "" } else { ".ftz" };
            self.plain(&format!("ex2.approx{end}.{name}"), &[kind], kind).is_approximate = true;
            self.plain(&format!("tanh.approx.{name}"), &[kind], kind).is_approximate = true;
        }
    }

    fn comparisons(&mut self) {
        for name in [
            "b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64", "f16",
            "bf16", "f16x2", "bf16x2",
        ] {
            let kind = Kind::of(name);
            let can_flush = matches!(name, "f32" | "f16" | "f16x2");
            for how in comparisons_of(name) {
                for end in if can_flush { &["", ".ftz"][..] } else { &[""] } {
                    let full = format!("setp.{how}{end}.{name}");
                    self.compared(full.clone(), &full, kind);
                    let all = matches!(name, "s32" | "f32" | "f16x2") && end.is_empty();
                    if !all && *how != "lt" {
                        continue;
                    }
                    for with in ["and", "or", "xor"] {
                        let full = format!("setp.{how}.{with}{end}.{name}");
                        self.compared(full.clone(), &full, kind);
                    }
                }
            }
        }
    }

    /// Both predicates: of one pair of numbers the comparison and its opposite, of two pairs one each. Single halves have one.
    fn compared(&mut self, title: String, full: &str, kind: Kind) {
        let words: Vec<&str> = full.split('.').collect();
        let combines = ["and", "or", "xor"].iter().any(|with| words.contains(with));
        let third = if combines { ", $c" } else { "" };
        let is_one_half = matches!(kind, Kind::F16 | Kind::Bf16);
        let text = if is_one_half {
            format!("{full} $p, $a, $b{third}; selp.b32 $d, 1, 0, $p;")
        } else {
            format!(
                "{full} $p|$q, $a, $b{third}; selp.b32 $d, 1, 0, $p; selp.b32 $t, 2, 0, $q; or.b32 $d, $d, $t;"
            )
        };
        let mut kinds = vec![kind; 2];
        kinds.extend(combines.then_some(Kind::Count));
        let form = self.push(&title, text, &kinds, &[Kind::B32]).of_bytes();
        if combines {
            form.operands[2].is_predicate = true;
        }
    }

    fn comparisons_as_numbers(&mut self) {
        for from in ["u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"] {
            for how in comparisons_of(from) {
                for to in ["u32", "f32"] {
                    for end in if from == "f32" { &["", ".ftz"][..] } else { &[""] } {
                        self.plain(
                            &format!("set.{how}{end}.{to}.{from}"),
                            &[Kind::of(from); 2],
                            Kind::of(to),
                        );
                    }
                }
            }
        }
        for name in ["f16", "bf16"] {
            for how in comparisons_of(name) {
                for to in ["u32", name] {
                    self.plain(
                        &format!("set.{how}.{to}.{name}"),
                        &[Kind::of(name); 2],
                        Kind::of(to),
                    );
                }
            }
        }
    }

    fn whole_conversions(&mut self) {
        let all = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
        for from in all {
            for to in all {
                self.converted(&format!("cvt.{to}.{from}"), to, from);
                if !covers(to, from) {
                    self.converted(&format!("cvt.sat.{to}.{from}"), to, from);
                }
            }
        }
    }

    /// The register of an 8-bit result has 32: it is told with its sign.
    fn converted(&mut self, name: &str, to: &str, from: &str) {
        let result = if to.ends_with('8') { Kind::B32 } else { Kind::of(to) };
        self.plain(name, &[Kind::of(from)], result);
    }

    fn real_conversions(&mut self) {
        let whole = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
        for real in ["f16", "bf16", "f32", "f64"] {
            for name in whole {
                if real == "bf16" && name.ends_with('8') {
                    continue;
                }
                for way in WAYS {
                    self.converted(&format!("cvt.{way}.{real}.{name}"), real, name);
                }
                for way in WHOLE_WAYS {
                    self.converted(&format!("cvt.{way}.{name}.{real}"), name, real);
                    if real == "f32" {
                        self.converted(&format!("cvt.{way}.ftz.{name}.{real}"), name, real);
                        self.converted(&format!("cvt.{way}.sat.{name}.{real}"), name, real);
                    }
                }
            }
        }
        for real in ["f16", "f32", "f64", "bf16"] {
            for way in WHOLE_WAYS {
                self.converted(&format!("cvt.{way}.{real}.{real}"), real, real);
                if real == "f32" {
                    for end in [".ftz", ".sat", ".ftz.sat"] {
                        self.converted(&format!("cvt.{way}{end}.{real}.{real}"), real, real);
                    }
                }
            }
        }
        for (to, from) in
            [("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64")]
        {
            for way in WAYS {
                let ends: &[&str] = match (to, from) {
                    ("f32", _) => &["", ".ftz", ".sat", ".ftz.sat"],
                    ("f16", "f32") if matches!(way, "rn" | "rz") => &["", ".ftz", ".sat", ".relu"],
                    ("bf16", "f32") if matches!(way, "rn" | "rz") => &["", ".relu"],
                    ("f16", "f32") => &["", ".ftz", ".sat"],
                    ("f16", "f64") => &["", ".sat"],
                    _ => &[""],
                };
                for end in ends {
                    self.converted(&format!("cvt.{way}{end}.{to}.{from}"), to, from);
                }
            }
        }
        for (to, from) in [
            ("f32", "f16"),
            ("f32", "bf16"),
            ("f64", "f16"),
            ("f64", "bf16"),
            ("f64", "f32"),
            ("f32", "f32"),
        ] {
            let ends: &[&str] = match (to, from) {
                ("f64", "f32") | ("f32", "f16" | "f32") => &["", ".ftz", ".sat", ".ftz.sat"],
                (_, "bf16") => &[""],
                _ => &["", ".sat"],
            };
            for end in ends {
                self.converted(&format!("cvt{end}.{to}.{from}"), to, from);
            }
        }
        for way in ["rna", "rn"] {
            self.plain(&format!("cvt.{way}.tf32.f32"), &[Kind::F32], Kind::B32);
        }
    }

    fn pair_conversions(&mut self) {
        for end in ["", ".relu"] {
            for to in ["f16x2", "bf16x2"] {
                self.plain(&format!("cvt.rn{end}.{to}.f32"), &[Kind::F32; 2], Kind::of(to));
            }
            for to in ["e4m3x2", "e5m2x2"] {
                self.plain(&format!("cvt.rn.satfinite{end}.{to}.f32"), &[Kind::F32; 2], Kind::B16);
                self.plain(&format!("cvt.rn.satfinite{end}.{to}.f16x2"), &[Kind::F16x2], Kind::B16);
            }
        }
        for from in ["e4m3x2", "e5m2x2"] {
            self.plain(&format!("cvt.rn.f16x2.{from}"), &[Kind::B16], Kind::F16x2);
        }
    }
}

impl Form {
    fn of_predicates(&mut self) -> &mut Self {
        self.operands.iter_mut().for_each(|operand| operand.is_predicate = true);
        self.of_bytes()
    }

    fn of_bytes(&mut self) -> &mut Self {
        self.results.iter_mut().for_each(|result| result.is_byte = true);
        self
    }
}

/// Whether a type of whole numbers has all numbers of another: then nothing saturates.
fn covers(to: &str, from: &str) -> bool {
    let bits = |name: &str| name[1..].parse::<u32>().unwrap_or(0);
    match (to.starts_with('s'), from.starts_with('s')) {
        (true, false) => bits(to) > bits(from),
        (false, true) => false,
        _ => bits(to) >= bits(from),
    }
}

fn comparisons_of(name: &str) -> &'static [&'static str] {
    match &name[..1] {
        "b" if !name.starts_with("bf") => &["eq", "ne"],
        "s" => &["eq", "ne", "lt", "le", "gt", "ge"],
        "u" => &["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"],
        _ => &[
            "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
            "nan",
        ],
    }
}
