//! NVIDIA's compiler, where it is installed: a front for what the host's compiler does not take.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::compiling::Compiling;
use crate::program::{scratch, summary};
use crate::{Built, Error, Options, built, headers};

/// How to get it without a GPU or a toolkit.
const INSTALL: &str = "install the CUDA toolkit and set CUDA_HOME, or: \
     pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl nvidia-nvvm";

/// nvcc, found.
#[derive(Clone, Debug)]
pub struct Nvcc {
    path: PathBuf,
    /// 13 of 13.0.
    major: u32,
    version: String,
}

impl Nvcc {
    /// Looks in `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`, on the path, and among the packages of the `python3` on the
    /// path.
    ///
    /// # Errors
    /// There is none: one line that says how to get it.
    pub fn find() -> Result<Self, Error> {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let roots = [set("CUDA_HOME"), set("CUDA_PATH"), Some("/usr/local/cuda".into())];
        let mut directories: Vec<PathBuf> =
            roots.into_iter().flatten().map(|root| root.join("bin")).collect();
        let path = std::env::var_os("PATH").unwrap_or_default();
        directories.extend(std::env::split_paths(&path));
        let found = directories.into_iter().map(|directory| directory.join("nvcc"));
        let found = found.chain(in_packages()).find(|file| file.is_file());
        let none =
            || Error::Refused(format!("nvcc: expected it to be installed, found none; {INSTALL}"));
        let path = found.ok_or_else(none)?;
        let failed = |why: String| Error::Refused(format!("{}: {why}", path.display()));
        let output =
            Command::new(&path).arg("--version").output().map_err(|e| failed(e.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.split("release ").nth(1).and_then(|rest| rest.split(',').next());
        let version = version.ok_or_else(|| failed("expected a version, got none".into()))?;
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        let major = major.ok_or_else(|| failed(format!("expected a version, got '{version}'")))?;
        Ok(Self { path: path.clone(), major, version: version.to_owned() })
    }

    /// `nvcc 13.0`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("nvcc {}", self.version)
    }

    fn command(&self, options: &Options) -> Command {
        let mut command = Command::new(&self.path);
        let standard = options.standard.as_deref().unwrap_or("c++17");
        let arch = options.arch.to_string().replace("sm_", "compute_");
        command
            .arg(format!("-std={standard}"))
            .args(["-lineinfo", "-w", "--expt-relaxed-constexpr", "--extended-lambda"])
            .arg(format!("-gencode=arch={arch},code={arch}"));
        command.args(options.include.iter().map(|directory| format!("-I{}", directory.display())));
        command.args(options.define.iter().map(|define| format!("-D{define}")));
        command
    }

    /// Builds a program of these files.
    ///
    /// # Errors
    /// What nvcc says.
    pub fn build(&self, files: &[PathBuf], options: &Options) -> Result<Built, Error> {
        let scratch = scratch()?;
        let program = scratch.path().join("program");
        let folder = built::folder(&[self.major], options.arch)?;
        let mut command = self.command(options);
        command
            .args(["-O2", "-cudart", "shared", "-L"])
            .arg(&folder)
            .args(libraries(&self.path).iter().flat_map(|own| [Path::new("-L"), own]))
            .args(files)
            .arg("-o")
            .arg(&program);
        let compiling = Compiling::begin(scratch.path(), options);
        compiling.end(run(command))?;
        Ok(Built::open(&program, options, Some(options.arch))?.hold(scratch))
    }

    /// Makes a module of PTX of one file: where it lies.
    ///
    /// # Errors
    /// What nvcc says.
    pub fn module(&self, file: &Path, options: &Options) -> Result<PathBuf, Error> {
        let own = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let mut hash = Sha256::new();
        hash.update(own.as_os_str().as_encoded_bytes());
        hash.update(format!("{:?} {:?} {}", options.define, options.include, options.arch));
        let folder =
            headers::objects(&headers::root()?).join(format!("nvcc.{:.16x}", hash.finalize()));
        let refuse =
            |e: std::io::Error| Error::File { path: folder.clone(), reason: e.to_string() };
        std::fs::create_dir_all(&folder).map_err(refuse)?;
        let stem = file.file_stem().unwrap_or_default();
        let module = folder.join(stem).with_extension("ptx");
        let scratch = scratch()?;
        let made = scratch.path().join("module.ptx");
        let mut command = self.command(options);
        command.arg("-ptx").arg(&own).arg("-o").arg(&made);
        let compiling = Compiling::begin(scratch.path(), options);
        compiling.end(run(command))?;
        let text = std::fs::read(&made).map_err(refuse)?;
        lab_emulator::write_atomically(&module, &text).map_err(refuse)?;
        Ok(module)
    }
}

fn run(mut command: Command) -> Result<(), Error> {
    let failed = |said: String| Error::Compile { summary: of_nvcc(&said), said };
    let output = command.output().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        let both = [output.stderr, output.stdout].concat();
        Err(failed(String::from_utf8_lossy(&both).into_owned()))
    }
}

/// `k.cu(3): error: …` as `k.cu:3: error: …`.
fn of_nvcc(said: &str) -> String {
    let line = summary(said);
    let Some((place, message)) = line.split_once(": error") else { return line };
    match place.strip_suffix(')').and_then(|place| place.rsplit_once('(')) {
        Some((file, number)) => format!("{file}:{number}: error{message}"),
        None => line,
    }
}

/// Where the libraries of nvcc's own package lie: of a toolkit in `lib64`, where it looks; of the wheels in `lib`, where it
/// does not.
fn libraries(nvcc: &Path) -> Option<PathBuf> {
    let own = nvcc.canonicalize().ok()?.parent()?.parent()?.join("lib");
    own.join("libcudadevrt.a").is_file().then_some(own)
}

/// The wheels put everything of a major version into `nvidia/cu13`.
fn in_packages() -> impl Iterator<Item = PathBuf> {
    std::iter::once(()).flat_map(|()| {
        let script = "import nvidia; print('\\n'.join(nvidia.__path__))";
        let output = Command::new("python3").args(["-c", script]).output();
        let said =
            output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let packages: Vec<PathBuf> =
            said.lines().map(|line| PathBuf::from(line).join("cu13/bin/nvcc")).collect();
        packages
    })
}

#[cfg(test)]
mod tests {
    use super::{libraries, of_nvcc};

    #[test]
    fn the_libraries_of_the_wheels_are_found() {
        let here = tempfile::tempdir().unwrap();
        let [bin, lib] = ["bin", "lib"].map(|name| here.path().join(name));
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("nvcc"), "").unwrap();
        assert_eq!(libraries(&bin.join("nvcc")), None, "a toolkit, in whose lib64 nvcc looks");
        std::fs::create_dir(&lib).unwrap();
        std::fs::write(lib.join("libcudadevrt.a"), "").unwrap();
        assert_eq!(libraries(&bin.join("nvcc")), Some(lib.canonicalize().unwrap()));
    }

    #[test]
    fn places_of_nvcc_are_written_as_those_of_others() {
        assert_eq!(
            of_nvcc("warning: x\nk.cu(3): error: identifier \"y\" is undefined\n"),
            "k.cu:3: error: identifier \"y\" is undefined"
        );
        assert_eq!(of_nvcc("nvcc fatal   : no"), "nvcc fatal   : no");
    }
}
