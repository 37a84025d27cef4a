//! How values are read from the command line, with an error that says what to write.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use onceward::{Class, Effect, Hold};

/// A duration, in milliseconds.
pub(crate) fn span(text: &str) -> Result<u64, String> {
    onceward::span_ms(text).map_err(|invalid| invalid.to_string())
}

/// How long an operation is held, or `approve`.
pub(crate) fn hold(text: &str) -> Result<Hold, String> {
    text.parse().map_err(|invalid: onceward::InvalidInput| invalid.to_string())
}

/// A point in time: a duration before now, or a date and time.
pub(super) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(ago) = onceward::span_ms(text) {
        return Ok(Moment::Ago(ago));
    }
    let at = humantime::parse_rfc3339_weak(text)
        .or_else(|_| humantime::parse_rfc3339(&format!("{text}T00:00:00Z")))
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|since| i64::try_from(since.as_millis()).ok());
    at.map(Moment::At).ok_or_else(|| {
        format!("{text:?} is not a time; write a duration such as 2h, or a time such as 2030-01-31T08:00:00Z")
    })
}

/// A count.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number; write 3"))
}

/// A number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of bytes; write 1048576 for a MiB"))
}

/// An exit code of a command that did not succeed.
pub(crate) fn exit_code(text: &str) -> Result<i32, String> {
    let code = text.parse().ok().filter(|code| (1..=255).contains(code));
    code.ok_or_else(|| format!("{text:?} is not an exit code from 1 to 255"))
}

/// One of these words, which help, completions and errors name.
pub(super) fn words<T>(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = onceward::InvalidInput> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words.into_iter().collect::<Vec<_>>()).try_map(|word| word.parse::<T>())
}

/// A class, by its word.
pub(crate) fn class() -> impl TypedValueParser<Value = Class> {
    words(Class::ALL.map(Class::as_str))
}

/// An effect, by its word.
pub(crate) fn effect() -> impl TypedValueParser<Value = Effect> {
    words(Effect::REAL.map(Effect::as_str))
}

/// A point in time, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// This number of milliseconds ago.
    Ago(u64),
    /// At this time, in milliseconds since 1970.
    At(i64),
}

impl Moment {
    /// The time itself, by the ledger's clock.
    pub(super) fn at_ms(self, now_ms: i64) -> i64 {
        match self {
            Self::Ago(ms) => now_ms.saturating_sub_unsigned(ms),
            Self::At(ms) => ms,
        }
    }
}

/// What happens to the command if `once run` is killed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IfKilled {
    /// The command continues, and its operation counts as running until it has ended.
    #[default]
    Keep,
    /// The command is asked to end, and killed 3 s later.
    End,
}

/// What a person found out about a doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleAs {
    /// It happened: retries get its result
    Done,
    /// It did not happen: the next call runs it
    Failed,
}

/// Reads a finding. Any other word is refused without a suggestion: the finding must be the caller's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finding;

impl TypedValueParser for Finding {
    type Value = SettleAs;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<SettleAs, clap::Error> {
        match value.to_str() {
            Some("done") => Ok(SettleAs::Done),
            Some("failed") => Ok(SettleAs::Failed),
            _ => {
                let problem = "--as takes done or failed; check first whether it happened.\n\n  \
                               --as done    it happened: retries get its result\n  \
                               --as failed  it did not happen: the next call runs it\n";
                Err(clap::Error::raw(ErrorKind::InvalidValue, problem).with_cmd(command))
            }
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        let done = PossibleValue::new("done").help("It happened: retries get its result");
        let failed = PossibleValue::new("failed").help("It did not happen: the next call runs it");
        Some(Box::new([done, failed].into_iter()))
    }
}
