//! The file: its tables, their versions, and what is said when it cannot be used.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use onceward::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::identity;
use super::live::Live;
use super::options::{SqliteOptions, Sync};

/// The version of the tables that this build writes.
pub const SCHEMA_VERSION: i64 = 1;

/// Older versions of SQLite can damage a file that several connections write (the WAL-reset race).
pub(super) const SQLITE_FLOOR: i32 = 3_051_003;

/// `ONCE` in ASCII: marks the file as a ledger.
const APPLICATION_ID: i64 = 0x4f4e_4345;

/// What takes a file from each version to the next.
const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [include_str!("schema.sql")];

/// How much of the file a connection may hold in memory.
const PAGE_CACHE_KIB: i64 = 32 * 1024;

/// How long a writer waits for another process's.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// Refuses a file that is not a ledger before anything is made beside it. A ledger that was opened before has its
/// `…-live` file, and is looked at through SQLite; of any other file, the header tells.
pub(super) fn refuse_foreign(path: &Path, live: &Path) -> Result<(), StoreError> {
    let cannot = |error| StoreError::because(format!("cannot read {}", path.display()), error);
    // To close a second descriptor of a database is to free the locks that SQLite holds on it in this process.
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

/// Opens the database for writing; creates it, and brings it to this version, where that is needed.
pub(super) fn open_for_writing(options: &SqliteOptions, live: &Live) -> Result<Connection, StoreError> {
    create_private(&options.path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection =
        Connection::open_with_flags(&options.path, flags).map_err(|e| explain(&options.path, e))?;
    configure(&mut connection, options).map_err(|e| explain(&options.path, e))?;
    if !is_current(&connection, &options.path)? {
        // Many processes may start at once on a new file; one of them sets it up.
        let _setup = live.setup_lock()?;
        if !is_current(&connection, &options.path)? {
            use_write_ahead_log(&connection, &options.path)?;
            migrate(&connection).map_err(|e| explain(&options.path, e))?;
        }
    }
    Ok(connection)
}

/// Opens the database again after a write or a sync has failed. The log may end with a commit that looks whole and was
/// never synced, and the kernel may report the next sync of the same pages as good. So all of the log is copied into
/// the database and synced there before anything is read or written; where that cannot be done, neither can the rest.
pub(super) fn open_after_a_failure(options: &SqliteOptions, live: &Live) -> Result<Connection, StoreError> {
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

/// Closes the last connection of a store. If no other store has the ledger open, all of the log is copied into the
/// database: the one file is then the whole ledger, and can be copied. A log with nothing but tallies is left alone.
///
/// The log itself stays as it is. A log that begins anew costs the next process a sync, and on a full disk the next
/// process could take the room that SQLite's index of the log needs, which ends a process with SIGBUS.
pub(super) fn close(connection: Connection, live: &Live) {
    // In this order: of two that close at once, the second sees that it is alone.
    live.leave();
    if live.log_matters() && live.is_left() {
        // Waits for nobody. Where another process reads or writes after all, it closes after this one.
        let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        // Where not all of it was copied, the next process to close does that.
        if matches!(copied, Ok((0, frames, copied)) if frames == copied) {
            live.note_no_log();
        }
    }
    drop(connection.close());
}

/// Makes the indexes that a ledger of an older build lacks.
pub(super) fn add_missing_indexes(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("CREATE INDEX IF NOT EXISTS operation_key ON operation (key)")
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

/// The file is created by us, so that it is private from its first moment; SQLite gives its log the same mode.
pub(super) fn create_private(path: &Path) -> Result<(), StoreError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::because(format!("cannot create {}", path.display()), error)),
    }
}

fn configure(connection: &mut Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.busy_handler(Some(|waited: i32| {
        // Another process's commit takes a fraction of a millisecond as a rule, so look again soon.
        let pause = Duration::from_micros(200 * u64::from(waited.unsigned_abs().min(24)) + 100);
        std::thread::sleep(pause);
        // The sum of the pauses up to now, and a little more for the work between them.
        Duration::from_millis(5) * waited.unsigned_abs() < BUSY_LIMIT
    }))?;
    // The log goes back into the file where that is wanted: see `close`. After a failed sync it must not.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise the planner looks at bound values because of the partial indexes, and every new value prepares the
    // statement again: four times the cost of running it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", options.sync.as_str())?;
    if options.sync == Sync::Full {
        // Only macOS makes a difference between the two.
        connection.pragma_update(None, "fullfsync", true)?;
    }
    connection.pragma_update(None, "wal_autocheckpoint", options.checkpoint_pages)?;
    connection.pragma_update(None, "cache_size", -PAGE_CACHE_KIB)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Whether the file is a ledger of this version; refuses one that can never be.
fn is_current(connection: &Connection, path: &Path) -> Result<bool, StoreError> {
    let number = |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0));
    // Of one moment: another process may be setting the file up just now.
    let read = || {
        connection.execute_batch("BEGIN")?;
        let application = number("PRAGMA application_id")?;
        let version = number("PRAGMA user_version")?;
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        connection.execute_batch("COMMIT")?;
        Ok((application, version, tables))
    };
    let (application, version, tables) = read().map_err(|error| explain(path, error))?;
    // In any other mode than this a power cut can lose what was synced.
    Ok(check_version(path, application, version, tables)? && journal_mode(connection, path)? == "wal")
}

fn check_version(path: &Path, application: i64, version: i64, tables: i64) -> Result<bool, StoreError> {
    let unusable = |what: String| Err(StoreError::Unusable { what });
    match (application, version, tables) {
        (APPLICATION_ID, SCHEMA_VERSION, _) => Ok(true),
        (APPLICATION_ID, 0..SCHEMA_VERSION, _) | (0, 0, 0) => Ok(false),
        (APPLICATION_ID, newer, _) => unusable(format!(
            "{} was written by a newer version of Onceward (schema {newer}, this one knows {SCHEMA_VERSION}); \
             use that version",
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

/// In any other mode a power cut can lose what was synced. The engine answers with the new mode before the switch is
/// committed, so the statement is run to its end and the file is asked what it came to.
fn use_write_ahead_log(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let switched = patiently(|| connection.execute_batch("PRAGMA journal_mode = wal"));
    switched.map_err(|error| explain(path, error))?;
    match journal_mode(connection, path)?.as_str() {
        "wal" => Ok(()),
        mode => Err(StoreError::unavailable(format!(
            "{} cannot be given a write-ahead log and stays in mode {mode:?}; check its disk",
            path.display()
        ))),
    }
}

/// Tries again while others are at it. The engine does not ask its busy handler where it fears a deadlock, as when the
/// journal of one who died setting the file up is rolled back by several at once.
fn patiently<T>(mut step: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
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

fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let upgrade = || {
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
            connection.execute_batch(migration)?;
        }
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        connection.execute_batch("COMMIT")
    };
    upgrade().inspect_err(|_| {
        // The first error is the one to tell; a rollback that fails as well changes nothing about it.
        drop(connection.execute_batch("ROLLBACK"));
    })?;
    // So that the file's own header says whose it is, also without its log.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// What an error of the engine means to the person who runs the ledger.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
    let file = path.display();
    let what = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => return not_a_ledger(path),
        Some(ErrorCode::DatabaseCorrupt) => {
            return StoreError::Unusable {
                what: format!(
                    "{file} is damaged ({error}); restore it from a backup, `once doctor` says more"
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
