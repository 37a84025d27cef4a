//! Branches: a scope that continues another one. What lies before the branch point is replayed from the old scope.

use super::Ledger;
use crate::attempt::Done;
use crate::barrier::is_in_scope;
use crate::branch::{Branch, BranchPoint};
use crate::error::Error;
use crate::invalid::InvalidInput;
use crate::kind::Kind;
use crate::operation::{DEFAULT_SCOPE, Intent, Operation};
use crate::record::{Class, Record};
use crate::settlement::{Continued, Fate, SettlementLine};

/// The name and key of the record that says what a scope continues.
const BRANCH: &str = "branch";
/// How many branches a scope may be away from the first one.
const MOST_ANCESTORS: usize = 64;

impl Ledger {
    /// Returns the operation that a call in a branch refers to. An operation of the continued scope that lies before
    /// the branch point and had an effect, or may have one, is that operation: its result is replayed. Everything else
    /// begins in the intent's own scope. The first call of a branch records what its scope continues.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onceward::{Attempt, BranchPoint, Ledger, ManualClock, MemoryStore, Operation};
    ///
    /// let clock = Arc::new(ManualClock::at(0));
    /// let ledger = Ledger::new(Arc::new(MemoryStore::new(Arc::clone(&clock)))).blocking();
    /// let mail = |scope: &str, to: &str| Operation::new("send_mail").scope(scope).key(to);
    /// let send = |attempt: Attempt| Ok(attempt.dispatch()?.created(&"sent"));
    /// let first = ledger.run(mail("run-7", "a"), send)?;
    /// clock.advance(1);
    /// ledger.run(mail("run-7", "b"), send)?;
    ///
    /// // The run starts again after its first mail.
    /// let point = BranchPoint::new("run-7", first.record().id.clone());
    /// let again = |to: &str| ledger.in_branch(ledger.intent(mail("run-7b", to))?, &point);
    /// assert!(ledger.run_call(ledger.call(again("a")?), send)?.replayed());
    /// assert!(!ledger.run_call(ledger.call(again("b")?), send)?.replayed());
    /// // The second mail of the old run still stands.
    /// assert_eq!(ledger.settlement("run-7b")?.continues.unwrap().abandoned.len(), 1);
    /// # Ok::<(), onceward::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the scope continues something else, or the operation at the branch point is not part of
    /// the continued scope; [`Error::NotFound`] if there is no such operation; and the ledger's own errors.
    pub async fn in_branch(&self, intent: Intent, point: &BranchPoint) -> Result<Intent, Error> {
        let branch = match self.branch_of(&intent.scope).await? {
            Some(branch) => branch,
            None => self.record_branch(&intent.scope, point).await?,
        };
        self.resolve(intent, branch, point).await
    }

    /// The same for a preview: records nothing.
    ///
    /// # Errors
    /// As [`Ledger::in_branch`].
    pub async fn preview_in_branch(&self, intent: Intent, point: &BranchPoint) -> Result<Intent, Error> {
        let branch = match self.branch_of(&intent.scope).await? {
            Some(branch) => branch,
            None => self.located(&intent.scope, point).await?,
        };
        self.resolve(intent, branch, point).await
    }

    /// Where the branch began that this scope is, if it is one. A call that does not name the branch point can
    /// belong to the branch too.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn branch_point(&self, scope: &str) -> Result<Option<BranchPoint>, Error> {
        Ok(self.branch_of(scope).await?.map(|branch| branch.point))
    }

    async fn resolve(&self, intent: Intent, branch: Branch, point: &BranchPoint) -> Result<Intent, Error> {
        if branch.point != *point {
            let message = format!(
                "the scope {:?} already continues {}; use that, or another scope",
                intent.scope, branch.point
            );
            return Err(InvalidInput::new(message).into());
        }
        let intent = self.keyed(intent);
        if self.store().load(&intent.id).await?.is_some() {
            return Ok(intent);
        }
        let mut next = Some(branch);
        for _ in 0..MOST_ANCESTORS {
            let Some(branch) = next else { return Ok(intent) };
            let earlier = intent.clone().in_scope(&branch.point.scope);
            match self.find(&earlier.id).await {
                Ok((record, state)) if branch.inherits(&record, state) => {
                    return Ok(earlier);
                }
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            next = self.parent(&branch).await?;
        }
        Err(InvalidInput::new(format!("the scope has more than {MOST_ANCESTORS} branches before it")).into())
    }

    /// Records what a scope continues.
    async fn record_branch(&self, scope: &str, point: &BranchPoint) -> Result<Branch, Error> {
        let branch = self.located(scope, point).await?;
        let record = Operation::of_kind(Kind::Marker, BRANCH)
            .scope(scope)
            .key(BRANCH)
            .input(serde_json::json!({"continues": point.to_string()}))
            .class(Class::Idempotent);
        let noted = self.run(record, |_| std::future::ready(Ok(Done::noop("a branch", &branch)))).await;
        match noted {
            Ok(_) => Ok(branch),
            // Another call of this branch was faster, and continues something else.
            Err(Error::KeyReused { .. }) => Ok(self.branch_of(scope).await?.unwrap_or(branch)),
            Err(error) => Err(error),
        }
    }

    /// The branch at this point, if the operation there belongs to the continued scope or to what that continues.
    async fn located(&self, scope: &str, point: &BranchPoint) -> Result<Branch, Error> {
        if scope == DEFAULT_SCOPE {
            return Err(InvalidInput::new("a branch needs a scope of its own; give it a name").into());
        }
        if scope == point.scope {
            return Err(InvalidInput::new(format!("the scope {scope:?} cannot continue itself")).into());
        }
        self.refuse_circle(scope, point).await?;
        let (record, _) = self.find(&point.operation).await?;
        let branch = Branch { point: point.clone(), at_ms: record.created_ms, made_ms: self.now_ms() };
        let mut next = Some(branch.clone());
        for _ in 0..MOST_ANCESTORS {
            let Some(ancestor) = next else { break };
            if is_in_scope(&record.scope, &ancestor.point.scope) && ancestor.includes(&record) {
                return Ok(branch);
            }
            next = self.parent(&ancestor).await?;
        }
        let message = format!("the operation {} is not in the scope {:?}", point.operation, point.scope);
        Err(InvalidInput::new(message).into())
    }

    /// Refuses a branch of something that continues the same scope, before it is recorded.
    async fn refuse_circle(&self, scope: &str, point: &BranchPoint) -> Result<(), Error> {
        let mut ancestor = point.scope.clone();
        for _ in 1..MOST_ANCESTORS {
            let Some(branch) = self.branch_of(&ancestor).await? else { return Ok(()) };
            ancestor = branch.point.scope;
            if ancestor == scope {
                let message = format!(
                    "the scope {scope:?} cannot continue {:?}, which continues it; use another scope",
                    point.scope
                );
                return Err(InvalidInput::new(message).into());
            }
        }
        let message = format!("the scope would have more than {MOST_ANCESTORS} branches before it");
        Err(InvalidInput::new(message).into())
    }

    /// What the continued scope continues itself. Only what lies before both branch points counts.
    async fn parent(&self, branch: &Branch) -> Result<Option<Branch>, Error> {
        let parent = self.branch_of(&branch.point.scope).await?;
        let at_ms = |parent: &Branch| parent.at_ms.min(branch.at_ms);
        Ok(parent.map(|parent| Branch { at_ms: at_ms(&parent), made_ms: branch.made_ms, ..parent }))
    }

    /// What a scope continues, if it is a branch.
    async fn branch_of(&self, scope: &str) -> Result<Option<Branch>, Error> {
        let intent = self.intent(Operation::of_kind(Kind::Marker, BRANCH).scope(scope).key(BRANCH))?;
        let found = self.store().load(&intent.id).await?;
        let Some(record) = found else { return Ok(None) };
        let data = record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref());
        let branch: Option<Branch> = data.and_then(|data| serde_json::from_str(data.get()).ok());
        Ok(branch.map(|branch| Branch { made_ms: record.created_ms, ..branch }))
    }

    /// Whether a scope has an operation from a scope that it continues.
    pub(super) async fn has_inherited(&self, scope: &str, record: &Record) -> Result<bool, Error> {
        let mut next = self.branch_of(scope).await?;
        for _ in 0..MOST_ANCESTORS {
            let Some(branch) = next else { break };
            if is_in_scope(&record.scope, &branch.point.scope) && branch.includes(record) {
                return Ok(true);
            }
            next = self.parent(&branch).await?;
        }
        Ok(false)
    }

    /// What a scope continues, with what it inherits, and what still stands of the branch that it left.
    pub(super) async fn continued(&self, scope: &str) -> Result<Option<Continued>, Error> {
        let Some(branch) = self.branch_of(scope).await? else { return Ok(None) };
        let mut continued = Continued::new(&branch);
        let mut abandoned = Vec::new();
        // The line that was left: all of the continued scope, and what the branch points before it include.
        let mut line_ms = i64::MAX;
        let mut next = Some(branch);
        for _ in 0..MOST_ANCESTORS {
            let Some(branch) = next else { break };
            self.each_in_scope(&branch.point.scope, Vec::new(), |listed, state| {
                let record = &listed.record;
                let fate = Fate::of(record, state);
                let stands = matches!(fate, Fate::Standing | Fate::InDoubt | Fate::Held | Fate::Running);
                if record.detail.undoes.is_some() || !stands {
                    return;
                }
                // What is held has no effect to inherit: it begins in the new scope too, if both are released.
                if branch.inherits(record, state) {
                    continued.inherited += 1;
                } else if record.created_ms <= line_ms {
                    abandoned.push((record.created_ms, SettlementLine::of(record, state)));
                }
            })
            .await?;
            let own = self.branch_of(&branch.point.scope).await?;
            line_ms = own.map_or(line_ms, |own| line_ms.min(own.at_ms));
            next = self.parent(&branch).await?;
        }
        // Lists are newest first, so those of the same time are in order after both turns.
        abandoned.reverse();
        abandoned.sort_by_key(|(created_ms, _)| *created_ms);
        continued.abandoned = abandoned.into_iter().map(|(_, line)| line).collect();
        Ok(Some(continued))
    }
}
