//! What every command works with: the ledger, the policy, and the way to answer.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcetera::BaseStrategy;
use onceward::{Blocking, Error, InvalidInput, Ledger, Listed, OperationId, Policy, StoreError, Surface};
pub(crate) use onceward_store::Missing;
use onceward_store::{Backend, Place, SqliteOptions};

use crate::answer;
use crate::cli::{Global, OperationArg};
use crate::exit::CommandError;
use crate::trust::Mark;

/// `once` is short-lived, so the write-ahead log must stay short: the next `once` reads all of it.
const CHECKPOINT_PAGES: u32 = 200;
/// How many characters of an id name an operation without `op_` before them.
const SHORTEST_PREFIX: usize = 3;
/// How many operations one word is looked up to mean, and how many of them are listed.
const MOST_CANDIDATES: usize = 1_000;
const SHOWN_CANDIDATES: usize = 10;

/// From flags, environment and files.
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) policy: Policy,
    pub(crate) policy_file: Option<PathBuf>,
}

impl Context {
    pub(crate) fn new(global: Global) -> Result<Self, CommandError> {
        let PolicyFile { file: policy_file, text, trusted } = read_policy(global.config.as_deref())?;
        let policy = Policy::parse(&text).and_then(|policy| {
            policy.check()?;
            policy.check_probes()?;
            Ok(policy)
        });
        let policy = policy.map_err(|invalid| in_file(&invalid, policy_file.as_deref()))?;
        let policy = match &policy_file {
            Some(file) if !trusted => only_what_is_safe(policy, file),
            Some(_) | None => policy,
        };
        Ok(Self { global, policy, policy_file })
    }

    /// What says where the ledger is.
    pub(crate) fn ledger_origin(&self) -> &'static str {
        match (&self.global.ledger, self.policy.ledger_url()) {
            (Some(_), _) => "--ledger or ONCE_LEDGER",
            (None, Some(_)) => "[ledger]",
            (None, None) => "built in",
        }
    }

    /// Where the ledger is: the flag, the environment, the policy, the user's data folder.
    pub(crate) fn ledger_url(&self) -> Result<String, CommandError> {
        let here = std::env::current_dir().unwrap_or_default();
        if let Some(url) = &self.global.ledger {
            return Ok(absolute(url, &here));
        }
        if let Some(url) = self.policy.ledger_url() {
            let folder = self.policy_file.as_deref().and_then(Path::parent).unwrap_or(&here);
            return Ok(absolute(url, folder));
        }
        let folders = etcetera::choose_base_strategy().map_err(|_| {
            CommandError::invalid("there is no home folder to keep a ledger in; give --ledger sqlite:PATH")
        })?;
        Ok(format!("sqlite:{}", folders.data_dir().join("onceward").join("once.db").display()))
    }

    /// The same, to be printed: without a password.
    pub(crate) fn shown_ledger_url(&self) -> Result<String, CommandError> {
        let url = self.ledger_url()?;
        Ok(if has_password(&url) { "(a URL with a password, which is not printed)".to_owned() } else { url })
    }

    /// The ledger, or nothing where there is none yet.
    pub(crate) fn existing_ledger(&self) -> Result<Option<Blocking>, CommandError> {
        match self.place()?.open(Missing::Refuse) {
            Ok(store) => Ok(Some(Ledger::new(store).blocking())),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How the next command is spelled, so that it finds the same ledger from any folder.
    pub(crate) fn surface(&self) -> Surface {
        let is_default = self.global.ledger.is_none() && self.policy.ledger_url().is_none();
        let url = self.ledger_url().ok().filter(|_| !is_default).filter(|url| !has_password(url));
        let options = url.map(|url| vec!["--ledger".to_owned(), quoted(&url)]).unwrap_or_default();
        Surface::Shell { program: "once".to_owned(), options }
    }

    /// The ledger.
    pub(crate) fn ledger(&self, missing: Missing) -> Result<Blocking, CommandError> {
        Ok(Ledger::new(self.store(missing)?).blocking())
    }

    fn place(&self) -> Result<Place, CommandError> {
        let url = self.ledger_url()?;
        let mut place = Place::parse(&url)?;
        if let Place::Sqlite(options) = &mut place
            && !url.contains("checkpoint=")
        {
            options.checkpoint_pages = CHECKPOINT_PAGES;
        }
        Ok(place)
    }

    /// Checks that the ledger's URL can be understood. Nothing is opened.
    pub(crate) fn check_ledger_url(&self) -> Result<(), CommandError> {
        self.place().map(|_| ())
    }

    /// The file of a ledger that is one.
    pub(crate) fn ledger_file(&self) -> Result<Option<PathBuf>, CommandError> {
        Ok(match self.place()? {
            Place::Sqlite(options) => Some(options.path),
            Place::Postgres(_) | Place::Redis(_) | Place::Memory => None,
        })
    }

    /// The ledger's store, for those who look at more than single operations.
    pub(crate) fn store(&self, missing: Missing) -> Result<Arc<dyn Backend>, CommandError> {
        let place = self.place()?;
        if let Place::Sqlite(options) = &place
            && missing == Missing::Make
        {
            self.make_ready(options)?;
        }
        place.open(missing).map_err(|error| match error {
            StoreError::Missing { what } => CommandError::invalid(what),
            StoreError::Unavailable { .. } | StoreError::Unusable { .. } => error.into(),
        })
    }

    /// Sees that there is a folder for the file.
    fn make_ready(&self, options: &SqliteOptions) -> Result<(), CommandError> {
        match options.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) if self.global.ledger.is_none() => make_private(folder)?,
            Some(folder) if !folder.is_dir() => {
                return Err(unusable(format!(
                    "there is no folder {}; make it, or give another path",
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
            Surface::Shell { program, options } if !options.is_empty() => {
                format!("{program} {}", options.join(" "))
            }
            Surface::Shell { .. } | Surface::Python | Surface::McpAgent | Surface::McpPerson { .. } => {
                "once".to_owned()
            }
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
            let found = ledger.ledger().lookup(word, arg.scope.as_deref(), MOST_CANDIDATES);
            let mut found = ledger.wait_for(found)?;
            found.retain(|listed| arg.name.as_ref().is_none_or(|name| *name == listed.record.name));
            Ok(found)
        };
        let mut found = lookup(word)?;
        // A key is exact. Without `op_`, an id is only meant where no key is.
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

/// What was asked for and is not there.
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

/// Several operations fit: each is listed with what tells it from the others.
fn ambiguous(word: &str, found: &[Listed]) -> CommandError {
    let lines = found.iter().take(SHOWN_CANDIDATES).map(|Listed { record, .. }| {
        let (id, scope, name, key) = (&record.id, &record.scope, &record.name, &record.key.text);
        format!("\n  {id}  {}  scope {scope}, name {name}, key {key}", record.state)
    });
    let lines: String = lines.collect();
    let more = if found.len() > SHOWN_CANDIDATES { "\n  …" } else { "" };
    CommandError::invalid(format!(
        "{word:?} fits {} operations; give the whole id, or narrow it with --scope or --name:{lines}{more}",
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

/// Whether a URL holds a password, which must not be printed.
fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?']).next());
    authority.and_then(|authority| authority.rsplit_once('@')).is_some_and(|(user, _)| user.contains(':'))
        || url.contains("password=")
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| format!("{word:?}"), std::borrow::Cow::into_owned)
}

/// The problems of a policy, each with the file that has them.
fn in_file(invalid: &InvalidInput, file: Option<&Path>) -> InvalidInput {
    let Some(file) = file else { return invalid.clone() };
    let problems = invalid.problems().iter().map(|problem| format!("{}: {problem}", file.display()));
    InvalidInput::all(problems.collect()).unwrap_or_else(|| invalid.clone())
}

fn unusable(what: String) -> CommandError {
    StoreError::Unusable { what }.into()
}

pub(crate) fn make_private(folder: &Path) -> Result<(), CommandError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        let what = format!("cannot make the folder {}", folder.display());
        StoreError::because(what, error).into()
    })
}

/// A policy file that was read.
struct PolicyFile {
    file: Option<PathBuf>,
    text: String,
    /// The user named it, keeps it in the configuration folder, or has allowed it.
    trusted: bool,
}

/// The policy file that was named, or the first one that counts where policies are looked for.
///
/// A file that came with a repository takes no policy away that the user trusts: another ledger or weaker rules would
/// let something run again. It counts, as far as it is safe, where there is no such policy.
fn read_policy(named: Option<&Path>) -> Result<PolicyFile, CommandError> {
    let unreadable = |file: &Path, error| {
        CommandError::invalid(format!("cannot read the policy {}: {error}", file.display()))
    };
    if let Some(file) = named {
        let text = std::fs::read_to_string(file).map_err(|error| unreadable(file, error))?;
        return Ok(PolicyFile { file: Some(file.to_owned()), text, trusted: true });
    }
    let folders = etcetera::choose_base_strategy().ok();
    let user = folders.map(|folders| folders.config_dir().join("onceward/onceward.toml"));
    // Upward from the working folder, as cargo and git look for theirs: one project is one ledger in all its folders.
    let here = std::env::current_dir().unwrap_or_default();
    let project = here.ancestors().map(|folder| folder.join("onceward.toml"));
    let mut nearest: Option<(PathBuf, String)> = None;
    for file in project.chain(user.clone()) {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(&file, error)),
        };
        if user.as_ref() == Some(&file) || is_allowed(&file, &text) {
            if let Some((passed_over, _)) = nearest {
                answer::talk(&format!(
                    "once: {} was found in this project and is not allowed yet, so {} counts instead. Read it, then \
                     run `once config allow`",
                    passed_over.display(),
                    file.display()
                ));
            }
            return Ok(PolicyFile { file: Some(file), text, trusted: true });
        }
        nearest.get_or_insert((file, text));
    }
    Ok(match nearest {
        Some((file, text)) => PolicyFile { file: Some(file), text, trusted: false },
        None => PolicyFile { file: None, text: String::new(), trusted: true },
    })
}

fn is_allowed(file: &Path, text: &str) -> bool {
    Mark::of(file, text).is_some_and(|mark| mark.is_set())
}

/// A file that came with a repository may make things safer. The rest of it is said not to count.
fn only_what_is_safe(policy: Policy, file: &Path) -> Policy {
    let (safe, left_out) = policy.without_trust();
    if !left_out.is_empty() {
        answer::talk(&format!(
            "once: {} was found in this project and is not allowed yet, so this does not count: {}. Read it, then run \
             `once config allow`",
            file.display(),
            left_out.join(", ")
        ));
    }
    safe
}
