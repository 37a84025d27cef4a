//! What every command needs: the ledger, the policy, and the output format.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcetera::BaseStrategy;
use onceward::{
    Audience, Blocking, Error, InvalidInput, Ledger, Listed, OperationId, Policy, StoreError, Surface, text,
};
use onceward_http::inbox::HostEnvironment;
pub(crate) use onceward_store::IfMissing;
use onceward_store::sqlite::SqliteOptions;
use onceward_store::{Backend, StoreUrl};

use crate::answer;
use crate::cli::{Global, OperationArg};
use crate::environment::{Environment, PassLedger};
use crate::exit::CommandError;
use crate::private::make_private;
use crate::trust::Mark;

/// `once` is short-lived, so the write-ahead log must stay short: the next `once` reads all of it.
const CHECKPOINT_PAGES: u32 = 200;
/// Minimum number of characters of an id without `op_`.
const SHORTEST_PREFIX: usize = 3;
/// How many operations that match one word are looked up, and how many of them are listed.
const MOST_CANDIDATES: usize = 1_000;
const SHOWN_CANDIDATES: usize = 10;
/// The longest policy, in bytes.
const MAX_POLICY: u64 = 1024 * 1024;

/// From flags, environment and files.
pub(crate) struct Context {
    /// Who reads the answers.
    reader: Audience,
    pub(crate) global: Global,
    pub(crate) policy: Policy,
    pub(crate) policy_file: Option<PathBuf>,
    /// Whether that file is a project's, and allowed: it is found only in the project's folders.
    is_projects: bool,
    /// The policy as the file writes it, if the file is not allowed and only its safe settings are used.
    written: Option<Policy>,
}

impl Context {
    pub(crate) fn new(global: Global, reader: Audience) -> Result<Self, CommandError> {
        let PolicyFile { file: policy_file, text, trusted, is_projects } = read_policy(&global)?;
        let policy = Policy::parse(&text).and_then(|policy| {
            policy.check()?;
            policy.check_probes()?;
            Ok(policy)
        });
        let policy = policy.map_err(|invalid| in_file(&invalid, policy_file.as_deref()))?;
        let (policy, written) = match &policy_file {
            Some(file) if !trusted => (only_what_is_safe(policy.clone(), file, &global), Some(policy)),
            Some(_) | None => (policy, None),
        };
        Ok(Self { global, reader, policy, policy_file, is_projects, written })
    }

    /// The configuration of `once serve`, checked.
    pub(crate) fn server_config(&self) -> Result<onceward_http::Config, CommandError> {
        let config = onceward_http::Config::from_policy(&self.policy).and_then(|mut config| {
            config.environment = HostEnvironment::variables(|name| std::env::var(name).ok());
            onceward_http::App::check(&config)?;
            Ok(config)
        });
        Ok(config.map_err(|invalid| in_file(&invalid, self.policy_file.as_deref()))?)
    }

    /// Where and how `once serve` listens. Nothing else is checked: a caller of the server does not need its secrets.
    pub(crate) fn listening(&self) -> Result<onceward_http::config::ServeConfig, CommandError> {
        let config = onceward_http::Config::from_policy(&self.policy);
        Ok(config.map_err(|invalid| in_file(&invalid, self.policy_file.as_deref()))?.serve)
    }

    /// Checks the sections of `once serve`. No file is read that a policy names which is not allowed.
    pub(crate) fn check_server_sections(&self) -> Result<(), CommandError> {
        if let Some(written) = &self.written {
            let read = onceward_http::Config::from_policy(written);
            read.map_err(|invalid| in_file(&invalid, self.policy_file.as_deref()))?;
        }
        self.server_config().map(drop)
    }

    /// The setting that the ledger's URL comes from.
    pub(crate) fn ledger_origin(&self) -> &'static str {
        match (&self.global.ledger, self.policy.ledger_url()) {
            (Some(_), _) => "--ledger or ONCE_LEDGER",
            (None, Some(_)) => "[ledger]",
            (None, None) => "built in",
        }
    }

    /// The ledger's URL: from the flag, the environment, the policy, or in the user's data folder.
    pub(crate) fn ledger_url(&self) -> Result<String, CommandError> {
        let here = std::env::current_dir().unwrap_or_default();
        if let Some(url) = &self.global.ledger {
            return Ok(absolute(url, &here));
        }
        if let Some(url) = self.policy.ledger_url() {
            let folder = self.policy_file.as_deref().and_then(Path::parent).unwrap_or(&here);
            return Ok(absolute(url, &here.join(folder)));
        }
        let folders = etcetera::choose_base_strategy().map_err(|_| {
            CommandError::invalid("there is no home folder for the ledger; give --ledger sqlite:PATH")
        })?;
        Ok(format!("sqlite:{}", folders.data_dir().join("onceward").join("once.db").display()))
    }

    /// The same without a password, for printing.
    pub(crate) fn shown_ledger_url(&self) -> Result<String, CommandError> {
        Ok(text::masked(&self.ledger_url()?).into_owned())
    }

    /// The environment for commands.
    pub(crate) fn environment(&self, pass: PassLedger) -> Environment {
        Environment::of(self.ledger_url().ok().as_deref(), pass)
    }

    /// The ledger, or `None` if there is none yet.
    pub(crate) fn existing_ledger(&self) -> Result<Option<Blocking>, CommandError> {
        match self.store_url()?.open_with(IfMissing::Fail, self.keys()?) {
            Ok(store) => Ok(Some(Ledger::new(store).blocking())),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How to spell the next command, so that it finds the same ledger from any folder. It never contains a
    /// password: if the environment or the policy has one, they also name the ledger for the next command.
    pub(crate) fn surface(&self) -> Surface {
        let is_default = self.global.ledger.is_none() && self.policy.ledger_url().is_none();
        let by_flag = self.global.ledger.is_some() && self.global.ledger != std::env::var("ONCE_LEDGER").ok();
        let url = self.ledger_url().ok().filter(|_| !is_default);
        let url = url.filter(|url| by_flag || !text::has_password(url));
        // A policy that the caller has named is named again, with its ledger and its probes.
        let policy = self.global.config.is_some().then(|| self.policy_option()).flatten();
        let url = url.filter(|_| policy.is_none() || self.global.ledger.is_some());
        let shown = |url: &str| quoted(&text::masked(&text::without_password(url)));
        let mut options = Vec::new();
        options.extend(policy);
        options.extend(url.map(|url| format!("--ledger {}", shown(&url))));
        Surface::Shell { program: "once".to_owned(), options, to: self.reader, once: None }
    }

    /// The option with which a command in any folder has the same policy, if it would not find it itself.
    pub(crate) fn policy_option(&self) -> Option<String> {
        let file =
            self.policy_file.as_deref().filter(|_| self.is_projects || self.global.config.is_some())?;
        let file = std::path::absolute(file).ok().filter(|file| !is_descriptor(file))?;
        file.to_str().map(|file| format!("--config {}", quoted(file)))
    }

    /// The ledger.
    pub(crate) fn ledger(&self, missing: IfMissing) -> Result<Blocking, CommandError> {
        Ok(Ledger::new(self.store(missing)?).blocking())
    }

    fn store_url(&self) -> Result<StoreUrl, CommandError> {
        let url = self.ledger_url()?;
        let mut store = StoreUrl::parse(&url)?;
        if let StoreUrl::Sqlite(options) = &mut store
            && !url.contains("checkpoint=")
        {
            options.checkpoint_pages = CHECKPOINT_PAGES;
        }
        Ok(store)
    }

    /// Checks that the ledger's URL is valid. Opens nothing.
    pub(crate) fn check_ledger_url(&self) -> Result<(), CommandError> {
        self.store_url().map(|_| ())
    }

    /// The path of a ledger in a file.
    pub(crate) fn ledger_file(&self) -> Result<Option<PathBuf>, CommandError> {
        Ok(match self.store_url()? {
            StoreUrl::Sqlite(options) => Some(options.path),
            StoreUrl::Postgres(_) | StoreUrl::Redis(_) | StoreUrl::Http(_) | StoreUrl::Memory => None,
        })
    }

    /// The ledger's store, for commands that read more than single operations.
    pub(crate) fn store(&self, missing: IfMissing) -> Result<Arc<dyn Backend>, CommandError> {
        let place = self.store_url()?;
        if let StoreUrl::Sqlite(options) = &place
            && missing == IfMissing::Create
        {
            self.make_ready(options)?;
        }
        place.open_with(missing, self.keys()?).map_err(|error| match error {
            StoreError::Missing { .. } => CommandError::invalid(error.to_string()),
            StoreError::Unavailable { .. }
            | StoreError::Unusable { .. }
            | StoreError::Replaced { .. }
            | _ => error.into(),
        })
    }

    /// The ledger's store after a restore, even if it is not the ledger that was there before.
    pub(crate) fn restored_store(&self) -> Result<Arc<dyn Backend>, CommandError> {
        self.store_url()?.open_restored().map_err(|error| match error {
            StoreError::Missing { .. } => CommandError::invalid(error.to_string()),
            StoreError::Unavailable { .. }
            | StoreError::Unusable { .. }
            | StoreError::Replaced { .. }
            | _ => error.into(),
        })
    }

    /// Makes sure that the folder of the file exists.
    fn make_ready(&self, options: &SqliteOptions) -> Result<(), CommandError> {
        match options.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) if self.global.ledger.is_none() => make_private(folder)?,
            Some(folder) if !folder.is_dir() => {
                return Err(unusable(format!(
                    "there is no folder {}; create it, or give another path",
                    folder.display()
                )));
            }
            Some(_) | None => {}
        }
        if options.path.is_dir() {
            let path = options.path.display();
            return Err(unusable(format!(
                "{path} is a folder; write sqlite:{path}/once.db for a file in it"
            )));
        }
        Ok(())
    }

    /// How `once` is called so that it finds the same ledger.
    pub(crate) fn program(&self) -> String {
        match self.surface() {
            Surface::Shell { program, options, .. } if !options.is_empty() => {
                format!("{program} {}", options.join(" "))
            }
            Surface::Shell { .. }
            | Surface::Python
            | Surface::Http
            | Surface::McpAgent
            | Surface::McpPerson { .. } => "once".to_owned(),
        }
    }

    /// The operation that a user names: by its id, the first characters of its id, or its key.
    pub(crate) fn operation(
        &self,
        ledger: &Blocking,
        arg: &OperationArg,
    ) -> Result<OperationId, CommandError> {
        let word = arg.operation.as_str();
        if let Ok(id) = OperationId::parse(word) {
            return Ok(id);
        }
        if word.is_empty() {
            let problem = "the operation is empty; give its id, the first characters of its id, or its key";
            return Err(CommandError::invalid(problem));
        }
        let lookup = |word: &str| -> Result<Vec<Listed>, CommandError> {
            let found = ledger.ledger().admin().lookup(word, arg.scope.as_deref(), MOST_CANDIDATES);
            let mut found = ledger.wait_for(found)?;
            found.retain(|listed| arg.name.as_ref().is_none_or(|name| *name == listed.record.name));
            Ok(found)
        };
        let mut found = lookup(word)?;
        // An exact key takes precedence over an id without `op_`.
        if found.is_empty() && word.len() >= SHORTEST_PREFIX {
            found = lookup(&format!("op_{word}"))?;
        }
        match found.as_slice() {
            [] => Err(Error::NotFound { id: named(arg) }.into()),
            [one] => Ok(one.record.id.clone()),
            many => Err(ambiguous(word, many)),
        }
    }
}

/// Describes the operation that was not found.
fn named(arg: &OperationArg) -> String {
    let within = |what: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!(", {what} {value:?}")).unwrap_or_default()
    };
    format!(
        "with the id or key {:?}{}{}",
        arg.operation,
        within("scope", &arg.scope),
        within("name", &arg.name)
    )
}

/// Several operations match: lists each with what distinguishes it.
fn ambiguous(word: &str, found: &[Listed]) -> CommandError {
    let lines = found.iter().take(SHOWN_CANDIDATES).map(|Listed { record, .. }| {
        let (id, scope) = (&record.id, text::one_line(&record.scope));
        let (name, key) = (text::one_line(&record.name), text::one_line(&record.key.text));
        format!("\n  {id}  {}  scope {scope}, name {name}, key {key}", record.state)
    });
    let lines: String = lines.collect();
    let more = if found.len() > SHOWN_CANDIDATES { "\n  …" } else { "" };
    CommandError::invalid(format!(
        "{word:?} matches {} operations; give the whole id, or narrow it with --scope or --name:{lines}{more}",
        if found.len() < MOST_CANDIDATES {
            found.len().to_string()
        } else {
            format!("{MOST_CANDIDATES} or more")
        }
    ))
}

/// A ledger's URL with its path made absolute, so that it names one file from every folder.
fn absolute(url: &str, folder: &Path) -> String {
    let Some(path) = url.strip_prefix("sqlite:").filter(|path| !path.starts_with('/') && !path.is_empty())
    else {
        return url.to_owned();
    };
    format!("sqlite:{}", folder.join(path.strip_prefix("./").unwrap_or(path)).display())
}

/// A path in a message. Folder names are untrusted: the author of a repository chose them.
fn shown(path: &Path) -> String {
    text::one_line(&path.display().to_string()).into_owned()
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| format!("{word:?}"), std::borrow::Cow::into_owned)
}

/// The problems of a policy, each with its file.
fn in_file(invalid: &InvalidInput, file: Option<&Path>) -> InvalidInput {
    let Some(file) = file else { return invalid.clone() };
    let problems = invalid.problems().iter().map(|problem| format!("{}: {problem}", file.display()));
    InvalidInput::all(problems.collect()).unwrap_or_else(|| invalid.clone())
}

fn unusable(what: String) -> CommandError {
    StoreError::Unusable { what }.into()
}

/// A policy file that was read.
struct PolicyFile {
    file: Option<PathBuf>,
    text: String,
    /// The user named it, it is in the user's configuration folder, or the user has allowed it.
    trusted: bool,
    /// It was found in a project, and the user has allowed it.
    is_projects: bool,
}

/// The policy file that was named, or the first one found that is trusted. A file from a repository never replaces
/// a policy that the user trusts, because another ledger or weaker rules would let something run again. If there is
/// no such policy, its safe settings are used.
fn read_policy(global: &Global) -> Result<PolicyFile, CommandError> {
    let unreadable = |file: &Path, error| {
        CommandError::invalid(format!("cannot read the policy {}: {error}", file.display()))
    };
    if let Some(file) = global.config.as_deref() {
        let text = read_file(file).map_err(|error| unreadable(file, error))?;
        return Ok(PolicyFile { file: Some(file.to_owned()), text, trusted: true, is_projects: false });
    }
    let folders = etcetera::choose_base_strategy().ok();
    let user = folders.map(|folders| folders.config_dir().join("onceward/onceward.toml"));
    // Search upward from the working folder, like cargo and git: a project has one ledger in all its folders.
    let here = std::env::current_dir().unwrap_or_default();
    let project = here.ancestors().map(|folder| folder.join("onceward.toml"));
    let mut nearest: Option<(PathBuf, String)> = None;
    for file in project.chain(user.clone()) {
        let is_users = user.as_ref() == Some(&file);
        if !is_users && belongs_to_another(&file) {
            answer::talk(&format!(
                "once: {} belongs to another user and is ignored; --config FILE uses it anyway",
                shown(&file)
            ));
            continue;
        }
        let text = match read_file(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                refuse_lost_trust(&file, "is gone", "Put it back, or")?;
                continue;
            }
            Err(error) => return Err(unreadable(&file, error)),
        };
        let is_allowed = is_allowed(&file, &text);
        if is_allowed && !is_users {
            note_dependence(&file, &text);
        } else if !is_users {
            refuse_lost_trust(&file, "has changed since", "Read it, then run `once config allow FILE`; or")?;
        }
        if is_users || is_allowed {
            if let Some((passed_over, _)) = nearest {
                answer::talk(&format!(
                    "once: {} was found in this project and is not allowed yet, so {} is used instead. Read it, then \
                     run `once config allow`",
                    shown(&passed_over),
                    shown(&file)
                ));
            }
            return Ok(PolicyFile { file: Some(file), text, trusted: true, is_projects: !is_users });
        }
        nearest.get_or_insert((file, text));
    }
    Ok(match nearest {
        Some((file, text)) => PolicyFile { file: Some(file), text, trusted: false, is_projects: false },
        None => PolicyFile { file: None, text: String::new(), trusted: true, is_projects: false },
    })
}

/// Whether a file was written by someone who is neither the user nor root, such as `/tmp/onceward.toml`.
pub(crate) fn belongs_to_another(file: &Path) -> bool {
    let own = [0, nix::unistd::geteuid().as_raw()];
    // For a link, check the owner of the link and of the file.
    let owners = [std::fs::symlink_metadata(file), std::fs::metadata(file)];
    owners.into_iter().flatten().any(|meta| !own.contains(&meta.uid()))
}

/// Reads a policy. Only plain files are read, because anything else could be endless.
fn read_file(file: &Path) -> std::io::Result<String> {
    let not_plain = |problem: &str| std::io::Error::new(ErrorKind::InvalidData, problem.to_owned());
    let meta = std::fs::metadata(file)?;
    if meta.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() && !is_descriptor(file) {
        return Err(not_plain("it is not a file"));
    }
    let mut text = String::new();
    File::open(file)?.take(MAX_POLICY + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_POLICY { Err(not_plain("it is longer than 1 MiB")) } else { Ok(text) }
}

/// A shell passes `<(command)` as a descriptor of this process.
fn is_descriptor(file: &Path) -> bool {
    file.starts_with("/dev/fd") || file.starts_with("/proc/self/fd") || file == Path::new("/dev/stdin")
}

/// Remembers that calls depend on an allowed file, for files that were allowed before this was remembered.
fn note_dependence(file: &Path, text: &str) {
    let depends = Policy::parse(text).is_ok_and(|policy| !policy.without_trust().1.is_empty());
    if let Some(place) = Mark::of_place(file).filter(|place| depends && !place.is_set()) {
        // If it cannot be written, a change of the file is only reported.
        drop(place.set());
    }
}

/// Refuses to continue without the settings of a file that was allowed: in another ledger, or under another key, what
/// was done or is in doubt would not be found, and would run again.
fn refuse_lost_trust(file: &Path, why: &str, remedy: &str) -> Result<(), CommandError> {
    if !Mark::of_place(file).is_some_and(|place| place.is_set()) {
        return Ok(());
    }
    let shown = shown(file);
    let remedy = remedy.replace("FILE", &quoted(&shown));
    Err(CommandError::invalid(format!(
        "{shown} was allowed and {why}. Without its settings, calls could use another ledger or other keys, and run \
         again, so nothing was run. {remedy} run `once config deny {}` to continue without it",
        quoted(&shown)
    )))
}

fn is_allowed(file: &Path, text: &str) -> bool {
    Mark::of(file, text).is_some_and(|mark| mark.is_set())
}

/// Keeps only the settings that make things safer from a file that came with a repository, and lists the others.
fn only_what_is_safe(policy: Policy, file: &Path, global: &Global) -> Policy {
    // A ledger that the user names is used in any case. Without the key file, results are not encrypted.
    let is_missed = global.ledger.is_none() || policy.encryption_key_file().is_some();
    let (safe, mut left_out) = policy.without_trust();
    left_out.retain(|setting| is_missed || setting != "[ledger]");
    if !left_out.is_empty() {
        answer::talk(&format!(
            "once: {} was found in this project and is not allowed yet, so these settings are ignored: {}. Read it, \
             then run `once config allow`",
            shown(file),
            text::one_line(&left_out.join(", "))
        ));
    }
    safe
}
