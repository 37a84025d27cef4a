//! Storage back ends for the Onceward ledger. Each one has its own module and feature.
//!
//! ```no_run
//! let store = onceward_store::open("sqlite:agent.db")?;
//! let ledger = onceward::Ledger::new(store);
//! # Ok::<(), onceward::StoreError>(())
//! ```
//!
//! # Layout
//! - [`sqlite`]: one file, any number of processes on one machine, no server.
//! - [`postgres`]: a PostgreSQL server, any number of machines.
//! - [`redis`]: a Redis or Valkey server or cluster, any number of machines.
//! - [`http`]: the ledger of a running `once serve`, over HTTP or a Unix socket.
//! - [`seal`]: encryption at rest, as a wrapper around any of them.
//! - `claim`: the attempt of an atomic operation, for [`sqlite::atomic`] and [`postgres::atomic`].
//! - `cache`: a cache of finished records.
//! - `clock`: the machine's clocks. `timer`: sleeping. `remote`: what the server-based stores share. `upkeep`:
//!   expiry while a ledger is open.
//! - `health`: what a back end reports about itself.
//! - [`StoreUrl`], [`open`] and [`ledger`]: from a URL to a [`Backend`] or a ledger.
//!
//! # Features
//! `sqlite`, `postgres`, `redis` and `http` select the back ends; all four are on by default. `remote` is what the last
//! three share; alone it adds no back end.

// A build with only one back end contains parts that only the others use.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "redis", feature = "http")),
    allow(dead_code, unused_variables, unreachable_pub)
)]

/// The samples of `docs/library.md`.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryDocs;

/// The sample of `docs/fleet.md`.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/fleet.md")]
struct FleetDocs;

mod cache;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod claim;
mod clock;
mod health;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "remote")]
mod password;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
mod remote;
pub mod seal;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod timer;
mod upkeep;
mod writing;

use std::path::Path;
use std::sync::Arc;

use onceward::text::{masked_in, percent_decoded};
use onceward::{InvalidInput, Ledger, MemoryStore, Store, StoreError};

pub use clock::SystemClock;
pub use health::{Finding, Verdict};
#[cfg(feature = "http")]
pub use http::{HttpOptions, HttpStore};
pub use onceward::IfMissing;

#[cfg(feature = "postgres")]
use postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use redis::{RedisOptions, RedisStore};
use seal::{Keys, Sealed};
#[cfg(feature = "sqlite")]
use sqlite::{SqliteOptions, SqliteStore};

/// A store with the operations that its operator needs.
pub trait Backend: Store {
    /// Checks the store. May read all of it, so it can take long on a large ledger.
    ///
    /// # Errors
    /// If the store cannot be checked.
    fn health(&self) -> Result<Vec<Finding>, StoreError>;

    /// Checks whether a backup may be written to that file. Writes nothing.
    ///
    /// # Errors
    /// As [`Backend::backup`], which does this check first.
    fn check_backup(&self, file: &Path, overwrite: Overwrite) -> Result<(), StoreError>;

    /// Writes a consistent copy of the ledger to a file, while other processes may write to the ledger. Returns its
    /// size in bytes.
    ///
    /// # Errors
    /// If it cannot be written, if `file` exists and must not be replaced, or if the ledger is on a server, which has
    /// its own backup tools.
    fn backup(&self, file: &Path, overwrite: Overwrite) -> Result<u64, StoreError> {
        self.check_backup(file, overwrite).map(|()| 0)
    }

    /// Returns the space of deleted records to the system, if the back end does not do that automatically. Writers
    /// may have to wait meanwhile.
    ///
    /// # Errors
    /// If the ledger cannot be written.
    fn compact(&self) -> Result<Option<Compacted>, StoreError> {
        Ok(None)
    }
}

/// Whether a backup may replace an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// It may.
    Yes,
    /// It may not.
    No,
}

/// The size of a ledger before and after [`Backend::compact`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// The size before.
    pub before_bytes: u64,
    /// The size after.
    pub after_bytes: u64,
}

/// The error for backing up a ledger on a server.
pub(crate) fn back_up_by(tool: &str) -> StoreError {
    StoreError::Unusable {
        what: format!("a ledger on a server is backed up by the server's own tools: {tool}"),
    }
}

impl<C: onceward::Clock> Backend for MemoryStore<C> {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(vec![Finding::look("ledger", "in memory: it is lost when this process ends")])
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(StoreError::Unusable { what: "a ledger in memory cannot be backed up".to_owned() })
    }
}

/// A parsed ledger URL: which back end, and its options.
///
/// ```
/// use onceward_store::{IfMissing, StoreUrl};
///
/// let url = StoreUrl::parse("memory:")?;
/// let store = url.open(IfMissing::Create)?;
/// # let _ = store.clock();
/// assert!(StoreUrl::parse("mysql://db").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub enum StoreUrl {
    /// `sqlite:PATH`: one file on this machine.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteOptions),
    /// `postgres://…`: a PostgreSQL server.
    #[cfg(feature = "postgres")]
    Postgres(PostgresOptions),
    /// `redis://…`, `redis+cluster://…` and `redis+sentinel://…`, each also with `rediss` for TLS.
    #[cfg(feature = "redis")]
    Redis(RedisOptions),
    /// `https://…`, `http://…` and `unix:PATH`: a running `once serve`.
    #[cfg(feature = "http")]
    Http(HttpOptions),
    /// `memory:`, for the lifetime of this process.
    Memory,
}

impl StoreUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// Names the part that is not understood, without repeating a password.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let invalid = |problem: InvalidInput| {
            InvalidInput::new(masked_in(&format!("the ledger URL is not valid: {problem}")))
        };
        match url.split_once(':') {
            #[cfg(feature = "sqlite")]
            Some(("sqlite", rest)) => SqliteOptions::parse(rest).map(Self::Sqlite).map_err(invalid),
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                PostgresOptions::parse(url).map(Self::Postgres).map_err(invalid)
            }
            #[cfg(feature = "redis")]
            Some((
                "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+sentinel"
                | "rediss+sentinel",
                _,
            )) => RedisOptions::parse(url).map(Self::Redis).map_err(invalid),
            #[cfg(feature = "http")]
            Some(("https" | "http" | "unix", _)) => HttpOptions::parse(url).map(Self::Http).map_err(invalid),
            Some(("memory", "")) => Ok(Self::Memory),
            // What follows may be a secret, and so may be what is no name of a scheme.
            Some((scheme, _)) if is_plain(scheme) => Err(not_understood(&format!("{scheme}:…"))),
            None if is_plain(url) => Err(not_understood(url)),
            Some(_) | None => Err(not_understood("…")),
        }
    }

    /// Opens the ledger. Its records are sealed with the keys that the environment configures, see
    /// [`seal::from_environment`].
    ///
    /// # Errors
    /// If the ledger cannot be used, or does not exist and must not be created. The error says what to do.
    pub fn open(self, missing: IfMissing) -> Result<Arc<dyn Backend>, StoreError> {
        self.open_with(missing, seal::from_environment()?)
    }

    /// The same with the given keys, or without encryption.
    ///
    /// # Errors
    /// As [`StoreUrl::open`].
    pub fn open_with(self, missing: IfMissing, keys: Option<Keys>) -> Result<Arc<dyn Backend>, StoreError> {
        let sweeps_itself = self.sweeps_itself();
        let bare = self.open_bare(missing)?;
        let store = match keys {
            Some(keys) => Arc::new(Sealed::around(bare, keys)),
            None => bare,
        };
        if !sweeps_itself {
            upkeep::start_sweeping(&store);
        }
        Ok(store)
    }

    /// Whether another process expires the results: the one that serves the ledger.
    fn sweeps_itself(&self) -> bool {
        #[cfg(feature = "http")]
        if let Self::Http(_) = self {
            return true;
        }
        false
    }

    fn open_bare(self, missing: IfMissing) -> Result<Arc<dyn Backend>, StoreError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) if missing == IfMissing::Fail && !folder_of(&options.path).exists() => {
                Err(no_ledger(&format!("at {}", options.path.display())))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(mut options) => {
                options.missing = missing;
                Ok(SqliteStore::open(options)?)
            }
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
            // The server has created the ledger.
            #[cfg(feature = "http")]
            Self::Http(options) => Ok(HttpStore::open(options)?),
            Self::Memory => Ok(Arc::new(MemoryStore::new(SystemClock))),
        }
    }
}

impl StoreUrl {
    /// Opens the ledger even if it is not the one that was there before, for `once restored`.
    ///
    /// # Errors
    /// As [`StoreUrl::open`].
    pub fn open_restored(self) -> Result<Arc<dyn Backend>, StoreError> {
        self.open_bare(IfMissing::Fail)
    }
}

/// The options in the query of a URL, each at most once: if two contradict each other, neither may win silently.
pub(crate) fn query_options(query: &str) -> Result<Vec<&str>, InvalidInput> {
    let pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    let name = |pair: &str| pair.split_once('=').map(|(name, _)| percent_decoded(name).into_owned());
    for (at, pair) in pairs.iter().enumerate() {
        let Some(repeated) =
            name(pair).filter(|repeated| pairs[..at].iter().any(|one| name(one).as_ref() == Some(repeated)))
        else {
            continue;
        };
        // What is no plain word can be a part of a password.
        let shown = if is_plain(&repeated) { repeated.as_str() } else { "…" };
        return Err(InvalidInput::new(format!("the option {shown:?} is given twice; remove one of them")));
    }
    Ok(pairs)
}

/// The value of the `create=` option in a URL.
pub(crate) fn create_option(value: &str) -> Result<IfMissing, InvalidInput> {
    match value {
        "yes" => Ok(IfMissing::Create),
        "no" => Ok(IfMissing::Fail),
        _ => Err(InvalidInput::new(format!(
            "create={value:?} is not understood; write create=yes or create=no"
        ))),
    }
}

/// Fails if the URL or the caller does not allow creating a ledger.
pub(crate) fn refuse_missing(
    create: IfMissing,
    missing: IfMissing,
    place: impl FnOnce() -> String,
) -> Result<(), StoreError> {
    match (create, missing) {
        (IfMissing::Create, IfMissing::Create) => Ok(()),
        (IfMissing::Create, IfMissing::Fail) => Err(no_ledger(&place())),
        (IfMissing::Fail, _) => Err(StoreError::Missing {
            what: format!(
                "there is no ledger {}, and its URL says create=no; check the URL, or remove create=no to create one",
                place()
            ),
        }),
    }
}

/// The folder that contains a file.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The error for a ledger that does not exist and must not be created.
pub(crate) fn no_ledger(place: &str) -> StoreError {
    StoreError::Missing { what: format!("there is no ledger {place} yet; `once run` makes one") }
}

/// Whether a text looks like a file name or a scheme, and cannot be next to a password.
fn is_plain(text: &str) -> bool {
    !text.contains(['@', '?', '=', '&', ';']) && !text.contains(char::is_whitespace)
}

fn not_understood(what: &str) -> InvalidInput {
    InvalidInput::new(format!(
        "the ledger {what:?} is not understood; write sqlite:PATH, postgres://…, redis://…, \
         redis+sentinel://…, redis+cluster://… (with TLS: rediss…), https://…, http://… or unix:PATH"
    ))
}

/// Opens the ledger at a URL, and creates it if it does not exist.
///
/// ```
/// use onceward::{Ledger, Operation};
///
/// let ledger = Ledger::new(onceward_store::open("memory:")?).blocking();
/// let charge = || Operation::new("charge").key("order-17");
/// let first = ledger.run(charge(), |attempt| Ok(attempt.dispatch()?.created(&"ch_1")))?;
/// let retry = ledger.run(charge(), |attempt| Ok(attempt.dispatch()?.created(&"ch_2")))?;
/// assert_eq!(retry.data(), first.data());
/// assert!(retry.replayed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the URL is not understood, or the ledger cannot be used. The error says what to do.
pub fn open(url: &str) -> Result<Arc<dyn Backend>, StoreError> {
    StoreUrl::parse(url)
        .map_err(|invalid| StoreError::Unusable { what: invalid.to_string() })?
        .open(IfMissing::Create)
}

/// The same URL, independent of the working folder. For programs that store a URL and open it later, or in another
/// process. A relative file path is resolved against the current working folder.
///
/// # Errors
/// If the URL is not understood, or the working folder cannot be determined.
pub fn absolute(url: &str) -> Result<String, InvalidInput> {
    #[cfg(feature = "sqlite")]
    if let StoreUrl::Sqlite(options) = StoreUrl::parse(url)? {
        let cannot =
            |why: String| InvalidInput::new(format!("the ledger's path cannot be made absolute: {why}"));
        let path = std::path::absolute(&options.path).map_err(|error| cannot(error.to_string()))?;
        let path = path.to_str().ok_or_else(|| cannot("it is not UTF-8".to_owned()))?;
        let query = url.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
        return Ok(format!("sqlite:{path}{query}"));
    }
    #[cfg(feature = "http")]
    if let Some(socket) = url.strip_prefix("unix:")
        && StoreUrl::parse(url).is_ok()
    {
        let (path, query) =
            socket.split_once('?').map_or((socket, None), |(path, query)| (path, Some(query)));
        let path = std::path::absolute(path.strip_prefix("//").unwrap_or(path));
        let path = path.map_err(|error| InvalidInput::new(format!("the socket's path: {error}")))?;
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        return Ok(format!("unix:{}{query}", path.display()));
    }
    StoreUrl::parse(url).map(|_| url.to_owned())
}

/// Opens the ledger at a URL. This is the opener that command-line tools built with `onceward-clap` need.
///
/// ```
/// use onceward_store::IfMissing;
///
/// let ledger = onceward_store::ledger("memory:", IfMissing::Create)?;
/// # let _ = ledger;
/// # Ok::<(), onceward::Error>(())
/// ```
///
/// # Errors
/// As [`open`]. Also if the ledger does not exist and must not be created.
pub fn ledger(url: &str, missing: IfMissing) -> Result<Ledger, onceward::Error> {
    Ok(Ledger::new(StoreUrl::parse(url)?.open(missing)?))
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
        #[cfg(feature = "http")]
        assert_eq!(absolute("unix:a.db?timeout=1s"), Ok(format!("unix:{here}?timeout=1s")));
        assert!(absolute("sqlit:a.db").is_err());
    }
}
