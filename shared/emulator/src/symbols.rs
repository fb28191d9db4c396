//! From an instruction's address to `file:line:column`, by the object's DWARF.

use std::sync::Mutex;

use object::{Object, ObjectSection};

pub(crate) type Reader = gimli::EndianSlice<'static, gimli::RunTimeEndian>;

/// The debugging information of an object.
pub(crate) fn dwarf(file: &object::File<'static>) -> Option<gimli::Dwarf<Reader>> {
    let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|s| s.data().ok());
        Ok(gimli::EndianSlice::new(data.unwrap_or(&[]), gimli::RunTimeEndian::Little))
    };
    gimli::Dwarf::load(section).ok()
}

/// Line information of one kernel object.
pub(crate) struct Symbols {
    // A context caches what it has parsed, behind a `RefCell`.
    context: Option<Mutex<addr2line::Context<Reader>>>,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbols").field("dwarf", &self.context.is_some()).finish()
    }
}

impl Symbols {
    pub(crate) fn read(bytes: &'static [u8]) -> Self {
        let context = object::File::parse(bytes)
            .ok()
            .and_then(|file| addr2line::Context::from_dwarf(dwarf(&file)?).ok().map(Mutex::new));
        Self { context }
    }

    /// The place of the call that returns to `address` (relative to the object's base): the
    /// innermost frame that is not one of the emulator's own headers.
    pub(crate) fn place(&self, address: usize) -> String {
        let unknown = || format!("0x{address:x} (no line information)");
        let frames = self.frames(address);
        let own = frames.iter().find(|f| !is_stand_in(f)).or(frames.last());
        own.cloned().unwrap_or_else(unknown)
    }

    /// That place and those that it was inlined into, the innermost first.
    pub(crate) fn frames(&self, address: usize) -> Vec<String> {
        let mut all = Vec::new();
        let Some(context) = &self.context else { return all };
        let context = context.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A return address is the instruction after the call.
        let probe = (address as u64).wrapping_sub(1);
        let Ok(mut frames) = context.find_frames(probe).skip_all_loads() else { return all };
        while let Ok(Some(frame)) = frames.next() {
            let Some(location) = frame.location else { continue };
            let (Some(file), Some(line)) = (location.file, location.line) else { continue };
            let file = file.trim_start_matches("./");
            all.push(match location.column {
                Some(column) if column > 0 => format!("{file}:{line}:{column}"),
                _ => format!("{file}:{line}"),
            });
        }
        all
    }
}

/// Whether a place lies in the headers that stand in for CUDA's: no place of a user's.
pub(crate) fn is_stand_in(place: &str) -> bool {
    place.contains("emulator/include/") || place.contains("emulator/compat/")
}
