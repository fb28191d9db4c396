//! The contract with compiled kernels, as `include/contract.def` has it: `build.rs` reads the same
//! lines that the C++ side expands.

use std::ffi::c_void;

include!(concat!(env!("OUT_DIR"), "/contract.rs"));

macro_rules! runtime {
    ($($kind:ident fn $name:ident($($parameter:ident: $type:ty),*) -> $result:ty;)*) => {
        /// `EmuRuntime`: what kernels call. The last argument is the call's return address.
        #[repr(C)]
        pub(crate) struct Runtime {
            $(pub(crate) $name: extern "C" fn($($type,)* *const c_void) -> $result,)*
        }
    };
}
for_all_hooks!(runtime);
pub(crate) use for_all_hooks;

macro_rules! coordinate {
    ($($name:ident)*) => {
        /// `EmuCoordinate`: where a thread is, and the sizes of what it is in.
        #[derive(Clone, Copy, Debug)]
        #[allow(dead_code)] // kernels ask for them by number
        pub(crate) enum Coordinate { $($name,)* }

        /// How many there are.
        pub(crate) const COORDINATES: usize = [$(Coordinate::$name),*].len();
    };
}
for_all_coordinates!(coordinate);

macro_rules! barrier_kind {
    ($($name:ident $cuda_name:literal)*) => {
        /// `EmuBarrier`: how a block barrier combines predicates.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum BarrierKind { $($name,)* }

        impl BarrierKind {
            pub(crate) fn from_code(code: i32) -> Option<Self> {
                const ALL: &[BarrierKind] = &[$(BarrierKind::$name),*];
                ALL.get(usize::try_from(code).ok()?).copied()
            }

            /// The name under which CUDA knows it.
            pub(crate) fn cuda_name(self) -> &'static str {
                match self { $(Self::$name => $cuda_name,)* }
            }
        }
    };
}
for_all_barriers!(barrier_kind);

/// What a lane brings to a collective: a word, or the address of its share of small matrices, whose
/// rows and columns are spread over all 32 lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperandKind {
    Word,
    Matrices,
}

macro_rules! collective {
    (@operand WORD) => { OperandKind::Word };
    (@operand MATRICES) => { OperandKind::Matrices };
    ($($name:ident $cuda_name:literal $operand:ident)*) => {
        /// `EmuWarp`: what the lanes of a warp do together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Collective { $($name,)* }

        impl Collective {
            pub(crate) fn from_code(code: i32) -> Option<Self> {
                const ALL: &[Collective] = &[$(Collective::$name),*];
                ALL.get(usize::try_from(code).ok()?).copied()
            }

            /// The name under which CUDA knows it.
            pub(crate) fn cuda_name(self) -> &'static str {
                match self { $(Self::$name => $cuda_name,)* }
            }

            fn operand_kind(self) -> OperandKind {
                match self { $(Self::$name => collective!(@operand $operand),)* }
            }
        }
    };
}
for_all_collectives!(collective);

impl Collective {
    /// Whether it is about small matrices, whose rows and columns are spread over all 32 lanes.
    pub(crate) fn of_matrices(self) -> bool {
        self.operand_kind() == OperandKind::Matrices
    }
}

macro_rules! values {
    ($($name:ident: $type:ty = $value:literal;)*) => {
        $(pub(crate) const $name: $type = $value;)*
    };
}
for_all_values!(values);

/// What stands in place of a type's name where an access may be before the start of its object: `starts.rs` of
/// lab-kernel-build writes it.
pub(crate) const BEFORE: &str = "\u{1}";
