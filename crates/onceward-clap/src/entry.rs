//! A registered command, whatever its type.

use std::marker::PhantomData;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::batch;
use crate::call::{self, Confirmed, class_of, supervise_read};
use crate::check::problem;
use crate::command::{Batch, Danger, DangerLevel, Mutating, Ordinary, Safe, World};
use crate::data::AnswerData;
use crate::envelope::Envelope;
use crate::facts::{Facts, Undoable};
use crate::flags::{ConfirmFlag, Limits, MutatingFlags, StreamFlag};
use crate::output::Delivery;
use crate::session::Session;

/// A registered command.
pub(crate) trait Entry<W: World>: Send + Sync {
    fn facts(&self) -> Facts;

    /// How its operations are taken back.
    fn undoable(&self, tool: &str) -> Option<Undoable<W>>;

    /// The author's own arguments.
    fn own(&self) -> Command;

    /// The same with the framework's.
    fn define(&self) -> Command;

    /// Runs it, prints its answer and returns the exit code.
    fn run(&self, session: &mut Session<W>, matches: &ArgMatches) -> u8;
}

/// A command that only reads.
pub(crate) struct SafeEntry<C>(PhantomData<fn() -> C>);

/// A command that changes or destroys something.
pub(crate) struct MutatingEntry<C, D>(PhantomData<fn() -> (C, D)>);

/// A command for many items.
pub(crate) struct BatchEntry<C>(PhantomData<fn() -> C>);

impl<C> SafeEntry<C> {
    pub(crate) const NEW: Self = Self(PhantomData);
}

impl<C, D> MutatingEntry<C, D> {
    pub(crate) const NEW: Self = Self(PhantomData);
}

impl<C> BatchEntry<C> {
    pub(crate) const NEW: Self = Self(PhantomData);
}

impl<C: Safe> Entry<C::World> for SafeEntry<C> {
    fn facts(&self) -> Facts {
        Facts {
            name: C::NAME,
            example: C::EXAMPLE,
            danger: DangerLevel::Safe,
            class: None,
            has_probe: false,
            undo: None,
            streams: false,
            timeout_ms: C::TIMEOUT_MS,
        }
    }

    fn undoable(&self, _: &str) -> Option<Undoable<C::World>> {
        None
    }

    fn own(&self) -> Command {
        C::augment_args(Command::new(C::NAME))
    }

    fn define(&self) -> Command {
        reaching_down(with::<Limits>(self.own()))
    }

    fn run(&self, session: &mut Session<C::World>, matches: &ArgMatches) -> u8 {
        let read = || -> Result<Envelope, clap::Error> {
            let (command, limits) = (C::from_arg_matches(matches)?, Limits::from_arg_matches(matches)?);
            let (command, options) = (Arc::new(command), session.options.clone());
            let timeout_ms = limits.timeout_ms.unwrap_or(C::TIMEOUT_MS);
            let answer = supervise_read(session, timeout_ms, move || {
                let world = C::World::open_read_only(&options)?;
                Ok(Envelope::read(&command.read(&world)?.as_json()))
            });
            let envelope = answer.unwrap_or_else(|failed| failed.of_read());
            Ok(Envelope { timeout_ms, ..envelope })
        };
        answer(session, read()).1
    }
}

impl<C: Mutating<D>, D: Danger> Entry<C::World> for MutatingEntry<C, D> {
    fn facts(&self) -> Facts {
        Facts {
            name: C::NAME,
            example: C::EXAMPLE,
            danger: D::LEVEL,
            class: Some(class_of::<C, D>()),
            has_probe: C::PROBE.is_some(),
            undo: C::UNDO.map(|undo| undo.its_class()),
            streams: false,
            timeout_ms: C::TIMEOUT_MS,
        }
    }

    fn undoable(&self, tool: &str) -> Option<Undoable<C::World>> {
        Undoable::new(tool, C::NAME, C::UNDO, C::TIMEOUT_MS)
    }

    fn own(&self) -> Command {
        C::augment_args(Command::new(C::NAME))
    }

    fn define(&self) -> Command {
        let command = with::<MutatingFlags>(self.own());
        reaching_down(match D::LEVEL {
            DangerLevel::Destructive => with::<ConfirmFlag>(command),
            DangerLevel::Safe | DangerLevel::Mutating => command,
        })
    }

    fn run(&self, session: &mut Session<C::World>, matches: &ArgMatches) -> u8 {
        let mut to_note = None;
        let mut change = || -> Result<Envelope, clap::Error> {
            let (command, flags) = (C::from_arg_matches(matches)?, MutatingFlags::from_arg_matches(matches)?);
            let confirmed = match D::LEVEL {
                DangerLevel::Destructive if ConfirmFlag::from_arg_matches(matches)?.confirm => Confirmed::Yes,
                DangerLevel::Destructive | DangerLevel::Safe | DangerLevel::Mutating => Confirmed::No,
            };
            let (envelope, observed) = call::mutate::<C, D>(session, command, &flags, confirmed);
            to_note = observed;
            Ok(envelope)
        };
        let (delivery, exit) = answer(session, change());
        if let (Some(observed), Delivery::Delivered) = (to_note, delivery) {
            observed.note();
        }
        exit
    }
}

impl<C: Batch> Entry<<C::Item as Mutating>::World> for BatchEntry<C> {
    fn facts(&self) -> Facts {
        Facts {
            name: C::NAME,
            example: C::EXAMPLE,
            danger: DangerLevel::Mutating,
            class: Some(class_of::<C::Item, Ordinary>()),
            has_probe: <C::Item as Mutating>::PROBE.is_some(),
            undo: <C::Item as Mutating>::UNDO.map(|undo| undo.its_class()),
            streams: true,
            timeout_ms: <C::Item as Mutating>::TIMEOUT_MS,
        }
    }

    fn undoable(&self, tool: &str) -> Option<Undoable<<C::Item as Mutating>::World>> {
        Undoable::new(tool, C::NAME, <C::Item as Mutating>::UNDO, <C::Item as Mutating>::TIMEOUT_MS)
    }

    fn own(&self) -> Command {
        C::augment_args(Command::new(C::NAME))
    }

    fn define(&self) -> Command {
        reaching_down(with::<StreamFlag>(with::<MutatingFlags>(self.own())))
    }

    fn run(&self, session: &mut Session<<C::Item as Mutating>::World>, matches: &ArgMatches) -> u8 {
        let parsed = || -> Result<_, clap::Error> {
            let command = C::from_arg_matches(matches)?;
            Ok((command, MutatingFlags::from_arg_matches(matches)?, StreamFlag::from_arg_matches(matches)?))
        };
        match parsed() {
            Ok((command, flags, stream)) => {
                if stream.no_stream {
                    session.output.hold_lines();
                }
                batch::run(session, command, &flags)
            }
            Err(error) => answer(session, Err(error)).1,
        }
    }
}

/// The framework's flags are accepted after nested subcommands too.
fn reaching_down(command: Command) -> Command {
    if !command.has_subcommands() {
        return command;
    }
    command.mut_args(|argument| {
        let ours = argument.get_id().as_str().starts_with("once_");
        if ours { argument.global(true) } else { argument }
    })
}

/// Adds flags of the framework, and keeps what the author says of the command.
pub(crate) fn with<A: Args>(command: Command) -> Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let command = A::augment_args(command).about(about.unwrap_or_default());
    match long_about {
        Some(long_about) => command.long_about(long_about),
        None => command.long_about(clap::builder::Resettable::Reset),
    }
}

/// Prints the answer. Gives whether the caller has it, and the exit code.
fn answer<W: World>(session: &Session<W>, answered: Result<Envelope, clap::Error>) -> (Delivery, u8) {
    let invalid = |error| Envelope::invalid(problem(&error, session.output.called_by));
    let envelope = answered.unwrap_or_else(invalid);
    (session.output.answer(&envelope), envelope.exit)
}
