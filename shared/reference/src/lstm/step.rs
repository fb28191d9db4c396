//! What goes into a step of a row, and the gradients that come back.

/// What a row's step starts from.
pub(super) struct Before<'a> {
    /// W_ih x + b_ih, `[G·H]`.
    pub(super) a_x: &'a [f64],
    /// W_hh h + b_hh, `[G·H]`.
    pub(super) a_h: &'a [f64],
    /// `[H]`
    pub(super) h: &'a [f64],
    /// `[H]`; empty for the GRU.
    pub(super) c: &'a [f64],
}

/// The gradients by [`Before`]; `dh` is what does not come through `da_h`.
pub(super) struct StepBack {
    pub(super) da_x: Vec<f64>,
    pub(super) da_h: Vec<f64>,
    pub(super) dh: Vec<f64>,
    pub(super) dc: Vec<f64>,
}
