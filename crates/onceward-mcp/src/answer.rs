//! Answers to calls: their texts, the tools for operations in doubt, and their delivery.

pub(crate) mod text;
pub(crate) mod closest;
pub(crate) mod doubts;
pub(crate) mod doubt_memory;
pub(crate) mod send_answer;
