//! What is said of one access to memory: what it does, how it is made, and where.

/// How memory was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Read,
    Write,
    /// By a volatile access or a load with memory-model semantics.
    StrongRead,
    /// By an atomic or a store with memory-model semantics.
    StrongWrite,
    /// By an asynchronous copy, until it was waited for or has landed.
    AsyncWrite,
    /// Its other end.
    AsyncRead,
    /// By a copy of the async proxy, now that its own thread has waited for it.
    Landed,
    /// By a volatile access: as strong as an atomic, but for two lanes of a warp.
    VolatileWrite,
}

impl Kind {
    /// By their numbers.
    pub(crate) const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::StrongRead,
        Self::StrongWrite,
        Self::AsyncWrite,
        Self::AsyncRead,
        Self::Landed,
        Self::VolatileWrite,
    ];

    #[inline(always)]
    pub(crate) fn writes(self) -> bool {
        matches!(
            self,
            Self::Write | Self::StrongWrite | Self::AsyncWrite | Self::Landed | Self::VolatileWrite
        )
    }

    #[inline(always)]
    pub(crate) fn strong(self) -> bool {
        matches!(self, Self::StrongRead | Self::StrongWrite | Self::VolatileWrite)
    }

    /// Whether nothing orders it yet, not even the program of its own thread.
    #[inline(always)]
    pub(crate) fn in_flight(self) -> bool {
        matches!(self, Self::AsyncWrite | Self::AsyncRead)
    }

    /// Whether two accesses, unordered, are a race.
    #[inline(always)]
    pub(crate) fn conflicts(self, other: Self) -> bool {
        (self.writes() || other.writes()) && !(self.strong() && other.strong())
    }
}

/// How an access was made, beside its kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// By one instruction, which must be aligned.
    pub(crate) whole: bool,
    /// It reads as well as writes.
    pub(crate) updates: bool,
    /// An asynchronous copy lands.
    pub(crate) lands: bool,
    /// By an instruction of mbarriers.
    pub(crate) mbarrier: bool,
    /// As part of a copy, which comes to where it goes only when it lands.
    pub(crate) in_copy: bool,
    /// In the async proxy: a bulk copy, a tensor copy, wgmma.
    pub(crate) proxy: bool,
    /// To shared memory.
    pub(crate) shared: bool,
    /// As an atomic for threads of its own block alone.
    pub(crate) of_block: bool,
}

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Static,
    Dynamic,
    /// `__device__` variables.
    Module,
}

/// A plain store that is looked at again once it is done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) address: usize,
    pub(crate) bytes: u32,
    pub(crate) place: u16,
    /// It is one of a race: which finding, and what the memory held before.
    pub(crate) race: Option<(u32, [u8; 16])>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn races_need_a_write_and_a_weak_access() {
        use Kind::*;
        for (a, b, race) in [
            (Read, Read, false),
            (Read, Write, true),
            (Write, Write, true),
            (StrongWrite, StrongWrite, false),
            (VolatileWrite, StrongWrite, false),
            (VolatileWrite, Read, true),
            (StrongRead, StrongWrite, false),
            (StrongWrite, Read, true),
            (StrongRead, Read, false),
            (AsyncWrite, Read, true),
            (AsyncWrite, StrongWrite, true),
            (AsyncRead, Write, true),
            (AsyncRead, Read, false),
        ] {
            assert_eq!((a.conflicts(b), b.conflicts(a)), (race, race), "{a:?} {b:?}");
        }
    }
}
