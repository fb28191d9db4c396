//! What each version takes: types, sizes, states, packed sequences, and the GPU that it needs.

use std::fmt::Write as _;

use lab_harness::{Dim, Info, Output, Stage, Version};
use lab_registry::STAGES;

/// A size of this and above is any size: memory ends before it does.
const ANY: usize = 1 << 15;

/// Their order in a row.
const TYPES: [&str; 4] = ["f32", "f64", "f16", "bf16"];

const HEAD: &str = "| version | direction | types | sizes | state | packed | GPU |\n|---|---|---|---|---|---|---|\n";

/// A table a stage. Versions that take the same share a row.
pub(crate) fn page() -> String {
    let mut text = String::new();
    for stage in STAGES {
        write!(text, "## {0}\n\n[Its chapter]({0}.md)\n\n{HEAD}", stage.name)
            .expect("writing to a string");
        let mut rows: Vec<(Vec<&str>, String)> = Vec::new();
        for version in stage.versions {
            let (name, cells) = (version.info().name, cells(stage, *version));
            match rows.iter_mut().find(|row| row.1 == cells) {
                Some((names, _)) => names.push(name),
                None => rows.push((vec![name], cells)),
            }
        }
        for (names, cells) in rows {
            writeln!(text, "| `{}` | {cells} |", names.join("`, `")).expect("writing to a string");
        }
        text.push('\n');
    }
    text
}

fn cells(stage: &Stage, version: &dyn Version) -> String {
    let info = version.info();
    let mut dtypes: Vec<&str> = info.dtypes.iter().map(|d| d.name()).collect();
    dtypes.sort_by_key(|name| TYPES.iter().position(|t| t == name));
    let sizes: Vec<String> = info.dims.iter().filter_map(limits).collect();
    let sizes = if sizes.is_empty() { "any".into() } else { sizes.join(", ") };
    let packed = if info.takes("cu_seqlens") { "yes" } else { "" };
    [
        direction(info),
        &dtypes.join(" "),
        &sizes,
        state(info),
        packed,
        newest_architecture_needed(stage, version),
    ]
    .join(" | ")
}

/// Of a size that may not be any number: `H to 256`, `DHQK 16 to 128 by 16`.
fn limits(dim: &Dim) -> Option<String> {
    let Dim { name, max, step, .. } = *dim;
    match (step, max >= ANY) {
        (1, true) => None,
        (1, false) => Some(format!("{name} to {max}")),
        (_, true) => Some(format!("{name} by {step}")),
        (_, false) => Some(format!("{name} {step} to {max} by {step}")),
    }
}

/// What comes out under any of its options.
fn outputs(info: &Info) -> impl Iterator<Item = &'static str> {
    let added = info.settings.iter().filter_map(|s| s.adds).flat_map(|(_, outputs)| outputs);
    info.outputs.iter().chain(added).map(|output: &Output| output.name)
}

/// The gradient of `x` is `dx`; a training step writes the parameters that it reads.
fn direction(info: &Info) -> &'static str {
    let is_gradient = |o: &str| o.strip_prefix('d').is_some_and(|of| info.takes(of));
    match (outputs(info).any(is_gradient), outputs(info).all(is_gradient)) {
        (false, _) if outputs(info).any(|o| info.takes(o)) => "training step",
        (false, _) => "forward",
        (true, false) => "both",
        (true, true) => "backward",
    }
}

/// A state goes in as `x0` and comes out as `xN` or `xn`.
fn state(info: &Info) -> &'static str {
    let goes_in = |letter: &str| info.takes(&format!("{letter}0"));
    let comes_out = |o: &str| o.strip_suffix(['N', 'n']).is_some_and(goes_in);
    let has_gradient = |o: &str| o.starts_with('d') && o.ends_with('0') && info.takes(&o[1..]);
    let of_parameter = |o: &str| o.contains("_l0");
    match (outputs(info).any(comes_out), outputs(info).any(|o| has_gradient(o) && !of_parameter(o)))
    {
        (false, _) => "",
        (true, false) => "in, out",
        (true, true) => "in, out, gradient",
    }
}

/// The newest architecture that one of its kernels needs.
fn newest_architecture_needed(stage: &Stage, version: &dyn Version) -> &'static str {
    let sources = version.sources();
    let sources = if sources.is_empty() { stage.kernels.to_vec() } else { sources };
    let least = sources.iter().map(|source| source.least_arch).max().unwrap_or_default();
    if least.is_empty() { "any" } else { least }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str) -> String {
        let (stage, version) = name.split_once(':').unwrap();
        let stage = STAGES.iter().find(|s| s.name == stage).unwrap();
        let of_name = |v: &&&dyn Version| v.info().name == version;
        cells(stage, *stage.versions.iter().find(of_name).unwrap())
    }

    #[test]
    fn a_row_says_what_the_version_takes() {
        for (name, expected) in [
            ("playg:softmax", "forward | f32 f16 bf16 | any |  |  | any"),
            (
                "lstm_fused:v2_cluster",
                "both | f32 f64 f16 bf16 | H to 768 | in, out, gradient |  | any",
            ),
            ("matmul:v8_wgmma", "forward | f16 bf16 | any |  |  | sm_90a"),
            ("vlstm_step:v0_simple", "forward | f32 f16 bf16 | "),
            ("mlp_fused:v0_sample", "training step | "),
        ] {
            assert!(row(name).starts_with(expected), "{name}: {}", row(name));
        }
        assert!(row("vlstm_fwbw_v4:v3_packed").contains(" | in, out, gradient | yes | sm_90a"));
        assert!(row("passes:embedding_back").starts_with("backward | "));
    }
}
