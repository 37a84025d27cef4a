//! The proxy by streamable HTTP: a function of a listener, and a handler for whoever has a server already.
//!
//! # Layout
//! - `gate`: who sees which request. `principals`: tokens that are renewed. `serve`: connections, and how they end.
//!   `remote`: the server.
//! - `call`: the two ends of a call that the ledger knows. `outlet`: its response while it is being made. `batch`:
//!   several messages in one request.
//! - `watch`: responses that are looked at on their way. `arrivals`: answers that come by another stream.
//! - `events`, `headers`, `reply`: the protocol's parts. `verdict`: what a status says about the effect. `vet`:
//!   whether headers say what the body says. `explain`: the tools of a server, by HTTP.

mod gate;
mod principals;
mod serve;
mod remote;
mod call;
mod batch;
mod outlet;
mod watch;
mod arrivals;
mod events;
mod headers;
mod reply;
mod verdict;
mod vet;
mod explain;

pub use events::look as look_at_events;
pub use explain::explain;
pub use gate::{Gate, Limits, Reach};
pub use remote::Remote;
pub use serve::serve;

/// The body of a response.
pub type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, Broken>;

/// A body that broke off.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub(crate) String);
