//! Detects a replaced database file, by looking at the file on disk without its log.
//!
//! Only a checkpoint writes the database file. So a file with unchanged size and modification time has not been
//! touched, and checking that costs one system call. Otherwise the file itself is read, bypassing the log and all
//! caches, for its name and its write count. A backup copied over the file has a lower count, an emptied file has
//! none, and another ledger has another name. If the log was copied into such a file, its two counts do not match:
//! they are written alternately, and the log contains only the newer one.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onceward::StoreError;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::header::{Note, Seen};
use super::identity::FileId;

/// How often a file is read again, because another process may be checkpointing it at this moment.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// The current metadata of the database file, without a count, and its file id.
pub(super) fn look(path: &Path) -> std::io::Result<(FileId, Seen)> {
    let meta = std::fs::metadata(path)?;
    let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    let seen = Seen { inode: meta.ino(), bytes: meta.len(), modified_ns, count: 0 };
    Ok(((meta.dev(), meta.ino()), seen))
}

/// What the database file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OnDisk {
    name: String,
    epoch: u64,
    count: u64,
    /// The difference between its two counts.
    apart: u64,
}

/// The note for a ledger that has none yet. The file may lag behind its log.
pub(super) fn first_note(path: &Path, name: &str) -> Note {
    let seen = look(path).map(|(_, seen)| seen).unwrap_or_default();
    let found = read(path).ok().flatten();
    let (epoch, count) = found.map_or((0, 0), |found| (found.epoch, found.count));
    Note { name: name.to_owned(), epoch, seen: Seen { count, ..seen } }
}

/// Checks that the database file is the ledger of the note and not an older state of it. Returns the new note.
pub(super) fn check(path: &Path, note: &Note) -> Result<Note, StoreError> {
    let mut last = "it is empty or not a ledger".to_owned();
    for _ in 0..ATTEMPTS {
        let (_, now) = look(path).map_err(|error| gone(path, &error))?;
        match read(path) {
            // Also if a checkpoint ran between the two reads.
            Ok(Some(found)) if found.apart > 1 => {
                last = "it is a mixture of two states of the ledger".to_owned();
            }
            Ok(Some(found)) => {
                verify(path, note, &found)?;
                let seen = Seen { count: found.count, ..now };
                return Ok(Note { name: found.name, epoch: found.epoch, seen });
            }
            // A page that is being written can contain anything.
            Ok(None) => break,
            // A checkpoint never changes the magic bytes of a database.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                last = error.to_string();
                break;
            }
            Err(error) => last = error.to_string(),
        }
        std::thread::sleep(PAUSE);
    }
    Err(replaced(path, &format!("{} was replaced by another file, or by parts of one: {last}", note.name)))
}

fn verify(path: &Path, note: &Note, found: &OnDisk) -> Result<(), StoreError> {
    let OnDisk { name, epoch, .. } = found;
    if *name != note.name {
        return Err(replaced(path, &format!("the file is the ledger {name}, but {} was here", note.name)));
    }
    if *epoch < note.epoch || found.count < note.seen.count {
        return Err(replaced(
            path,
            &format!("the file is an older state of {name}, such as a backup copied over it"),
        ));
    }
    Ok(())
}

/// Reads the file without its log, locks or caches.
fn read(path: &Path) -> rusqlite::Result<Option<OnDisk>> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(immutable(path), flags)?;
    // A checkpoint writes the first page before it extends the file. Without this setting SQLite reports that as
    // corruption.
    connection.pragma_update(None, "writable_schema", true)?;
    let tables: i64 = connection.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('ledger', 'twin')",
        [],
        |row| row.get(0),
    )?;
    if tables != 2 {
        return Ok(None);
    }
    let question = "SELECT mark, ledger.count, twin.count FROM ledger JOIN twin";
    let found = connection.query_row(question, [], |row| {
        let mark: String = row.get(0)?;
        let (name, epoch) = split_mark(&mark);
        let (ledger, twin): (i64, i64) = (row.get(1)?, row.get(2)?);
        let count = u64::try_from(ledger.max(twin)).unwrap_or(0);
        Ok(OnDisk { name, epoch, count, apart: ledger.abs_diff(twin) })
    });
    found.optional()
}

/// The name and the epoch in a mark.
pub(super) fn split_mark(mark: &str) -> (String, u64) {
    let (name, epoch) = mark.split_once(' ').unwrap_or((mark, ""));
    (name.to_owned(), epoch.parse().unwrap_or(0))
}

/// The file's URL for SQLite. It declares the file immutable, so SQLite neither locks it nor reads the log.
fn immutable(path: &Path) -> PathBuf {
    let mut url = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                url.push(char::from(*byte))
            }
            byte => write!(url, "%{byte:02x}").unwrap_or_default(),
        }
    }
    url.push_str("?immutable=1");
    PathBuf::from(url)
}

/// The error for a missing file.
fn gone(path: &Path, error: &std::io::Error) -> StoreError {
    replaced(path, &format!("the file is gone: {error}"))
}

/// The error for a ledger that was replaced. It says what to do for each possible reason.
pub(super) fn replaced(path: &Path, seen: &str) -> StoreError {
    let file = path.display();
    StoreError::Replaced {
        what: format!(
            "{file} is not the ledger that was there before ({seen}); what was done may be missing from it. Put the \
             right file back. Or, if this is a restored backup, end the programs that use it, delete {file}-live, \
             {file}-wal and {file}-shm, and run `once restored --at TIME` with the time of the backup. To start over \
             with an empty ledger, delete these three and {file}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_a_checkpoint_is_extending_can_be_read() {
        use std::os::unix::fs::FileExt;
        const PAGES_AT: u64 = 28;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.db");
        let connection = Connection::open(&path).expect("a database");
        let made = "CREATE TABLE ledger (mark TEXT, count INTEGER); INSERT INTO ledger VALUES ('l_a 3', 7);
                    CREATE TABLE twin (count INTEGER); INSERT INTO twin VALUES (6)";
        connection.execute_batch(made).expect("a table");
        drop(connection);
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.write_all_at(&1_000_u32.to_be_bytes(), PAGES_AT).expect("written");
        let found = read(&path).expect("it can be read");
        assert_eq!(found, Some(OnDisk { name: "l_a".to_owned(), epoch: 3, count: 7, apart: 1 }));
    }

    #[test]
    fn any_path_can_be_encoded_as_a_url() {
        assert_eq!(
            immutable(Path::new("/a b?#%/ü.db")),
            Path::new("file:/a%20b%3f%23%25/%c3%bc.db?immutable=1")
        );
    }
}
