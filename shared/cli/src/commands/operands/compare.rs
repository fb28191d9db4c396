//! The emulator's results beside a GPU's: case by case with a file, by digests with a record.

use std::collections::BTreeMap;
use std::path::Path;

use lab_device::emulator::read_text;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::forms::{Form, Kind, Outcome};
use super::module::operand_of;
use super::pools::{BLOCK, CASES, CLASSES};
use super::results::{Head, Results, canonical, digest_of, digests, read};
use crate::Common;
use crate::failure::Failure;

/// Hexadecimal digits of a class's digest in a record.
const DIGITS: usize = 8;
/// Cases of a form that are printed where it differs.
const SHOWN: usize = 6;

/// What a GPU has computed.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    device: String,
    driver: String,
    commit: String,
    cases: usize,
    /// The digest of all operands.
    operands: String,
    /// Each class of operands, in the order of the digests.
    classes: Vec<String>,
    /// Forms whose bits PTX defines: of each class a digest.
    exact: BTreeMap<String, String>,
    /// Others: how far the emulator is from the GPU.
    approximate: BTreeMap<String, Distance>,
}

/// How far two sides are from each other.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Distance {
    /// Cases that were compared.
    cases: usize,
    /// Of those how many have the same bits.
    same: usize,
    /// Where both are numbers, the largest distance in units of the last place.
    ulps: u64,
    /// Cases in which one side has a NaN and the other has none.
    nan: usize,
}

/// A form in which the sides differ.
struct Differing<'a> {
    form: &'a Form,
    /// Places of the file.
    cases: Vec<usize>,
}

/// Compares with a file; with a commit, writes the record of what is in it.
pub(super) fn with_file(
    file: &Path,
    forms: &[Form],
    operands: &[u8],
    all: &[Results],
    record: Option<(&Path, &str)>,
) -> Result<(), Failure> {
    let (head, theirs) = read(file)?;
    let wrong = |what: String| Failure::Usage(format!("{}: {what}", file.display()));
    if head.operands != digest_of(operands) {
        return Err(wrong("expected results of this program's operands, got others'".into()));
    }
    let mut exact = BTreeMap::new();
    let mut approximate = BTreeMap::new();
    let mut differing = 0;
    for (form, own) in forms.iter().zip(all) {
        let Some(n) = head.forms.iter().position(|kept| kept.name == form.name) else {
            say!("{}: not in the file", form.name);
            continue;
        };
        if form.is_approximate {
            approximate.insert(form.name.clone(), distance(&head, form, own, &theirs[n]));
            continue;
        }
        let digests_there = &head.forms[n].digests;
        exact.insert(form.name.clone(), shortened(digests_there));
        let digests_here = digests(form, own);
        if digests_here == *digests_there {
            continue;
        }
        differing += 1;
        say!("{}: differs for {}", form.name, classes(&digests_here, digests_there, 16));
        let cases = differing_places(&head, form, own, &theirs[n]);
        show(&head, &Differing { form, cases }, operands, own, &theirs[n]);
    }
    for (name, Distance { cases, same, ulps, nan }) in &approximate {
        say!(
            "{name}: {same} of {cases} the same, else at most {ulps} ulps; {nan} NaN on one side only"
        );
    }
    say!(
        "{} forms compared exactly, {differing} differ; {} by distance",
        exact.len(),
        approximate.len()
    );
    let Some((path, commit)) = record else { return Ok(()) };
    let record = Record {
        device: head.device,
        driver: head.driver,
        commit: commit.to_owned(),
        cases: CASES,
        operands: head.operands,
        classes: CLASSES.map(str::to_owned).to_vec(),
        exact,
        approximate,
    };
    let text = serde_json::to_string_pretty(&record).expect("it is a struct of strings") + "\n";
    std::fs::write(path, text).map_err(|e| Failure::file(path, e))
}

/// Compares with a record: exact forms alone, by their digests.
pub(super) fn with_record(
    common: &Common,
    path: &Path,
    forms: &[Form],
    operands: &[u8],
    all: &[Results],
    is_whole: bool,
) -> Result<(), Failure> {
    let text = read_text(path).map_err(|e| Failure::file(path, e))?;
    let record: Record = serde_json::from_str(&text)
        .map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))?;
    if (record.operands.as_str(), record.cases) != (digest_of(operands).as_str(), CASES) {
        let message = "expected a record of this program's operands, got one of others";
        return Err(Failure::Usage(format!("{}: {message}", path.display())));
    }
    let mut wrong = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (form, own) in forms.iter().zip(all) {
        names.push(&form.name);
        let own = shortened(&digests(form, own));
        let in_record = record.exact.get(&form.name);
        match in_record {
            _ if form.is_approximate && record.approximate.contains_key(&form.name) => {}
            None => wrong.push(format!("{}: not in the record", form.name)),
            Some(theirs) if *theirs == own => {}
            Some(theirs) => {
                let concerned = classes(&own, theirs, DIGITS);
                wrong.push(format!("{}: differs for {concerned}", form.name));
            }
        }
    }
    let recorded = record.exact.keys().chain(record.approximate.keys());
    let gone = recorded.filter(|name| is_whole && !names.contains(&name.as_str()));
    wrong.extend(gone.map(|name| format!("{name}: in the record alone")));
    let exact = forms.iter().filter(|form| !form.is_approximate).count();
    let device = &record.device;
    if common.json {
        say!(
            "{}",
            json!({ "exact": exact, "approximate": forms.len() - exact, "cases": CASES, "wrong": wrong })
        );
    } else {
        let differing = wrong.len();
        say!("{exact} forms of {CASES} cases against {device}: {differing} differ");
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Wrong(wrong.join("\n"))) }
}

/// Fewer digits of each class.
fn shortened(digests: &str) -> String {
    let each = digests.as_bytes().chunks(16).map(|digest| &digest[..DIGITS.min(digest.len())]);
    String::from_utf8_lossy(&each.collect::<Vec<_>>().concat()).into_owned()
}

/// The classes of operands for which digests differ.
fn classes(one: &str, other: &str, digits: usize) -> String {
    let pairs = one.as_bytes().chunks(digits).zip(other.as_bytes().chunks(digits));
    let named = pairs.zip(CLASSES).filter(|((one, other), _)| one != other);
    named.map(|(_, class)| class).collect::<Vec<_>>().join("; ")
}

/// The case that a place in a file is of.
fn case_of(head: &Head, place: usize) -> usize {
    place / head.kept * BLOCK + place % head.kept
}

/// Places of the file whose bits are others, where NaNs are all the same.
fn differing_places(head: &Head, form: &Form, own: &Results, theirs: &Results) -> Vec<usize> {
    let differs = |place: &usize| {
        let case = case_of(head, *place);
        form.results.iter().enumerate().any(|(n, told)| {
            canonical(*told, own.bits[n][case]) != canonical(*told, theirs.bits[n][*place])
        })
    };
    (0..head.kept * CLASSES.len()).filter(differs).collect()
}

fn show(head: &Head, differing: &Differing<'_>, operands: &[u8], own: &Results, theirs: &Results) {
    let Differing { form, cases } = differing;
    say!("  {} of {} cases", cases.len(), head.kept * CLASSES.len());
    // Some of each class, for these are of one kind.
    let mut shown = Vec::new();
    for class in 0..CLASSES.len() {
        let own_class = cases.iter().filter(|&&place| place / head.kept == class);
        shown.extend(own_class.take(2));
    }
    for &place in shown.into_iter().take(SHOWN) {
        let case = case_of(head, place);
        let hex = |bits: u64, bytes: usize| format!("{bits:0width$x}", width = 2 * bytes);
        let given = form
            .operands
            .iter()
            .map(|&operand| hex(operand_of(operands, operand, case), operand.kind.bytes()));
        let results = |bits: &dyn Fn(usize) -> u64| {
            let each = form.results.iter().enumerate().map(|(n, told)| hex(bits(n), told.bytes()));
            each.collect::<Vec<_>>().join(" ")
        };
        let given = given.collect::<Vec<_>>().join(" ");
        let (here, there) = (results(&|n| own.bits[n][case]), results(&|n| theirs.bits[n][place]));
        say!("  {given}: emulator {here}, GPU {there}");
    }
}

fn distance(head: &Head, form: &Form, own: &Results, theirs: &Results) -> Distance {
    let mut all = Distance { cases: head.kept * CLASSES.len(), ..Distance::default() };
    for place in 0..all.cases {
        let case = case_of(head, place);
        let mut is_same = true;
        for (n, told) in form.results.iter().enumerate() {
            let [here, there] =
                [own.bits[n][case], theirs.bits[n][place]].map(|bits| canonical(*told, bits));
            is_same &= here == there;
            for (here, there) in parts(*told, here).into_iter().zip(parts(*told, there)) {
                match (here, there) {
                    (Some(here), Some(there)) => all.ulps = all.ulps.max(here.abs_diff(there)),
                    (None, None) => {}
                    _ => all.nan += 1,
                }
            }
        }
        all.same += usize::from(is_same);
    }
    all
}

/// Numbers by their order: neighbours differ by 1; none of a NaN.
fn parts(told: Outcome, bits: u64) -> Vec<Option<i64>> {
    let ordered = |bits: u64, infinity: u64, sign: u64| {
        let magnitude = (bits & (sign - 1)) as i64;
        let value = if bits & sign == 0 { magnitude } else { -magnitude };
        (bits & (sign - 1) <= infinity).then_some(value)
    };
    match told.kind {
        Kind::F16 => vec![ordered(bits, 0x7c00, 0x8000)],
        Kind::Bf16 => vec![ordered(bits, 0x7f80, 0x8000)],
        Kind::F64 => vec![ordered(bits, 0x7ff0_0000_0000_0000, 1 << 63)],
        Kind::F16x2 => {
            [bits & 0xffff, bits >> 16].map(|bits| ordered(bits, 0x7c00, 0x8000)).to_vec()
        }
        Kind::Bf16x2 => {
            [bits & 0xffff, bits >> 16].map(|bits| ordered(bits, 0x7f80, 0x8000)).to_vec()
        }
        _ => vec![ordered(bits, 0x7f80_0000, 1 << 31)],
    }
}
