//! A payment that is made once, however often it is requested.

use onceward::{Ledger, Operation};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = onceward_store::open(&format!("sqlite:{}", folder.path().join("agent.db").display()))?;
    let ledger = Ledger::new(store).blocking();

    let charge = Operation::new("charge_payment")
        .scope("order-flow-abc123")
        .input(json!({"customer_id": "c1", "amount": 100, "note": "thanks"}))
        .key_fields(["customer_id", "amount"]);
    for call in ["first call", "retry", "retry of the retry"] {
        let receipt = ledger.run(charge.clone(), |attempt| {
            // Pass our key to the payment service: it is the same for every attempt.
            assert!(attempt.downstream_key().starts_with("op_"));
            Ok(attempt.dispatch()?.created(&json!({"payment": 42})))
        })?;
        assert_eq!(receipt.data(), Some(r#"{"payment":42}"#));
        assert_eq!(receipt.replayed(), call != "first call");
    }
    Ok(())
}
