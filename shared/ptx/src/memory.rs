//! Loads, stores, atomics, fences. PTX ISA, "Data Movement and Conversion Instructions" and "Parallel Synchronization".

use crate::statement::Operand;
use crate::text::{Call, block};

/// Where a cache keeps what is loaded or stored, and for how long: it changes no result.
const CACHES: [&str; 21] = [
    "weak",
    "L2::evict_last",
    "L2::evict_normal",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::no_allocate",
    "L1::evict_first",
    "L1::evict_last",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::cache_hint",
    "L2::evict_first",
];
pub(crate) const SPACES: [&str; 9] = [
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "const",
    "param",
    "param::entry",
    "param::func",
];
const SCOPES: [&str; 4] = ["cta", "cluster", "gpu", "sys"];

impl Call<'_> {
    pub(crate) fn memory(&self) -> Option<String> {
        match self.words[0] {
            "ld" => self.load(),
            "st" if self.words.get(1) != Some(&"async") => self.store(),
            "red" | "atom" => self.atomic(),
            "membar" | "fence" => self.fence(),
            "tensormap" => self.tensor_map(),
            // Hints.
            "prefetch" | "prefetchu" | "applypriority" => Some("(void)0".into()),
            "createpolicy" => self.write(0, "uint64_t(0)"),
            _ => None,
        }
    }

    /// In memory that is a thread's own: parameters.
    fn is_parameter(&self) -> bool {
        self.words.iter().any(|word| word.starts_with("param"))
    }

    /// Words that say nothing but where, how many, and in which caches.
    fn is_plain(&self, more: &[&str]) -> bool {
        let middle = self.words.get(1..self.words.len() - 1).unwrap_or_default();
        middle
            .iter()
            .all(|word| CACHES.contains(word) || SPACES.contains(word) || more.contains(word))
    }

    fn load(&self) -> Option<String> {
        let kind = self.own_type()?;
        let place = self.place(1, self.is_shared())?;
        let vectors = ["v2", "v4"];
        if self.is_plain(&vectors) && self.is_parameter() {
            let count = self.vector(0)?.len();
            let array = self.write_all(0, "emu_v.v")?;
            let loaded = format!("::emu::ptx::parameter<{}, {count}>({place})", kind.cpp);
            return Some(format!("auto emu_v = {loaded}; {array}")).map(block);
        }
        if self.is_plain(&vectors) {
            let count = self.vector(0)?.len();
            let constant = self.has("nc");
            let loaded = format!("::emu::ptx::load<{}, {count}, {constant}>({place})", kind.cpp);
            let array = self.write_all(0, "emu_v.v")?;
            return Some(format!("auto emu_v = {loaded}; {array}")).map(block);
        }
        let rest = ["volatile", "relaxed", "acquire"];
        let order = self.words.iter().find(|word| rest.contains(word))?;
        let scoped = [&rest[..], &SCOPES].concat();
        let loaded = match *order {
            _ if !self.is_plain(&scoped) => return None,
            "acquire" => format!("::emu::load_acquire((const {}*){place})", kind.cpp),
            "relaxed" => format!("::emu::ptx::load_relaxed((const {}*){place})", kind.cpp),
            _ => format!("*(const volatile {}*){place}", kind.cpp),
        };
        self.write(0, &loaded)
    }

    fn store(&self) -> Option<String> {
        let kind = self.own_type()?;
        let place = self.place(0, self.is_shared())?;
        let vectors = ["v2", "v4"];
        if self.is_plain(&vectors) {
            let values = self.read_all(1, kind.cpp)?;
            let (count, values) = (values.len(), values.join(", "));
            if self.is_parameter() {
                return Some(format!(
                    "::emu::ptx::give<{}, {count}>({place}, {{{values}}})",
                    kind.cpp
                ));
            }
            return Some(format!(
                "::emu::ptx::store<{}, {count}>({place}, {{{values}}})",
                kind.cpp
            ));
        }
        let rest = ["volatile", "relaxed", "release"];
        let order = self.words.iter().find(|word| rest.contains(word))?;
        let scoped = [&rest[..], &SCOPES].concat();
        let value = self.read(1, kind.cpp)?;
        match *order {
            _ if !self.is_plain(&scoped) => None,
            "release" => Some(format!("::emu::store_release(({}*){place}, {value})", kind.cpp)),
            "relaxed" => {
                Some(format!("::emu::ptx::store_relaxed(({}*){place}, {value})", kind.cpp))
            }
            _ => Some(format!("*(volatile {}*){place} = {value}", kind.cpp)),
        }
    }

    /// `red` and `atom`: relaxed unless they say otherwise.
    fn atomic(&self) -> Option<String> {
        let operations = ["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];
        let mut words = self.words[1..].to_vec();
        let name = words.pop()?;
        let at = words.iter().position(|word| operations.contains(word))?;
        let operation = words.remove(at);
        let kind = self.own_type()?;
        let orders = ["relaxed", "acquire", "release", "acq_rel", "noftz", "L2::cache_hint"];
        let known = |word: &&str| {
            SPACES.contains(word)
                || SCOPES.contains(word)
                || orders.contains(word)
                || ["v2", "v4", "v8"].contains(word)
        };
        if !words.iter().all(known) {
            return None;
        }
        let reduces = self.words[0] == "red";
        let at = usize::from(!reduces);
        let cpp = match name {
            "f16" => "__half",
            "bf16" => "__nv_bfloat16",
            "f16x2" => "__half2",
            "bf16x2" => "__nv_bfloat162",
            _ => kind.cpp,
        };
        // Of headers that a module includes, and others' programs perhaps not.
        (cpp == kind.cpp || self.text.is_module).then_some(())?;
        let place = self.place(at, self.is_shared())?;
        let values = |n: usize| self.read_all(at + n, kind.cpp);
        let is_integer = kind.letter != 'f' && kind.cpp == cpp;
        let one = |n: usize, value: &str| {
            let place = format!("({cpp}*)({place} + {})", n * kind.bytes as usize);
            let value = if cpp == kind.cpp {
                value.to_owned()
            } else {
                format!("::emu::ptx::as<{cpp}>({value})")
            };
            let call = |name: &str| Some(format!("atomic{name}({place}, {value})"));
            match operation {
                "add" => call("Add"),
                "min" if is_integer => call("Min"),
                "max" if is_integer => call("Max"),
                "inc" if name == "u32" => call("Inc"),
                "dec" if name == "u32" => call("Dec"),
                "and" if is_integer => call("And"),
                "or" if is_integer => call("Or"),
                "xor" if is_integer => call("Xor"),
                "exch" if !reduces => call("Exch"),
                "cas" if !reduces => {
                    let new = self.read(at + 2, kind.cpp)?;
                    Some(format!("atomicCAS({place}, {value}, {new})"))
                }
                _ => None,
            }
        };
        let values = values(1)?;
        let mut done = String::new();
        for (n, value) in values.iter().enumerate() {
            let call = one(n, value)?;
            done += &if reduces {
                format!("(void){call}; ")
            } else {
                let to = self.vector(0)?.get(n)?;
                let raw = if cpp == kind.cpp {
                    call
                } else {
                    format!("::emu::ptx::as<{}>({call})", kind.cpp)
                };
                format!("{}; ", self.text.write(to, &raw)?)
            };
        }
        let fence = |word: &str| {
            if self.has(word) || self.has("acq_rel") { "__threadfence(); " } else { "" }
        };
        Some(format!("{}{done}{}", fence("release"), fence("acquire"))).map(block)
    }

    fn fence(&self) -> Option<String> {
        let scope = |word: &str| match word {
            "cta" => Some("__threadfence_block()"),
            "cluster" | "gpu" | "gl" => Some("__threadfence()"),
            "sys" => Some("__threadfence_system()"),
            _ => None,
        };
        match self.words {
            ["membar", of] => scope(of).map(str::to_owned),
            ["fence", "sc" | "acq_rel", of] => scope(of).map(str::to_owned),
            // What is written of a tensor map is there for who copies by it.
            ["fence", "proxy", "tensormap::generic", "acquire" | "release", of] => {
                scope(of).map(str::to_owned)
            }
            ["fence", "mbarrier_init", ..] => Some("emu_mbarrier_fence_init()".into()),
            ["fence", "proxy", "async"] => Some("emu_fence_proxy_async(false)".into()),
            ["fence", "proxy", "async", "shared::cta" | "shared::cluster"] => {
                Some("emu_fence_proxy_async(true)".into())
            }
            ["fence", "proxy", "async", "global"] => Some("emu_fence_proxy_async(false)".into()),
            _ => None,
        }
    }

    /// `tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [map], 0, 64;`: a field of a map, and the copy of a map to where
    /// it is used. Those of modules alone: others' programs make maps by the driver's function.
    fn tensor_map(&self) -> Option<String> {
        self.text.is_module.then_some(())?;
        match self.words {
            ["tensormap", "replace", "tile", field, space @ .., "b1024", "b32" | "b64"] => {
                let shared = matches!(space, ["shared" | "shared::cta"]);
                (shared || matches!(space, ["global"] | [])).then_some(())?;
                let map = self.place(0, shared)?;
                let (index, value) = match self.operands.len() {
                    2 => ("0".to_owned(), self.read(1, "uint64_t")?),
                    3 => (self.read(1, "uint32_t")?, self.read(2, "uint64_t")?),
                    _ => return None,
                };
                let fields = [
                    "global_address",
                    "rank",
                    "box_dim",
                    "global_dim",
                    "global_stride",
                    "element_stride",
                    "elemtype",
                    "interleave_layout",
                    "swizzle_mode",
                    "fill_mode",
                ];
                fields.contains(field).then_some(())?;
                Some(format!("::emu::ptx::map_{field}({map}, {index}, {value})"))
            }
            [
                "tensormap",
                "cp_fenceproxy",
                "global",
                "shared" | "shared::cta",
                "tensormap::generic",
                "release",
                _,
                "sync",
                "aligned",
            ] => {
                let [to, from] = [self.place(0, false)?, self.place(1, true)?];
                Some(format!("::emu::ptx::publish_map({to}, {from})"))
            }
            _ => None,
        }
    }

    /// The coordinates of a tensor's address, as an array of C++.
    pub(crate) fn coordinates(&self, index: usize) -> Option<Vec<String>> {
        let Operand::Address { coordinates, .. } = self.operands.get(index)? else { return None };
        coordinates.iter().map(|value| self.text.read(value, "int")).collect()
    }
}
