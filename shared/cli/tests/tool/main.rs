//! The tool as a user meets it: each test runs `lab`. One program for all of them: linked once, and while one test takes
//! long the others go on.
#![allow(missing_docs)]

mod app;
mod bad_input;
mod compile;
mod doors;
mod heads;
mod history;
mod inline_ptx;
mod kernel;
mod lm;
mod lm_ranks;
mod lstm;
mod lstm_refuses;
mod mlp;
mod mutate;
mod norm;
mod operands;
mod profile;
mod ptx_twins;
mod traces;
mod workshop;
