//! What a call asks for: the command with everything that it is given, and which of it identifies the operation.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use onceward::{Class, CommandAction, Content, Counted, FileState, Hold, Json, Relevance, Settings};
use serde_json::value::RawValue;

use super::lookup::{basename, bytes};
use super::stdin::{self, Patience, Purpose};
use crate::cli::{IdentityArgs, Ignored};
use crate::context::Context;
use crate::exit::CommandError;

/// A call that was read.
pub(crate) struct Gathered {
    /// The operation's name.
    pub(crate) name: String,
    /// The command, with its inputs.
    pub(super) action: CommandAction,
    /// What of it is compared between calls.
    counted: Counted,
    /// What of it is compared between calls without a key.
    counted_without_key: Counted,
    /// Whether the folder is known.
    has_folder: bool,
}

/// Reads all inputs of the operation. Reports all problems together.
pub(crate) fn gather(identity: &IdentityArgs, command: &[OsString]) -> Result<Gathered, CommandError> {
    let mut problems = Problems::default();
    // With a given key or chosen fields, the caller has said what identifies the action.
    let whole = identity.key.is_none() && identity.key_fields.is_empty() && !command.is_empty();
    let is_ignored = |part| identity.ignore.contains(&part);
    let counted_without_key = Counted {
        folder: counts(!is_ignored(Ignored::Folder)),
        stdin: counts(identity.stdin || !is_ignored(Ignored::Stdin)),
    };
    let counted = match whole {
        true => counted_without_key,
        false => Counted { folder: Relevance::Ignored, stdin: counts(identity.stdin) },
    };
    let folder = std::env::current_dir()
        .map_err(|error| format!("the working folder: {error}; --ignore folder leaves it out"));
    let has_folder = folder.is_ok();
    let folder = match (folder, counted.folder) {
        (Err(_), Relevance::Ignored) => None,
        (folder, Relevance::Counts | Relevance::Ignored) => problems.unless(folder),
    };
    let input = identity.input.as_deref().and_then(|text| problems.unless(said(text)));
    let files = identity.input_file.iter();
    let files = files.filter_map(|file| problems.unless(read_file(file))).collect();
    let reads = identity.stdin || (counted.stdin == Relevance::Counts && stdin::carries_input());
    let stdin =
        if reads { problems.unless(stdin::read(patience(identity), Purpose::Identity)) } else { None };
    let mut action = CommandAction {
        argv: command.iter().map(|word| bytes(word)).collect(),
        folder: bytes(folder.unwrap_or_default().as_os_str()),
        host: this_host(),
        stdin: stdin.map(|bytes| Content::new(Arc::<[u8]>::from(bytes))),
        env: std::collections::BTreeMap::new(),
        input,
        files,
        programs: Vec::new(),
    };
    for name in &identity.env {
        let value =
            std::env::var(name).map_err(|_| format!("--env {name}: the variable is not set, or is not text"));
        action.env.extend(problems.unless(value).map(|value| (name.clone(), value)));
    }
    let name = match (&identity.name, command.first()) {
        (Some(name), _) => Ok(name.clone()),
        (None, Some(program)) => Ok(basename(program)),
        (None, None) => Err("there is neither a command nor a --name".to_owned()),
    };
    let name = problems.unless(name).unwrap_or_default();
    match onceward::InvalidInput::all(problems.0) {
        Some(invalid) => Err(invalid.into()),
        None => Ok(Gathered { name, action, counted, counted_without_key, has_folder }),
    }
}

impl Gathered {
    /// Reads standard input, if the call may start later or again: a held command, and a second attempt, get what the
    /// caller gave, whether or not it identifies the call.
    pub(super) fn keeping_input(
        mut self,
        identity: &IdentityArgs,
        settings: &Settings,
    ) -> Result<Self, CommandError> {
        let terms = &settings.terms;
        let may_be_held = terms.hold != Hold::No && terms.class != Class::Read;
        if self.action.stdin.is_none() && (may_be_held || terms.retries > 0) && stdin::carries_input() {
            let bytes = stdin::read(patience(identity), Purpose::Later).map_err(CommandError::invalid)?;
            self.action.stdin = Some(Content::new(Arc::<[u8]>::from(bytes)));
        }
        Ok(self)
    }

    /// All inputs that are compared between calls, as one JSON object.
    pub(super) fn input(&self) -> Json {
        self.action.identity(self.counted)
    }

    /// The inputs of the equal call without a key, if all of them are known. Standard input may not have been read.
    pub(super) fn whole(&self) -> Option<Json> {
        let counted = self.counted_without_key;
        let knows_stdin = counted.stdin == Relevance::Ignored
            || self.action.stdin.is_some()
            || !stdin::carries_input()
            || stdin::is_at_its_end();
        let knows_folder = counted.folder == Relevance::Ignored || self.has_folder;
        (knows_stdin && knows_folder).then(|| self.action.identity(counted))
    }

    /// Standard input, if it was read and must be passed on.
    pub(super) fn stdin(&self) -> Option<Arc<[u8]>> {
        self.action.stdin.as_ref().map(|stdin| stdin.bytes.shared())
    }
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

const fn counts(does: bool) -> Relevance {
    if does { Relevance::Counts } else { Relevance::Ignored }
}

const fn patience(identity: &IdentityArgs) -> Patience {
    if identity.stdin { Patience::Endless } else { Patience::Limited }
}

/// The value of `--input`.
fn said(text: &str) -> Result<Box<RawValue>, String> {
    Json::parse(text).map_err(|invalid| format!("--input: {invalid}"))?;
    RawValue::from_string(text.to_owned()).map_err(|error| format!("--input: {error}"))
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
    let documents = gathered.action.documents(gathered.counted).len();
    if wanted && !settings.key_fields.is_empty() && documents != 1 {
        return Err(CommandError::invalid(format!(
            "the key is derived from {}, which needs one JSON input (--input, --input-file or --stdin), \
             and there are {documents}",
            settings.key_fields.join(", ")
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

fn read_file(file: &Path) -> Result<FileState, String> {
    let what = format!("--input-file {}", file.display());
    let opened = std::fs::File::open(file).map_err(|error| format!("{what}: {error}"))?;
    let is_file = opened.metadata().is_ok_and(|data| data.is_file());
    let state = FileState::of(bytes(file.as_os_str()), &stdin::read_limited(opened, &what)?);
    Ok(if is_file { state } else { state.stream() })
}

/// The name of this machine.
pub(crate) fn this_host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
