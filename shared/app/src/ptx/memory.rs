//! Loads, stores, atomics, fences. PTX ISA, "Data Movement and Conversion Instructions" and "Parallel Synchronization".

use super::Call;
use super::statement::Operand;

/// Where a cache keeps what is loaded or stored, and for how long: it changes no result.
const CACHES: [&str; 19] = [
    "weak",
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
const SPACES: [&str; 4] = ["global", "shared", "shared::cta", "shared::cluster"];
const SCOPES: [&str; 4] = ["cta", "cluster", "gpu", "sys"];

impl Call<'_> {
    pub(super) fn memory(&self) -> Option<String> {
        match self.words[0] {
            "ld" => self.load(),
            "st" if self.words.get(1) != Some(&"async") => self.store(),
            "red" | "atom" => self.atomic(),
            "membar" | "fence" => self.fence(),
            // Hints.
            "prefetch" | "prefetchu" | "applypriority" => Some("(void)0".into()),
            "createpolicy" => self.write(0, "uint64_t(0)"),
            _ => None,
        }
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
        let name = *self.words.last()?;
        let kind = self.own_type()?;
        let words = ["relaxed", "acquire", "release", "acq_rel", "noftz"];
        let operation = *self.words.get(self.words.len().checked_sub(2)?)?;
        let middle = self.words.get(1..self.words.len() - 2)?;
        let known =
            |word: &&str| SPACES.contains(word) || SCOPES.contains(word) || words.contains(word);
        if !middle.iter().all(known) || ["f16", "bf16", "f16x2", "bf16x2"].contains(&name) {
            return None;
        }
        let reduces = self.words[0] == "red";
        let at = usize::from(!reduces);
        let place = format!("({}*){}", kind.cpp, self.place(at, self.is_shared())?);
        let value = |n: usize| self.read(at + n, kind.cpp);
        let done = match operation {
            "add" => format!("atomicAdd({place}, {})", value(1)?),
            "min" | "max" if kind.letter != 'f' => {
                format!(
                    "atomic{}({place}, {})",
                    if operation == "min" { "Min" } else { "Max" },
                    value(1)?
                )
            }
            "inc" | "dec" if name == "u32" => {
                format!(
                    "atomic{}({place}, {})",
                    if operation == "inc" { "Inc" } else { "Dec" },
                    value(1)?
                )
            }
            "and" => format!("atomicAnd({place}, {})", value(1)?),
            "or" => format!("atomicOr({place}, {})", value(1)?),
            "xor" => format!("atomicXor({place}, {})", value(1)?),
            "exch" if !reduces => format!("atomicExch({place}, {})", value(1)?),
            "cas" if !reduces => format!("atomicCAS({place}, {}, {})", value(1)?, value(2)?),
            _ => return None,
        };
        let done = if reduces { format!("(void){done}") } else { self.write(0, &done)? };
        let fence = |word: &str| {
            if self.has(word) || self.has("acq_rel") { "__threadfence(); " } else { "" }
        };
        Some(format!("{}{done}; {}", fence("release"), fence("acquire"))).map(block)
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
            ["fence", "mbarrier_init", ..] => Some("emu_mbarrier_fence_init()".into()),
            ["fence", "proxy", "async"] => Some("emu_fence_proxy_async(false)".into()),
            ["fence", "proxy", "async", "shared::cta" | "shared::cluster"] => {
                Some("emu_fence_proxy_async(true)".into())
            }
            ["fence", "proxy", "async", "global"] => Some("emu_fence_proxy_async(false)".into()),
            _ => None,
        }
    }

    /// The coordinates of a tensor's address, as an array of C++.
    pub(super) fn coordinates(&self, index: usize) -> Option<Vec<String>> {
        let Operand::Address { coordinates, .. } = self.operands.get(index)? else { return None };
        coordinates.iter().map(|value| self.text.read(value, "int")).collect()
    }
}

pub(super) fn block(statements: String) -> String {
    format!("{{ {statements}; }}")
}
