//! The instantiations of a kernel's template, by their arguments.

use crate::{BlockSize, Error, KernelSource};

/// A kernel, as its source declares it.
#[derive(Debug)]
pub struct Template {
    /// Its name.
    pub kernel: &'static str,
    /// The names of its template's parameters.
    pub parameters: &'static [&'static str],
    /// `template <…>`; empty where it is none.
    pub head: &'static str,
    /// The expression of the threads of a block: the first of its `__launch_bounds__`. Empty where it
    /// has none.
    pub threads: &'static str,
    /// Whether there is a constant `NAME_shared`, the bytes of its dynamic shared memory.
    pub has_shared: bool,
}

/// An instantiation that its stage's build script lists: that table is the one place where its tiles
/// stand.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    source: &'static KernelSource,
    name: &'static str,
}

impl KernelSource {
    /// Those of a kernel of this file, in the order of the table.
    pub fn instances(&'static self, kernel: &str) -> impl Iterator<Item = Instance> {
        self.all_instances().filter(move |instance| kernel_of(instance.name) == kernel)
    }

    /// All of this file.
    pub fn all_instances(&'static self) -> impl Iterator<Item = Instance> {
        self.instantiations.iter().map(move |name| Instance { source: self, name })
    }

    pub(crate) fn template_of(&self, name: &str) -> Option<&'static Template> {
        self.templates.iter().find(|t| t.kernel == kernel_of(name))
    }
}

impl Instance {
    /// The file that has it.
    pub fn source(&self) -> &'static KernelSource {
        self.source
    }

    /// The C++ expression that names it: `sums<float, 64>`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A template argument, by its parameter's name: `float` of `T`. None for one that is left to its
    /// default.
    pub fn argument(&self, parameter: &str) -> Option<&'static str> {
        let parameters = self.source.template_of(self.name)?.parameters;
        let at = parameters.iter().position(|p| *p == parameter)?;
        arguments(self.name).nth(at)
    }

    /// Whether a template argument is this.
    pub fn has(&self, parameter: &str, argument: &str) -> bool {
        self.argument(parameter) == Some(argument)
    }

    /// A template argument that is a number.
    ///
    /// # Panics
    /// It has none of that name: the kernel's source says which.
    pub fn size(&self, parameter: &str) -> usize {
        let argument = self.argument(parameter).and_then(|a| a.parse().ok());
        argument.unwrap_or_else(|| panic!("{} has no number {parameter}", self.name))
    }

    /// What its blocks are given.
    ///
    /// # Errors
    /// [`Error::NoBlock`]: its source does not say. Or its object does not load.
    pub fn block(&self) -> Result<BlockSize, Error> {
        let kernel = crate::emulated::module(self.source.either_object()?)?.kernel(self.name)?;
        kernel.block().ok_or_else(|| Error::NoBlock { kernel: self.name.to_owned() })
    }
}

/// `sums` of `lab::sums<float, 64>`.
fn kernel_of(name: &str) -> &str {
    let template = name.split('<').next().unwrap_or(name).trim();
    template.rsplit("::").next().unwrap_or(template)
}

/// At the commas that stand in no brackets.
fn arguments(name: &'static str) -> impl Iterator<Item = &'static str> {
    let inside = name.split_once('<').and_then(|(_, rest)| rest.strip_suffix('>')).unwrap_or("");
    let mut depth = 0;
    let parts = inside.split(move |c| {
        depth += match c {
            '<' | '(' => 1,
            '>' | ')' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    });
    parts.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KernelFile, Object};

    static SOURCE: KernelSource = {
        let file = KernelFile {
            crate_name: "test",
            name: "sums",
            file: "kernels/sums.cu",
            place: "stages/demo/kernels/sums.cu",
            source: "",
            headers: &[],
            instantiations: &["sums<float, 64>", "sums<Pair<int, float>, 128>", "plain"],
            templates: &[Template {
                kernel: "sums",
                parameters: &["T", "TILE"],
                head: "template <class T, int TILE>",
                threads: "TILE",
                has_shared: false,
            }],
            globals: &[],
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
    fn an_instance_is_found_by_its_arguments() {
        let all: Vec<Instance> = SOURCE.instances("sums").collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].size("TILE"), all[1].size("TILE")), (64, 128));
        assert!(all[0].has("T", "float") && all[1].has("T", "Pair<int, float>"));
        assert_eq!(all[0].argument("OTHER"), None);
        let plain = SOURCE.instances("plain").next().expect("it is listed");
        assert_eq!((plain.name(), plain.argument("T")), ("plain", None));
    }
}
