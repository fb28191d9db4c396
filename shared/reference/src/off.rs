//! A value that rounding has moved, for the magnitudes of errors.

/// A value, and by how much it is off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Off {
    pub(crate) of: f64,
    pub(crate) by: f64,
}

impl Off {
    pub(crate) const fn exact(of: f64) -> Self {
        Self { of, by: 0.0 }
    }

    /// A product; with what its own rounding adds.
    pub(crate) fn times(self, other: Self, sums: f64) -> Self {
        let of = self.of * other.of;
        let by = self.by * other.of.abs() + self.of.abs() * other.by + sums * of.abs();
        Self { of, by }
    }

    /// A sum, likewise.
    pub(crate) fn plus(self, other: Self, sums: f64) -> Self {
        let of = self.of + other.of;
        Self { of, by: self.by + other.by + sums * of.abs() }
    }
}
