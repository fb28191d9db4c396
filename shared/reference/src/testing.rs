//! What the tests of several families use.

use std::path::Path;

use safetensors::SafeTensors;

/// Numbers like noise, between −1 and 1.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A file of `recorded/`: tensors under names that begin with their case's. All are f64, counts
/// too.
pub(crate) struct Recorded(Vec<u8>);

impl Recorded {
    pub(crate) fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded").join(name);
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    /// All names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.file().names().into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        self.file().tensor(name).unwrap().shape().to_vec()
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.dtype(), safetensors::Dtype::F64, "{name}");
        let words = tensor.data().as_chunks::<8>().0.to_vec();
        words.into_iter().map(f64::from_le_bytes).collect()
    }

    /// Each element to 1.4e-14 of the tensor's largest: four times the largest error seen.
    pub(crate) fn assert_equal(&self, got: &[f64], name: &str) {
        let expected = self.values(name);
        assert_eq!(got.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        for (g, e) in got.iter().zip(&expected) {
            assert!((g - e).abs() <= 1.4e-14 * largest, "{name}: {g}, not {e}, of {largest}");
        }
    }
}

#[test]
#[should_panic(expected = ", not ")]
fn a_recorded_value_that_differs_is_refused() {
    let recorded = Recorded::open("vlstm.safetensors");
    let mut values = recorded.values("small.h");
    recorded.assert_equal(&values, "small.h");
    values[0] += 1e-13;
    recorded.assert_equal(&values, "small.h");
}
