//! One module a command.

pub(crate) mod bench;
pub(crate) mod bundle;
pub(crate) mod compare;
pub(crate) mod compile;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod profile;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod tour;
