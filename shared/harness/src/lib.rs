//! What every stage shares.
//!
//! A [`Family`] says what is computed: inputs, reference, cost. A [`Version`] of it is one kernel idea:
//! it plans the launches for a problem. Tests, benches, the tool and the book loop over versions and
//! know nothing of any particular one.
//!
//! ```text
//! Problem (sizes, dtype, seed, options)
//!    │ Family::draw_inputs
//!    ▼
//! Tensors ──shapes──▶ Request ──Version::plan──▶ Plan ──bind, upload──▶ Binding: run(), outputs()
//!    └─Family::reference, in f64 ────────────────────────────────compare──▶ Comparisons
//! ```

pub mod agreement;
pub mod binding;
pub mod binding_checks;
pub mod choice;
pub mod compare;
pub mod composition_checks;
pub mod crowd;
pub mod device_checks;
pub mod distance;
pub mod error;
pub mod expected;
pub mod family;
pub mod heads;
pub mod info;
mod lifetimes;
pub mod map_checks;
pub mod operand;
pub mod overlap_checks;
pub mod peer;
pub mod plan;
pub mod posed;
mod preference;
pub mod prepared;
pub mod problem;
mod products;
pub mod progress;
mod ranges;
pub mod request;
pub mod roofline;
pub mod stage;
pub mod suite;
pub mod tensor;
pub mod tiling;
pub mod timing;
#[cfg(test)]
mod together_tests;
pub mod version;

// Where `arguments!` looks for a crate's promise.
use device_checks::kernels;

pub use binding::{Binder, Binding};
pub use choice::Choice;
pub use compare::{Comparison, Element, Magnitude, Magnitudes, compare};
pub use distance::{distance, distance_beside};
pub use error::Error;
pub use expected::{Expected, Mistake};
pub use family::{Family, Reference};
pub use heads::Heads;
pub use info::{Dim, Info, Input, Output, Setting};
pub use operand::Operand;
pub use peer::{Peer, PeerInfo, Place};
pub use plan::Plan;
pub use posed::Posed;
pub use preference::Preference;
pub use prepared::{Host, Prepared};
pub use problem::{Dims, Options, Problem};
pub use products::Products;
pub use request::{Request, Shape, Shapes};
pub use stage::Stage;
pub use tensor::{Tensor, Tensors};
pub use tiling::Tiling;
pub use version::{Cost, Version, run};
