//! The OpenAPI document describes every route of the ledger API, and the server answers as it says.

use std::collections::BTreeSet;

use crate::common::Server;
use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};

/// Every route that this crate's API has, as its documentation lists them.
const ROUTES: [(&str, &str); 23] = [
    ("post", "/v1/operations"),
    ("get", "/v1/operations"),
    ("get", "/v1/operations/{id}"),
    ("get", "/v1/operations/{id}/wait"),
    ("get", "/v1/report"),
    ("post", "/v1/operations/{id}/renew"),
    ("post", "/v1/operations/{id}/dispatch"),
    ("post", "/v1/operations/{id}/finish"),
    ("post", "/v1/operations/{id}/fail"),
    ("post", "/v1/operations/{id}/doubt"),
    ("post", "/v1/operations/{id}/settle"),
    ("post", "/v1/operations/{id}/cancel"),
    ("post", "/v1/operations/{id}/release"),
    ("post", "/v1/stop"),
    ("post", "/v1/resume"),
    ("get", "/v1/inbox"),
    ("get", "/v1/inbox/{source}/events"),
    ("get", "/v1/inbox/{source}/events/{key}"),
    ("post", "/v1/inbox/{source}/events/{key}/retry"),
    ("post", "/v1/inbox/{source}/events/{key}/replay"),
    ("get", "/v1/inbox/{source}/rejected"),
    ("post", "/v1/inbox/{source}/receive"),
    ("get", "/v1/openapi.json"),
];

async fn document(server: &Server) -> Value {
    server.get("/v1/openapi.json").await.is(200)
}

#[tokio::test]
async fn every_route_is_described_and_every_description_is_a_route() {
    let server = Server::new("");
    let document = document(&server).await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            described.insert((method.clone(), path.clone()));
            // A route that is not there answers 404 without the code of an operation, or 405.
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace("{id}", &format!("op_{}", "a".repeat(32)));
            let request = Request::builder().method(method).uri(&path).body(Body::empty()).unwrap();
            let reply = server.send(request).await;
            assert_ne!(reply.status, 405, "{path}");
            assert!(!reply.text.contains("there is nothing at this path"), "{path}");
        }
    }
    let expected: BTreeSet<(String, String)> = ROUTES
        .iter()
        .filter(|(_, path)| !path.ends_with("openapi.json"))
        .map(|(method, path)| ((*method).to_owned(), (*path).to_owned()))
        .collect();
    assert_eq!(described, expected);
}

/// Every `$ref` leads somewhere, and every problem has the media type of problem documents.
#[tokio::test]
async fn the_document_is_consistent() {
    let document = document(&Server::new("")).await;
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 20);
    for reference in references {
        let place = reference.strip_prefix('#').expect("a local reference");
        assert!(document.pointer(place).is_some(), "{reference}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                operation["operationId"].is_string() && operation["summary"].is_string(),
                "{method} {path}"
            );
            for (status, response) in operation["responses"].as_object().unwrap() {
                let kinds: Vec<&String> = response["content"].as_object().unwrap().keys().collect();
                let is_success = status.starts_with('2');
                let is_problem = kinds.iter().all(|kind| *kind == "application/problem+json");
                assert_eq!(is_problem, !is_success, "{method} {path} {status}: {kinds:?}");
            }
        }
    }
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match (name.as_str(), value) {
            ("$ref", Value::String(reference)) => references.push(reference.clone()),
            (_, value) => collect(value, references),
        }),
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The fields of an answer are those of its schema.
#[tokio::test]
async fn answers_have_the_described_fields() {
    let server = Server::new("");
    let document = document(&server).await;
    let begun = server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.is(201);
    let id = begun["operation"]["id"].as_str().unwrap().to_owned();
    let report = |more: Value| {
        let mut report = json!({"attempt": 1, "token": begun["token"]});
        report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        report
    };
    let renewed = server.post(&format!("/v1/operations/{id}/renew"), report(json!({}))).await.is(200);
    let doubt = report(json!({"reason": "lost", "data": {"a": 1}}));
    let detail = server.post(&format!("/v1/operations/{id}/doubt"), doubt).await.is(200);
    let problem = server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.is(424);
    let listed = server.get("/v1/operations").await.is(200);
    let summary = server.get("/v1/report").await.is(200);
    let dry = server.post("/v1/operations", json!({"name": "x", "key": "1", "dry_run": true})).await.is(200);
    for (schema, answer) in [
        ("BegunAttempt", &begun),
        ("RenewedLease", &renewed),
        ("OperationDetail", &detail),
        ("Problem", &problem),
        ("OperationList", &listed),
        ("Report", &summary),
        ("Answer", &dry),
    ] {
        let place = format!("#/components/schemas/{schema}");
        let (mut known, mut required) = (BTreeSet::new(), BTreeSet::new());
        fields(&document, &json!({"$ref": place}), &mut known, &mut required);
        let found: BTreeSet<String> = answer.as_object().unwrap().keys().cloned().collect();
        let unknown: Vec<&String> = found.difference(&known).collect();
        let missing: Vec<&String> = required.difference(&found).collect();
        assert!(
            unknown.is_empty() && missing.is_empty(),
            "{schema}: unknown {unknown:?}, missing {missing:?}"
        );
    }
}

/// The fields of a schema, also of those that it is composed of.
fn fields(document: &Value, schema: &Value, known: &mut BTreeSet<String>, required: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let place = reference.strip_prefix('#').unwrap();
        return fields(document, document.pointer(place).unwrap(), known, required);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        fields(document, part, known, required);
    }
    known.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    let names = schema["required"].as_array().into_iter().flatten();
    required.extend(names.map(|name| name.as_str().unwrap().to_owned()));
}

/// The examples of requests are requests that the server accepts.
#[tokio::test]
async fn the_examples_are_accepted() {
    let server = Server::new("");
    let schemas = document(&server).await["components"]["schemas"].clone();
    let mut examples = 0;
    for (name, schema) in schemas.as_object().unwrap() {
        let Some(example) = schema.get("example").or_else(|| schema["examples"].get(0)) else { continue };
        examples += 1;
        match name.as_str() {
            "BeginRequest" => drop(server.post("/v1/operations", example.clone()).await.is(201)),
            "SettleRequest" => {
                let begun = server.post("/v1/operations", json!({"name": "pay", "key": "s"})).await.is(201);
                let path = format!("/v1/operations/{}", begun["operation"]["id"].as_str().unwrap());
                let doubt = json!({"attempt": 1, "token": begun["token"], "reason": "lost"});
                server.post(&format!("{path}/doubt"), doubt).await.is(200);
                server.post(&format!("{path}/settle"), example.clone()).await.is(200);
            }
            "StopRequest" => drop(server.post("/v1/stop", example.clone()).await.is(200)),
            "WordRequest" => {
                let begun = server.post("/v1/operations", json!({"name": "pay", "key": "c"})).await.is(201);
                let id = begun["operation"]["id"].as_str().unwrap();
                server.post(&format!("/v1/operations/{id}/cancel"), example.clone()).await.is(202);
            }
            "ResumeRequest" => drop(server.post("/v1/resume", example.clone()).await.is(200)),
            other => panic!("the example of {other} is not tried"),
        }
    }
    assert_eq!(examples, 5);
}

/// The table of the documentation has every route of operations and scopes; those of webhooks have a page of their own.
#[test]
fn the_documentation_lists_every_route() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve.md")).unwrap();
    let (_, table) = page.split_once("## The API").unwrap();
    for (method, path) in ROUTES.iter().filter(|(_, path)| !path.starts_with("/v1/inbox")) {
        let request = format!("`{} {path}", method.to_uppercase());
        let (_, last) = path.rsplit_once('/').unwrap();
        // Several ways to end an attempt share a row.
        let listed = table.contains(&request) || table.contains(&format!("`/{last}`"));
        assert!(listed, "{request}");
    }
}
