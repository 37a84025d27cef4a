//! What should identify an operation, and cannot.

use insta::assert_snapshot;

use super::{refused, refused_in};
use crate::common::Bench;

#[test]
fn keys() {
    assert_snapshot!(refused(2, &["run", "--key", "", "--", "touch", "ran"]), @"once: INVALID_INPUT the key has 0 characters; a key is 1 to 255 visible ASCII characters");
    assert_snapshot!(refused(2, &["run", "--key", &"k".repeat(256), "--", "touch", "ran"]), @"once: INVALID_INPUT the key has 256 characters; a key is 1 to 255 visible ASCII characters");
    assert_snapshot!(refused(2, &["run", "--key", "order 7", "--", "touch", "ran"]), @"once: INVALID_INPUT the key contains ' '; a key is 1 to 255 visible ASCII characters");
    assert_snapshot!(refused(2, &["run", "--key", "größe", "--", "touch", "ran"]), @"once: INVALID_INPUT the key contains 'ö'; a key is 1 to 255 visible ASCII characters");
    assert_snapshot!(refused(2, &["run", "--key", "a\nb", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the key contains '\n'; a key is 1 to 255 visible ASCII characters"#);
    assert_snapshot!(
        refused(2, &["run", "--key", &"k".repeat(254), "--occurrence", "2", "--", "touch", "ran"]), @"once: INVALID_INPUT the key has 256 characters; a key is 1 to 255 visible ASCII characters");
}

#[test]
fn scopes_names_and_occurrences() {
    assert_snapshot!(refused(2, &["run", "--scope", "", "--", "touch", "ran"]), @"once: INVALID_INPUT the scope has 0 characters; it must have 1 to 255");
    assert_snapshot!(refused(2, &["run", "--session", &"s".repeat(256), "--", "touch", "ran"]), @"once: INVALID_INPUT the scope has 256 characters; it must have 1 to 255");
    assert_snapshot!(refused(2, &["run", "--scope", "a\tb", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the scope contains the control character '\t'"#);
    assert_snapshot!(refused(2, &["run", "--name", "", "--", "touch", "ran"]), @"once: INVALID_INPUT the name has 0 characters; it must have 1 to 255");
    assert_snapshot!(refused(2, &["run", "--occurrence", "", "--", "touch", "ran"]), @"once: INVALID_INPUT the occurrence has 0 characters; it must have 1 to 255");
    assert_snapshot!(refused(2, &["run", "--occurrence", "a\u{7}", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the occurrence contains the control character '\u{7}'"#);
    assert_snapshot!(refused(2, &["key"]), @"once: INVALID_INPUT there is neither a command nor a --name");
}

#[test]
fn all_problems_are_told_at_once() {
    let bench = Bench::new();
    let args = ["run", "--key", "a b", "--scope", "", "--attempts", "0", "--ttl", "0s", "--", "touch", "ran"];
    assert_snapshot!(refused_in(&bench, 2, &args), @r"
    once: INVALID_INPUT 4 problems:
      the scope has 0 characters; it must have 1 to 255
      attempts is 0, so nothing could ever run
      retention is 0, so no retry could be recognised
      the key contains ' '; a key is 1 to 255 visible ASCII characters
    ");
    let problems = bench.json(&args)["error"]["problems"].clone();
    assert_eq!(problems.as_array().unwrap().len(), 4, "{problems}");
}

#[test]
fn json_inputs() {
    assert_snapshot!(refused(2, &["run", "--input", "amount=5", "--", "touch", "ran"]), @"once: INVALID_INPUT --input: the input is not valid JSON: expected a value (at byte 0)");
    assert_snapshot!(refused(2, &["run", "--input", r#"{"a":1} {"b":2}"#, "--", "touch", "ran"]), @"once: INVALID_INPUT --input: the input is not valid JSON: there is text after the JSON value (at byte 8)");
    assert_snapshot!(refused(2, &["run", "--input", r#"{"a":1,"a":2}"#, "--", "touch", "ran"]), @r#"once: INVALID_INPUT --input: the input is not valid JSON: the name "a" occurs twice in one object (at byte 13)"#);
    assert_snapshot!(refused(2, &["run", "--input", r#"{"a":"\ud800"}"#, "--", "touch", "ran"]), @"once: INVALID_INPUT --input: the input is not valid JSON: a surrogate is not part of a pair (at byte 12)");
    assert_snapshot!(refused(2, &["run", "--input", r#"{"a":1e99999}"#, "--", "touch", "ran"]), @"once: INVALID_INPUT --input: the input is not valid JSON: the number 1e99999 is out of range (at byte 12)");
    assert_snapshot!(refused(2, &["run", "--input", &"[".repeat(300), "--", "touch", "ran"]), @"once: INVALID_INPUT --input: the input is not valid JSON: it nests deeper than 128 levels (at byte 129)");
    assert_snapshot!(refused(2, &["run", "--input", "", "--", "touch", "ran"]), @"once: INVALID_INPUT --input: the input is not valid JSON: it ends where a value is expected (at byte 0)");
}

#[test]
fn files_and_variables() {
    assert_snapshot!(refused(2, &["run", "--input-file", "no.json", "--", "touch", "ran"]), @"once: INVALID_INPUT --input-file no.json: No such file or directory (os error 2)");
    assert_snapshot!(refused(2, &["run", "--input-file", ".", "--", "touch", "ran"]), @"once: INVALID_INPUT --input-file .: Is a directory (os error 21)");
    assert_snapshot!(refused(2, &["run", "--env", "NOT_SET_ANYWHERE", "--", "touch", "ran"]), @"once: INVALID_INPUT --env NOT_SET_ANYWHERE: the variable is not set, or is not text");
    assert_snapshot!(
        refused(2, &["run", "--input-file", "no.json", "--env", "NOT_SET", "--input", "{", "--", "touch", "ran"]), @r"
    once: INVALID_INPUT 3 problems:
      --input: the input is not valid JSON: expected a member's name in quotes (at byte 1)
      --input-file no.json: No such file or directory (os error 2)
      --env NOT_SET: the variable is not set, or is not text
    ");
}

#[test]
fn key_fields() {
    let bench = Bench::new();
    bench.write("a.json", r#"{"id":1}"#).write("b.json", r#"{"id":2}"#).write("c.txt", "not JSON");
    let refused = |args: &[&str]| refused_in(&bench, 2, &[args, &["--", "touch", "ran"]].concat());
    assert_snapshot!(refused(&["run", "--key-fields", "id"]), @"once: INVALID_INPUT the key is derived from id, which needs one JSON input (--input, --input-file or --stdin), and there are 0");
    assert_snapshot!(refused(&["run", "--key-fields", "id", "--input-file", "c.txt"]), @"once: INVALID_INPUT the key is derived from id, which needs one JSON input (--input, --input-file or --stdin), and there are 0");
    assert_snapshot!(refused(&["run", "--key-fields", "id", "--input-file", "a.json", "--input-file", "b.json"]), @"once: INVALID_INPUT the key is derived from id, which needs one JSON input (--input, --input-file or --stdin), and there are 2");
    assert_snapshot!(refused(&["run", "--key-fields", "customer,id,amount", "--input-file", "a.json"]), @r"
    once: INVALID_INPUT 2 problems:
      the key field /input/customer is missing from the input
      the key field /input/amount is missing from the input
    ");
    assert_snapshot!(refused(&["run", "--key-fields", "a..b", "--input-file", "a.json"]), @r#"once: INVALID_INPUT the field "input.a..b" is empty or has an empty step; write `order.id` or the JSON Pointer `/order/id`"#);
    assert_snapshot!(refused(&["run", "--key-fields", "/a~2", "--input-file", "a.json"]), @r#"once: INVALID_INPUT the field "/input/a~2" has a `~` that is neither `~0` nor `~1`; write `order.id` or the JSON Pointer `/order/id`"#);
    assert_snapshot!(refused(&["run", "--key-fields", "", "--input-file", "a.json"]), @r#"once: INVALID_INPUT the field "input." is empty or has an empty step; write `order.id` or the JSON Pointer `/order/id`"#);
    assert_snapshot!(refused(&["run", "--volatile", "a..b", "--input-file", "a.json"]), @r#"once: INVALID_INPUT the field "input.a..b" is empty or has an empty step; write `order.id` or the JSON Pointer `/order/id`"#);
}
