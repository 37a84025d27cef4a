//! Who gets an event of an inbox, and what became of it there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::State;

/// How the delivery of an event to one handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The handler has it.
    Handled,
    /// A person decided that the handler does not get it.
    Refused,
    /// The handler does not have it, and nothing tries any more: its attempts are spent, or it was removed.
    Dead,
    /// It is unknown whether the handler has it, and its class forbids another attempt.
    InDoubt,
}

/// Who gets an event, and what became of it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deliveries {
    /// The handlers that wanted it when it arrived. `None`: the delivery has not ended.
    pub handlers: BTreeMap<String, Option<Fate>>,
    /// Which time of delivering it this is.
    pub round: Round,
}

/// Which time of delivering an event this is. It grows with each replay and each retry that a person asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Round {
    /// 1, and one more for each time that it was replayed on purpose.
    pub occurrence: u32,
    /// How many budgets of attempts its deliveries have: 1, and one more for each retry.
    pub budgets: u32,
}

/// How an event is delivered once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// To the handlers at which it is dead, with a new budget of attempts.
    Dead,
    /// Also to those at which it is in doubt: someone said that they do not have it.
    DeadAndInDoubt,
    /// To every handler, as a new occurrence.
    Everything,
}

impl Deliveries {
    /// To these handlers, for the first time.
    #[must_use]
    pub fn to(handlers: impl IntoIterator<Item = String>) -> Self {
        let handlers = handlers.into_iter().map(|handler| (handler, None)).collect();
        Self { handlers, round: Round { occurrence: 1, budgets: 1 } }
    }

    /// The state of an event with these fates.
    #[must_use]
    pub fn state(&self) -> State {
        let fates = self.handlers.values();
        let is_waiting = |fate: &Option<Fate>| matches!(fate, Some(Fate::Dead | Fate::InDoubt));
        if fates.clone().any(Option::is_none) {
            State::Staged
        } else if fates.clone().any(is_waiting) {
            State::InDoubt
        } else {
            State::Done
        }
    }

    /// Whether some delivery has this fate.
    #[must_use]
    pub fn has(&self, fate: Fate) -> bool {
        self.handlers.values().any(|known| *known == Some(fate))
    }

    /// Opens what is delivered once more.
    pub(crate) fn again(&mut self, again: Again) {
        for fate in self.handlers.values_mut() {
            let is_due = match again {
                Again::Dead => *fate == Some(Fate::Dead),
                Again::DeadAndInDoubt => matches!(fate, Some(Fate::Dead | Fate::InDoubt)),
                Again::Everything => true,
            };
            if is_due {
                *fate = None;
            }
        }
        match again {
            Again::Dead | Again::DeadAndInDoubt => self.round.budgets += 1,
            Again::Everything => self.round = Round { occurrence: self.round.occurrence + 1, budgets: 1 },
        }
    }
}
