//! Which results compute the operations that are counted of their family.

use lab_records::record::Measurement;

/// Stages and peers that take the vLSTM in chunks. What is counted of its families are the operations of all pairs, and
/// these compute only those within a chunk.
const CHUNKWISE: [&str; 7] = [
    "vlstm_fw_v3",
    "vlstm_fw_v4",
    "vlstm_fwbw_v3",
    "vlstm_fwbw_v4",
    "limit_chunk",
    "xl_chunk",
    "jax",
];

/// Whether a result computes the operations that are counted. Otherwise its TFLOP/s and its share of the roofline say nothing.
pub(crate) fn computes_what_is_counted(m: &Measurement) -> bool {
    let of = m.version.split(':').next();
    !of.is_some_and(|of| CHUNKWISE.contains(&of))
}
