//! The sizes of a step, and the type of its state.

use lab_device::DType;
use lab_harness::Dims;

/// B, NH, NKV, DHQK, DHHV by their names.
pub fn sizes([b, nh, nkv, dhqk, dhhv]: [usize; 5]) -> Dims {
    Dims::new([("B", b), ("NH", nh), ("NKV", nkv), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// B, NH, NKV, DHQK, DHHV of a checked problem.
pub fn sizes_of(dims: &Dims) -> [usize; 5] {
    ["B", "NH", "NKV", "DHQK", "DHHV"].map(|name| dims.get(name))
}

/// The type of C in a run that does not say.
pub fn state_dtype(dtype: DType) -> DType {
    if dtype == DType::BF16 { DType::BF16 } else { DType::F32 }
}
