//! Random settings, and damaged keys.

use http::Method;
use onceward_http::inbox::{Judgement, Signed, Source, SourceConfig, Trial};
use onceward_sim::random::Random;

use super::forged::Fuzzed;
use super::mutate::{Mutator, from_base64};
use super::{Counts, NOW_MS, URL, judge};
use crate::Trouble;
use crate::report::Rule;

/// How many requests each source with random settings gets.
const REQUESTS: u64 = 4;

/// Random settings: the parsers of places, templates and layouts, with requests that are signed under them, changed,
/// or made of pieces.
pub(super) fn round(random: &mut Random, executions: u64, counts: &Counts<'_>) -> Result<(), Trouble> {
    for execution in 0..executions {
        let mut mutator = Mutator { random: &mut *random, samples: &[] };
        let config = mutator.settings()?;
        let preset = config.preset.clone().unwrap_or_else(|| "hmac".to_owned());
        let Ok(trial) = Trial::with(&preset, config) else { continue };
        // The rest is an execution of the verifier. It is done for some, so that the settings take most of the time.
        if execution % REQUESTS != 0 {
            continue;
        }
        let request = mutator.request();
        let judgement = judge(&trial.source, &Method::POST, &request, NOW_MS, &trial);
        counts.judged(&judgement);
        if matches!(judgement, Judgement::Events(_) | Judgement::Confirm(_)) {
            counts.found(Rule::Forged, || format!("{request:?} with {:?}", trial.config));
        }
        // Some settings fit no request: a prefix that ends with a space, a time that the sample does not have.
        let Ok(fuzzed) = Fuzzed::new(&preset, trial, mutator.random, 1) else { continue };
        let mut mutator = Mutator { random: &mut *random, samples: &fuzzed.requests };
        let mut request = fuzzed.requests[0].clone();
        let mut now_ms = NOW_MS;
        mutator.change(&mut request, &mut now_ms);
        let judgement = judge(&fuzzed.trial.source, &Method::POST, &request, now_ms, &fuzzed.trial);
        counts.judged(&judgement);
        fuzzed.check(&Method::POST, &request, &judgement, counts);
    }
    Ok(())
}

/// How a key is written, and which part of its bytes is the key.
struct Notation {
    config: SourceConfig,
    secret: String,
    request: Signed,
    part: Part,
}

#[derive(Clone, Copy)]
enum Part {
    /// All of it.
    Whole,
    /// The first 32 bytes: the rest of a private key is the public one, which follows from it.
    Seed,
    /// The last 64 bytes: the point of a public key in DER.
    Point,
}

/// Damaged keys: each notation, with a request that the undamaged key signed.
pub(super) fn keys(random: &mut Random, executions: u64, counts: &Counts<'_>) -> Result<(), Trouble> {
    let notations = notations()?;
    for _ in 0..executions {
        let mut mutator = Mutator { random: &mut *random, samples: &[] };
        let Notation { config, secret, request, part } = &notations[mutator.random.index(notations.len())];
        let mut damaged = secret.clone().into_bytes();
        for _ in 0..=mutator.random.below(2) {
            mutator.change_bytes(&mut damaged);
        }
        let damaged = String::from_utf8_lossy(&damaged).into_owned();
        let Ok(source) = Source::new("hmac", config, &|_| Some(damaged.clone())) else { continue };
        let judgement = judge(&source, &Method::POST, request, NOW_MS, &super::certificates::NONE);
        counts.judged(&judgement);
        let is_same =
            || key_of(&damaged, *part).is_some() && key_of(&damaged, *part) == key_of(secret, *part);
        if matches!(judgement, Judgement::Events(_)) && !is_same() {
            counts.found(Rule::Forged, || format!("{damaged:?} is not the key {secret:?}"));
        }
    }
    Ok(())
}

fn notations() -> Result<Vec<Notation>, Trouble> {
    const STANDARD: &str = "signature = { header = \"webhook-signature\", separator = \" \", pair = \",\", \
         encoding = \"base64\", key = \"standard\", versions = { v1 = \"hmac-sha256\", v1a = \"ed25519\" } }";
    let config = |text: &str| -> Result<SourceConfig, Trouble> {
        let mut config: SourceConfig = toml::from_str(text)?;
        config.preset = Some("hmac".to_owned());
        config.secrets = vec!["$SECRET".to_owned()];
        Ok(config)
    };
    let mut all = Vec::new();
    for (text, secret, part) in [
        (STANDARD, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", Part::Whole),
        (STANDARD, "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=", Part::Seed),
        ("signature = { header = \"x\", key = \"hex\" }", "00ff10a0b1c2d3e4f5061728394a5b6c", Part::Whole),
        ("signature = { header = \"x\", key = \"base64\" }", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", Part::Whole),
    ] {
        let config = config(text)?;
        let source = Source::new("hmac", &config, &|_| Some(secret.to_owned()))?;
        let request = source.sign_sample(URL, 1, NOW_MS)?;
        all.push(Notation { config, secret: secret.to_owned(), request, part });
    }
    for (text, part) in [
        ("signature = { header = \"x\", key = \"hex\", algorithm = \"ed25519\" }", Part::Whole),
        ("signature = { header = \"x\", key = \"spki\", algorithm = \"ecdsa-p256\" }", Part::Point),
    ] {
        let trial = Trial::with("hmac", toml::from_str(text)?)?;
        let secret = trial.config.secrets[0].clone();
        all.push(Notation {
            config: config(text)?,
            secret,
            request: trial.sign_sample(URL, 1, NOW_MS)?,
            part,
        });
    }
    Ok(all)
}

/// The bytes of a key, read by a second reader. Both notations of bytes are tried; only one fits a key of this length.
fn key_of(secret: &str, part: Part) -> Option<Vec<u8>> {
    let text: String = secret.lines().filter(|line| !line.starts_with("-----")).collect();
    let text = text.trim();
    let text =
        ["whsec_", "whpk_", "whsk_"].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = if is_hex { from_hex(text) } else { from_base64(text.trim_end_matches('=')) }?;
    match part {
        // HMAC fills a key up with zeros, so a key with more of them at its end is the same key.
        Part::Whole => bytes.iter().rposition(|byte| *byte != 0).map(|last| bytes[..=last].to_vec()),
        Part::Seed => bytes.get(..32).map(<[u8]>::to_vec),
        Part::Point => bytes.get(bytes.len().checked_sub(64)?..).map(<[u8]>::to_vec),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
