//! Files and folders that only the user can read.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use onceward::StoreError;

use crate::exit::CommandError;

/// Creates a file that only the user can read: a policy may contain a URL with a password.
pub(crate) fn create_private(file: &Path) -> std::io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(file)
}

/// Creates a folder that only the user can enter, and those above it.
pub(crate) fn make_private(folder: &Path) -> Result<(), CommandError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        let what = format!("cannot create the folder {}", folder.display());
        StoreError::because(what, error).into()
    })
}
