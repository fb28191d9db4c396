//! `lab lm profile`.

use std::collections::BTreeMap;

use clap::Args;
use lab_device::DeviceKind;
use lab_lm::Step;
use serde_json::json;

use super::settings::Sizes;
use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    sizes: Sizes,
    /// Runs of each launch, of which the median is told
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { sizes, runs } = arguments;
    let device = common.open()?;
    let (model, config) = (sizes.model(), sizes.config(sizes.dtype.on(&device)));
    let times = Step::times(&device, &model, &config, *runs)?;
    // By layer, but not by block, and by kernel.
    let mut sums: BTreeMap<(String, &str), (usize, f64)> = BTreeMap::new();
    for step in &times {
        let numbered = |part: &&str| part.parse::<usize>().is_err();
        let layer: Vec<&str> = step.layer.split('.').filter(numbered).collect();
        let layer = layer.join(".").trim_start_matches("backbone.blocks.").to_owned();
        let sum = sums.entry((layer, step.kernel.as_str())).or_default();
        sum.0 += 1;
        sum.1 += step.time.as_secs_f64() * 1e6;
    }
    let all: f64 = sums.values().map(|(_, time)| time).sum();
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    if common.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|((layer, kernel), (launches, us))| {
                json!({ "layer": layer, "kernel": kernel, "launches": launches, "us": us })
            })
            .collect();
        say!(
            "{}",
            json!({ "device": device.name(), "launches": times.len(), "us": all, "rows": rows })
        );
        return Ok(());
    }
    let what = match device.kind() {
        DeviceKind::Cuda => "each launch alone, with a cold L2 cache",
        DeviceKind::Emulator => "the emulator's own time, which says nothing of a GPU's",
    };
    say!("{}: {} launches, {all:.0} µs; {what}", device.name(), times.len());
    say!("{:>9} {:>5} {:>8}  layer, kernel", "µs", "%", "launches");
    for ((layer, kernel), (launches, us)) in rows {
        let kernel: String = kernel.chars().take(60).collect();
        say!("{us:9.0} {:5.1} {launches:8}  {layer}  {kernel}", 100.0 * us / all);
    }
    Ok(())
}
