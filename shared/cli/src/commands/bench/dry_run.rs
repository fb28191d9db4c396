//! `lab bench --dry-run`: what would be measured, without a GPU.

use lab_harness::{Dims, Version};
use serde_json::{Value, json};

use super::asked::{Asked, by_family, peers};
use super::chosen::Chosen;
use super::repeat::Recorded;
use super::{Arguments, scripts};
use lab_device::DType;

/// A problem, and the names of what would be timed on it.
struct Planned {
    family: &'static str,
    dims: Dims,
    dtype: DType,
    versions: Vec<String>,
    /// Of the stages; those of a script are known once it runs.
    peers: Vec<&'static str>,
    script: Option<&'static str>,
}

/// Prints each problem with its versions and libraries, and the command that a record would keep.
pub(super) fn print(
    arguments: &Arguments,
    chosen: &[&'static dyn Version],
    sizes: &[Dims],
    recorded: Option<&Recorded>,
    dtype: Option<DType>,
    is_json: bool,
) {
    let all: Vec<Planned> = by_family(chosen)
        .into_iter()
        .filter_map(|versions| {
            let own: Vec<_> = versions.iter().map(|v| v.1).collect();
            let recorded = recorded.map(|lines| Asked::Recorded(lines.clone()));
            let asked = recorded.or_else(|| Asked::of(sizes, &own))?;
            let family = own[0].info().family.name();
            let is_judged = arguments.judged_on.is_none();
            let peers = if is_judged { peers(&versions, family) } else { Vec::new() };
            Some(Chosen { family, versions, asked, dtype, peers })
        })
        .flat_map(|family| planned(&family, arguments.peers.is_some()))
        .collect();
    let names_launch = arguments.measures_launch(recorded);
    if is_json {
        let problems: Vec<Value> = all.iter().map(Planned::json).collect();
        say!(
            "{}",
            json!({ "command": arguments.command(), "problems": problems, "launch": names_launch })
        );
        return;
    }
    if recorded.is_none() {
        say!("lab bench {}", arguments.command().join(" "));
    }
    all.iter().for_each(Planned::print);
    if names_launch {
        say!("launch: what a launch costs");
    }
    say!("problems: {}; a dry run: nothing was measured, and nothing is written", all.len());
}

fn planned(family: &Chosen, asks_scripts: bool) -> Vec<Planned> {
    let of_problem = |(dtype, dims): (DType, Dims)| Planned {
        family: family.family,
        versions: family
            .those_that_take(dtype, &dims)
            .iter()
            .map(|(_, version)| version.info().full_name())
            .collect(),
        peers: family
            .peers
            .iter()
            .map(|peer| peer.info())
            .filter(|info| info.dtypes.contains(&dtype))
            .map(|info| info.name)
            .collect(),
        script: scripts::script_of(family.family).filter(|_| asks_scripts),
        dims,
        dtype,
    };
    family.problems().into_iter().map(of_problem).collect()
}

impl Planned {
    fn print(&self) {
        let Self { family, dims, dtype, versions, peers, script } = self;
        let mut line = format!("{family} {dims} {dtype}: {}", versions.join(", "));
        if !peers.is_empty() {
            line += &format!("; beside them {}", peers.join(", "));
        }
        if let Some(script) = script {
            line += &format!("; the libraries of {script}");
        }
        say!("{line}");
    }

    fn json(&self) -> Value {
        json!({
            "family": self.family, "shape": self.dims.to_string(), "dtype": self.dtype.name(),
            "versions": self.versions, "peers": self.peers, "script": self.script,
        })
    }
}
