//! Policy files that the user has allowed, identified by path and content: a changed file must be allowed again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use sha2::{Digest, Sha256};

use crate::private::make_private;

/// The mark that a file was allowed.
pub(crate) struct Mark(PathBuf);

impl Mark {
    /// The mark of a file with this content, or `None` if there is no home folder for marks.
    pub(crate) fn of(file: &Path, content: &str) -> Option<Self> {
        Self::named("", &file.canonicalize().ok()?, content)
    }

    /// The mark that a file at this place was allowed, whatever it contained, and that something depends on it: without
    /// its settings, calls would go to another ledger or get other keys, and run again. The file may be gone.
    pub(crate) fn of_place(file: &Path) -> Option<Self> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Self::named("place-", &folder.join(file.file_name()?), "")
    }

    fn named(prefix: &str, place: &Path, content: &str) -> Option<Self> {
        let mut hash = Sha256::new();
        hash.update(place.as_os_str().as_encoded_bytes());
        hash.update([0]);
        hash.update(content);
        let name = format!("{prefix}{}", data_encoding::HEXLOWER.encode(&hash.finalize()));
        let folders = etcetera::choose_base_strategy().ok()?;
        Some(Self(folders.data_dir().join("onceward").join("allowed").join(name)))
    }

    /// Whether the user has allowed it.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_file()
    }

    /// Allows the file. Returns whether that is new.
    pub(crate) fn set(&self) -> std::io::Result<bool> {
        if let Some(folder) = self.0.parent() {
            make_private(folder).map_err(|error| std::io::Error::other(error.to_string()))?;
        }
        match std::fs::File::create_new(&self.0) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Revokes it. Returns whether it was allowed.
    pub(crate) fn clear(&self) -> std::io::Result<bool> {
        match std::fs::remove_file(&self.0) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
