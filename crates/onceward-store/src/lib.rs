//! Back ends for the Onceward ledger: one module and one feature each.
//!
//! ```no_run
//! let store = onceward_store::open("sqlite:agent.db")?;
//! let ledger = onceward::Ledger::new(store);
//! # Ok::<(), onceward::StoreError>(())
//! ```
//!
//! # Layout
//! - [`sqlite`]: one file, any number of processes on one machine, no server.
//! - [`postgres`]: a server, any number of machines.
//! - [`redis`]: a server or a cluster that is fast, any number of machines.
//! - `cache`: finished records in memory.
//! - [`clock`]: the machine's clocks. `timer`: sleeping. `remote`: what stores on a server share.
//! - [`health`]: what a back end says about itself.
//! - [`Place`], [`open`] and [`ledger`]: from a URL to a [`Backend`] or a whole ledger.

// Who builds one back end alone has parts that only the others use.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "redis")),
    allow(dead_code, unused_variables)
)]

/// The samples of `docs/library.md`.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryDocs;

mod cache;
pub mod clock;
pub mod health;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod timer;

use std::path::Path;
use std::sync::Arc;

use onceward::{InvalidInput, Ledger, MemoryStore, Store, StoreError};

pub use clock::SystemClock;
pub use health::{Finding, Verdict};
pub use onceward::Missing;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
pub use redis::{Durability, RedisOptions, RedisStore};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore, Sync};

/// A store, and what the person who runs it wants to know.
pub trait Backend: Store {
    /// Looks it over. May read all of it, so it takes its time on a large one.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn health(&self) -> Result<Vec<Finding>, StoreError>;

    /// Whether a backup may be written to that file. Writes nothing.
    ///
    /// # Errors
    /// As [`Backend::backup`], which asks this first.
    fn check_backup(&self, file: &Path, overwrite: Overwrite) -> Result<(), StoreError>;

    /// Writes a consistent copy of the ledger to a file, while others may go on writing. Gives its size in bytes.
    ///
    /// # Errors
    /// When it cannot be written, `file` exists and must stay, or the ledger is on a server, which has tools for this.
    fn backup(&self, file: &Path, overwrite: Overwrite) -> Result<u64, StoreError> {
        self.check_backup(file, overwrite).map(|()| 0)
    }

    /// Gives the space of what was deleted back, where the back end does not do so by itself. Writers may have to wait
    /// meanwhile.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    fn compact(&self) -> Result<Option<Compacted>, StoreError> {
        Ok(None)
    }
}

/// Whether a backup may replace a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// It may.
    Yes,
    /// It may not.
    No,
}

/// How much space a ledger took before and after it gave some back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Before.
    pub before_bytes: u64,
    /// After.
    pub after_bytes: u64,
}

/// The ledger is on a server.
pub(crate) fn back_up_by(tool: &str) -> StoreError {
    StoreError::Unusable {
        what: format!("a ledger on a server is backed up by the server's own tools: {tool}"),
    }
}

impl<C: onceward::Clock> Backend for MemoryStore<C> {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(vec![Finding::look("ledger", "in memory: it ends with this process")])
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(StoreError::Unusable { what: "a ledger in memory cannot be backed up".to_owned() })
    }
}

/// Where a ledger is, as its URL says.
#[derive(Debug, Clone)]
pub enum Place {
    /// `sqlite:PATH`: one file on this machine.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteOptions),
    /// `postgres://…`
    #[cfg(feature = "postgres")]
    Postgres(PostgresOptions),
    /// `redis://…`, `rediss://…`, `redis+cluster://…`, `rediss+cluster://…`
    #[cfg(feature = "redis")]
    Redis(RedisOptions),
    /// `memory:`, which lasts as long as this process.
    Memory,
}

impl Place {
    /// Reads a URL.
    ///
    /// # Errors
    /// Says what is not understood, and repeats no password.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let invalid =
            |problem: InvalidInput| InvalidInput::new(format!("the ledger URL is not valid: {problem}"));
        match url.split_once(':') {
            #[cfg(feature = "sqlite")]
            Some(("sqlite", rest)) => SqliteOptions::parse(rest).map(Self::Sqlite).map_err(invalid),
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                PostgresOptions::parse(url).map(Self::Postgres).map_err(invalid)
            }
            #[cfg(feature = "redis")]
            Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", _)) => {
                RedisOptions::parse(url).map(Self::Redis).map_err(invalid)
            }
            Some(("memory", "")) => Ok(Self::Memory),
            // What follows may be a secret.
            Some((scheme, _)) => Err(not_understood(&format!("{scheme}:…"))),
            None => Err(not_understood(url)),
        }
    }

    /// Opens the ledger that is there.
    ///
    /// # Errors
    /// When it cannot be reached or used, or is missing and was not to be made; says what to do.
    pub fn open(self, missing: Missing) -> Result<Arc<dyn Backend>, StoreError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) if missing == Missing::Refuse && !options.path.exists() => {
                Err(no_ledger(&format!("at {}", options.path.display())))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) => Ok(SqliteStore::open(options)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(mut options) => {
                options.missing = missing;
                Ok(PostgresStore::open(options)?)
            }
            #[cfg(feature = "redis")]
            Self::Redis(mut options) => {
                options.missing = missing;
                Ok(RedisStore::open(options)?)
            }
            Self::Memory => Ok(Arc::new(MemoryStore::new(SystemClock))),
        }
    }
}

/// There is none, and none was to be made.
pub(crate) fn no_ledger(place: &str) -> StoreError {
    StoreError::Missing { what: format!("there is no ledger {place} yet; `once run` makes one") }
}

fn not_understood(what: &str) -> InvalidInput {
    InvalidInput::new(format!(
        "the ledger {what:?} is not understood; write sqlite:PATH, postgres://…, redis://…, rediss://… or \
         redis+cluster://…"
    ))
}

/// Opens the ledger at a URL, and makes one where there is none.
///
/// # Errors
/// When the URL is not understood, or what it names cannot be used; says what to do.
pub fn open(url: &str) -> Result<Arc<dyn Backend>, StoreError> {
    Place::parse(url)
        .map_err(|invalid| StoreError::Unusable { what: invalid.to_string() })?
        .open(Missing::Make)
}

/// The same URL, independent of the working folder: for programs that keep a URL and open it later, or again in another
/// process. A relative path of a file is resolved against the working folder of now.
///
/// # Errors
/// When the URL is not understood, or the working folder cannot be told.
pub fn absolute(url: &str) -> Result<String, InvalidInput> {
    #[cfg(feature = "sqlite")]
    if let Place::Sqlite(options) = Place::parse(url)? {
        let cannot =
            |why: String| InvalidInput::new(format!("the ledger's path cannot be made absolute: {why}"));
        let path = std::path::absolute(&options.path).map_err(|error| cannot(error.to_string()))?;
        let path = path.to_str().ok_or_else(|| cannot("it is not UTF-8".to_owned()))?;
        let query = url.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
        return Ok(format!("sqlite:{path}{query}"));
    }
    Place::parse(url).map(|_| url.to_owned())
}

/// The ledger at a URL, for those who are handed an opener: command-line tools that are built on `onceward-clap`.
///
/// # Errors
/// As [`open`]; also where there is none and none was to be made.
pub fn ledger(url: &str, missing: Missing) -> Result<Ledger, onceward::Error> {
    Ok(Ledger::new(Place::parse(url)?.open(missing)?))
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_resolved_once() {
        let here = std::path::absolute("a.db").map(|path| path.display().to_string()).unwrap_or_default();
        let absolute = |url: &str| absolute(url).map_err(|invalid| invalid.to_string());
        assert_eq!(absolute("sqlite:a.db?sync=off"), Ok(format!("sqlite:{here}?sync=off")));
        assert_eq!(absolute("sqlite:///tmp/a.db"), Ok("sqlite:/tmp/a.db".to_owned()));
        assert_eq!(absolute("memory:"), Ok("memory:".to_owned()));
        assert!(absolute("sqlit:a.db").is_err());
    }
}
