//! A call: the operation, its probe and its check, and the loop over its tries.

use std::pin::Pin;
use std::sync::Arc;

use super::{Begun, Ledger, Receipt};
use crate::attempt::{Attempt, Done, EndingKind, Failure, ending};
use crate::error::{Code, Error};
use crate::evidence::Evidence;
use crate::facts::{Ending, Ran};
use crate::operation::Intent;
use crate::policy::OnFailure;
use crate::record::{Class, Outcome, Owner, Record, Verification};
use crate::store::{Dispatch, Inherit};
use crate::transition;

type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type Probe<'a> = dyn Fn(Arc<Record>) -> BoxedFuture<'a, ProbeAnswer> + Send + Sync + 'a;
type Check<'a> = dyn Fn(Outcome) -> BoxedFuture<'a, (Verification, String)> + Send + Sync + 'a;

/// The longest pause between two tries of one call.
const MAX_BACKOFF_MS: u64 = 60_000;

/// A probe's answer about an operation in doubt.
#[derive(Debug, Clone)]
pub enum ProbeAnswer {
    /// It happened, with this outcome.
    Yes(Outcome),
    /// It did not happen.
    No,
    /// The probe cannot tell, for this reason.
    CannotTell(String),
}

/// A call under construction. [`Call::run`] performs it.
pub struct Call<'a> {
    ledger: &'a Ledger,
    intent: Intent,
    probe: Option<Box<Probe<'a>>>,
    check: Option<Box<Check<'a>>>,
    inherit: Inherit,
}

impl<'a> Call<'a> {
    pub(super) fn new(ledger: &'a Ledger, intent: Intent) -> Self {
        Self { ledger, intent, probe: None, check: None, inherit: Inherit::No }
    }

    /// Adds a read-only probe that tells whether an operation in doubt happened. Changes the class `once` to
    /// `probed`.
    #[must_use]
    pub fn probe<W>(mut self, probe: impl Fn(Arc<Record>) -> W + Send + Sync + 'a) -> Self
    where
        W: Future<Output = ProbeAnswer> + Send + 'a,
    {
        self.probe = Some(Box::new(move |record| Box::pin(probe(record))));
        self.intent.terms.class = self.intent.terms.class.with_probe();
        self
    }

    /// Adds a read-only check of a reported success. It is repeated while it answers "pending", until its
    /// deadline.
    #[must_use]
    pub fn verify<W>(mut self, check: impl Fn(Outcome) -> W + Send + Sync + 'a) -> Self
    where
        W: Future<Output = (Verification, String)> + Send + 'a,
    {
        self.check = Some(Box::new(move |outcome| Box::pin(check(outcome))));
        self
    }

    /// Whether processes that the work starts keep the attempt alive after this process dies.
    #[must_use]
    pub fn inherit(mut self, inherit: Inherit) -> Self {
        self.inherit = inherit;
        self
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        self.intent.terms.lease_ms
    }

    /// Executes the operation once, or replays its stored result.
    ///
    /// # Errors
    /// Each says whether the effect happened: see [`Error::code`].
    pub async fn run<F, W>(self, mut act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> W,
        W: Future<Output = Result<Done, Failure>>,
    {
        let Self { ledger, mut intent, probe, check, inherit } = self;
        if intent.terms.class == Class::Read {
            return pass_through(ledger, &intent, act).await;
        }
        let mut retries_left = intent.terms.retries;
        let mut backoff_ms = intent.terms.backoff_ms;
        let mut last_try: Option<Error> = None;
        loop {
            let begun = ledger.begin_with(&intent, inherit, Dispatch::NotYet, probe.as_deref()).await;
            let claim = match (begun, last_try.take()) {
                (Ok(Begun::Replay(receipt)), _) => return Ok(receipt),
                (Ok(Begun::Execute(claim)), _) => claim,
                (Err(refused), None) => return Err(refused),
                (Err(refused), Some(tried)) => return Err(error_after_retry(tried, refused)),
            };
            let attempt = claim.attempt();
            let (ending, kind) = claim
                .keep_alive(async {
                    let (ending, kind) = ending(act(attempt.clone()).await);
                    (verify_success(ledger, &intent, check.as_deref(), ending).await, kind)
                })
                .await;
            match claim.finish_as(ending, kind).await {
                Err(error)
                    if retries_left > 0
                        && kind != EndingKind::Stopped
                        && !attempt.is_cancel_requested()
                        && may_try_again(&error, &intent) =>
                {
                    retries_left -= 1;
                    // A stored failure is replayed to the next call; this call has retries left and tries
                    // again.
                    intent.terms.on_failure = OnFailure::Retry;
                    ledger.store().clock().sleep(backoff_ms).await;
                    backoff_ms = (backoff_ms * 2).min(MAX_BACKOFF_MS);
                    last_try = Some(error);
                }
                answer => return answer,
            }
        }
    }
}

/// The error for a call whose last try ended with `tried` and whose next try was refused. It must not claim
/// that this call ran nothing.
fn error_after_retry(tried: Error, refused: Error) -> Error {
    if matches!(tried, Error::InDoubt { .. } | Error::Timeout { .. })
        || matches!(refused.code(), Code::LedgerUnavailable | Code::LedgerReplaced)
    {
        return tried;
    }
    if let Error::InProgress { record, .. } = refused {
        return Error::InProgress { record, ran: Ran::Yes };
    }
    if let Error::Stopped { barrier, record, .. } = refused {
        return Error::Stopped { barrier, record, ran: Ran::Yes };
    }
    if let Error::Cancelled { record, of, .. } = refused {
        return Error::Cancelled { record, ran: Ran::Yes, of };
    }
    if let Error::BudgetExhausted { record, limit, .. } = refused {
        return Error::BudgetExhausted { record, limit, ran: Ran::Yes };
    }
    refused
}

/// Whether this call may retry on its own: after a definite failure, or if its class makes repeating safe.
fn may_try_again(error: &Error, intent: &Intent) -> bool {
    match error {
        Error::Failed { .. } => error.retryable(),
        Error::InDoubt { .. } | Error::Timeout { .. } => {
            matches!(intent.terms.class, Class::Idempotent | Class::Keyed)
        }
        Error::Invalid(_)
        | Error::KeyMissing { .. }
        | Error::NotFound { .. }
        | Error::WrongState { .. }
        | Error::InProgress { .. }
        | Error::Held { .. }
        | Error::KeyExpired { .. }
        | Error::Cancelled { .. }
        | Error::Undone { .. }
        | Error::Stopped { .. }
        | Error::BudgetExhausted { .. }
        | Error::KeyReused { .. }
        | Error::Unverified { .. }
        | Error::Unavailable(_)
        | Error::ResultSealed { .. }
        | Error::ResultLost { .. }
        | Error::Unrecorded { .. } => false,
    }
}

/// A read changes nothing, so it is run every time and not recorded.
async fn pass_through<F, W>(ledger: &Ledger, intent: &Intent, mut act: F) -> Result<Receipt, Error>
where
    F: FnMut(Attempt) -> W,
    W: Future<Output = Result<Done, Failure>>,
{
    let now_ms = ledger.now_ms();
    let record = transition::start(None, intent, Owner { token: 0, lease_until_ms: now_ms }, now_ms);
    let attempt = Attempt::without_lock(Arc::new(record.clone()));
    let (ending, _) = ending(act(attempt).await);
    // A read never has an effect, even if it is unknown how it ended.
    let ending = match ending {
        Ending::InDoubt(outcome) => Ending::Failed(Evidence::declared("class read"), outcome),
        Ending::Done(_) | Ending::Failed(..) => ending,
    };
    let record = Arc::new(transition::finish(&record, record.attempt, ending.clone(), ledger.now_ms()));
    match ending {
        Ending::Done(_) => Ok(Receipt::new(record, Ran::Yes)),
        Ending::Failed(_, outcome) | Ending::InDoubt(outcome) => {
            let reason = outcome.reason.unwrap_or_else(|| "it failed".to_owned());
            Err(Error::Failed { record, reason, ran: Ran::Yes })
        }
    }
}

/// Checks a reported success: "accepted" is not "done".
async fn verify_success(
    ledger: &Ledger,
    intent: &Intent,
    check: Option<&Check<'_>>,
    ending: Ending,
) -> Ending {
    let (Ending::Done(outcome), Some(check)) = (&ending, check) else {
        return ending;
    };
    let mut outcome = outcome.clone();
    let deadline_ms = transition::later(ledger.now_ms(), intent.terms.verify_deadline_ms);
    loop {
        let (verification, reason) = check(outcome.clone()).await;
        match verification {
            Verification::Pending if ledger.now_ms() < deadline_ms => {
                ledger.store().clock().sleep(intent.terms.verify_interval_ms).await;
            }
            Verification::Confirmed | Verification::Pending => {
                outcome.verified = Some(verification);
                return Ending::Done(outcome);
            }
            Verification::Refuted => {
                outcome.verified = Some(verification);
                outcome.reason = Some(reason);
                return Ending::InDoubt(outcome);
            }
        }
    }
}
