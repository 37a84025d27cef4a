//! Two tenants with the same keys never see each other's answers, on any surface of the server.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::Bench;
use crate::serve::recorder::Recorder;
use crate::serve::rig::Server;

/// A server with an upstream, and two tenants.
struct Rig {
    // Ended before its folder is removed.
    server: Server,
    bench: Bench,
    upstream: Recorder,
    acme: String,
    globex: String,
}

impl Rig {
    fn start() -> Self {
        let bench = Bench::new();
        let upstream = Recorder::start("", "of the vendor");
        let mut policy = format!(
            "[serve]\nlisten = [\"127.0.0.1:0\"]\n[upstream.shop]\nurl = \"http://127.0.0.1:{}\"\n\
             allow_private = true\nclass = \"keyed\"\nkey = {{ in = \"header\", name = \"Idempotency-Key\" }}\n",
            upstream.port
        );
        let mut tenant = |name: &str, more: &str| {
            let made = bench.json(&["serve", "token", name]);
            let hash = made["data"]["hash"].as_str().unwrap();
            policy.push_str(&format!("[tenant.{name}]\ntokens = [\"{hash}\"]\n{more}\n"));
            made["data"]["token"].as_str().unwrap().to_owned()
        };
        let (acme, globex) = (tenant("acme", ""), tenant("globex", "max_body = 1024"));
        bench.policy(&policy);
        let server = Server::start(&bench, &[]);
        Self { bench, upstream, server, acme, globex }
    }

    /// A request of the API: its status, and its answer as text.
    fn text(&self, token: &str, path: &str, args: &[&str]) -> (u16, String) {
        let mut command = Command::new("curl");
        command.args(["-sS", "-w", "\n%{http_code}", "-H", &format!("Authorization: Bearer {token}")]);
        command.args(args).arg(format!("{}{path}", self.server.url()));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    fn get(&self, token: &str, path: &str) -> (u16, Value) {
        let (status, text) = self.text(token, path, &["-m", "30"]);
        (status, serde_json::from_str(&text).unwrap())
    }

    fn post(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.text(token, path, &["-m", "30", "--json", &body.to_string()]);
        (status, serde_json::from_str(&text).unwrap())
    }

    /// Pays through the gateway, with the credentials of the vendor's account that both share.
    fn pay(&self, token: &str) -> String {
        let token = format!("Once-Token: {token}");
        let args = ["-H", &token, "-H", "Idempotency-Key: order-7", "--json", r#"{"amount":100}"#];
        let (status, text) = self.text("of-the-vendor", "/gw/shop/pay", &args);
        assert_eq!(status, 200, "{text}");
        text
    }
}

#[test]
fn the_gateway_keeps_tenants_apart() {
    let rig = Rig::start();
    let (first, second) = (rig.pay(&rig.acme), rig.pay(&rig.globex));
    assert_eq!(rig.upstream.count("/pay"), 2, "each has its own payment");
    assert_ne!(first, second);
    assert_eq!((rig.pay(&rig.acme), rig.pay(&rig.globex)), (first, second), "each gets its own answer again");
    assert_eq!(rig.upstream.count("/pay"), 2);
    let keys: Vec<String> = rig
        .upstream
        .heard()
        .iter()
        .map(|request| String::from_utf8_lossy(request).to_lowercase())
        .filter_map(|request| Some(request.split_once("idempotency-key: ")?.1.lines().next()?.to_owned()))
        .collect();
    assert!(keys.len() == 2 && keys[0] != keys[1], "the vendor sees two keys: {keys:?}");
}

#[test]
fn the_ledger_api_keeps_tenants_apart() {
    let rig = Rig::start();
    let pay = json!({"name": "pay", "key": "order-7", "input": {"amount": 100}, "lease_ms": 60_000});
    let (status, acme) = rig.post(&rig.acme, "/v1/operations", &pay);
    assert_eq!(status, 201);
    let (status, globex) = rig.post(&rig.globex, "/v1/operations", &pay);
    assert_eq!(status, 201, "the key is free for the other tenant: {globex}");
    assert_ne!(acme["token"], globex["token"]);
    assert_ne!(acme["downstream_key"], globex["downstream_key"]);
    let path = |answer: &Value, rest: &str| {
        format!("/v1/operations/{}{rest}", answer["operation"]["id"].as_str().unwrap())
    };
    // The token of an attempt is of no use to the other tenant, even under the same id.
    let finish = |begun: &Value, data: &str| json!({"attempt": 1, "token": begun["token"], "data": data});
    let stolen = rig.post(&rig.globex, &path(&globex, "/finish"), &finish(&acme, "stolen"));
    assert_eq!((stolen.0, &stolen.1["code"]), (400, &json!("INVALID_INPUT")), "{}", stolen.1);
    // One that waits for its own operation hears nothing of the other's end.
    let events = path(&globex, "/wait?timeout=20");
    let listen = ["-N", "-m", "3", "-H", "Accept: text/event-stream"];
    let heard = std::thread::scope(|scope| {
        let listening = scope.spawn(|| rig.text(&rig.globex, &events, &listen));
        let done = rig.post(&rig.acme, &path(&acme, "/finish"), &finish(&acme, "for acme"));
        assert_eq!((done.0, &done.1["state"]), (200, &json!("done")));
        listening.join().unwrap()
    });
    assert!(heard.1.contains("running") && !heard.1.contains("done"), "{}", heard.1);
    assert!(!heard.1.contains("for acme"), "{}", heard.1);
    let polled = rig.get(&rig.globex, &path(&globex, "/wait?timeout=1"));
    assert_eq!(polled.1["state"], "running", "{}", polled.1);
    // A retry gets the tenant's own result.
    rig.post(&rig.globex, &path(&globex, "/finish"), &finish(&globex, "for globex"));
    for (token, data) in [(&rig.acme, "for acme"), (&rig.globex, "for globex")] {
        let (status, replayed) = rig.post(token, "/v1/operations", &pay);
        assert_eq!((status, &replayed["data"]), (200, &json!(data)));
    }
}

#[test]
fn what_only_one_tenant_has_is_not_there_for_the_other() {
    let rig = Rig::start();
    let secret = json!({"name": "pay", "key": "only-acme", "scope": "run-of-acme", "lease_ms": 60_000});
    let (_, acme) = rig.post(&rig.acme, "/v1/operations", &secret);
    let id = acme["operation"]["id"].as_str().unwrap();
    let attempt = json!({"attempt": 1, "token": acme["token"]});
    let with = |name: &str, value: Value| {
        let mut body = attempt.clone();
        body[name] = value;
        body
    };
    for (rest, body) in [
        ("renew", attempt.clone()),
        ("dispatch", attempt.clone()),
        ("finish", with("data", json!(1))),
        ("fail", json!({"attempt": 1, "token": acme["token"], "reason": "x", "evidence": "not_sent"})),
        ("doubt", with("reason", json!("x"))),
        ("settle", json!({"verdict": "done", "evidence": "x", "by": "x"})),
        ("cancel", json!({})),
    ] {
        let (status, refused) = rig.post(&rig.globex, &format!("/v1/operations/{id}/{rest}"), &body);
        assert!(matches!(status, 400 | 404), "{rest}: {status} {refused}");
        assert!(!refused.to_string().contains("only-acme"), "{rest}: {refused}");
    }
    for rest in ["", "/wait?timeout=1"] {
        let (status, missing) = rig.get(&rig.globex, &format!("/v1/operations/{id}{rest}"));
        assert_eq!((status, &missing["code"]), (404, &json!("NOT_FOUND")), "{rest}: {missing}");
    }
    let listen = ["-N", "-m", "5", "-H", "Accept: text/event-stream"];
    let (status, text) = rig.text(&rig.globex, &format!("/v1/operations/{id}/wait"), &listen);
    assert_eq!(status, 404, "{text}");
    // Lists and reports, also with the name that the ledger gives to the other tenant's scope.
    for query in ["", "?scope=run-of-acme", "?scope=acme/run-of-acme", "?key=only-acme", "?name=pay"] {
        let (status, listed) = rig.get(&rig.globex, &format!("/v1/operations{query}"));
        assert_eq!(status, 200, "{listed}");
        assert!(!listed.to_string().contains(id) && !listed.to_string().contains("only-acme"), "{listed}");
    }
    for query in ["", "?scope=run-of-acme", "?scope=acme/run-of-acme"] {
        let (_, report) = rig.get(&rig.globex, &format!("/v1/report{query}"));
        assert_eq!((&report["total"], &report["settled"]), (&json!(0), &json!(true)), "{report}");
    }
    assert_eq!(rig.get(&rig.acme, "/v1/report?scope=run-of-acme").1["total"], 1);
    // The protocol of ledgers over HTTP shows the same view.
    for (token, count) in [(&rig.acme, 1), (&rig.globex, 0)] {
        let mut command = rig.bench.command(&["--json", "ls"]);
        command.env("ONCE_LEDGER", rig.server.url()).env("ONCE_TOKEN", token);
        let listed: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        assert_eq!(listed["data"].as_array().map(Vec::len), Some(count), "{listed}");
    }
    // Metrics know neither tenants nor their scopes, names, keys and ids.
    let (status, metrics) = rig.text("", "/metrics", &[]);
    assert_eq!(status, 200);
    for word in ["acme", "globex", "pay", "only-acme", id, "run-of", "tenant"] {
        assert!(!metrics.contains(word), "{word}: {metrics}");
    }
}

/// A tenant's limit holds for the API and for the gateway, with and without a declared length.
#[test]
fn the_longest_body_of_a_tenant_is_its_own() {
    let rig = Rig::start();
    rig.bench.write("body", format!("{{\"amount\":1,\"note\":\"{}\"}}", "x".repeat(2_000)));
    let body = format!("@{}", rig.bench.path("body").display());
    for (token, path, chunked, expected) in [
        (&rig.acme, "/gw/shop/a", false, 200),
        (&rig.acme, "/gw/shop/b", true, 200),
        (&rig.globex, "/gw/shop/c", false, 413),
        (&rig.globex, "/gw/shop/d", true, 400),
        (&rig.globex, "/v1/operations", false, 413),
        (&rig.globex, "/v1/operations", true, 413),
    ] {
        let token = format!("Once-Token: {token}");
        let mut args = vec!["-H", &token, "-H", "Content-Type: application/json", "--data-binary", &body];
        if chunked {
            args.extend(["-H", "Transfer-Encoding: chunked"]);
        }
        let (status, text) = rig.text("of-the-vendor", path, &args);
        assert_eq!(status, expected, "{path}: {text}");
    }
    assert_eq!(rig.upstream.heard().len(), 2, "nothing of the other tenant was sent");
}

/// The numbers are those of all tenants, so a tenant's token does not open them.
#[test]
fn metrics_on_a_network_address_need_a_token_of_their_own() {
    let mut rig = Rig::start();
    let made = rig.bench.json(&["serve", "token", "--metrics"]);
    let (token, hash) = (made["data"]["token"].as_str().unwrap(), made["data"]["hash"].as_str().unwrap());
    let policy = rig.bench.read("onceward.toml").replace(
        "listen = [\"127.0.0.1:0\"]",
        &format!("listen = [\"0.0.0.0:0\"]\nmetrics_tokens = [\"{hash}\"]"),
    );
    rig.bench.policy(&policy);
    rig.server = Server::start(&rig.bench, &[]);
    let port = rig.server.url().rsplit_once(':').unwrap().1.to_owned();
    let asked = |path: &str, token: Option<&str>| {
        let mut command = Command::new("curl");
        command.args(["-sS", "-m", "30", "-w", "\n%{http_code}", &format!("http://127.0.0.1:{port}{path}")]);
        command.args(token.map(|token| format!("-HAuthorization: Bearer {token}")));
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse::<u16>().unwrap(), body.to_owned())
    };
    for wrong in [None, Some(rig.acme.as_str()), Some("once_wrong")] {
        let (status, refused) = asked("/metrics", wrong);
        assert_eq!(status, 401, "{refused}");
        assert!(refused.contains("AUTH_REQUIRED") && !refused.contains("onceward_ledger_up"), "{refused}");
    }
    let (status, metrics) = asked("/metrics", Some(token));
    assert!(status == 200 && metrics.contains("onceward_ledger_up 1"), "{metrics}");
    assert_eq!(asked("/v1/report", Some(token)).0, 401, "it opens nothing else");
    // What a load balancer may ask reveals nothing but a yes or a no.
    assert_eq!(asked("/healthz", None), (200, "ok\n".to_owned()));
    assert_eq!(asked("/readyz", None), (200, "ready\n".to_owned()));
}
