//! How messages reach the client and the server.
//!
//! - `call_transport`: what a guarded call sees of its transport.
//! - `stdio`: the proxy on the streams of a process. `upstream`: requests to the server. `client_requests`: our
//!   requests to the client. `supervisor`: a server that ended and is started again. `inline_executor`: on which thread
//!   calls run.
//! - `undo`: a server on streams that only takes calls back.
//! - `http`: the proxy over HTTP.

pub(crate) mod call_transport;
pub(crate) mod stdio;
pub(crate) mod supervisor;
pub(crate) mod inline_executor;
pub(crate) mod upstream;
pub(crate) mod client_requests;
pub(crate) mod undo;
pub mod http;
