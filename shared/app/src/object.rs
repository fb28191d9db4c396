//! What is looked at and changed in a compiled program before it is loaded.

use std::ffi::{c_char, c_int, c_void};

use lab_emulator::Module;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::Error;
use crate::rewrite::Kernel;

/// A function that the loader would call: an initialiser of a variable, or a constructor.
type Initialiser = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char);

/// The static initialisers of a program. Loading it runs none: they may launch kernels, end the program, run for ever, and
/// whatever watches over the program must be there before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Initialisers {
    /// From the object's base.
    address: usize,
    count: usize,
}

const DYNAMIC: u32 = 2;
const INIT_ARRAY: u64 = 25;
const INIT_ARRAY_SIZE: u64 = 27;

impl Initialisers {
    /// Takes them out of what the loader does.
    pub(crate) fn take(bytes: &mut [u8]) -> Self {
        Self::find(bytes).unwrap_or_default()
    }

    fn find(bytes: &mut [u8]) -> Option<Self> {
        let word = |bytes: &[u8], at: usize| {
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let half = |bytes: &[u8], at: usize| {
            Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
        };
        let (headers, each, count) =
            (word(bytes, 32)? as usize, half(bytes, 54)?, half(bytes, 56)?);
        let dynamic = (0..count)
            .map(|n| headers + n * each)
            .find(|&at| bytes.get(at..at + 4).is_some_and(|kind| kind == DYNAMIC.to_le_bytes()))?;
        let (from, size) =
            (word(bytes, dynamic + 8)? as usize, word(bytes, dynamic + 32)? as usize);
        let mut found = Self::default();
        for at in (from..from + size).step_by(16) {
            match word(bytes, at)? {
                INIT_ARRAY => found.address = word(bytes, at + 8)? as usize,
                INIT_ARRAY_SIZE => {
                    found.count = word(bytes, at + 8)? as usize / size_of::<Initialiser>();
                    bytes.get_mut(at + 8..at + 16)?.fill(0);
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// Runs them in their order; an exception is told as one of `main` is. The exit code, if there is to be one.
    ///
    /// # Safety
    /// They are those of this module, whose functions have not been called; `arguments` are those of its `main`.
    pub(crate) unsafe fn run(
        self,
        module: &Module,
        count: c_int,
        arguments: *mut *mut c_char,
    ) -> Option<c_int> {
        type Run = extern "C" fn(*const Initialiser, usize, c_int, *mut *mut c_char) -> c_int;
        let run = module.symbol("emu_initialise")?;
        // SAFETY: room for the answer; compat/program.cpp defines the symbol with this type.
        let (base, run) = unsafe {
            let mut facts = std::mem::MaybeUninit::<libc::Dl_info>::zeroed().assume_init();
            if libc::dladdr(run, &raw mut facts) == 0 {
                return None;
            }
            (facts.dli_fbase as usize, std::mem::transmute::<*mut c_void, Run>(run))
        };
        let first = (base + self.address) as *const Initialiser;
        match run(first, self.count, count, arguments) {
            0 => None,
            code => Some(code),
        }
    }
}

/// Bytes of static shared memory that a kernel may have, on every GPU.
const MOST_STATIC_SHARED: u64 = 48 << 10;

/// Refuses kernels with more static shared memory than nvcc takes. It is a variable of the object for each thread: a
/// large one could not even be loaded.
pub(crate) fn check_shared<'a>(
    bytes: &[u8],
    kernels: impl Iterator<Item = &'a Kernel>,
) -> Result<(), Error> {
    let Ok(file) = object::File::parse(bytes) else { return Ok(()) };
    let shared: Vec<(String, u64)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Tls)
        .filter_map(|symbol| Some((function_of(symbol.name().ok()?)?.to_owned(), symbol.size())))
        .collect();
    for kernel in kernels {
        let name = kernel.name.split('<').next().unwrap_or_default();
        let own = format!("{}{name}", name.len());
        // Of a template each instantiation has its own.
        let mut functions: Vec<&str> = shared.iter().map(|(f, _)| f.as_str()).collect();
        functions.retain(|function| function.contains(&own));
        functions.sort_unstable();
        functions.dedup();
        for function in functions {
            let sizes = shared.iter().filter(|(f, _)| f == function).map(|(_, size)| size);
            let all: u64 = sizes.sum();
            if all > MOST_STATIC_SHARED {
                let summary = format!(
                    "kernel {name}: expected at most {MOST_STATIC_SHARED} bytes of static shared memory, got {all}; \
                     more must be dynamic"
                );
                return Err(Error::Compile { said: summary.clone(), summary });
            }
        }
    }
    Ok(())
}

/// The mangled function that a variable of its own is in: `_ZZ` function `E` name, and a number where there are several of
/// the name.
fn function_of(symbol: &str) -> Option<&str> {
    let rest = symbol.strip_prefix("_ZZ")?;
    let plain = rest.trim_end_matches(|c: char| c == '_' || c.is_ascii_digit());
    // The name may end with digits itself.
    (plain.len()..=rest.len()).find_map(|end| {
        let entity = &rest[..end];
        entity.char_indices().rev().filter(|(_, c)| *c == 'E').find_map(|(at, _)| {
            let name = &entity[at + 1..];
            let digits = name.find(|c: char| !c.is_ascii_digit())?;
            let length: usize = name[..digits].parse().ok()?;
            (name.len() - digits == length).then_some(&entity[..at])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::function_of;

    #[test]
    fn the_function_of_a_shared_array() {
        assert_eq!(function_of("_ZZ3sumPfE4tile"), Some("3sumPf"));
        assert_eq!(function_of("_ZZ3sumPfE5tile2"), Some("3sumPf"));
        assert_eq!(function_of("_ZZ3sumPfE4tile_0"), Some("3sumPf"));
        assert_eq!(function_of("_ZZN2ns1kIfLi4EEEvPT_E1E__1_"), Some("N2ns1kIfLi4EEEvPT_"));
        assert_eq!(function_of("tile"), None);
    }
}
