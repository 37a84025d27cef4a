//! Why a server cannot be used.

use onceward::StoreError;
use redis::RedisError;

/// Why a server cannot be used.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// It cannot be reached now, or its role has changed. Retry, here or with another server.
    Unavailable(String),
    /// Its settings are unsafe.
    Unusable(String),
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        Self::Unavailable(error_text(&error))
    }
}

impl ConnectError {
    pub(super) fn into_error(self, what: &str) -> StoreError {
        match self {
            Self::Unavailable(why) => StoreError::unavailable(format!("{what}: {why}")),
            Self::Unusable(what) => StoreError::Unusable { what },
        }
    }
}

/// The message of the server or the network, in one line.
pub(super) fn error_text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(_), None) | (None, Some(_)) | (None, None) => error.to_string(),
    }
}
