//! What is kept between programs: where, whether it is whole, and how long.
//!
//! In the user's cache directory there is a tree of the emulator's headers for each version of the tool. Its folder
//! `objects` has what all programs are linked with, and CUDA's headers in compiled form, 60 MB each. `emulator` has
//! every object that was loaded.

use std::fs::{self, DirBuilder, File};
use std::io::{Error as IoError, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::Error;
use crate::sources::CUDA;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// What nobody has used for this long goes.
const OLD: Duration = Duration::from_secs(30 * 24 * 3600);
/// Of trees that were not used for a day, so many stay.
const TREES: usize = 3;

/// Room for what the first program of a version leaves.
const ROOM: usize = 256 << 10;

/// A directory for this user alone, where the own cache directory cannot be written.
pub(crate) fn temporary() -> std::io::Result<PathBuf> {
    // SAFETY: asks who this process belongs to.
    let user = unsafe { libc::geteuid() };
    let path = std::env::temp_dir().join(format!("vlstm-lab-{user}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // What is compiled with these headers is run: nobody else may write them.
    let found = path.symlink_metadata()?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        Ok(path)
    } else {
        Err(IoError::other(format!("{}: others can write there", path.display())))
    }
}

/// Whether a directory takes new files: neither read-only nor full.
pub(crate) fn try_writing(directory: &Path) -> std::io::Result<()> {
    tempfile::tempfile_in(directory)?.write_all(&vec![1; ROOM])
}

/// Whether it is what is kept in `objects`, and not the program, that the compiler, the linker or the loader does not
/// take.
pub(crate) fn is_at_fault(error: &Error, objects: &Path) -> bool {
    let said = match error {
        Error::Module(_) => return true,
        Error::Compile { said, .. } => said,
        _ => return false,
    };
    let folder = objects.to_string_lossy();
    said.lines().any(|line| {
        // An object that is empty lacks what the emulator's headers call.
        let lacks = ["`emu_", "`__tsan_", "`__ubsan_"].iter().any(|name| {
            line.split_once("undefined reference to ")
                .is_some_and(|(_, what)| what.starts_with(name))
        });
        let by_linker = line.contains("/ld:") || line.starts_with("ld:");
        // A program may have a function of the same name as one of ours.
        let of_ours = line.contains(&*folder) && !line.contains("multiple definition");
        let compiled = line.contains("PCH file") || line.contains(".h.gch");
        let crash = line.contains("internal compiler error");
        lacks || by_linker && of_ours || line.contains("fatal error") && compiled || crash
    })
}

/// Removes what is kept there; whether there was anything.
pub(crate) fn forget(objects: &Path) -> bool {
    let removed = fs::read_dir(objects).into_iter().flatten().flatten().filter(|entry| {
        let path = entry.path();
        let made = path.extension().is_some_and(|e| e == "o" || e == "gch" || e == "sum");
        made && fs::remove_file(path).is_ok()
    });
    removed.count() > 0
}

/// What an object that is kept must hold is told in a file beside it.
fn seal_of(object: &Path) -> PathBuf {
    object.with_extension("o.sum")
}

fn sum_of(object: &Path) -> Option<String> {
    Some(format!("{:x}", Sha256::digest(fs::read(object).ok()?)))
}

fn kept_objects(objects: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(objects).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "o"))
}

/// Says what the objects hold that a program has just been linked with.
pub(crate) fn seal_objects(objects: &Path) {
    for object in kept_objects(objects) {
        let seal = seal_of(&object);
        if let (false, Some(sum)) = (seal.exists(), sum_of(&object)) {
            let _ = lab_emulator::write_atomically(&seal, sum.as_bytes());
        }
    }
}

/// Removes objects that hold anything else than they held: they would be linked as they are.
pub(crate) fn remove_damaged_objects(objects: &Path) {
    for object in kept_objects(objects) {
        let Ok(sealed) = fs::read(seal_of(&object)) else { continue };
        if sum_of(&object).is_none_or(|sum| sum.as_bytes() != sealed) {
            let _ = fs::remove_file(seal_of(&object));
            let _ = fs::remove_file(object);
        }
    }
}

/// Removes the text of compiled headers where it is cut off: it would be compiled as it is.
pub(crate) fn remove_damaged_preludes(objects: &Path) {
    for entry in fs::read_dir(objects).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let is_prelude = name.to_string_lossy().starts_with("prelude.");
        if !is_prelude || path.extension().is_none_or(|e| e != "h") {
            continue;
        }
        let is_whole = fs::read_to_string(&path)
            .is_ok_and(|text| text.starts_with("#include \"") && text.ends_with(CUDA));
        if !is_whole {
            let _ = fs::remove_file(path.with_extension("h.gch"));
            let _ = fs::remove_file(path);
        }
    }
}

/// Once a day, removes from the directory `cache` what was not used for long. The tree `current` stays. Another process may
/// use what goes: a tree that it needs it writes again, and an object that is loaded stays until it ends.
pub(crate) fn clean(cache: &Path, current: &Path) {
    clean_at(cache, current, SystemTime::now());
}

fn clean_at(cache: &Path, current: &Path, now: SystemTime) {
    let age = |used: SystemTime| now.duration_since(used).unwrap_or_default();
    mark_used(current, now);
    let marker = cache.join("cleaned");
    let is_recent = marker.metadata().and_then(|m| m.modified()).is_ok_and(|t| age(t) < DAY);
    if is_recent || File::create(&marker).and_then(|f| f.set_modified(now)).is_err() {
        return;
    }
    let folders = [cache.join("emulator"), current.join("objects")];
    for entry in folders.iter().flat_map(fs::read_dir).flatten().flatten() {
        let path = entry.path();
        // Of modules the text is kept as well.
        let is_object = path.extension().is_some_and(|e| e == "so" || e == "kept" || e == "ptx");
        if is_object && last_use(&path).is_some_and(|used| age(used) > OLD) {
            let _ = fs::remove_file(path);
        }
    }
    let trees = fs::read_dir(cache.join("headers")).into_iter().flatten().flatten();
    let others = trees.map(|entry| entry.path()).filter(|path| path != current);
    let mut others: Vec<_> =
        others.filter_map(|path| Some((last_use_of_tree(&path)?, path))).collect();
    others.sort();
    for (place, (used, path)) in others.iter().rev().enumerate() {
        if age(*used) > OLD || place >= TREES && age(*used) > DAY {
            // Under another name first: nobody finds half a tree.
            let gone = path.with_extension(format!("{}.gone", std::process::id()));
            if fs::rename(path, &gone).is_ok() {
                let _ = fs::remove_dir_all(&gone);
            }
        }
    }
}

fn mark_used(tree: &Path, now: SystemTime) {
    let _ = File::open(tree).and_then(|f| f.set_modified(now));
}

/// Of a file, when it was read or written. It is read whenever it is loaded.
fn last_use(path: &Path) -> Option<SystemTime> {
    let found = path.symlink_metadata().ok()?;
    found.accessed().into_iter().chain(found.modified()).max()
}

/// Of a tree: of itself, and of what lies in its folder `objects`. Versions of the tool that do not mark a tree leave
/// their time there.
fn last_use_of_tree(tree: &Path) -> Option<SystemTime> {
    let objects = fs::read_dir(tree.join("objects")).into_iter().flatten().flatten();
    let files = objects.filter_map(|entry| entry.metadata().and_then(|m| m.modified()).ok());
    tree.symlink_metadata().and_then(|m| m.modified()).into_iter().chain(files).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_damaged_goes() {
        let objects = tempfile::tempdir().unwrap();
        let at = |name: &str| objects.path().join(name);
        for name in ["a.o", "b.o"] {
            fs::write(at(name), vec![7; 1000]).unwrap();
        }
        seal_objects(objects.path());
        remove_damaged_objects(objects.path());
        assert!(at("a.o").exists() && at("b.o").exists());
        // One bit, and later all of it.
        let mut bytes = fs::read(at("a.o")).unwrap();
        bytes[500] ^= 1;
        fs::write(at("a.o"), bytes).unwrap();
        remove_damaged_objects(objects.path());
        assert!(!at("a.o").exists() && !at("a.o.sum").exists() && at("b.o").exists());
        fs::write(at("b.o"), "").unwrap();
        remove_damaged_objects(objects.path());
        assert!(!at("b.o").exists());
    }

    fn compile_error(said: &str) -> Error {
        Error::Compile { summary: String::new(), said: said.to_owned() }
    }

    #[test]
    fn a_mistake_of_the_program_leaves_what_is_kept() {
        let objects = Path::new("/c/objects");
        for said in [
            "/usr/bin/ld: error: /c/objects/glue.0.o: file too short",
            "/usr/bin/ld:/c/objects/program.0.o:0: syntax error",
            "/t/k.cu:2: undefined reference to `__tsan_write4'",
            "<command-line>: fatal error: cannot read PCH file: No such file or directory",
            "<command-line>: fatal error: cannot read /c/objects/prelude.0.h.gch: No such file or directory",
            "k.cu:2:24: internal compiler error: Segmentation fault",
        ] {
            assert!(is_at_fault(&compile_error(said), objects), "{said}");
        }
        for said in [
            "/usr/bin/ld: k.o: in function `main': undefined reference to `mine'",
            "/usr/bin/ld: k.o: multiple definition of `x'; /c/objects/program.0.o: first defined here",
            "In file included from /c/objects/prelude.0.h:1,\nk.cu:2:1: error: 'y' was not declared",
            "k.cu:2:1: fatal error: a.h: No such file or directory",
        ] {
            assert!(!is_at_fault(&compile_error(said), objects), "{said}");
        }
    }

    #[test]
    fn what_is_not_used_for_long_goes() {
        let cache = tempfile::tempdir().unwrap();
        let (now, day) = (SystemTime::now(), DAY);
        let made = |name: &str, age: Duration| {
            let path = cache.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let time = fs::FileTimes::new().set_modified(now - age).set_accessed(now - age);
            File::create(&path).unwrap().set_times(time).unwrap();
            path
        };
        let tree = |name: &str, age: Duration| {
            made(&format!("headers/{name}/objects/glue.o"), age);
            let tree = cache.path().join("headers").join(name);
            mark_used(&tree, now - age);
            tree
        };
        let (old, new) = (made("emulator/old.so", 31 * day), made("emulator/new.so", 29 * day));
        let trees: Vec<PathBuf> = (0..6).map(|n| tree(&n.to_string(), (2 + n) * day)).collect();
        let (today, ancient) = (tree("today", day / 2), tree("ancient", 40 * day));
        let current = tree("current", 50 * day);
        clean_at(cache.path(), &current, now);
        let left = |paths: &[PathBuf]| paths.iter().map(|p| p.exists()).collect::<Vec<_>>();
        assert_eq!(
            left(&[old, new.clone(), today, ancient, current.clone()]),
            [false, true, true, false, true]
        );
        assert_eq!(left(&trees), [true, true, false, false, false, false]);
        assert_eq!(fs::read_dir(cache.path().join("headers")).unwrap().count(), 4);
        // A second time on the same day it looks at nothing.
        let time = fs::FileTimes::new().set_modified(now - OLD * 2).set_accessed(now - OLD * 2);
        File::options().write(true).open(&new).unwrap().set_times(time).unwrap();
        clean_at(cache.path(), &current, now + day / 2);
        assert!(new.exists());
        clean_at(cache.path(), &current, now + day * 2);
        assert!(!new.exists());
        // The current one was marked.
        assert!(last_use_of_tree(&current).unwrap() > now);
    }

    #[test]
    fn objects_and_compiled_headers_are_forgotten() {
        let objects = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(objects.path().join(name), text).unwrap();
        let there = |name: &str| objects.path().join(name).exists();
        let whole = format!("#include \"/c/objects/instructions.sm_80.h\"\n{CUDA}");
        file("prelude.1.h", &whole);
        file("prelude.2.h", &whole[..40]);
        file("prelude.2.h.gch", "");
        remove_damaged_preludes(objects.path());
        assert!(there("prelude.1.h") && !there("prelude.2.h") && !there("prelude.2.h.gch"));
        assert!(!forget(objects.path()));
        file("glue.0.o", "");
        file("prelude.1.h.gch", "");
        file("instructions.sm_80.h", "");
        assert!(forget(objects.path()));
        assert!(there("prelude.1.h") && there("instructions.sm_80.h"));
        assert!(!there("glue.0.o") && !there("prelude.1.h.gch"));
    }
}
