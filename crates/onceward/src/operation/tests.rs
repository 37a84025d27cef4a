use super::*;

#[test]
fn only_a_trace_parent_is_stored() {
    let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert!(is_trace_parent(valid));
    for wrong in [
        "",
        "Bearer secret",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    ] {
        assert!(!is_trace_parent(wrong), "{wrong}");
    }
}

#[test]
fn an_action_under_a_key_is_the_operation_with_that_key() {
    let action = || Operation::new("pay").scope("s").input(serde_json::json!({"to": 1}));
    let secret = Secret::new([7; Secret::BYTES]);
    for secret in [None, Some(&secret)] {
        let given = action().key("k").intent_for(secret).unwrap();
        let same = action().intent_for(secret).unwrap().under_key("k").unwrap();
        assert_eq!((&same.id, &same.key, &same.fingerprint), (&given.id, &given.key, &given.fingerprint));
        assert_eq!(same.fields(), given.fields());
        assert_eq!(same.action(), given.action());
        assert_eq!(given.action(), action().intent_for(secret).unwrap().id, "an equal call without a key");
        assert!(given.at_occurrence(2).is_err(), "its key stands for one operation");
    }
    assert!(action().intent().unwrap().under_key("not a key").is_err());
}

#[test]
fn an_action_without_its_inputs_is_still_the_same() {
    let action = Operation::new("pay").input(serde_json::json!({"to": 1})).intent().unwrap();
    let bare = action.clone().without_input();
    assert_eq!((&bare.id, &bare.fingerprint), (&action.id, &action.fingerprint));
    let (digests, kept) = (action.fields(), bare.fields());
    assert!(digests.keys().all(|field| !kept.contains_key(field)));
}

#[test]
fn the_action_of_a_keyed_call_is_that_of_the_equal_call_without_a_key() {
    let json = |text: &str| Json::parse(text).unwrap();
    let all = r#"{"argv":["pay"],"folder":"/a","input":{"to":1,"trace":5}}"#;
    let plain = Operation::unnamed("pay").input(json(all));
    let keyed = Operation::unnamed("pay").input(json(r#"{"argv":["pay"]}"#)).key("k");
    let secret = Secret::new([7; Secret::BYTES]);
    let intent = |operation: &Operation| operation.clone().intent_for(Some(&secret)).unwrap();
    let whole = keyed.clone().whole(Some(json(all)));
    assert_ne!(intent(&keyed).action(), intent(&plain).id);
    assert_eq!(intent(&whole).action(), intent(&plain).id);
    assert_eq!(intent(&whole).fingerprint, intent(&keyed).fingerprint, "the key's comparison stays");
    assert_eq!(intent(&whole).id, intent(&keyed).id);
    // What may differ between retries, and chosen fields.
    let retry = json(&all.replace('5', "6"));
    let volatile = |operation: &Operation| operation.clone().volatile(["/input/trace"]);
    let again = keyed.clone().whole(Some(retry));
    assert_eq!(intent(&volatile(&again)).action(), intent(&volatile(&plain)).id);
    let unknown = keyed.whole(None);
    assert_eq!(intent(&unknown).action(), intent(&unknown).id, "its key alone identifies it");
    let chosen = |operation: &Operation| operation.clone().input(json(all)).key_fields(["/input/to"]);
    assert_eq!(intent(&chosen(&unknown)).action(), intent(&chosen(&plain)).id);
}
