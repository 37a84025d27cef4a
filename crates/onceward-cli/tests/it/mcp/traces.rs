//! The W3C trace context of a call is stored with its operation.

use serde_json::{Value, json};

use crate::common::Bench;
use crate::mcp::session::{Session, with_meta};
use crate::mcp::web::Web;

const OF_META: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OF_HEADER: &str = "00-11111111111111111111111111111111-2222222222222222-00";

/// The trace that `once show` prints for the operation with this key.
fn shown(bench: &Bench, key: &str) -> Option<String> {
    let text = bench.once(&["show", key]).exits(0).out();
    text.lines().find_map(|line| Some(line.trim().strip_prefix("trace ")?.trim().to_owned()))
}

fn meta(key: &str, trace: &str) -> Value {
    json!({"dev.onceward/key": key, "traceparent": trace})
}

#[test]
fn over_stdio_it_is_in_meta() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (id, key, trace, stored) in
        [(1, "a", OF_META, Some(OF_META)), (2, "b", "00-secret", None), (3, "a", OF_HEADER, Some(OF_META))]
    {
        session.send(&with_meta(id, "count", &json!({}), &meta(key, trace)));
        assert!(session.answer(id)["result"].is_object());
        assert_eq!(shown(&bench, key).as_deref(), stored, "{key}");
    }
}

#[test]
fn over_http_it_is_in_meta_or_in_a_header() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let call = |id: u64, meta: &Value, headers: &[(&str, &str)]| {
        let answer = web.post(headers, &with_meta(id, "count", &json!({"id": id}), meta)).message();
        assert!(answer["result"].is_object(), "{answer}");
    };
    call(1, &json!({"dev.onceward/key": "a"}), &[("Traceparent", OF_HEADER)]);
    assert_eq!(shown(&bench, "a").as_deref(), Some(OF_HEADER));
    call(2, &meta("b", OF_META), &[("Traceparent", OF_HEADER)]);
    assert_eq!(shown(&bench, "b").as_deref(), Some(OF_META), "the message knows its call best");
    call(3, &json!({"dev.onceward/key": "c"}), &[("Traceparent", OF_HEADER), ("Traceparent", OF_META)]);
    assert_eq!(shown(&bench, "c"), None, "two headers contradict each other");
}
