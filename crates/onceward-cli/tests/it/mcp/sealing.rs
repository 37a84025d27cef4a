//! Stored results of tools are encrypted at rest.

use serde_json::json;

use crate::common::Bench;
use crate::mcp::session::{Session, effects, words};

#[test]
fn a_stored_result_is_sealed_and_without_the_key_the_tool_is_not_called_again() {
    let bench = Bench::new();
    bench.once(&["config", "new-key", "once.key"]).exits(0);
    let strict = "[defaults]\nkeys = \"strict\"\n";
    let call = |policy: &str| {
        bench.write("onceward.toml", policy);
        let mut session = Session::scoped(&bench);
        let result = session.call(1, "count", &json!({"n": "v1"}));
        session.leave();
        result
    };
    let sealed = format!("[ledger]\nencryption_key_file = \"once.key\"\n{strict}");
    for _ in 0..2 {
        assert_eq!(call(&sealed)["structuredContent"]["run"], json!(1));
    }
    let refused = call(strict);
    assert!(words(&refused).contains("RESULT_UNAVAILABLE"), "{refused}");
    assert_eq!(effects(&bench), 1);
    let export = bench.once(&["--config", "onceward.toml", "export"]).exits(0).out();
    assert!(export.contains("\"data\":\"sealed:1:k_"), "{export}");
}
