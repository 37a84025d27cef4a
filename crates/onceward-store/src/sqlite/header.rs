//! The header of a `…-live` file, which names its ledger, and recognizing such a file.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use onceward::StoreError;

use super::identity::{self, Trust};

/// The position of the header, which is one line of text.
const HEADER_AT: usize = 128;
const HEADER_BYTES: usize = 256;
/// The first words of the header line.
const MAGIC: &str = "onceward-live 2";
/// How much of the file is read to recognize it.
const LOOKED_AT: usize = 4_096;
/// What older builds wrote without a header: the counter, the log byte, and the anchor.
const OLD_BYTES: usize = 48;
/// The maximum size of a `…-live` file.
const MAX_BYTES: u64 = 4_096 + 4_096 * 8;

/// Which ledger a `…-live` file belongs to, and what was last seen of its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) name: String,
    pub(super) epoch: u64,
    pub(super) seen: Seen,
}

/// The state of the database file, without its log, when it was last seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    pub(super) modified_ns: i128,
    /// The write count of the file. A backup has a lower count.
    pub(super) count: u64,
}

impl Seen {
    /// Whether the file has not been written since.
    pub(super) fn is_unchanged(&self, now: &Self) -> bool {
        Self { count: self.count, ..*now } == *self
    }
}

/// The kind of file at the path of a `…-live` file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LiveFile {
    /// Nothing has been written yet.
    Empty,
    /// A `…-live` file of an older build, without a header.
    Old,
    /// A `…-live` file that is not bound to a ledger yet.
    Unnamed,
    /// The `…-live` file of a ledger.
    Named(Note),
    /// Something else.
    Foreign,
}

/// Recognizes the file without changing it.
pub(super) fn kind(file: &File) -> std::io::Result<LiveFile> {
    let length = file.metadata()?.len();
    let mut bytes = vec![0; LOOKED_AT.min(usize::try_from(length).unwrap_or(LOOKED_AT))];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(classify(&bytes, length))
}

fn classify(bytes: &[u8], length: u64) -> LiveFile {
    let header = bytes.get(HEADER_AT..HEADER_AT + HEADER_BYTES).unwrap_or_default();
    let line = header.split(|byte| *byte == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
    if let Some(rest) = line.and_then(|line| line.strip_prefix(MAGIC)) {
        return if rest.is_empty() {
            LiveFile::Unnamed
        } else {
            parse(rest).map_or(LiveFile::Foreign, LiveFile::Named)
        };
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    match bytes {
        _ if length > MAX_BYTES => LiveFile::Foreign,
        bytes if is_zero(bytes) => LiveFile::Empty,
        // Eight bytes of the counter, one that is 0 or 1, seven that are zero, and the anchor.
        [_, _, _, _, _, _, _, _, 0 | 1, rest @ ..]
            if is_zero(rest.get(..7).unwrap_or(rest))
                && is_zero(bytes.get(OLD_BYTES..).unwrap_or_default()) =>
        {
            LiveFile::Old
        }
        _ => LiveFile::Foreign,
    }
}

fn parse(rest: &str) -> Option<Note> {
    let mut words = rest.strip_prefix(' ')?.split(' ');
    Some(Note {
        name: words.next()?.to_owned(),
        epoch: words.next()?.parse().ok()?,
        seen: Seen {
            inode: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
            modified_ns: words.next()?.parse().ok()?,
            count: words.next()?.parse().ok()?,
        },
    })
}

/// Writes the header in a single write.
pub(super) fn write(file: &File, note: Option<&Note>) -> std::io::Result<()> {
    let line = match note {
        None => format!("{MAGIC}\n"),
        Some(Note { name, epoch, seen }) => {
            let Seen { inode, bytes, modified_ns, count } = seen;
            format!("{MAGIC} {name} {epoch} {inode} {bytes} {modified_ns} {count}\n")
        }
    };
    let mut bytes = line.into_bytes();
    bytes.resize(HEADER_BYTES, 0);
    file.write_all_at(&bytes, HEADER_AT as u64)
}

/// Opens the file, which must be ours or new. Links are not followed and nothing is written, because another user may
/// have put the file there.
pub(super) fn open(path: &Path, access: Access, trust: Trust) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    let options = match access {
        Access::Create => options.read(true).write(true).create(true).truncate(false).mode(0o600),
        Access::Read => options.read(true),
    };
    // Without O_NONBLOCK, opening a pipe would block.
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let refuse = |what: String| StoreError::Unusable {
        what: format!("{} {what}, where the ledger keeps its locks; remove it", path.display()),
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            return Err(refuse("is a symbolic link".to_owned()));
        }
        Err(error) => match std::fs::metadata(path).ok().as_ref().and_then(identity::not_a_file) {
            Some(kind) => return Err(refuse(format!("is {kind}"))),
            None if error.kind() == ErrorKind::NotFound => {
                return Err(StoreError::Missing { what: format!("there is no {}", path.display()) });
            }
            None => return Err(StoreError::because(format!("cannot open {}", path.display()), error)),
        },
    };
    let cannot = |error| StoreError::because(format!("cannot read {}", path.display()), error);
    let meta = file.metadata().map_err(cannot)?;
    if let Some(kind) = identity::not_a_file(&meta) {
        return Err(refuse(format!("is {kind}")));
    }
    identity::refuse_untrusted(path, &meta, trust)?;
    if meta.nlink() > 1 {
        return Err(refuse(format!("has {} names (hard links)", meta.nlink())));
    }
    match kind(&file).map_err(cannot)? {
        LiveFile::Foreign => Err(refuse("belongs to another program".to_owned())),
        LiveFile::Empty | LiveFile::Old | LiveFile::Unnamed | LiveFile::Named(_) => Ok(file),
    }
}

/// What the file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// For reading and writing. The file is created if it does not exist.
    Create,
    /// For reading only. The file must exist.
    Read,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let seen = Seen { inode: 1, bytes: 2, modified_ns: -3, count: 4 };
        let note = Note { name: "l_a".to_owned(), epoch: 7, seen };
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(kind(&file).expect("a kind"), LiveFile::Empty);
        write(&file, None).expect("written");
        assert_eq!(kind(&file).expect("a kind"), LiveFile::Unnamed);
        write(&file, Some(&note)).expect("written");
        assert_eq!(kind(&file).expect("a kind"), LiveFile::Named(note));
    }

    #[test]
    fn files_of_other_programs_are_recognized() {
        let text = b"notes that another program keeps in a file with this name and must not lose".repeat(400);
        assert_eq!(classify(&text[..LOOKED_AT], text.len() as u64), LiveFile::Foreign);
        assert_eq!(classify(&text[..9], 9), LiveFile::Foreign);
        assert_eq!(classify(&[0; 100], 1 << 30), LiveFile::Foreign);
    }

    #[test]
    fn files_of_older_builds_are_recognized() {
        let mut old = vec![0; LOOKED_AT];
        old[..8].copy_from_slice(&6_u64.to_le_bytes());
        old[8] = 1;
        old[16..OLD_BYTES].fill(0xab);
        assert_eq!(classify(&old, MAX_BYTES), LiveFile::Old);
        assert_eq!(classify(&old[..OLD_BYTES], OLD_BYTES as u64), LiveFile::Old);
        old[2_000] = 1;
        assert_eq!(classify(&old, MAX_BYTES), LiveFile::Foreign);
    }
}
