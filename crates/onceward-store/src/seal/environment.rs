//! The variables that configure encryption. They are read where ledgers are opened and not by each surface, because a
//! surface that forgot them would write results unencrypted.

use std::path::Path;

use onceward::StoreError;

use super::Keys;

/// The variable with the path of the key file.
pub const KEY_FILE_VARIABLE: &str = "ONCE_ENCRYPTION_KEY_FILE";
/// The variable with the keys themselves, in the format of a key file.
pub const KEY_VARIABLE: &str = "ONCE_ENCRYPTION_KEY";
/// The value that commands get in [`KEY_VARIABLE`] instead of the key. Opening a ledger with it fails, because the
/// command would write unencrypted what its caller wants sealed.
pub const WITHHELD: &str = "withheld";

/// The keys that the environment configures, if any.
///
/// # Errors
/// If they cannot be used. The error says what to do.
pub fn from_environment() -> Result<Option<Keys>, StoreError> {
    let (file, key) = (std::env::var_os(KEY_FILE_VARIABLE), std::env::var_os(KEY_VARIABLE));
    // A key was wanted, as in `ONCE_ENCRYPTION_KEY_FILE=$UNDEFINED`, and without one results would not be encrypted.
    for (name, value) in [(KEY_FILE_VARIABLE, &file), (KEY_VARIABLE, &key)] {
        if value.as_ref().is_some_and(|value| value.is_empty()) {
            return Err(unusable(format!(
                "{name} is set and empty; give it a value, or unset it to write without encryption"
            )));
        }
    }
    match (file, key) {
        (None, None) => Ok(None),
        // A withheld key does not matter if there is a key file.
        (Some(file), None) => Keys::read(Path::new(&file)).map(Some),
        (Some(file), Some(key)) if key == WITHHELD => Keys::read(Path::new(&file)).map(Some),
        (Some(_), Some(_)) => {
            Err(unusable(format!("both {KEY_FILE_VARIABLE} and {KEY_VARIABLE} are set; set one of them")))
        }
        (None, Some(key)) if key == WITHHELD => Err(unusable(format!(
            "{KEY_VARIABLE} is withheld from the commands that once starts, so this one would not encrypt; set \
             {KEY_FILE_VARIABLE} instead"
        ))),
        (None, Some(key)) => {
            let parsed = key.to_str().map(Keys::parse);
            match parsed {
                Some(Ok(keys)) => Ok(Some(keys)),
                Some(Err(invalid)) => Err(unusable(format!("{KEY_VARIABLE}: {invalid}"))),
                None => Err(unusable(format!("{KEY_VARIABLE} is not text"))),
            }
        }
    }
}

fn unusable(what: String) -> StoreError {
    StoreError::Unusable { what }
}
