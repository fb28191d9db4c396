//! A file, a piece at a time.

use std::io::Read;
use std::path::Path;

use lab_harness::Error;

/// Bytes that are read at once. A piece ends with the last whitespace among them, so that no word is cut;
/// without any it goes on to the next.
const PIECE: usize = 1 << 20;

/// Gives each piece of a file in turn: never the whole of a large file.
///
/// # Errors
/// [`Error::File`]: it cannot be read, or is empty. Whatever `take` says.
pub(super) fn of_file(
    path: &Path,
    mut take: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let bad = |e: std::io::Error| bad_file(path, e.to_string());
    let mut file = lab_device::emulator::open_file(path).map_err(bad)?;
    let mut held: Vec<u8> = Vec::new();
    let mut empty = true;
    loop {
        let before = held.len();
        (&mut file).take(PIECE as u64).read_to_end(&mut held).map_err(bad)?;
        if held.len() == before {
            break;
        }
        empty = false;
        if let Some(last) = held.iter().rposition(u8::is_ascii_whitespace) {
            take(&held[..=last])?;
            held.drain(..=last);
        }
    }
    if empty {
        return Err(bad_file(path, "expected a text, got an empty file"));
    }
    if held.is_empty() { Ok(()) } else { take(&held) }
}

/// The text of these bytes, which begin so many bytes and line ends into the file.
///
/// # Errors
/// [`Error::File`] with the offset and the line of the first byte that is no UTF-8.
pub(super) fn text<'a>(
    path: &Path,
    piece: &'a [u8],
    offset: usize,
    lines: usize,
) -> Result<&'a str, Error> {
    std::str::from_utf8(piece).map_err(|e| {
        let good = e.valid_up_to();
        let line = 1 + lines + line_ends(&piece[..good]);
        let got = format!("byte 0x{:02X} at offset {}, line {line}", piece[good], offset + good);
        bad_file(path, format!("expected UTF-8, got {got}; --tokens bytes takes any file"))
    })
}

pub(super) fn line_ends(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| **b == b'\n').count()
}

pub(super) fn bad_file(path: &Path, message: impl Into<String>) -> Error {
    Error::File { path: path.display().to_string(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8]) -> Vec<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        std::fs::write(&path, bytes).unwrap();
        let mut all = Vec::new();
        of_file(&path, |piece| {
            all.push(piece.to_vec());
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn pieces_are_the_file_and_cut_no_word() {
        let long: Vec<u8> = (0..3 * PIECE).map(|n| if n % 7 == 6 { b' ' } else { b'a' }).collect();
        let all = pieces(&long);
        assert!(all.len() >= 3 && all[0].len() <= PIECE);
        assert!(all[..all.len() - 1].iter().all(|p| p.ends_with(b" ")));
        assert_eq!(all.concat(), long);
        // One word, longer than a piece.
        let word = vec![b'w'; 2 * PIECE + 5];
        assert_eq!(pieces(&word), [word]);
    }

    #[test]
    fn what_is_no_text_is_said_with_its_place() {
        let path = Path::new("t.txt");
        let error = text(path, b"b\n\xC3(", 10, 4).unwrap_err().to_string();
        assert!(error.contains("t.txt"), "{error}");
        assert!(error.contains("got byte 0xC3 at offset 12, line 6"), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("e");
        std::fs::write(&empty, "").unwrap();
        let said = |path: &Path| of_file(path, |_| Ok(())).unwrap_err().to_string();
        assert!(said(&empty).ends_with("got an empty file"));
        assert!(said(Path::new("no/such")).contains("no/such"));
        assert!(!said(directory.path()).is_empty(), "a directory");
    }
}
