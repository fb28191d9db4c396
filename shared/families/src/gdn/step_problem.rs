//! The sizes of a step.

use lab_harness::Dims;

/// B, NH, NKV, DHQK, DHHV by their names.
pub fn sizes([b, nh, nkv, dhqk, dhhv]: [usize; 5]) -> Dims {
    Dims::new([("B", b), ("NH", nh), ("NKV", nkv), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// B, NH, NKV, DHQK, DHHV of a checked problem.
pub fn sizes_of(dims: &Dims) -> [usize; 5] {
    ["B", "NH", "NKV", "DHQK", "DHHV"].map(|name| dims.get(name))
}
