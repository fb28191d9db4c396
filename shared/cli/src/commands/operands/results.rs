//! What a device has computed: all results of all forms, in a file.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::forms::{Form, Kind, Outcome};
use super::module::places_of_results;
use super::pools::{BLOCK, CASES, CLASSES};
use crate::failure::Failure;

/// What the first line of a file says.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Head {
    pub(super) device: String,
    pub(super) driver: String,
    /// That of all operands.
    pub(super) operands: String,
    /// Of each block so many cases are in the file.
    pub(super) kept: usize,
    /// Each form, in the order of the results behind the line.
    pub(super) forms: Vec<Kept>,
}

/// A form of a file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Kept {
    pub(super) name: String,
    /// Bytes of each of its results.
    pub(super) bytes: Vec<usize>,
    /// A digest of each class of operands, one behind the other.
    pub(super) digests: String,
}

/// Results of one form: of each case all that it gives.
#[derive(Clone, Debug)]
pub(super) struct Results {
    /// For each result the bits, case by case.
    pub(super) bits: Vec<Vec<u64>>,
}

/// Of all forms, from what the kernels have written.
pub(super) fn split(forms: &[Form], bytes: &[u8]) -> Vec<Results> {
    let places = places_of_results(forms);
    let read = |(form, &place): (&Form, &usize)| {
        let mut at = place;
        let bits = form.results.iter().map(|result| {
            let size = result.bytes();
            let from = &bytes[at..at + size * CASES];
            at += size * CASES;
            from.chunks_exact(size).map(bits_of).collect()
        });
        Results { bits: bits.collect() }
    };
    forms.iter().zip(&places).map(read).collect()
}

fn bits_of(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// A NaN as every NaN: PTX leaves open which one arithmetic gives.
pub(super) fn canonical(result: Outcome, bits: u64) -> u64 {
    let real = |bits: u64, infinity: u64, sign: u64| {
        if bits & !sign > infinity { sign | (sign - 1) } else { bits }
    };
    match result.kind {
        Kind::F16 => real(bits, 0x7c00, 0x8000),
        Kind::Bf16 => real(bits, 0x7f80, 0x8000),
        Kind::F32 => real(bits, 0x7f80_0000, 1 << 31),
        Kind::F64 => real(bits, 0x7ff0_0000_0000_0000, 1 << 63),
        Kind::F16x2 | Kind::Bf16x2 => {
            let infinity = if result.kind == Kind::F16x2 { 0x7c00 } else { 0x7f80 };
            real(bits & 0xffff, infinity, 0x8000) | real(bits >> 16, infinity, 0x8000) << 16
        }
        _ => bits,
    }
}

/// A digest of each class of operands: 16 hexadecimal digits each, one behind the other.
pub(super) fn digests(form: &Form, results: &Results) -> String {
    let mut text = String::new();
    for block in 0..CLASSES.len() {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for (told, bits) in form.results.iter().zip(&results.bits) {
            for &bits in &bits[block * BLOCK..(block + 1) * BLOCK] {
                digest = (digest ^ canonical(*told, bits)).wrapping_mul(0x0000_0100_0000_01b3);
                digest ^= digest >> 29;
            }
        }
        write!(text, "{digest:016x}").expect("writing to a string");
    }
    text
}

/// A digest of bytes.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    let step =
        |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, step))
}

/// Writes a file: the head in a line, and the results byte by byte, which packs best.
pub(super) fn write(
    path: &Path,
    head: &Head,
    forms: &[Form],
    all: &[Results],
) -> Result<(), Failure> {
    let mut bytes = serde_json::to_vec(head).expect("it is a struct of strings");
    bytes.push(b'\n');
    for (form, results) in forms.iter().zip(all) {
        for (told, bits) in form.results.iter().zip(&results.bits) {
            for byte in 0..told.bytes() {
                for block in bits.chunks(BLOCK) {
                    bytes.extend(block[..head.kept].iter().map(|bits| bits.to_le_bytes()[byte]));
                }
            }
        }
    }
    std::fs::write(path, bytes).map_err(|e| Failure::file(path, e))
}

/// Reads such a file: of each form, the results of the cases that it has.
pub(super) fn read(path: &Path) -> Result<(Head, Vec<Results>), Failure> {
    let bytes = std::fs::read(path).map_err(|e| Failure::file(path, e))?;
    let wrong = |what: &str| Failure::Usage(format!("{}: {what}", path.display()));
    let end =
        bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| wrong("expected a head"))?;
    let head: Head =
        serde_json::from_slice(&bytes[..end]).map_err(|e| wrong(&format!("its head: {e}")))?;
    let mut rest = &bytes[end + 1..];
    let cases = head.kept * CLASSES.len();
    let mut all = Vec::new();
    for form in &head.forms {
        let mut bits = Vec::new();
        for &size in &form.bytes {
            let (own, behind) = rest
                .split_at_checked(size * cases)
                .ok_or_else(|| wrong("it ends before its results do"))?;
            rest = behind;
            let one = |case: usize| {
                (0..size).fold(0u64, |bits, byte| {
                    bits | u64::from(own[byte * cases + case]) << (8 * byte)
                })
            };
            bits.push((0..cases).map(one).collect());
        }
        all.push(Results { bits });
    }
    Ok((head, all))
}
