//! What a caller requests, and the intent computed from it.

mod intent;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use crate::action::Action;
use crate::error::Error;
use crate::invalid::InvalidInput;
use crate::json::{Json, Pointer};
use crate::key::{self, Fingerprint, Key, KeyOrigin, Occurrence, OperationId};
use crate::kind::Kind;
use crate::policy::{KeyPolicy, Terms};
use crate::record::{Class, Compensation, Held, HeldBy};
use crate::secret::Secret;
pub(crate) use intent::EqualCalls;
pub use intent::Intent;
use intent::{KeyBasis, id_of};

/// The scope of calls that give none.
pub const DEFAULT_SCOPE: &str = "default";

/// One logical side effect that must happen once.
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
    kind: Kind,
    name: String,
    naming: Naming,
    scope: String,
    scope_origin: ScopeOrigin,
    key: Option<String>,
    /// Shared by all copies, because it can be large.
    input: Result<Arc<Json>, InvalidInput>,
    whole: Whole,
    key_fields: Vec<String>,
    volatile: Vec<String>,
    occurrence: Option<String>,
    terms: Terms,
    keys_said: bool,
    has_probe: bool,
    probe: Option<String>,
    probe_no: Vec<i32>,
    verify: Option<String>,
    undo: Option<Compensation>,
    undoes: Option<OperationId>,
    folder: Option<String>,
    command: Option<String>,
    downstream_key: Option<String>,
    trace_parent: Option<String>,
    held: Held,
    equal_calls: EqualCalls,
}

/// Who chose the scope. This decides whether the scope makes calls strict and its keys permanent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScopeOrigin {
    /// No one; it is the default scope.
    Default,
    /// The caller.
    Explicit,
    /// The host's environment, for example a conversation id. It separates calls but does not make them strict.
    Host,
}

/// What tells the whole action from another one, if that is more than the inputs that are compared under a given key.
#[derive(Debug, Clone)]
enum Whole {
    /// The inputs are the whole action.
    Inputs,
    /// This is.
    Is(Json),
    /// A part of it is not known, so that only its key identifies it.
    Unknown,
}

/// Whether the caller chose the name, so that it is part of the identity even with a given key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    Chosen,
    Incidental,
}

impl Operation {
    /// An operation named `name`, in the default scope, with no input and the default terms.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            kind: Kind::Operation,
            name: name.into(),
            naming: Naming::Chosen,
            scope: DEFAULT_SCOPE.to_owned(),
            scope_origin: ScopeOrigin::Default,
            key: None,
            input: Ok(Arc::new(Json::empty())),
            whole: Whole::Inputs,
            key_fields: Vec::new(),
            volatile: Vec::new(),
            occurrence: None,
            terms: Terms::default(),
            keys_said: false,
            has_probe: false,
            probe: None,
            probe_no: Vec::new(),
            verify: None,
            undo: None,
            undoes: None,
            folder: None,
            command: None,
            downstream_key: None,
            trace_parent: None,
            held: Held::by_policy(),
            equal_calls: EqualCalls::Unknown,
        }
    }

    /// An operation whose name the caller did not choose, for example a program's file name. With a given key the
    /// name is not part of the identity: scope and key alone identify the operation.
    #[must_use]
    pub fn unnamed(name: impl Into<String>) -> Self {
        Self { naming: Naming::Incidental, ..Self::new(name) }
    }

    /// A record of this kind. Everything that is not an operation belongs to a surface, which looks after it.
    #[must_use]
    pub fn of_kind(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, ..Self::new(name) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the namespace for keys: a tenant, a session, a run. `default` counts as not set.
    #[must_use]
    pub fn scope(self, scope: impl Into<String>) -> Self {
        let scope = scope.into();
        let scope_origin = if scope == DEFAULT_SCOPE { ScopeOrigin::Default } else { ScopeOrigin::Explicit };
        Self { scope, scope_origin, ..self }
    }

    /// Sets a namespace that the host's environment implies. It separates calls but does not make them strict.
    #[must_use]
    pub fn host_scope(self, scope: impl Into<String>) -> Self {
        Self { scope: scope.into(), scope_origin: ScopeOrigin::Host, ..self }
    }

    /// Sets the key. Without one, the key is derived from the intent.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Sets the inputs. For integers beyond 64 bits use [`Operation::input_json`].
    #[must_use]
    pub fn input(self, input: impl Into<Json>) -> Self {
        Self { input: Ok(Arc::new(input.into())), ..self }
    }

    /// Sets the inputs as JSON text, without losing digits of large numbers.
    #[must_use]
    pub fn input_json(self, text: &str) -> Self {
        Self { input: Json::parse(text).map(Arc::new), ..self }
    }

    /// Sets what tells the whole action from another one, if its key was given and the inputs that are compared under
    /// that key are less: the inputs of the equal call without a key. It decides which calls are the same action
    /// ([`Intent::action`]), and nothing else. `None` says that a part of the action is not known.
    ///
    /// ```
    /// use onceward::{Json, Operation};
    /// let json = |text| Json::parse(text).unwrap();
    /// let plain = Operation::new("pay").input(json(r#"{"to":"eve","folder":"/a"}"#)).intent()?;
    /// let keyed = Operation::new("pay").key("k").input(json(r#"{"to":"eve"}"#));
    /// assert_ne!(keyed.clone().intent()?.action(), plain.action());
    /// let whole = keyed.whole(Some(json(r#"{"to":"eve","folder":"/a"}"#)));
    /// assert_eq!(whole.intent()?.action(), plain.action());
    /// # Ok::<(), onceward::Error>(())
    /// ```
    #[must_use]
    pub fn whole(self, whole: Option<Json>) -> Self {
        Self { whole: whole.map_or(Whole::Unknown, Whole::Is), ..self }
    }

    /// Says that this is a wish of its own, such as an item of a batch or one more delivery of an event: what someone
    /// said about an equal call does not answer it.
    #[must_use]
    pub fn distinct(self) -> Self {
        Self { equal_calls: EqualCalls::Known, ..self }
    }

    /// Sets the fields that identify the action (all of them by default).
    #[must_use]
    pub fn key_fields<F: Into<String>>(self, fields: impl IntoIterator<Item = F>) -> Self {
        Self { key_fields: fields.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the fields that may differ between a call and its retry, for example a trace id or a time.
    #[must_use]
    pub fn volatile<F: Into<String>>(self, fields: impl IntoIterator<Item = F>) -> Self {
        Self { volatile: fields.into_iter().map(Into::into).collect(), ..self }
    }

    /// Requests the same action again: 2, 3, … or any label.
    #[must_use]
    pub fn occurrence(self, label: impl Into<String>) -> Self {
        Self { occurrence: Some(label.into()), ..self }
    }

    /// Sets how safe the operation is to repeat when it is in doubt.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.terms.class = class;
        self
    }

    /// Sets its times, limits and rules.
    #[must_use]
    pub fn terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Declares that there is a probe, which changes the class `once` to `probed`. [`Operation::probe_command`] does
    /// so too.
    #[must_use]
    pub fn with_probe(self) -> Self {
        Self { has_probe: true, ..self }
    }

    /// Sets the command that tells whether the operation happened. It is stored with the record.
    #[must_use]
    pub fn probe_command(self, command: Option<String>) -> Self {
        Self { has_probe: self.has_probe || command.is_some(), probe: command, ..self }
    }

    /// Sets the exit codes of the probe command that mean "no", in addition to 10.
    #[must_use]
    pub fn probe_no(self, codes: impl Into<Vec<i32>>) -> Self {
        Self { probe_no: codes.into(), ..self }
    }

    /// Sets the folder in which the call, its probe and its check run.
    #[must_use]
    pub fn folder(self, folder: Option<String>) -> Self {
        Self { folder, ..self }
    }

    /// Sets the command line to show in listings. It is stored with the record.
    #[must_use]
    pub fn command_line(self, command: Option<String>) -> Self {
        Self { command, ..self }
    }

    /// Sets the key that is sent downstream, if it is not derived from the operation: a request that its caller signed
    /// can only be sent with the key that it contains. The first attempt's key is recorded and is never replaced.
    #[must_use]
    pub fn downstream_key(self, key: impl Into<String>) -> Self {
        Self { downstream_key: Some(key.into()), ..self }
    }

    /// Sets the W3C `traceparent` of the call. It is stored with the record, and is not part of the operation's
    /// identity. A value that is not one is ignored, because a trace must not stop a call.
    ///
    /// ```
    /// use onceward::Operation;
    /// let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let traced = Operation::new("charge").key("order-7").trace_parent(Some(parent)).intent()?;
    /// assert_eq!(traced.id, Operation::new("charge").key("order-7").intent()?.id);
    /// # Ok::<(), onceward::Error>(())
    /// ```
    #[must_use]
    pub fn trace_parent(self, parent: Option<&str>) -> Self {
        Self { trace_parent: parent.filter(|text| is_trace_parent(text)).map(str::to_owned), ..self }
    }

    /// Sets which surface holds the operation, who said so, and the request from which another process can execute it.
    /// It matters only if [`Terms::hold`] says that the operation is held.
    #[must_use]
    pub fn held(mut self, surface: &str, by: HeldBy, request: Option<String>) -> Self {
        self.held = Held { surface: surface.to_owned(), by, request, ..self.held };
        self
    }

    /// Sets which surface holds the operation, and the request as the person sees it who decides about it. Only a call
    /// by its caller can start it.
    #[must_use]
    pub fn held_for_its_caller(self, surface: &str, by: HeldBy, shown: &Action) -> Self {
        let mut operation = self.held(surface, by, Some(shown.stored(&())));
        operation.held.caller_only = true;
        operation
    }

    /// Sets how a retry without a key is distinguished from a repeat. The caller's choice applies in every scope.
    #[must_use]
    pub fn keys(mut self, keys: KeyPolicy) -> Self {
        (self.terms.keys, self.keys_said) = (keys, true);
        self
    }

    /// Whether the caller identified the operation by a key or an occurrence.
    #[must_use]
    pub fn is_identified(&self) -> bool {
        self.key.is_some() || self.occurrence.is_some()
    }

    /// How a retry without a key is distinguished from a repeat, according to the policy and the origin of the scope.
    #[must_use]
    pub fn key_policy(&self) -> KeyPolicy {
        match (self.terms.keys, self.scope_origin) {
            (KeyPolicy::Auto, ScopeOrigin::Explicit) if !self.keys_said => KeyPolicy::Strict,
            (keys, ScopeOrigin::Default | ScopeOrigin::Explicit | ScopeOrigin::Host) => keys,
        }
    }

    /// Sets the command that checks a reported success. It is stored with the record.
    #[must_use]
    pub fn verify_command(self, command: Option<String>) -> Self {
        Self { verify: command, ..self }
    }

    /// Sets what takes the operation back. It is stored with the record.
    #[must_use]
    pub fn undo(self, undo: Option<Compensation>) -> Self {
        Self { undo, ..self }
    }

    /// Declares that this operation takes another one back. It may begin in a scope that was stopped.
    #[must_use]
    pub fn undoes(self, id: &OperationId) -> Self {
        Self { undoes: Some(id.clone()), ..self }
    }

    /// Computes identity and fingerprint. Pure: the same operation has the same intent everywhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem at once, or [`Error::KeyMissing`].
    pub fn intent(self) -> Result<Intent, Error> {
        self.intent_for(None)
    }

    /// Applies what the probe and the scope say about the terms.
    fn complete_terms(&mut self) {
        if self.has_probe {
            self.terms.class = self.terms.class.with_probe();
        }
        if self.scope_origin == ScopeOrigin::Explicit {
            self.terms.retention_ms = self.terms.retention_ms.max(self.terms.session_retention_ms);
        }
    }

    /// What is not as it must be: everything at once.
    fn checked(&self) -> Result<Checked, InvalidInput> {
        let mut problems = Vec::new();
        let mut note = |result: Result<(), InvalidInput>| {
            if let Err(invalid) = result {
                problems.extend_from_slice(invalid.problems());
            }
        };
        note(key::name_like("name", &self.name));
        note(key::name_like("scope", &self.scope));
        note(self.input.as_ref().map(|_| ()).map_err(Clone::clone));
        let undo = self.undo.as_ref().map_or(Ok(()), Compensation::check);
        [self.terms.check(), self.held.check(), undo].into_iter().for_each(&mut note);
        let key_fields = pointers(&self.key_fields);
        let volatile = pointers(&self.volatile);
        note(key_fields.as_ref().map(|_| ()).map_err(Clone::clone));
        note(volatile.as_ref().map(|_| ()).map_err(Clone::clone));
        let occurrence = self.occurrence.as_deref().map(Occurrence::parse).transpose();
        note(occurrence.as_ref().map(|_| ()).map_err(Clone::clone));
        let given = self.key.as_deref().map(Key::given).transpose();
        note(given.as_ref().map(|_| ()).map_err(Clone::clone));
        match InvalidInput::all(problems) {
            Some(invalid) => Err(invalid),
            None => Ok(Checked {
                key_fields: key_fields?,
                volatile: volatile?,
                occurrence: occurrence?.unwrap_or_default(),
                given: given?,
            }),
        }
    }

    /// The same as a ledger with this secret stores it: see [`Intent::keyed_with`].
    pub(crate) fn intent_for(mut self, secret: Option<&Secret>) -> Result<Intent, Error> {
        self.complete_terms();
        let Checked { key_fields, volatile, occurrence, given } = self.checked()?;
        let input = self.input?;
        if given.is_none() && self.terms.keys == KeyPolicy::Keyed {
            return Err(Error::KeyMissing { name: self.name });
        }
        let selected = key::select(&input, &key_fields)?;
        let stable = match volatile.as_slice() {
            [] => input,
            some => Arc::new(Arc::unwrap_or_clone(input).without(some)),
        };
        let canonical = stable.canonical();
        let whole = match self.whole {
            Whole::Inputs => Some(Cow::Borrowed(canonical.as_str())),
            Whole::Is(whole) => Some(Cow::Owned(whole.without(&volatile).canonical())),
            Whole::Unknown => None,
        };
        let basis = match given {
            Some(key) => KeyBasis::Given(key.text.into()),
            // If no fields were chosen, all inputs that a retry repeats identify the action.
            None => KeyBasis::Inputs(
                selected
                    .as_ref()
                    .map_or_else(|| canonical.as_str().into(), |chosen| chosen.canonical().into()),
            ),
        };
        let mut key = basis.key(&self.name, &occurrence)?;
        let mut fingerprint = Fingerprint::of(&canonical);
        let first = basis.first(&self.name, selected.as_ref(), whole.as_deref());
        let mut first = first.filter(|_| self.kind.is_operation() || key.origin == KeyOrigin::Derived);
        if let Some(secret) = secret {
            (key, fingerprint) = (key.keyed(secret), fingerprint.keyed(secret));
            first = first.map(|first| first.keyed(secret));
        }
        let id = id_of(self.kind, self.naming, &self.scope, &self.name, &key);
        let number = match (key.origin, occurrence) {
            (KeyOrigin::Derived, Occurrence::Number(number)) => Some(number),
            (KeyOrigin::Derived, Occurrence::Label(_)) | (KeyOrigin::Given, _) => None,
        };
        Ok(Intent {
            action: first,
            number,
            id,
            kind: self.kind,
            basis,
            naming: self.naming,
            scope_origin: self.scope_origin,
            scope: self.scope,
            name: self.name,
            key,
            fingerprint,
            input: stable,
            secret: secret.cloned(),
            probe: self.probe,
            probe_no: self.probe_no,
            verify: self.verify,
            undo: self.undo,
            undoes: self.undoes,
            folder: self.folder,
            command: self.command.map(|line| self.terms.redact.text(&line).into_owned()),
            downstream_key: self.downstream_key,
            trace_parent: self.trace_parent,
            held: self.held,
            answered_by: None,
            equal_calls: self.equal_calls,
            terms: self.terms,
        })
    }
}

/// The parts of an operation that are read from texts.
struct Checked {
    key_fields: Vec<Pointer>,
    volatile: Vec<Pointer>,
    occurrence: Occurrence,
    given: Option<Key>,
}

/// Whether a text is a `traceparent` of version 00 of W3C Trace Context: version, trace, span and flags in hex.
fn is_trace_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags] = parts.as_slice() else { return false };
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let not_zero = |part: &str| part.bytes().any(|byte| byte != b'0');
    *version == "00" && hex(trace, 32) && hex(span, 16) && hex(flags, 2) && not_zero(trace) && not_zero(span)
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
