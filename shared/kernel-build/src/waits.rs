//! Loops that wait: which volatile reads do nothing else.
//!
//! `while (*flag == 0) {}` is told from any other read by its loop, which no run shows where nobody has to wait. So
//! it is looked for in g++'s assembly, of x86. Elsewhere none is found.

use std::collections::{HashMap, HashSet};

/// What a loop that only waits may call.
const HARMLESS: [&str; 4] =
    ["emu_yield_point", "emu_fence", "__tsan_atomic_thread_fence", OF_THREAD];
/// Where the thread-local variables lie, as which shared memory is compiled: the same place each time.
const OF_THREAD: &str = "__tls_get_addr";
const READ: &str = "__tsan_volatile_read";
/// What such a read calls in its place.
const AWAITED: &str = "emu_awaited_read";

/// The assembly, with each volatile read that a loop waits by told apart: a read of one address, in a loop that writes
/// nothing and reads nothing else but such. g++ may make another of it before the loop, which has the same place.
pub(crate) fn mark_waits(assembly: &str) -> String {
    let lines: Vec<&str> = assembly.lines().collect();
    let mut awaited = HashSet::new();
    let mut start = 0;
    for (end, line) in lines.iter().enumerate() {
        match line.trim() {
            ".cfi_startproc" => start = end,
            ".cfi_endproc" => {
                awaited.extend(spin_reads_in(&lines[start..end]).into_iter().map(|at| start + at));
            }
            _ => {}
        }
    }
    let mut marked = String::with_capacity(assembly.len());
    for (at, line) in lines.iter().enumerate() {
        if awaited.contains(&at) {
            marked += &line.replace(READ, AWAITED)
        } else {
            marked += line
        }
        marked.push('\n');
    }
    marked
}

/// Of a function's lines the calls of awaited reads.
fn spin_reads_in(lines: &[&str]) -> Vec<usize> {
    let mut reads: Vec<usize> = (0..lines.len()).filter(|&at| is_read(lines[at])).collect();
    let loops = if reads.is_empty() { Vec::new() } else { loops(lines) };
    let waits = |&&at: &&usize| {
        // The innermost.
        let around = loops.iter().filter(|(top, end)| (top..end).contains(&&at));
        around.min_by_key(|(top, end)| end - top).is_some_and(|&(top, end)| {
            let region = &lines[top..=end];
            // The address is the call's first argument.
            only_waits(region) && is_fixed(region, at - top, "di")
        })
    };
    let waiting = reads.iter().filter(waits).filter_map(|&at| place(lines, at));
    let places: HashSet<[&str; 3]> = waiting.collect();
    reads.retain(|&at| place(lines, at).is_some_and(|place| places.contains(&place)));
    reads
}

/// From the label that a jump goes back to up to the jump.
fn loops(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut labels = HashMap::new();
    let mut all = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, at);
        } else if let Some((mnemonic, target)) = instruction(line)
            && mnemonic.starts_with('j')
            && let Some(&top) = labels.get(target)
        {
            all.push((top, at));
        }
    }
    all
}

/// Mnemonic and operands.
fn instruction(line: &str) -> Option<(&str, &str)> {
    let text = line.strip_prefix('\t').filter(|text| !text.starts_with(['.', '#']))?;
    let (mnemonic, operands) = text.split_once('\t').unwrap_or((text, ""));
    Some((mnemonic, operands.trim()))
}

fn called(line: &str) -> Option<&str> {
    let (mnemonic, target) = instruction(line)?;
    (mnemonic == "call").then(|| target.trim_end_matches("@PLT"))
}

fn is_read(line: &str) -> bool {
    called(line).is_some_and(|function| function.starts_with(READ))
}

/// File, line and column of an instruction.
fn place<'a>(lines: &[&'a str], at: usize) -> Option<[&'a str; 3]> {
    let mut directives = lines[..at].iter().rev().filter_map(|line| line.strip_prefix("\t.loc "));
    let mut words = directives.next()?.split_whitespace();
    Some([words.next()?, words.next()?, words.next()?])
}

fn only_waits(region: &[&str]) -> bool {
    region
        .iter()
        .filter_map(|line| called(line))
        .all(|function| function.starts_with(READ) || HARMLESS.contains(&function))
}

/// Whether a register has the same value each time that the loop comes by `at`.
fn is_fixed(region: &[&str], at: usize, own: &str) -> bool {
    let writes = |line: &str| match called(line) {
        Some(_) => own == "a",
        None => destination(line).is_some_and(|to| to.starts_with('%') && register(to) == own),
    };
    let Some(setting) = (0..at).rev().find(|&i| writes(region[i])) else {
        return !region[at..].iter().any(|line| writes(line));
    };
    if let Some(function) = called(region[setting]) {
        return function == OF_THREAD;
    }
    let moved = instruction(region[setting])
        .filter(|(mnemonic, _)| mnemonic.starts_with("mov") || mnemonic.starts_with("lea"));
    let Some((from, _)) = moved.and_then(|(_, operands)| operands.rsplit_once(',')) else {
        return false;
    };
    // Memory is the stack, where a pointer may be kept: all else is read by a call.
    let is_kept = region.iter().all(|line| destination(line) != Some(from));
    let mut registers = from.split(['(', ')', ',', '$']).filter(|part| part.starts_with('%'));
    is_kept && registers.all(|other| is_fixed(region, setting, register(other)))
}

/// What an instruction writes: its last operand.
fn destination(line: &str) -> Option<&str> {
    let (mnemonic, operands) = instruction(line)?;
    let writes_none = ["call", "cmp", "test", "push", "nop", "ret"];
    if mnemonic.starts_with('j') || writes_none.iter().any(|none| mnemonic.starts_with(none)) {
        return None;
    }
    let mut depth = 0;
    let is_between = |c: char| {
        depth += i32::from(c == ')') - i32::from(c == '(');
        c == ',' && depth == 0
    };
    operands.rsplit(is_between).next().map(str::trim).filter(|operand| !operand.is_empty())
}

/// One name for a register and its parts.
fn register(name: &str) -> &str {
    let name = name.trim_start_matches(['%', '*']);
    if name.starts_with('r') && name[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return name.trim_end_matches(['d', 'w', 'b']);
    }
    let core = name.trim_start_matches(['r', 'e']);
    match core.as_bytes() {
        [b'a'..=b'd', b'x' | b'l' | b'h'] => &core[..1],
        [_, _, b'l'] => &core[..2],
        _ => core,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the reads, by their order, are awaited.
    fn awaited(body: &str) -> Vec<bool> {
        let text = format!("f:\n\t.cfi_startproc\n{body}\t.cfi_endproc\n");
        let marked = mark_waits(&text);
        assert_eq!(marked.replace(AWAITED, READ), text);
        let calls = marked.lines().filter(|line| line.contains("_read4"));
        calls.map(|line| line.contains(AWAITED)).collect()
    }

    #[test]
    fn a_loop_that_only_waits() {
        // while (*flag == 0) nanosleep(20): once before the loop, once in it; then a read of data.
        let text = "\t.loc 2 168 16 is_stmt 0\n\tmovq\t%rbx, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n\
                    \tmovl\t(%rbx), %eax\n\ttestl\t%eax, %eax\n\tjne\t.L33\n\
                    .L32:\n\t.loc 1 128 46\n\tmovl\t$1, %edi\n\tcall\temu_yield_point@PLT\n\
                    \t.loc 2 168 16\n\tmovq\t%rbx, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n\
                    \tmovl\t(%rbx), %eax\n\ttestl\t%eax, %eax\n\tje\t.L32\n\
                    .L33:\n\t.loc 2 170 24\n\tmovq\t%rbp, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n";
        assert_eq!(awaited(text), [true, true, false]);
        let shared = "leaq\tready@tlsld(%rip), %rdi\n\tcall\t__tls_get_addr@PLT\n\tmovq\t%rax, %rbp\n\
                      \tleaq\tready@dtpoff(%rbp), %rdi";
        assert_eq!(awaited(&text.replace("movq\t%rbx, %rdi", shared)), [true, true, false]);
        // Where the pointer is on the stack, or is a variable's.
        for from in ["8(%rsp)", "ready(%rip)", "4(%r12,%r13,8)"] {
            assert_eq!(
                awaited(&text.replace("%rbx, %rdi", &format!("{from}, %rdi"))),
                [true, true, false]
            );
        }
    }

    #[test]
    fn loops_that_do_more() {
        let in_loop = |more: &str| {
            awaited(&format!(
                ".L2:\n\t.loc 2 9 5\n\tleaq\t(%rbx), %rdi\n\tcall\t__tsan_volatile_read4@PLT\n\
                 \taddl\t(%rbx), %eax\n{more}\tjne\t.L2\n"
            ))
        };
        assert_eq!(in_loop("\tcmpl\t%ebx, %eax\n"), [true]);
        for more in [
            "\taddq\t$4, %rbx\n",
            "\tincl\t%ebx\n",
            "\tmovl\t(%rcx,%rdx,4), %ebx\n",
            "\tcall\t__tsan_write4@PLT\n",
            "\tcall\temu_access@PLT\n",
            "\tcall\t_Z4helpv\n",
        ] {
            assert_eq!(in_loop(more), [false], "{more}");
        }
        // A loop of a loop that waits does more, and is not asked.
        let outer = ".L1:\n.L2:\n\t.loc 2 9 5\n\tmovq\t%r13, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n\
                     \tjne\t.L2\n\taddq\t$4, %r13\n\tjne\t.L1\n";
        assert_eq!(awaited(outer), [true]);
        // A pointer that moves on from where it is.
        assert_eq!(
            awaited(
                ".L2:\n\t.loc 2 9 5\n\tleaq\t4(%rbx), %rbx\n\tmovq\t%rbx, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n\tjne\t.L2\n"
            ),
            [false]
        );
        // No loop, no place, another function's label.
        assert_eq!(awaited("\tmovq\t%rbx, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n"), [false]);
        let apart = "\t.cfi_endproc\ng:\n\t.cfi_startproc\n";
        assert_eq!(
            awaited(&format!(
                ".L2:\n{apart}\tmovq\t%rbx, %rdi\n\tcall\t__tsan_volatile_read4@PLT\n\tjne\t.L2\n"
            )),
            [false]
        );
    }

    #[test]
    fn registers_have_one_name() {
        for (part, whole) in [
            ("%ebx", "%rbx"),
            ("%bl", "%rbx"),
            ("%dil", "%rdi"),
            ("%r12d", "%r12"),
            ("%bp", "%rbp"),
        ] {
            assert_eq!(register(part), register(whole), "{part}");
        }
        let all = ["%rax", "%rbx", "%rcx", "%rdx", "%rsi", "%rdi", "%rbp", "%rsp", "%r8", "%r10"];
        let names: HashSet<_> = all.iter().map(|name| register(name)).collect();
        assert_eq!(names.len(), all.len());
    }
}
