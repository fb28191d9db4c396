//! Compiled images on disk, so that a kernel is compiled once for each GPU architecture.
//!
//! Two kinds. Those that a package brings along were compiled before it was packed, a whole file at a time, by some
//! version of NVRTC; where one fits, this machine needs none. The others are made here, one instantiation at a time.
//!
//! The key covers everything that decides the image: text, headers, options, architecture, NVRTC's
//! version, the names. Files are written whole and renamed; what fails its checksum is compiled
//! again. A cache that cannot be used costs time, never a result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::nvrtc::{Image, Nvrtc};
use crate::{Error, KernelSource};

const MAGIC: &[u8] = b"vlstm-lab image 1\n";

static BROUGHT: OnceLock<PathBuf> = OnceLock::new();

/// Lets images be looked for in this directory, where [`write()`] has put them. The first call counts.
pub fn take_images(directory: PathBuf) {
    let _ = BROUGHT.set(directory);
}

/// Compiles a kernel file with these of its instantiations, and puts the image where [`take_images`] finds it; which
/// is another file for each text, architecture and option.
///
/// # Errors
/// [`Error::Compile`] with the compiler's log; [`Error::ImageNotWritten`].
pub fn write(
    nvrtc: &Nvrtc,
    source: &KernelSource,
    names: &[&str],
    arch: &str,
    directory: &Path,
) -> Result<Image, Error> {
    let globals: Vec<String> = source.globals.iter().map(|g| format!("&{g}")).collect();
    let names: Vec<&str> =
        names.iter().copied().chain(globals.iter().map(String::as_str)).collect();
    let mut image = nvrtc.compile_bare(source, &names, arch)?;
    let path = directory.join(brought_name(source, arch));
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| lab_emulator::write_atomically(&path, &encode(&image)));
    written.map_err(|e| Error::ImageNotWritten { path, reason: e.to_string() })?;
    image.symbols.retain(|name, _| !name.starts_with('&'));
    Ok(image)
}

/// One that was brought along and has all these names.
fn find_brought_image(
    directory: &Path,
    source: &KernelSource,
    names: &[&str],
    arch: &str,
) -> Option<Image> {
    // Code for 8.0 runs on all of 8.x.
    let older = arch.starts_with("sm_8").then_some("sm_80");
    let images = [Some(arch), older].into_iter().flatten().filter_map(|arch| {
        decode(&std::fs::read(directory.join(brought_name(source, arch))).ok()?)
    });
    images.into_iter().find(|image| names.iter().all(|name| image.symbols.contains_key(*name)))
}

/// The key but for NVRTC's version and the names, which the image itself tells.
fn brought_name(source: &KernelSource, arch: &str) -> String {
    format!("{}-{arch}-{}.image", source.name, hash(source, "", arch, &[]))
}

/// The image from the cache, or compiled and put there; of the file with more text behind it.
pub(crate) fn image(
    source: &KernelSource,
    appended: &str,
    names: &[&str],
    arch: &str,
) -> Result<Image, Error> {
    if appended.is_empty()
        && let Some(directory) = BROUGHT.get()
        && let Some(image) = find_brought_image(directory, source, names, arch)
    {
        return Ok(image);
    }
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
    let version = format!("{:?}", nvrtc.version());
    let more = [&[version.as_str()], names].concat();
    let directory = lab_emulator::cache_directory()?.join("cuda");
    let hash = hash(source, appended, arch, &more);
    Some(directory.join(format!("{}-{arch}-{hash}.image", source.name)))
}

fn hash(source: &KernelSource, appended: &str, arch: &str, more: &[&str]) -> String {
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
    more.iter().for_each(|n| add(n));
    format!("{:x}", hash.finalize())
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
    use crate::{KernelFile, Object};

    static SOURCE: KernelSource = {
        let file = KernelFile {
            crate_name: "test",
            name: "f",
            file: "kernels/f.cu",
            place: "stages/demo/kernels/f.cu",
            source: "template <class T> __global__ void f() {}",
            headers: &[("lab/a.cuh", "")],
            instantiations: &["f<float>"],
            templates: &[],
            globals: &["g"],
            least_arch: "",
            spills: 0,
            plain: Object::embedded(&[]),
            checked: Object::embedded(&[]),
            kept_in: "",
        };
        // SAFETY: its objects are empty: nothing is loaded.
        unsafe { KernelSource::new(file) }
    };

    #[test]
    fn an_image_that_was_brought_along_is_taken_for_its_text_names_and_architecture() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let symbols = ["f<float>", "&g"].map(|name| (name.to_owned(), format!("_Z{name}")));
        let image = Image { cubin: vec![1, 2], symbols: symbols.into(), log: String::new() };
        std::fs::write(directory.join(brought_name(&SOURCE, "sm_80")), encode(&image)).unwrap();
        let found =
            |source, names: &[&str], arch| find_brought_image(directory, source, names, arch);
        for arch in ["sm_80", "sm_86", "sm_89"] {
            assert_eq!(found(&SOURCE, &["f<float>", "&g"], arch), Some(image.clone()), "{arch}");
        }
        for arch in ["sm_75", "sm_90a", "sm_120"] {
            assert_eq!(found(&SOURCE, &["f<float>"], arch), None, "{arch}");
        }
        assert_eq!(found(&SOURCE, &["f<double>", "&g"], "sm_80"), None);
        let changed = [
            KernelFile { source: "template <class T> __global__ void f() { }", ..*SOURCE },
            KernelFile { headers: &[("lab/a.cuh", " ")], ..*SOURCE },
        ];
        // SAFETY: their objects are empty: nothing is loaded.
        let changed = changed.map(|file| unsafe { KernelSource::new(file) });
        for source in &changed {
            assert_eq!(found(source, &["f<float>"], "sm_80"), None);
        }
        let path = directory.join(brought_name(&SOURCE, "sm_80"));
        std::fs::write(path, &encode(&image)[1..]).unwrap();
        assert_eq!(found(&SOURCE, &["f<float>"], "sm_80"), None);
    }

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
