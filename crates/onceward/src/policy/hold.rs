//! Holding operations back.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::span_ms;
use crate::invalid::InvalidInput;

/// Whether an operation is held back before its first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hold {
    /// It starts at once.
    #[default]
    No,
    /// It starts after this many milliseconds, or when a person releases it.
    For(u64),
    /// It starts when a person releases it.
    Approve,
}

impl Hold {
    /// The stricter of two holds: a release by a person before a time, and a longer time before a shorter one.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Approve, _) | (_, Self::Approve) => Self::Approve,
            (Self::For(one), Self::For(other)) => Self::For(one.max(other)),
            (Self::No, held) | (held, Self::No) => held,
        }
    }
}

impl std::str::FromStr for Hold {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        match text {
            "no" => Ok(Self::No),
            "approve" => Ok(Self::Approve),
            _ => match span_ms(text) {
                Ok(ms) => Ok(Self::For(ms)),
                Err(_) => Err(InvalidInput::new(format!(
                    "{text:?} is not a hold; write a time such as 10m, approve (a person must release it), or no"
                ))),
            },
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::For(ms) => write!(f, "{}", humantime::format_duration(Duration::from_millis(*ms))),
            Self::Approve => f.write_str("approve"),
        }
    }
}

impl Serialize for Hold {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether a program may run the stored command of a held operation without a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// No: a command that is stored in a ledger runs only if a person releases it by its id.
    Manual,
    /// Yes, when its time has come.
    Auto,
}
