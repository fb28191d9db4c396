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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 8.0\n.target sm_80\n";

    fn entry(kind: u16, arch: u32, flags: u64, payload: &[u8], whole: usize) -> Vec<u8> {
        let padded = payload.len().next_multiple_of(8);
        let mut all = Vec::new();
        all.extend(kind.to_le_bytes());
        all.extend([1, 1]);
        all.extend(64u32.to_le_bytes());
        all.extend((padded as u64).to_le_bytes());
        all.extend((payload.len() as u32).to_le_bytes());
        all.extend([0; 8]);
        all.extend(arch.to_le_bytes());
        all.extend([0; 8]);
        all.extend(flags.to_le_bytes());
        all.extend([0; 8]);
        all.extend((whole as u64).to_le_bytes());
        all.extend(payload);
        all.resize(64 + padded, 0);
        all
    }

    fn binary(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut all = MAGIC.to_le_bytes().to_vec();
        all.extend([1, 0, 16, 0]);
        all.extend((entries.concat().len() as u64).to_le_bytes());
        all.extend(entries.concat());
        all
    }

    #[test]
    fn the_newest_ptx_that_fits_is_found() {
        let plain = |arch| entry(PTX, arch, 0, format!("{TEXT}{arch}").as_bytes(), 0);
        let all = binary(&[entry(2, 90, 0, b"ELF", 0), plain(75), plain(90), plain(80)]);
        assert_eq!(ptx(&all, 90).unwrap(), format!("{TEXT}90"));
        assert_eq!(ptx(&all, 89).unwrap(), format!("{TEXT}80"));
        assert_eq!(newest(&all).unwrap(), (90, format!("{TEXT}90")));
        let error = ptx(&all, 70).unwrap_err();
        assert!(
            error.contains("for sm_70 or older, got that for compute_75, compute_90"),
            "{error}"
        );
        let error = ptx(&binary(&[entry(2, 90, 0, b"ELF", 0)]), 90).unwrap_err();
        assert!(error.contains("got machine code alone (sm_90); build it with nvcc"), "{error}");
    }

    #[test]
    fn what_is_compressed_is_read() {
        let text = TEXT.repeat(50);
        let zstd = ruzstd::encoding::compress_to_vec(
            text.as_bytes(),
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        let lz4 = lz4_flex::block::compress(text.as_bytes());
        for (flags, packed) in [(ZSTD, zstd), (LZ4, lz4)] {
            let all = binary(&[entry(PTX, 80, flags, &packed, text.len())]);
            assert_eq!(ptx(&all, 80).unwrap(), text);
        }
    }

    /// Refused or read, and no panic.
    #[test]
    fn what_is_malformed_is_no_panic() {
        let lz4 = lz4_flex::block::compress(TEXT.as_bytes());
        let all = binary(&[entry(PTX, 80, LZ4, &lz4, TEXT.len()), entry(PTX, 75, 0, b"x", 1)]);
        for end in 0..all.len() {
            let _ = (ptx(&all[..end], 90), newest(&all[..end]));
            for value in [0, 1, 0x7f, 0xff] {
                let mut other = all.clone();
                other[end] = value;
                let _ = (ptx(&other, 90), newest(&other));
            }
        }
    }
}
