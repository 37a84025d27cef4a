//! How far a ledger has come, noted in its `…-live` file after each commit.
//!
//! The database file has a count, but what is committed is in the log first. If the log is removed or replaced by an
//! older one, the database alone looks intact. No later transaction may find less than the note
//! says. The note counts until the machine restarts, because it is not synced.

use rusqlite::Connection;

/// A ledger at one moment. Later ones are greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Progress {
    /// How often the database file was written, as the log has it.
    pub(super) count: u64,
    /// The newest row. It goes back only when that row is deleted, which raises the count.
    pub(super) row: u64,
}

impl Progress {
    pub(super) const BYTES: usize = 24;
    const CHECK: u64 = 0x6f6e_6365_7761_7264;

    /// In a transaction.
    pub(super) fn of(connection: &Connection, count: u64) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare_cached("SELECT coalesce(max(row), 0) FROM operations")?;
        let row: i64 = statement.query_row([], |row| row.get(0))?;
        Ok(Self { count, row: row.unsigned_abs() })
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.row.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.count.rotate_left(32) ^ self.row ^ Self::CHECK).to_le_bytes());
        bytes
    }

    /// `None` if nothing is noted, or if the note is being written just now.
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let mut numbers = bytes
            .chunks_exact(8)
            .map(|number| number.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        let found = Self { count: numbers.next()?, row: numbers.next()? };
        (found.to_bytes() == bytes).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let noted = Progress { count: 3, row: u64::MAX };
        assert_eq!(Progress::from_bytes(noted.to_bytes()), Some(noted));
        assert_eq!(Progress::from_bytes([0; Progress::BYTES]), None);
        let mut torn = noted.to_bytes();
        torn[0] = 4;
        assert_eq!(Progress::from_bytes(torn), None);
    }

    #[test]
    fn a_count_is_worth_more_than_rows() {
        assert!(Progress { count: 2, row: 1 } > Progress { count: 1, row: 9 });
        assert!(Progress { count: 2, row: 1 } < Progress { count: 2, row: 2 });
    }
}
