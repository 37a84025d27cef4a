//! The intent: an operation whose identity is computed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Naming, ScopeOrigin};
use crate::error::Error;
use crate::facts::RefusalOf;
use crate::invalid::InvalidInput;
use crate::json::Json;
use crate::key::{self, Fingerprint, Key, KeyOrigin, Occurrence, OperationId};
use crate::kind::Kind;
use crate::policy::{Hold, Terms};
use crate::record::{Compensation, Held, Record};
use crate::secret::Secret;

/// An operation with its identity computed: the input of [`crate::decide`].
///
/// ```
/// use onceward::Operation;
///
/// let ship = || Operation::new("ship").scope("tenant-1").input(serde_json::json!({"order": 7}));
/// let (first, again) = (ship().intent()?, ship().occurrence("2").intent()?);
/// assert_eq!(first.id, ship().intent()?.id, "a retry is the same operation");
/// assert_ne!(first.id, again.id, "another occurrence is another operation");
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Intent {
    /// Derived from scope, name and key.
    pub id: OperationId,
    /// What the record is.
    pub kind: Kind,
    /// The number of the occurrence, if the ledger counts them: not with a given key or a label.
    pub number: Option<u64>,
    /// The namespace of the key: calls in the same scope share keys.
    pub scope: String,
    /// Who chose the scope.
    pub scope_origin: ScopeOrigin,
    /// The operation's name.
    pub name: String,
    /// The key that identifies this operation among those with the same scope and name.
    pub key: Key,
    /// The hash of all inputs that are not volatile.
    pub fingerprint: Fingerprint,
    /// Its times, limits and rules.
    pub terms: Terms,
    pub(crate) probe: Option<String>,
    pub(crate) probe_no: Vec<i32>,
    pub(crate) verify: Option<String>,
    pub(crate) undo: Option<Compensation>,
    pub(crate) undoes: Option<OperationId>,
    pub(crate) folder: Option<String>,
    pub(crate) command: Option<String>,
    pub(super) downstream_key: Option<String>,
    pub(crate) trace_parent: Option<String>,
    pub(super) held: Held,
    /// What answers a call with a key of its own, although the key is new: an equal operation that someone settled as
    /// done.
    pub(crate) answered_by: Option<Arc<Record>>,
    pub(crate) equal_calls: EqualCalls,
    /// Shared by all copies.
    pub(super) input: Arc<Json>,
    pub(super) basis: KeyBasis,
    pub(super) naming: Naming,
    pub(super) secret: Option<Secret>,
    /// The key of the first occurrence of the action; `None` if the action is known by its given key alone.
    pub(super) action: Option<Key>,
}

/// Whether it has been looked up what someone said about equal calls. A call that no surface asked about is asked about
/// when it begins, so no surface can forget a person's no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EqualCalls {
    /// Not yet.
    Unknown,
    /// Yes, or there are none that count.
    Known,
    /// Someone's word about one of them binds this call, which has a key of its own.
    Binding,
}

/// What the keys of all occurrences of an action are computed from.
#[derive(Debug, Clone)]
pub(super) enum KeyBasis {
    /// The key that the caller gave.
    Given(Arc<str>),
    /// The canonical text of the inputs that identify the action.
    Inputs(Arc<str>),
}

impl KeyBasis {
    pub(super) fn key(&self, name: &str, occurrence: &Occurrence) -> Result<Key, InvalidInput> {
        match self {
            Self::Inputs(selected) => Ok(Key::derived(name, selected, occurrence)),
            // A repeat under a given key gets a key that shows which key it comes from.
            Self::Given(key) => match occurrence {
                Occurrence::Number(1) => Key::given(key),
                Occurrence::Number(_) => Err(InvalidInput::new("a given key stands for one operation")),
                Occurrence::Label(label) => Key::given(&format!("{key}#{label}")),
            },
        }
    }

    /// What all occurrences of the action, and equal calls with other keys, have in common: the derived key of the
    /// first one. `None` for a key without inputs, or with some that are not known, which says nothing about them.
    pub(super) fn first(&self, name: &str, selected: Option<&Json>, whole: Option<&str>) -> Option<Key> {
        let derived = |text: &str| Some(Key::derived(name, text, &Occurrence::default()));
        match (self, selected) {
            (Self::Inputs(selected), _) => derived(selected),
            (Self::Given(_), Some(selected)) => derived(&selected.canonical()),
            (Self::Given(_), None) => whole.filter(|whole| *whole != "{}").and_then(derived),
        }
    }
}

pub(super) fn id_of(kind: Kind, naming: Naming, scope: &str, name: &str, key: &Key) -> OperationId {
    match (naming, key.origin) {
        (Naming::Incidental, KeyOrigin::Given) => OperationId::unnamed(scope, &key.text),
        (Naming::Chosen | Naming::Incidental, _) => OperationId::of_kind(kind, scope, name, &key.text),
    }
}

impl Intent {
    /// The intent as a ledger with this secret stores it: derived key, fingerprint and field digests are keyed
    /// hashes, so that no input can be guessed from them. Does nothing if the intent is already keyed.
    #[must_use]
    pub fn keyed_with(mut self, secret: Option<&Secret>) -> Self {
        let (None, Some(secret)) = (&self.secret, secret) else { return self };
        self.fingerprint = self.fingerprint.keyed(secret);
        self.key = self.key.keyed(secret);
        self.action = self.action.map(|first| first.keyed(secret));
        self.id = self.id_with(&self.key);
        self.secret = Some(secret.clone());
        self
    }

    pub(super) fn id_with(&self, key: &Key) -> OperationId {
        id_of(self.kind, self.naming, &self.scope, &self.name, key)
    }

    /// The id of the action: the same for all its occurrences, and for equal calls with other keys.
    #[must_use]
    pub fn action(&self) -> OperationId {
        self.action.as_ref().map_or_else(|| self.id.clone(), |first| self.id_with(first))
    }

    /// Whether what someone said about an equal call may bind this one, and has not been looked up. A compensation
    /// takes back one operation, whatever was said about others.
    pub(crate) fn asks_about_equal_calls(&self) -> bool {
        let is_call = self.kind.is_operation() && self.undoes.is_none() && self.action.is_some();
        is_call && self.equal_calls == EqualCalls::Unknown
    }

    /// Whose refusal this call gets, if it is refused.
    pub(crate) fn refusal_of(&self) -> RefusalOf {
        match self.equal_calls {
            EqualCalls::Unknown | EqualCalls::Known => RefusalOf::Own,
            EqualCalls::Binding => RefusalOf::Equal,
        }
    }

    /// Whether nothing but its content identifies it: its key is derived, and its caller gave no label.
    pub(crate) fn is_known_by_content(&self) -> bool {
        self.key.origin == KeyOrigin::Derived && self.number.is_some()
    }

    /// Whether its caller labelled it as a repetition that is meant.
    pub(crate) fn is_labelled(&self) -> bool {
        self.key.origin == KeyOrigin::Derived && self.number.is_none()
    }

    /// The same without a copy, if there is nothing to do.
    pub(crate) fn keyed_form(&self, secret: Option<&Secret>) -> Cow<'_, Self> {
        match (&self.secret, secret) {
            (None, Some(_)) => Cow::Owned(self.clone().keyed_with(secret)),
            (_, None) | (Some(_), Some(_)) => Cow::Borrowed(self),
        }
    }

    /// Another occurrence of the same action. The inputs are not parsed again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a given key becomes too long.
    pub fn at_occurrence(mut self, number: u64) -> Result<Self, Error> {
        let key = self.basis.key(&self.name, &Occurrence::Number(number))?;
        self.key = self.secret.as_ref().map_or(key.clone(), |secret| key.keyed(secret));
        self.id = self.id_with(&self.key);
        self.number = Some(number).filter(|_| self.key.origin == KeyOrigin::Derived);
        self.equal_calls = EqualCalls::Known;
        Ok(self)
    }

    /// A repetition of the same action under this label.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a given key becomes too long.
    pub(crate) fn at_label(mut self, label: &str) -> Result<Self, Error> {
        let key = self.basis.key(&self.name, &Occurrence::Label(label.to_owned()))?;
        self.key = self.secret.as_ref().map_or(key.clone(), |secret| key.keyed(secret));
        self.id = self.id_with(&self.key);
        self.number = None;
        Ok(self)
    }

    /// The occurrence that this record is.
    #[must_use]
    pub fn at_record(mut self, record: &Record) -> Self {
        // They are equal by their action. A given key is compared with fewer inputs.
        if [self.key.origin, record.key.origin].contains(&KeyOrigin::Given) {
            self.fingerprint = record.detail.fingerprint.clone();
        }
        (self.id, self.key, self.number) = (record.id.clone(), record.key.clone(), record.number);
        self.equal_calls = EqualCalls::Known;
        self
    }

    /// The same action under a key that its caller gives.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this cannot be a key.
    pub fn under_key(mut self, key: &str) -> Result<Self, Error> {
        self.key = Key::given(key)?;
        self.basis = KeyBasis::Given(self.key.text.as_str().into());
        self.id = self.id_with(&self.key);
        self.number = None;
        Ok(self)
    }

    /// The record of the operation's key as one more key of it, in a scope of such keys.
    #[must_use]
    pub fn as_alias(self, scope: &str, name: &str) -> Self {
        let mut alias =
            Self { kind: Kind::Alias, naming: Naming::Chosen, action: None, number: None, ..self };
        (alias.scope, alias.name) = (scope.to_owned(), name.to_owned());
        alias.id = alias.id_with(&alias.key);
        alias
    }

    /// The same action without its inputs, so that its record has no digests of them.
    #[must_use]
    pub fn without_input(self) -> Self {
        Self { input: Arc::new(Json::empty()), ..self }
    }

    /// The intent of a held operation, taken from its record: for a process that executes it from its stored request.
    /// Identity, class, budget, probe and check are the record's own; the other terms are the given ones.
    #[must_use]
    pub fn of_held(record: &Record, terms: Terms, secret: Option<&Secret>) -> Self {
        let detail = &record.detail;
        let terms = Terms {
            hold: Hold::No,
            class: detail.class,
            max_attempts: detail.max_attempts,
            retention_ms: detail.retention_ms,
            tombstone_ms: detail.tombstone_ms,
            quarantine_ms: detail.quarantine_ms,
            ..terms
        };
        Self {
            id: record.id.clone(),
            kind: record.kind,
            number: record.number,
            scope: record.scope.clone(),
            scope_origin: ScopeOrigin::Explicit,
            name: record.name.clone(),
            key: record.key.clone(),
            fingerprint: detail.fingerprint.clone(),
            terms,
            probe: detail.probe.clone(),
            probe_no: detail.probe_no.clone(),
            verify: detail.verify.clone(),
            folder: detail.folder.clone(),
            command: detail.command.clone(),
            undo: detail.undo.clone(),
            undoes: detail.undoes.clone(),
            downstream_key: None,
            trace_parent: detail.trace_parent.clone(),
            held: Held::by_policy(),
            answered_by: None,
            equal_calls: EqualCalls::Known,
            input: Arc::new(Json::empty()),
            basis: KeyBasis::Given(record.key.text.as_str().into()),
            naming: Naming::Chosen,
            // The record's hashes are keyed already.
            secret: secret.cloned(),
            action: None,
        }
    }

    /// How the operation is held, except for the time.
    pub(crate) fn held(&self) -> Held {
        self.held.clone()
    }

    /// A digest of each input field. With a secret, the names are digests too.
    #[must_use]
    pub fn fields(&self) -> BTreeMap<String, String> {
        key::field_digests(&self.id, &self.input, self.secret.as_ref())
    }

    /// The fields in which this call differs from one with these digests.
    #[must_use]
    pub fn fields_that_differ(&self, stored: &BTreeMap<String, String>) -> Vec<String> {
        let names = key::field_names(&self.id, &self.input, self.secret.as_ref());
        let differing = key::fields_that_differ(stored, &self.fields());
        let known = |field: String| match (names.get(&field), &self.secret) {
            (Some(name), _) => name.clone(),
            (None, None) => field,
            (None, Some(_)) => "a field that this call does not have".to_owned(),
        };
        let mut fields: Vec<String> = differing.into_iter().map(known).collect();
        fields.sort();
        fields.dedup();
        fields
    }

    /// The key for a downstream that deduplicates: derived from the operation's own key unless the caller set one, and
    /// the same for every attempt.
    #[must_use]
    pub fn downstream_key(&self) -> String {
        self.downstream_key.clone().unwrap_or_else(|| self.id.as_str().to_owned())
    }
}
