//! SASS, a GPU's machine code, by the source lines that it comes from. `nvdisasm` prints it.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use lab_device::Error as DeviceError;
use lab_harness::Error;

use super::listing::{Control, Instruction, Kernel};
use crate::failure::Failure;

/// What `nvdisasm` prints of an image: its code, with the source lines and the calls that were inlined.
pub(super) fn disassemble(nvdisasm: &Path, cubin: &[u8]) -> Result<String, Failure> {
    let refuse = |e: std::io::Error| Error::File {
        path: "a temporary file for nvdisasm".into(),
        message: e.to_string(),
    };
    let mut image = tempfile::Builder::new().suffix(".cubin").tempfile().map_err(refuse)?;
    image.write_all(cubin).and_then(|()| image.flush()).map_err(refuse)?;
    let failed = |message| Failure::from(DeviceError::Driver { call: "nvdisasm", message });
    let output = Command::new(nvdisasm)
        .args(["--print-code", "--print-line-info-inline", "--print-instruction-encoding"])
        .arg(image.path())
        .output()
        .map_err(|e| failed(format!("{}: {e}", nvdisasm.display())))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed(format!("{}, {}: {}", nvdisasm.display(), output.status, said.trim())))
    }
}

/// The kernels of such a text whose source is `file`. A function that a kernel calls stands in the kernel's own section and
/// counts as a part of it.
pub(super) fn kernels(text: &str, file: &str) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    let (mut line, mut labels) = (None, Vec::new());
    // The places of the next instruction, from the innermost to the outermost call: whether one was of the own file.
    let (mut is_place, mut found) = (false, false);
    for raw in text.lines() {
        let code = raw.trim();
        if let Some(name) = code.strip_prefix(".section") {
            let name = name.split(',').next().unwrap_or("").trim();
            if let Some(symbol) = name.strip_prefix(".text.") {
                all.push(Kernel { symbol: symbol.to_owned(), instructions: Vec::new() });
            }
            (line, is_place) = (None, false);
            labels.clear();
        } else if let Some(place) = code.strip_prefix("//## File ") {
            if !is_place {
                (line, found) = (None, false);
            }
            is_place = true;
            if !found && let Some(own) = own_line(place, file) {
                // Line 0 is the compiler's own.
                (line, found) = (Some(own).filter(|own| *own > 0), true);
            }
        } else if let Some(rest) = code.strip_prefix("/*") {
            is_place = false;
            let Some((address, instruction)) = rest.split_once("*/") else { continue };
            let (instruction, _) = instruction.split_once("/*").unwrap_or((instruction, ""));
            // A label among the operands is `(LABEL).
            let text = instruction.trim().trim_end_matches(';').replace("`(", "").replace(')', "");
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            if let Some(kernel) = all.last_mut()
                && !text.is_empty()
            {
                let labels = std::mem::take(&mut labels);
                let (address, control) = (u64::from_str_radix(address, 16).ok(), None);
                kernel.instructions.push(Instruction { line, labels, text, address, control });
            } else if let Some(last) = all.last_mut().and_then(|k| k.instructions.last_mut()) {
                // The upper half of its encoding stands alone in the line below.
                let half =
                    address.trim().strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
                last.control = half.and_then(Result::ok).map(Control::decode).or(last.control);
            }
        } else if let Some(label) = code.strip_suffix(':') {
            // A function that is called begins: the line before is not its own.
            if label.starts_with('$') && !is_place {
                line = None;
            }
            let is_kernel = all.last().is_some_and(|k| {
                k.symbol == label || label.strip_prefix(".text.") == Some(k.symbol.as_str())
            });
            if !is_kernel {
                labels.push(label.to_owned());
            }
        }
    }
    all.iter_mut().for_each(drop_padding);
    all
}

/// The line of a place, `"/here/kernels/a.cu", line 7 inlined at …`, where it is of the own file.
fn own_line(place: &str, file: &str) -> Option<usize> {
    let (name, rest) = place.strip_prefix('"')?.split_once('"')?;
    let is_own = name == file || name.ends_with(&format!("/{file}"));
    let digits = rest.strip_prefix(", line ")?.split_whitespace().next()?;
    digits.parse().ok().filter(|_| is_own)
}

/// Behind a kernel's last instruction the assembler puts a branch to itself, and NOPs up to the next 128 bytes.
fn drop_padding(kernel: &mut Kernel) {
    let all = &mut kernel.instructions;
    let used = all.iter().rposition(|i| i.text != "NOP").map_or(0, |last| last + 1);
    let is_trap = all[..used].last().is_some_and(|last| {
        let target = last.text.strip_prefix("BRA ");
        target.is_some_and(|target| last.labels.iter().any(|label| label == target))
    });
    if is_trap {
        all.truncate(used - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
	.target	sm_90a

//--------------------- .text._Z1fPf --------------------------
	.section	.text._Z1fPf,\"ax\",@progbits
	.align	128
.text._Z1fPf:
        .weak           _Z1fPf
        .type           _Z1fPf,@function
_Z1fPf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File \"/here/kernels/a.cu\", line 3
        /*0010*/                   S2R R0, SR_TID.X ;
	//## File \"/here/lab/ptx.cuh\", line 30 inlined at \"/here/lab/ring.cuh\", line 40
	//## File \"/here/lab/ring.cuh\", line 40 inlined at \"/here/kernels/a.cu\", line 9
	//## File \"/here/kernels/a.cu\", line 9 inlined at \"/here/kernels/a.cu\", line 5
	//## File \"/here/kernels/a.cu\", line 5
        /*0020*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0 ;
.L_x_0:
        /*0030*/              @!P0 BRA `(.L_x_1) ;
	//## File \"/here/lab/ptx.cuh\", line 0
        /*0040*/                   CALL.REL.NOINC `($__internal_0_$rcp) ;
.L_x_1:
	//## File \"/here/kernels/a.cu\", line 6
        /*0050*/                   EXIT ;
        .weak           $__internal_0_$rcp
        .type           $__internal_0_$rcp,@function
$__internal_0_$rcp:
        /*0060*/                   RET.REL.NODEC R2 `(_Z1fPf) ;
.L_x_2:
        /*0070*/                   BRA `(.L_x_2);
        /*0080*/                   NOP;
        /*0090*/                   NOP;
.L_x_3:

//--------------------- .text._Z1gv --------------------------
	.section	.text._Z1gv,\"ax\",@progbits
_Z1gv:
        /*0000*/                   NOP ;
        /*0010*/                   EXIT ;
";

    #[test]
    fn each_instruction_has_the_line_of_the_kernels_own_file() {
        let kernels = kernels(TEXT, "kernels/a.cu");
        let symbols: Vec<&str> = kernels.iter().map(|k| k.symbol.as_str()).collect();
        assert_eq!(symbols, ["_Z1fPf", "_Z1gv"]);
        let all: Vec<(Option<usize>, &str, &str)> =
            kernels[0].instructions.iter().map(|i| (i.line, i.opcode(), i.text.as_str())).collect();
        let expected = [
            (None, "LDC", "LDC R1, c[0x0][0x28]"),
            (Some(3), "S2R", "S2R R0, SR_TID.X"),
            (Some(9), "SYNCS.ARRIVE.TRANS64", "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0"),
            (Some(9), "BRA", "@!P0 BRA .L_x_1"),
            (None, "CALL.REL.NOINC", "CALL.REL.NOINC $__internal_0_$rcp"),
            (Some(6), "EXIT", "EXIT"),
            (None, "RET.REL.NODEC", "RET.REL.NODEC R2 _Z1fPf"),
        ];
        assert_eq!(all, expected);
        let labels: Vec<String> =
            kernels[0].instructions.iter().map(|i| i.labels.join(" ")).collect();
        assert_eq!(labels, ["", "", "", ".L_x_0", "", ".L_x_1", "$__internal_0_$rcp"]);
        assert_eq!(kernels[1].instructions.len(), 2, "a NOP before the last is kept: {kernels:?}");
    }

    #[test]
    fn of_another_file_no_line_is_known() {
        let kernels = kernels(TEXT, "kernels/b.cu");
        assert!(kernels[0].instructions.iter().all(|i| i.line.is_none()), "{kernels:?}");
    }

    #[test]
    fn what_is_no_listing_has_no_kernels() {
        assert_eq!(kernels("", "a.cu"), []);
        assert_eq!(kernels("/*0000*/ NOP ;\n.L_x_0:\n//## File \"a.cu\", line x\n", "a.cu"), []);
        let kernels = kernels(".section .text.f,\"ax\"\n/* no end\n/**/ ;\n", "a.cu");
        assert_eq!(kernels[0].instructions, []);
    }
}
