//! Reference mathematics in f64: the plainest code that is right. One module a family.

pub mod attention;
pub mod attention_step;
pub mod gdn;
pub mod lstm;
pub mod matmul;
pub mod mlp;
pub mod ngrams;
mod off;
pub mod passes;
pub mod playg;
pub mod qkv;
pub mod slstm;
pub mod training;
pub mod vlstm;

#[cfg(test)]
mod testing;
