//! Compiled images on disk, so that a kernel is compiled once for each GPU architecture.
//!
//! The key covers everything that decides the image: text, headers, options, architecture, NVRTC's
//! version, the names. Files are written whole and renamed; what fails its checksum is compiled
//! again. A cache that cannot be used costs time, never a result.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::nvrtc::{Image, Nvrtc};
use crate::{Error, KernelSource};

const MAGIC: &[u8] = b"vlstm-lab image 1\n";

/// The image from the cache, or compiled and put there; of the file with more text behind it.
pub(crate) fn image(
    source: &KernelSource,
    appended: &str,
    names: &[&str],
    arch: &str,
) -> Result<Image, Error> {
    let nvrtc = Nvrtc::get()?;
    let path = path(nvrtc, source, appended, names, arch);
    if let Some(image) = path.as_ref().and_then(|p| std::fs::read(p).ok()).and_then(|b| decode(&b))
    {
        return Ok(image);
    }
    let image = nvrtc.compile_with(source, appended, names, arch)?;
    if let Some(path) = path
        && let Some(directory) = path.parent()
        && std::fs::create_dir_all(directory).is_ok()
    {
        // Not written: compiled again next time, which is all that is lost.
        let _ = lab_emulator::write_atomically(&path, &encode(&image));
    }
    Ok(image)
}

fn path(
    nvrtc: &Nvrtc,
    source: &KernelSource,
    appended: &str,
    names: &[&str],
    arch: &str,
) -> Option<PathBuf> {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(source.source);
    add(appended);
    source.headers.iter().for_each(|(name, text)| {
        add(name);
        add(text);
    });
    Nvrtc::options(arch).iter().for_each(|o| add(o));
    add(&format!("{:?}", nvrtc.version()));
    names.iter().for_each(|n| add(n));
    let directory = lab_emulator::cache_directory()?.join("cuda");
    Some(directory.join(format!("{}-{arch}-{:x}.image", source.name, hash.finalize())))
}

fn encode(image: &Image) -> Vec<u8> {
    let mut body = Vec::new();
    let mut put = |bytes: &[u8]| {
        body.extend((bytes.len() as u64).to_le_bytes());
        body.extend(bytes);
    };
    put(&image.cubin);
    put(image.log.as_bytes());
    for (name, symbol) in &image.symbols {
        put(name.as_bytes());
        put(symbol.as_bytes());
    }
    [MAGIC, &Sha256::digest(&body), &body].concat()
}

fn decode(file: &[u8]) -> Option<Image> {
    let rest = file.strip_prefix(MAGIC)?;
    let (sum, mut body) = rest.split_at_checked(32)?;
    if Sha256::digest(body).as_slice() != sum {
        return None;
    }
    let mut take = || -> Option<Vec<u8>> {
        let (len, rest) = body.split_at_checked(8)?;
        let len = usize::try_from(u64::from_le_bytes(len.try_into().ok()?)).ok()?;
        let (bytes, rest) = rest.split_at_checked(len)?;
        body = rest;
        Some(bytes.to_vec())
    };
    let cubin = take()?;
    let log = String::from_utf8(take()?).ok()?;
    let mut symbols = BTreeMap::new();
    while let Some(name) = take() {
        symbols.insert(String::from_utf8(name).ok()?, String::from_utf8(take()?).ok()?);
    }
    Some(Image { cubin, symbols, log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_survives_and_a_damaged_one_is_refused() {
        let image = Image {
            cubin: (0..=255).collect(),
            symbols: [("f<float>".to_owned(), "_Z1f".to_owned())].into(),
            log: "ptxas info".into(),
        };
        let file = encode(&image);
        assert_eq!(decode(&file), Some(image));
        for damage in 0..file.len() {
            let mut bad = file.clone();
            bad[damage] ^= 1;
            assert_eq!(decode(&bad), None, "byte {damage}");
            assert_eq!(decode(&file[..damage]), None, "truncated to {damage}");
        }
    }
}
