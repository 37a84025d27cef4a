//! The files of a ledger.
//!
//! ```text
//! lock          locked by every change
//! identity      the ledger's identity
//! stopped       the stopped scopes
//! row, token    the last number that was given out
//! records/ID    one record
//! owners/TOKEN  one attempt: see `owner`
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward::{Barrier, Identity, OperationId, Record, StoreError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A record with what the store adds to it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its position among all records, by creation.
    pub(crate) row: i64,
    /// The bytes of the result. A record as JSON does not include them.
    body: Option<Vec<u8>>,
    pub(crate) record: Record,
}

impl Entry {
    /// The record for listings, which do not include bodies.
    pub(crate) fn without_body(mut self) -> Record {
        if let Some(outcome) = &mut self.record.outcome {
            outcome.body = None;
        }
        self.record
    }
}

/// The folder of a ledger.
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn create(path: &Path) -> Result<Self, StoreError> {
        for name in ["records", "owners"] {
            fs::create_dir_all(path.join(name)).map_err(|error| failed(path, error))?;
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Locks the ledger for one change, against all threads and processes. The lock ends when the file is dropped.
    pub(crate) fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.join("lock");
        let file = File::create(&path).map_err(|error| failed(&path, error))?;
        file.lock().map_err(|error| failed(&path, error))?;
        Ok(file)
    }

    pub(crate) fn identity(&self) -> Result<Option<Identity>, StoreError> {
        read(&self.path.join("identity"))
    }

    pub(crate) fn set_identity(&self, identity: &Identity) -> Result<(), StoreError> {
        self.replace(&self.path.join("identity"), identity)
    }

    /// The stopped scopes, ordered by name.
    pub(crate) fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        Ok(read(&self.path.join("stopped"))?.unwrap_or_default())
    }

    pub(crate) fn set_barriers(&self, barriers: &[Barrier]) -> Result<(), StoreError> {
        self.replace(&self.path.join("stopped"), &barriers)
    }

    /// The next number of this kind. Numbers are never reused. The caller holds the lock.
    pub(crate) fn next_number(&self, kind: &str) -> Result<i64, StoreError> {
        let path = self.path.join(kind);
        let next = read(&path)?.unwrap_or(0) + 1;
        self.replace(&path, &next)?;
        Ok(next)
    }

    pub(crate) fn read(&self, id: &OperationId) -> Result<Option<Entry>, StoreError> {
        let entry: Option<Entry> = read(&self.record_file(id))?;
        Ok(entry.map(complete))
    }

    /// Writes a record. It is durable when this returns. The caller holds the lock.
    pub(crate) fn write(&self, row: i64, record: &Record) -> Result<(), StoreError> {
        let body = record.outcome.as_ref().and_then(|outcome| outcome.body.as_ref());
        let entry = Entry { row, body: body.map(|body| body.to_vec()), record: record.clone() };
        self.replace(&self.record_file(&record.id), &entry)
    }

    pub(crate) fn remove(&self, id: &OperationId) -> Result<(), StoreError> {
        let path = self.record_file(id);
        fs::remove_file(&path).and_then(|()| sync_folder(&path)).map_err(|error| failed(&path, error))
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let folder = self.path.join("records");
        let mut entries = Vec::new();
        for file in fs::read_dir(&folder).map_err(|error| failed(&folder, error))? {
            let path = file.map_err(|error| failed(&folder, error))?.path();
            // A file with an extension is being written. A file may also be deleted while this reads.
            if path.extension().is_none()
                && let Some(entry) = read(&path)?
            {
                entries.push(complete(entry));
            }
        }
        Ok(entries)
    }

    pub(crate) fn owner_file(&self, token: i64) -> PathBuf {
        self.path.join("owners").join(token.to_string())
    }

    fn record_file(&self, id: &OperationId) -> PathBuf {
        self.path.join("records").join(id.as_str())
    }

    /// Replaces a file in one step: readers see the old content or the new one, also after a power cut.
    fn replace(&self, path: &Path, content: &impl Serialize) -> Result<(), StoreError> {
        let written = || -> io::Result<()> {
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(content)?)?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            sync_folder(path)
        };
        written().map_err(|error| failed(path, error))
    }
}

/// The entry with its body where the ledger expects it.
fn complete(mut entry: Entry) -> Entry {
    if let Some(outcome) = &mut entry.record.outcome {
        outcome.body = entry.body.take().map(Arc::from);
    }
    entry
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match fs::read(path) {
        Ok(content) => serde_json::from_slice(&content)
            .map(Some)
            .map_err(|error| StoreError::Unusable { what: format!("{}: {error}", path.display()) }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, error)),
    }
}

/// Makes a rename or a deletion durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

pub(crate) fn failed(path: &Path, error: io::Error) -> StoreError {
    StoreError::because(format!("{} cannot be used", path.display()), error)
}
