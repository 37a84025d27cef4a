//! What a caller asks for, and the intent that is made of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, InvalidInput};
use crate::json::{Json, Pointer};
use crate::key::{self, Fingerprint, Key, KeyOrigin, Occurrence, OperationId};
use crate::policy::{KeyPolicy, Terms};
use crate::record::Class;

/// The largest result that is kept, in bytes.
pub const MAX_RESULT: usize = 16 * 1024 * 1024;

/// The scope of those who name none.
pub const DEFAULT_SCOPE: &str = "default";

/// One logical side effect that a caller wants to happen once.
///
/// ```
/// use onceward::Operation;
/// let charge = Operation::new("charge_payment")
///     .scope("order-flow-abc123")
///     .input(serde_json::json!({"customer_id": "c1", "amount": 100, "note": "thanks"}))
///     .key_fields(["customer_id", "amount"]);
/// assert!(charge.intent()?.key.text.starts_with("k1_"));
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Operation {
    name: String,
    naming: Naming,
    scope: String,
    scope_origin: ScopeOrigin,
    key: Option<String>,
    input: Result<Json, InvalidInput>,
    key_fields: Vec<String>,
    volatile: Vec<String>,
    occurrence: Option<String>,
    terms: Terms,
    keys_said: bool,
    has_probe: bool,
    probe: Option<String>,
    probe_no: Vec<i32>,
    verify: Option<String>,
    folder: Option<String>,
    command: Option<String>,
}

/// Who chose a scope. It decides whether the scope makes calls strict and its keys permanent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScopeOrigin {
    /// No one: the default scope.
    Default,
    /// The caller.
    Explicit,
    /// The host's environment, such as a conversation id: it separates calls and says nothing about repeats.
    Host,
}

/// Whether the operation's name was chosen, and so belongs to its identity beside a given key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    Chosen,
    Incidental,
}

impl Operation {
    /// An operation that does `name`, in the default scope, with no input and the default terms.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            naming: Naming::Chosen,
            scope: DEFAULT_SCOPE.to_owned(),
            scope_origin: ScopeOrigin::Default,
            key: None,
            input: Ok(Json::empty()),
            key_fields: Vec::new(),
            volatile: Vec::new(),
            occurrence: None,
            terms: Terms::default(),
            keys_said: false,
            has_probe: false,
            probe: None,
            probe_no: Vec::new(),
            verify: None,
            folder: None,
            command: None,
        }
    }

    /// An operation whose name no one chose, such as a program's file name. Beside a given key it does not count: scope
    /// and key alone identify the operation.
    #[must_use]
    pub fn unnamed(name: impl Into<String>) -> Self {
        Self { naming: Naming::Incidental, ..Self::new(name) }
    }

    /// A namespace for keys that the caller chose: a tenant, a session, a run. `default` is no choice.
    #[must_use]
    pub fn scope(self, scope: impl Into<String>) -> Self {
        let scope = scope.into();
        let scope_origin = if scope == DEFAULT_SCOPE { ScopeOrigin::Default } else { ScopeOrigin::Explicit };
        Self { scope, scope_origin, ..self }
    }

    /// A namespace that the host's environment implies. It separates calls and does not make them strict.
    #[must_use]
    pub fn host_scope(self, scope: impl Into<String>) -> Self {
        Self { scope: scope.into(), scope_origin: ScopeOrigin::Host, ..self }
    }

    /// A key of the caller's own. Without one it is derived from the intent.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The inputs. For integers beyond 64 bits use [`Operation::input_json`].
    #[must_use]
    pub fn input(self, input: impl Into<Json>) -> Self {
        Self { input: Ok(input.into()), ..self }
    }

    /// The inputs as JSON text, of which no digit is lost.
    #[must_use]
    pub fn input_json(self, text: &str) -> Self {
        Self { input: Json::parse(text), ..self }
    }

    /// The fields that identify the action (all of them by default).
    #[must_use]
    pub fn key_fields<F: Into<String>>(self, fields: impl IntoIterator<Item = F>) -> Self {
        Self { key_fields: fields.into_iter().map(Into::into).collect(), ..self }
    }

    /// Fields that may differ between a call and its retry: a trace id, a time.
    #[must_use]
    pub fn volatile<F: Into<String>>(self, fields: impl IntoIterator<Item = F>) -> Self {
        Self { volatile: fields.into_iter().map(Into::into).collect(), ..self }
    }

    /// The same action is wanted again: 2, 3, … or any label.
    #[must_use]
    pub fn occurrence(self, label: impl Into<String>) -> Self {
        Self { occurrence: Some(label.into()), ..self }
    }

    /// What may be done when it is in doubt.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.terms.class = class;
        self
    }

    /// Its times, limits and rules.
    #[must_use]
    pub fn terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// There is a probe, so an operation of class `once` is `probed`. [`Operation::probe_command`] says so too.
    #[must_use]
    pub fn with_probe(self) -> Self {
        Self { has_probe: true, ..self }
    }

    /// The command that tells whether it happened, kept with the record for later.
    #[must_use]
    pub fn probe_command(self, command: Option<String>) -> Self {
        Self { has_probe: self.has_probe || command.is_some(), probe: command, ..self }
    }

    /// Exit codes of the probe command that mean "no", besides 10.
    #[must_use]
    pub fn probe_no(self, codes: impl Into<Vec<i32>>) -> Self {
        Self { probe_no: codes.into(), ..self }
    }

    /// The folder of the call, in which its probe and its check run.
    #[must_use]
    pub fn folder(self, folder: Option<String>) -> Self {
        Self { folder, ..self }
    }

    /// The command line, to be shown in lists. It is stored with the record.
    #[must_use]
    pub fn command_line(self, command: Option<String>) -> Self {
        Self { command, ..self }
    }

    /// How a call without a key is told from a repeat, said by the caller: it holds in every scope.
    #[must_use]
    pub fn keys(mut self, keys: KeyPolicy) -> Self {
        (self.terms.keys, self.keys_said) = (keys, true);
        self
    }

    /// Whether the caller has said which operation it is, by a key or an occurrence.
    #[must_use]
    pub fn is_identified(&self) -> bool {
        self.key.is_some() || self.occurrence.is_some()
    }

    /// How a call without a key is told from a repeat, by the policy and by who chose the scope.
    #[must_use]
    pub fn key_policy(&self) -> KeyPolicy {
        match (self.terms.keys, self.scope_origin) {
            (KeyPolicy::Auto, ScopeOrigin::Explicit) if !self.keys_said => KeyPolicy::Strict,
            (keys, ScopeOrigin::Default | ScopeOrigin::Explicit | ScopeOrigin::Host) => keys,
        }
    }

    /// The command that checks a reported success, kept with the record for later.
    #[must_use]
    pub fn verify_command(self, command: Option<String>) -> Self {
        Self { verify: command, ..self }
    }

    /// Works out identity and fingerprint. Pure: the same operation has the same intent everywhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem at once, or [`Error::KeyMissing`].
    pub fn intent(mut self) -> Result<Intent, Error> {
        let mut problems = Vec::new();
        let mut note = |result: Result<(), InvalidInput>| {
            if let Err(invalid) = result {
                problems.extend_from_slice(invalid.problems());
            }
        };
        note(key::name_like("name", &self.name));
        note(key::name_like("scope", &self.scope));
        note(self.input.as_ref().map(|_| ()).map_err(Clone::clone));
        note(self.terms.check());
        let key_fields = pointers(&self.key_fields);
        let volatile = pointers(&self.volatile);
        note(key_fields.as_ref().map(|_| ()).map_err(Clone::clone));
        note(volatile.as_ref().map(|_| ()).map_err(Clone::clone));
        let occurrence = self.occurrence.as_deref().map(Occurrence::parse).transpose();
        note(occurrence.as_ref().map(|_| ()).map_err(Clone::clone));
        let given = self.key.as_deref().map(Key::given).transpose();
        note(given.as_ref().map(|_| ()).map_err(Clone::clone));
        if let Some(invalid) = InvalidInput::all(problems) {
            return Err(invalid.into());
        }
        let (input, key_fields, volatile, occurrence, given) =
            (self.input?, key_fields?, volatile?, occurrence?, given?);
        if given.is_none() && self.terms.keys == KeyPolicy::Keyed {
            return Err(Error::KeyMissing { name: self.name });
        }
        let selected = key::select(&input, &key_fields)?;
        let stable = input.without(&volatile);
        let canonical = stable.canonical();
        let basis = match given {
            Some(key) => KeyBasis::Given(key.text.into()),
            // All inputs, where no fields were chosen, are all that a retry repeats.
            None => KeyBasis::Inputs(
                selected
                    .as_ref()
                    .map_or_else(|| canonical.as_str().into(), |chosen| chosen.canonical().into()),
            ),
        };
        let key = basis.key(&self.name, &occurrence.unwrap_or_default())?;
        if self.has_probe {
            self.terms.class = self.terms.class.with_probe();
        }
        if self.scope_origin == ScopeOrigin::Explicit {
            self.terms.retention_ms = self.terms.retention_ms.max(self.terms.session_retention_ms);
        }
        Ok(Intent {
            id: id_of(self.naming, &self.scope, &self.name, &key),
            basis,
            naming: self.naming,
            scope_origin: self.scope_origin,
            scope: self.scope,
            name: self.name,
            key,
            fingerprint: Fingerprint::of(&canonical),
            input: stable,
            terms: self.terms,
            probe: self.probe,
            probe_no: self.probe_no,
            verify: self.verify,
            folder: self.folder,
            command: self.command,
        })
    }
}

/// An operation whose identity is worked out: what [`crate::decide`] decides on.
#[derive(Debug, Clone)]
pub struct Intent {
    /// Derived from scope, name and key.
    pub id: OperationId,
    /// Who shares the key.
    pub scope: String,
    /// Who chose the scope.
    pub scope_origin: ScopeOrigin,
    /// What is done.
    pub name: String,
    /// Which one of them.
    pub key: Key,
    /// Of all inputs that are not volatile.
    pub fingerprint: Fingerprint,
    /// Its times, limits and rules.
    pub terms: Terms,
    pub(crate) probe: Option<String>,
    pub(crate) probe_no: Vec<i32>,
    pub(crate) verify: Option<String>,
    pub(crate) folder: Option<String>,
    pub(crate) command: Option<String>,
    input: Json,
    basis: KeyBasis,
    naming: Naming,
}

/// What keys of all occurrences of an action are made of.
#[derive(Debug, Clone)]
enum KeyBasis {
    /// The key that the caller gave.
    Given(Arc<str>),
    /// The canonical text of the inputs that identify the action.
    Inputs(Arc<str>),
}

impl KeyBasis {
    fn key(&self, name: &str, occurrence: &Occurrence) -> Result<Key, InvalidInput> {
        match self {
            Self::Inputs(selected) => Ok(Key::derived(name, selected, occurrence)),
            Self::Given(key) if *occurrence == Occurrence::default() => Key::given(key),
            // A repeat under a given key is the next key, spelled so that a person sees where it comes from.
            Self::Given(key) => Key::given(&format!("{key}#{occurrence}")),
        }
    }
}

fn id_of(naming: Naming, scope: &str, name: &str, key: &Key) -> OperationId {
    match (naming, key.origin) {
        (Naming::Incidental, KeyOrigin::Given) => OperationId::unnamed(scope, &key.text),
        (Naming::Chosen | Naming::Incidental, _) => OperationId::of(scope, name, &key.text),
    }
}

impl Intent {
    /// Another occurrence of the same action. Its inputs are not read again.
    ///
    /// # Errors
    /// [`Error::Invalid`] where a given key becomes too long.
    pub fn at_occurrence(mut self, number: u64) -> Result<Self, Error> {
        (self.id, self.key) = self.named_at(number)?;
        Ok(self)
    }

    /// The id that counts the name, where the name does not count.
    pub(crate) fn id_with_its_name(&self) -> Option<OperationId> {
        let named = OperationId::of(&self.scope, &self.name, &self.key.text);
        (self.id != named).then_some(named)
    }

    pub(crate) fn named_at(&self, number: u64) -> Result<(OperationId, Key), Error> {
        let key = self.basis.key(&self.name, &Occurrence::parse(&number.to_string())?)?;
        Ok((id_of(self.naming, &self.scope, &self.name, &key), key))
    }

    /// A digest of each input field.
    #[must_use]
    pub fn fields(&self) -> BTreeMap<String, String> {
        key::field_digests(&self.id, &self.input)
    }

    /// The key for a downstream that honours one: derived from ours, the same for every attempt.
    #[must_use]
    pub fn downstream_key(&self) -> String {
        self.id.as_str().to_owned()
    }
}

fn pointers(fields: &[String]) -> Result<Vec<Pointer>, InvalidInput> {
    let mut problems = Vec::new();
    let mut parsed = Vec::new();
    for field in fields {
        match Pointer::parse(field) {
            Ok(pointer) => parsed.push(pointer),
            Err(invalid) => problems.extend_from_slice(invalid.problems()),
        }
    }
    InvalidInput::all(problems).map_or(Ok(parsed), Err)
}
