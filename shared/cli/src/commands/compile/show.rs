//! Listings: instructions beside the source, or in their own order.

use serde_json::{Value, json};

use super::listing::{self, Control, Instruction, Kernel};

/// What the columns of machine code in its own order mean.
pub(super) const LEGEND: &str = "\
stall: so many cycles pass before the warp's next instruction may begin.
sets, waits: what takes longer sets one of the warp's six barriers, and an instruction that needs it waits for that one.
  wN is set until the result is there, rN until the operands are read.";

pub(super) fn instruction_json(instruction: &Instruction) -> Value {
    let Instruction { line, labels, text, address, control } = instruction;
    let mut object = json!({ "line": line, "labels": labels, "text": text });
    if let Some(address) = address {
        object["address"] = json!(address);
    }
    if let Some(control) = control {
        object["stall"] = json!(control.stall);
        object["sets"] = json!({ "write": control.write, "read": control.read });
        object["waits"] = json!(control.waits());
    }
    object
}

/// Each line of the source that has instructions, and these below it: `most` of them, and what others there are, in so many
/// columns.
pub(super) fn beside_source(
    source: &str,
    kernel: &Kernel,
    most: usize,
    width: Option<usize>,
) -> Vec<String> {
    let mut shown = Vec::new();
    let lines: Vec<&str> = source.lines().collect();
    for (line, instructions) in kernel.by_line() {
        shown.push(match lines.get(line.wrapping_sub(1)) {
            Some(code) => format!("{line:5}  {code}"),
            None => "       (of no line of this file)".to_owned(),
        });
        // What a branch goes to is shown in any case.
        let mut rest = Vec::new();
        for (n, instruction) in instructions.iter().enumerate() {
            if n >= most && instruction.labels.is_empty() {
                rest.push(instruction.opcode());
                continue;
            }
            shown.extend(instruction.labels.iter().map(|label| format!("           | {label}:")));
            shown.push(format!("           | {}", instruction.text));
        }
        if !rest.is_empty() {
            shown.push(count_other_instructions(&rest, width.unwrap_or(usize::MAX)));
        }
    }
    shown
}

/// How many other instructions there are, and of which kinds most, as many kinds as fit.
fn count_other_instructions(rest: &[&str], width: usize) -> String {
    let line = |kinds: usize| {
        let named = match listing::most_frequent(rest.iter().copied(), kinds) {
            named if named.is_empty() => named,
            named => format!(": {named}"),
        };
        format!("           | … and {} more{named} (--wide shows all)", rest.len())
    };
    let fits = |line: &String| line.chars().count() <= width;
    (1..=3).rev().map(line).find(fits).unwrap_or_else(|| line(0))
}

/// The instructions as they stand in the kernel.
pub(super) fn in_order(kernel: &Kernel) -> Vec<String> {
    let is_machine_code = kernel.instructions.iter().any(|i| i.address.is_some());
    let mut shown = vec![if is_machine_code {
        "address  stall  sets   waits    line  instruction".to_owned()
    } else {
        " line  instruction".to_owned()
    }];
    for instruction in &kernel.instructions {
        shown.extend(instruction.labels.iter().map(|label| format!("{label}:")));
        let line = instruction.line.map_or("-".to_owned(), |line| line.to_string());
        let text = &instruction.text;
        shown.push(if is_machine_code {
            let address = instruction.address.map(|a| format!("{a:04x}")).unwrap_or_default();
            format!("{address:>7}  {}  {line:>5}  {text}", control_columns(instruction.control))
        } else {
            format!("{line:>5}  {text}")
        });
    }
    shown
}

fn control_columns(control: Option<Control>) -> String {
    let Some(control) = control else { return " ".repeat(19) };
    let sets = [("w", control.write), ("r", control.read)];
    let sets = sets.iter().filter_map(|(kind, barrier)| Some(format!("{kind}{}", (*barrier)?)));
    let sets = sets.collect::<Vec<_>>().join(" ");
    let waits = control.waits().iter().map(u8::to_string).collect::<Vec<_>>().join("");
    format!("{:>5}  {sets:5}  {waits:6}", control.stall)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(line: usize, text: &str, high: u64) -> Instruction {
        let (text, control) = (text.to_owned(), Some(Control::decode(high)));
        Instruction { line: Some(line), labels: Vec::new(), text, address: Some(16), control }
    }

    /// Instructions of sm_90a, as the assembler encodes them.
    #[test]
    fn the_assemblers_words_to_the_scheduler_are_read() {
        let words = |high| {
            let control = Control::decode(high);
            (control.stall, control.write, control.read, control.waits())
        };
        // LDC R22, c[0x0][0x230]
        assert_eq!(words(0x000e_6200_0000_0800), (1, Some(1), None, vec![]));
        // ISETP.GE.AND P1, PT, R22, 0x1, PT
        assert_eq!(words(0x002f_c400_03f2_6270), (2, None, None, vec![1]));
        // S2R R0, SR_CTAID.X, and then SHF.L.U32 R0, R0, 0x5, RZ
        assert_eq!(words(0x000e_2e00_0000_2500), (7, Some(0), None, vec![]));
        assert_eq!(words(0x001f_e400_0000_06ff), (2, None, None, vec![0]));
        assert_eq!(words(u64::MAX), (15, None, None, vec![0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn columns_stand_below_their_headings() {
        let mut kernel = Kernel { symbol: "f".into(), instructions: Vec::new() };
        kernel.instructions.push(instruction(7, "LDC R1, c[0x0][0x28]", 0x000e_6200_0000_0800));
        kernel.instructions[0].labels.push(".L_x_0".into());
        kernel.instructions.push(instruction(12345, "EXIT", 0x002f_c400_03f2_6270));
        assert_eq!(
            in_order(&kernel),
            [
                "address  stall  sets   waits    line  instruction",
                ".L_x_0:",
                "   0010      1  w1                 7  LDC R1, c[0x0][0x28]",
                "   0010      2         1       12345  EXIT",
            ]
        );
        kernel.instructions.iter_mut().for_each(|i| (i.address, i.control) = (None, None));
        assert_eq!(in_order(&kernel)[2], "    7  LDC R1, c[0x0][0x28]");
    }

    #[test]
    fn what_is_left_out_fits() {
        let rest = ["LDG.E.CONSTANT", "IMAD.WIDE.U32", "IMAD.WIDE.U32", "SYNCS.ARRIVE.TRANS64"];
        for (width, named) in [(110, 3), (80, 2), (64, 1), (20, 0)] {
            let line = count_other_instructions(&rest, width);
            assert!(line.chars().count() <= width || width == 20, "{line}");
            assert_eq!(["2 I", "1 L", "1 S"].iter().filter(|n| line.contains(**n)).count(), named);
            assert!(
                line.contains("… and 4 more") && line.ends_with("(--wide shows all)"),
                "{line}"
            );
        }
    }
}
