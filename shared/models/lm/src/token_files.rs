//! Windows of files of tokens, read when a step wants them: files may be of any size, and no memory holds them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use lab_harness::Error;
use sha2::{Digest as _, Sha256};

use crate::tokens::{Header, append, check_known, failed};

/// Files of tokens, one behind the other.
#[derive(Debug)]
pub struct TokenFiles {
    parts: Vec<Part>,
    len: usize,
    vocabulary: usize,
    bytes: u64,
    digest: String,
}

/// One of them.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
    header: Header,
    /// Tokens before its first.
    first: usize,
}

/// The most tokens of a file.
const MOST: u64 = 1 << 40;

/// Bytes that are read at a time for the checksum. Of longer files than so many pieces it has as many, evenly spaced: nobody reads a
/// terabyte before the first step.
const PIECE: usize = 1 << 20;
const MOST_PIECES: u64 = 1 << 10;

impl TokenFiles {
    /// Opens them, and reads what tells them from others.
    ///
    /// # Errors
    /// One cannot be read, is no file of tokens, or is cut short.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let (mut parts, mut len, mut bytes, mut vocabulary) = (Vec::new(), 0, 0, 0);
        let mut hash = Sha256::new();
        for path in paths {
            let (file, header) = Header::read(path, MOST)?;
            let part = Part { path: path.clone(), file, header, first: len };
            part.add_to(&mut hash)?;
            let Header { count, bytes: of_text, vocabulary: own, .. } = part.header;
            len += count as usize;
            bytes += of_text;
            vocabulary = vocabulary.max(own as usize);
            parts.push(part);
        }
        let digest = format!("{:x}", hash.finalize());
        Ok(Self { parts, len, vocabulary, bytes, digest })
    }

    /// Tokens of all of them.
    #[allow(clippy::len_without_is_empty)] // nobody asks
    pub fn len(&self) -> usize {
        self.len
    }

    /// Each token is below it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Bytes of the texts that they are of.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// So many tokens from `start` on.
    ///
    /// # Errors
    /// A file cannot be read; there are not so many; one is not of its file's vocabulary.
    pub fn read(&self, start: usize, count: usize) -> Result<Vec<i32>, Error> {
        let end = start.checked_add(count).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| {
            Error::bad("tokens of the files", format!("at most {}", self.len), start)
        })?;
        let mut ids = Vec::with_capacity(count);
        for part in &self.parts {
            let last = part.first + part.header.count as usize;
            let (from, to) = (start.max(part.first), end.min(last));
            if from < to {
                part.read(&mut ids, from - part.first, to - from)?;
            }
        }
        Ok(ids)
    }
}

/// By what tells them from others.
impl PartialEq for TokenFiles {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for TokenFiles {}

impl Part {
    fn read(&self, ids: &mut Vec<i32>, start: usize, count: usize) -> Result<(), Error> {
        let Header { size, vocabulary, .. } = self.header;
        let mut bytes = vec![0; count * size as usize];
        let at = Header::LEN + start as u64 * size;
        self.file.read_exact_at(&mut bytes, at).map_err(|e| failed(&self.path, e))?;
        let before = ids.len();
        append(ids, &bytes, size);
        check_known(&self.path, &ids[before..], start as u64, vocabulary)
    }

    /// Its header, and its bytes or pieces of them.
    fn add_to(&self, hash: &mut Sha256) -> Result<(), Error> {
        let len = Header::LEN + self.header.count * self.header.size;
        let pieces = len.div_ceil(PIECE as u64);
        let read = pieces.min(MOST_PIECES);
        let mut piece = vec![0; PIECE];
        for n in 0..read {
            // The first is among them, and so is the last.
            let at = n * (pieces - 1) / (read - 1).max(1) * PIECE as u64;
            let piece = &mut piece[..(len - at).min(PIECE as u64) as usize];
            self.file.read_exact_at(piece, at).map_err(|e| failed(&self.path, e))?;
            hash.update(piece);
        }
        hash.update(len.to_le_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenFile;

    #[test]
    fn tokens_are_read_across_files_and_changed_files_have_another_digest() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let write = |name: &str, vocabulary: usize, ids: &[i32]| {
            TokenFile { vocabulary, bytes: 5, ids: ids.to_vec() }.write(&at(name)).unwrap();
        };
        write("a", 300, &[1, 2, 299]);
        write("b", 70_000, &[69_999, 4]);
        let paths = [at("a"), at("b")];
        let files = TokenFiles::open(&paths).unwrap();
        assert_eq!((files.len(), files.vocabulary(), files.bytes()), (5, 70_000, 10));
        for (start, count, ids) in
            [(0, 5, &[1, 2, 299, 69_999, 4][..]), (2, 2, &[299, 69_999]), (4, 1, &[4]), (5, 0, &[])]
        {
            assert_eq!(files.read(start, count).unwrap(), ids);
        }
        let said = files.read(3, 3).unwrap_err().to_string();
        assert_eq!(said, "tokens of the files: expected at most 5, got 3");

        write("a", 300, &[1, 3, 299]);
        assert_ne!(TokenFiles::open(&paths).unwrap().digest(), files.digest());
        let mut raw = std::fs::read(at("a")).unwrap();
        raw[42..44].copy_from_slice(&[255, 255]);
        std::fs::write(at("a"), raw).unwrap();
        let said = TokenFiles::open(&paths).unwrap().read(1, 1).unwrap_err().to_string();
        let expected = format!("token 1 of {}: expected 0 to 299, got 65535", at("a").display());
        assert_eq!(said, expected);
    }
}
