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
//! - `cache`: finished records in memory.
//! - [`clock`]: the machine's clock, for stores in memory.
//! - [`open`]: from a URL to a store.

mod cache;
pub mod clock;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::sync::Arc;

use onceward::{MemoryStore, Store, StoreError};

pub use clock::SystemClock;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore, Sync};

/// Opens the ledger at a URL: `sqlite:PATH`, `sqlite:PATH?sync=normal`, or `memory:` for one that lasts as long as
/// this process.
///
/// # Errors
/// When the URL is not understood, or what it names cannot be used; says what to do.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let unusable = |what: String| StoreError::Unusable { what };
    match url.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", rest)) => {
            let options = SqliteOptions::parse(rest)
                .map_err(|problem| unusable(format!("the ledger URL {url:?} is not valid: {problem}")))?;
            Ok(SqliteStore::open(options)?)
        }
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new(SystemClock))),
        Some(_) | None => {
            Err(unusable(format!("the ledger URL {url:?} is not understood; write sqlite:PATH (or memory:)")))
        }
    }
}
