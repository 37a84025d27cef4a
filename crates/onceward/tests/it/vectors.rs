//! The published vectors, checked through the public API. Another implementation of the same rules computed them.

use std::collections::{HashMap, HashSet};

use onceward::{Json, Operation};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    #[serde(rename = "about")]
    _about: String,
    version: u32,
    cases: Vec<Case>,
    refused: Vec<Refused>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    description: String,
    input: String,
    name: String,
    scope: String,
    given_key: Option<String>,
    key_fields: Vec<String>,
    volatile: Vec<String>,
    occurrence: Option<String>,
    canonical: String,
    key: String,
    fingerprint: String,
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    description: String,
    input: String,
    name: String,
    scope: String,
    given_key: Option<String>,
    key_fields: Vec<String>,
    volatile: Vec<String>,
    occurrence: Option<String>,
    reason: String,
}

macro_rules! operation {
    ($case:ident) => {{
        let mut operation = Operation::new(&$case.name)
            .scope(&$case.scope)
            .input_json(&$case.input)
            .key_fields(&$case.key_fields)
            .volatile(&$case.volatile);
        if let Some(key) = &$case.given_key {
            operation = operation.key(key);
        }
        if let Some(occurrence) = &$case.occurrence {
            operation = operation.occurrence(occurrence);
        }
        operation
    }};
}

#[test]
fn every_case_has_the_published_identity() {
    let vectors = vectors();
    for case in &vectors.cases {
        let about = &case.description;
        let canonical = Json::parse(&case.input).unwrap().canonical();
        assert_eq!(canonical, case.canonical, "canonical text of: {about}");
        let intent = operation!(case).intent().unwrap();
        assert_eq!(intent.key.text, case.key, "key of: {about}");
        assert_eq!(intent.fingerprint.as_str(), case.fingerprint, "fingerprint of: {about}");
        assert_eq!(intent.id.as_str(), case.id, "id of: {about}");
    }
}

#[test]
fn every_refusal_names_its_reason() {
    for case in &vectors().refused {
        let problem = operation!(case).intent().expect_err(&case.description).to_string();
        assert!(
            problem.contains(&case.reason),
            "{}: {problem:?} does not say {:?}",
            case.description,
            case.reason
        );
    }
}

/// The file is published, so it must be consistent.
#[test]
fn the_file_is_sound() {
    let vectors = vectors();
    assert_eq!(vectors.version, 1);
    assert!(vectors.cases.len() >= 100 && vectors.refused.len() >= 50);
    let mut descriptions = HashSet::new();
    let mut meaning_of_key = HashMap::new();
    for case in &vectors.cases {
        assert!(descriptions.insert(&case.description), "twice: {}", case.description);
        let again = Json::parse(&case.canonical).unwrap().canonical();
        assert_eq!(again, case.canonical, "canonical text is its own canonical text: {}", case.description);
        if case.given_key.is_none() && case.key_fields.is_empty() {
            let occurrence = case.occurrence.clone().unwrap_or_else(|| "1".to_owned());
            let meaning = (&case.name, &case.canonical, occurrence);
            let other = meaning_of_key.insert(&case.key, meaning.clone());
            assert!(
                other.is_none_or(|other| other == meaning),
                "one key for two meanings: {}",
                case.description
            );
        }
    }
    assert!(vectors.refused.iter().all(|case| descriptions.insert(&case.description)));
}

#[expect(clippy::expect_used, reason = "a test may")]
fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../vectors/keys.json")).expect("the vectors are JSON of this shape")
}
