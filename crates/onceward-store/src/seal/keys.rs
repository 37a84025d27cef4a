//! Keys: reading them, and sealing and opening records.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key as KeyBytes, XChaCha20Poly1305, XNonce};
use data_encoding::{BASE32_NOPAD, BASE64, BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use onceward::sealed::{KEY_DIGITS, KEY_PREFIX, PREFIX, parts, text_of};
use onceward::{InvalidInput, OperationId, Outcome, Record, StoreError, Word};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The length of a key.
const KEY_BYTES: usize = 32;
/// The length of a nonce. Random nonces of this length do not collide.
const NONCE_BYTES: usize = 24;
/// The maximum size of a key file.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The keys of an encrypted ledger. The first one seals; all of them open.
///
/// ```
/// use onceward_store::seal;
/// use onceward_store::seal::Keys;
///
/// let newest = seal::new_key()?;
/// let older = seal::new_key()?;
/// let keys = Keys::parse(&format!("{newest}\n{older} # until all records are resealed\n"))?;
/// assert_eq!(keys.ids().count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Keys(Arc<[Key]>);

struct Key {
    id: String,
    cipher: XChaCha20Poly1305,
}

/// Generates a new key, as a line of a key file.
///
/// # Errors
/// If the system has no random numbers.
pub fn new_key() -> Result<String, StoreError> {
    Ok(BASE64.encode(&random::<KEY_BYTES>()?))
}

impl Keys {
    /// Parses keys: one per line, the newest first, each 32 bytes in base64 or hex. `#` begins a comment.
    ///
    /// # Errors
    /// Names the line that is not a key, without repeating its content.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bytes = decode(line).ok_or_else(|| {
                let line = index + 1;
                InvalidInput::new(format!("line {line} is not a key: 32 bytes in base64 or hex are needed"))
            })?;
            keys.push(Key::new(bytes));
        }
        match keys.is_empty() {
            false => Ok(Self(keys.into())),
            true => Err(InvalidInput::new("it contains no key; `once config new-key FILE` creates one")),
        }
    }

    /// Reads a key file. It must belong to this user and must not be readable by others.
    ///
    /// # Errors
    /// If the file cannot be read, is readable by others, or contains no key.
    pub fn read(file: &Path) -> Result<Self, StoreError> {
        let unusable =
            |why: String| StoreError::Unusable { what: format!("the key file {} {why}", file.display()) };
        let cannot = |error: std::io::Error| unusable(format!("cannot be read: {error}"));
        let mut opened = File::open(file).map_err(cannot)?;
        // Checked on the open file, because its path may lead elsewhere by now.
        let meta = opened.metadata().map_err(cannot)?;
        if !meta.is_file() {
            return Err(unusable("is not a file".to_owned()));
        }
        if meta.uid() != nix::unistd::geteuid().as_raw() {
            return Err(unusable("belongs to another user".to_owned()));
        }
        if meta.mode() & 0o077 != 0 {
            let mode = meta.mode() & 0o777;
            return Err(unusable(format!("has mode {mode:04o}, so others can read it; run chmod 600 on it")));
        }
        let mut text = String::new();
        opened.by_ref().take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(cannot)?;
        Self::parse(&text).map_err(|invalid| unusable(format!("cannot be used: {invalid}")))
    }

    /// The ids of the keys, the sealing one first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| key.id.as_str())
    }

    /// Seals the inputs and outputs in the record. A value sealed with a key that is not among these is left
    /// unchanged.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn seal(&self, record: &mut Record) -> Result<(), StoreError> {
        let Record { id, detail, outcome, .. } = record;
        for (part, text) in texts(detail) {
            *text = self.seal_text(id, part, text)?;
        }
        for outcome in detail.late.iter_mut().chain(outcome) {
            self.seal_outcome(id, outcome)?;
        }
        Ok(())
    }

    /// Returns a sealed copy of the record.
    ///
    /// # Errors
    /// As [`Keys::seal`].
    pub fn sealed(&self, record: &Record) -> Result<Record, StoreError> {
        let mut sealed = record.clone();
        self.seal(&mut sealed)?;
        Ok(sealed)
    }

    /// Opens the values that these keys can open. The others stay sealed.
    pub fn open(&self, record: &mut Record) {
        let Record { id, detail, outcome, .. } = record;
        for (part, text) in texts(detail) {
            if let Some(opened) = self.open_text(id, part, text) {
                *text = opened;
            }
        }
        for outcome in detail.late.iter_mut().chain(outcome) {
            self.open_outcome(id, outcome);
        }
    }

    fn seal_outcome(&self, id: &OperationId, outcome: &mut Outcome) -> Result<(), StoreError> {
        for reason in reasons(outcome) {
            *reason = self.seal_text(id, Part::Reason, reason)?;
        }
        if let Some(data) = &mut outcome.data {
            // A sealed text contains no character that JSON escapes.
            let sealed = match text_of(data) {
                Some(text) if self.is_sealed_text(id, Part::Data, text) => None,
                Some(_) | None => Some(format!("\"{}\"", self.encrypt_text(id, Part::Data, data.get())?)),
            };
            if let Some(sealed) = sealed {
                let raw = RawValue::from_string(sealed);
                *data = raw.map_err(|error| StoreError::because("a result cannot be sealed", error))?.into();
            }
        }
        if let Some(body) = &mut outcome.body
            && !self.is_sealed_bytes(id, body)
        {
            let mut sealed = self.prefix();
            sealed.extend(self.encrypt(id, Part::Body, body)?);
            *body = sealed.into();
        }
        Ok(())
    }

    fn open_outcome(&self, id: &OperationId, outcome: &mut Outcome) {
        for reason in reasons(outcome) {
            if let Some(opened) = self.open_text(id, Part::Reason, reason) {
                *reason = opened;
            }
        }
        if let Some(data) = &mut outcome.data
            && let Some(opened) = text_of(data).and_then(|text| self.open_text(id, Part::Data, text))
            && let Ok(opened) = RawValue::from_string(opened)
        {
            *data = opened.into();
        }
        if let Some(body) = &mut outcome.body
            && let Some(opened) = self.open_bytes(id, body)
        {
            *body = opened.into();
        }
    }

    fn seal_text(&self, id: &OperationId, part: Part, text: &str) -> Result<String, StoreError> {
        if self.is_sealed_text(id, part, text) {
            return Ok(text.to_owned());
        }
        self.encrypt_text(id, part, text)
    }

    fn encrypt_text(&self, id: &OperationId, part: Part, text: &str) -> Result<String, StoreError> {
        let mut sealed = format!("{PREFIX}{}:", self.0[0].id);
        BASE64URL_NOPAD.encode_append(&self.encrypt(id, part, text.as_bytes())?, &mut sealed);
        Ok(sealed)
    }

    /// Whether a value is already sealed and must be written back unchanged. A text that only looks sealed, with a
    /// key that is known here, is sealed like any other.
    fn is_sealed_text(&self, id: &OperationId, part: Part, text: &str) -> bool {
        parts(text.as_bytes())
            .is_some_and(|(key, _)| self.find(key).is_none() || self.open_text(id, part, text).is_some())
    }

    fn is_sealed_bytes(&self, id: &OperationId, bytes: &[u8]) -> bool {
        parts(bytes).is_some_and(|(key, _)| self.find(key).is_none() || self.open_bytes(id, bytes).is_some())
    }

    fn open_text(&self, id: &OperationId, part: Part, text: &str) -> Option<String> {
        let (key, rest) = parts(text.as_bytes())?;
        let sealed = BASE64URL_NOPAD.decode(rest).ok()?;
        String::from_utf8(self.find(key)?.decrypt(id, part, &sealed)?).ok()
    }

    fn open_bytes(&self, id: &OperationId, bytes: &[u8]) -> Option<Vec<u8>> {
        let (key, sealed) = parts(bytes)?;
        self.find(key)?.decrypt(id, Part::Body, sealed)
    }

    fn find(&self, id: &str) -> Option<&Key> {
        self.0.iter().find(|key| key.id == id)
    }

    fn prefix(&self) -> Vec<u8> {
        format!("{PREFIX}{}:", self.0[0].id).into_bytes()
    }

    /// A random nonce and the ciphertext.
    fn encrypt(&self, id: &OperationId, part: Part, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        let nonce = random::<NONCE_BYTES>()?;
        let payload = Payload { msg: plain, aad: &associated_data(id, part) };
        let sealed = self.0[0].cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| StoreError::unavailable("a result is too large to be sealed"))?;
        Ok([&nonce, sealed.as_slice()].concat())
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Key {
    fn new(bytes: [u8; KEY_BYTES]) -> Self {
        let cipher = XChaCha20Poly1305::new(&KeyBytes::from(bytes));
        let hash = Sha256::new_with_prefix(b"onceward key id\0").chain_update(bytes).finalize();
        let digits = BASE32_NOPAD.encode(&hash).to_ascii_lowercase();
        Self { id: format!("{KEY_PREFIX}{}", &digits[..KEY_DIGITS]), cipher }
    }

    fn decrypt(&self, id: &OperationId, part: Part, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg: sealed, aad: &associated_data(id, part) };
        self.cipher.decrypt(&XNonce::from(*nonce), payload).ok()
    }
}

/// Which part of a record a value is.
#[derive(Debug, Clone, Copy)]
enum Part {
    Reason,
    Data,
    Body,
    Probe,
    Verify,
    Command,
    Folder,
    Undo,
    Request,
}

/// The texts of a record's detail. A reason that moves to the history stays a reason.
fn texts(detail: &mut onceward::Detail) -> impl Iterator<Item = (Part, &mut String)> {
    let own = [
        (Part::Probe, &mut detail.probe),
        (Part::Verify, &mut detail.verify),
        (Part::Command, &mut detail.command),
        (Part::Folder, &mut detail.folder),
    ];
    let past = detail.history.iter_mut().flat_map(|past| {
        past.reason.iter_mut().chain(past.settled_by.iter_mut().flat_map(|word| word.texts_mut()))
    });
    let held = detail.held.iter_mut().flat_map(|held| {
        let released = held.released.iter_mut().flat_map(Word::texts_mut);
        let request = held.request.iter_mut().map(|request| (Part::Request, request));
        request.chain(released.map(|text| (Part::Reason, text)))
    });
    let undo = detail.undo.as_mut().map(|undo| (Part::Undo, &mut undo.text));
    let own = own.into_iter().filter_map(|(part, text)| Some((part, text.as_mut()?)));
    let cancelled = detail.cancelled_by.iter_mut().flat_map(|word| word.texts_mut());
    own.chain(past.chain(cancelled).map(|text| (Part::Reason, text))).chain(held).chain(undo)
}

/// Why an outcome is what it is, and what someone said about it.
fn reasons(outcome: &mut Outcome) -> impl Iterator<Item = &mut String> {
    outcome.reason.iter_mut().chain(outcome.settled_by.iter_mut().flat_map(|word| word.texts_mut()))
}

/// The associated data of a value: moved to another operation or another part, it cannot be opened.
fn associated_data(id: &OperationId, part: Part) -> Vec<u8> {
    let part = match part {
        Part::Reason => "reason",
        Part::Data => "data",
        Part::Body => "body",
        Part::Probe => "probe",
        Part::Verify => "verify",
        Part::Command => "command",
        Part::Folder => "folder",
        Part::Undo => "undo",
        Part::Request => "request",
    };
    format!("{PREFIX}{part}:{id}").into_bytes()
}

fn decode(line: &str) -> Option<[u8; KEY_BYTES]> {
    let line = line.as_bytes();
    let encodings = [HEXLOWER_PERMISSIVE, BASE64, BASE64_NOPAD, BASE64URL_NOPAD];
    encodings.iter().find_map(|encoding| encoding.decode(line).ok()?.try_into().ok())
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::because("the system has no random numbers", error))?;
    Ok(bytes)
}
