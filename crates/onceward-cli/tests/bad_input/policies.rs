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
    assert_snapshot!(refused_under("[defaults]\nretension = \"1h\"\n"), @r#"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 2, column 1
      |
    2 | retension = "1h"
      | ^^^^^^^^^
    unknown field `retension`, expected one of `class`, `keys`, `key`, `volatile`, `lease`, `wait`, `retention`, `tombstones`, `attempts`, `retries`, `backoff`, `on_failure`, `on_expired`, `quarantine`, `downstream_window`, `timeout`, `effect`, `probe`, `verify`, `verify_deadline`, `verify_interval`, `doubt_exit`, `max_output`, `key_argument`, `on_tool_error`, `lock`, `concurrency`
    once: happened: no, retryable: no
    "#);
    assert_snapshot!(refused_under("[default]\n"), @r"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 1, column 2
      |
    1 | [default]
      |  ^^^^^^^
    unknown field `default`, expected one of `ledger`, `defaults`, `operation`
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("[defaults]\nattempts = \"three\"\n"), @r#"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 2, column 12
      |
    2 | attempts = "three"
      |            ^^^^^^^
    invalid type: string "three", expected u32
    once: happened: no, retryable: no
    "#);
    assert_snapshot!(refused_under("[defaults]\nattempts = 0\n"), @r"
    once: INVALID_INPUT onceward.toml: [defaults] attempts is 0: then nothing could ever run
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("[defaults]\nclass = \"twice\"\n"), @r#"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 2, column 9
      |
    2 | class = "twice"
      |         ^^^^^^^
    unknown variant `twice`, expected one of `read`, `idempotent`, `keyed`, `probed`, `once`
    once: happened: no, retryable: no
    "#);
    assert_snapshot!(refused_under("[defaults]\nretention = \"a while\"\n"), @r#"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 2, column 13
      |
    2 | retention = "a while"
      |             ^^^^^^^^^
    "a while" is not a span of time (expected number at 0); write 500ms, 15s, 24h or 30d
    once: happened: no, retryable: no
    "#);
    assert_snapshot!(refused_under("[defaults]\nretention = \"0s\"\n"), @r"
    once: INVALID_INPUT onceward.toml: [defaults] retention is 0: then no retry could be recognised
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("[defaults]\nwait = 30\n"), @r"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 2, column 8
      |
    2 | wait = 30
      |        ^^
    invalid type: integer `30`, expected a string
    once: happened: no, retryable: no
    ");
}

#[test]
fn policies_that_ask_for_what_cannot_be() {
    assert_snapshot!(refused_under("[defaults]\neffect = \"would_create\"\n"), @r"
    once: INVALID_INPUT onceward.toml: [defaults] effect is would_create, which is for dry runs; use created, updated, deleted or noop
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("this is not TOML"), @r"
    once: INVALID_INPUT onceward.toml: TOML parse error at line 1, column 6
      |
    1 | this is not TOML
      |      ^
    key with no value, expected `=`
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("[operation.pay]\nlease = \"1ms\"\n[operation.refund]\nattempts = 0\n"), @r"
    once: INVALID_INPUT onceward.toml: [pay] lease is shorter than 100ms: a live owner could not renew it in time; [refund] attempts is 0: then nothing could ever run
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("[operation.touch]\nclass = \"probed\"\n"), @r"
    once: INVALID_INPUT the class is probed, but there is no probe to ask; give --probe COMMAND
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_under("[operation.touch]\nkeys = \"keyed\"\n"), @r#"
    once: KEY_MISSING the operation "touch" needs a key and none was given; give one that names this very action
    once: happened: no, retryable: no
    "#);
    assert_snapshot!(refused_under("[operation.touch]\nkey = [\"order.id\"]\n"), @r"
    once: INVALID_INPUT the key is made of order.id, which needs one JSON input (--input, --input-file or --stdin), and there are 0
    once: happened: no, retryable: no
    ");
}

#[test]
fn policies_that_cannot_be_read() {
    assert_snapshot!(refused(2, &["run", "--config", "no.toml", "--", "touch", "ran"]), @r"
    once: INVALID_INPUT cannot read the policy no.toml: No such file or directory (os error 2)
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused(2, &["run", "--config", ".", "--", "touch", "ran"]), @r"
    once: INVALID_INPUT cannot read the policy .: Is a directory (os error 21)
    once: happened: no, retryable: no
    ");
    let bench = Bench::new();
    bench.write("onceward.toml", [0xff, 0xfe, 0x00]);
    assert_snapshot!(refused_in(&bench, 2, &["run", "--", "touch", "ran"]), @r"
    once: INVALID_INPUT cannot read the policy onceward.toml: stream did not contain valid UTF-8
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["config", "show"]), @r"
    once: INVALID_INPUT cannot read the policy onceward.toml: stream did not contain valid UTF-8
    once: happened: no, retryable: no
    ");
}

#[test]
fn config_init_touches_no_file_that_is_there() {
    let bench = Bench::new();
    bench.write("onceward.toml", "# mine\n");
    assert_snapshot!(refused_in(&bench, 2, &["config", "init"]), @r"
    once: INVALID_INPUT onceward.toml exists already; it was not touched
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["config", "init", "--dry-run"]), @r"
    once: INVALID_INPUT onceward.toml exists already; it was not touched
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["config", "init", "no/such/folder.toml"]), @r"
    once: INVALID_INPUT cannot write no/such/folder.toml: No such file or directory (os error 2)
    once: happened: no, retryable: no
    ");
}
