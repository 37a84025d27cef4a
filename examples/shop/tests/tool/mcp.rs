//! The same commands as MCP tools: true annotations, the same ledger, both eras of the protocol.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use onceward::{Effect, OperationId, Outcome, Verdict, Word};
use serde_json::{Value, json};

use crate::fixture::{Fixture, count, told};

struct Client {
    server: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    next: u64,
}

impl Client {
    fn of(mut command: std::process::Command) -> Self {
        command.arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().unwrap();
        let (to, from) =
            (server.stdin.take().unwrap(), BufReader::new(server.stdout.take().unwrap()).lines());
        Self { server, to, from, next: 1 }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to, "{message}").unwrap();
    }

    fn receive(&mut self) -> Value {
        serde_json::from_str(&self.from.next().unwrap().unwrap()).unwrap()
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let answer = self.receive();
        assert_eq!(answer["id"], id);
        answer
    }

    fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": name, "arguments": arguments}))["result"].clone()
    }

    fn end(self) -> i32 {
        let Self { mut server, to, .. } = self;
        drop(to);
        server.wait().unwrap().code().unwrap()
    }
}

#[test]
fn annotations_are_true_and_schemas_are_claps() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.command());
    let hello = client.ask("initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}}));
    assert_eq!(hello["result"]["protocolVersion"], "2025-06-18");
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let listed = client.ask("tools/list", json!({}));
    assert!(listed["result"].get("ttlMs").is_none(), "the legacy era does not know it");
    let tools = listed["result"]["tools"].as_array().unwrap().clone();
    let hints = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        let hint = |word: &str| tool["annotations"][word].as_bool().unwrap();
        (hint("readOnlyHint"), hint("destructiveHint"), hint("idempotentHint"))
    };
    assert_eq!(tools.len(), 9, "seven commands, and two for what is in doubt");
    assert_eq!(hints("get-order"), (true, false, true));
    assert_eq!(hints("create-order"), (false, false, true));
    assert_eq!(hints("delete-user"), (false, true, true));
    let schema = &tools.iter().find(|tool| tool["name"] == "delete-user").unwrap()["inputSchema"];
    assert_eq!(schema["required"], json!(["id"]));
    assert_eq!(schema["properties"]["id"]["type"], "integer");
    for given in ["confirm", "dry_run", "idempotency_key", "occurrence", "scope"] {
        assert!(schema["properties"].get(given).is_some(), "{given}");
    }
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    assert_eq!(client.ask("resources/list", json!({}))["error"]["code"], -32601);
    assert_eq!(client.end(), 0);
}

#[test]
fn calls_are_guarded_by_the_same_ledger_as_the_command_line() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.command());
    let order = json!({"customer": "ada", "amount": 100, "scope": "run-7"});
    let first = client.call("create-order", order.clone());
    assert_eq!(
        (&first["isError"], &first["structuredContent"]["effect"]),
        (&false.into(), &"created".into())
    );
    let retry = client.call("create-order", order);
    assert_eq!(retry["structuredContent"]["effect"], "noop");
    assert_eq!(retry["structuredContent"]["data"], first["structuredContent"]["data"]);
    assert_eq!(shop.run("create-order --customer ada --amount 100 --scope run-7").told(), told("noop", 0));
    let text: Value = serde_json::from_str(retry["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, retry["structuredContent"]);
    let read = client.call("get-order", json!({"id": 1, "with_request": true}));
    assert_eq!(read["structuredContent"]["data"]["customer"], "ada");
    let dry = client.call("create-order", json!({"customer": "bob", "amount": 1, "dry_run": true}));
    assert_eq!(dry["structuredContent"]["effect"], "would_create");
    let batch = client.call("import-orders", json!({"file": "orders.jsonl"}));
    assert_eq!(batch["structuredContent"]["data"]["summary"]["succeeded"], 3);
    assert_eq!(count(&shop, "orders"), 4);
    assert_eq!(client.end(), 0);
}

#[test]
fn what_is_wrong_or_not_confirmed_changes_nothing() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.command());
    let refused = client.call("delete-user", json!({"id": 1}));
    assert_eq!(
        (&refused["isError"], &refused["structuredContent"]["error"]["code"]),
        (&true.into(), &"INVALID_INPUT".into())
    );
    let wrong = client.call("create-order", json!({"customer": "ada", "amount": "much"}));
    let message = wrong["structuredContent"]["error"]["message"].as_str().unwrap();
    assert_eq!(message, "invalid value 'much' for 'amount': invalid digit found in string");
    assert_eq!(wrong["structuredContent"]["ran"], false);
    let hint = refused["structuredContent"]["error"]["next"].as_str().unwrap();
    assert!(hint.ends_with("confirm: true"), "{hint}");
    assert!(refused["structuredContent"]["error"].get("fix_command").is_none());
    let missing = client.ask("tools/call", json!({"name": "create-order", "arguments": {"amount": 1}}));
    assert_eq!(missing["error"]["message"], "create-order needs customer");
    let unknown = client.ask("tools/call", json!({"name": "create-order", "arguments": {"colour": "red"}}));
    assert_eq!(unknown["error"]["code"], -32602);
    assert_eq!(client.ask("tools/call", json!({"name": "settle"}))["error"]["code"], -32602);
    writeln!(client.to, "not JSON\n").unwrap();
    assert_eq!(client.receive()["error"]["code"], -32700);
    client.to.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xffng\"}\n").unwrap();
    assert_eq!(client.receive()["error"]["code"], -32700, "a byte that is not UTF-8 is refused");
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}), "and the server goes on");
    let huge: Value =
        serde_json::from_str("{\"customer\":\"ada\",\"amount\":123456789012345678901}").unwrap();
    let huge = client.ask("tools/call", json!({"name": "create-order", "arguments": huge}));
    assert_eq!(huge["error"]["code"], -32602, "another number than the caller's must not be acted on");
    writeln!(client.to, "[1, 2]").unwrap();
    assert_eq!(client.receive()["error"]["code"], -32600);
    // A value that looks like an option is a value.
    let dashed = client.call("send-email", json!({"to": "a@b", "subject": "--confirm"}));
    assert_eq!(dashed["structuredContent"]["data"]["subject"], "--confirm");
    let deleted = client.call("delete-user", json!({"id": 1, "confirm": true}));
    assert_eq!(deleted["structuredContent"]["effect"], "deleted");
    assert_eq!(client.end(), 0);
}

#[test]
fn the_modern_era_needs_no_handshake() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.command());
    let meta = |version: &str| json!({"io.modelcontextprotocol/protocolVersion": version});
    let found = client.ask("server/discover", json!({"_meta": meta("2026-07-28")}))["result"].clone();
    assert_eq!(
        (&found["supportedVersions"], &found["resultType"]),
        (&json!(["2026-07-28"]), &"complete".into())
    );
    let listed = client.ask("tools/list", json!({"_meta": meta("2026-07-28")}))["result"].clone();
    assert!(listed["ttlMs"].is_u64() && listed["cacheScope"].is_string());
    let arguments = json!({"key": "views"});
    let params = json!({"_meta": meta("2026-07-28"), "name": "increment-counter", "arguments": arguments});
    let called = client.ask("tools/call", params)["result"].clone();
    assert_eq!(
        (&called["resultType"], &called["structuredContent"]["effect"]),
        (&"complete".into(), &"updated".into())
    );
    let refused = client.ask("tools/list", json!({"_meta": meta("2030-01-01")}));
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(client.end(), 0);
}

#[test]
fn a_cancelled_call_is_not_answered_and_leaves_the_truth() {
    let shop = Fixture::new();
    assert_eq!(shop.run("deploy --version 1").exit, 0);
    let before = shop.look();
    let mut client = Client::of(shop.with("SHOP_TROUBLE", "stall"));
    let arguments = json!({"to": "a@b", "subject": "c"});
    let params = json!({"name": "send-email", "arguments": arguments});
    client.send(&json!({"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params}));
    shop.wait_for_change(&before);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}));
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    let rest: Vec<String> = {
        let Client { mut server, to, from, .. } = client;
        drop(to);
        server.wait().unwrap();
        from.map(Result::unwrap).collect()
    };
    assert_eq!(rest, [""; 0], "a cancelled call is not answered");
    assert_eq!(shop.states()[0], "shop send-email in_doubt");
}

#[test]
fn the_same_call_is_a_retry_until_the_client_goes_on_and_a_connection_is_a_scope() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.command());
    let order = json!({"customer": "ada", "amount": 100});
    let id = |result: &Value| result["structuredContent"]["data"]["id"].as_i64().unwrap();
    let first = client.call("create-order", order.clone());
    // The next request shows that the client has the answer, so the same call is a new action.
    let again = client.call("create-order", order.clone());
    assert_eq!((id(&first), id(&again)), (1, 2));
    let reason = |result: &Value| result["structuredContent"]["reason"].to_string();
    assert!(!reason(&again).contains("--"), "{again}");
    // The client cancels a call whose answer has crossed the cancellation: the retry gets that answer.
    let params = json!({"name": "create-order", "arguments": {"customer": "bob", "amount": 5}});
    client.send(&json!({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": params}));
    let crossed = client.receive()["result"].clone();
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}));
    let retry = client.call("create-order", json!({"customer": "bob", "amount": 5}));
    assert_eq!((id(&crossed), id(&retry)), (3, 3));
    assert_eq!(retry["structuredContent"]["ran"], false);
    assert_eq!(client.end(), 0);
    // Another connection knows nothing of this one's calls.
    let mut other = Client::of(shop.command());
    assert_eq!(id(&other.call("create-order", order)), 4);
    assert_eq!(other.end(), 0);
}

#[test]
fn a_witness_is_repeated_in_the_envelope() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.command());
    let listed = client.ask("tools/list", json!({}));
    let takes = |tool: &Value| tool["_meta"]["dev.onceward/witness"] == true;
    let mail = listed["result"]["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "send-email");
    assert!(mail.is_some_and(takes), "{listed}");
    let mail = json!({"name": "send-email", "arguments": {"to": "ada@example.com", "subject": "Hello"},
        "_meta": {"dev.onceward/witness": "w-1"}});
    let answer = client.ask("tools/call", mail)["result"]["structuredContent"].clone();
    assert_eq!((&answer["witness"], &answer["effect"]), (&"w-1".into(), &"created".into()), "{answer}");
    let without = client.call("send-email", json!({"to": "bob@example.com", "subject": "Hello"}));
    assert!(without["structuredContent"]["witness"].is_null(), "{without}");
    assert_eq!(client.end(), 0);
}

#[test]
fn what_is_in_doubt_is_looked_at_and_settled_here() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.with("SHOP_TROUBLE", "lost-reply"));
    let mail = json!({"to": "ada@example.com", "subject": "Hello"});
    let doubt = client.call("send-email", mail.clone())["structuredContent"].clone();
    assert_eq!((&doubt["error"]["code"], &doubt["happened"]), (&"IN_DOUBT".into(), &"unknown".into()));
    let text = doubt.to_string();
    assert!(!text.contains("--") && !text.contains("shop settle"), "no command lines: {text}");
    // The next step is spelled as tool and arguments, and works unchanged.
    let spelled = |command: &Value| {
        let (tool, arguments) = command.as_str().unwrap().split_once(' ').unwrap();
        (tool.to_owned(), serde_json::from_str::<Value>(arguments).unwrap())
    };
    let status = json!({"operation": doubt["operation"]["id"]});
    let shown = client.call("once_status", status)["structuredContent"].clone();
    assert_eq!((&shown["ok"], &shown["data"]["operation"]["state"]), (&true.into(), &"in_doubt".into()));
    let again = client.call("send-email", mail.clone())["structuredContent"].clone();
    assert_eq!((&again["error"]["code"], &again["ran"]), (&"IN_DOUBT".into(), &false.into()));
    let (settle, arguments) = spelled(&doubt["error"]["options"][0]["command"]);
    let settled = client.call(&settle, arguments.clone())["structuredContent"].clone();
    assert_eq!(
        (&settled["effect"], &settled["operation"]["settled_by"]["by"]),
        (&"updated".into(), &"agent".into())
    );
    assert_eq!(client.call(&settle, arguments)["structuredContent"]["effect"], "noop");
    assert_eq!(client.call("send-email", mail)["structuredContent"]["effect"], "noop");
    assert_eq!(count(&shop, "emails"), 1);
    let unproven =
        client.ask("tools/call", json!({"name": "once_settle", "arguments": {"operation": "op_x"}}));
    assert_eq!(unproven["error"]["code"], -32602);
    assert_eq!(client.end(), 0);
}

/// The id of the operation that an answer is about.
fn operation_of(answer: &Value) -> OperationId {
    OperationId::parse(answer["structuredContent"]["operation"]["id"].as_str().unwrap()).unwrap()
}

#[test]
fn an_error_of_ours_delivers_nothing() {
    let shop = Fixture::new();
    let mut client = Client::of(shop.with("SHOP_TROUBLE", "lost-reply"));
    let mail = json!({"to": "ada@example.com", "subject": "Hello"});
    let doubt = client.call("send-email", mail.clone());
    assert_eq!(doubt["structuredContent"]["error"]["code"], "IN_DOUBT", "{doubt}");
    // A person finds the mail. The client has not had that answer, however many requests it has sent since.
    let outcome = Outcome::with_effect(Effect::Created);
    let ledger = shop.ledger().unwrap();
    ledger.admin().settle(&operation_of(&doubt), Verdict::Done, Word::person("ada"), outcome).unwrap();
    client.ask("ping", json!({}));
    let again = client.call("send-email", mail);
    assert_eq!(again["structuredContent"]["effect"], "noop", "{again}");
    assert_eq!((count(&shop, "emails"), client.end()), (1, 0));
}

#[test]
fn a_persons_no_is_the_answer_to_the_same_call_in_every_connection() {
    let shop = Fixture::new();
    let policy = shop.file("policy.toml");
    std::fs::write(&policy, "[operation.\"send-email\"]\nhold = \"approve\"\n").unwrap();
    let connect = || Client::of(shop.with("SHOP_POLICY", policy.to_str().unwrap()));
    let mail = json!({"to": "ada@example.com", "subject": "Hello"});
    let mut client = connect();
    let held = client.call("send-email", mail.clone());
    assert_eq!(held["structuredContent"]["effect"], "held", "{held}");
    client.ask("ping", json!({}));
    let word = Word::person("maria").note("not to her".to_owned());
    shop.ledger().unwrap().admin().cancel(&operation_of(&held), &word).unwrap();
    for _ in 0..3 {
        let refused = client.call("send-email", mail.clone());
        assert_eq!(refused["structuredContent"]["error"]["code"], "CANCELLED", "{refused}");
        assert!(refused.to_string().contains("not to her"), "{refused}");
    }
    assert_eq!(client.end(), 0);
    let mut other = connect();
    let mut keyed = mail.clone();
    keyed["idempotency_key"] = "k".into();
    for call in [&keyed, &mail, &keyed] {
        let refused = other.call("send-email", call.clone());
        // Each connection is a scope: what was said in another one is about another run.
        assert_eq!(refused["structuredContent"]["effect"], "held", "{refused}");
    }
    assert_eq!((count(&shop, "emails"), other.end()), (0, 0));
}
