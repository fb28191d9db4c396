//! Accesses before the start of a local variable.
//!
//! `-fsanitize=object-size` knows how much of an object lies behind a pointer, and looks at accesses behind its end alone: an
//! offset may be negative where the pointer is to the middle of the object. In g++'s assembly, of x86, that is a jump past
//! the call of the handler, in code that seldom runs:
//!
//! ```text
//! addq %rbx, %rax         # pointer + offset
//! jc .L6                  # has wrapped: the offset is negative
//! …
//! call __ubsan_handle_type_mismatch_v1
//! jmp .L6
//! ```
//!
//! The jump goes to a call of the same handler now, with a type whose name is one that no type has. The emulator then looks
//! where the function has its variables.

use std::fmt::Write as _;

const HANDLER: &str = "__ubsan_handle_type_mismatch_v1";
/// What the handler is told in place of a type: the emulator knows it.
const BEFORE: &str = "\\001";

/// The assembly, with these jumps turned.
pub(crate) fn watch_starts(assembly: &str) -> String {
    let lines: Vec<&str> = assembly.lines().collect();
    let mut watched = String::with_capacity(assembly.len());
    let (mut at, mut count) = (0, 0usize);
    while at < lines.len() {
        match skipped_call(&lines, at) {
            Some(skipped) => {
                let label = format!(".Lemu_before_{count}");
                let behind = skipped.end;
                let _ = writeln!(watched, "\tjc\t{label}");
                for line in &lines[at + 1..behind] {
                    let _ = writeln!(watched, "{line}");
                }
                let _ = writeln!(watched, "{label}:");
                for line in skipped.arguments {
                    let _ = writeln!(watched, "{line}");
                }
                let _ = writeln!(
                    watched,
                    "\tleaq\t.Lemu_before(%rip), %rdi\n\tcall\t{HANDLER}@PLT\n\tjmp\t{}",
                    skipped.target
                );
                (at, count) = (behind, count + 1);
            }
            None => {
                let _ = writeln!(watched, "{}", lines[at]);
                at += 1;
            }
        }
    }
    if count > 0 {
        // As glue.cpp's `Mismatch` and `BoundsType` have it.
        let _ = write!(
            watched,
            "\t.section\t.data.rel.ro.local,\"aw\"\n\t.align 8\n.Lemu_before_type:\n\t.value\t0\n\t.value\t0\n\
             \t.string\t\"{BEFORE}\"\n\t.align 8\n.Lemu_before:\n\t.quad\t0\n\t.long\t0\n\t.long\t0\n\
             \t.quad\t.Lemu_before_type\n\t.byte\t0\n\t.byte\t0\n\t.zero\t6\n\t.text\n"
        );
    }
    watched
}

/// A call of the handler that a jump skips.
struct Skipped<'a> {
    /// The lines that set its arguments, but for the first.
    arguments: Vec<&'a str>,
    /// Where the jump goes.
    target: &'a str,
    /// The line behind the last of it.
    end: usize,
}

/// The call that the jump in this line skips, if it is such a one.
fn skipped_call<'a>(lines: &[&'a str], at: usize) -> Option<Skipped<'a>> {
    let target = lines[at].trim().strip_prefix("jc\t")?;
    let before = lines[..at].iter().rev().map(|line| line.trim()).find(|line| is_code(line))?;
    let (operation, operands) = before.split_once('\t')?;
    let is_sum = operation == "addq" && operands.split(", ").all(|o| o.starts_with('%'));
    let mut arguments = Vec::new();
    let mut rest = (at + 1..lines.len().min(at + 24)).filter(|&n| is_code(lines[n].trim()));
    loop {
        let line = lines[rest.next()?];
        let (operation, operands) = line.trim().split_once('\t')?;
        match operation {
            "movq" | "movl" | "leaq" if operands.ends_with(", %rdi") => {}
            "movq" | "movl" | "leaq" => arguments.push(line),
            "call" if operands.split('@').next() == Some(HANDLER) => break,
            _ => return None,
        }
    }
    let last = rest.next()?;
    let goes_on = lines[last].trim().strip_prefix("jmp\t") == Some(target);
    (is_sum && goes_on).then_some(Skipped { arguments, target, end: last + 1 })
}

/// Whether a line is an instruction, or a label that code may jump to.
fn is_code(line: &str) -> bool {
    let is_of_debugging = [".LVL", ".LBB", ".LBE", ".LBI", ".LFB", ".LFE", ".LM"];
    match line.strip_suffix(':') {
        Some(label) => !is_of_debugging.iter().any(|start| label.starts_with(start)),
        None => !line.is_empty() && !line.starts_with(['.', '#']),
    }
}

#[cfg(test)]
mod tests {
    use super::watch_starts;

    const COLD: &str = "\
.L18:
\t.loc 1 13 17
\taddq\t%rbx, %rdi
.LVL7:
\tjc\t.L15
\tmovq\t%rbx, %rsi
\tleaq\t.Lubsan_data3(%rip), %rdi
\tcall\t__ubsan_handle_type_mismatch_v1@PLT
.LVL8:
\tjmp\t.L15
";

    #[test]
    fn the_jump_past_a_call_goes_to_another() {
        let watched = watch_starts(COLD);
        assert!(
            watched.contains("\tjc\t.Lemu_before_0\n\tmovq\t%rbx, %rsi\n\tleaq\t.Lubsan_data3"),
            "{watched}"
        );
        let own = ".Lemu_before_0:\n\tmovq\t%rbx, %rsi\n\tleaq\t.Lemu_before(%rip), %rdi\n\tcall\t__ubsan_handle_type_mismatch_v1@PLT\n\tjmp\t.L15\n";
        assert!(watched.contains(&format!("\tjmp\t.L15\n{own}")), "{watched}");
        assert!(watched.contains("\t.quad\t.Lemu_before_type\n"), "{watched}");
    }

    #[test]
    fn other_code_stays() {
        for (from, to) in [
            ("\taddq\t%rbx, %rdi", "\taddq\t$8, %rdi"),
            ("\tjc\t.L15", "\tje\t.L15"),
            ("\tjmp\t.L15", "\tjmp\t.L16"),
            ("\tmovq\t%rbx, %rsi", "\tmovq\t%rbx, %rsi\n.L20:"),
            ("type_mismatch_v1", "out_of_bounds"),
        ] {
            let other = COLD.replace(from, to);
            assert_eq!(watch_starts(&other), other, "{to}");
        }
    }
}
