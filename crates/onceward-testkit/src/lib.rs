//! What tests need: private servers, started on free ports of this machine, in folders of their own, and removed with
//! the test; and a clock that the test steps.
//!
//! ```no_run
//! let server = onceward_testkit::Postgres::start();
//! let url = server.fresh(); // the URL of a new, empty ledger
//! ```
//!
//! A test that cannot get its server fails: everything here panics and says what is missing. The programs come from
//! Debian's packages `postgresql`, `pgbouncer` and `redis-server`; `scripts/test` installs them.
//!
//! # Layout
//! - `home`: folders, ports, programs, and the clean-up.
//! - `server`: one started process.
//! - `postgres`, `pgbouncer`, `redis`, `cluster`, `sentinel`: the servers. `ledger_server`: a `once serve` under test.
//! - [`faketime`]: a different wall clock for a program.
//! - `relay`: a proxy between client and server that can be cut.
//! - `stepped`: a clock that only the test moves.

pub mod faketime;
mod home;
mod server;
mod ledger_server;
mod postgres;
mod pgbouncer;
mod redis;
mod cluster;
mod relay;
mod sentinel;
mod stepped;

pub use cluster::RedisCluster;
pub use home::{eventually, found, leave, on_disk, scratch, until};
pub use ledger_server::LedgerServer;
pub use pgbouncer::PgBouncer;
pub use postgres::{Dump, Postgres};
pub use redis::Redis;
pub use relay::Relay;
pub use sentinel::Sentinels;
pub use server::Server;
pub use stepped::Stepped;
