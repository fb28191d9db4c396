//! Long sequences, a piece after the other: what a piece costs grows with the square of its length, and a state stands for
//! all that was before it. Heads have nothing to do with one another: each core takes one.

use rayon::prelude::*;

use super::{
    Gradients, Inputs, NormalizerGrad, Outputs, Sizes, State, StateGradient, backward_from,
    forward_from,
};

/// The positions of each piece.
fn pieces(positions: usize, piece: usize) -> Vec<[usize; 2]> {
    (0..positions).step_by(piece).map(|from| [from, positions.min(from + piece)]).collect()
}

impl Sizes {
    fn of_piece(self, [from, to]: [usize; 2]) -> Self {
        Self { positions: to - from, ..self }
    }
}

impl<'a> Inputs<'a> {
    /// Positions of one head.
    fn piece(self, sizes: Sizes, [from, to]: [usize; 2]) -> Self {
        let part = |all: &'a [f64], columns: usize| &all[from * columns..to * columns];
        Self {
            q: part(self.q, sizes.qk),
            k: part(self.k, sizes.qk),
            v: part(self.v, sizes.hv),
            i: part(self.i, 1),
            f: part(self.f, 1),
        }
    }
}

impl State {
    fn of_head(&self, sizes: Sizes, head: usize) -> Self {
        let (c, n) = (sizes.qk * sizes.hv, sizes.qk);
        Self {
            c: self.c[head * c..][..c].to_vec(),
            n: self.n[head * n..][..n].to_vec(),
            m: vec![self.m[head]],
        }
    }
}

/// As [`forward_from`], in pieces of at most so many positions.
///
/// # Panics
/// As there; pieces of nothing.
pub fn forward_in_pieces(
    x: Inputs<'_>,
    state: &State,
    sizes: Sizes,
    epsilon: f64,
    piece: usize,
) -> (Outputs, State) {
    let of_head = |head: usize| {
        let (mut out, own) = (Outputs::default(), sizes.head(x, head));
        let mut before = state.of_head(sizes, head);
        for at in pieces(sizes.positions, piece) {
            let (part, behind) =
                forward_from(own.piece(sizes, at), &before, sizes.of_piece(at), epsilon);
            out.h.extend(part.h);
            out.m.extend(part.m);
            out.n.extend(part.n);
            before = behind;
        }
        (out, before)
    };
    let all: Vec<_> = (0..sizes.heads(x)).into_par_iter().map(of_head).collect();
    let (mut out, mut last) = (Outputs::default(), State::default());
    for (own, behind) in all {
        out.h.extend(own.h);
        out.m.extend(own.m);
        out.n.extend(own.n);
        last.c.extend(behind.c);
        last.n.extend(behind.n);
        last.m.extend(behind.m);
    }
    (out, last)
}

/// As [`backward_from`], in pieces of at most so many positions: the gradient of the state before a piece is that of the state
/// behind the one before it.
///
/// # Panics
/// As there; pieces of nothing.
#[allow(clippy::too_many_arguments)] // those of `backward_from`, and the length
pub fn backward_in_pieces(
    x: Inputs<'_>,
    dh: &[f64],
    state: &State,
    last: &StateGradient,
    sizes: Sizes,
    epsilon: f64,
    through: NormalizerGrad,
    piece: usize,
) -> (Gradients, StateGradient) {
    let Sizes { positions, qk, hv } = sizes;
    let of_head = |head: usize| {
        let own = sizes.head(x, head);
        let dh = &dh[head * positions * hv..][..positions * hv];
        let pieces = pieces(positions, piece);
        let mut before = vec![state.of_head(sizes, head)];
        for &at in &pieces[..pieces.len() - 1] {
            let state = before.last().expect("the first");
            let own = own.piece(sizes, at);
            before.push(forward_from(own, state, sizes.of_piece(at), epsilon).1);
        }
        let mut behind = StateGradient {
            c: last.c[head * qk * hv..][..qk * hv].to_vec(),
            n: last.n[head * qk..][..qk].to_vec(),
        };
        let mut parts = Vec::new();
        for (&at, before) in pieces.iter().zip(&before).rev() {
            let (own, dh) = (own.piece(sizes, at), &dh[at[0] * hv..at[1] * hv]);
            let sizes = sizes.of_piece(at);
            let (part, first) = backward_from(own, dh, before, &behind, sizes, epsilon, through);
            parts.push(part);
            behind = first;
        }
        parts.reverse();
        (parts, behind)
    };
    let heads: Vec<_> = (0..sizes.heads(x)).into_par_iter().map(of_head).collect();
    let (mut all, mut of_first) = (Gradients::default(), StateGradient::default());
    for (parts, first) in heads {
        for part in parts {
            all.dq.extend(part.dq);
            all.dk.extend(part.dk);
            all.dv.extend(part.dv);
            all.di.extend(part.di);
            all.df.extend(part.df);
        }
        of_first.c.extend(first.c);
        of_first.n.extend(first.n);
    }
    (all, of_first)
}
