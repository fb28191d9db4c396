//! PTX by the source lines that it comes from.

use std::collections::HashMap;

use super::listing::{Instruction, Kernel};

/// A place as `.loc` has it: file, line, column.
type Place = (u32, usize, usize);

/// The kernels of a PTX text whose source is `file`.
pub(super) fn kernels(text: &str, file: &str) -> Vec<Kernel> {
    let own = own_files(text, file);
    // Where a place of a header was called from, in the own file.
    let mut called: HashMap<Place, Option<usize>> = HashMap::new();
    let mut all: Vec<Kernel> = Vec::new();
    let (mut inside, mut line, mut statement) = (false, None, String::new());
    let (mut inline, mut labels) = (false, Vec::new());
    for raw in text.lines() {
        // Inline assembly may have braces in the first column.
        match raw.trim() {
            "// begin inline asm" => inline = true,
            "// end inline asm" => inline = false,
            _ => {}
        }
        let code = raw.split("//").next().unwrap_or("").trim();
        if let Some(rest) = code.split(".entry ").nth(1).filter(|_| !inside) {
            let symbol = rest.split('(').next().unwrap_or("").trim().to_owned();
            all.push(Kernel { symbol, instructions: Vec::new() });
            continue;
        }
        // A kernel, or a function that was not inlined, begins and ends with a brace in the first column.
        match raw.trim_end() {
            "{" if !inline => {
                inside = true;
                (line, statement) = (None, String::new());
                labels.clear();
                continue;
            }
            "}" if !inline => {
                inside = false;
                continue;
            }
            _ if !inside => {
                // What a function holds that is no kernel's belongs to none.
                if code.starts_with(".func") || code.contains(" .func ") {
                    all.push(Kernel { symbol: String::new(), instructions: Vec::new() });
                }
                continue;
            }
            _ => {}
        }
        if let Some(place) = code.strip_prefix(".loc") {
            line = own_line(place, &own, &mut called);
            continue;
        }
        statement.push_str(code);
        statement.push(' ');
        while let Some(end) = statement.find(';') {
            let one = statement[..end].to_owned();
            statement = statement[end + 1..].to_owned();
            let bare = |text: &str| text.trim_start_matches(['{', '}', ' ']).trim().to_owned();
            // Labels stand before what they name.
            let one = match one.rsplit_once(": ") {
                Some((before, after)) => {
                    labels.extend(before.split(": ").map(bare));
                    bare(after)
                }
                None => bare(&one),
            };
            if !one.is_empty()
                && !one.starts_with('.')
                && let Some(kernel) = all.last_mut()
            {
                let text = one.split_whitespace().collect::<Vec<_>>().join(" ");
                let labels = std::mem::take(&mut labels);
                kernel.instructions.push(Instruction {
                    line,
                    labels,
                    text,
                    address: None,
                    control: None,
                });
            }
        }
    }
    all.retain(|k| !k.symbol.is_empty());
    all
}

/// The numbers that the kernel's own file has.
fn own_files(text: &str, file: &str) -> Vec<u32> {
    let numbered = |line: &str| {
        let rest = line.trim().strip_prefix(".file")?;
        let name = rest.split('"').nth(1)?;
        let number = rest.split_whitespace().next()?.parse().ok()?;
        (name == file || name.ends_with(&format!("/{file}"))).then_some(number)
    };
    text.lines().filter_map(numbered).collect()
}

/// The line of the own file that a `.loc` is of: `1 52 5`, or `2 30 9, function_name L, inlined_at 1 54 33`.
fn own_line(place: &str, own: &[u32], called: &mut HashMap<Place, Option<usize>>) -> Option<usize> {
    let numbers = |text: &str| -> Option<Place> {
        let mut all = text.split([' ', '\t', ',']).filter(|w| !w.is_empty());
        let file = all.next()?.parse().ok()?;
        Some((file, all.next()?.parse().ok()?, all.next()?.parse().ok()?))
    };
    let here = numbers(place)?;
    let line = match place.split_once("inlined_at").and_then(|(_, at)| numbers(at)) {
        _ if own.contains(&here.0) => Some(here.1),
        Some(at) if own.contains(&at.0) => Some(at.1),
        Some(at) => called.get(&at).copied().flatten(),
        None => None,
    };
    // Line 0 is the compiler's own.
    let line = line.filter(|line| *line > 0);
    called.insert(here, line);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
.version 8.8
.target sm_90a
.func helper()
{
	add.s32 %r1, %r2, %r3;
	ret;
}
	// .globl	_Z1fPf
.visible .entry _Z1fPf(
	.param .u64 .ptr .align 1 _Z1fPf_param_0
)
.maxntid 128
{
	.reg .pred 	%p<2>;
	.loc	1 3 0
	ld.param.u64 	%rd1, [_Z1fPf_param_0];
	.loc	1 4 5
	setp.lt.s32 	%p1, %r1, 8;
	@%p1 bra 	$L__BB0_2;
$L__BB0_1:
	.loc	2 30 9, function_name $L__info_string0, inlined_at 1 5 12
	ld.global.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd2];
	.loc	2 40 3, function_name $L__info_string1, inlined_at 2 30 9
	// begin inline asm
	{ .reg .b32 t; mov.b32 t, %r4;
	mma.sync.aligned.m16n8k8
	    {%f5, %f6}, {%r5};
}
	// end inline asm
$L__BB0_2:
	.loc	2 90 1
	ret;

}
	.file	1 \"/here/stages/s/kernels/a.cu\"
	.file	2 \"/here/lab/tile.cuh\"
";

    #[test]
    fn each_instruction_has_the_line_of_the_kernels_own_file() {
        let kernels = kernels(TEXT, "stages/s/kernels/a.cu");
        assert_eq!(kernels.len(), 1, "a function is no kernel: {kernels:?}");
        assert_eq!(kernels[0].symbol, "_Z1fPf");
        let all: Vec<(Option<usize>, &str)> =
            kernels[0].instructions.iter().map(|i| (i.line, i.opcode())).collect();
        let expected = [
            (Some(3), "ld.param.u64"),
            (Some(4), "setp.lt.s32"),
            (Some(4), "bra"),
            (Some(5), "ld.global.v4.f32"),
            (Some(5), "mov.b32"),
            (Some(5), "mma.sync.aligned.m16n8k8"),
            (None, "ret"),
        ];
        assert_eq!(all, expected);
        assert_eq!(
            kernels[0].instructions[3].text,
            "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2]"
        );
        let labels: Vec<&[String]> =
            kernels[0].instructions.iter().map(|i| &i.labels[..]).collect();
        assert_eq!(
            (labels[3], labels[6]),
            (&["$L__BB0_1".to_owned()][..], &["$L__BB0_2".to_owned()][..])
        );
        assert_eq!(labels.iter().map(|l| l.len()).sum::<usize>(), 2);
    }

    #[test]
    fn of_another_file_no_line_is_known() {
        let lines = kernels(TEXT, "stages/s/kernels/b.cu");
        assert!(lines[0].instructions.iter().all(|i| i.line.is_none()), "{lines:?}");
        assert_eq!(lines[0].opcodes()["bra"], 1);
    }
}
