//! Which results compute the operations that are counted of their family.

use lab_records::record::Measurement;
use lab_registry::STAGES;

/// Peers that take the vLSTM in chunks, as some stages do ([`is_chunkwise`](lab_harness::Stage::is_chunkwise)).
const CHUNKWISE: [&str; 3] = ["limit_chunk", "xl_chunk", "jax"];

/// Whether a version, such as `vlstm_fw_v4:v1_roles`, or a peer works in chunks, where the operations of all pairs are counted.
/// It needs fewer, so its TFLOP/s and its share of the roofline say nothing.
pub fn works_in_chunks(version: &str) -> bool {
    let of = version.split(':').next().expect("a part before the first colon");
    CHUNKWISE.contains(&of) || STAGES.iter().any(|stage| stage.name == of && stage.is_chunkwise)
}

/// Whether a result computes the operations that are counted.
pub(crate) fn computes_what_is_counted(m: &Measurement) -> bool {
    !works_in_chunks(&m.version)
}
