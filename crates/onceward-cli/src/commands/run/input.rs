//! What belongs to an operation: its arguments, and whatever else the caller says.

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

/// What was gathered.
pub(crate) struct Gathered {
    /// The operation's name.
    pub(crate) name: String,
    /// All that identifies it, as one JSON object.
    pub(crate) input: Json,
    /// How many JSON documents are in it.
    json_inputs: usize,
    /// Standard input, where it was read and must be passed on.
    pub(crate) stdin: Option<Arc<[u8]>>,
}

impl Gathered {
    /// How much was read from standard input.
    pub(crate) fn stdin_bytes(&self) -> usize {
        self.stdin.as_ref().map_or(0, |bytes| bytes.len())
    }
}

/// Reads everything that belongs to the operation. All problems are told at once.
pub(crate) fn gather(identity: &IdentityArgs, command: &[OsString]) -> Result<Gathered, CommandError> {
    let mut problems = Vec::new();
    let mut members = vec![("argv", argv(command))];
    // Under a key that was given, or made of chosen fields, the caller has said what identifies the action.
    let whole = identity.key.is_none() && identity.key_fields.is_empty();
    if whole && !command.is_empty() && !identity.ignore.contains(&Ignored::Folder) {
        match std::env::current_dir() {
            Ok(folder) => members.push(("folder", text(folder.as_os_str()))),
            Err(error) => {
                problems.push(format!("the working folder: {error}; --ignore folder leaves it out"))
            }
        }
    }
    let mut documents = Vec::new();
    let mut files = Vec::new();
    if let Some(text) = &identity.input {
        match Json::parse(text) {
            Ok(document) => documents.push(document),
            Err(invalid) => problems.push(format!("--input: {invalid}")),
        }
    }
    for file in &identity.input_file {
        match read_file(file) {
            Ok(bytes) => sort_in(&bytes, &mut documents, &mut files),
            Err(problem) => problems.push(problem),
        }
    }
    let mut stdin = None;
    let piped =
        whole && !command.is_empty() && !identity.ignore.contains(&Ignored::Stdin) && stdin::carries_input();
    if identity.stdin || piped {
        match stdin::read(if identity.stdin { Patience::Endless } else { Patience::Limited }) {
            // An empty pipe is like none.
            Ok(bytes) if bytes.is_empty() => stdin = Some(bytes.into()),
            Ok(bytes) => {
                sort_in(&bytes, &mut documents, &mut files);
                // The command sees it, which it does not see of the same document in --input.
                members.push(("stdin", Json::Bool(true)));
                stdin = Some(bytes.into());
            }
            Err(problem) => problems.push(problem),
        }
    }
    let mut environment = Vec::new();
    for name in &identity.env {
        match std::env::var(name) {
            Ok(value) => environment.push((name.clone(), Json::from(value))),
            Err(_) => problems.push(format!("--env {name}: the variable is not set, or is not text")),
        }
    }
    let name = match (&identity.name, command.first()) {
        (Some(name), _) => name.clone(),
        (None, Some(program)) => basename(program),
        (None, None) => {
            problems.push("there is neither a command nor a --name".to_owned());
            String::new()
        }
    };
    if let Some(invalid) = onceward::InvalidInput::all(problems) {
        return Err(invalid.into());
    }
    if !environment.is_empty() {
        members.push(("env", Json::object(environment)));
    }
    let json_inputs = documents.len();
    match json_inputs {
        0 => {}
        1 => members.extend(documents.into_iter().map(|document| ("input", document))),
        _ => members.push(("inputs", Json::Array(documents))),
    }
    if !files.is_empty() {
        members.push(("files", Json::Array(files)));
    }
    Ok(Gathered { name, input: Json::object(members), json_inputs, stdin })
}

/// The policy's settings for what was gathered, with the identity's flags over them.
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
    // Under a given key the policy's fields have nothing to make one of.
    let wanted = identity.key.is_none() || !identity.key_fields.is_empty();
    if wanted && !settings.key_fields.is_empty() && gathered.json_inputs != 1 {
        return Err(CommandError::invalid(format!(
            "the key is made of {}, which needs one JSON input (--input, --input-file or --stdin), and there are {}",
            settings.key_fields.join(", "),
            gathered.json_inputs
        )));
    }
    Ok(settings)
}

/// Key fields and volatile fields name places in the JSON input, not in the whole of what identifies the operation.
pub(crate) fn in_document(fields: &[String]) -> Vec<String> {
    fields
        .iter()
        .map(|field| match field.strip_prefix('/') {
            Some(pointer) => format!("/input/{pointer}"),
            None => format!("input.{field}"),
        })
        .collect()
}

/// A JSON document counts by its meaning; anything else counts by its content. A number by itself is no document: the
/// version 1.10 is not 1.1.
fn sort_in(bytes: &[u8], documents: &mut Vec<Json>, files: &mut Vec<Json>) {
    match std::str::from_utf8(bytes).ok().and_then(|text| Json::parse(text).ok()) {
        Some(document @ (Json::Object(_) | Json::Array(_))) => documents.push(document),
        Some(_) | None => files
            .push(Json::from(format!("sha256:{}", data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))))),
    }
}

fn argv(command: &[OsString]) -> Json {
    Json::Array(command.iter().map(|argument| text(argument)).collect())
}

/// An argument as text; one that is not text keeps its bytes apart from every text.
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
