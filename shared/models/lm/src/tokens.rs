//! Files of tokens: a small header, and the tokens in two bytes each, or in four where the vocabulary needs them.
//!
//! ```text
//! "labtoken"  version u32  bytes of a token u32  vocabulary u64  tokens u64  bytes of the text u64  tokens …      little-endian
//! ```

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;

use lab_device::emulator::{open_file, write_atomically_by};
use lab_harness::Error;

/// Tokens of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    /// Each is below it.
    pub vocabulary: usize,
    /// Bytes of the text that they are of.
    pub bytes: u64,
    /// In their order.
    pub ids: Vec<i32>,
}

const MAGIC: [u8; 8] = *b"labtoken";
const VERSION: u32 = 1;

/// The most tokens, and the largest vocabulary.
const MOST: u64 = 1 << 30;

/// Tokens that are read or written at a time.
const PIECE: usize = 1 << 16;

impl TokenFile {
    /// Whether a regular file begins as one of tokens does.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_one(path: &Path) -> Result<bool, Error> {
        let mut first = Vec::new();
        let file = open_file(path).map_err(|e| failed(path, e))?;
        file.take(MAGIC.len() as u64).read_to_end(&mut first).map_err(|e| failed(path, e))?;
        Ok(first == MAGIC)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, is none, or is cut short; it has more than 2³⁰ tokens; a token is not of its vocabulary.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (file, Header { vocabulary, bytes, count, size }) = Header::read(path, MOST)?;
        let mut file = BufReader::new(file);
        let mut ids = Vec::with_capacity(count as usize);
        let mut piece = vec![0; PIECE * size as usize];
        while ids.len() < count as usize {
            let some = PIECE.min(count as usize - ids.len());
            let piece = &mut piece[..some * size as usize];
            file.read_exact(piece).map_err(|e| failed(path, e))?;
            append(&mut ids, piece, size);
        }
        check_known(path, &ids, 0, vocabulary)?;
        Ok(Self { vocabulary: vocabulary as usize, bytes, ids })
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    ///
    /// # Panics
    /// A token is not of the vocabulary; there are more than a file may have.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let Self { vocabulary, bytes, ref ids } = *self;
        let (vocabulary, count) = (vocabulary as u64, ids.len() as u64);
        assert!((1..=MOST).contains(&vocabulary) && count <= MOST, "{count} of {vocabulary}");
        let size = bytes_of_id(vocabulary);
        let written = write_atomically_by(path, |file| {
            let mut file = BufWriter::new(file);
            file.write_all(&MAGIC)?;
            file.write_all(&VERSION.to_le_bytes())?;
            file.write_all(&(size as u32).to_le_bytes())?;
            for long in [vocabulary, count, bytes] {
                file.write_all(&long.to_le_bytes())?;
            }
            for &id in ids {
                let id = u32::try_from(id).expect("a token");
                assert!(u64::from(id) < vocabulary, "token {id} of {vocabulary}");
                file.write_all(&id.to_le_bytes()[..size as usize])?;
            }
            file.flush()
        });
        written.map_err(|e| failed(path, e))
    }
}

/// What a file of tokens says of them.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) vocabulary: u64,
    /// Of the text.
    pub(crate) bytes: u64,
    /// Tokens.
    pub(crate) count: u64,
    /// Bytes of a token.
    pub(crate) size: u64,
}

impl Header {
    /// Bytes of it in a file.
    pub(crate) const LEN: u64 = 40;

    /// Of a file with at most so many tokens, which is read up to the first of them.
    ///
    /// # Errors
    /// It cannot be read, is none, or is cut short.
    pub(crate) fn read(path: &Path, most: u64) -> Result<(File, Self), Error> {
        let mut file = open_file(path).map_err(|e| failed(path, e))?;
        let refuse = |what: &str, expected: String, got: String| {
            Err(Error::bad(format!("{what} of {}", path.display()), expected, got))
        };
        let len = file.metadata().map_err(|e| failed(path, e))?.len();
        let mut header = [0; Self::LEN as usize];
        if len < Self::LEN {
            return refuse("length", format!("at least {} bytes", Self::LEN), len.to_string());
        }
        file.read_exact(&mut header).map_err(|e| failed(path, e))?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight"));
        if header[..8] != MAGIC {
            return refuse("beginning", "that of a file of tokens".into(), "another".into());
        }
        if word(8) != VERSION {
            return refuse("version", VERSION.to_string(), word(8).to_string());
        }
        let [vocabulary, count, bytes] = [16, 24, 32].map(long);
        if !(1..=MOST).contains(&vocabulary) {
            return refuse("vocabulary", format!("1 to {MOST}"), vocabulary.to_string());
        }
        let size = bytes_of_id(vocabulary);
        if u64::from(word(12)) != size {
            let expected = format!("{size}, for a vocabulary of {vocabulary}");
            return refuse("bytes of a token", expected, word(12).to_string());
        }
        if count > most {
            return refuse("tokens", format!("at most {most}"), count.to_string());
        }
        if len != Self::LEN + size * count {
            let expected = format!("{}, of {count} tokens", Self::LEN + size * count);
            return refuse("length", expected, len.to_string());
        }
        Ok((file, Self { vocabulary, bytes, count, size }))
    }
}

/// Adds tokens of so many bytes each.
pub(crate) fn append(ids: &mut Vec<i32>, bytes: &[u8], size: u64) {
    ids.extend(bytes.chunks(size as usize).map(|id| match *id {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        _ => u32::from_le_bytes(id.try_into().expect("four")),
    } as i32));
}

/// Refuses tokens of a file, from this one on, that are not of its vocabulary.
pub(crate) fn check_known(
    path: &Path,
    ids: &[i32],
    first: u64,
    vocabulary: u64,
) -> Result<(), Error> {
    let is_known = |id: &i32| u64::try_from(*id).is_ok_and(|id| id < vocabulary);
    let Some(at) = ids.iter().position(|id| !is_known(id)) else { return Ok(()) };
    let what = format!("token {} of {}", first + at as u64, path.display());
    Err(Error::bad(what, format!("0 to {}", vocabulary - 1), ids[at] as u32))
}

fn bytes_of_id(vocabulary: u64) -> u64 {
    if vocabulary <= 1 << 16 { 2 } else { 4 }
}

pub(crate) fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("some.tokens");
        for (vocabulary, size) in [(1 << 16, 2), ((1 << 16) + 1, 4)] {
            let ids = (0..PIECE as i32 + 9).map(|n| n % vocabulary).collect();
            let all = TokenFile { vocabulary: vocabulary as usize, bytes: 7, ids };
            all.write(&path).unwrap();
            assert_eq!(path.metadata().unwrap().len(), 40 + size * (PIECE as u64 + 9));
            assert!(TokenFile::is_one(&path).unwrap());
            assert!(TokenFile::read(&path).unwrap() == all);
        }
        std::fs::write(&path, "labtoke").unwrap();
        assert!(!TokenFile::is_one(&path).unwrap());
    }

    #[test]
    fn what_is_no_file_of_tokens_is_refused_by_what_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        TokenFile { vocabulary: 300, bytes: 9, ids: vec![1, 299, 5] }.write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = whole.clone();
            bytes[at..at + to.len()].copy_from_slice(to);
            bytes
        };
        for (bytes, said) in [
            (whole[..39].to_vec(), "length of T: expected at least 40 bytes, got 39"),
            (whole[..45].to_vec(), "length of T: expected 46, of 3 tokens, got 45"),
            (changed(0, b"L"), "beginning of T: expected that of a file of tokens, got another"),
            (changed(8, &[2]), "version of T: expected 1, got 2"),
            (
                changed(12, &[4]),
                "bytes of a token of T: expected 2, for a vocabulary of 300, got 4",
            ),
            (changed(16, &[0; 8]), "vocabulary of T: expected 1 to 1073741824, got 0"),
            (
                changed(31, &[255]),
                "tokens of T: expected at most 1073741824, got 18374686479671623683",
            ),
            (changed(42, &[255, 255]), "token 1 of T: expected 0 to 299, got 65535"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let got = TokenFile::read(&path).unwrap_err().to_string();
            assert_eq!(got.replace(&path.display().to_string(), "T"), said);
        }
    }
}
