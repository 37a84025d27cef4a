//! The same action in another form, without hashing its inputs again.

use std::sync::Arc;

use super::{Intent, KeyBasis, id_of};
use crate::error::Error;
use crate::json::Json;
use crate::key::Key;

impl Intent {
    /// The same action under a key that its caller gives.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this cannot be a key.
    pub fn under_key(mut self, key: &str) -> Result<Self, Error> {
        self.key = Key::given(key)?;
        self.basis = KeyBasis::Given(self.key.text.as_str().into());
        self.id = id_of(self.naming, &self.scope, &self.name, &self.key);
        Ok(self)
    }

    /// The same action without its inputs, so that its record has no digests of them.
    #[must_use]
    pub fn without_input(self) -> Self {
        Self { input: Arc::new(Json::empty()), ..self }
    }
}
