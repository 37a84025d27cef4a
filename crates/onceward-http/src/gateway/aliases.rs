//! Which operation a request refers to, and further keys of one operation.
//!
//! An SDK may send each of its retries, or each call of a retry decorator, with a new key. So a key does not name the
//! operation itself: an operation is found by its content, and every key that was seen is recorded as one more name of
//! it. Whether a request with a new key is a retry is decided by [`super::choose`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use onceward::repeat::Identified;
use onceward::transition::later;
use onceward::{
    Error, Fingerprint, Intent, KeyPolicy, MAX_NAME, OnExpired, Operation, OperationId, Ran, Record,
    RepeatRule, State, Swap,
};
use sha2::{Digest, Sha256};

use super::choose::{self, Decided};
use super::context::RequestContext;
use super::named_locks::NamedLock;
use crate::locks::lock;
use crate::tenant::{Place, Tenant};

/// The name of the records of callers' keys.
const KEY_NAME: &str = "key";

/// The operation that a request refers to.
pub(crate) struct Resolved {
    pub(crate) intent: Intent,
    /// The key that was not seen before, to be written.
    pub(crate) alias: Option<NewKey>,
    /// The record of a key that was seen before.
    pub(crate) known_key: Option<Arc<Record>>,
    /// The rule that decided.
    pub(crate) rule: RepeatRule,
}

/// A key that was not seen before.
pub(crate) struct NewKey {
    pub(crate) record: Intent,
    /// Other requests with this key find the operation here before the record is written.
    pub(crate) used: KeyInUse,
    /// Held until the operation has begun, if this request is to begin it.
    pub(crate) turn: Option<(NamedLock, NamedLock)>,
}

/// Why a request refers to no operation. Nothing was sent.
pub(crate) enum Unresolved {
    Error(Error),
    /// A different request with the same new key is being answered.
    KeyInUse,
}

impl From<Error> for Unresolved {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Resolved {
    fn plain(intent: Intent, rule: RepeatRule) -> Self {
        Self { intent, alias: None, known_key: None, rule }
    }
}

/// Finds the operation of a request with this key, if it has one.
///
/// # Errors
/// [`Error::Invalid`], [`Error::KeyMissing`], [`Error::InProgress`] if it stays unknown whether the client of an equal
/// request is there, or the ledger cannot be read.
pub(crate) async fn resolve(
    context: &RequestContext,
    operation: Operation,
    key: Option<String>,
    keys: KeyPolicy,
) -> Result<Resolved, Unresolved> {
    let ledger = &context.tenant.ledger;
    let Some(key) = key else {
        if operation.is_identified() || operation.key_policy() != KeyPolicy::Auto {
            let wanted = ledger.repeats().wanted(operation).await?;
            return Ok(Resolved::plain(wanted.intent, wanted.rule));
        }
        let action = ledger.intent(operation)?;
        let wanted = choose::without_key(context, action).await?;
        return Ok(Resolved::plain(wanted.intent, wanted.rule));
    };
    // An occurrence is part of the key, so the operation is exactly the one that the caller names.
    let is_exact = operation.is_identified() || keys != KeyPolicy::Auto;
    let named = match is_exact {
        true => Named::Exact(ledger.intent(operation.key(&key))?),
        false => Named::Action(ledger.intent(operation)?),
    };
    let given = match &named {
        Named::Exact(intent) => intent.clone(),
        Named::Action(action) => action.clone().under_key(&key)?,
    };
    // A key belongs to one request of its upstream, whatever its method and path are.
    let keys = key_scope(&context.upstream.name, &given.scope);
    let given = given.as_alias(&keys, KEY_NAME);
    let used =
        KeyInUse::enter(&context.gateway.keys_in_use, context.tenant.place(&given.id), &given.fingerprint);
    if let Some(known) = by_key(context, &given, &named).await? {
        return Ok(known);
    }
    if !used.is_same {
        return Err(Unresolved::KeyInUse);
    }
    match named {
        Named::Exact(intent) => {
            let alias = Some(NewKey { record: given, used, turn: None });
            Ok(Resolved { intent, alias, known_key: None, rule: RepeatRule::Given })
        }
        Named::Action(_) => new_key(context, named, given, used).await,
    }
}

/// What a request with a key asks for.
enum Named {
    /// Exactly this operation: its key counts as it is.
    Exact(Intent),
    /// An occurrence of this action.
    Action(Intent),
}

impl Named {
    fn intent(&self) -> &Intent {
        match self {
            Self::Exact(intent) | Self::Action(intent) => intent,
        }
    }
}

/// The operation of a key that was not seen before.
async fn new_key(
    context: &RequestContext,
    named: Named,
    given: Intent,
    used: KeyInUse,
) -> Result<Resolved, Unresolved> {
    let action = named.intent();
    let until_ms = later(context.tenant.ledger.clock_ms(), action.terms.wait_ms);
    let key_turn = context.gateway.named_locks.take(context.tenant.place(&given.id)).await;
    let call = Identified::ByNewKey { attempts: action.terms.max_attempts };
    let mut is_first_look = true;
    let decided = choose::decide(context, action, call, until_ms, || {
        let of = used.of().map(|of| Resolved::plain(known(action.clone(), of), RepeatRule::Given));
        let has_waited = !std::mem::replace(&mut is_first_look, false);
        let (given, named) = (&given, &named);
        async move {
            match of {
                // Another gateway may have recorded this key.
                None if has_waited => by_key(context, given, named).await,
                of => Ok(of),
            }
        }
    })
    .await?;
    match decided {
        Decided::Known(resolved) => Ok(resolved),
        Decided::Same(intent, state, _) => {
            used.set(&intent.id);
            let alias = Some(NewKey { record: given, used, turn: None });
            Ok(Resolved { intent, alias, known_key: None, rule: RepeatRule::Retry(state) })
        }
        Decided::New(intent, rule, turn) => {
            let alias = Some(NewKey { record: given, used, turn: Some((key_turn, turn)) });
            Ok(Resolved { intent, alias, known_key: None, rule })
        }
        Decided::Undecided(record) => Err(Error::InProgress { record, ran: Ran::No }.into()),
    }
}

/// The operation of a key that is recorded.
async fn by_key(context: &RequestContext, given: &Intent, named: &Named) -> Result<Option<Resolved>, Error> {
    let ledger = &context.tenant.ledger;
    let found = match ledger.find(&given.id).await {
        Ok((record, _)) => record,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(of) = found.alias_of() else {
        // The record of the key has expired.
        return Ok(Some(Resolved::plain(given.clone(), RepeatRule::Given)));
    };
    let (record, state) = match ledger.find(&of).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut intent = match named {
        Named::Exact(exact) if exact.id == of => exact.clone(),
        Named::Exact(intent) | Named::Action(intent) => known(intent.clone(), of),
    };
    if state == State::Failed {
        intent.terms.max_attempts = match named {
            Named::Exact(_) => intent.terms.max_attempts,
            Named::Action(action) => choose::budget_beside(context, action, &intent.id).await?,
        };
        intent.terms.max_attempts += choose::refilled(&record, ledger.clock_ms());
    }
    Ok(Some(Resolved { known_key: Some(found), ..Resolved::plain(intent, RepeatRule::Given) }))
}

/// The scope of the keys that callers in a scope give to an upstream. No caller can choose it: theirs have no `~`.
fn key_scope(upstream: &str, scope: &str) -> String {
    let keys = format!("{upstream}~{scope}");
    if keys.chars().count() <= MAX_NAME {
        return keys;
    }
    format!("{upstream}~{}", HEXLOWER.encode(&Sha256::digest(scope)))
}

/// The operation with this id, for an action of which it is an occurrence.
fn known(mut action: Intent, of: OperationId) -> Intent {
    action.id = of;
    // The key identifies one action for ever, even if the operation's own key is derived.
    action.terms.on_expired = OnExpired::Refuse;
    action
}

/// The new keys of the requests that are being answered.
pub(crate) type KeysInUse = Arc<Mutex<HashMap<Place, Use>>>;

/// What a new key refers to.
pub(crate) struct Use {
    print: Fingerprint,
    of: Option<OperationId>,
    requests: usize,
}

/// A new key while requests with it are being answered.
pub(crate) struct KeyInUse {
    all: KeysInUse,
    place: Place,
    /// Whether the first request with this key has the same content.
    is_same: bool,
}

impl KeyInUse {
    fn enter(all: &KeysInUse, place: Place, print: &Fingerprint) -> Self {
        let mut keys = lock(all);
        let first = || Use { print: print.clone(), of: None, requests: 0 };
        let entry = keys.entry(place.clone()).or_insert_with(first);
        entry.requests += 1;
        let is_same = entry.print == *print;
        drop(keys);
        Self { all: Arc::clone(all), place, is_same }
    }

    fn of(&self) -> Option<OperationId> {
        lock(&self.all).get(&self.place)?.of.clone()
    }

    /// Notes the operation, before the key is recorded.
    pub(crate) fn set(&self, of: &OperationId) {
        if let Some(entry) = lock(&self.all).get_mut(&self.place) {
            entry.of = Some(of.clone());
        }
    }
}

impl Drop for KeyInUse {
    fn drop(&mut self) {
        let mut keys = lock(&self.all);
        if let Some(entry) = keys.get_mut(&self.place) {
            entry.requests -= 1;
            if entry.requests == 0 {
                keys.remove(&self.place);
            }
        }
    }
}

/// Whether a name of an operation was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// Now.
    New,
    /// Before, for this operation or another one.
    Known,
}

/// Records that a key is one more name of an operation. The write may share the sync of a later one: until the answer
/// is delivered, the operation is found by its content.
///
/// # Errors
/// The ledger cannot be written.
pub(crate) async fn write(tenant: &Tenant, mut alias: Intent, of: &OperationId) -> Result<Written, Error> {
    // The key is known for as long as the operation's tombstone is.
    alias.terms.keep_results_for(alias.terms.retention_ms.saturating_add(alias.terms.tombstone_ms));
    let names = tenant.ledger.names().deferred();
    let mut given = names.give(&alias, of).await?;
    loop {
        let found = match given {
            Swap::Written(_) => return Ok(Written::New),
            Swap::Conflict(found) => found,
        };
        given = match found {
            None => names.give(&alias, of).await?,
            Some(found) => match found.alias_of() {
                // The operation of an older alias was forgotten.
                Some(known) if known != *of && is_forgotten(tenant, &known).await? => {
                    names.give_again(&found, &alias, of).await?
                }
                // Another request with this key was faster.
                Some(_) | None => return Ok(Written::Known),
            },
        };
    }
}

async fn is_forgotten(tenant: &Tenant, id: &OperationId) -> Result<bool, Error> {
    Ok(tenant.store.load(id).await?.is_none())
}
