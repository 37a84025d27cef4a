//! Signed settlements: a hash chain over the lines, and an Ed25519 signature over the canonical JSON (RFC 8785).
//!
//! ```text
//! {"settlement": {…}, "chain": [hex, …], "signed_at": time, "public_key": hex, "signature": hex}
//! ```
//! The first link of the chain is the SHA-256 of the settlement without its lines. Each further link is the SHA-256 of
//! the link before it, followed by the canonical JSON of its line. The signature is over the canonical JSON of
//! `{"chain": …, "settlement": …, "signed_at": …}`. The time is the ledger's own.

use std::path::Path;
use std::process::ExitCode;

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use onceward::{Json, Settlement};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::answer;
use crate::cli::VerifyReportArgs;
use crate::exit::{CommandError, Ended};

/// The largest file with a key or a report that is read.
const MAX_KEY: u64 = 16 * 1024;

/// The members of a signed report.
const MEMBERS: [&str; 5] = ["settlement", "chain", "signed_at", "public_key", "signature"];

/// What was checked.
#[derive(Serialize)]
struct Verified {
    scope: String,
    lines: usize,
    signed_at: String,
    public_key: String,
    /// Whether the key is one that the caller named. Otherwise the report only agrees with itself.
    trusted: bool,
}

/// The settlement with its chain and its signature.
pub(super) fn sign(settlement: &Settlement, signed_at: &str, key_file: &Path) -> Result<Value, CommandError> {
    let key = read_key(key_file)?;
    let settlement =
        serde_json::to_value(settlement).map_err(|error| CommandError::invalid(error.to_string()))?;
    let chain = chain(&settlement)?;
    let signature = key.sign(signed_text(&settlement, &chain, signed_at)?.as_bytes());
    Ok(json!({
        "settlement": settlement,
        "chain": chain,
        "signed_at": signed_at,
        "public_key": HEXLOWER.encode(key.public_key().as_ref()),
        "signature": HEXLOWER.encode(signature.as_ref()),
    }))
}

/// `once verify-report`: needs neither a ledger nor a network.
pub(super) fn verify(args: &VerifyReportArgs, json_wanted: bool) -> Ended {
    let file = args.file.display();
    let unread = |why: String| CommandError::invalid(format!("cannot read {file}: {why}"));
    let text = std::fs::read_to_string(&args.file).map_err(|error| unread(error.to_string()))?;
    // Programs differ in which of two members with one name they read, so a name that occurs twice is refused.
    Json::parse(&text).map_err(|error| unread(error.to_string()))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| unread(error.to_string()))?;
    let unsigned =
        report.as_object().into_iter().flatten().find(|(name, _)| !MEMBERS.contains(&name.as_str()));
    if let Some((name, _)) = unsigned {
        return Err(unread(format!("it has a member {name:?}, which the signature does not cover")));
    }
    let field = |name: &str| {
        report[name].as_str().ok_or_else(|| unread(format!("it has no {name}: it is not a signed report")))
    };
    let (public_key, signature, signed_at) = (field("public_key")?, field("signature")?, field("signed_at")?);
    let refuse = |why: &str| CommandError::invalid(format!("{file} is not genuine: {why}"));
    let named = args.key.as_ref().map(|key| read_public(key)).transpose()?;
    if named.as_ref().is_some_and(|named| named != public_key) {
        return Err(refuse("it was signed with another key"));
    }
    let settlement = &report["settlement"];
    let expected = chain(settlement)?;
    if report["chain"] != json!(expected) {
        return Err(refuse("its lines were changed after it was written"));
    }
    let bytes = |text: &str| HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| refuse("it is damaged"));
    let key = UnparsedPublicKey::new(&ED25519, bytes(public_key)?);
    let text = signed_text(settlement, &expected, signed_at)?;
    if key.verify(text.as_bytes(), &bytes(signature)?).is_err() {
        return Err(refuse("the signature does not fit"));
    }
    let verified = Verified {
        scope: settlement["scope"].as_str().unwrap_or_default().to_owned(),
        lines: expected.len() - 1,
        signed_at: signed_at.to_owned(),
        public_key: public_key.to_owned(),
        trusted: named.is_some(),
    };
    let warnings = (!verified.trusted)
        .then(|| "no --key was given, so anyone may have signed it: compare the public key".to_owned());
    answer::success_with(json_wanted, "noop", &verified, warnings.into_iter().collect(), || {
        format!(
            "the report on {} with {} lines is as it was signed at {} with {}",
            onceward::text::one_line(&verified.scope),
            verified.lines,
            onceward::text::one_line(&verified.signed_at),
            verified.public_key
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// The hash chain over a settlement.
fn chain(settlement: &Value) -> Result<Vec<String>, CommandError> {
    let mut head = settlement.clone();
    let lines = head.as_object_mut().and_then(|head| head.remove("lines")).unwrap_or_default();
    let mut link = Sha256::digest(canonical(&head)?);
    let mut chain = vec![HEXLOWER.encode(&link)];
    for line in lines.as_array().into_iter().flatten() {
        link = Sha256::new().chain_update(link).chain_update(canonical(line)?).finalize();
        chain.push(HEXLOWER.encode(&link));
    }
    Ok(chain)
}

fn signed_text(settlement: &Value, chain: &[String], signed_at: &str) -> Result<String, CommandError> {
    canonical(&json!({"chain": chain, "settlement": settlement, "signed_at": signed_at}))
}

fn canonical(value: &Value) -> Result<String, CommandError> {
    Ok(Json::parse(&value.to_string())?.canonical())
}

/// A private key: PKCS#8, as `openssl genpkey -algorithm ed25519` writes it.
fn read_key(file: &Path) -> Result<Ed25519KeyPair, CommandError> {
    let der = read_pem(file)?;
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(|_| {
        let how = "openssl genpkey -algorithm ed25519 -out KEYFILE";
        CommandError::invalid(format!("{} is not an Ed25519 key; `{how}` makes one", file.display()))
    })
}

/// A public key: the hexadecimal form that a report has, or a PEM file (`openssl pkey -pubout`).
fn read_public(key: &str) -> Result<String, CommandError> {
    if key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(key.to_ascii_lowercase());
    }
    let der = read_pem(Path::new(key))?;
    // The last 32 bytes of the structure are the key.
    let start = der.len().saturating_sub(32);
    Ok(HEXLOWER.encode(&der[start..]))
}

fn read_pem(file: &Path) -> Result<Vec<u8>, CommandError> {
    let unread = |why: String| CommandError::invalid(format!("cannot read {}: {why}", file.display()));
    let size = std::fs::metadata(file).map_err(|error| unread(error.to_string()))?.len();
    if size > MAX_KEY {
        return Err(unread("it is too large for a key".to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unread(error.to_string()))?;
    let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    BASE64.decode(body.trim().as_bytes()).map_err(|_| unread("it is not a PEM file".to_owned()))
}
