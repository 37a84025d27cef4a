//! Retry or repeat: which operation an equal call refers to. Pure, and one table for all surfaces.
//!
//! A surface supplies two facts about each earlier occurrence of the action: whether its caller is still there
//! ([`EarlierCaller`]), and whether its result reached that caller ([`Delivery`]).
//!
//! | found | known by its content | a new key, or a sample | its caller's own key |
//! |---|---|---|---|
//! | held, running, in doubt | the same | the same if its caller left | a new one |
//! | the same, and its caller waits | a new one, if both are meant | a new one | a new one |
//! | done or failed, delivered | a new one | a new one | a new one |
//! | done, delivery unknown | the same, within the window | the same, within the window | a new one |
//! | done or failed, not delivered | the same | the same if its caller left | a new one |
//! | settled as done on someone's word, not delivered | the same | the same | the same, unless it has one too |
//! | failed, in the window after its delivery | the same | a new one on its budget; a sample: the same | a new one |
//! | cancelled or refused, until delivery and window are over | the same | the same | the same |
//! | after that, and expired | a new one | a new one | a new one |
//!
//! Where it is unknown whether the caller of a running operation is there, a new key stays undecided until that is
//! known.

use crate::key::KeyOrigin;
use crate::record::{Record, State};

/// Whether the caller of an earlier occurrence is there to receive its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EarlierCaller {
    /// It waits for its answer, and the surface knows that this call is meant in addition to it.
    Beside,
    /// It waits no longer.
    Left,
    /// It may wait: the surface does not see it, or cannot tell this call from its retry.
    Unknown,
}

/// Whether the result of an earlier occurrence reached its caller. An error of ours is never a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It did.
    Delivered,
    /// It did not, or there is no result yet.
    NotDelivered,
    /// It was sent, and the window in which it may turn out not to have arrived is not over.
    Unknown,
}

/// What someone said about an occurrence, if that binds equal calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Said {
    /// Nothing: its own answer counts.
    Nothing,
    /// That it was done.
    Done,
    /// That it is not wanted, while it ran.
    Cancelled,
}

/// An earlier occurrence of the action, as a surface sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Earlier {
    /// Its number, if the ledger counts it: not with a label or a key of its caller.
    pub number: Option<u64>,
    /// Whether its caller gave it a key.
    pub has_own_key: bool,
    /// Its effective state.
    pub state: State,
    /// What someone said about it.
    pub said: Said,
    /// When it was first requested.
    pub since_ms: i64,
    /// How many attempts it has made.
    pub attempts: u32,
    /// Whether its caller is there.
    pub caller: EarlierCaller,
    /// Whether its result reached the caller.
    pub delivery: Delivery,
}

/// How a call is distinguished from the calls before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identified {
    /// By nothing but its content.
    ByContent,
    /// By a key that was not seen before, which may be one of an SDK: each of its requests can have another.
    ByNewKey {
        /// How many attempts the action may have.
        attempts: u32,
    },
    /// As a further sample of a model, which has no effect but its answer.
    AsSample {
        /// The SDK says that it repeats a request that it made after this time.
        repeats_since_ms: Option<i64>,
    },
    /// The caller says that it repeats its last call.
    AsRetry,
    /// By a key, a label or a scope that its caller chose. It decides, except against someone's word.
    ByOwnKey,
}

/// Which operation a call refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The earlier occurrence at this place.
    Same(usize),
    /// A new one.
    New {
        /// How many attempts of equal calls that failed a moment ago count against its budget.
        spent: u32,
        /// Whether callers of other occurrences wait for their answers.
        beside: Beside,
    },
    /// The failed occurrence at this place: equal calls have spent the budget of attempts.
    Spent(usize),
    /// It is unknown whether the caller of the occurrence at this place is there.
    Undecided(usize),
}

/// Whether a new operation runs beside others whose callers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Beside {
    /// It runs alone, as far as this surface sees.
    Nothing,
    /// Others are waited for.
    Waiting,
}

/// What an earlier occurrence means for an equal call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Its answer was delivered, or it will have none.
    Over,
    /// It failed without effect, and its caller has known that for less than the window.
    ToldFailure,
    /// Its caller does not have the answer, and does not wait for it.
    Unanswered,
    /// Its caller waits for the answer, and this call is meant in addition.
    Waited,
    /// Its caller may wait for the answer.
    Unknown,
}

impl Earlier {
    /// A record in this effective state, as it is known without its caller.
    #[must_use]
    pub fn of(record: &Record, state: State, now_ms: i64) -> Self {
        let is_settled = state == State::Done && record.is_settled_by_word();
        let said = match (is_settled, &record.detail.cancelled_by) {
            (true, _) => Said::Done,
            (false, Some(_)) => Said::Cancelled,
            (false, None) => Said::Nothing,
        };
        Self {
            number: record.number,
            has_own_key: record.key.origin == KeyOrigin::Given,
            state,
            said,
            since_ms: record.created_ms,
            attempts: record.spent_attempts(),
            caller: EarlierCaller::Unknown,
            delivery: Delivery::at(record.delivered_ms(), now_ms),
        }
    }

    /// One that was chosen and is not in the ledger yet.
    #[must_use]
    pub fn starting(number: Option<u64>, since_ms: i64) -> Self {
        Self {
            number,
            has_own_key: false,
            state: State::Running,
            said: Said::Nothing,
            since_ms,
            attempts: 0,
            caller: EarlierCaller::Unknown,
            delivery: Delivery::NotDelivered,
        }
    }

    /// Whether an equal call cannot refer to it any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.standing() == Standing::Over
    }

    /// Whether it is unknown if its caller waits for it, so that a call with a new key cannot be decided yet.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.standing() == Standing::Unknown
    }

    fn standing(&self) -> Standing {
        match (self.state, self.delivery, self.caller) {
            (State::Expired, _, _)
            | (State::Done | State::Failed | State::Cancelled, Delivery::Delivered, _) => Standing::Over,
            (State::Failed, Delivery::Unknown, _) => Standing::ToldFailure,
            // Its caller may have left just when the answer was sent. A refusal is the answer to every caller.
            (State::Done, Delivery::Unknown, _) | (State::Cancelled, _, _) => Standing::Unanswered,
            (
                State::Staged | State::Running | State::InDoubt | State::Done | State::Failed,
                _,
                EarlierCaller::Beside,
            ) => Standing::Waited,
            (State::Staged | State::InDoubt, _, _)
            | (State::Running | State::Done | State::Failed, _, EarlierCaller::Left) => Standing::Unanswered,
            (State::Running | State::Done | State::Failed, _, EarlierCaller::Unknown) => Standing::Unknown,
        }
    }

    /// Whether someone's word about it binds a call with a key of its own: a refusal binds every equal call, also while
    /// it is not known whether what was cancelled has happened. That it was done does not answer for an action to which
    /// another key was given.
    fn binds_own_keys(&self) -> bool {
        match self.state {
            State::Cancelled => self.delivery != Delivery::Delivered,
            State::Done => {
                self.said == Said::Done && self.delivery == Delivery::NotDelivered && !self.has_own_key
            }
            State::Running | State::InDoubt => self.said == Said::Cancelled,
            State::Staged | State::Failed | State::Expired => false,
        }
    }
}

impl Delivery {
    /// What is known now about an answer that counts as delivered from this time on.
    #[must_use]
    pub fn at(counts_from_ms: Option<i64>, now_ms: i64) -> Self {
        match counts_from_ms {
            None => Self::NotDelivered,
            Some(from_ms) if from_ms <= now_ms => Self::Delivered,
            Some(_) => Self::Unknown,
        }
    }
}

/// Chooses the operation of a call among the earlier occurrences of its action, the oldest first.
#[must_use]
pub fn choose(earlier: &[Earlier], call: Identified) -> Choice {
    let all = All(earlier);
    let same = match call {
        Identified::ByContent => all
            .retried(&[Standing::Unanswered, Standing::ToldFailure])
            .or_else(|| all.newest(|one| one.standing() == Standing::Unknown)),
        Identified::ByNewKey { .. } => all.retried(&[Standing::Unanswered]),
        Identified::AsSample { repeats_since_ms } => all.sample(repeats_since_ms),
        Identified::AsRetry => all.newest(|one| one.state != State::Expired),
        Identified::ByOwnKey => earlier.iter().position(Earlier::binds_own_keys),
    };
    if let Some(place) = same {
        return Choice::Same(place);
    }
    match call {
        Identified::ByOwnKey => Choice::New { spent: 0, beside: Beside::Nothing },
        Identified::ByContent | Identified::AsRetry => Choice::New { spent: 0, beside: all.beside() },
        Identified::ByNewKey { .. } | Identified::AsSample { .. } => {
            if let Some(place) = all.retried(&[Standing::Unknown]) {
                return Choice::Undecided(place);
            }
            let spent = spent(earlier);
            match (call, all.newest(|one| one.standing() == Standing::ToldFailure)) {
                (Identified::ByNewKey { attempts }, Some(last)) if spent >= attempts => Choice::Spent(last),
                _ => Choice::New { spent, beside: all.beside() },
            }
        }
    }
}

/// How many attempts of equal calls that failed a moment ago count against the budget of the next one.
#[must_use]
pub fn spent<'a>(earlier: impl IntoIterator<Item = &'a Earlier>) -> u32 {
    let failed = earlier.into_iter().filter(|one| one.standing() == Standing::ToldFailure);
    failed.map(|one| one.attempts).sum()
}

/// All earlier occurrences, oldest first.
struct All<'a>(&'a [Earlier]);

impl All<'_> {
    /// The one that a call repeats: one in doubt first, because its effect must not be repeated, then the oldest.
    fn retried(&self, standings: &[Standing]) -> Option<usize> {
        let fitting = |one: &Earlier| standings.contains(&one.standing());
        let in_doubt = self.0.iter().position(|one| fitting(one) && one.state == State::InDoubt);
        in_doubt.or_else(|| self.0.iter().position(fitting))
    }

    fn newest(&self, fits: impl Fn(&Earlier) -> bool) -> Option<usize> {
        self.0.iter().rposition(fits)
    }

    /// The one that a sample repeats: the newest, because it has no effect to be repeated. An answer that was
    /// delivered, or that a caller waits for, belongs to that caller, whatever an SDK reports: its own first try may
    /// be lost.
    fn sample(&self, repeats_since_ms: Option<i64>) -> Option<usize> {
        let with = |standing| move |one: &Earlier| one.standing() == standing;
        self.newest(with(Standing::Unanswered)).or_else(|| self.newest(with(Standing::ToldFailure))).or_else(
            || {
                let since_ms = repeats_since_ms?;
                let is_running =
                    |one: &Earlier| (one.standing(), one.state) == (Standing::Unknown, State::Running);
                self.newest(|one| is_running(one) && one.since_ms >= since_ms)
            },
        )
    }

    fn beside(&self) -> Beside {
        match self.0.iter().any(|one| one.standing() == Standing::Waited) {
            true => Beside::Waiting,
            false => Beside::Nothing,
        }
    }
}
