//! Sealed values: the form in which a store's encrypted values appear if their key is missing.
//!
//! A text is `sealed:1:k_abcd2345:` and base64; bytes have the same prefix, followed by the raw ciphertext. The store
//! crate seals and opens values. This module only recognises values that could not be opened, so that no surface
//! mistakes them for a result: the operation is done, and its result is unavailable.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::record::{Outcome, Record};
use crate::word::Word;

/// The prefix of every sealed value; the key's id and a colon follow.
pub const PREFIX: &str = "sealed:1:";
/// The prefix of every key id.
pub const KEY_PREFIX: &str = "k_";
/// How many digits follow that prefix.
pub const KEY_DIGITS: usize = 8;

const UNREADABLE: &str = "sealed, and its key is not available";

/// The id of the key that a text is sealed with; `None` if it is not sealed.
#[must_use]
pub fn key_of(text: &str) -> Option<&str> {
    parts(text.as_bytes()).map(|(key, _)| key)
}

/// The id of the key that some bytes are sealed with, and the remaining bytes; `None` if they are not sealed.
#[must_use]
pub fn parts(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(PREFIX.as_bytes())?;
    let (key, rest) = rest.split_at_checked(KEY_PREFIX.len() + KEY_DIGITS)?;
    let digits = key.strip_prefix(KEY_PREFIX.as_bytes())?;
    let rest = rest.strip_prefix(b":")?;
    let is_digit = |byte: &u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(byte);
    let key = std::str::from_utf8(key).ok().filter(|_| digits.iter().all(is_digit))?;
    Some((key, rest))
}

/// The text of a result that is a JSON string without escapes, as every sealed result is.
#[must_use]
pub fn text_of(data: &RawValue) -> Option<&str> {
    data.get().strip_prefix('"')?.strip_suffix('"')
}

/// The text in a form that can be shown: a sealed text is replaced by a note.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    match key_of(text) {
        Some(key) => Cow::Owned(format!("(sealed with the key {key})")),
        None => Cow::Borrowed(text),
    }
}

impl Outcome {
    /// The id of the key that its result is sealed with, if it could not be opened.
    #[must_use]
    pub fn sealed_with(&self) -> Option<&str> {
        let data = self.data.as_ref().and_then(|data| key_of(text_of(data)?));
        data.or_else(|| self.body.as_ref().and_then(|body| parts(body).map(|(key, _)| key)))
    }

    /// Its reason, if one was given.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        let note = || self.settled_by.as_ref()?.note.as_deref();
        let reason = self.reason.as_deref().or_else(note)?;
        Some(if key_of(reason).is_some() { UNREADABLE } else { reason })
    }

    fn mask(&mut self) {
        if self.sealed_with().is_some() {
            (self.data, self.body, self.unavailable) = (None, None, true);
        }
        self.reason.iter_mut().for_each(mask);
        self.settled_by.iter_mut().flat_map(|word| word.texts_mut()).for_each(mask);
    }
}

impl Record {
    /// The record in a form that can be shown: sealed texts are replaced by a note, and a sealed result is
    /// unavailable. Do not write this record, because the sealed values are missing from it.
    #[must_use]
    pub fn readable(&self) -> Cow<'_, Self> {
        if !self.is_sealed() {
            return Cow::Borrowed(self);
        }
        let mut record = self.clone();
        let detail = &mut record.detail;
        for text in [&mut detail.probe, &mut detail.verify, &mut detail.command, &mut detail.folder] {
            text.iter_mut().for_each(mask);
        }
        detail.undo.iter_mut().for_each(|undo| mask(&mut undo.text));
        detail.held.iter_mut().filter_map(|held| held.request.as_mut()).for_each(mask);
        detail.history.iter_mut().filter_map(|past| past.reason.as_mut()).for_each(mask);
        let released = detail.held.iter_mut().filter_map(|held| held.released.as_mut());
        let past = detail.history.iter_mut().filter_map(|past| past.settled_by.as_deref_mut());
        let words = past.chain(released).chain(detail.cancelled_by.as_deref_mut());
        words.flat_map(Word::texts_mut).for_each(mask);
        detail.late.iter_mut().chain(&mut record.outcome).for_each(Outcome::mask);
        Cow::Owned(record)
    }

    /// The same for a record that is shared.
    #[must_use]
    pub fn into_readable(self: Arc<Self>) -> Arc<Self> {
        match self.readable() {
            Cow::Borrowed(_) => self,
            Cow::Owned(record) => Arc::new(record),
        }
    }

    /// Whether any part of it is sealed and could not be opened.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        let detail = &self.detail;
        let texts = [&detail.probe, &detail.verify, &detail.command, &detail.folder].into_iter();
        let texts = texts.chain(detail.history.iter().map(|past| &past.reason));
        let texts = texts.chain(detail.held.iter().map(|held| &held.request));
        let mut outcomes = self.outcome.iter().chain(&detail.late);
        let undo = detail.undo.iter().map(|undo| &undo.text);
        let words = self.words().flat_map(Word::texts);
        texts.flatten().chain(undo).chain(words).any(|text| key_of(text).is_some())
            || outcomes.any(|outcome| {
                outcome.sealed_with().is_some() || outcome.reason.as_deref().and_then(key_of).is_some()
            })
    }
}

fn mask(text: &mut String) {
    if let Cow::Owned(masked) = shown(text) {
        *text = masked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_shape_is_sealed() {
        assert_eq!(key_of("sealed:1:k_abcd2345:AAAA"), Some("k_abcd2345"));
        assert_eq!(parts(b"sealed:1:k_abcd2345:\xff"), Some(("k_abcd2345", b"\xff".as_slice())));
        for text in [
            "",
            "sealed",
            "sealed:1:k_abcd2345",
            "sealed:1:k_abcd2345;A",
            "sealed:2:k_abcd2345:A",
            "sealed:1:k_ABCD2345:A",
            "sealed:1:k_é234567:A",
            " sealed:1:k_abcd2345:A",
        ] {
            assert_eq!(key_of(text), None, "{text}");
        }
        assert_eq!(shown("it failed"), "it failed");
        assert_eq!(shown("sealed:1:k_abcd2345:AAAA"), "(sealed with the key k_abcd2345)");
    }
}
