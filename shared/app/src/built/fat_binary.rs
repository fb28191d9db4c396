//! The device code in a program that nvcc has built: a fat binary, which has PTX, machine code, or both.
//!
//! Its format is not published; `fatbinary_section.h` names its first word. Here is what programs of nvcc 12 and 13 have.

use std::io::Read;

/// The first word of a fat binary.
pub(crate) const MAGIC: u32 = 0xba55_ed50;
/// What an entry is.
const PTX: u16 = 1;
/// Bits of an entry's flags.
const LZ4: u64 = 1 << 13;
const ZSTD: u64 = 1 << 15;
/// More than any module has.
const MOST: u64 = 1 << 30;

/// How to build a program that can be run.
pub(crate) const ADVICE: &str = "build it with nvcc -cudart shared -lineinfo -gencode arch=compute_90a,code=compute_90a \
     (code=compute_… keeps PTX, -lineinfo the source's lines)";

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// One entry.
struct Entry<'a> {
    kind: u16,
    /// 90 of `sm_90`.
    arch: u32,
    flags: u64,
    payload: &'a [u8],
    /// Bytes of `payload` that count, where it is compressed.
    compressed: usize,
    whole: u64,
}

fn entries(bytes: &[u8]) -> Option<Vec<Entry<'_>>> {
    if word(bytes, 0)? != MAGIC {
        return None;
    }
    let header = usize::from(half(bytes, 6)?);
    let end = usize::try_from(long(bytes, 8)?).ok()?.checked_add(header)?.min(bytes.len());
    let (mut all, mut at) = (Vec::new(), header);
    while at < end {
        let own = bytes.get(at..end)?;
        let (header, size) = (word(own, 4)? as usize, usize::try_from(long(own, 8)?).ok()?);
        let next = header.checked_add(size)?;
        all.push(Entry {
            kind: half(own, 0)?,
            arch: word(own, 28)?,
            flags: long(own, 40)?,
            payload: own.get(header..next)?,
            compressed: word(own, 16)? as usize,
            whole: long(own, 56).unwrap_or(0),
        });
        // An entry of no bytes would never end.
        at += next.max(16);
    }
    Some(all)
}

impl Entry<'_> {
    fn text(&self) -> Result<String, String> {
        let wrong = || "PTX: expected what is compressed whole, got something else".to_owned();
        let unpacked = match self.flags & (LZ4 | ZSTD) {
            0 => self.payload.to_vec(),
            _ if self.whole > MOST => return Err(wrong()),
            flags => {
                let packed = self.payload.get(..self.compressed).ok_or_else(wrong)?;
                let whole = self.whole as usize;
                if flags & ZSTD != 0 {
                    let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
                    let mut text = Vec::new();
                    let decoder = decoder.map_err(|_| wrong())?;
                    decoder.take(MOST).read_to_end(&mut text).map_err(|_| wrong())?;
                    text
                } else {
                    lz4_flex::block::decompress(packed, whole).map_err(|_| wrong())?
                }
            }
        };
        let end = unpacked.iter().position(|b| *b == 0).unwrap_or(unpacked.len());
        Ok(String::from_utf8_lossy(&unpacked[..end]).into_owned())
    }
}

/// The PTX of a fat binary: that for the newest GPU which is not newer than `most` (90 for `sm_90`).
///
/// # Errors
/// One line that says what is there instead, and how to build it.
pub(crate) fn ptx(bytes: &[u8], most: u32) -> Result<String, String> {
    let entries =
        entries(bytes).ok_or("a fat binary: expected one of nvcc 12 or 13, got another")?;
    let modules: Vec<&Entry<'_>> = entries.iter().filter(|entry| entry.kind == PTX).collect();
    if modules.is_empty() {
        let machine: Vec<String> = entries.iter().map(|e| format!("sm_{}", e.arch)).collect();
        let got = if machine.is_empty() { "nothing".into() } else { machine.join(", ") };
        return Err(format!("device code: expected PTX, got machine code alone ({got}); {ADVICE}"));
    }
    let fitting = modules.iter().filter(|entry| entry.arch <= most).max_by_key(|entry| entry.arch);
    let Some(entry) = fitting else {
        let got: Vec<String> = modules.iter().map(|e| format!("compute_{}", e.arch)).collect();
        return Err(format!(
            "device code: expected PTX for sm_{most} or older, got that for {}; --arch names a newer GPU",
            got.join(", ")
        ));
    };
    entry.text()
}

/// The newest GPU that a fat binary has PTX for: 90 for `sm_90`.
pub(crate) fn newest(bytes: &[u8]) -> Option<(u32, String)> {
    let entries = entries(bytes)?;
    let newest = entries.iter().filter(|e| e.kind == PTX).max_by_key(|e| e.arch)?;
    Some((newest.arch, newest.text().ok()?))
}
