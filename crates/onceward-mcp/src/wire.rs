//! Messages as text: framing, parsing and editing without changing other bytes.

pub(crate) mod frame;
pub(crate) mod message;
pub(crate) use onceward_http::raw;
pub(crate) mod tool_call;
pub(crate) mod condense;
