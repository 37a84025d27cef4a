//! Every line is parsed without a panic, and messages that are not intercepted are not changed.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use onceward::{Ledger, MemoryStore};
use onceward_mcp::{HostScope, Options, Proxy, Streams, fuzz};
use onceward_testkit::Stepped;
use proptest::prelude::*;

/// A stream that stores what is written to it.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// A proxy between two sinks.
struct Bench {
    proxy: Arc<Proxy>,
    client: Sink,
    server: Sink,
    _runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (client, server) = (Sink::default(), Sink::default());
        let options = Options { drain_ms: 0, ..Options::new("s", "s", HostScope::Chosen("s".to_owned())) };
        // No time passes: calls that wait for their answer are not asked to end.
        let ledger = Ledger::new(Arc::new(MemoryStore::new(Stepped::at(0))));
        let streams = Streams { client: Box::new(client.clone()), server: Box::new(server.clone()) };
        let proxy = Proxy::new(ledger, options, streams, runtime.handle().clone());
        Self { proxy, client, server, _runtime: runtime }
    }
}

/// Arbitrary JSON values, with member names from messages.
fn values() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        "-?[1-9][0-9]{0,30}",
        "[1-9]\\.[0-9]{1,3}[eE][+-]?[1-9]",
        ".{0,12}".prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    let names = prop_oneof![
        Just("id"),
        Just("method"),
        Just("params"),
        Just("result"),
        Just("error"),
        Just("name"),
        Just("arguments"),
        Just("_meta"),
        Just("tools"),
        Just("inputSchema"),
        Just("properties"),
        Just("content"),
        Just("x"),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|items| format!("[{}]", items.join(" ,"))),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|members| {
                let members: Vec<String> =
                    members.iter().map(|(name, value)| format!("\"{name}\" :{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

fn look(line: &[u8]) {
    let messages = fuzz::look(line);
    let call = fuzz::look_at_call(line);
    let tools = fuzz::look_at_tools(line);
    // Only a panic would fail this.
    std::hint::black_box((messages, tools, call));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(line in prop::collection::vec(any::<u8>(), 0..300)) {
        look(&line);
    }

    #[test]
    fn events_do_not_depend_on_chunks(
        stream in "(data|id|retry|:)?(: ?)?[a-z\\PC]{0,3}(\r\n|\n|\r|\n\n|\r\n\r\n|\r\r)".prop_map(String::into_bytes),
        more in prop::collection::vec(prop::sample::select(&b"\r\n\ndata: i\xff"[..]), 0..60),
        piece in 1_usize..9,
    ) {
        let bytes = [stream, more].concat();
        prop_assert_eq!(fuzz::look_at_events(&bytes, piece), fuzz::look_at_events(&bytes, bytes.len()));
    }

    #[test]
    fn any_json_is_read_and_any_cut_of_it(value in values(), cut in any::<prop::sample::Index>()) {
        look(value.as_bytes());
        look(&value.as_bytes()[..cut.index(value.len().max(1)).min(value.len())]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Messages other than tool calls arrive unchanged, in both directions.
    #[test]
    fn other_messages_are_not_changed(lines in prop::collection::vec(values(), 1..20)) {
        let bench = Bench::new();
        // The proxy itself answers a request whose id is null, because no server could.
        let passed = lines.iter().filter(|line| !is_request_without_id(line));
        let sent: String = passed.map(|line| format!("{}\n", line.replace('\n', " "))).collect();
        bench.proxy.pump_client(sent.as_bytes());
        prop_assert_eq!(bench.server.text(), sent.clone());
        bench.proxy.pump_server(sent.as_bytes());
        prop_assert_eq!(bench.client.text(), sent);
    }
}

fn is_request_without_id(line: &str) -> bool {
    let message: Result<serde_json::Value, _> = serde_json::from_str(line);
    message.is_ok_and(|message| {
        message.get("method").is_some() && message.get("id").is_some_and(serde_json::Value::is_null)
    })
}

/// Messages with random but reproducible damage.
#[test]
fn two_hundred_thousand_broken_messages_are_read() {
    let call = concat!(
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":"#,
        r#"{"a":[1,"\u00e9",{}],"idempotency_key":"k"},"_meta":{"progressToken":1}}}"#
    );
    let list = concat!(
        r#"{"tools":[{"name":"w","inputSchema":{"type":"object","properties":{"a":{}}},"#,
        r#""annotations":{"readOnlyHint":false}}],"nextCursor":"c"}"#
    );
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % below.max(1)
    };
    for _ in 0..200_000 {
        let mut line = (if random(3) == 0 { list } else { call }).as_bytes().to_vec();
        for _ in 0..=random(4) {
            if line.is_empty() {
                break;
            }
            let at = random(line.len());
            match random(4) {
                0 => line[at] = u8::try_from(random(256)).unwrap(),
                1 => drop(line.remove(at)),
                2 => line.insert(at, b"{}[]\",:\\0a\xff"[random(11)]),
                _ => line.truncate(at.max(1)),
            }
        }
        look(&line);
    }
}
