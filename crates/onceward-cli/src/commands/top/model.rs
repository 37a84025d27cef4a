//! What `once top` shows, and what a key does.

use std::sync::Arc;

use onceward::{Blocking, Filter, Record, State};
use ratatui::crossterm::event::{KeyCode, KeyModifiers};
use serde::Serialize;

use crate::cli::SettleAs;
use crate::exit::CommandError;

/// How many of the newest operations are looked at.
const MOST: usize = 500;
/// How many operations that are not settled are looked at.
const MOST_OPEN: usize = 200;
/// How many of the slowest are kept.
const SLOWEST: usize = 50;
/// The time over which the rate is counted.
pub(super) const RATE_MS: i64 = 60_000;
/// The longest evidence that can be typed.
const LONGEST_NOTE: usize = 500;

/// An operation and its state.
pub(super) type Found = (Arc<Record>, State);

/// The ledger at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) now_ms: i64,
    /// How many operations began in the last minute.
    pub(super) begun: u64,
    pub(super) running: Vec<Found>,
    pub(super) in_doubt: Vec<Found>,
    pub(super) slowest: Vec<Found>,
    pub(super) recent: Vec<Found>,
    /// Replays of the newest operations.
    pub(super) replays: u64,
    /// Whether there are more open operations than were read.
    pub(super) cut: bool,
}

/// The numbers of a snapshot, for programs.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    operations_per_second: f64,
    running: usize,
    in_doubt: usize,
    duplicates_prevented: u64,
    slowest_ms: Option<i64>,
    /// The counts stop at a limit, and there are more.
    cut: bool,
}

impl Snapshot {
    pub(super) fn of(ledger: &Blocking, scope: Option<&str>) -> Result<Self, CommandError> {
        let now_ms = ledger.ledger().clock_ms();
        let scope = scope.map(str::to_owned);
        let list = |states: Vec<State>, limit: usize| -> Result<Vec<Found>, CommandError> {
            let filter = Filter { scope: scope.clone(), states, limit, ..Filter::default() };
            let listed = ledger.wait_for(ledger.ledger().list(&filter))?;
            Ok(listed.into_iter().map(|(listed, state)| (Arc::new(listed.record), state)).collect())
        };
        let open = list(vec![State::Running, State::InDoubt], MOST_OPEN)?;
        let recent = list(Vec::new(), MOST)?;
        let since = Filter { scope: scope.clone(), since_ms: Some(now_ms - RATE_MS), ..Filter::default() };
        let begun = ledger.wait_for(ledger.ledger().admin().totals(&since))?.values().sum();
        Ok(Self::new(now_ms, begun, open, recent))
    }

    pub(super) fn new(now_ms: i64, begun: u64, open: Vec<Found>, recent: Vec<Found>) -> Self {
        let cut = open.len() == MOST_OPEN;
        let (mut in_doubt, mut running): (Vec<Found>, Vec<Found>) =
            open.into_iter().partition(|(_, state)| *state == State::InDoubt);
        // Those that have waited longest come first.
        in_doubt.sort_by_key(|(record, _)| record.created_ms);
        running.sort_by_key(|(record, _)| record.created_ms);
        let mut slowest: Vec<Found> = recent.clone();
        slowest.sort_by_key(|(record, state)| std::cmp::Reverse(took_ms(record, *state, now_ms)));
        slowest.truncate(SLOWEST);
        let replays = recent.iter().map(|(record, _)| record.replays).sum();
        Self { now_ms, begun, running, in_doubt, slowest, recent, replays, cut }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with one digit")]
    pub(super) fn rate(&self) -> f64 {
        self.begun as f64 * 1_000.0 / RATE_MS as f64
    }

    pub(super) fn summary(&self) -> Summary {
        Summary {
            operations_per_second: self.rate(),
            running: self.running.len(),
            in_doubt: self.in_doubt.len(),
            duplicates_prevented: self.replays,
            slowest_ms: self.slowest.first().map(|(record, state)| took_ms(record, *state, self.now_ms)),
            cut: self.cut,
        }
    }
}

/// How long an operation took, or has taken so far.
pub(super) fn took_ms(record: &Record, state: State, now_ms: i64) -> i64 {
    let end = if state == State::Running { now_ms } else { record.updated_ms };
    (end - record.created_ms).max(0)
}

/// A list on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    InDoubt,
    Running,
    Slowest,
    Recent,
}

impl Tab {
    pub(super) const ALL: [Self; 4] = [Self::InDoubt, Self::Running, Self::Slowest, Self::Recent];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::InDoubt => "in doubt",
            Self::Running => "running",
            Self::Slowest => "slowest",
            Self::Recent => "recent",
        }
    }

    fn after(self, steps: usize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0);
        Self::ALL[(at + steps) % Self::ALL.len()]
    }
}

/// What the keyboard is for.
#[derive(Debug, Clone)]
pub(super) enum Mode {
    /// Moving in the lists.
    Lists,
    /// All about the selected operation.
    Details,
    /// Choosing what was found about a doubt.
    Choose(Found),
    /// Typing the evidence.
    Evidence(Found, SettleAs, String),
    /// Asking whether the probe may run.
    ConfirmProbe(Found),
    /// The keys.
    Help,
}

/// What a key asks the program to do.
#[derive(Debug)]
pub(super) enum Action {
    None,
    Quit,
    Look,
    Settle { record: Arc<Record>, state: State, verdict: SettleAs, note: String },
    Probe { record: Arc<Record>, state: State },
}

/// Everything that is on the screen.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) ledger: String,
    pub(super) snapshot: Snapshot,
    pub(super) colour: bool,
    pub(super) tab: Tab,
    pub(super) selected: usize,
    pub(super) mode: Mode,
    pub(super) message: Option<Result<String, String>>,
    /// Replays that were counted when the program started.
    first_replays: u64,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a key without a meaning does nothing")]
impl Model {
    pub(super) fn new(ledger: String, snapshot: Snapshot, colour: bool) -> Self {
        let first_replays = snapshot.replays;
        let (tab, mode) = (Tab::InDoubt, Mode::Lists);
        Self { ledger, snapshot, colour, tab, selected: 0, mode, message: None, first_replays }
    }

    /// Takes a new look at the ledger. The same operation stays selected.
    pub(super) fn see(&mut self, snapshot: Snapshot) {
        let id = self.current().map(|(record, _)| record.id.clone());
        self.snapshot = snapshot;
        let at = id.and_then(|id| self.listed().iter().position(|(record, _)| record.id == id));
        self.selected = at.unwrap_or(self.selected).min(self.listed().len().saturating_sub(1));
    }

    /// Shows the result of an action.
    pub(super) fn told(&mut self, result: Result<String, CommandError>) {
        self.message = Some(result.map_err(|error| error.to_string()));
    }

    pub(super) fn listed(&self) -> &[Found] {
        match self.tab {
            Tab::InDoubt => &self.snapshot.in_doubt,
            Tab::Running => &self.snapshot.running,
            Tab::Slowest => &self.snapshot.slowest,
            Tab::Recent => &self.snapshot.recent,
        }
    }

    pub(super) fn current(&self) -> Option<&Found> {
        self.listed().get(self.selected)
    }

    /// Replays since the program started.
    pub(super) fn new_replays(&self) -> u64 {
        self.snapshot.replays.saturating_sub(self.first_replays)
    }

    /// What a key does.
    pub(super) fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Action {
        if code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return Action::Quit;
        }
        match std::mem::replace(&mut self.mode, Mode::Lists) {
            Mode::Lists => self.in_lists(code),
            Mode::Details | Mode::Help => Action::None,
            Mode::Choose(found) => self.choose(found, code),
            Mode::Evidence(found, verdict, text) => self.evidence(found, verdict, text, code),
            Mode::ConfirmProbe((record, state)) => match code {
                KeyCode::Char('y') => Action::Probe { record, state },
                _ => Action::None,
            },
        }
    }

    fn in_lists(&mut self, code: KeyCode) -> Action {
        let last = self.listed().len().saturating_sub(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('r') => return Action::Look,
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = last,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Tab::ALL.len() - 1),
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Enter if self.current().is_some() => self.mode = Mode::Details,
            KeyCode::Char('s') => self.with_doubt(Mode::Choose),
            KeyCode::Char('p') => self.with_doubt(Mode::ConfirmProbe),
            _ => {}
        }
        Action::None
    }

    fn turn(&mut self, steps: usize) {
        (self.tab, self.selected, self.message) = (self.tab.after(steps), 0, None);
    }

    fn with_doubt(&mut self, mode: impl FnOnce(Found) -> Mode) {
        match self.current().cloned() {
            Some((record, State::InDoubt)) => self.mode = mode((record, State::InDoubt)),
            Some((_, state)) => {
                self.message = Some(Err(format!("it is {state}; only an operation in doubt can be settled")));
            }
            None => self.message = Some(Err("nothing is selected".to_owned())),
        }
    }

    fn choose(&mut self, found: Found, code: KeyCode) -> Action {
        match code {
            KeyCode::Char('d') => self.mode = Mode::Evidence(found, SettleAs::Done, String::new()),
            KeyCode::Char('f') => self.mode = Mode::Evidence(found, SettleAs::Failed, String::new()),
            KeyCode::Esc | KeyCode::Char('q') => {}
            _ => self.mode = Mode::Choose(found),
        }
        Action::None
    }

    fn evidence(&mut self, found: Found, verdict: SettleAs, mut text: String, code: KeyCode) -> Action {
        match code {
            KeyCode::Esc => return Action::None,
            KeyCode::Enter if !text.trim().is_empty() => {
                let (record, state) = found;
                return Action::Settle { record, state, verdict, note: text.trim().to_owned() };
            }
            KeyCode::Enter => {
                self.message = Some(Err("say what the finding is based on".to_owned()));
            }
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(c) if text.len() < LONGEST_NOTE => text.push(c),
            _ => {}
        }
        self.mode = Mode::Evidence(found, verdict, text);
        Action::None
    }
}
