//! What was measured, as files: the records of benchmarks in `benches/history`, what a launch costs among them, and tile
//! parameters that were tuned.

pub mod launch_cost;
mod layout;
pub mod record;
pub mod tuned;
