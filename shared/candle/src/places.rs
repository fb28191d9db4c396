//! Sequences of unlike lengths, packed one behind the other.

use candle_core::{Device, Result, Tensor};

use crate::refuse;

/// That these say where sequences of a tensor q begin, whose axes are \[1, heads, S, columns\].
pub(crate) fn check(places: &[usize], q: &Tensor, axes: &str) -> Result<()> {
    if places.len() < 2 {
        return Err(refuse("cu_seqlens", "N + 1 numbers", places.len()));
    }
    if q.dim(0)? != 1 {
        let (_, axes) = axes.split_once(", ").unwrap_or_default();
        let expected = format!("shape [1, {axes}] with cu_seqlens");
        return Err(refuse("q", expected, format!("{:?}", q.dims())));
    }
    let positions = q.dim(2)?;
    if places[0] != 0 || places[places.len() - 1] != positions || !places.is_sorted() {
        let expected = format!("numbers that rise from 0 to {positions}, or stay the same");
        return Err(refuse("cu_seqlens", expected, format!("{places:?}")));
    }
    Ok(())
}

/// As kernels take them.
pub(crate) fn tensor(places: &[usize], device: &Device) -> Result<Tensor> {
    let narrow = |place: &usize| {
        i32::try_from(*place).map_err(|_| refuse("cu_seqlens", "numbers up to 2³¹ − 1", place))
    };
    let narrow = places.iter().map(narrow).collect::<Result<Vec<i32>>>()?;
    Tensor::from_vec(narrow, places.len(), device)
}
