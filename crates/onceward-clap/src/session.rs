//! What a command works with: the ledger, the policy, the world's options, and the way to answer.

use std::io::IsTerminal;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use etcetera::BaseStrategy;
use onceward::{
    Audience, Blocking, Class, Error, IfMissing, InvalidInput, Ledger, Operation, Policy, Redaction,
    Settings, StoreError, Surface, Word, text,
};
use serde::Serialize;

use crate::command::World;
use crate::envelope::Envelope;
use crate::facts::{Undoable, operation_name};
use crate::flags::{Globals, MutatingFlags};
use crate::output::Output;
use crate::supervisor::Supervisor;

/// Opens the ledger at a URL. The tool's author hands it in, so this crate names no back end.
pub(crate) type Opener = Arc<dyn Fn(&str, IfMissing) -> Result<Ledger, Error> + Send + Sync>;

/// One run of the tool.
pub(crate) struct Session<W: World> {
    pub(crate) tool: &'static str,
    /// Who reads the answers, and what they can do next.
    pub(crate) surface: Surface,
    pub(crate) globals: Globals,
    pub(crate) options: W::Options,
    pub(crate) place: String,
    pub(crate) open: Opener,
    pub(crate) policy: Policy,
    pub(crate) supervisor: Supervisor,
    pub(crate) output: Output,
    /// The world, while no work has it: the items of a batch share it.
    pub(crate) world: Arc<Mutex<Option<W>>>,
}

/// The rules of one command: the policy's, over the command's own.
pub(crate) struct Rules {
    pub(crate) settings: Settings,
    pub(crate) timeout_ms: u64,
}

impl<W: World> Session<W> {
    /// The ledger: the flag's, the environment's, the policy's, or the one in the user's data folder.
    pub(crate) fn ledger(&self, missing: IfMissing) -> Result<Blocking, Error> {
        let given = self.globals.ledger.as_deref().or(self.policy.ledger_url());
        if let Some(url) = given {
            return Ok((self.open)(url, missing)?.blocking());
        }
        let file = default_file(self.tool)?;
        if let (IfMissing::Create, Some(folder)) = (missing, file.parent()) {
            make_private(folder)?;
        }
        // A tool is short-lived, so the write-ahead log must stay short: the next call reads all of it.
        Ok((self.open)(&format!("sqlite:{}?checkpoint=200", file.display()), missing)?.blocking())
    }

    /// The same for reading only: `None` where there is no ledger yet.
    pub(crate) fn existing_ledger(&self) -> Result<Option<Blocking>, Error> {
        match self.ledger(IfMissing::Fail) {
            Ok(ledger) => Ok(Some(ledger)),
            Err(Error::Unavailable(StoreError::Missing { .. })) => self.can_be_made().map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Whether a ledger that was named, and is not there yet, has a folder to be made in. The default one gets its own.
    fn can_be_made(&self) -> Result<(), Error> {
        let named = self.globals.ledger.as_deref().or(self.policy.ledger_url());
        let Some(path) = named.and_then(|url| url.strip_prefix("sqlite:")) else { return Ok(()) };
        let path = Path::new(path.split_once('?').map_or(path, |(path, _)| path));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.map(std::fs::read_dir) {
            Some(Err(error)) => {
                let what = format!("there is no folder for the ledger {}", path.display());
                Err(StoreError::because(what, error).into())
            }
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// What holds for a command of that name.
    pub(crate) fn rules(
        &self,
        name: &str,
        class: Class,
        own_timeout_ms: u64,
        flags: &MutatingFlags,
    ) -> Result<Rules, Error> {
        let mut settings = self.settings(&[name, &operation_name(self.tool, name)], class)?;
        if settings.terms.class == Class::Read {
            let problem = format!("the policy says that {name} only reads, but it changes something");
            return Err(InvalidInput::new(problem).into());
        }
        if settings.terms.class == Class::Probed && class != Class::Probed {
            let problem = format!("the policy says that {name} is probed, but it has no probe");
            return Err(InvalidInput::new(problem).into());
        }
        settings.terms.wait_ms = flags.wait_ms.unwrap_or(settings.terms.wait_ms);
        let by_policy = Some(settings.timeout_ms).filter(|ms| *ms > 0);
        let timeout_ms = flags.limits.timeout_ms.or(by_policy).unwrap_or(own_timeout_ms);
        Ok(Rules { settings, timeout_ms })
    }

    /// What holds for a compensation: the policy's rule for `undo:COMMAND` or for the operation's own name.
    pub(crate) fn undo_rules(&self, name: &str, undoable: Option<&Undoable<W>>) -> Result<Rules, Error> {
        let own = undoable.map(|undoable| format!("undo:{}", undoable.command));
        let class = undoable.map_or(Class::Once, |undoable| undoable.undo.its_class());
        let settings = self.settings(&[own.as_deref().unwrap_or(name), name], class)?;
        if matches!(settings.terms.class, Class::Read | Class::Probed) {
            let class = settings.terms.class;
            let problem =
                format!("the policy says that {name} is of class {class}; use once, idempotent or keyed");
            return Err(InvalidInput::new(problem).into());
        }
        let by_policy = Some(settings.timeout_ms).filter(|ms| *ms > 0);
        let own_timeout_ms = undoable.map_or(0, |undoable| undoable.timeout_ms);
        Ok(Rules { timeout_ms: by_policy.unwrap_or(own_timeout_ms), settings })
    }

    /// The policy's settings for an operation that has one of these names.
    fn settings(&self, names: &[&str], class: Class) -> Result<Settings, Error> {
        let rule = self.policy.tool(names)?;
        let mut settings = rule.settings;
        settings.terms.class = rule.class.unwrap_or(class);
        Ok(settings)
    }

    /// The operation of a command with these arguments.
    pub(crate) fn operation(
        &self,
        name: &str,
        arguments: &impl Serialize,
        flags: &MutatingFlags,
        settings: &Settings,
    ) -> Result<Operation, Error> {
        #[derive(Serialize)]
        struct Input<'a, A> {
            place: &'a str,
            arguments: &'a A,
        }
        let input = serde_json::to_string(&Input { place: &self.place, arguments }).map_err(|error| {
            InvalidInput::new(format!("the arguments cannot be written as JSON: {error}"))
        })?;
        let operation = self.bare_operation(name, &input, flags, settings);
        let operation = match &flags.key {
            Some(key) => operation.key(key),
            None => operation,
        };
        Ok(match &flags.occurrence {
            Some(occurrence) => operation.occurrence(occurrence),
            None => operation,
        })
    }

    /// The same without a key and an occurrence of the caller's.
    pub(crate) fn bare_operation(
        &self,
        name: &str,
        input: &str,
        flags: &MutatingFlags,
        settings: &Settings,
    ) -> Operation {
        let mut key_fields = in_arguments(&settings.key_fields);
        if !key_fields.is_empty() {
            key_fields.push("/place".to_owned());
        }
        let operation = Operation::new(operation_name(self.tool, name));
        let operation = match (&flags.scope, &self.globals.connection) {
            (Some(scope), _) => operation.scope(scope),
            // A given key identifies the action permanently: a client that reconnects after a crash uses it again.
            (None, Some(connection)) if flags.key.is_none() => operation.host_scope(connection),
            (None, Some(_) | None) => operation,
        };
        operation
            .input_json(input)
            .key_fields(key_fields)
            .volatile(in_arguments(&settings.volatile))
            .terms(settings.terms.clone())
    }

    /// The answer to a call that the ledger refused.
    pub(crate) fn failed(&self, error: Error) -> Envelope {
        Envelope::failed(error, &self.surface)
    }

    /// Who settles a doubt through this surface.
    pub(crate) fn settler(&self) -> Word {
        match self.surface {
            Surface::Shell { .. } | Surface::Python | Surface::Http | Surface::McpPerson { .. } => {
                Word::person(self.tool)
            }
            Surface::McpAgent => Word::agent(self.tool),
        }
    }

    /// What is left out of the stored results of an operation with that name.
    pub(crate) fn redaction(&self, operation: &str) -> Result<Redaction, Error> {
        let command = operation.strip_prefix(&operation_name(self.tool, "")).unwrap_or(operation);
        Ok(self.policy.tool(&[command, operation])?.settings.terms.redact)
    }
}

/// Who reads the answers of this run.
pub(crate) fn surface(tool: &str, globals: &Globals, policy: &Policy) -> Surface {
    match globals.connection {
        Some(_) => Surface::McpAgent,
        None => shell(tool, globals, policy),
    }
}

/// The tool itself shows and settles its operations. Its commands name the ledger where only a flag has named it, or
/// where the variable is right only in this folder; a URL with a password is not repeated.
fn shell(tool: &str, globals: &Globals, policy: &Policy) -> Surface {
    let by_environment = |setting| std::env::var(crate::output::variable(tool, setting)).ok();
    let ledger = globals.ledger.as_deref().filter(|url| text::masked(url) == *url);
    let variable = by_environment("LEDGER").filter(|url| globals.ledger.as_ref() == Some(url));
    let ledger = ledger.map(from_any_folder).filter(|url| variable.as_ref() != Some(url));
    let policy_file = globals.policy.as_deref();
    let policy_file = policy_file.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
    let policy_file = policy_file.map(|file| file.display().to_string());
    let policy_file = policy_file.filter(|file| by_environment("POLICY").as_ref() != Some(file));
    let mut options = Vec::new();
    options.extend(ledger.map(|url| format!("--ledger {}", quoted(&url))));
    options.extend(policy_file.map(|file| format!("--policy {}", quoted(&file))));
    let url = globals.ledger.as_deref().or(policy.ledger_url());
    let shown = match url {
        None => default_file(tool).ok().map(|file| quoted(&format!("sqlite:{}", file.display()))),
        Some(url) if text::masked(url) == url => Some(quoted(&from_any_folder(url))),
        // The shell that has the variable can pass it on.
        Some(_) => variable.map(|_| format!("\"${}\"", crate::output::variable(tool, "LEDGER"))),
    };
    let once = shown.map(|url| format!("once --ledger {url}"));
    let to = if std::io::stderr().is_terminal() { Audience::Person } else { Audience::Caller };
    Surface::Shell { program: tool.to_owned(), options, to, once }
}

/// A ledger's URL that names the same file from any folder.
fn from_any_folder(url: &str) -> String {
    match url.strip_prefix("sqlite:").map(std::path::absolute) {
        Some(Ok(path)) => format!("sqlite:{}", path.display()),
        Some(Err(_)) | None => url.to_owned(),
    }
}

/// A policy's fields are the command's arguments; in the operation's input they are one level down.
fn in_arguments(fields: &[String]) -> Vec<String> {
    let place = |field: &String| match field.strip_prefix('/') {
        Some(pointer) => format!("/arguments/{pointer}"),
        None => format!("arguments.{field}"),
    };
    fields.iter().map(place).collect()
}

pub(crate) use onceward::text::shell_word as quoted;

fn default_file(tool: &str) -> Result<PathBuf, Error> {
    let folders = etcetera::choose_base_strategy().map_err(|_| {
        InvalidInput::new("there is no home folder for the ledger; give --ledger sqlite:PATH")
    })?;
    Ok(folders.data_dir().join(tool).join("ledger.db"))
}

fn make_private(folder: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        StoreError::because(format!("cannot create the folder {}", folder.display()), error).into()
    })
}

/// Reads the policy that was named.
pub(crate) fn read_policy(file: Option<&Path>) -> Result<Policy, InvalidInput> {
    let Some(file) = file else { return Ok(Policy::default()) };
    let in_file = |problem: &dyn std::fmt::Display| {
        InvalidInput::new(format!("the policy {} cannot be used: {problem}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|error| in_file(&error))?;
    let policy = Policy::parse(&text).map_err(|invalid| in_file(&invalid))?;
    policy.check().map_err(|invalid| in_file(&invalid))?;
    Ok(policy)
}
