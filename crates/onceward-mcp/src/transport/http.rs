//! The proxy over streamable HTTP: [`serve`] for a listener, and [`Gate::handle`] for an existing server.
//!
//! # Layout
//! - `gate`: what all requests share. `routes`: which are guarded. `callers`: who is calling. `principals`,
//!   `credentials`: tokens that are renewed or revoked. `serve`: connections, and how they end. `remote`: the HTTP
//!   client for the server.
//! - `call`: the transport of a guarded call. `outlet`: its response while it is produced. `batch`: JSON-RPC batches.
//! - `reader`: responses of the server. `watch`: those that are inspected. `notifications`: streams for our own
//!   notifications. `arrivals`: answers on other streams.
//! - `events`, `headers`, `reply`: parts of the protocol. `classify`: what a failed response proves about the effect.
//!   `header_check`: whether headers match the body. `limits`: the options of a listener. `visit`: a session in
//!   which the proxy is the client. `explain`: the tools of a server.

mod gate;
mod routes;
mod limits;
mod callers;
mod principals;
mod credentials;
mod serve;
mod remote;
mod call;
mod batch;
mod outlet;
mod reader;
mod watch;
mod notifications;
mod arrivals;
mod headers;
mod reply;
mod classify;
mod header_check;
mod explain;
mod visit;

pub use explain::explain;
pub use gate::Gate;
pub use limits::{Limits, Renewal};
pub use onceward_http::Reach;
pub use onceward_http::client::{Body, Broken};
pub use onceward_http::events::look as look_at_events;
pub use remote::Remote;
pub use serve::serve;
pub(crate) use visit::{Visit, VisitTransport};
