//! `once top`: a live view of the ledger, with settle and probe from the keyboard.
//!
//! - `model`: what is shown, and what a key does. Pure, apart from reading the ledger.
//! - `view`: how it is drawn.

mod model;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use onceward::{Blocking, Ledger};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::settle;
use crate::answer;
use crate::cli::span;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::table::one_line;
use model::{Action, Model, Snapshot};

/// How long a key is waited for before the screen is drawn again.
const TICK: Duration = Duration::from_millis(100);
/// The shortest time between two reads of the ledger, in milliseconds.
const SHORTEST_MS: u64 = 200;

/// Watch the ledger in a terminal, and settle what is in doubt
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only operations in this scope
    #[arg(long, visible_alias = "session", value_name = "SCOPE")]
    scope: Option<String>,
    /// Time between two reads of the ledger
    #[arg(long, default_value = "1s", value_parser = span, value_name = "TIME")]
    interval: u64,
}

pub(super) fn run(context: &Context, args: &TopArgs) -> Ended {
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !context.global.json && !is_terminal {
        return Err(CommandError::invalid(
            "once top needs a terminal; use `once top --json`, `once stats` or `once watch SCOPE` without one",
        ));
    }
    let ledger = Ledger::new(context.store(IfMissing::Fail)?).blocking();
    let snapshot = Snapshot::of(&ledger, args.scope.as_deref())?;
    if context.global.json {
        answer::success(true, "noop", &snapshot.summary(), String::new);
        return Ok(ExitCode::SUCCESS);
    }
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let model = Model::new(context.shown_ledger_url()?, snapshot, colour);
    let signalled = watch_signals()?;
    // Restores the terminal when the program panics, too.
    let terminal = ratatui::try_init()
        .map_err(|error| CommandError::Outside(format!("cannot use the terminal: {error}")))?;
    let top = Top { context, ledger, args, model, terminal, signalled: Arc::clone(&signalled) };
    let ended = top.show();
    ratatui::restore();
    let signal = i32::try_from(signalled.load(Ordering::Relaxed)).unwrap_or(0);
    if signal != 0 {
        // End as the signal would have, now that the terminal is restored.
        drop(signal_hook::low_level::emulate_default_handler(signal));
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// The number of the signal that asked the program to end, or 0.
fn watch_signals() -> Result<Arc<AtomicUsize>, CommandError> {
    let signalled = Arc::new(AtomicUsize::new(0));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let value = usize::try_from(signal).unwrap_or(0);
        signal_hook::flag::register_usize(signal, Arc::clone(&signalled), value)
            .map_err(|error| CommandError::Outside(format!("cannot watch for signals: {error}")))?;
    }
    Ok(signalled)
}

struct Top<'a> {
    context: &'a Context,
    ledger: Blocking,
    args: &'a TopArgs,
    model: Model,
    terminal: DefaultTerminal,
    signalled: Arc<AtomicUsize>,
}

impl Top<'_> {
    fn show(mut self) -> Result<(), CommandError> {
        let interval = Duration::from_millis(self.args.interval.max(SHORTEST_MS));
        let mut looked = Instant::now();
        // A terminal that is gone is no terminal any more. Waiting for its keys would take all of a processor.
        while self.signalled.load(Ordering::Relaxed) == 0 && std::io::stdin().is_terminal() {
            if looked.elapsed() >= interval {
                self.look();
                looked = Instant::now();
            }
            let model = &self.model;
            self.terminal.draw(|frame| view::draw(frame, model)).map_err(terminal_error)?;
            if !event::poll(TICK).map_err(terminal_error)? {
                continue;
            }
            let Event::Key(key) = event::read().map_err(terminal_error)? else { continue };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match self.model.press(key.code, key.modifiers) {
                Action::None => {}
                Action::Quit => return Ok(()),
                Action::Look => self.look(),
                Action::Settle { record, state, verdict, note } => {
                    let settled =
                        settle::by_person(self.context, &self.ledger, &record, state, verdict, note);
                    self.model.told(settled.map(|record| format!("{} is {}", record.id, record.state)));
                    self.look();
                }
                Action::Probe { record, state } => {
                    let settled =
                        self.probe(|context, ledger| settle::by_probe(context, ledger, &record, state))?;
                    self.model.told(settled.map(|record| format!("{} is {}", record.id, record.state)));
                    self.look();
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) {
        match Snapshot::of(&self.ledger, self.args.scope.as_deref()) {
            Ok(snapshot) => self.model.see(snapshot),
            Err(error) => self.model.told(Err(error)),
        }
    }

    /// Leaves the screen while a probe runs, because it may print.
    fn probe<T>(&mut self, ask: impl FnOnce(&Context, &Blocking) -> T) -> Result<T, CommandError> {
        ratatui::restore();
        let asked = ask(self.context, &self.ledger);
        self.terminal = ratatui::try_init().map_err(terminal_error)?;
        self.terminal.clear().map_err(terminal_error)?;
        Ok(asked)
    }
}

fn terminal_error(error: std::io::Error) -> CommandError {
    CommandError::Outside(format!("the terminal failed: {}", one_line(&error.to_string())))
}
