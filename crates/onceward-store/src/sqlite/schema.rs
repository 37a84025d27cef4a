//! The database file: its tables, their versions, and the errors when it cannot be used.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward::{Identity, RANDOM_BYTES, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::identity;
use super::live::Live;
use super::options::{SqliteOptions, Sync};
use crate::clock::Mark;

/// The schema version that this build writes.
pub const SCHEMA_VERSION: i64 = 4;

/// Older versions of SQLite can damage a file that several connections write (the WAL-reset race).
pub(super) const SQLITE_FLOOR: i32 = 3_051_003;

/// `ONCE` in ASCII: marks the file as a ledger.
const APPLICATION_ID: i64 = 0x4f4e_4345;

/// The tables.
const SCHEMA: &str = include_str!("schema.sql");

/// The maximum size of a connection's page cache.
const PAGE_CACHE_KIB: i64 = 32 * 1024;

/// How long a writer waits for a writer in another process. A commit takes seconds on a disk that other programs keep
/// busy.
const BUSY_LIMIT: Duration = Duration::from_secs(30);

/// Refuses a file that is not a ledger before any other file is created next to it. A ledger that was opened before
/// has its `…-live` file and is checked through SQLite. Any other file is checked by its header.
pub(super) fn refuse_foreign(path: &Path, live: &Path) -> Result<(), StoreError> {
    let cannot = |error| StoreError::because(format!("cannot read {}", path.display()), error);
    // Closing a second descriptor of a database would release the POSIX locks that SQLite holds on it in this
    // process.
    if live.exists() || identity::is_marked_here(path) {
        return Ok(());
    }
    let mut header = [0_u8; 100];
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot(error)),
        Ok(file) if file.metadata().map_err(cannot)?.len() == 0 => return Ok(()),
        Ok(mut file) => match file.read_exact(&mut header) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
            read => read.map_err(cannot)?,
        },
    }
    let number = |at: usize| {
        i64::from(u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]))
    };
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(not_a_ledger(path));
    }
    check_version(path, number(68), number(60), 1).map(|_| ())
}

/// Opens the database for writing. Creates it if needed.
pub(super) fn open_for_writing(options: &SqliteOptions, live: &Arc<Live>) -> Result<Connection, StoreError> {
    live.check_log()?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection =
        Connection::open_with_flags(&options.path, flags).map_err(|e| explain(&options.path, e))?;
    configure(&mut connection, options).map_err(|e| explain(&options.path, e))?;
    install_checkpoint_hook(&mut connection, options, live).map_err(|e| explain(&options.path, e))?;
    if !is_current(&connection, &options.path)? {
        // Many processes may start at once on a new file. One of them sets it up.
        let _setup = live.setup_lock()?;
        if !is_current(&connection, &options.path)? {
            use_write_ahead_log(&connection, &options.path)?;
            create(&connection, &options.path)?;
        }
    }
    // The connection has read the database, so its log is open.
    live.note_log_file();
    Ok(connection)
}

/// Reopens the database after a write or a sync has failed. The log may end with a commit that looks complete but was
/// never synced, and the kernel may report the next sync of the same pages as successful. So the whole log is copied
/// into the database and synced there before anything is read or written. If that fails, opening fails.
pub(super) fn reopen_after_failure(
    options: &SqliteOptions,
    live: &Arc<Live>,
) -> Result<Connection, StoreError> {
    let connection = open_for_writing(options, live)?;
    let copied = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    match copied.map_err(|error| explain(&options.path, error))? {
        0 => Ok(connection),
        _ => Err(StoreError::unavailable(format!(
            "the disk with {} has reported an error, and another process keeps its log busy; try again",
            options.path.display()
        ))),
    }
}

/// Closes the last connection of a store. If no other store has the ledger open, the whole log is copied into the
/// database, so that the one file is the complete ledger and can be copied. A log that contains only tallies is left
/// alone.
///
/// The log file itself is not truncated. A new log costs the next process a sync, and on a full disk the next process
/// could use up the space that SQLite's log index needs, which ends a process with SIGBUS.
pub(super) fn close(connection: Connection, live: &Live) {
    // In this order: of two stores that close at the same time, the second sees that it is alone.
    live.leave();
    // Never copy the log into a file that has replaced the ledger.
    if live.log_has_changes() && live.is_unused() && live.check_unchanged().is_ok() {
        // Does not block. If another process is reading or writing after all, it closes after this one.
        let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        // If not all of the log was copied, the next process to close does it.
        if matches!(copied, Ok((0, frames, copied)) if frames == copied) {
            live.note_no_log();
            // Record the new state of the file. If that fails, the next process reads the file itself.
            drop(live.check_unchanged());
        }
    }
    drop(connection.close());
}

/// The ledger's identity, and the latest time recorded in it.
pub(super) fn identity(connection: &Connection, path: &Path) -> Result<(Identity, Option<Mark>), StoreError> {
    let question =
        "SELECT identity, iif(twin.count > ledger.count, twin.clock, ledger.clock) FROM ledger JOIN twin";
    let found = connection
        .query_row(question, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?)));
    let (text, clock) = found.map_err(|error| explain(path, error))?;
    let identity = serde_json::from_str(&text).map_err(|error| StoreError::Unusable {
        what: format!("{} has an identity that this version cannot read: {error}", path.display()),
    })?;
    Ok((identity, clock.as_deref().and_then(Mark::parse)))
}

/// The row that every write checks in its own transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LedgerRow {
    version: i64,
    pub(super) mark: String,
    /// The write count of the database file, according to the log.
    pub(super) count: u64,
    /// Which of the two counts is the older one.
    older: Count,
}

/// The row that counts a write of the database file. The two alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Ledger,
    Twin,
}

impl LedgerRow {
    /// Reads the row; `None` if the file is no longer a ledger.
    pub(super) fn of(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        let question = "SELECT version, mark, ledger.count, twin.count FROM ledger JOIN twin";
        let mut statement = connection.prepare_cached(question)?;
        let row = statement.query_row([], |row| {
            let (ledger, twin): (i64, i64) = (row.get(2)?, row.get(3)?);
            let count = u64::try_from(ledger.max(twin)).unwrap_or(0);
            let older = if ledger > twin { Count::Twin } else { Count::Ledger };
            Ok(Self { version: row.get(0)?, mark: row.get(1)?, count, older })
        });
        row.optional()
    }

    /// Counts a write of the database file and records the latest time, inside a transaction. Returns the new count.
    pub(super) fn count_write(&self, connection: &Connection, clock: &Mark) -> rusqlite::Result<u64> {
        let change = match self.older {
            Count::Ledger => "UPDATE ledger SET count = ?1, clock = ?2",
            Count::Twin => "UPDATE twin SET count = ?1, clock = ?2",
        };
        let count = i64::try_from(self.count + 1).unwrap_or(i64::MAX);
        connection.prepare_cached(change)?.execute(params![count, clock.to_string()])?;
        Ok(self.count + 1)
    }

    /// Why a store that opened the ledger with that mark must not write.
    pub(super) fn refusal(&self, path: &Path, mark: &str) -> Option<StoreError> {
        if self.version != SCHEMA_VERSION {
            let what = format!(
                "{} was written by another version of Onceward (schema {}, this version has {SCHEMA_VERSION}) while \
                 this program had it open; restart the program with that version",
                path.display(),
                self.version
            );
            return Some(StoreError::Unusable { what });
        }
        (self.mark != mark)
            .then(|| StoreError::replaced(&format!("{} was opened, but {} is there now", mark, self.mark)))
    }
}

/// Writes a new identity, inside a transaction.
pub(super) fn set_identity(connection: &Connection, next: &Identity) -> rusqlite::Result<()> {
    let text = serde_json::to_string(next)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let newest = "UPDATE ledger SET (count, clock) = (SELECT count, clock FROM twin) \
                  WHERE count < (SELECT count FROM twin)";
    connection.execute(newest, [])?;
    let change = "UPDATE ledger SET mark = ?1, identity = ?2, count = count + 1";
    connection.execute(change, params![next.mark(), text])?;
    connection.execute("UPDATE twin SET count = (SELECT count FROM ledger) - 1", []).map(drop)
}

/// Opens another connection for reading only.
pub(super) fn open_for_reading(options: &SqliteOptions) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let mut connection = Connection::open_with_flags(&options.path, flags)?;
        configure(&mut connection, options)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    };
    open().map_err(|error| explain(&options.path, error))
}

/// Creates the file ourselves, so that it is private from the start. SQLite gives its log the same mode.
pub(super) fn create_private(path: &Path) -> Result<(), StoreError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::because(format!("cannot create {}", path.display()), error)),
    }
}

fn configure(connection: &mut Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.busy_handler(Some(|waited: i32| {
        // A commit of another process normally takes a fraction of a millisecond, so retry soon.
        let pause = Duration::from_micros(200 * u64::from(waited.unsigned_abs().min(24)) + 100);
        std::thread::sleep(pause);
        // The sum of the pauses so far, plus some time for the work between them.
        Duration::from_millis(5) * waited.unsigned_abs() < BUSY_LIMIT
    }))?;
    // The log is copied into the file by `close`. After a failed sync that must not happen.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise the planner inspects bound values because of the partial indexes, and every new value prepares the
    // statement again: four times the cost of running it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", options.sync.as_str())?;
    if options.sync == Sync::Full {
        // The two differ only on macOS.
        connection.pragma_update(None, "fullfsync", true)?;
    }
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -PAGE_CACHE_KIB)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Copies the log into the database when it is long enough, but only into the same file as before. Copying it into an
/// older state of the file would make that state look current, and the missing records would go unnoticed.
fn install_checkpoint_hook(
    connection: &mut Connection,
    options: &SqliteOptions,
    live: &Arc<Live>,
) -> rusqlite::Result<()> {
    let (limit, live) = (options.checkpoint_pages, Arc::clone(live));
    connection.wal_hook(Some(move |log: &mut Wal, pages: std::ffi::c_int| {
        if pages.unsigned_abs() >= limit && limit > 0 && live.check_unchanged().is_ok() {
            // If other processes are in the way, the next commit tries again.
            drop(log.checkpoint());
        }
        Ok(())
    }))
}

/// Whether the file is a ledger of this version. Refuses one that cannot become one.
fn is_current(connection: &Connection, path: &Path) -> Result<bool, StoreError> {
    let number = |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0));
    // In one transaction, because another process may be setting up the file at this moment.
    let read = || {
        connection.execute_batch("BEGIN")?;
        let application = number("PRAGMA application_id")?;
        let version = number("PRAGMA user_version")?;
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        connection.execute_batch("COMMIT")?;
        Ok((application, version, tables))
    };
    let read = retry_while_busy(|| {
        read().inspect_err(|_| {
            // Report the first error. A transaction that did not begin cannot be rolled back.
            drop(connection.execute_batch("ROLLBACK"));
        })
    });
    let (application, version, tables) = read.map_err(|error| explain(path, error))?;
    // In any other mode a power failure can lose synced commits.
    Ok(check_version(path, application, version, tables)? && journal_mode(connection, path)? == "wal")
}

fn check_version(path: &Path, application: i64, version: i64, tables: i64) -> Result<bool, StoreError> {
    let unusable = |what: String| Err(StoreError::Unusable { what });
    match (application, version, tables) {
        (APPLICATION_ID, SCHEMA_VERSION, _) => Ok(true),
        (APPLICATION_ID | 0, 0, 0) => Ok(false),
        (APPLICATION_ID, other, _) => unusable(format!(
            "{} was written by another version of Onceward (schema {other}, this version has {SCHEMA_VERSION}). Use \
             that version; or take its records over: `once export` there, `once import` here into a new ledger",
            path.display()
        )),
        (_, _, _) => unusable(format!(
            "{} is a SQLite database of another program; give the ledger a file of its own",
            path.display()
        )),
    }
}

fn not_a_ledger(path: &Path) -> StoreError {
    StoreError::Unusable {
        what: format!("{} is not a ledger; give another path, or move it away", path.display()),
    }
}

/// In any other journal mode a power failure can lose synced commits. SQLite reports the new mode before the switch
/// is committed, so the mode is queried again afterwards.
fn use_write_ahead_log(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let switched = retry_while_busy(|| connection.execute_batch("PRAGMA journal_mode = wal"));
    switched.map_err(|error| explain(path, error))?;
    match journal_mode(connection, path)?.as_str() {
        "wal" => Ok(()),
        mode => Err(StoreError::unavailable(format!(
            "{} cannot be switched to a write-ahead log and stays in mode {mode:?}; check its disk",
            path.display()
        ))),
    }
}

/// Retries while other processes hold locks. SQLite does not call the busy handler if it suspects a deadlock, for
/// example when several processes roll back the journal of one that died during the setup.
fn retry_while_busy<T>(mut step: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let begun = std::time::Instant::now();
    loop {
        match step() {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && begun.elapsed() < BUSY_LIMIT =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn journal_mode(connection: &Connection, path: &Path) -> Result<String, StoreError> {
    let mode = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0));
    mode.map_err(|error| explain(path, error))
}

fn create(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| StoreError::because("no random numbers", error))?;
    write_schema(connection, &Identity::fresh(&random)).map_err(|error| explain(path, error))
}

fn write_schema(connection: &Connection, identity: &Identity) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let write = || {
        // Another process may have been faster.
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version == 0 {
            connection.execute_batch(SCHEMA)?;
            connection.execute(
                "INSERT INTO ledger (one, version, mark, identity, count) VALUES (1, ?1, '', '', 0)",
                [SCHEMA_VERSION],
            )?;
            connection.execute("INSERT INTO twin (one, count) VALUES (1, 0)", [])?;
            set_identity(connection, identity)?;
            connection.pragma_update(None, "application_id", APPLICATION_ID)?;
            connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        connection.execute_batch("COMMIT")
    };
    write().inspect_err(|_| {
        // Report the first error. A failed rollback does not change it.
        drop(connection.execute_batch("ROLLBACK"));
    })?;
    // So that the file's header identifies it as a ledger even without its log.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Explains an error of SQLite to the operator of the ledger.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
    let file = path.display();
    let what = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => return not_a_ledger(path),
        Some(ErrorCode::DatabaseCorrupt) => {
            return StoreError::Unusable {
                what: format!(
                    "{file} is damaged ({error}); `once doctor` says more. After restoring it from a backup, run \
                     `once restored --at TIME`"
                ),
            };
        }
        Some(ErrorCode::DiskFull) => format!("the disk with {file} is full; make room"),
        Some(ErrorCode::ReadOnly) => format!("{file} or its folder cannot be written; check the permissions"),
        Some(ErrorCode::CannotOpen) => format!("cannot open {file}; check the folder and its permissions"),
        Some(ErrorCode::PermissionDenied) => format!("no permission to use {file}"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!("{file} has been locked by another process for longer than {} s", BUSY_LIMIT.as_secs())
        }
        Some(ErrorCode::SystemIoFailure) => format!("the disk with {file} reports an error"),
        Some(_) | None => format!("cannot use {file}"),
    };
    StoreError::because(what, error)
}
