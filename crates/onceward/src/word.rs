//! Who said so: a person, an agent, a probe or another program. It is kept with what was said.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::one_line;
use crate::time::rfc3339;

/// Who speaks. An agent is never recorded as a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// A person.
    Person,
    /// An agent.
    Agent,
    /// The operation's probe.
    Probe,
    /// Another program: a check, a flag of the caller, a rule of the policy.
    Program,
}

/// What someone said about an operation: a settlement, a release, a refusal. A later attempt does not overwrite it.
///
/// ```
/// use onceward::Word;
///
/// let word = Word::person("ada").note("the invoice is wrong".to_owned());
/// assert_eq!(word.to_string(), "a person (ada)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Word {
    /// Who speaks.
    pub by: Speaker,
    /// Their name: a user, a tool, a command.
    pub name: String,
    /// When it was said, in the ledger's time. The ledger sets it.
    #[serde(default)]
    pub at_ms: i64,
    /// Why, in their own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why the operation was in doubt when this was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

impl Word {
    /// The word of a person.
    pub fn person(name: impl Into<String>) -> Self {
        Self::of(Speaker::Person, name)
    }

    /// The word of an agent.
    pub fn agent(name: impl Into<String>) -> Self {
        Self::of(Speaker::Agent, name)
    }

    /// The answer of the operation's probe.
    #[must_use]
    pub fn probe() -> Self {
        Self::of(Speaker::Probe, "the probe")
    }

    /// The word of another program.
    pub fn program(name: impl Into<String>) -> Self {
        Self::of(Speaker::Program, name)
    }

    fn of(by: Speaker, name: impl Into<String>) -> Self {
        Self { by, name: name.into(), at_ms: 0, note: None, doubt: None }
    }

    /// The same with a reason.
    #[must_use]
    pub fn note(self, note: impl Into<Option<String>>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// What was said, without the words: for a record that another one refers to.
    pub(crate) fn without_texts(self) -> Self {
        Self { note: None, doubt: None, ..self }
    }

    /// The texts, which a store may seal.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.note.iter_mut().chain(&mut self.doubt)
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &String> {
        self.note.iter().chain(&self.doubt)
    }

    pub(crate) fn at(self, at_ms: i64) -> Self {
        Self { at_ms, ..self }
    }
}

/// What someone said, as shown to callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct WordView {
    /// `person`, `agent`, `probe` or `program`.
    pub by: Speaker,
    /// Their name.
    pub name: String,
    /// When.
    pub at: String,
    /// Why, in their own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why the operation was in doubt then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

impl WordView {
    /// What was said, with its time as text.
    #[must_use]
    pub fn of(word: &Word) -> Self {
        let Word { by, name, at_ms, note, doubt } = word.clone();
        Self { by, name, at: rfc3339(at_ms), note, doubt }
    }
}

/// Who it is, in words.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        speaker_in_words(self.by, &self.name, f)
    }
}

/// Who it is, in words.
impl fmt::Display for WordView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        speaker_in_words(self.by, &self.name, f)
    }
}

fn speaker_in_words(by: Speaker, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let name = one_line(name);
    match (by, name.is_empty()) {
        (Speaker::Person, true) => f.write_str("a person"),
        (Speaker::Person, false) => write!(f, "a person ({name})"),
        (Speaker::Agent, true) => f.write_str("an agent"),
        (Speaker::Agent, false) => write!(f, "an agent ({name})"),
        (Speaker::Program, true) => f.write_str("a program"),
        (Speaker::Probe | Speaker::Program, _) => f.write_str(&name),
    }
}
