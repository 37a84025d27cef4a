//! What an author writes: commands that read, that change something, or that do so for many items.

use std::path::{Path, PathBuf};

use clap::Args;
use onceward::Class;
use serde::Serialize;

use crate::data::AnswerData;
use crate::fault::Fault;
use crate::op::{Applied, Op};
use crate::plan::Plan;
use crate::probe::Probe;
use crate::undo::Undo;

/// The default time limit of a command.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;

/// How many symbolic links are followed, as by the kernel.
const MAX_LINKS: usize = 40;

/// The one name of a file, for [`World::identity`]: absolute, with symbolic links and `..` resolved. The file need not
/// exist yet. Another name for the same file would let the same action run again.
///
/// ```
/// use onceward_clap::file_identity;
///
/// assert_eq!(file_identity("./src/../notes.txt"), file_identity("notes.txt"));
/// assert!(file_identity("notes.txt").starts_with('/'));
/// ```
#[must_use]
pub fn file_identity(path: impl AsRef<Path>) -> String {
    let path = resolved(path.as_ref());
    // Bytes that are not UTF-8 are escaped, so that two files never share a name.
    path.to_str().map_or_else(|| format!("{path:?}"), str::to_owned)
}

fn resolved(path: &Path) -> PathBuf {
    let mut place = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..MAX_LINKS {
        if let Ok(real) = place.canonicalize() {
            return real;
        }
        let (Some(folder), Some(name)) = (place.parent(), place.file_name()) else { break };
        let Ok(folder) = folder.canonicalize() else { break };
        let file = folder.join(name);
        match file.read_link() {
            // It leads to a file that does not exist yet.
            Ok(target) => place = folder.join(target),
            Err(_) => return file,
        }
    }
    place
}

/// What the commands of a tool read and change: a database, an account at a vendor, a cluster.
///
/// Commands get `&mut` only when they dispatch. Methods that change the world should therefore take `&mut self`: then
/// the compiler keeps them out of plans, probes and safe commands.
pub trait World: Sized + Send + 'static {
    /// The options that select the world: `--database PATH`. Every command has them. [`NoOptions`] if there are none.
    type Options: Args + Clone + Send + Sync + 'static;

    /// Names the world: a file ([`file_identity`]), an account, a host. It is part of every operation's identity: the
    /// same command on another world is another operation. One world must have one name.
    fn identity(options: &Self::Options) -> String;

    /// Opens it for changes.
    ///
    /// # Errors
    /// When it cannot be opened. Nothing has happened.
    fn open(options: &Self::Options) -> Result<Self, Fault>;

    /// Opens it for plans, probes and safe commands. If the world can refuse changes, ask it to.
    ///
    /// # Errors
    /// When it cannot be opened. Nothing has happened.
    fn open_read_only(options: &Self::Options) -> Result<Self, Fault>;
}

/// The options of a world that has none.
#[derive(Debug, Clone, Args)]
pub struct NoOptions {}

/// A command that only reads. It can neither change the world nor report an effect.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a safe command",
    label = "`Safe` is not implemented for `{Self}`",
    note = "a command that changes something implements `Mutating` and is registered with `.mutating::<{Self}>()`",
    note = "one that destroys implements `Mutating<Destructive>` and is registered with `.destructive::<{Self}>()`"
)]
pub trait Safe: Args + Serialize + Send + Sync + 'static {
    /// The name that is typed.
    const NAME: &'static str;
    /// Arguments with which it works, for the manifest.
    const EXAMPLE: &'static [&'static str];
    /// Its time limit, in milliseconds.
    const TIMEOUT_MS: u64 = DEFAULT_TIMEOUT_MS;
    /// What it reads.
    type World: World;
    /// What it answers.
    type Data: AnswerData;

    /// Reads and answers.
    ///
    /// # Errors
    /// A read has no effect, whatever goes wrong.
    fn read(&self, world: &Self::World) -> Result<Self::Data, Fault>;
}

/// A command that changes something.
///
/// It says what would change ([`Mutating::plan`], which is the dry run) and changes it ([`Mutating::apply`]).
/// Everything else, from the key to the replay, is the framework's. `Mutating<Destructive>` is one that destroys: it
/// needs `--confirm`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered here: it is not a `Mutating<{D}>` command",
    label = "`Mutating<{D}>` is not implemented for `{Self}`",
    note = "`.mutating::<C>()` takes what implements `Mutating`, with a `plan` and an `apply`",
    note = "`.destructive::<C>()` takes what implements `Mutating<Destructive>`, and asks its callers for `--confirm`",
    note = "`.safe::<C>()` takes what implements `Safe`: it only reads"
)]
pub trait Mutating<D: Danger = Ordinary>: Args + Serialize + Send + Sync + 'static {
    /// The name that is typed. With the tool's name, it is the operation's name in the ledger.
    const NAME: &'static str;
    /// Arguments with which it works. A program that tests all commands of the tool runs it with them.
    const EXAMPLE: &'static [&'static str];
    /// What may be done when it is in doubt. With a probe, `Once` becomes `Probed`.
    const CLASS: Class = Class::Once;
    /// Asks whether an operation in doubt happened, if the world can tell: a function
    /// `fn(&Self, &World, &Doubt) -> Result<Probed<Data>, Fault>`.
    const PROBE: Option<Probe<Self, Self::World, Self::Data>> = None;
    /// Takes its effect back, from the stored answer: `TOOL undo OPERATION`. Without it, an operation of this command
    /// cannot be taken back, and an undo says so.
    const UNDO: Option<Undo<Self::World>> = None;
    /// Its time limit, in milliseconds.
    const TIMEOUT_MS: u64 = DEFAULT_TIMEOUT_MS;
    /// What it changes.
    type World: World;
    /// What it answers; a retry gets the same.
    type Data: AnswerData;

    /// What would change. It must not change anything: it runs in dry runs, and when a stored answer is returned.
    ///
    /// # Errors
    /// When it cannot be planned, or the command would fail.
    fn plan(&self, world: &Self::World) -> Result<Plan, Fault>;

    /// Changes it. Nothing before [`Op::dispatch`] has an effect; everything after it may.
    ///
    /// # Errors
    /// Before the dispatch, an error means that nothing happened. After it the operation is in doubt, unless the error
    /// says that nothing happened.
    fn apply(&self, op: Op<'_, Self::World>) -> Result<Applied<Self::Data>, Fault>;
}

/// A command that does one thing for many items. Each item is an operation of its own: a second run does what is left,
/// and nothing twice.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch command",
    label = "`Batch` is not implemented for `{Self}`",
    note = "`.batch::<C>()` takes what implements `Batch`: it lists items, each of which is a `Mutating` command"
)]
pub trait Batch: Args + Serialize + Send + Sync + 'static {
    /// The name that is typed.
    const NAME: &'static str;
    /// Arguments with which it works.
    const EXAMPLE: &'static [&'static str];
    /// What is done for each item.
    type Item: Mutating;

    /// The items. Two equal items are two operations; the order does not matter.
    ///
    /// # Errors
    /// When they cannot be listed. Nothing has happened.
    fn items(&self, world: &<Self::Item as Mutating>::World) -> Result<Vec<Self::Item>, Fault>;
}

/// How dangerous a command is: [`Ordinary`] or [`Destructive`].
pub trait Danger: sealed::Danger {}

/// It changes something.
#[derive(Debug)]
pub enum Ordinary {}

/// It destroys something, and needs `--confirm`.
#[derive(Debug)]
pub enum Destructive {}

impl Danger for Ordinary {}
impl Danger for Destructive {}

/// How dangerous a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DangerLevel {
    /// It reads.
    Safe,
    /// It changes something.
    Mutating,
    /// It destroys something, and needs `--confirm`.
    Destructive,
}

mod sealed {
    use super::DangerLevel;

    pub trait Danger: 'static {
        const LEVEL: DangerLevel;
    }

    impl Danger for super::Ordinary {
        const LEVEL: DangerLevel = DangerLevel::Mutating;
    }

    impl Danger for super::Destructive {
        const LEVEL: DangerLevel = DangerLevel::Destructive;
    }
}
