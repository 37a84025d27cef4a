//! What a `sqlite:` URL can say.

use std::fmt;
use std::path::PathBuf;

use onceward::InvalidInput;

/// How each commit reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// It is synced before anybody is told: a power cut loses nothing that was answered.
    #[default]
    Full,
    /// It is synced now and then: a power cut can lose intents, and then something runs twice.
    Normal,
    /// Never synced: for tests and for ledgers that need not outlive the machine.
    Off,
}

impl Sync {
    /// The word for it.
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

/// Where the ledger is, and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The database.
    pub path: PathBuf,
    /// How each commit reaches the disk.
    pub sync: Sync,
    /// After how many pages the write-ahead log goes back into the database. A short-lived process wants few: the
    /// next one reads the whole log when it opens the file alone.
    pub checkpoint_pages: u32,
    /// How much memory finished records may take.
    pub cache_bytes: u64,
}

impl SqliteOptions {
    /// The ledger at `path`, kept as it should be.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), sync: Sync::Full, checkpoint_pages: 4_000, cache_bytes: 64 * 1024 * 1024 }
    }

    /// Reads what follows `sqlite:`: a path, and `?sync=full|normal|off` or `&checkpoint=PAGES` where wanted.
    ///
    /// # Errors
    /// Says which part is not understood.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
        if path.is_empty() {
            return Err(InvalidInput::new("it names no file; write sqlite:PATH"));
        }
        let mut options = Self::new(path);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sync", "full")) => options.sync = Sync::Full,
                Some(("sync", "normal")) => options.sync = Sync::Normal,
                Some(("sync", "off")) => options.sync = Sync::Off,
                Some(("checkpoint", pages)) => {
                    options.checkpoint_pages = pages.parse().map_err(|_| {
                        InvalidInput::new(format!("checkpoint={pages:?} is not a number of pages"))
                    })?;
                }
                Some(_) | None => {
                    return Err(InvalidInput::new(format!(
                        "{pair:?} is not understood; sync=full|normal|off and checkpoint=PAGES are"
                    )));
                }
            }
        }
        Ok(options)
    }
}
