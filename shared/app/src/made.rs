//! Kernels whose heads stand in macros, `#define OP(T, NAME) __global__ void NAME(T* x) { … }`: what they are called, the
//! preprocessor says.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::conditions::Macros;
use crate::headers;
use crate::reading::program_of;
use crate::rewrite::{Kernel, MADE, made_kernels};
use crate::sources::Sources;
use crate::{Error, Options};

/// Puts the kernels that macros make in place of those that stand in the macros themselves. Where the preprocessor fails, all
/// stays as it is: the compiler will say why.
///
/// # Errors
/// A `-D` that is none; files that cannot be written.
pub(crate) fn name_kernels_of_macros(
    sources: &mut Sources,
    options: &Options,
    scratch: &Path,
) -> Result<(), Error> {
    let (in_macros, others): (Vec<_>, Vec<_>) =
        sources.kernels.iter().cloned().partition(|(_, kernel)| kernel.in_macro.is_some());
    if in_macros.is_empty() {
        return Ok(());
    }
    let root = headers::root()?;
    let program = program_of(&root, sources.clone(), options)?;
    let mut made = Vec::new();
    for (text, path) in &program.units {
        let unit = scratch.join("preprocessed.cpp");
        std::fs::write(&unit, text)
            .map_err(|e| Error::File { path: unit.clone(), reason: e.to_string() })?;
        let Some(text) = preprocessed(&unit, &root, &program.flags) else { return Ok(()) };
        let mut own: HashSet<PathBuf> = sources.files.iter().cloned().collect();
        own.insert(path.clone());
        made.extend(kernels_of(&text, &own));
    }
    for (_, kernel) in &mut made {
        let known = in_macros.iter().find(|(_, own)| own.in_macro == kernel.in_macro);
        if let Some((_, own)) =
            known.filter(|(_, own)| own.parameters.len() == kernel.parameters.len())
        {
            kernel.facts = own.facts.clone();
        }
    }
    made.extend(others);
    made.sort_by(|a, b| (&a.0, a.1.line).cmp(&(&b.0, b.1.line)));
    made.dedup_by(|a, b| a.0 == b.0 && a.1.name == b.1.name && a.1.parameters == b.1.parameters);
    sources.kernels = made;
    Ok(())
}

/// What the preprocessor makes of a file; `None` where it fails.
fn preprocessed(unit: &Path, root: &Path, flags: &[String]) -> Option<String> {
    let mut command = Command::new(lab_kernel_build::compiler().ok()?);
    command.args(["-E", "-w", "-x", "c++", "-D", &format!("{MADE}={MADE}")]).args(flags);
    for headers in ["shared/emulator/compat", "shared/emulator/include"] {
        command.arg("-I").arg(root.join(headers));
    }
    let output = command.arg(unit).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The kernels that macros have made, in what comes from these files.
fn kernels_of(text: &str, own: &HashSet<PathBuf>) -> Vec<(PathBuf, Kernel)> {
    let (mut kept, mut lines) = (String::new(), Vec::new());
    let (mut file, mut number) = (None, 0);
    for line in text.lines() {
        // # 12 "file" 2
        if let Some((at, name)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
            number = at.parse().unwrap_or(1);
            let name = PathBuf::from(name.split('"').nth(1).unwrap_or_default());
            file = own.get(&name);
            continue;
        }
        if let Some(file) = file {
            kept += line;
            kept.push('\n');
            lines.push((file, number));
        }
        number += 1;
    }
    let made = made_kernels(&kept, &mut Macros::default());
    let placed = made.into_iter().filter_map(|kernel| {
        let (file, line) = lines.get(kernel.line.checked_sub(1)?)?;
        Some(((*file).clone(), Kernel { line: *line, ..kernel }))
    });
    placed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_the_name_that_its_macro_was_given() {
        let text = "# 1 \"header.h\"\n__global__ EMU_MADE(7) void other() {}\n# 4 \"k.cu\"\nnamespace a {\n\
                    template <class T> EMU_MADE(9) void twice_f32(const T* x, int n = 2) { if (x) { } }\n}\n\
                    EMU_MADE(9) void twice_f64(double* x);\n";
        let made = kernels_of(text, &[PathBuf::from("k.cu")].into());
        let [(file, kernel)] = &made[..] else { panic!("{made:?}") };
        assert_eq!((file.to_str(), kernel.line, kernel.in_macro), (Some("k.cu"), 5, Some(9)));
        assert_eq!((&kernel.name[..], &kernel.scope[..], kernel.required), ("twice_f32", "a::", 1));
        assert_eq!(
            (&kernel.template[..], &kernel.parameters[0].0[..]),
            (&["T".to_owned()][..], "const T*")
        );
    }
}
