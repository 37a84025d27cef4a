//! Model calls through `once serve`: what they cost, and the samples of `docs/models.md`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use onceward_testkit::{Postgres, Redis};
use serde_json::{Value, json};

use crate::common::Bench;
use crate::serve::guide::{fits, samples};
use crate::serve::rig::Server;

/// The scripted model of `tests/models`, as a process.
struct Model {
    process: Child,
    url: String,
}

impl Model {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/model.py");
        let mut process = Command::new("python3").arg(script).stdout(Stdio::piped()).spawn().unwrap();
        let mut ports = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ports).unwrap();
        let ports: Vec<u16> = serde_json::from_str(&ports).unwrap();
        Self { process, url: format!("http://127.0.0.1:{}", ports[0]) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn gateway(bench: &Bench, model: &Model) -> Server {
    let url = &model.url;
    bench.policy(&format!("[upstream.openai]\nurl = \"{url}\"\nallow_private = true\nbackoff = \"10ms\"\n"));
    Server::start(bench, &["--listen", "127.0.0.1:0"])
}

/// Asks the model with curl; gives the status.
fn ask(server: &Server, model: &str, prompt: &str, more: &[&str]) -> String {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": prompt }] }).to_string();
    let url = format!("{}/gw/openai/v1/chat/completions", server.url());
    let output = Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "30", "--json", &body])
        .args(["-H", "Authorization: Bearer k", &url])
        .args(more)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn tokens(sum: &Value) -> (u64, u64, u64) {
    let number = |name: &str| sum[name].as_u64().unwrap();
    (number("attempts"), number("input") + number("cached"), number("output"))
}

/// One of each: an answer, one after a cut, one after a refusal, none, and one without a price.
fn ask_some(server: &Server) {
    let nightly = ["-H", "Once-Scope: nightly"];
    assert_eq!(ask(server, "gpt-4o-2024-08-06", "plain a", &nightly), "200");
    assert_eq!(ask(server, "gpt-4o-2024-08-06", "cut b", &nightly), "200");
    assert_eq!(ask(server, "gpt-4o-2024-08-06", "fail c", &nightly), "200");
    assert_eq!(ask(server, "gpt-4o-2024-08-06", "storm d", &nightly), "424");
    assert_eq!(ask(server, "llama", "plain e", &["-H", "Once-Scope: other"]), "200");
}

#[test]
fn cost_adds_up_every_attempt_on_every_back_end() {
    let (bench, model) = (Bench::new(), Model::start());
    let server = gateway(&bench, &model);
    ask_some(&server);
    let all = bench.json(&["cost"]);
    assert_eq!((&all["ok"], &all["effect"], &all["happened"]), (&json!(true), &json!("noop"), &json!(null)));
    let all = all["data"].clone();
    // An attempt that was refused used nothing that the provider tells.
    let counts =
        ["calls", "attempts", "unknown_attempts", "running_attempts"].map(|name| all[name].as_u64().unwrap());
    assert_eq!(counts, [5, 9, 4, 0], "{all}");
    assert_eq!(tokens(&all["answers"]), (4, 44, 24));
    // What the answer that was cut had used is an estimate.
    assert_eq!((&all["wasted"]["attempts"], &all["wasted"]["estimated_attempts"]), (&json!(1), &json!(1)));
    assert_eq!(tokens(&all["total"]).0, 5);
    assert_eq!(all["total"]["unpriced_tokens"], 17);
    let layers = ["caller", "gateway"].map(|layer| all["by_layer"][layer]["attempts"].as_u64().unwrap());
    assert_eq!(layers, [3, 2], "{all}");
    let model_of = |name: &str| all["by_model"][name].clone();
    assert_eq!((&model_of("llama")["price"], &model_of("llama")["usd"]), (&json!(null), &json!(0.0)));
    assert_eq!(model_of("gpt-4o-2024-08-06")["price"]["input"], 2.5);
    // 3 answers of 11 and 6 tokens, and the estimate.
    let estimated = all["wasted"]["input"].as_f64().unwrap();
    let usd = (33.0 + estimated) * 2.5e-6 + 18.0 * 1e-5;
    assert!((model_of("gpt-4o-2024-08-06")["usd"].as_f64().unwrap() - usd).abs() < 1e-12, "{all}");

    // A scope is that of all callers, and no other scope.
    let calls = |args: &[&str]| bench.json(&[&["cost"], args].concat())["data"]["calls"].clone();
    assert_eq!(
        ["nightly", "other", "night"].map(|scope| calls(&["--scope", scope])),
        [json!(4), json!(1), json!(0)]
    );
    assert_eq!([calls(&["--since", "1h"]), calls(&["--until", "1h"])], [json!(5), json!(0)]);
    for (scope, expected) in [("nightly", 4), ("other", 1), ("night", 0)] {
        let listed = bench.json(&["ls", "--scope", scope])["data"].as_array().unwrap().len();
        let report = bench.json(&["report", "--scope", scope])["data"]["operations"].clone();
        assert_eq!((listed, report), (expected, json!(expected)), "{scope}");
    }
    let newest = bench.json(&["ls", "--scope", "nightly", "--limit", "2"])["data"].clone();
    assert_eq!(newest.as_array().unwrap().len(), 2);

    // The policy and a file set prices.
    bench.write("prices.toml", "llama = { input = 1000000, output = 0 }\n");
    assert_eq!(
        bench.json(&["cost", "--prices", "prices.toml", "--scope", "other"])["data"]["total"]["usd"],
        11.0
    );
    bench.policy("[prices]\nllama = { input = 2, cached = 1, output = 500000 }\n");
    let priced = bench.json(&["cost", "--scope", "other"])["data"].clone();
    assert_eq!(
        (&priced["total"]["unpriced_tokens"], &priced["total"]["usd"]),
        (&json!(0), &json!(3.000_022))
    );
    assert!(priced["by_model"]["llama"]["price"]["source"].as_str().unwrap().ends_with("onceward.toml"));
    bench.write("wrong-policy.toml", "[prices]\nllama = { input = 2 }\n");
    let refused = bench.once(&["config", "check", "wrong-policy.toml"]).exits(2).err();
    assert!(refused.contains("llama") && refused.contains("output"), "{refused}");
    bench.write("wrong.toml", "llama = 3\n");
    let refused = bench.once(&["cost", "--prices", "wrong.toml"]).exits(2).err();
    assert!(refused.contains("wrong.toml") && refused.contains("llama"), "{refused}");
    drop(server);

    // The same numbers in a database, on Redis, and through a server.
    std::fs::remove_file(bench.path("onceward.toml")).unwrap();
    bench.shell("once export > all.jsonl").exits(0);
    for url in [Postgres::shared().fresh(), Redis::shared().fresh()] {
        bench.share_secret(&url);
        bench.once(&["import", "all.jsonl", "--ledger", &url]).exits(0);
        assert_eq!(bench.json(&["cost", "--ledger", &url])["data"], all, "{url}");
    }
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    assert_eq!(bench.json(&["cost", "--ledger", &server.url()])["data"], all);
}

#[test]
fn show_and_report_have_the_tokens_of_each_attempt() {
    let (bench, model) = (Bench::new(), Model::start());
    let server = gateway(&bench, &model);
    assert_eq!(ask(&server, "gpt-4o", "fail c", &[]), "200");
    let id = bench.newest();
    let shown = bench.json(&["show", &id])["data"].clone();
    let attempts = &shown["model_attempts"];
    assert_eq!((&attempts[0]["role"], &attempts[0]["usage"]), (&json!("wasted"), &json!(null)));
    assert_eq!((&attempts[1]["role"], &attempts[1]["usage"]["output"]), (&json!("answer"), &json!(6)));
    assert_eq!(attempts[1]["usage"]["request_id"], "req-2");
    let text = bench.once(&["show", &id]).exits(0).out();
    assert!(text.contains("attempt 1: unknown (wasted)"), "{text}");
    assert!(text.contains("attempt 2: 11 in, 6 out (the answer, gpt-4o, asked by gateway)"), "{text}");
    let scope = shown["scope"].as_str().unwrap();
    let report = bench.once(&["report", "--scope", scope]).exits(0).out();
    assert!(report.contains("TOKENS") && report.contains("? + 17"), "{report}");
    // Other operations have nothing of it.
    bench.once(&["run", "--key", "k", "--", "true"]).exits(0);
    assert_eq!(bench.json(&["show", "k"])["data"]["model_attempts"], json!(null));
    bench.once(&["run", "--scope", "quiet", "--key", "k", "--", "true"]).exits(0);
    assert!(!bench.once(&["report", "--scope", "quiet"]).exits(0).out().contains("TOKENS"));
}

#[test]
fn an_attempt_whose_gateway_was_killed_is_counted_as_unknown() {
    let (bench, model) = (Bench::new(), Model::start());
    let server = gateway(&bench, &model);
    let (url, body) = (
        format!("{}/gw/openai/v1/chat/completions", server.url()),
        r#"{"model":"gpt-4o","messages":[{"role":"user","content":"slow x"}]}"#,
    );
    let mut client =
        Command::new("curl").args(["-s", "--json", body, &url]).stdout(Stdio::null()).spawn().unwrap();
    crate::common::eventually("the model generates", || {
        bench.json(&["cost"])["data"]["running_attempts"] == 1
    });
    server.kill();
    client.wait().unwrap();
    let cost = bench.json(&["cost"]);
    let counts =
        ["attempts", "unknown_attempts", "running_attempts"].map(|name| cost["data"][name].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 0], "{cost}");
    assert!(cost["warnings"][0].as_str().unwrap().starts_with("1 attempt ended without"), "{cost}");
}

#[test]
fn cost_reads_ledgers_that_do_not_fit_a_page() {
    let bench = Bench::new();
    bench.with_long_ledger();
    let connection = rusqlite::Connection::open(bench.path("once.db")).unwrap();
    let usage = r#"{"model":"gpt-4o","input":1000,"output":100,"layer":"caller"}"#;
    let set = format!("UPDATE operations SET outcome = json_set(outcome, '$.usage', json('{usage}'))");
    assert_eq!(connection.execute(&set, []).unwrap(), 2_000);
    drop(connection);
    let cost = bench.json(&["cost"])["data"].clone();
    assert_eq!((tokens(&cost["answers"]), &cost["total"]["usd"]), ((2_000, 2_000_000, 200_000), &json!(7.0)));
}

#[test]
fn the_samples_of_the_guide_print_what_the_guide_says() {
    let page = include_str!("../../../../../docs/models.md");
    let (bench, model) = (Bench::new(), Model::start());
    let mut server: Option<Server> = None;
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut count = 0;
    for sample in blocks.flat_map(samples) {
        count += 1;
        if sample.line == "once --config onceward.toml serve &" {
            server = Some(gateway(&bench, &model));
            continue;
        }
        // The guide's port may be in use on this machine.
        let address = server.as_ref().map(Server::url).unwrap_or_default().replace("http://", "");
        let line = sample.line.replace("127.0.0.1:6270", &address);
        let output = bench.shell_command(&line).output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(fits(&sample.prints, &printed), "$ {line}\n{printed}\nthe page says:\n{:#?}", sample.prints);
    }
    assert_eq!(count, 5);
    let answer: Value = serde_json::from_str(&bench.read("answer.json")).unwrap();
    assert_eq!(answer["id"], "chatcmpl-1");
    // `tests/models/samples.py` runs the others.
    let kinds = page.lines().filter(|line| line.len() > 3 && line.starts_with("```"));
    let known = ["```console", "```toml", "```python", "```js"];
    assert!(kinds.clone().all(|line| known.contains(&line)), "{:?}", kinds.collect::<Vec<_>>());
}

#[test]
fn the_settings_of_the_guide_are_accepted() {
    let page = include_str!("../../../../../docs/models.md");
    let samples: Vec<&str> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(samples.len(), 2);
    for sample in samples {
        let bench = Bench::new();
        bench.policy(sample);
        drop(Server::start(&bench, &["--listen", "127.0.0.1:0"]));
        bench.once(&["cost"]).exits(0);
    }
}
