//! The options of a `sqlite:` URL.

use std::fmt;
use std::path::PathBuf;

use onceward::{IfMissing, InvalidInput};

use super::identity::Trust;

/// When commits are synced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// Every commit is synced before the reply. A power failure loses nothing that was acknowledged.
    #[default]
    Full,
    /// Commits are synced at checkpoints. A power failure can lose intents, and then an effect can happen twice.
    Normal,
    /// Never. For tests, and for ledgers that need not survive a crash of the machine.
    Off,
}

impl Sync {
    /// The value of the `sync` option.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Normal => "normal",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the ledger is and how the store uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The path of the database.
    pub path: PathBuf,
    /// When commits are synced to disk.
    pub sync: Sync,
    /// The length of the write-ahead log, in pages, at which it is copied into the database. Short-lived processes
    /// benefit from a small value, because the first process to open the file reads the whole log.
    pub checkpoint_pages: u32,
    /// The maximum memory for cached records.
    pub cache_bytes: u64,
    /// What to do if there is no ledger yet.
    pub missing: IfMissing,
    /// The same, as set in the URL. The ledger is created only if both allow it.
    pub create: IfMissing,
    /// Which owners of the files are trusted.
    pub trust: Trust,
}

impl SqliteOptions {
    /// The ledger at `path`, with the default options.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            sync: Sync::Full,
            checkpoint_pages: 4_000,
            cache_bytes: 64 * 1024 * 1024,
            missing: IfMissing::Create,
            create: IfMissing::Create,
            trust: Trust::Own,
        }
    }

    /// Parses what follows `sqlite:`, which is a path and optionally `?sync=full|normal|off`, `&checkpoint=PAGES`,
    /// `&create=no` and `&owner=any`.
    ///
    /// ```
    /// use onceward_store::sqlite::{SqliteOptions, Sync};
    ///
    /// let options = SqliteOptions::parse("agent.db?sync=normal")?;
    /// assert_eq!(options.sync, Sync::Normal);
    /// # Ok::<(), onceward::InvalidInput>(())
    /// ```
    ///
    /// # Errors
    /// Names the part that is not understood.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
        if path.is_empty() {
            return Err(InvalidInput::new("it names no file; write sqlite:PATH"));
        }
        if names_a_server(path) {
            return Err(InvalidInput::new(
                "what follows sqlite: is the URL of a server; write that URL alone, or sqlite:PATH",
            ));
        }
        let mut options = Self::new(path);
        for pair in crate::query_options(query)? {
            match pair.split_once('=') {
                Some(("sync", "full")) => options.sync = Sync::Full,
                Some(("sync", "normal")) => options.sync = Sync::Normal,
                Some(("sync", "off")) => options.sync = Sync::Off,
                Some(("checkpoint", pages)) => {
                    options.checkpoint_pages = pages.parse().map_err(|_| {
                        InvalidInput::new(format!("checkpoint={pages:?} is not a number of pages"))
                    })?;
                }
                Some(("create", word)) => options.create = crate::create_option(word)?,
                Some(("owner", "any")) => options.trust = Trust::Any,
                Some(_) | None => {
                    return Err(InvalidInput::new(format!(
                        "{pair:?} is not understood; sync=full|normal|off, checkpoint=PAGES, create=yes|no and \
                         owner=any are"
                    )));
                }
            }
        }
        Ok(options)
    }
}

/// Whether what should be a path is a URL: `postgres://…`, or `//user:password@host/…`. As a path it would be shown.
fn names_a_server(path: &str) -> bool {
    let authority = path.strip_prefix("//").and_then(|rest| rest.split('/').next());
    path.contains("://") || authority.is_some_and(|authority| authority.contains('@'))
}
