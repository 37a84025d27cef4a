//! The inputs that identify an operation: its arguments, and what the caller adds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use onceward::{Json, Settings};
use sha2::{Digest, Sha256};

use super::evidence::basename;
use super::stdin::{self, Patience};
use crate::cli::{IdentityArgs, Ignored};
use crate::context::Context;
use crate::exit::CommandError;

/// The inputs of a call.
pub(crate) struct Gathered {
    /// The operation's name.
    pub(crate) name: String,
    /// All inputs, as one JSON object.
    pub(crate) input: Json,
    /// How many JSON documents are in it.
    json_inputs: usize,
    /// Standard input, if it was read and must be passed on.
    pub(crate) stdin: Option<Arc<[u8]>>,
}

/// Reads all inputs of the operation. Reports all problems together.
pub(crate) fn gather(identity: &IdentityArgs, command: &[OsString]) -> Result<Gathered, CommandError> {
    let mut inputs = Inputs::default();
    let mut members = vec![("argv", argv(command))];
    // With a given key or chosen fields, the caller has said what identifies the action.
    let whole = identity.key.is_none() && identity.key_fields.is_empty() && !command.is_empty();
    if whole && !identity.ignore.contains(&Ignored::Folder) {
        let folder = std::env::current_dir()
            .map_err(|error| format!("the working folder: {error}; --ignore folder leaves it out"));
        members.extend(inputs.problems.unless(folder).map(|folder| ("folder", text(folder.as_os_str()))));
    }
    inputs.named(identity);
    let piped = whole && !identity.ignore.contains(&Ignored::Stdin) && stdin::carries_input();
    let patience = if identity.stdin { Patience::Endless } else { Patience::Limited };
    let stdin = if identity.stdin || piped { inputs.standard(patience) } else { None };
    if stdin.as_ref().is_some_and(|bytes| !bytes.is_empty()) {
        // The command can read standard input but not --input, so the same document counts differently.
        members.push(("stdin", Json::Bool(true)));
    }
    let mut environment = Vec::new();
    for name in &identity.env {
        let value =
            std::env::var(name).map_err(|_| format!("--env {name}: the variable is not set, or is not text"));
        environment.extend(inputs.problems.unless(value).map(|value| (name.clone(), Json::from(value))));
    }
    let name = match (&identity.name, command.first()) {
        (Some(name), _) => Ok(name.clone()),
        (None, Some(program)) => Ok(basename(program)),
        (None, None) => Err("there is neither a command nor a --name".to_owned()),
    };
    let name = inputs.problems.unless(name).unwrap_or_default();
    if let Some(invalid) = onceward::InvalidInput::all(inputs.problems.0) {
        return Err(invalid.into());
    }
    if !environment.is_empty() {
        members.push(("env", Json::object(environment)));
    }
    let json_inputs = inputs.documents.len();
    match json_inputs {
        0 => {}
        1 => members.extend(inputs.documents.into_iter().map(|document| ("input", document))),
        _ => members.push(("inputs", Json::Array(inputs.documents))),
    }
    if !inputs.files.is_empty() {
        members.push(("files", Json::Array(inputs.files)));
    }
    Ok(Gathered { name, input: Json::object(members), json_inputs, stdin })
}

/// The name of an operation whose caller chose none: the file name of the program.
pub(crate) fn name_of(command: &[OsString]) -> String {
    command.first().map(|program| basename(program)).unwrap_or_default()
}

/// Inputs that are being read, and their problems.
#[derive(Default)]
struct Inputs {
    /// JSON documents, which are compared by meaning.
    documents: Vec<Json>,
    /// Digests of everything else.
    files: Vec<Json>,
    problems: Problems,
}

/// Problems, in the order in which they were found.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    /// The value; a problem is recorded instead.
    fn unless<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }
}

impl Inputs {
    /// The inputs that the command line names.
    fn named(&mut self, identity: &IdentityArgs) {
        if let Some(text) = &identity.input {
            let document = Json::parse(text).map_err(|invalid| format!("--input: {invalid}"));
            self.documents.extend(self.problems.unless(document));
        }
        for file in &identity.input_file {
            if let Some(bytes) = self.problems.unless(read_file(file)) {
                self.sort_in(&bytes);
            }
        }
    }

    /// Standard input. An empty one counts as none, but is still passed on.
    fn standard(&mut self, patience: Patience) -> Option<Arc<[u8]>> {
        let bytes = self.problems.unless(stdin::read(patience))?;
        if !bytes.is_empty() {
            self.sort_in(&bytes);
        }
        Some(bytes.into())
    }

    /// JSON objects and arrays are compared by meaning, anything else by content. A single number is not compared
    /// by meaning: the version 1.10 is not 1.1.
    fn sort_in(&mut self, bytes: &[u8]) {
        match std::str::from_utf8(bytes).ok().and_then(|text| Json::parse(text).ok()) {
            Some(document @ (Json::Object(_) | Json::Array(_))) => self.documents.push(document),
            Some(_) | None => {
                let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
                self.files.push(Json::from(format!("sha256:{digest}")));
            }
        }
    }
}

/// The policy's settings for these inputs, overridden by the identity flags.
pub(crate) fn settings(
    context: &Context,
    identity: &IdentityArgs,
    gathered: &Gathered,
) -> Result<Settings, CommandError> {
    let mut settings = context.policy.settings(&gathered.name)?;
    if !identity.key_fields.is_empty() {
        settings.key_fields.clone_from(&identity.key_fields);
    }
    if !identity.volatile.is_empty() {
        settings.volatile.clone_from(&identity.volatile);
    }
    // If a key is given, the policy's key fields are not needed.
    let wanted = identity.key.is_none() || !identity.key_fields.is_empty();
    if wanted && !settings.key_fields.is_empty() && gathered.json_inputs != 1 {
        return Err(CommandError::invalid(format!(
            "the key is derived from {}, which needs one JSON input (--input, --input-file or --stdin), \
             and there are {}",
            settings.key_fields.join(", "),
            gathered.json_inputs
        )));
    }
    Ok(settings)
}

/// Key fields and volatile fields refer to the JSON input, not to the object of all inputs.
pub(crate) fn in_document(fields: &[String]) -> Vec<String> {
    fields
        .iter()
        .map(|field| match field.strip_prefix('/') {
            Some(pointer) => format!("/input/{pointer}"),
            None => format!("input.{field}"),
        })
        .collect()
}

fn argv(command: &[OsString]) -> Json {
    Json::Array(command.iter().map(|argument| text(argument)).collect())
}

/// An argument as text; bytes that are not text are encoded so that they differ from every text.
fn text(argument: &OsStr) -> Json {
    match argument.to_str() {
        Some(text) => Json::from(text),
        None => Json::object([("hex", Json::from(data_encoding::HEXLOWER.encode(argument.as_bytes())))]),
    }
}

fn read_file(file: &Path) -> Result<Vec<u8>, String> {
    let what = format!("--input-file {}", file.display());
    let opened = std::fs::File::open(file).map_err(|error| format!("{what}: {error}"))?;
    stdin::read_limited(opened, &what)
}
