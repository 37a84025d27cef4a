//! The server, the gateways and the inbox, over real connections.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test may give up"
)]

mod api;
mod common;
mod config;
mod gateway;
mod hooks;
mod inbox;
mod layer;
mod observe;
mod openapi;
mod server;
mod tenants;
mod tenants_api;
mod words;
