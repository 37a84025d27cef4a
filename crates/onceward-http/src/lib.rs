//! The HTTP surface of Onceward: one server with a ledger API and a gateway for REST APIs.
//!
//! # Layout
//! The modules are layers: each imports only from its own and from those below it, and the three in the middle do not
//! import each other.
//!
//! At the top, the server:
//! - [`server`]: listeners, connections, admission and shutdown. [`app`]: its state. [`config`]: the sections of
//!   `onceward.toml`. [`tenants`]: tokens, and which records a tenant can see.
//! - `api`: the ledger API under `/v1`. [`observe`]: health and metrics.
//!
//! In the middle, three ways to use a ledger:
//! - `gateway`: `/gw/<upstream>/…`. [`inbox`]: `/hooks/<source>`, webhooks. [`layer`]: the same rules as a
//!   `tower::Layer`, for people who write an API.
//!
//! At the bottom, what they share:
//! - [`client`]: the HTTP client. [`connections`], [`socket`], [`host`], [`limits`], [`intake`], [`guarded`]: what
//!   every listener needs. [`headers`], [`principal`], [`evidence`], [`events`], [`raw`]: what passes requests on:
//!   which headers, who calls, what a status proves, event streams. [`time`]: the ledger's time. `locks`: mutexes. They
//!   are built without the feature `serve` too.
//! - `tenant`: a caller's view of the ledger. `problem`: errors as problem documents. [`telemetry`]: spans, metrics and
//!   traces of calls. `detached_tasks`: calls that continue without their client. `template`: texts with `{words}`.
//!   `mistake`: what is wrong in a section.

pub mod client;
pub mod connections;
pub mod events;
pub mod evidence;
pub mod guarded;
pub mod headers;
pub mod host;
pub mod intake;
pub mod limits;
mod locks;
pub mod principal;
pub mod raw;
pub mod socket;
pub mod time;

#[cfg(feature = "serve")]
mod detached_tasks;
#[cfg(feature = "serve")]
mod mistake;
#[cfg(feature = "serve")]
mod problem;
#[cfg(feature = "serve")]
pub mod telemetry;
#[cfg(feature = "serve")]
mod template;
#[cfg(feature = "serve")]
mod tenant;

#[cfg(feature = "serve")]
mod gateway;
#[cfg(feature = "serve")]
pub mod inbox;
#[cfg(feature = "serve")]
pub mod layer;

#[cfg(feature = "serve")]
mod api;
#[cfg(feature = "serve")]
pub mod app;
#[cfg(feature = "serve")]
pub mod config;
#[cfg(feature = "serve")]
pub mod observe;
#[cfg(feature = "serve")]
pub mod server;
#[cfg(feature = "serve")]
pub mod tenants;

#[cfg(feature = "serve")]
pub use app::App;
#[cfg(feature = "serve")]
pub use config::Config;
#[cfg(feature = "serve")]
pub use gateway::is_model_call;
pub use limits::{Limits, Reach};
#[cfg(feature = "serve")]
pub use server::serve;

/// The samples of `docs/layer.md`.
#[cfg(all(doctest, feature = "serve"))]
#[doc = include_str!("../../../docs/layer.md")]
struct Documentation;
