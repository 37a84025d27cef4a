//! The webhook inbox as a process: the samples of its page, commands as handlers, and `once inbox`.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::common::{Bench, eventually};
use crate::serve::guide::{fits, samples};
use crate::serve::rig::Server;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[test]
fn the_samples_of_the_page_print_what_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/inbox.md");
    let text = std::fs::read_to_string(page).unwrap();
    let mut count = 0;
    for block in text.split("```console\n").skip(1) {
        for sample in samples(block.split("```").next().unwrap()) {
            count += 1;
            let bench = Bench::new();
            let output = bench.shell_command(&sample.line).output().unwrap();
            let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(fits(&sample.prints, &printed), "$ {}\n{printed}\n{:#?}", sample.line, sample.prints);
        }
    }
    assert!(count >= 1, "{count} samples");
}

#[test]
fn every_vendor_can_be_tried_without_an_account() {
    let bench = Bench::new();
    for vendor in [
        "github",
        "slack",
        "shopify",
        "standard-webhooks",
        "svix",
        "openai",
        "twilio",
        "paypal",
        "sendgrid",
        "square",
        "paddle",
        "linear",
        "sns",
        "discord",
        "cloudevents",
        "hmac",
    ] {
        let tried = bench.json(&["inbox", "try", vendor]);
        assert_eq!(tried["ok"], true, "{vendor}: {tried}");
        assert_eq!(tried["data"]["sample"], true, "{vendor}: {tried}");
        assert_eq!(tried["data"]["steps"].as_array().unwrap().len(), 4, "{vendor}: {tried}");
    }
    assert!(!bench.path("once.db").exists(), "the ledger was temporary");
}

fn policy(bench: &Bench, handler: &str) {
    bench.write("secret", SECRET);
    let secret = bench.path("secret").display().to_string();
    bench.policy(&format!(
        "[hook.orders]\npreset = \"standard-webhooks\"\nsecrets = [\"@{secret}\"]\n[hook.orders.handler.app]\n{handler}\n"
    ));
}

/// A command gets each event once, under the rules of `once run`, and `once inbox` knows what became of it.
#[test]
fn a_command_gets_each_event_once() {
    let bench = Bench::new();
    bench.script("handle", "cat >> bodies; echo \"$ONCE_EVENT_ID $ONCE_EVENT_TYPE $ONCE_ATTEMPT\" >> events");
    policy(&bench, "command = [\"./handle\"]");
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    let url = server.url();
    let tried = bench.json(&["inbox", "try", "orders", "--server", &url]);
    assert_eq!(tried["ok"], true, "{tried}");
    eventually("the command ran", || bench.read("events").lines().count() == 1);
    let listed = bench.json(&["inbox", "ls", "orders"]);
    let event = &listed["data"][0];
    assert_eq!(event["source"], "orders", "{listed}");
    let key = event["key"].as_str().unwrap();
    eventually("it is done", || bench.json(&["inbox", "show", key])["data"]["progress"] == "done");
    assert_eq!(bench.once(&["inbox", "show", key, "--body"]).out, bench.read("bodies").into_bytes());
    assert!(bench.read("events").ends_with(" 1\n"), "{}", bench.read("events"));
    let rejected = bench.json(&["inbox", "ls", "orders", "--rejected", "--server", &url]);
    assert_eq!(rejected["data"][0]["reason"], "signature", "{rejected}");
    let would = bench.json(&["inbox", "replay", key, "--dry-run"]);
    assert_eq!(would["effect"], "would_create", "{would}");
    assert_eq!(bench.json(&["inbox", "replay", key])["effect"], "created");
    eventually("it ran again", || bench.read("events").lines().count() == 2);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
}

/// A command that cannot be started: each attempt counts, says why and is logged, and the last one is a dead letter.
#[test]
fn a_command_that_cannot_be_started_is_a_dead_letter_with_a_reason() {
    let bench = Bench::new();
    policy(&bench, "command = [\"./handle\"]\nattempts = 2\nbackoff = \"20ms\"");
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    bench.json(&["inbox", "try", "orders", "--server", &server.url()]);
    let mut event = serde_json::Value::Null;
    eventually("it is a dead letter", || {
        event = bench.json(&["inbox", "ls", "--progress", "dead"])["data"][0].clone();
        !event.is_null()
    });
    let delivery = &event["deliveries"][0];
    assert_eq!(
        (delivery["attempts"].as_i64(), delivery["state"].as_str()),
        (Some(2), Some("failed")),
        "{event}"
    );
    assert!(delivery["reason"].as_str().unwrap().contains("cannot start"), "{event}");
    assert!(server.said().iter().any(|line| line.contains("cannot start")), "{:?}", server.said());
    bench.script("handle", "echo ran >> runs");
    let key = event["key"].as_str().unwrap();
    bench.once(&["inbox", "retry", key]).exits(0);
    eventually("it is done", || bench.json(&["inbox", "show", key])["data"]["progress"] == "done");
    assert_eq!(bench.runs(), 1);
}

/// A command gets neither the secret that verifies requests nor the one that signs ours.
#[test]
fn a_command_does_not_get_the_secrets_of_hooks() {
    let bench = Bench::new();
    bench.script("handle", "env > environment.part; mv environment.part environment");
    bench.policy(
        "[hook.orders]\npreset = \"standard-webhooks\"\nsecrets = [\"$HOOK_SECRET\"]\n[hook.orders.handler.app]\n\
         command = [\"./handle\"]\n[hook.orders.handler.url]\nurl = \"http://127.0.0.1:1/\"\nsecret = \"$OUR_SECRET\"\n",
    );
    let mut command = bench.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("HOOK_SECRET", SECRET).env("OUR_SECRET", SECRET).env("OTHER_VARIABLE", "other");
    let server = Server::of(command);
    let mut sent = bench.command(&["--json", "inbox", "try", "orders", "--server", &server.url()]);
    sent.env("HOOK_SECRET", SECRET).env("OUR_SECRET", SECRET).output().unwrap();
    eventually("the command ran", || bench.path("environment").exists());
    let environment = bench.read("environment");
    assert!(environment.contains("OTHER_VARIABLE=other"), "{environment}");
    assert!(!environment.contains("_SECRET=") && !environment.contains(SECRET), "{environment}");
}

/// An exit code that proves nothing leaves a command of the class `once` in doubt.
#[test]
fn a_command_that_dies_is_in_doubt_and_is_retried_only_on_a_persons_word() {
    let bench = Bench::new();
    bench.script("handle", "echo ran >> runs; [ -e works ]");
    policy(&bench, "command = [\"./handle\"]\nbackoff = \"20ms\"");
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    bench.json(&["inbox", "try", "orders", "--server", &server.url()]);
    let mut key = String::new();
    eventually("it is in doubt", || {
        let listed = bench.json(&["inbox", "ls", "--progress", "in_doubt"]);
        key = listed["data"][0]["key"].as_str().unwrap_or_default().to_owned();
        !key.is_empty()
    });
    assert_eq!(bench.runs(), 1);
    let refused = bench.once(&["inbox", "retry", &key]);
    assert_eq!(refused.exit, 2, "{}", String::from_utf8_lossy(&refused.err));
    assert!(
        String::from_utf8_lossy(&refused.err).contains("--again"),
        "{}",
        String::from_utf8_lossy(&refused.err)
    );
    bench.write("works", "");
    bench.once(&["inbox", "retry", &key, "--again"]).exits(0);
    eventually("it is done", || bench.json(&["inbox", "show", &key])["data"]["progress"] == "done");
    assert_eq!(bench.runs(), 2);
}

/// A command that can be asked is asked after a doubt. It has the event, so it does not run again.
#[test]
fn a_command_with_a_probe_is_asked_after_a_doubt() {
    let bench = Bench::new();
    bench.script("handle", "echo \"$ONCE_EVENT_ID\" >> booked; echo ran >> runs; kill -9 $$");
    let probe = "probe = { command = \"grep -qx \\\"$ONCE_EVENT_ID\\\" booked || exit 10\" }";
    policy(&bench, &format!("command = [\"./handle\"]\nbackoff = \"20ms\"\n{probe}"));
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    bench.json(&["inbox", "try", "orders", "--server", &server.url()]);
    eventually("it is done", || {
        let listed = bench.json(&["inbox", "ls", "orders"]);
        listed["data"][0]["progress"] == "done"
    });
    assert_eq!(bench.runs(), 1);
}

/// A file that came with a repository configures no source and runs no command.
#[test]
fn hooks_of_a_policy_that_is_not_allowed_are_ignored() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[hook.orders]\npreset = \"stripe\"\nsecrets = [\"$S\"]\n[hook.orders.handler.x]\ncommand = [\"./x\"]\n");
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    assert!(server.said().iter().any(|line| line.contains("[hook]")), "{:?}", server.said());
    let (status, _) = crate::serve::rig::curl(&["--json", "{}", &format!("{}/hooks/orders", server.url())]);
    assert_eq!(status, 404);
}
