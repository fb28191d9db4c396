//! Inline PTX, as C++ that the emulator runs: each instruction becomes a call of what the emulator has for it
//! (`compat/ptx.h`), on the line where the program has it.
//!
//! What is not known is left alone: the whole text is a trap then, that says it.

use std::collections::HashMap;

use crate::statement::{Statement, statements};
use crate::text::{Given, Text, cpp_name, of_register};

/// The statements of C++ that do what a text does, without its quotes; `None` if there is an instruction that is not known.
/// Each stands behind the number of the literal that it begins in, from 0, where [`crate::NEXT_LITERAL`] stands between two.
pub fn translate_asm(text: &str, given: &[Given]) -> Option<Vec<(usize, String)>> {
    let statements = statements(text)?;
    let (mut registers, mut labels) = (HashMap::new(), Vec::new());
    for (_, statement) in &statements {
        match statement {
            Statement::Registers(kind, declared) => {
                let cpp = of_register(kind)?;
                registers.extend(declared.iter().map(|name| (name.clone(), cpp)));
            }
            // In scopes of their own two may have one name; here they may not.
            Statement::Label(name) if labels.contains(&format!("emu_l_{name}")) => return None,
            Statement::Label(name) => labels.push(format!("emu_l_{name}")),
            _ => {}
        }
    }
    let text = Text { given, registers: vec![registers], ..Text::default() };
    let kept: Vec<String> = statements.iter().flat_map(|(_, one)| text.read_later(one)).collect();
    let mut body = String::new();
    if !labels.is_empty() {
        body += &format!("__label__ {}; ", labels.join(", "));
    }
    let carries = |one: &Statement| match one {
        Statement::Instruction(own) => own.words[1..].iter().any(|word| word == "cc"),
        _ => false,
    };
    if statements.iter().any(|(_, one)| carries(one)) {
        body += "[[maybe_unused]] bool emu_carry = false; ";
    }
    for (n, Given { constraint, expression, .. }) in given.iter().enumerate() {
        // What goes in has a register of its own: what comes out may be the same variable. But what is read when the text
        // is over is the variable itself.
        let is_variable = constraint.starts_with(['=', '+']) || kept.contains(&format!("emu_o{n}"));
        let kind = if is_variable { "auto&&" } else { "auto" };
        body += &format!("[[maybe_unused]] {kind} emu_o{n} = ({expression}); ");
    }
    let mut all = vec![(0, body)];
    for (literal, statement) in statements {
        let own = match statement {
            Statement::Open => "{ ".to_owned(),
            Statement::Close => "} ".to_owned(),
            // A label stands before a statement.
            Statement::Label(name) => format!("emu_l_{name}: ; "),
            Statement::Registers(kind, names) => {
                let kind = of_register(&kind)?;
                let declared =
                    |name: &String| format!("[[maybe_unused]] {kind} emu_r_{}; ", cpp_name(name));
                let each = names.iter().map(declared);
                each.collect()
            }
            Statement::Instruction(instruction) => text.instruction(&instruction)?,
        };
        all.push((literal, own));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, given: &[&str]) -> Option<String> {
        let one = |e: &&str| {
            let constraint = if *e == "y" { "r" } else { "=r" }.into();
            Given { name: None, constraint, expression: (*e).to_owned() }
        };
        let all = translate_asm(text, &given.iter().map(one).collect::<Vec<_>>())?;
        Some(all.into_iter().map(|(_, own)| own).collect())
    }

    #[test]
    fn an_instruction_stands_in_the_literal_that_it_begins_in() {
        let text = "{ // two\n|bar.sync 0;\n|membar.g|l; /* three | */ membar.cta; } // |";
        let text = text.replace('|', &crate::NEXT_LITERAL.to_string());
        let all = translate_asm(&text, &[]).unwrap();
        let literals: Vec<usize> = all.iter().map(|(literal, _)| *literal).collect();
        assert_eq!(literals, [0, 0, 1, 2, 4, 4], "{all:?}");
    }

    #[test]
    fn an_instruction_is_a_call_on_its_operands() {
        let add = of("add.u32 %0, %1, 4;", &["x", "y"]).unwrap();
        assert_eq!(
            add,
            "[[maybe_unused]] auto&& emu_o0 = (x); [[maybe_unused]] auto emu_o1 = (y); \
             ::emu::ptx::put(emu_o0, ::emu::ptx::add(::emu::ptx::as<uint32_t>(emu_o1), uint32_t(4))); "
        );
    }

    #[test]
    fn predicates_registers_and_labels() {
        let text =
            "{ .reg .pred p;\n setp.ne.b32 p, %0, 0;\n @p membar.gl; AGAIN_%=: @!p bra AGAIN_%=; }";
        let got = of(text, &["x"]).unwrap();
        for part in [
            "__label__ emu_l_AGAIN___; ",
            "bool emu_r_p; ",
            "if (emu_r_p) { __threadfence(); } ",
            "emu_l_AGAIN___: ; if (!emu_r_p) { goto emu_l_AGAIN___; } ",
        ] {
            assert!(got.contains(part), "{part}: {got}");
        }
    }

    /// Of wgmma's A in registers the program's own variables, not copies that are gone behind the text.
    #[test]
    fn what_is_read_later_is_no_copy() {
        let text = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;";
        let given = ["x", "x", "x", "x", "y", "y", "y", "y", "y"];
        let got = of(text, &given).unwrap();
        assert!(
            got.contains("auto&& emu_o4 = (y); ") && got.contains(" auto emu_o8 = (y); "),
            "{got}"
        );
        assert!(got.contains("::emu::ptx::register_of<decltype(emu_o4)>(emu_o4)"), "{got}");
    }

    /// Words, operands and characters that are missing: refused or read, and no panic.
    #[test]
    fn what_is_malformed_is_no_panic() {
        let texts = [
            "{ .reg .pred p; setp.ne.b32 p, %0, 0; @!p bra L; L: }",
            "cvt.rn.f16x2.f32 %0, %1, %2;",
            "mov.b64 {%0, %1}, %2;",
            "mad.lo.s32 %0, %1, -3, %2;",
            "red.release.gpu.global.add.u32 [%0+0x10], %1;",
            "ld.global.nc.v2.u32 {%0, %1}, [%2-8];",
            "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};",
            "shfl.sync.bfly.b32 %0, %1, 1, 0x1f, -1;",
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};",
            "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;",
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];",
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;",
            "elect.sync _|p, %0;",
        ];
        let given = ["x"; 8];
        for text in texts {
            for from in 0..text.len() {
                for to in [from + 1, from + 3, from + 9, text.len()] {
                    if let Some(end) = text.get(to..) {
                        of(&(text[..from].to_owned() + end), &given);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_known_is_left_alone() {
        for text in [
            "tcgen05.alloc %0;",
            "add.u32 %0, %7, 1;",
            "add.u32 %0",
            "add.u32 %0, q, 1;",
            "mov.u32 %0, %nothing;",
        ] {
            assert!(of(text, &["x"]).is_none(), "{text}");
        }
    }
}
