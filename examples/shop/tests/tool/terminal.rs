//! What a person sees at a terminal, and what completions and manual are made of.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use nix::pty::openpty;

use crate::fixture::Fixture;

/// Runs a command with a terminal as its stdout and stderr, and returns what is shown.
fn shown(shop: &Fixture, variables: &[(&str, &str)], line: &str) -> String {
    let terminal = openpty(None, None).unwrap();
    let mut command = shop.command();
    command.args(line.split(' ')).envs(variables.iter().copied());
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    for (name, value) in variables {
        command.env(name, value);
    }
    command.stdout(Stdio::from(terminal.slave.try_clone().unwrap()));
    command.stderr(Stdio::from(terminal.slave));
    let mut child = command.spawn().unwrap();
    // The command holds the terminal until it is dropped, and reading ends when nothing holds it.
    drop(command);
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let mut master = File::from(terminal.master);
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        text.extend_from_slice(&buffer[..read]);
    }
    child.wait().unwrap();
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

#[test]
fn a_person_gets_a_table_in_colour() {
    let shop = Fixture::new();
    let seen = shown(&shop, &[], "create-order --customer ada --amount 100");
    assert!(seen.contains("\u{1b}[") && seen.contains("created"), "{seen}");
    assert!(!seen.contains("is derived from"), "{seen}");
    assert_eq!(shop.run("create-order --customer ada --amount 100 --scope s").exit, 0);
    let plain = shown(&shop, &[("NO_COLOR", "1")], "create-order --customer ada --amount 100 --scope s");
    assert!(!plain.contains("\u{1b}["), "{plain}");
    assert!(plain.contains("noop: already done") && plain.contains("  customer ada\n"), "{plain}");
}

#[test]
fn errors_are_told_in_words_with_the_next_command() {
    let shop = Fixture::new();
    let seen = shown(&shop, &[("NO_COLOR", "1")], "delete-user --id 1");
    assert!(seen.contains("would delete user 1 (ada)"), "{seen}");
    assert!(seen.contains("shop: INVALID_INPUT delete-user is destructive and was not confirmed"), "{seen}");
    assert!(seen.contains("shop:   shop delete-user --confirm --id 1"), "{seen}");
    let doubt = [("NO_COLOR", "1"), ("SHOP_TROUBLE", "lost-reply")];
    let seen = shown(&shop, &doubt, "send-email --to a@b --subject c");
    assert!(seen.contains("shop: happened: unknown, ran: yes, retryable: no"), "{seen}");
    assert!(seen.contains("shop: next: check first whether it happened"), "{seen}");
    assert!(seen.contains("shop:   it happened: shop settle op_"), "{seen}");
    let batch = shown(&shop, &[("NO_COLOR", "1")], "import-orders --file orders.jsonl");
    assert!(batch.contains("created {\"id\":1") && batch.contains("3 items, all well"), "{batch}");
}

#[test]
fn json_is_also_for_people_who_ask_for_it() {
    let shop = Fixture::new();
    let seen = shown(&shop, &[], "get-order 9 --json");
    assert!(seen.starts_with("{\"ok\":false"), "{seen}");
    let secret = [("NO_COLOR", "1"), ("SHOP_LEDGER", "postgres://me:secret@host/db")];
    let help = shown(&shop, &secret, "create-order --help");
    assert!(!help.contains("secret"), "{help}");
    for flag in [
        "--idempotency-key",
        "--dry-run",
        "--json",
        "--scope",
        "--timeout",
        "--wait",
        "--occurrence",
        "--ledger",
    ] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
    assert!(!help.contains("--confirm") && shown(&shop, &[], "delete-user --help").contains("--confirm"));
}

#[test]
fn completions_and_manual_come_from_the_same_definition() {
    let shop = Fixture::new();
    assert!(shop.run("completions bash").stdout.contains("create-order"));
    assert!(shop.run("man").stdout.contains("create\\-order"));
    assert_eq!(shop.run("man pages").exit, 0);
    assert!(shop.file("pages/shop-create-order.1").exists());
    let schema = shop.run("schema create-order").json()["data"].clone();
    assert_eq!((&schema["danger_level"], &schema["retry"]["class"]), (&"mutating".into(), &"probed".into()));
    assert_eq!(shop.run("schema nothing").exit, 2);
}
