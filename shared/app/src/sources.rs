//! The files of a program, and the headers that they include, as a host compiler takes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lab_ptx::{Module, Translated};

use crate::conditions::Macros;
use crate::cuts::Cuts;
use crate::facts::Facts;
use crate::rewrite::{Kernel, rewrite};
use crate::{Error, Options};

/// What nvcc says of itself, and includes. Host and device code are compiled in one pass, which is the
/// device's: kernels whose body stands behind `__CUDA_ARCH__` would be empty else.
pub(crate) const CUDA: &str = "#define __CUDACC__ 1\n#define __NVCC__ 1\n#define __CUDA_ARCH__ EMU_ARCH\n\
                    #define __CUDACC_VER_MAJOR__ 12\n#define __CUDACC_VER_MINOR__ 4\n#define __CUDACC_VER_BUILD__ 0\n\
                    #include \"cuda_runtime.h\"\n";

/// Rewritten files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Text and name of each file given.
    pub(crate) units: Vec<(String, PathBuf)>,
    /// Every kernel, and the file that it stands in.
    pub(crate) kernels: Vec<(PathBuf, Kernel)>,
    /// The headers of the program's own, as places name them.
    pub(crate) files: Vec<PathBuf>,
    /// For the compiler.
    pub(crate) flags: Vec<String>,
    /// For the linker.
    pub(crate) libraries: Vec<String>,
}

impl Sources {
    /// Reads `files` and the headers that they include from beside themselves and from where the options say;
    /// headers are written to `scratch`.
    pub(crate) fn read(
        files: &[PathBuf],
        options: &Options,
        scratch: &Path,
    ) -> Result<Self, Error> {
        Self::read_without(&Cuts::default(), None, files, options, scratch)
    }

    /// The same without some declarations, of which none holds the line of `kept`.
    pub(crate) fn read_without(
        cuts: &Cuts,
        kept: Option<(&Path, usize)>,
        files: &[PathBuf],
        options: &Options,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let (directories, macros) = (&options.include[..], options.macros());
        let (headers, kernels, found) = (HashMap::new(), Vec::new(), Vec::new());
        let mut reader = Reader { directories, scratch, cuts, kept, headers, kernels, found };
        let mut units = Vec::new();
        for file in files {
            let is_of = |ending: &str| file.extension().is_some_and(|e| e == ending);
            let text = if is_of("ptx") {
                reader.module(file, &mut macros.clone())?
            } else {
                reader.file(file, &mut macros.clone())?
            };
            // nvcc hands other files to the host's compiler as they are.
            let is_cuda = ["cu", "cuh", "ptx"].into_iter().any(is_of);
            let before = if is_cuda { CUDA } else { "" };
            units.push((format!("{before}{text}"), file.clone()));
        }
        Ok(Self { units, kernels: reader.kernels, files: reader.found, ..Self::default() })
    }

    /// A module of PTX as a program's only file, with `before` at its beginning and `behind` at its end; and what it was
    /// translated to. Messages call it `path`.
    pub(crate) fn of_module(
        text: &str,
        path: &Path,
        options: &Options,
        [before, behind]: [fn(&Translated) -> String; 2],
    ) -> Result<(Self, Translated), Error> {
        let refuse = |reason: String| Error::File { path: path.to_owned(), reason };
        let module = Module::read(text, path, &str::to_owned).map_err(|e| refuse(e.to_string()))?;
        let translated = module.translate();
        let include = &mut |_: &str, _, _: &mut _| Ok(None);
        let rewritten =
            rewrite(&translated.text, &mut options.macros(), include).map_err(refuse)?;
        let text =
            format!("{CUDA}{}{}{}", before(&translated), rewritten.text, behind(&translated));
        Ok((Self { units: vec![(text, path.to_owned())], ..Self::default() }, translated))
    }
}

struct Reader<'a> {
    directories: &'a [PathBuf],
    scratch: &'a Path,
    cuts: &'a Cuts,
    kept: Option<(&'a Path, usize)>,
    /// Where the rewritten text of a header lies, and what it defines.
    headers: HashMap<PathBuf, (PathBuf, Macros)>,
    kernels: Vec<(PathBuf, Kernel)>,
    /// Where the headers were found.
    found: Vec<PathBuf>,
}

impl Reader<'_> {
    /// A module of PTX as a file of CUDA C++. Its kernels stand where their source does.
    fn module(&mut self, path: &Path, macros: &mut Macros) -> Result<String, Error> {
        let refuse = |reason: String| Error::File { path: path.to_owned(), reason };
        let bytes = lab_emulator::read_file(path).map_err(|e| refuse(e.to_string()))?;
        let text = String::from_utf8_lossy(&bytes);
        // A compiler may have named its source by its last name alone: then it lies beside the module, perhaps.
        let source = |name: &str| {
            let beside = path.parent().map(|parent| parent.join(name));
            let found = beside.filter(|beside| !Path::new(name).is_file() && beside.is_file());
            found.map_or_else(|| name.to_owned(), |found| found.display().to_string())
        };
        let module = Module::read(&text, path, &source).map_err(|e| refuse(e.to_string()))?;
        let translated = module.translate();
        let rewritten =
            rewrite(&translated.text, macros, &mut |_, _, _| Ok(None)).map_err(refuse)?;
        for entry in translated.entries {
            let own = rewritten.kernels.iter().find(|kernel| kernel.name == entry.cpp_name);
            let (file, line) = match &entry.place {
                Some(place) => (PathBuf::from(&place.file), place.line),
                None => (path.to_owned(), entry.line),
            };
            let parameters =
                entry.parameters.iter().map(|p| (p.cpp.clone(), p.name.clone())).collect();
            let kernel = Kernel {
                name: entry.cpp_name.clone(),
                scope: own.map_or_else(String::new, |own| own.scope.clone()),
                template: Vec::new(),
                template_kinds: Vec::new(),
                parameters,
                required: entry.parameters.len() - entry.hidden,
                facts: own.map_or_else(Facts::default, |own| own.facts.clone()),
                line,
                in_macro: None,
                entry: Some(entry),
            };
            self.kernels.push((file, kernel));
        }
        Ok(rewritten.text)
    }

    fn file(&mut self, path: &Path, macros: &mut Macros) -> Result<String, Error> {
        let refuse = |reason: String| Error::File { path: path.to_owned(), reason };
        let is_file = path.metadata().map_err(|e| refuse(e.to_string()))?.is_file();
        if !is_file {
            return Err(refuse("expected a file of CUDA C++, got something else".into()));
        }
        let bytes = lab_emulator::read_file(path).map_err(|e| refuse(e.to_string()))?;
        let text = String::from_utf8_lossy(&bytes);
        // The mark that some editors begin a file with.
        let text = text.trim_start_matches('\u{feff}');
        let kept = self.kept.filter(|(file, _)| *file == path).map(|(_, line)| line);
        let text = self.cuts.apply(path, text, kept).ok_or_else(|| {
            refuse("expected a kernel that compiles, got one with an error".into())
        })?;
        let text = text.as_str();
        let mut include = |name: &str, angled: bool, macros: &mut Macros| {
            self.header(path, name, angled, macros).map_err(|e| e.to_string())
        };
        let rewritten = rewrite(text, macros, &mut include).map_err(refuse)?;
        self.kernels.extend(rewritten.kernels.into_iter().map(|k| (path.to_owned(), k)));
        Ok(format!("#line 1 {:?}\n{}\n", path.display().to_string(), rewritten.text))
    }

    /// Where the rewritten header lies; `None` where it is none of the program's own.
    fn header(
        &mut self,
        from: &Path,
        name: &str,
        angled: bool,
        macros: &mut Macros,
    ) -> Result<Option<String>, Error> {
        let beside = from.parent().filter(|_| !angled);
        let places = beside.into_iter().chain(self.directories.iter().map(PathBuf::as_path));
        let Some(found) = places.map(|d| d.join(name)).find(|p| p.is_file()) else {
            return Ok(None);
        };
        let own = found.canonicalize().unwrap_or_else(|_| found.clone());
        if let Some((written, defined)) = self.headers.get(&own) {
            macros.add(defined);
            return Ok(Some(written.display().to_string()));
        }
        let stem = own.file_name().unwrap_or_default().display().to_string();
        let written = self.scratch.join(format!("{}_{stem}", self.headers.len()));
        // Known before it is read: a header may include itself.
        self.headers.insert(own.clone(), (written.clone(), Macros::default()));
        let before = macros.clone();
        let text = self.file(&found, macros)?;
        self.found.push(found);
        self.headers.insert(own, (written.clone(), macros.since(&before)));
        std::fs::write(&written, text)
            .map_err(|e| Error::File { path: written.clone(), reason: e.to_string() })?;
        Ok(Some(written.display().to_string()))
    }
}
