//! The same action in another form, without hashing its inputs again.

use std::sync::Arc;

use super::Naming;
use super::intent::{Intent, KeyBasis};
use crate::error::Error;
use crate::json::Json;
use crate::key::Key;
use crate::kind::Kind;

impl Intent {
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
}
