//! Hostile webhooks: signed requests of every preset, changed at random. None may make the verifier panic, and none may
//! be accepted whose signed parts were changed.
//!
//! The oracle does not know the schemes: an accepted request must have the digest of a request that was really signed,
//! and where the whole body is signed, its body.

mod mutate;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method};
use onceward_http::inbox::presets;
use onceward_http::inbox::{Event, Judgement, Reason, Received, Sample, Signed, Source, SourceConfig, Trial};
use onceward_sim::random::Random;

use self::mutate::Mutator;
use crate::Trouble;
use crate::args::Args;
use crate::bench::{Bench, progress};
use crate::report::{Rule, Tally};

const EXECUTIONS: u64 = 10_000_000;
const SHORT_EXECUTIONS: u64 = 4_000;
/// How many executions use the same keys and samples.
const ROUND: u64 = 10_000;
const SAMPLES: u64 = 4;
const NOW_MS: i64 = 1_769_860_800_000;
const URL: &str = "https://example.com/hooks/in?a=1&b=2";
/// Presets whose signature covers the body byte for byte. Twilio signs decoded fields, PayPal a CRC-32, Amazon SNS
/// some fields; a token signs nothing.
const NOT_BYTE_FOR_BYTE: [&str; 4] = ["twilio", "paypal", "sns", "cloudevents"];

/// Who sends the changed requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// Someone without the keys.
    Stranger,
    /// Someone with the keys, who signs the changes: this must be found.
    KeyHolder,
}

/// Runs the executions for each preset, and as many with random settings.
pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let sender = if args.not_safe { Sender::KeyHolder } else { Sender::Stranger };
    let executions = args.executions.unwrap_or(if bench.short { SHORT_EXECUTIONS } else { EXECUTIONS });
    let mut targets: Vec<&str> = presets::all()?.keys().map(String::as_str).collect();
    targets.push(mutate::SETTINGS);
    let rounds = executions.div_ceil(ROUND);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let all = rounds * targets.len() as u64;
    let length = executions.min(ROUND);
    let work = || -> Result<(), Trouble> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= all {
                return Ok(());
            }
            let target = targets[usize::try_from(number % targets.len() as u64)?];
            let mut random = bench.random(&format!("inbox-fuzz {target} {number}"));
            let round = AssertUnwindSafe(|| round(target, sender, &mut random, length, tally));
            match std::panic::catch_unwind(round) {
                Ok(result) => result?,
                Err(_) => tally.violated(Rule::Unexpected, format!("{target}: round {number} panicked")),
            }
            tally.figure(target, length);
            let sum = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(&format!("inbox-fuzz {sum} of {all} rounds"));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        ended.collect::<Result<Vec<()>, Trouble>>().map(drop)
    })
}

fn round(
    target: &str,
    sender: Sender,
    random: &mut Random,
    executions: u64,
    tally: &Tally,
) -> Result<(), Trouble> {
    if target == mutate::SETTINGS {
        return settings(random, executions, tally);
    }
    let fuzzed = Fuzzed::new(target, random)?;
    let mut accepted = 0;
    for _ in 0..executions {
        let mut request = fuzzed.samples[random.index(fuzzed.samples.len())].request.clone();
        let mut now_ms = NOW_MS;
        let mut mutator = Mutator { random: &mut *random, samples: &fuzzed.requests };
        let changes = 1 + mutator.random.below(3);
        for _ in 0..changes {
            mutator.change(&mut request, &mut now_ms);
        }
        if sender == Sender::KeyHolder {
            request = fuzzed.signed_again(request)?;
        }
        match fuzzed.judge(&request, now_ms) {
            Judgement::Events(events) => {
                accepted += 1;
                fuzzed.check(&request, &events, tally);
            }
            Judgement::Rejected(rejection) if !Reason::ALL.contains(&rejection.reason) => {
                tally.violated(Rule::Unexpected, format!("{target}: {rejection:?}"));
            }
            // No sample is a handshake, and without a key none can be made of one.
            judgement @ (Judgement::Challenge(_) | Judgement::Confirm(_)) if target != "cloudevents" => {
                tally.violated(Rule::Forged, format!("{target}: {judgement:?} for {request:?}"));
            }
            Judgement::Challenge(_) | Judgement::Confirm(_) | Judgement::Rejected(_) => {}
        }
    }
    tally.cases(executions);
    tally.figure("accepted, with nothing signed changed", accepted);
    Ok(())
}

/// A preset with keys of its own, and requests that they signed.
struct Fuzzed {
    preset: String,
    trial: Trial,
    samples: Vec<Genuine>,
    requests: Vec<Signed>,
}

struct Genuine {
    request: Signed,
    event: Event,
}

impl Fuzzed {
    fn new(preset: &str, random: &mut Random) -> Result<Self, Trouble> {
        let trial = Trial::new(preset)?;
        let mut fuzzed = Self { preset: preset.to_owned(), trial, samples: Vec::new(), requests: Vec::new() };
        for _ in 0..SAMPLES {
            let request = fuzzed.trial.sign_sample(URL, random.draw(), NOW_MS)?;
            let Judgement::Events(mut events) = fuzzed.judge(&request, NOW_MS) else {
                return Err(format!("{preset}: a signed sample was refused").into());
            };
            let event = events.pop().ok_or("a sample has no event")?;
            fuzzed.requests.push(request.clone());
            fuzzed.samples.push(Genuine { request, event });
        }
        Ok(fuzzed)
    }

    fn judge(&self, request: &Signed, now_ms: i64) -> Judgement {
        let (headers, body) = (&request.headers, &request.body);
        let received = Received { method: &Method::POST, url: &request.url, headers, body };
        pollster::block_on(self.trial.source.judge(&received, now_ms, &self.trial))
    }

    fn signed_again(&self, request: Signed) -> Result<Signed, Trouble> {
        let Signed { url, headers, body } = request;
        Ok(self.trial.sign(&Sample { url, id: "forged".to_owned(), headers, body, now_ms: NOW_MS })?)
    }

    fn check(&self, request: &Signed, events: &[Event], tally: &Tally) {
        if self.preset == "cloudevents" {
            // Only the token is secret. Spaces around a header's value are not part of it.
            let token = |headers: &HeaderMap| {
                headers.get("authorization").map(|value| value.as_bytes().trim_ascii().to_vec())
            };
            if token(&request.headers) != token(&self.samples[0].request.headers) {
                tally.violated(Rule::Forged, format!("accepted without the token: {request:?}"));
            }
            return;
        }
        let is_exact = !NOT_BYTE_FOR_BYTE.contains(&self.preset.as_str());
        let is_genuine = |event: &Event| {
            self.samples.iter().any(|known| {
                let same_id = !event.is_id_signed || event.id == known.event.id;
                let same_body = !is_exact || event.body == known.event.body;
                known.event.digest == event.digest && same_id && same_body
            })
        };
        if events.is_empty() || !events.iter().all(is_genuine) {
            tally.violated(Rule::Forged, format!("{}: accepted: {request:?}", self.preset));
        }
    }
}

/// Random settings and random requests: the parsers of places, templates, keys and certificates.
fn settings(random: &mut Random, executions: u64, tally: &Tally) -> Result<(), Trouble> {
    let samples: Vec<Signed> = Vec::new();
    let mut accepted = 0;
    for _ in 0..executions {
        let mut mutator = Mutator { random: &mut *random, samples: &samples };
        let (config, secret) = mutator.settings()?;
        let certificate = mutator.certificate();
        let request = mutator.request();
        let Ok(source) = Source::new("hmac", &config, &|_| Some(secret.clone())) else { continue };
        accepted += 1;
        let received = Received {
            method: &Method::POST,
            url: &request.url,
            headers: &request.headers,
            body: &request.body,
        };
        let judgement = pollster::block_on(source.judge(&received, NOW_MS, &certificate));
        if matches!(judgement, Judgement::Events(_) | Judgement::Confirm(_)) && !is_token(&config) {
            tally.violated(Rule::Forged, format!("accepted: {request:?} with {config:?}"));
        }
    }
    tally.cases(executions);
    tally.figure("valid settings", accepted);
    Ok(())
}

fn is_token(config: &SourceConfig) -> bool {
    config.preset.as_deref() == Some("cloudevents")
}

/// An empty request.
fn empty(url: &str) -> Signed {
    Signed { url: url.to_owned(), headers: HeaderMap::new(), body: Bytes::new() }
}
