//! Results come back byte for byte.

use serde_json::value::RawValue;

use super::bench::{Bench, Problem, Verdict, done, ensure, equal, next, same, staged, staged_as};
use super::{Case, cases};
use crate::record::MAX_RESULT;
use crate::record::{Effect, Outcome, Record};

pub(super) const CASES: &[Case] = cases![
    json_comes_back_as_the_text_it_came_as,
    a_body_of_every_byte_comes_back,
    an_empty_body_is_not_the_same_as_none,
    json_null_is_not_the_same_as_none,
    a_body_survives_a_change_beside_it,
    a_body_can_be_replaced_and_removed,
    the_largest_body_is_kept,
    the_largest_json_is_kept,
    a_late_answer_keeps_its_body,
    names_in_every_script_are_kept,
    the_longest_names_are_kept,
    a_reason_with_a_nul_is_kept,
];

fn outcome(data: Option<&str>, body: Option<&[u8]>) -> Result<Outcome, Problem> {
    let data = data.map(|text| RawValue::from_string(text.to_owned())).transpose()?;
    Ok(Outcome {
        data: data.map(Into::into),
        body: body.map(Into::into),
        ..Outcome::with_effect(Effect::Created)
    })
}

fn kept(bench: &Bench, record: &Record) -> Verdict {
    bench.put(record)?;
    same(&*bench.found(&record.id)?, record)
}

fn json_comes_back_as_the_text_it_came_as(bench: &Bench) -> Verdict {
    let texts = [
        "{ \"b\" : 1.0,\n\t\"a\": 1e0 }",
        "{\"a\":1,\"a\":2}",
        "12345678901234567890123",
        "0.1000000000000000055511151231257827",
        "\"\\u00e9 \\ud83d\\ude00 é 😀 \\/ /\"",
        "\"\\u0000\"",
        "[]",
    ];
    for (index, text) in texts.into_iter().enumerate() {
        let record = done(&index.to_string(), outcome(Some(text), None)?)?;
        kept(bench, &record)?;
        let found = bench.found(&record.id)?;
        let data = found.outcome.as_ref().and_then(|outcome| outcome.data.as_ref()).map(|data| data.get());
        equal!(data, Some(text), "the result");
    }
    Ok(())
}

fn a_body_of_every_byte_comes_back(bench: &Bench) -> Verdict {
    let bytes: Vec<u8> = (0..=255).rev().chain(0..=255).collect();
    kept(bench, &done("a", outcome(None, Some(&bytes))?)?)
}

fn an_empty_body_is_not_the_same_as_none(bench: &Bench) -> Verdict {
    kept(bench, &done("empty", outcome(None, Some(&[]))?)?)?;
    kept(bench, &done("none", outcome(None, None)?)?)
}

fn json_null_is_not_the_same_as_none(bench: &Bench) -> Verdict {
    for (key, data) in [("null", Some("null")), ("none", None)] {
        let record = done(key, outcome(data, None)?)?;
        bench.put(&record)?;
        let found = bench.found(&record.id)?;
        let seen = found.outcome.as_ref().and_then(|outcome| outcome.data.as_ref()).map(|data| data.get());
        equal!(seen, data, "the result");
    }
    Ok(())
}

fn a_body_survives_a_change_beside_it(bench: &Bench) -> Verdict {
    let record = done("a", outcome(Some("1"), Some(b"body"))?)?;
    bench.put(&record)?;
    let after = Record { due_ms: Some(7), ..next(&record) };
    bench.replace(&record, &after)?;
    same(&*bench.found(&record.id)?, &after)
}

fn a_body_can_be_replaced_and_removed(bench: &Bench) -> Verdict {
    let mut before = done("a", outcome(None, Some(b"first"))?)?;
    bench.put(&before)?;
    for body in [Some(b"second, and longer".as_slice()), None, Some(b"third"), None] {
        let after = Record { outcome: Some(outcome(None, body)?), ..next(&before) };
        bench.replace(&before, &after)?;
        same(&*bench.found(&after.id)?, &after)?;
        before = after;
    }
    let bare = Record { outcome: None, ..next(&before) };
    bench.replace(&before, &bare)?;
    same(&*bench.found(&bare.id)?, &bare)
}

fn the_largest_body_is_kept(bench: &Bench) -> Verdict {
    let bytes: Vec<u8> = (0..251).cycle().take(MAX_RESULT).collect();
    let record = done("a", outcome(None, Some(&bytes))?)?;
    bench.put(&record)?;
    let found = bench.found(&record.id)?;
    let body = found.outcome.as_ref().and_then(|outcome| outcome.body.as_deref());
    ensure!(body == Some(bytes.as_slice()), "a body of {MAX_RESULT} bytes did not come back as it was");
    Ok(())
}

fn the_largest_json_is_kept(bench: &Bench) -> Verdict {
    let text = format!("\"{}\"", "x".repeat(MAX_RESULT - 2));
    let record = done("a", outcome(Some(&text), None)?)?;
    bench.put(&record)?;
    let found = bench.found(&record.id)?;
    let data = found.outcome.as_ref().and_then(|outcome| outcome.data.as_ref()).map(|data| data.get());
    ensure!(data == Some(text.as_str()), "a result of {MAX_RESULT} bytes did not come back as it was");
    Ok(())
}

fn a_late_answer_keeps_its_body(bench: &Bench) -> Verdict {
    let mut record = staged("a")?;
    record.detail.late = Some(outcome(Some("{ \"a\" :1 }"), Some(&[0, 255]))?);
    bench.put(&record)?;
    ensure!(bench.found(&record.id)?.detail.late == record.detail.late, "the late answer is another one");
    Ok(())
}

fn names_in_every_script_are_kept(bench: &Bench) -> Verdict {
    for name in [
        "Zürich",
        "注文",
        "заказ",
        "\u{1f600}\u{10ffff}",
        "e\u{301}",
        "\u{e9}",
        "'; DROP TABLE--",
        "\\",
        " x ",
    ] {
        let mut record = staged_as(name, name, "a")?;
        record.outcome = Some(Outcome::because(Some(name.to_owned())));
        kept(bench, &record)?;
    }
    Ok(())
}

fn the_longest_names_are_kept(bench: &Bench) -> Verdict {
    let long = "\u{10ffff}".repeat(crate::key::MAX_NAME);
    kept(bench, &staged_as(&long, &long, &"k".repeat(crate::key::MAX_NAME))?)
}

fn a_reason_with_a_nul_is_kept(bench: &Bench) -> Verdict {
    let mut record = staged("a")?;
    record.outcome = Some(Outcome::because(Some("before\0after\r\n".to_owned())));
    kept(bench, &record)
}
