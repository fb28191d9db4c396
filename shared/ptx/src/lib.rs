//! PTX as C++ that the emulator runs: the statements of an `asm` ([`translate_asm`]), and whole modules
//! ([`Module`]), as a compiler for GPUs writes them.
//!
//! # The problem
//!
//! The emulator checks kernels that a host compiler has compiled, so it reads CUDA C++ alone. Most compilers for GPUs,
//! Triton's among them, read something else; what they all write is PTX.
//!
//! Here a module becomes C++ again: registers are variables, labels are labels, and each instruction is a call of what
//! the emulator has for it (`compat/ptx.h`), on the line that the module's `.loc` names. What the emulator then finds, it
//! finds at that line, of a Python file for one.
//!
//! ```text
//! kernel.py ──Triton──▶ module.ptx ──this crate──▶ C++ ──g++──▶ the emulator ──▶ "kernel.py:12: …"
//! ```
//!
//! What is not known is refused by its name and line, before anything runs.
#![forbid(unsafe_code)]

mod asynchronous;
mod coalesced;
mod constants;
mod conversions;
mod cpp;
mod inline;
mod instruction;
mod memory;
mod module;
mod numbers;
mod special;
mod statement;
mod text;
mod tiles;
mod warps;

pub use cpp::{Global, SCOPE, Translated, type_macro};
pub use inline::translate_asm;
pub use module::{Entry, Error, Module, Parameter, Place};
pub use statement::NEXT_LITERAL;
pub use text::Given;
