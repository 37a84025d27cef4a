//! An MCP proxy between any client and any server that makes each tool call take effect once.
//!
//! Messages are forwarded byte for byte. The proxy only acts on calls of tools that may change something, on their
//! cancellation, and on the list of tools. The intent of a guarded call is on disk before the call is forwarded. A
//! retry gets the first answer. If the outcome cannot be known, the answer says that it is in doubt.
//!
//! # Layout
//! - `transport`: how messages get in and out. `stdio` and [`http`] are the two front ends; `call_transport` is what
//!   the rest of the crate sees of them.
//! - `call`: one guarded call, from its intent to its answer. `guard` is the path of a call, `attempt` one try,
//!   `ending` what the server's answer proves, `retry_or_repeat` whether a call is a retry or an intended repeat.
//! - `answer`: what the agent reads, and how an answer is sent and recorded as delivered.
//! - `tools`: how tools are classified, and why.
//! - `wire`: messages as text.
//! - `proxy_state`: what all calls of one server share. `options`: the settings of a proxy.
//!
//! This crate sees a [`Ledger`](onceward::Ledger) and streams. It starts no process, prints nothing and reads no
//! environment. It has no features.

mod proxy_state;
mod options;
mod transport;
mod call;
mod answer;
mod tools;
mod wire;
mod sync;

pub use call::scope::HostScope;
pub use call::undo::{UndoCall, UndoRules};
pub use options::{Asking, Options, Slow};
pub use tools::explain::{Explained, Ruling, explain, policy_text};
pub use tools::rules::{Annotations, Exposure, Guess, Trust};
pub use transport::http;
pub use transport::stdio::{Proxy, Streams};
pub use transport::supervisor::Next;
pub use transport::undo::UndoServer;

/// Entry points for tests that feed the parsers arbitrary bytes.
pub mod fuzz {
    pub use crate::tools::rules::look as look_at_tools;
    pub use crate::transport::http::look_at_events;
    pub use crate::wire::message::look;
    pub use crate::wire::tool_call::look as look_at_call;
}
