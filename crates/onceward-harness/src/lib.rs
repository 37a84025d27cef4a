//! Private servers for tests: started on free ports of this machine, in folders of their own, and gone with the test.
//!
//! ```no_run
//! let server = onceward_harness::Postgres::start();
//! let url = server.fresh(); // an empty ledger of its own
//! ```
//!
//! A test that cannot have its server fails: everything here panics and says what is missing. The programs are the ones
//! of Debian's packages `postgresql`, `pgbouncer` and `redis-server`; `scripts/test` installs them.
//!
//! # Layout
//! - [`home`]: folders, ports, programs, and the end of everything that was started here.
//! - [`server`]: one process that was started.
//! - [`postgres`], [`pgbouncer`], [`redis`], [`cluster`]: the servers.
//! - [`relay`]: what stands between a client and a server, and can be cut.

mod home;
mod server;
mod postgres;
mod pgbouncer;
mod redis;
mod cluster;
mod relay;

pub use cluster::RedisCluster;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use redis::Redis;
pub use relay::Relay;
