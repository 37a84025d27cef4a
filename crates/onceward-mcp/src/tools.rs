//! The tools of a server: how each of them is classified, and why.

pub(crate) mod rules;
pub(crate) mod satisfied;
pub(crate) mod guess;
pub(crate) mod mirrored;
pub(crate) mod explain;
