//! What each warp collective computes, once every lane named in its mask has arrived.

pub(crate) use crate::abi::Collective;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// What one lane brings to a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) op: Collective,
    pub(crate) mask: u32,
    pub(crate) value: u64,
    pub(crate) argument: u32,
    pub(crate) width: u32,
}

/// The result for `lane`, given what the lanes of `present` brought.
///
/// A shuffle from a lane that is not in `present` is undefined in CUDA; here it gives a pattern
/// that is NaN in every float format, so that it shows.
pub(crate) fn result(lane: usize, operands: &[Operand; LANES], present: u32) -> u64 {
    let own = operands[lane];
    let lanes = (0..LANES).filter(|l| present >> l & 1 == 1);
    let bits = |wanted: &dyn Fn(u64) -> bool| {
        lanes.clone().filter(|&l| wanted(operands[l].value)).fold(0u32, |m, l| m | 1 << l)
    };
    let fold = |f: fn(u32, u32) -> u32| {
        let mut values = lanes.clone().map(|l| operands[l].value as u32);
        let first = values.next().unwrap_or(0);
        u64::from(values.fold(first, f))
    };
    match own.op {
        // What these give does not fit a word: see `matrix`.
        Collective::LoadMatrices
        | Collective::LoadMatricesTransposed
        | Collective::MmaF16
        | Collective::MmaBf16
        | Collective::MmaTf32
        | Collective::Sync => 0,
        Collective::Shuffle
        | Collective::ShuffleUp
        | Collective::ShuffleDown
        | Collective::ShuffleXor => {
            let source = source_lane(lane, own);
            if present >> source & 1 == 1 { operands[source].value } else { u64::MAX }
        }
        Collective::All => u64::from(bits(&|v| v != 0) == present),
        Collective::Any => u64::from(bits(&|v| v != 0) != 0),
        Collective::Ballot => u64::from(bits(&|v| v != 0)),
        Collective::MatchAny => u64::from(bits(&|v| v == own.value)),
        Collective::MatchAll => {
            let same = bits(&|v| v == own.value);
            u64::from(if same == present { same } else { 0 })
        }
        Collective::Add => fold(u32::wrapping_add),
        Collective::MinUnsigned => fold(u32::min),
        Collective::MaxUnsigned => fold(u32::max),
        Collective::MinSigned => fold(|a, b| (a as i32).min(b as i32) as u32),
        Collective::MaxSigned => fold(|a, b| (a as i32).max(b as i32) as u32),
        Collective::And => fold(|a, b| a & b),
        Collective::Or => fold(|a, b| a | b),
        Collective::Xor => fold(|a, b| a ^ b),
    }
}

/// The lane that a shuffle of `lane` reads though it does not take part.
pub(crate) fn absent_source(lane: usize, own: &Operand, present: u32) -> Option<usize> {
    use Collective::{Shuffle, ShuffleDown, ShuffleUp, ShuffleXor};
    if present == u32::MAX || !matches!(own.op, Shuffle | ShuffleUp | ShuffleDown | ShuffleXor) {
        return None;
    }
    let source = source_lane(lane, *own);
    (present >> source & 1 == 0).then_some(source)
}

/// The lane a shuffle reads, by the PTX ISA's `shfl.sync`: segments of `width` lanes; a source
/// outside the caller's segment leaves the caller its own value.
fn source_lane(lane: usize, own: Operand) -> usize {
    let width = own.width.clamp(1, 32) as usize;
    let first = lane / width * width;
    let argument = own.argument as usize;
    match own.op {
        Collective::Shuffle => first + argument % width,
        Collective::ShuffleUp => {
            if lane - first >= argument {
                lane - argument
            } else {
                lane
            }
        }
        Collective::ShuffleDown => {
            let source = lane.saturating_add(argument);
            if source < first + width { source } else { lane }
        }
        // A butterfly may read a lower segment, never a higher one.
        _ => {
            let source = lane ^ (argument % LANES);
            if source < first + width { source } else { lane }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operands(op: Collective, argument: u32, width: u32) -> [Operand; LANES] {
        std::array::from_fn(|l| Operand { op, mask: u32::MAX, value: l as u64, argument, width })
    }

    #[test]
    fn shuffles_follow_the_ptx_isa() {
        let all = |op, argument, width| {
            let o = operands(op, argument, width);
            (0..LANES).map(|l| result(l, &o, u32::MAX) as usize).collect::<Vec<_>>()
        };
        assert_eq!(all(Collective::Shuffle, 5, 32), vec![5; 32]);
        assert_eq!(all(Collective::Shuffle, 9, 8)[10], 8 + 1);
        assert_eq!(all(Collective::ShuffleUp, 1, 32)[..3], [0, 0, 1]);
        assert_eq!(all(Collective::ShuffleUp, 2, 4)[4..8], [4, 5, 4, 5]);
        assert_eq!(all(Collective::ShuffleDown, 1, 32)[30..], [31, 31]);
        assert_eq!(all(Collective::ShuffleDown, 2, 4)[..4], [2, 3, 2, 3]);
        assert_eq!(all(Collective::ShuffleXor, 1, 32)[..4], [1, 0, 3, 2]);
        // A butterfly over 8 lanes in segments of 4: the upper segment reads the lower one.
        assert_eq!(all(Collective::ShuffleXor, 4, 4)[..8], [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn an_absent_source_is_not_silently_a_number() {
        let o = operands(Collective::Shuffle, 7, 32);
        let bits = result(0, &o, 0b11) as u32;
        assert!(f32::from_bits(bits).is_nan());
    }

    #[test]
    fn votes_and_reductions_cover_the_present_lanes_only() {
        let present = 0b1110;
        let o = operands(Collective::Ballot, 0, 32);
        assert_eq!(result(1, &o, present), 0b1110);
        let o = operands(Collective::All, 0, 32);
        assert_eq!(result(1, &o, present), 1);
        assert_eq!(result(1, &o, 0b1111), 0, "lane 0 brings 0");
        let o = operands(Collective::Add, 0, 32);
        assert_eq!(result(1, &o, present), 6);
        let mut o = operands(Collective::MinSigned, 0, 32);
        o[2].value = u64::from(-5i32 as u32);
        assert_eq!(result(1, &o, present) as u32 as i32, -5);
        let mut o = operands(Collective::MatchAll, 0, 32);
        assert_eq!(result(1, &o, present), 0);
        o.iter_mut().for_each(|o| o.value = 3);
        assert_eq!(result(1, &o, present), u64::from(present));
    }
}
