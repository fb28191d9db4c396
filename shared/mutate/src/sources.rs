//! A stage's sources, and broken copies of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab_device::KernelSource;
use lab_kernel_build::Build;

use crate::{Code, Edit, Error};

const HEADERS: &str = "shared/cuda";

/// The tree that holds the stages.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Its root.
    pub root: PathBuf,
}

impl Workspace {
    /// The workspace that `directory` is in, and a compiler to build with.
    ///
    /// # Errors
    /// It is in none, or there is no C++ compiler.
    pub fn find(directory: &Path) -> Result<Self, Error> {
        let is_root = |d: &&Path| {
            d.join("Cargo.toml").is_file() && d.join("stages").is_dir() && d.join(HEADERS).is_dir()
        };
        let root = directory.ancestors().find(is_root).ok_or_else(|| Error::Bad {
            what: "current directory".into(),
            expected:
                "one inside a clone of the lab's repository, whose sources this command works on"
                    .into(),
            got: directory.display().to_string(),
        })?;
        let compiler = lab_kernel_build::compiler().map_err(Error::NoCompiler)?;
        let mut version = Command::new(&compiler);
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match version.status() {
            Ok(status) if status.success() => Ok(Self { root: root.to_owned() }),
            _ => Err(Error::NoCompiler(format!(
                "a C++ compiler is needed to break kernels (Debian, Ubuntu: apt install g++): {} does not run",
                compiler.display()
            ))),
        }
    }
}

/// A kernel file.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What the binary knows of it.
    pub source: &'static KernelSource,
    /// The file, from the workspace's root.
    pub file: String,
    /// The device headers that it includes, directly or not, from the workspace's root.
    pub headers: Vec<String>,
}

/// The kernel files of one stage, or of the corpus, with the device headers that they include.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The workspace.
    pub workspace: Workspace,
    /// The stage's name: the last part of `home`.
    pub stage: String,
    /// Its directory, from the workspace's root: `stages/playg`.
    pub home: String,
    /// Its kernel files.
    pub kernels: Vec<Kernel>,
    texts: BTreeMap<String, String>,
}

impl Sources {
    /// Reads the files of a stage, which lies in the directory `home` of the workspace.
    ///
    /// # Errors
    /// A file cannot be read, or is not the one that this binary was built from.
    pub fn read(
        workspace: &Workspace,
        home: &str,
        kernels: &[&'static KernelSource],
    ) -> Result<Self, Error> {
        let mut texts = BTreeMap::new();
        let mut read = |file: &str, built_from: &str| -> Result<(), Error> {
            let path = workspace.root.join(file);
            let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
            if text != built_from {
                return Err(Error::Bad {
                    what: file.to_owned(),
                    expected: "the text that this tool was built from".into(),
                    got: "another one; build again".into(),
                });
            }
            texts.insert(file.to_owned(), text);
            Ok(())
        };
        let mut all = Vec::new();
        for &source in kernels {
            let file = format!("{home}/{}", source.file);
            read(&file, source.source)?;
            let mut headers = Vec::new();
            included(source, source.source, &mut headers);
            let own = format!("{home}/kernels");
            let place = |name: &str| {
                let folder = if name.starts_with("lab/") { HEADERS } else { &own };
                format!("{folder}/{name}")
            };
            for name in &headers {
                let text = source.headers.iter().find(|h| h.0 == name).map_or("", |h| h.1);
                read(&place(name), text)?;
            }
            let headers = headers.iter().map(|name| place(name)).collect();
            all.push(Kernel { source, file, headers });
        }
        let stage = home.rsplit('/').next().unwrap_or(home).to_owned();
        let (workspace, home) = (workspace.clone(), home.to_owned());
        Ok(Self { workspace, stage, home, kernels: all, texts })
    }

    /// Every file, headers included, with its text.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(file, text)| (file.as_str(), text.as_str()))
    }

    /// A file's text.
    pub fn text(&self, file: &str) -> Option<&str> {
        self.texts.get(file).map(String::as_str)
    }

    /// The kernel files that a change of `file` reaches, those first that are likely to show it
    /// soonest: they name the function, and have few instantiations.
    pub fn reached(&self, file: &str, function: Option<&str>) -> Vec<&Kernel> {
        let mut all: Vec<_> = self
            .kernels
            .iter()
            .filter(|k| k.file == file || k.headers.iter().any(|h| h == file))
            .collect();
        all.sort_by_key(|k| {
            let names = function.is_some_and(|f| k.source.source.contains(f));
            (!names, k.source.instantiations.len())
        });
        all
    }

    /// A copy of the sources with the change applied, not compiled yet.
    ///
    /// # Errors
    /// The change does not fit the file, or the copy cannot be written.
    pub fn plant(&self, edit: Option<&Edit>) -> Result<Planted, Error> {
        let directory = tempfile::tempdir().map_err(|e| Error::file(&std::env::temp_dir(), e))?;
        let root = directory.path().canonicalize();
        let root = root.map_err(|e| Error::file(directory.path(), e))?;
        let tree = root.join("tree");
        copy_files(&self.workspace.root.join(HEADERS), &tree.join(HEADERS))?;
        let own = Path::new(&self.home).join("kernels");
        copy_files(&self.workspace.root.join(&own), &tree.join(&own))?;
        let emulator = tree.join("shared/emulator");
        std::os::unix::fs::symlink(self.workspace.root.join("shared/emulator"), &emulator)
            .map_err(|e| Error::file(&emulator, e))?;
        for part in ["build", "objects"] {
            let path = root.join(part);
            std::fs::create_dir(&path).map_err(|e| Error::file(&path, e))?;
        }
        if let Some(edit) = edit {
            let broken = self.text(&edit.file).and_then(|t| edit.apply(t));
            let broken = broken.ok_or_else(|| Error::Bad {
                what: edit.file.clone(),
                expected: format!("the text '{}'", edit.original),
                got: "another one".into(),
            })?;
            let path = tree.join(&edit.file);
            std::fs::write(&path, broken).map_err(|e| Error::file(&path, e))?;
        }
        Ok(Planted { root, _directory: directory })
    }
}

/// A copy of a stage's sources with one thing broken, and the objects made of it. Its files go
/// when it is dropped.
#[derive(Debug)]
pub struct Planted {
    root: PathBuf,
    _directory: tempfile::TempDir,
}

impl Planted {
    /// The directory to run the objects from.
    pub fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    /// The copy of the workspace: what the compiler says names files in it.
    pub fn tree(&self) -> PathBuf {
        self.root.join("tree")
    }

    /// A directory for what is generated, and for what the runs leave behind.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("build")
    }

    /// Compiles a kernel file of the copy for the emulator's checks; `Ok(Err)` is the compiler's message where it refuses.
    ///
    /// # Errors
    /// The object cannot be moved to its place.
    pub fn compile(&self, kernel: &Kernel) -> Result<Result<(), String>, Error> {
        let (tree, out) = (self.tree(), self.scratch());
        let source = kernel.source;
        let file = tree.join(&kernel.file);
        let (names, globals) = (source.instantiations, source.globals);
        match lab_kernel_build::compile_in(&tree, &file, names, globals, Build::Checked, &out) {
            Err(said) => Ok(Err(said)),
            Ok(compiled) => {
                let object = self.objects().join(source.object_file(".checked"));
                std::fs::rename(&compiled.object, &object).map_err(|e| Error::file(&object, e))?;
                Ok(Ok(()))
            }
        }
    }
}

impl Planted {
    /// What a kernel file was compiled to.
    ///
    /// # Errors
    /// It was not, or the object cannot be read.
    pub(crate) fn code(&self, kernel: &Kernel) -> Result<Code, Error> {
        let object = self.objects().join(kernel.source.object_file(".checked"));
        Code::read(&object, &self.root)
    }
}

/// The headers of the lab that `text` includes, and those that they include.
fn included(source: &KernelSource, text: &str, found: &mut Vec<String>) {
    let names = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("#include")?.trim_start();
        rest.strip_prefix(['"', '<'])?.split(['"', '>']).next()
    });
    for name in names {
        if let Some((name, text)) = source.headers.iter().find(|h| h.0 == name)
            && !found.iter().any(|f| f == name)
        {
            found.push((*name).to_owned());
            included(source, text, found);
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(|e| Error::file(to, e))?;
    for entry in std::fs::read_dir(from).map_err(|e| Error::file(from, e))? {
        let path = entry.map_err(|e| Error::file(from, e))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_files(&path, &target)?;
        } else {
            std::fs::copy(&path, &target).map_err(|e| Error::file(&path, e))?;
        }
    }
    Ok(())
}
