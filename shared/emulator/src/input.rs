//! What others have written: files, and texts that a message quotes.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A file of this size is read whatever memory is free.
const SMALL: u64 = 1 << 26;

/// Opens a regular file, to read it in pieces.
///
/// # Errors
/// It is a directory, a FIFO, a socket or a device, which may have no end; it cannot be opened.
pub fn open_file(path: &Path) -> std::io::Result<File> {
    // Before it is opened: the open of a FIFO waits for somebody who writes.
    let kind = std::fs::metadata(path)?.file_type();
    let refuse =
        |got: &str| Err(Error::new(ErrorKind::InvalidInput, format!("expected a file, got {got}")));
    match () {
        () if kind.is_file() => File::open(path),
        () if kind.is_dir() => Err(Error::from_raw_os_error(libc::EISDIR)),
        () if kind.is_fifo() => refuse("a FIFO"),
        () if kind.is_socket() => refuse("a socket"),
        () => refuse("a device"),
    }
}

/// The bytes of a regular file.
///
/// # Errors
/// As [`open_file`]; it is larger than a quarter of the memory that is free, since its contents are held more
/// than once; it cannot be read.
pub fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = open_file(path)?;
    let len = file.metadata()?.len();
    let most = if len <= SMALL { SMALL } else { host_memory().0 / 4 };
    let too_large = |bytes: u64| {
        let message = format!(
            "expected at most {most} bytes, a quarter of the memory that is free, got {bytes}"
        );
        Error::new(ErrorKind::FileTooLarge, message)
    };
    if len > most {
        return Err(too_large(len));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    // Some files have no size, and others grow.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// A name that a safetensors file has twice. Its header begins behind eight bytes and is one JSON object; a reader of JSON
/// would keep the last and drop the others without a word.
pub fn repeated_name(safetensors: &[u8]) -> Option<String> {
    let (length, rest) = safetensors.split_first_chunk()?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let mut names = names_of_json(header);
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1])?;
    Some(shown(&String::from_utf8_lossy(twice[0]), 60))
}

/// The names of a JSON object as its text has them, each as often as it stands there.
fn names_of_json(text: &[u8]) -> Vec<&[u8]> {
    let (mut names, mut depth, mut at) = (Vec::new(), 0_usize, 0);
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let start = at;
                while text.get(at).is_some_and(|&b| b != b'"') {
                    at += 1 + usize::from(text[at] == b'\\');
                }
                let end = at.min(text.len());
                at += 1;
                let mut behind =
                    text[at.min(text.len())..].iter().skip_while(|b| b.is_ascii_whitespace());
                if depth == 1 && behind.next() == Some(&b':') {
                    names.push(&text[start..end]);
                }
            }
            _ => {}
        }
    }
    names
}

/// The text of a regular file.
///
/// # Errors
/// As [`read_file`]; the first byte that is not UTF-8, with its offset and line.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    String::from_utf8(read_file(path)?).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let bytes = e.as_bytes();
        let line = 1 + bytes[..good].iter().filter(|b| **b == b'\n').count();
        let got = format!("byte 0x{:02X} at offset {good}, line {line}", bytes[good]);
        Error::new(ErrorKind::InvalidData, format!("expected UTF-8, got {got}"))
    })
}

/// Available and total memory of the host, in bytes.
pub fn host_memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let read = |field: &str| {
        let line = text.lines().find(|l| l.starts_with(field))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let total = read("MemTotal:").unwrap_or(u64::MAX);
    (read("MemAvailable:").unwrap_or(total), total)
}

/// A text for a line of a message: what a terminal acts on is escaped, and where that is longer than `most`
/// characters the middle is left out.
pub fn shown(text: &str, most: usize) -> String {
    // No more of a long text is looked at than is shown.
    if text.chars().take(most + 1).count() <= most {
        let all = escaped(text, false);
        if all.chars().count() <= most {
            return all;
        }
    }
    let fitting = |characters: &mut dyn Iterator<Item = char>, most: usize| {
        let mut left = most;
        let mut parts = Vec::new();
        for c in characters {
            let part = escaped(c.encode_utf8(&mut [0; 4]), false);
            match left.checked_sub(part.chars().count()) {
                Some(rest) => left = rest,
                None => break,
            }
            parts.push(part);
        }
        parts
    };
    let head = fitting(&mut text.chars(), most / 2);
    let mut tail = fitting(&mut text.chars().rev(), most - most / 2);
    tail.reverse();
    format!("{}…{}", head.concat(), tail.concat())
}

/// A message of several lines: what a terminal acts on is escaped, but for line ends and tabs.
pub fn shown_lines(text: &str) -> String {
    escaped(text, true)
}

fn escaped(text: &str, lines: bool) -> String {
    let mut all = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' if lines => all.push(c),
            c if acts(c) => {
                let _ = write!(all, "{}", c.escape_default());
            }
            c => all.push(c),
        }
    }
    all
}

/// Whether it is no sign that is seen: a control character, a line separator, or what turns the direction of
/// writing.
fn acts(c: char) -> bool {
    let turns =
        matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}');
    c.is_control() || turns || c == '\u{FEFF}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused() {
        let said = |path: &str| read_file(Path::new(path)).unwrap_err().to_string();
        assert_eq!(said("/dev/zero"), "expected a file, got a device");
        assert!(said("/").starts_with("Is a directory"));
        assert!(said("/no/such").starts_with("No such file"));
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(said(fifo.to_str().unwrap()), "expected a file, got a FIFO");
        // A hole: it takes no room on the disk, and would in memory.
        let huge = directory.path().join("huge");
        File::create(&huge).unwrap().set_len(1 << 43).unwrap();
        assert!(said(huge.to_str().unwrap()).starts_with("expected at most"));
        // Its size is said to be 0.
        assert!(!read_file(Path::new("/proc/self/status")).unwrap().is_empty());
    }

    #[test]
    fn a_name_that_stands_twice_in_a_header_is_found() {
        let repeated = |header: &str| {
            repeated_name(&[&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat())
        };
        let x = r#""x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let y = x.replacen('x', "y", 1);
        assert_eq!(repeated(&format!("{{{x},{y},{x}}}")), Some("x".into()));
        assert_eq!(repeated(&format!("{{{x},{y}}}")), None);
        // Names further in, values, and quotes that are escaped are none.
        assert_eq!(repeated(r#"{"a":{"a":"a","b":"b"}, "b\"a" : "a", "c":["a","a"]}"#), None);
        for broken in ["", "{", "{\"", "{\"x\\", "]}\"x\":\"x\":"] {
            repeated(broken);
        }
        assert_eq!(repeated_name(b"short"), None);
        assert_eq!(repeated_name(&u64::MAX.to_le_bytes()), None);
    }

    #[test]
    fn a_message_stays_on_its_line() {
        assert_eq!(shown("a\u{1B}[2J\r\n\u{202E}ä", 40), "a\\u{1b}[2J\\r\\n\\u{202e}ä");
        assert_eq!(shown("123456789", 8), "1234…6789");
        assert_eq!(shown("12345678", 8), "12345678");
        assert_eq!(shown("ääääää", 3), "ä…ää");
        assert_eq!(shown("\0\0a\0\0\0", 12), "\\u{0}…\\u{0}");
        assert_eq!(shown(&"\u{202E}".repeat(1000), 300).chars().count(), 1 + 18 * 8 + 18 * 8);
        assert_eq!(shown_lines("a\n\tb\u{7}"), "a\n\tb\\u{7}");
    }
}
