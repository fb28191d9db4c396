//! Sizes of a product, and the limits of a launch.

use lab_harness::{Dims, Error, Shapes};

/// Blocks of 32 rows or columns of C are the smallest here, and a grid has 65,535 in y. Offsets
/// within a matrix's tile then fit 32 bits, too: a kernel computes in 64 where a tile starts.
pub(crate) const LARGEST: usize = 32 * 65535;

/// Rows and columns of C a block where a thread has an element: those of its threads.
pub(crate) const SQUARE: [u32; 2] = [32, 32];

/// G, M, N, K.
pub(crate) fn sizes([g, m, n, k]: [usize; 4]) -> Dims {
    Dims::new([("G", g), ("M", m), ("N", n), ("K", k)])
}

/// The leading indices of C: those of A, which B must have too.
///
/// # Errors
/// B has others.
pub(crate) fn leading_sizes(shapes: &Shapes) -> Result<&[usize], Error> {
    let [a, b] = ["A", "B"].map(|name| {
        let sizes = &shapes[name].sizes;
        &sizes[..sizes.len() - 2]
    });
    if a == b {
        return Ok(a);
    }
    let expected = format!("{a:?} before K and N, as 'A' has before M and K");
    Err(Error::Tensor { name: "B".into(), expected, got: shapes["B"].to_string() })
}
