//! The sizes that are timed.

use lab_device::DType;
use lab_harness::{Dims, Info};

use crate::sizes::sizes;

/// Square products: the small ones leave most of a GPU idle, the large ones fill it many times.
const LADDER: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];

/// Versions to which the largest takes seconds, and says nothing that 4096 does not.
const SLOW: [&str; 4] = ["v0_naive", "v1_coalesced", "v2_tiled", "v3_rows"];

/// The ladder in f32, and in bf16 for the halves; f16 moves the same bytes as bf16, and one size
/// shows it.
pub(crate) fn shapes(info: &Info, dtype: DType) -> Vec<Dims> {
    if dtype == DType::F16 {
        return vec![info.timed(dtype)];
    }
    let slow = SLOW.contains(&info.name);
    let fits = |&&size: &&usize| !(slow && size > 4096);
    LADDER.iter().filter(fits).map(|&size| sizes([1, size, size, size])).collect()
}

#[cfg(test)]
mod tests {
    use lab_harness::Version;

    use super::*;

    #[test]
    fn the_slow_versions_stop_early_and_each_name_is_one() {
        for name in SLOW {
            let version = crate::VERSIONS.iter().find(|v| v.info().name == name).unwrap();
            assert_eq!(version.bench_shapes(DType::F32).len(), LADDER.len() - 1);
        }
        let last = crate::WARPS.bench_shapes(DType::BF16);
        assert_eq!(last.last().unwrap().get("K"), 8192);
        assert_eq!(crate::WARPS.bench_shapes(DType::F16), [crate::WARPS.info().timed(DType::F16)]);
    }
}
