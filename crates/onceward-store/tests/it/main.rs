//! The back ends, on real files and servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may give up")]

mod atomic;
mod conformance;
mod conformance_http;
mod conformance_postgres;
mod conformance_redis;
mod http;
mod one_file;
mod postgres;
mod postgres_identity;
mod postgres_server;
mod postgres_tls;
mod postgres_watch;
mod redis;
mod redis_identity;
mod redis_tls;
mod redis_watch;
mod replaced;
mod seal;
mod served;
mod sqlite;
mod watch;
mod wire;
