//! A command: what identifies it, and whether it is still what was asked.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::content::{ByteString, Content, FileState, short_hash};
use crate::json::Json;

/// A command with everything that it was given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommandAction {
    /// The program and its arguments.
    pub argv: Vec<ByteString>,
    /// The folder in which it runs.
    pub folder: ByteString,
    /// The machine on which it was asked for.
    pub host: String,
    /// Standard input, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Content>,
    /// The variables that the caller declared, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The JSON value that the caller declared. The command does not get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    /// The files that the caller declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileState>,
    /// The files that run: the program, and the script that it interprets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<FileState>,
}

/// Whether a part of a command counts for its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relevance {
    /// It counts.
    Counts,
    /// It does not count.
    Ignored,
}

/// Which parts of a command count for an identity. All others always do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The folder.
    pub folder: Relevance,
    /// Standard input.
    pub stdin: Relevance,
}

/// A file that is not as it was when the action was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<'a> {
    what: &'static str,
    path: &'a ByteString,
    /// Its hash when the action was asked for, if it was there.
    then: Option<&'a String>,
    /// Its hash now, if it can be read.
    now: Option<String>,
}

impl CommandAction {
    /// What tells it from another command, as one JSON object.
    #[must_use]
    pub fn identity(&self, counted: Counted) -> Json {
        let argv = self.argv.iter().map(ByteString::identity).collect();
        let mut members = vec![("argv", Json::Array(argv))];
        if counted.folder == Relevance::Counts {
            members.push(("folder", self.folder.identity()));
        }
        if self.stdin(counted).is_some() {
            // The command can read standard input but not --input, so the same document counts differently.
            members.push(("stdin", Json::Bool(true)));
        }
        if !self.env.is_empty() {
            let values = self.env.iter().map(|(name, value)| (name.as_str(), Json::from(value.as_str())));
            members.push(("env", Json::object(values)));
        }
        let mut documents = self.documents(counted);
        match documents.len() {
            0 => {}
            1 => members.extend(documents.pop().map(|document| ("input", document))),
            _ => members.push(("inputs", Json::Array(documents))),
        }
        let files = self.files.iter().filter(|file| file.document.is_none()).map(|file| file.sha256.as_str());
        let stdin = self.stdin(counted).filter(|stdin| stdin.document.is_none());
        let digests: Vec<Json> = files
            .chain(stdin.map(|stdin| stdin.sha256.as_str()))
            .map(|hash| Json::from(format!("sha256:{hash}")))
            .collect();
        if !digests.is_empty() {
            members.push(("files", Json::Array(digests)));
        }
        Json::object(members)
    }

    /// The JSON documents among its inputs, which are compared by meaning.
    #[must_use]
    pub fn documents(&self, counted: Counted) -> Vec<Json> {
        let said = self.input.iter().filter_map(|input| Json::parse(input.get()).ok());
        let files = self.files.iter().filter_map(|file| file.document.clone());
        let stdin = self.stdin(counted).and_then(|stdin| stdin.document.clone());
        said.chain(files).chain(stdin).collect()
    }

    /// Standard input, if it counts. An empty one counts as none.
    fn stdin(&self, counted: Counted) -> Option<&Content> {
        self.stdin.as_ref().filter(|stdin| counted.stdin == Relevance::Counts && stdin.size > 0)
    }

    /// What has changed since it was asked for, if these files would run now, and `file_now` gives the SHA-256 hash
    /// that a declared file has now, or nothing if it cannot be read.
    #[must_use]
    pub fn changed<'a>(
        &'a self,
        programs_now: &'a [FileState],
        file_now: impl Fn(&FileState) -> Option<String>,
    ) -> Vec<Changed<'a>> {
        let then = self.programs.iter().enumerate();
        let programs = then.map(|(at, file)| {
            let now = programs_now.get(at).map(|now| now.sha256.clone());
            Changed { what: "program", path: &file.path, then: Some(&file.sha256), now }
        });
        let new = programs_now.iter().skip(self.programs.len()).map(|file| Changed {
            what: "program",
            path: &file.path,
            then: None,
            now: Some(file.sha256.clone()),
        });
        let files = self.files.iter().filter(|file| !file.is_stream).map(|file| Changed {
            what: "declared file",
            path: &file.path,
            then: Some(&file.sha256),
            now: file_now(file),
        });
        let all = programs.chain(new).chain(files);
        all.filter(|change| change.then.map(String::as_str) != change.now.as_deref()).collect()
    }
}

impl fmt::Display for Changed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} {} ", self.what, self.path)?;
        let now = self.now.as_deref().map(short_hash);
        match (self.then.map(|then| short_hash(then)), now) {
            (Some(then), Some(now)) => write!(f, "has changed (it was {then} and is {now})"),
            (Some(then), None) => write!(f, "is gone or cannot be read (it was {then})"),
            (None, Some(now)) => write!(f, "was not there (it is {now})"),
            (None, None) => f.write_str("is not there"),
        }
    }
}
