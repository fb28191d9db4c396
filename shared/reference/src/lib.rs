//! Reference mathematics in f64: the plainest code that is right. One module a family.

pub mod matmul;
pub mod playg;
pub mod vlstm;
