//! What an author writes: a command that reads, one that changes something, one that does so for many things.

use clap::Args;
use onceward::Class;
use serde::Serialize;

use crate::data::AnswerData;
use crate::fault::Fault;
use crate::op::{Applied, Op};
use crate::plan::Plan;
use crate::probe::Probe;

/// How long a command may take unless it, or its caller, says otherwise.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;

/// What the commands of a tool look at and change: a database, an account at a vendor, a cluster.
///
/// Commands that change it get `&mut` only when they dispatch. Whatever changes the world should therefore take
/// `&mut self`: then the compiler keeps it out of plans, probes and safe commands.
pub trait World: Sized + Send + 'static {
    /// The options that say which world: `--database PATH`. They hold for every command. [`NoOptions`] if there are
    /// none.
    type Options: Args + Clone + Send + Sync + 'static;

    /// Which world this is, in words: a path, an account, a host. It is part of every operation's identity, so that the
    /// same command on another world is another operation.
    fn place(options: &Self::Options) -> String;

    /// Opens it to be changed.
    ///
    /// # Errors
    /// When it cannot be opened. Nothing has happened.
    fn open(options: &Self::Options) -> Result<Self, Fault>;

    /// Opens it for plans, probes and safe commands. Where the world can refuse to be changed, ask it to.
    ///
    /// # Errors
    /// When it cannot be opened. Nothing has happened.
    fn open_read_only(options: &Self::Options) -> Result<Self, Fault>;
}

/// The options of a world that has none.
#[derive(Debug, Clone, Args)]
pub struct NoOptions {}

/// A command that only reads. It is given no way to change the world and none to report an effect.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a safe command",
    label = "`Safe` is not implemented for `{Self}`",
    note = "a command that changes something implements `Mutating` and is registered with `.mutating::<{Self}>()`",
    note = "one that destroys implements `Mutating<Destructive>` and is registered with `.destructive::<{Self}>()`"
)]
pub trait Safe: Args + Serialize + Send + Sync + 'static {
    /// What is typed.
    const NAME: &'static str;
    /// Arguments with which it works, for the manifest.
    const EXAMPLE: &'static [&'static str];
    /// How long it may take.
    const TIMEOUT_MS: u64 = DEFAULT_TIMEOUT_MS;
    /// What it reads.
    type World: World;
    /// What it answers.
    type Data: AnswerData;

    /// Reads and answers.
    ///
    /// # Errors
    /// Whatever goes wrong, nothing has happened.
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
    /// What is typed, and the operation's name in the ledger, after the tool's.
    const NAME: &'static str;
    /// Arguments with which it works. A program that tests all commands of the tool runs it with them.
    const EXAMPLE: &'static [&'static str];
    /// What may be done when it is in doubt. With a probe, `Once` becomes `Probed`.
    const CLASS: Class = Class::Once;
    /// Tells whether an operation in doubt happened, where that can be told.
    const PROBE: Option<Probe<Self, Self::World, Self::Data>> = None;
    /// How long it may take.
    const TIMEOUT_MS: u64 = DEFAULT_TIMEOUT_MS;
    /// What it changes.
    type World: World;
    /// What it answers, and what every retry is answered.
    type Data: AnswerData;

    /// What would change. Changes nothing.
    ///
    /// # Errors
    /// When it cannot be said, or could not be done.
    fn plan(&self, world: &Self::World) -> Result<Plan, Fault>;

    /// Changes it. What comes before [`Op::dispatch`] has no effect, for certain; what comes after may have one.
    ///
    /// # Errors
    /// Before the dispatch every error is certain. After it an error is in doubt, unless it says that nothing happened.
    fn apply(&self, op: Op<'_, Self::World>) -> Result<Applied<Self::Data>, Fault>;
}

/// A command that does one thing for many items. Each item is an operation of its own: a second run does what the first
/// one did not get to, and nothing twice.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch command",
    label = "`Batch` is not implemented for `{Self}`",
    note = "`.batch::<C>()` takes what implements `Batch`: it lists items, each of which is a `Mutating` command"
)]
pub trait Batch: Args + Serialize + Send + Sync + 'static {
    /// What is typed.
    const NAME: &'static str;
    /// Arguments with which it works.
    const EXAMPLE: &'static [&'static str];
    /// What is done for each item.
    type Item: Mutating;

    /// The items. Two that are equal are two, and no item's place in the list matters.
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

mod sealed {
    use crate::manifest::DangerLevel;

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
