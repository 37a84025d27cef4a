//! Policy files that cannot be read, understood or kept.

use insta::assert_snapshot;

use super::{refused, refused_in};
use crate::common::Bench;

/// A run under that policy, which must be refused.
#[track_caller]
fn refused_under(policy: &str) -> String {
    let bench = Bench::new();
    bench.write("onceward.toml", policy);
    refused_in(&bench, 2, &["run", "--", "touch", "ran"])
}

#[test]
fn policies_that_are_not_understood() {
    assert_snapshot!(refused_under("[defaults]\nretension = \"1h\"\n"), @"once: INVALID_INPUT onceward.toml: line 2: [defaults] has no setting `retension`; did you mean `retention`?");
    assert_snapshot!(refused_under("[default]\n"), @"once: INVALID_INPUT onceward.toml: line 1: `default` is not a section of a policy; did you mean `defaults`?");
    assert_snapshot!(refused_under("[defaults]\nattempts = \"three\"\n"), @r#"once: INVALID_INPUT onceward.toml: line 2: attempts is the text "three"; it must be a whole number, such as 20"#);
    assert_snapshot!(refused_under("[defaults]\nattempts = 0\n"), @"once: INVALID_INPUT onceward.toml: [defaults] attempts is 0, so nothing could ever run");
    assert_snapshot!(refused_under("[defaults]\nclass = \"twice\"\n"), @r#"once: INVALID_INPUT onceward.toml: line 2: class is the text "twice"; it must be one of read, idempotent, keyed, probed, once"#);
    assert_snapshot!(refused_under("[defaults]\nretention = \"a while\"\n"), @r#"once: INVALID_INPUT onceward.toml: line 2: retention: "a while" is not a duration (expected number at 0); write 500ms, 15s, 24h or 30d"#);
    assert_snapshot!(refused_under("[defaults]\nretention = \"0s\"\n"), @"once: INVALID_INPUT onceward.toml: [defaults] retention is 0, so no retry could be recognised");
    assert_snapshot!(refused_under("[defaults]\nwait = 30\n"), @r#"once: INVALID_INPUT onceward.toml: line 2: wait is the number 30; it must be a time with its unit, in quotes, such as "30s""#);
}

#[test]
fn policies_that_ask_for_what_cannot_be() {
    assert_snapshot!(refused_under("[defaults]\neffect = \"would_create\"\n"), @r#"once: INVALID_INPUT onceward.toml: line 2: effect is the text "would_create"; it must be one of created, updated, deleted, noop"#);
    assert_snapshot!(refused_under("this is not TOML"), @"once: INVALID_INPUT onceward.toml: line 1: this is not TOML: key with no value, expected `=`");
    assert_snapshot!(refused_under("[operation.pay]\nlease = \"1ms\"\n[operation.refund]\nattempts = 0\n"), @r"
    once: INVALID_INPUT 2 problems:
      onceward.toml: [operation.pay] lease is shorter than 100ms: a live owner could not renew it in time
      onceward.toml: [operation.refund] attempts is 0, so nothing could ever run
    ");
    assert_snapshot!(refused_under("[operation.touch]\nclass = \"probed\"\n"), @r#"once: INVALID_INPUT onceward.toml: [operation.touch] the class is "probed", but there is no probe to ask; add probe = "COMMAND""#);
    assert_snapshot!(refused_under("[operation.touch]\nkeys = \"keyed\"\n"), @"once: KEY_MISSING touch requires an explicit key that identifies this action; nothing was run");
    let bench = Bench::new();
    bench.write("mine.toml", "[operation.touch]\nkey = [\"order.id\"]\n");
    // Which fields identify an action is not for a file to say that came with a project.
    let refusal = refused_in(&bench, 2, &["run", "--config", "mine.toml", "--", "touch", "ran"]);
    assert_snapshot!(refusal, @"once: INVALID_INPUT the key is derived from order.id, which needs one JSON input (--input, --input-file or --stdin), and there are 0");
}

#[test]
fn every_mistake_is_told_at_once() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[defaults]\nretension = \"1h\"\nattempts = \"three\"\nprobe = true\ndoubt_exit = [0]\n\
         [operation.\"[a-z]\"]\nclass = \"twice\"\n[exits.curl]\nno_effect = [0]\n",
    );
    assert_snapshot!(refused_in(&bench, 2, &["config", "check"]), @r#"
    once: INVALID_INPUT 7 problems:
      onceward.toml: line 2: [defaults] has no setting `retension`; did you mean `retention`?
      onceward.toml: line 3: attempts is the text "three"; it must be a whole number, such as 20
      onceward.toml: line 4: probe is true; it must be a command in quotes, or a table such as {tool = "get_order", expect = "paid"}
      onceward.toml: line 5: doubt_exit contains the number 0; an exit code here is a number from 1 to 255; 0 is success
      onceward.toml: line 6: [operation."[a-z]"]: `[` has no special meaning in a name; only * matches any text
      onceward.toml: line 7: class is the text "twice"; it must be one of read, idempotent, keyed, probed, once
      onceward.toml: line 9: no_effect contains the number 0; an exit code here is a number from 1 to 255; 0 is success
    "#);
    let answer = bench.json(&["config", "check"]);
    assert_eq!(answer["error"]["problems"].as_array().unwrap().len(), 7, "{answer}");
    assert_eq!(refused_in(&bench, 2, &["config", "show"]), refused_in(&bench, 2, &["config", "check"]));
}

#[test]
fn the_sections_of_the_server_are_checked() {
    let bench = Bench::new();
    bench.write(
        "mine.toml",
        "[serve]\nmax_bdy = 1\nlisten = \"x\"\n[upstream.u]\nurl = \"https://x\"\nprest = \"none\"\n",
    );
    let check = || refused_in(&bench, 2, &["config", "check", "mine.toml"]);
    assert_snapshot!(check(), @r"
    once: INVALID_INPUT 3 problems:
      mine.toml: line 2: [serve] has no setting `max_bdy`; did you mean `max_body`?
      mine.toml: line 3: [serve] listen: invalid type, expected a sequence
      mine.toml: line 6: [upstream.u] has no setting `prest`; did you mean `preset`?
    ");
    assert_eq!(refused_in(&bench, 2, &["--config", "mine.toml", "serve"]), check());
    bench.write(
        "mine.toml",
        "[tenant.A]\ntokens = []\n[upstream.u]\nurl = \"ftp://x\"\n[upstream.v]\nurl = \"https://x\"\n",
    );
    assert_snapshot!(check(), @r#"
    once: INVALID_INPUT 3 problems:
      mine.toml: line 1: [tenant.A] the name of a tenant must be 1 to 32 of a-z, 0-9, - and _, and begin with a letter or digit
      mine.toml: line 2: [tenant.A] there is no token, so no caller could use it; `once serve token` makes one
      mine.toml: line 3: [upstream.u] "ftp://x" is not a server address: it must begin with http:// or https://
    "#);
    bench.write(
        "mine.toml",
        "[upstream.u]\nurl = \"https://x\"\nport = 7\n[upstream.v]\nurl = \"https://y\"\nport = 7\n",
    );
    assert_snapshot!(check(), @"once: INVALID_INPUT mine.toml: line 6: [upstream.v] port: [upstream.u] has the same port, so one would never be reached");
    // A project's file that is not allowed yet is checked as well.
    bench.write("onceward.toml", "[serve]\nmax_bdy = 1\n");
    let said = bench.once(&["config", "check"]).exits(2).err();
    assert!(said.contains("onceward.toml: line 2: [serve] has no setting `max_bdy`"), "{said}");
}

#[test]
fn settings_that_contradict_each_other() {
    assert_snapshot!(refused_under("[operation.touch]\nkey = [\"a\", \"b\"]\nvolatile = [\"b\"]\n"), @"once: INVALID_INPUT onceward.toml: [operation.touch] `b` is in both key and volatile: it cannot both identify the action and differ between retries");
    assert_snapshot!(refused_under("[defaults]\nno_effect_exits = [3]\ndoubt_exit = [4, 3]\n"), @"once: INVALID_INPUT onceward.toml: [defaults] exit code 3 is in both no_effect_exits and doubt_exit: it cannot mean both");
    let bench = Bench::new();
    bench.write("onceward.toml", "[ledger]\nurl = \"foo\"\n");
    for command in ["check", "show"] {
        let mut once = bench.command(&["config", command, "--config", "onceward.toml"]);
        let said: crate::common::Said = once.env_remove("ONCE_LEDGER").output().unwrap().into();
        let said = said.exits(2).err();
        assert!(said.contains("foo") && said.contains("sqlite:"), "{said}");
    }
}

#[test]
fn policies_that_cannot_be_read() {
    assert_snapshot!(refused(2, &["run", "--config", "no.toml", "--", "touch", "ran"]), @"once: INVALID_INPUT cannot read the policy no.toml: No such file or directory (os error 2)");
    assert_snapshot!(refused(2, &["run", "--config", ".", "--", "touch", "ran"]), @"once: INVALID_INPUT cannot read the policy .: is a directory");
    let bench = Bench::new();
    bench.write("onceward.toml", [0xff, 0xfe, 0x00]);
    assert_snapshot!(refused_in(&bench, 2, &["run", "--", "touch", "ran"]), @"once: INVALID_INPUT cannot read the policy onceward.toml: stream did not contain valid UTF-8");
    assert_snapshot!(refused_in(&bench, 2, &["config", "show"]), @"once: INVALID_INPUT cannot read the policy onceward.toml: stream did not contain valid UTF-8");
}

#[test]
fn config_init_touches_no_file_that_is_there() {
    let bench = Bench::new();
    bench.write("onceward.toml", "# mine\n");
    assert_snapshot!(refused_in(&bench, 2, &["config", "init"]), @"once: INVALID_INPUT onceward.toml already exists; it was not changed");
    assert_snapshot!(refused_in(&bench, 2, &["config", "init", "--dry-run"]), @"once: INVALID_INPUT onceward.toml already exists; it was not changed");
    assert_snapshot!(refused_in(&bench, 2, &["config", "init", "no/such/folder.toml"]), @"once: INVALID_INPUT cannot write no/such/folder.toml: No such file or directory (os error 2)");
}
