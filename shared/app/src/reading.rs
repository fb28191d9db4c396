//! How the host's compiler is to read what was rewritten: the flags, and what stands before the text.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lab_emulator::write_atomically;
use lab_kernel_build::Program;

use crate::arch::Arch;
use crate::headers;
use crate::instructions;
use crate::sources::{CUDA, Sources};
use crate::{Error, Options};

/// These sources, as the compiler is given them.
///
/// # Errors
/// A `-D` that is none; the headers' directory cannot be written.
pub(crate) fn program_of(
    root: &Path,
    mut sources: Sources,
    options: &Options,
) -> Result<Program, Error> {
    let standard = options.standard.as_deref().unwrap_or("c++17");
    // An array larger than a page must not reach over the page that guards a thread's stack.
    let mut flags = vec![format!("-std={standard}"), "-fstack-clash-protection".into()];
    flags.extend(options.arch.flags());
    options.define.iter().try_for_each(|d| definition(d).map(drop))?;
    refuse_two_values(&options.define)?;
    let (for_headers, own): (Vec<_>, Vec<_>) =
        options.define.iter().partition(|d| is_read_by_headers(d));
    flags.extend(for_headers.iter().map(|d| format!("-D{d}")));
    let mut libraries = vec!["-pthread".to_owned(), "-lm".into(), "-ldl".into()];
    let absolute = |p: &Path| p.canonicalize().unwrap_or_else(|_| p.to_owned());
    flags.extend(options.include.iter().map(|d| format!("-I{}", absolute(d).display())));
    flags.extend(std::mem::take(&mut sources.flags));
    libraries.extend(std::mem::take(&mut sources.libraries));
    if options.debug {
        // These come last, and so they count.
        flags.extend(["-O0", "-fno-inline", "-DEMU_DEBUG"].map(String::from));
        libraries.push("-DEMU_DEBUG".into());
    }
    // Host code of several threads.
    if sources.units.iter().any(|(text, _)| text.contains("omp.h") || text.contains("#pragma omp"))
    {
        flags.push("-fopenmp".into());
        libraries.push("-fopenmp".into());
    }
    let included = format!("#include {:?}\n", instructions_header(root, options.arch)?);
    // It is C++, and what is C has no kernels.
    let is_c = |file: &Path| file.extension().is_some_and(|e| e == "c");
    let defined = own.iter().map(|d| definition(d)).collect::<Result<String, _>>()?;
    for (text, file) in &mut sources.units {
        // Behind CUDA's headers: these have names such as N for themselves.
        text.insert_str(if text.starts_with(CUDA) { CUDA.len() } else { 0 }, &defined);
        if !is_c(file) {
            text.insert_str(0, &included);
        }
    }
    if sources.units.iter().any(|(text, file)| is_c(file) && text.contains("cuda")) {
        sources.units.push(("#include \"runtime/for_c.h\"\n".into(), "for_c.cu".into()));
    }
    let prelude = included + CUDA;
    Ok(Program { prelude, units: sources.units, flags, libraries })
}

/// Whether a name that is defined may be meant for a header that every program begins with.
fn is_read_by_headers(define: &str) -> bool {
    ["_", "CUDA", "CCCL", "CUB", "THRUST"].iter().any(|own| define.starts_with(own))
}

/// `N=4` as a line of the file, `#define N 4`; a name alone is 1, as for a compiler.
fn definition(define: &str) -> Result<String, Error> {
    let (name, value) = define.split_once('=').unwrap_or((define, "1"));
    // A macro with parameters is one, too.
    let (plain, parameters) = match name.split_once('(') {
        Some((plain, rest)) => (plain, rest.strip_suffix(')')),
        None => (name, Some("")),
    };
    let is_of = |text: &str, more: &str| {
        text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || more.contains(c))
    };
    let is_name =
        is_of(plain, "") && plain.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !is_name || !parameters.is_some_and(|p| is_of(p, ", .")) || value.contains(['\n', '\r']) {
        let got = lab_emulator::shown(define, 60);
        return Err(Error::Refused(format!(
            "-D: expected NAME or NAME=VALUE in one line, got '{got}'"
        )));
    }
    Ok(format!("#define {name} {value}\n"))
}

/// Refuses two values of one name: which one counts, a compiler decides by their order.
fn refuse_two_values(defines: &[String]) -> Result<(), Error> {
    let split = |d: &'_ str| -> (String, String) {
        let (name, value) = d.split_once('=').unwrap_or((d, "1"));
        (name.split('(').next().unwrap_or(name).to_owned(), value.to_owned())
    };
    let mut values: HashMap<String, &str> = HashMap::new();
    for define in defines {
        let (name, value) = split(define);
        let first = *values.entry(name).or_insert(define);
        if split(first).1 != value {
            let [first, second] = [first, define].map(|d| lab_emulator::shown(d, 60));
            return Err(Error::Refused(format!(
                "-D: expected one value of a name, got '{first}' and '{second}'"
            )));
        }
    }
    Ok(())
}

/// The header that says which instructions an architecture has; it is written once, beside the emulator's own.
fn instructions_header(root: &Path, arch: Arch) -> Result<PathBuf, Error> {
    let path = headers::objects(root).join(format!("instructions.{arch}.h"));
    let text = instructions::definitions(arch);
    if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(path);
    }
    let refuse = |e: std::io::Error| Error::File { path: path.clone(), reason: e.to_string() };
    write_atomically(&path, text.as_bytes()).map_err(refuse)?;
    Ok(path)
}
