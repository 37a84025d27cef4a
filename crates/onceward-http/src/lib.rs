//! The HTTP surface of Onceward: one server with a ledger API and a gateway for REST APIs.
//!
//! # Layout
//! - [`config`]: the sections of `onceward.toml` about this server.
//! - [`app`]: what all requests share. [`tenants`]: who calls, and which records a caller can see.
//! - [`server`]: listeners, connections, limits and shutdown. `problem`: errors as problem documents. `work`:
//!   calls that continue without their client.
//! - `api`: the ledger API under `/v1`. `gateway`: `/gw/<upstream>/…`. [`observe`]: health,
//!   metrics and traces.
//! - [`inbox`]: `/hooks/<source>`, webhooks.
//! - [`client`]: the HTTP client. [`headers`], [`principal`], [`evidence`], [`events`]: what every surface needs that
//!   forwards requests: which headers, who calls, what a status proves, and event streams. They are built without the
//!   feature `serve` too.
//! - [`layer`]: the same rules as a `tower::Layer`, for people who write an API.
//! - [`connections`], [`held`], [`intake`], [`limits`], [`host`], [`socket`]: what every listener of Onceward shares.
//!   [`time`]: the ledger's time. They are built without the feature `serve` too.

pub mod connections;
pub mod held;
pub mod host;
pub mod intake;
pub mod limits;
pub mod socket;
pub mod time;

#[cfg(feature = "serve")]
mod api;
#[cfg(feature = "serve")]
pub mod app;
pub mod client;
#[cfg(feature = "serve")]
pub mod config;
pub mod events;
pub mod evidence;
#[cfg(feature = "serve")]
mod gateway;
pub mod headers;
#[cfg(feature = "serve")]
pub mod inbox;
#[cfg(feature = "serve")]
pub mod layer;
#[cfg(feature = "serve")]
mod mistake;
#[cfg(feature = "serve")]
pub mod observe;
pub mod principal;
pub mod raw;
#[cfg(feature = "serve")]
mod problem;
#[cfg(feature = "serve")]
pub mod server;
#[cfg(feature = "serve")]
pub mod telemetry;
#[cfg(feature = "serve")]
mod template;
#[cfg(feature = "serve")]
mod tenant;
#[cfg(feature = "serve")]
pub mod tenants;
#[cfg(feature = "serve")]
mod work;

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
