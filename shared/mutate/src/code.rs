//! What a kernel object is loaded as, to tell whether two compile to the same.

use std::collections::BTreeMap;
use std::path::Path;

use object::{Object, ObjectSection, SectionFlags, SectionKind, elf};

use crate::{Error, Kernel, Sources};

/// A section that is loaded: its name, address, size and bytes (none where it begins as zeros).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    name: String,
    address: u64,
    size: u64,
    bytes: Vec<u8>,
}

/// The machine code and the data of an object, without what is said of them for debuggers: two
/// objects with the same do the same. The emulator's compiler makes it: it says nothing of what a
/// compiler for GPUs would make of a change that breaks the language's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code(Vec<Section>);

impl Code {
    /// That of the object in a file, which was compiled in a directory. The compiler's checks of
    /// array bounds name files by their whole path, which is as long in each copy but not the same:
    /// the directory's part is blanked.
    ///
    /// # Errors
    /// It cannot be read, or is no object.
    pub(crate) fn read(path: &Path, compiled_in: &Path) -> Result<Self, Error> {
        let directory = compiled_in.as_os_str().as_encoded_bytes();
        let refuse = |e: object::Error| Error::file(path, e);
        let data = std::fs::read(path).map_err(|e| Error::file(path, e))?;
        let object = object::File::parse(&*data).map_err(refuse)?;
        let mut all = Vec::new();
        for section in object.sections().filter(is_loaded) {
            let mut bytes = if section.kind().is_bss() {
                Vec::new()
            } else {
                section.data().map_err(refuse)?.to_owned()
            };
            blank(&mut bytes, directory);
            all.push(Section {
                name: section.name().map_err(refuse)?.to_owned(),
                address: section.address(),
                size: section.size(),
                bytes,
            });
        }
        Ok(Self(all))
    }

    /// That of a kernel file as it is, compiled in the way in which mutants are.
    ///
    /// # Errors
    /// It does not compile, or files cannot be written or read.
    pub fn unbroken(sources: &Sources, kernel: &Kernel) -> Result<Self, Error> {
        let planted = sources.plant(None)?;
        planted.compile(kernel)?.map_err(|said| Error::Bad {
            what: kernel.file.clone(),
            expected: "sources that compile as they are".into(),
            got: said,
        })?;
        planted.code(kernel)
    }
}

/// Of some kernel files, by their names as their stage has them.
pub type Codes = BTreeMap<String, Code>;

/// Puts zeros in the place of a text, wherever it stands.
fn blank(bytes: &mut [u8], text: &[u8]) {
    let mut at = 0;
    while !text.is_empty() && at + text.len() <= bytes.len() {
        if bytes[at..].starts_with(text) {
            bytes[at..at + text.len()].fill(0);
            at += text.len();
        } else {
            at += 1;
        }
    }
}

/// The build id is a digest of the whole object, with its line tables.
fn is_loaded<'a>(section: &impl ObjectSection<'a>) -> bool {
    let SectionFlags::Elf { sh_flags, .. } = section.flags() else { return false };
    let build_id =
        section.kind() == SectionKind::Note && section.name() == Ok(".note.gnu.build-id");
    sh_flags.contains(elf::SHF_ALLOC) && !build_id
}
