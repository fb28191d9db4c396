//! `cvt`: numbers of one type as those of another. PTX ISA, "Data Movement and Conversion Instructions: cvt".

use crate::numbers::{HALVES, half_format};
use crate::text::{Call, of_type};

/// What `cvt` says between its name and its types.
#[derive(Clone, Copy, Debug, Default)]
struct How<'a> {
    /// `rn`, `rz` … of a real number; `rni` … of a whole one.
    way: Option<&'a str>,
    saturates: bool,
    rectifies: bool,
}

impl Call<'_> {
    pub(crate) fn converted(&self) -> Option<String> {
        let [.., to, from] = self.words else { return None };
        let mut how = How::default();
        for word in self.words.get(1..self.words.len() - 2)? {
            match *word {
                "ftz" => {}
                "sat" | "satfinite" => how.saturates = true,
                "relu" => how.rectifies = true,
                way if how.way.is_none() => how.way = Some(way),
                _ => return None,
            }
        }
        if let Some(pair) = self.converted_pair(to, from, how) {
            return self.write(0, &pair?);
        }
        (self.operands.len() == 2).then_some(())?;
        let (to_type, from_type) = (of_type(to)?, of_type(from)?);
        // A half is made of a subnormal f32 as it is, whatever `.ftz` says.
        let raw = match *to {
            "f16" | "bf16" => self.read_as_it_is(1, from_type.cpp)?,
            _ => self.read(1, from_type.cpp)?,
        };
        // As a number of C++.
        let (value, value_type) = match (half_format(from), *from) {
            (Some(format), "f16" | "bf16") => {
                (format!("::emu::ptx::{format}::widen({raw})"), "float")
            }
            (Some(_), _) | (None, "tf32") => return None,
            (None, _) => (raw, from_type.cpp),
        };
        let is_real = ["float", "double"].contains(&value_type);
        let finished = |done: String, name: &str| {
            let done = if how.saturates && name != "as it is" {
                format!("::emu::ptx::saturated<{name}>({done})")
            } else {
                done
            };
            if how.rectifies { format!("::emu::ptx::rectified<{name}>({done})") } else { done }
        };
        let done = match (*to, how.way) {
            ("tf32", Some("rna")) if *from == "f32" => {
                format!("::emu::to_tf32({})", self.read(1, "uint32_t")?)
            }
            ("tf32", Some("rn")) if *from == "f32" => {
                format!("::emu::ptx::tf32_even({})", self.read(1, "uint32_t")?)
            }
            ("f16" | "bf16", way) => {
                let format = half_format(to)?;
                // Rounded once: by way of f64, and of f32 rounded to odd.
                let exact = match value_type {
                    "float" => value,
                    _ => format!("::emu::f64_to_f32_odd(::emu::ptx::odd_f64({value}))"),
                };
                let whole = whole_way(way);
                let exact = match whole {
                    Some(round) if is_real => format!("std::{round}({exact})"),
                    Some(_) => return None,
                    None => exact,
                };
                let exact = finished(exact, "float");
                match way {
                    Some("rn") | None => format!("::emu::ptx::{format}::narrow({exact})"),
                    Some("rz") => format!("::emu::ptx::directed<::emu::ptx::{format}>({exact}, 0)"),
                    Some("rm") => {
                        format!("::emu::ptx::directed<::emu::ptx::{format}>({exact}, -1)")
                    }
                    Some("rp") => format!("::emu::ptx::directed<::emu::ptx::{format}>({exact}, 1)"),
                    Some(_) => format!("::emu::ptx::{format}::narrow({exact})"),
                }
            }
            ("f32" | "f64", way) => {
                let cpp = to_type.cpp;
                let done = match (way, whole_way(way)) {
                    (_, Some(round)) if is_real => format!("{cpp}(std::{round}({value}))"),
                    (Some("rn") | None, _) => format!("{cpp}({value})"),
                    (Some(way), _) => {
                        let mode = match way {
                            "rz" => "FE_TOWARDZERO",
                            "rm" => "FE_DOWNWARD",
                            "rp" => "FE_UPWARD",
                            _ => return None,
                        };
                        format!(
                            "::emu::rounded({mode}, []({value_type} v) {{ return {cpp}(v); }}, {value})"
                        )
                    }
                };
                finished(done, cpp)
            }
            _ if HALVES.contains(to) || how.rectifies => return None,
            // To whole numbers.
            (_, way) if is_real => {
                let round = whole_way(way)?;
                format!("::emu::to_integer<{}>(std::{round}({value}))", to_type.cpp)
            }
            (_, None) if how.saturates => {
                format!("::emu::ptx::clamped<{}>({value})", to_type.cpp)
            }
            // What does not fit loses its upper bits.
            (_, None) => format!("{}({value})", to_type.cpp),
            _ => return None,
        };
        self.write_real(0, &done, to_type.cpp)
    }

    /// Two numbers in one register; the first operand is the upper one. The outer `None`: no such pair.
    fn converted_pair(&self, to: &str, from: &str, how: How<'_>) -> Option<Option<String>> {
        let small = |name: &str| match name {
            "e4m3x2" => Some("4, 3"),
            "e5m2x2" => Some("5, 2"),
            _ => None,
        };
        let rectified = |value: String| {
            if how.rectifies { format!("::emu::ptx::rectified({value})") } else { value }
        };
        let two = || {
            let [high, low] = [self.read(1, "float")?, self.read(2, "float")?];
            (self.operands.len() == 3).then(|| format!("{}, {}", rectified(high), rectified(low)))
        };
        match (to, from) {
            ("f16x2" | "bf16x2", "f32") if how.way == Some("rn") && !how.saturates => {
                Some(two().map(|two| format!("::emu::ptx::two_{to}({two})")))
            }
            (_, "f32") if small(to).is_some() => {
                let of = small(to).unwrap_or_default();
                Some(two().map(|two| format!("::emu::ptx::two_fp8<{of}>({two})")))
            }
            (_, "f16x2") if small(to).is_some() => {
                let of = small(to).unwrap_or_default();
                let value = self.read(1, "uint32_t");
                let half = |value: &str, n: usize| {
                    let half = format!("::emu::ptx::F16::widen(::emu::ptx::half_of({value}, {n}))");
                    rectified(half)
                };
                Some(value.map(|v| {
                    format!("::emu::ptx::two_fp8<{of}>({}, {})", half(&v, 1), half(&v, 0))
                }))
            }
            ("f16x2", _) if small(from).is_some() && !how.rectifies => {
                let of = small(from).unwrap_or_default();
                let value = self.read(1, "uint16_t");
                Some(value.map(|value| format!("::emu::ptx::from_two_fp8<{of}>({value})")))
            }
            _ => None,
        }
    }
}

/// The function that rounds to a whole number.
fn whole_way(way: Option<&str>) -> Option<&'static str> {
    match way? {
        "rni" => Some("rint"),
        "rzi" => Some("trunc"),
        "rmi" => Some("floor"),
        "rpi" => Some("ceil"),
        _ => None,
    }
}
