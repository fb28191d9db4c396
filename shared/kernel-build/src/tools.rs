//! The compiler: which it is, what it is told for each build, and what of it is kept.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// To be fast.
    Plain,
    /// To be checked: every access calls the emulator.
    Checked,
}

impl Build {
    /// `x.so`, `x.checked.so`.
    pub fn file_name(self, stem: &str) -> String {
        match self {
            Self::Plain => format!("{stem}.so"),
            Self::Checked => format!("{stem}.checked.so"),
        }
    }

    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            // As fast as -O2 where it matters, in loops over rows and tiles, and compiled in three
            // quarters of the time.
            Self::Plain => &["-O1", "-ftree-loop-vectorize", "-ftree-slp-vectorize"],
            // The calls of g++'s sanitizers for threads and for array bounds, which the emulator
            // answers (their runtimes are not linked). Local variables that get no value hold a
            // pattern that can be told; `prepare_for_checks` makes it one that arithmetic keeps.
            Self::Checked => &[
                "-O1",
                "-fsanitize=thread,bounds",
                "--param=tsan-distinguish-volatile=1",
                "--param=tsan-instrument-func-entry-exit=0",
                "-ftrivial-auto-var-init=pattern",
            ],
        }
    }
}

/// A directory that holds `emulator.h.gch`, which g++ takes in place of `emulator.h`, and `glue.o`.
#[derive(Clone, Debug)]
pub(crate) struct Common(pub(crate) PathBuf);

impl Common {
    /// Where the compiler looks for headers first.
    pub(crate) fn include(&self) -> &Path {
        &self.0
    }

    pub(crate) fn glue(&self) -> PathBuf {
        self.0.join("glue.o")
    }
}

/// The compiler, and the tree whose headers it is given.
pub(crate) struct Tools<'a> {
    pub(crate) compiler: PathBuf,
    pub(crate) root: &'a Path,
    /// What is compiled already.
    pub(crate) common: Option<Common>,
}

impl Tools<'_> {
    pub(crate) fn include(&self) -> PathBuf {
        self.root.join("shared/emulator/include")
    }

    /// The same compiler, with the headers of another tree.
    pub(crate) fn of_tree<'b>(&self, root: &'b Path) -> Tools<'b> {
        Tools { compiler: self.compiler.clone(), root, common: None }
    }

    pub(crate) fn start(&self) -> Command {
        let mut command = Command::new(&self.compiler);
        // Line tables name files from the workspace's root, whatever machine built them.
        command
            .current_dir(self.root)
            .args(["-g", "-fPIC", "-fvisibility=hidden"])
            // Reports need places, and the names and types of arrays and parameters. Where a local
            // variable lives from instruction to instruction nobody asks, and it is most of -g.
            .args(["-fno-var-tracking", "-fno-var-tracking-assignments"])
            .arg(format!("-ffile-prefix-map={}=.", self.root.display()));
        if let Some(root) = header_root(self).filter(|root| root != self.root) {
            command.arg(format!("-ffile-prefix-map={}=.", root.display()));
        }
        command
    }

    /// The compiler, told how to read C++ for this build: a header that is compiled in advance fits only
    /// what is compiled with the same flags.
    pub(crate) fn read(&self, language: &str, flags: &[String], build: Build) -> Command {
        let mut command = self.start();
        command
            .args(["-x", language])
            .args(build.flags())
            // Kernels pun types; fused multiply-adds only where they are written.
            .args(["-fno-strict-aliasing", "-ffp-contract=off"])
            // Places of barriers must stay apart, and callers must stay on the stack.
            .args(["-fno-thread-jumps", "-fno-optimize-sibling-calls"])
            .args(flags)
            .arg(match build {
                Build::Plain => "-Wno-maybe-uninitialized",
                Build::Checked => "-Wmaybe-uninitialized",
            });
        if let Some(common) = &self.common {
            command.arg("-I").arg(common.include());
        }
        command.arg("-I").arg(self.include());
        command
    }

    /// Compiles a header into the form that g++ takes in its place.
    pub(crate) fn precompile(
        &self,
        header: &Path,
        to: &Path,
        flags: &[String],
        build: Build,
    ) -> Result<(), String> {
        // That a header is meant to be included once is no mistake where it is the file compiled.
        let mut command = self.read("c++-header", flags, build);
        run(command.arg("-w").arg(header).arg("-o").arg(to), header).map(drop)
    }

    /// The compiler, told what the glue is compiled with.
    pub(crate) fn read_glue(&self, build: Build) -> Command {
        let mut command = self.start();
        command.args(["-std=c++17", "-O2"]).arg("-I").arg(self.include());
        if build == Build::Checked {
            command.arg("-DEMU_CHECKED");
        }
        command
    }

    pub(crate) fn compile_glue(&self, to: &Path, build: Build) -> Result<(), String> {
        let glue = self.include().join("glue.cpp");
        run(self.read_glue(build).arg("-c").arg(&glue).arg("-o").arg(to), &glue).map(drop)
    }
}

/// The tree that the emulator's headers really lie in: a copy of a stage has only a link to them.
pub(crate) fn header_root(tools: &Tools<'_>) -> Option<PathBuf> {
    let include = tools.include().canonicalize().ok()?;
    include.ancestors().nth(3).map(Path::to_owned)
}

/// What all kernel files are compiled with, whatever they are built for.
pub(crate) fn kernel_flags(root: &Path) -> Vec<String> {
    let mut flags =
        vec!["-std=c++17".into(), "-I".into(), root.join("shared/cuda").display().to_string()];
    // Kernels throw nothing. Rows kept in arrays raise false alarms; the checks show what it says of a
    // variable once one is seen to have had no value.
    flags.extend(
        ["-fno-exceptions", "-fno-rtti", "-Wall", "-Wno-unknown-pragmas"].map(String::from),
    );
    flags.push("-Wframe-larger-than=16384".into());
    flags
}

/// Runs the compiler; what it said.
pub(crate) fn run(command: &mut Command, source: &Path) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|e| no_compiler(&format!("{}: {e}", command.get_program().display())))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} does not compile for the emulator:\n{said}", source.display()));
    }
    Ok(said.into_owned())
}

pub(crate) fn no_compiler(reason: &dyn std::fmt::Display) -> String {
    format!(
        "a C++ compiler is needed to run kernels on the CPU (Debian, Ubuntu: apt install g++): {reason}"
    )
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
