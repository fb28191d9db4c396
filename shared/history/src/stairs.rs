//! The stages as a flight of stairs: what each adds, and one figure of it.

use lab_harness::Products;
use lab_harness::{Dims, Options, Stage, Version};
use lab_plots::stairs::{Step, stairs};
use lab_records::record::{Measurement, Run};
use lab_registry::STAGES;

use super::families::label;
use super::lists::short;
use crate::Error;

/// One result of a stage, of those that its chapter prints in bold.
struct Headline {
    version: &'static str,
    shape: &'static str,
    dtype: &'static str,
    by: By,
}

/// What tells how good a result is.
#[derive(Clone, Copy)]
enum By {
    /// GB/s, and their share of a plain copy's: of what is bound by memory.
    Bytes,
    Operations,
    /// µs: also of versions that need fewer operations than others of their family.
    Time,
    /// µs for each of the steps that this dimension counts.
    Step(&'static str),
}

/// The problem that all stages of the vLSTM have, so that their stairs can be compared.
const VLSTM: &str = "B=8,DHHV=128,DHQK=128,NH=16,S=2048";
/// The one that `qkv_v1` and `qkv_v2` share.
const QKV: &str = "B=1,DHHV=64,DHQK=64,NH=32,S=4096";
/// That of the gated delta rule.
const DELTA: &str = "B=4,DHHV=128,DHQK=128,NH=32,NKV=32,S=4096";

const fn of(version: &'static str, shape: &'static str, dtype: &'static str, by: By) -> Headline {
    Headline { version, shape, dtype, by }
}

/// Of a stage with several the first one that a record has.
const HEADLINES: [Headline; 25] = [
    of("playg:layernorm", "C=4096,R=16384", "f32", By::Bytes),
    of("matmul:v21_snake", "G=1,K=4096,M=4096,N=4096", "bf16", By::Operations),
    of("qkv_v1:block_tile", QKV, "f16", By::Time),
    of("qkv_v2:v3_resident", QKV, "f16", By::Time),
    of("vlstm_fw_v0:causal", VLSTM, "bf16", By::Time),
    of("vlstm_fw_v1:online", VLSTM, "bf16", By::Time),
    of("vlstm_fw_v2:v4_persistent", VLSTM, "bf16", By::Time),
    of("vlstm_fw_v3:v1_long", VLSTM, "bf16", By::Time),
    of("vlstm_fw_v4:v1_roles", VLSTM, "bf16", By::Time),
    of("vlstm_step:v1_packs", "B=64,DHHV=512,DHQK=256,NH=8", "bf16", By::Bytes),
    of("vlstm_fwbw_v0:flags", VLSTM, "bf16", By::Time),
    of("vlstm_fwbw_v1:ahead", VLSTM, "bf16", By::Time),
    of("vlstm_fwbw_v2:v4_skip", VLSTM, "bf16", By::Time),
    of("vlstm_fwbw_v3:v3_carried", VLSTM, "bf16", By::Time),
    of("vlstm_fwbw_v4:v1_together", VLSTM, "bf16", By::Time),
    of("gdn_fw:v4_fused", DELTA, "bf16", By::Time),
    of("gdn_fw:v3_resident", DELTA, "bf16", By::Time),
    of("gdn_step:v0_simple", "B=64,DHHV=128,DHQK=128,NH=32,NKV=16", "bf16", By::Bytes),
    of("gdn_fwbw:v1_tensor", DELTA, "bf16", By::Time),
    of("lstm_fused:v6_wgmma_back", "B=64,H=512,I=512,T=512", "bf16", By::Step("T")),
    of("slstm_fused:v1_heads", "B=16,DH=192,NH=4,T=1024", "bf16", By::Step("T")),
    of("mlp_fused:v3_wgmma", "B=1024,E=256,H=512,N=4,V=10000", "f32", By::Step("N")),
    of("attention:v6_turns", "B=8,D=128,NH=16,NKV=16,S=2048", "bf16", By::Operations),
    of("passes:rms_norm_back", "C=768,R=32768", "bf16", By::Bytes),
    of("decode:v4_persistent", "K=4096,N=21888,R=8", "bf16", By::Bytes),
];

/// The picture, by file name; nothing where nothing was measured.
pub(crate) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Error> {
    let Some(newest) = runs.last() else { return Ok(Vec::new()) };
    let gpu = &newest.device.gpu;
    let steps: Vec<Step> = STAGES
        .iter()
        .map(|stage| {
            let (figure, of) = figure(runs, gpu, stage);
            Step { name: stage.name.into(), adds: stage.teaches.into(), figure, of }
        })
        .collect();
    let title = format!(
        "The stages from the first to the last, with one figure of each, on an {gpu}, from benches/history"
    );
    Ok(vec![("stairs.svg".into(), stairs(&title, &steps)?)])
}

/// The stage's result in the newest record of this GPU that has it, and which version and problem it is of.
fn figure(runs: &[Run], gpu: &str, stage: &Stage) -> (String, String) {
    let own = |h: &&Headline| h.version.split(':').next() == Some(stage.name);
    let found = HEADLINES.iter().filter(own).find_map(|headline| {
        let is = |m: &&Measurement| {
            (&*m.version, &*m.shape, &*m.dtype)
                == (headline.version, headline.shape, headline.dtype)
        };
        let results = |run: &'_ Run| run.results.iter().find(is).cloned();
        let m = runs.iter().rev().filter(|run| run.device.gpu == gpu).find_map(results)?;
        result_in_its_unit(&m, headline.by)
    });
    found.unwrap_or_else(|| {
        let mistake = |v: &&dyn Version| v.expected(&Options::default()).mistake().is_some();
        let wrong = stage.versions.iter().all(mistake);
        let figure = if wrong { "wrong on purpose" } else { "not measured yet" };
        (figure.into(), String::new())
    })
}

/// A result in its unit, and what it is of.
fn result_in_its_unit(m: &Measurement, by: By) -> Option<(String, String)> {
    let dims = Dims::parse(&m.shape).ok()?;
    let three = lab_plots::three_digits;
    let us = m.replay_us.unwrap_or(m.median_us);
    let (figure, more) = match by {
        By::Bytes => {
            let share = m.roofline_percent.map(|p| format!("{p:.0} % of a copy"));
            (format!("{:.0} GB/s", m.gbps?), share)
        }
        By::Operations => (format!("{} TFLOP/s", three(m.tflops?)), None),
        By::Time => (format!("{} µs", three(us)), None),
        By::Step(steps) => (format!("{} µs a step", three(us / dims.find(steps)? as f64)), None),
    };
    let pass = match &*m.family {
        "vlstm_fwbw" | "gdn_fwbw" | "lstm" | "slstm" => Some("forward and backward".into()),
        _ => None,
    };
    let graph = matches!(by, By::Time | By::Step(_)) && m.replay_us.is_some();
    let products = m.products.map(|p| match p {
        Products::Tf32 => "products in TF32".into(),
        Products::Halves => "products in halves".into(),
    });
    let problem = format!("{}: {}, {}", short(&m.version), label(&dims, &[&dims]), m.dtype);
    let all = [Some(problem), products, pass, graph.then(|| "in a graph".into()), more];
    Some((figure, all.into_iter().flatten().collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::families::tests::{line, run};
    use super::*;

    #[test]
    fn a_figure_is_in_the_unit_of_its_stage_and_says_what_it_is_of() {
        let mut line = line("mlp_fused:v3", "version", "B=2,N=4", 80.0, 0.0);
        line["products"] = "halves".into();
        line["gbps"] = 1234.0.into();
        let run = run("2026-01-31T12:00:00Z", vec![line]);
        let of = |by| result_in_its_unit(&run.results[0], by).unwrap();
        // Replayed it takes half of its time.
        let problem = "v3: B=2, N=4, f32, products in halves";
        assert_eq!(of(By::Time), ("40.0 µs".into(), format!("{problem}, in a graph")));
        assert_eq!(of(By::Step("N")).0, "10.0 µs a step");
        assert_eq!(of(By::Bytes), ("1234 GB/s".into(), format!("{problem}, 50 % of a copy")));
        assert!(result_in_its_unit(&run.results[0], By::Step("T")).is_none());
    }

    #[test]
    fn every_figure_is_of_a_version_that_there_is() {
        for headline in &HEADLINES {
            let (stage, version) = headline.version.split_once(':').unwrap();
            let stage = STAGES.iter().find(|s| s.name == stage).unwrap();
            let found = stage.versions.iter().any(|v| v.info().name == version);
            assert!(found, "{}", headline.version);
        }
    }
}
