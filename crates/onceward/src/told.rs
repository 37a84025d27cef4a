//! What the answer of another Onceward says about its operation. Pure: every surface that calls a tool reads it here.

use serde::Deserialize;

use crate::text::one_line;

/// How much of a message is quoted, in characters.
const WORDS: usize = 500;

/// What an answer in the contract's envelope says against a success. An envelope that reports an effect is not one of
/// these: the exit code or the protocol reports it too. Each has a predicate for the sentence that names the tool.
///
/// ```
/// use onceward::Told;
///
/// let held = r#"{"ok": true, "effect": "held", "happened": "no", "ran": false}"#;
/// assert!(matches!(Told::by_envelope(held.as_bytes()), Some(Told::InDoubt(_))));
/// let planned = r#"{"ok": true, "effect": "would_create", "happened": "no", "ran": false}"#;
/// assert!(matches!(Told::by_envelope(planned.as_bytes()), Some(Told::NoEffect(_))));
/// let done = r#"{"ok": true, "effect": "created", "happened": "yes", "ran": true}"#;
/// assert_eq!(Told::by_envelope(done.as_bytes()), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// It succeeded, and it is nothing that could have an effect: a read.
    Unchanged(String),
    /// It had no effect.
    NoEffect(String),
    /// It may have had an effect, or may still have one.
    InDoubt(String),
}

/// The members of an envelope that count here.
#[derive(Deserialize)]
struct Envelope {
    ok: bool,
    effect: String,
    happened: Option<String>,
    ran: Option<bool>,
    error: Option<Fault>,
    #[serde(default, rename = "_summary")]
    is_summary: bool,
}

#[derive(Deserialize)]
struct Fault {
    code: String,
    message: String,
    happened: Option<String>,
}

impl Told {
    /// Reads an answer: one envelope, or the lines of a batch, whose last one is the summary. `None` if it is no
    /// envelope, or one that reports an effect.
    #[must_use]
    pub fn by_envelope(answer: &[u8]) -> Option<Self> {
        let whole = || serde_json::from_slice::<Envelope>(answer).ok();
        let last = || {
            let line = answer.trim_ascii_end().rsplit(|byte| *byte == b'\n').next()?;
            serde_json::from_slice::<Envelope>(line).ok().filter(|last| last.is_summary)
        };
        whole().or_else(last)?.told()
    }

    /// The same about a compensation, which must have an effect: a read takes nothing back.
    #[must_use]
    pub fn of_compensation(self) -> Self {
        match self {
            Self::Unchanged(said) => Self::NoEffect(said),
            Self::NoEffect(_) | Self::InDoubt(_) => self,
        }
    }
}

impl Envelope {
    fn told(self) -> Option<Told> {
        let error = self.error.as_ref();
        let said = match error {
            Some(error) => {
                let message: String = error.message.chars().take(WORDS).collect();
                format!("says {}: {}", one_line(&error.code), one_line(&message))
            }
            None => format!("says {:?}", self.effect),
        };
        let happened = self.happened.as_deref().or_else(|| error?.happened.as_deref());
        let refused = error.is_some_and(|error| matches!(&*error.code, "INVALID_INPUT" | "KEY_MISSING"));
        match (self.effect.as_str(), happened) {
            (effect, _) if self.ok && effect.starts_with("would_") => {
                Some(Told::NoEffect(format!("{said}, so this was a dry run")))
            }
            ("held", _) if self.ok => {
                Some(Told::InDoubt("says that its effect is held back, so it may still happen".to_owned()))
            }
            (_, Some("no")) if self.ok && self.ran == Some(true) => {
                Some(Told::Unchanged(format!("{said}, and that nothing was to happen")))
            }
            (_, Some("no")) if self.ok => Some(Told::NoEffect(format!("{said}, and that nothing happened"))),
            (_, Some("no")) => Some(Told::NoEffect(said)),
            (_, None) if !self.ok && refused => Some(Told::NoEffect(said)),
            (_, Some("yes") | None) if self.ok => None,
            (_, Some(_)) if self.ok => Some(Told::InDoubt(format!("{said}, and not whether it happened"))),
            (_, Some(_) | None) => Some(Told::InDoubt(said)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_envelope_says_against_a_success() {
        for (envelope, expected) in [
            (r#"{"ok":true,"effect":"created","happened":"yes","ran":true}"#, "nothing"),
            (r#"{"ok":true,"effect":"noop","happened":"yes","ran":false}"#, "nothing"),
            // Not about an operation, or not an envelope.
            (r#"{"ok":true,"effect":"updated","warnings":[]}"#, "nothing"),
            (r#"{"ok":true,"happened":"no"}"#, "nothing"),
            (r#"{"effect":"held","happened":"no"}"#, "nothing"),
            (r#"["ok"]"#, "nothing"),
            ("ok", "nothing"),
            ("", "nothing"),
            (r#"{"ok":true,"effect":"noop","happened":"no","ran":true}"#, "unchanged"),
            (r#"{"ok":true,"effect":"noop","happened":"no","ran":false}"#, "no effect"),
            (r#"{"ok":true,"effect":"would_create","happened":"no","ran":false}"#, "no effect"),
            // The dry run of something that was done before.
            (r#"{"ok":true,"effect":"would_noop","happened":"yes","ran":false}"#, "no effect"),
            (r#"{"ok":true,"effect":"would_update"}"#, "no effect"),
            (r#"{"ok":true,"effect":"held","happened":"no","ran":false}"#, "in doubt"),
            (r#"{"ok":true,"effect":"updated","happened":"unknown","ran":true}"#, "in doubt"),
            (r#"{"ok":true,"effect":"updated","happened":"perhaps","ran":true}"#, "in doubt"),
            (
                r#"{"ok":false,"effect":"noop","error":{"code":"X","message":"m","happened":"no"}}"#,
                "no effect",
            ),
            (r#"{"ok":false,"effect":"noop","error":{"code":"KEY_MISSING","message":"m"}}"#, "no effect"),
            (r#"{"ok":false,"effect":"noop","error":{"code":"X","message":"m"}}"#, "in doubt"),
            (
                r#"{"ok":false,"effect":"noop","happened":"yes","error":{"code":"X","message":"m"}}"#,
                "in doubt",
            ),
            (r#"{"ok":false,"effect":"unknown","happened":"unknown"}"#, "in doubt"),
            // A batch ends with a summary. Other lines are not about the whole of it.
            ("{}\n{\"_summary\":true,\"ok\":true,\"effect\":\"held\",\"happened\":\"no\"}\n", "in doubt"),
            ("{}\n{\"ok\":true,\"effect\":\"held\",\"happened\":\"no\"}\n", "nothing"),
        ] {
            let told = match Told::by_envelope(envelope.as_bytes()) {
                None => "nothing",
                Some(Told::Unchanged(_)) => "unchanged",
                Some(Told::NoEffect(_)) => "no effect",
                Some(Told::InDoubt(_)) => "in doubt",
            };
            assert_eq!(told, expected, "{envelope}");
        }
    }
}
