//! Ids, keys and names: which are valid, and what is reported about inputs that differ.

use std::collections::BTreeMap;

use onceward::{
    Json, Key, KeyOrigin, MAX_FIELDS, MAX_NAME, Occurrence, Operation, OperationId, field_digests,
    fields_that_differ, name_like,
};

#[test]
fn an_operation_id_is_read_back_and_nothing_else_is() {
    let id = OperationId::of("default", "pay", "order-17");
    assert_eq!(OperationId::parse(id.as_str()).unwrap(), id);
    assert_eq!(String::from(id.clone()), id.as_str());
    assert_eq!(id.to_string(), id.as_str());
    let json = serde_json::to_string(&id).unwrap();
    assert_eq!(json, format!("\"{id}\""));
    assert_eq!(serde_json::from_str::<OperationId>(&json).unwrap(), id);
    let digits = "a".repeat(31);
    for wrong in [
        String::new(),
        "op_".to_owned(),
        format!("op_{digits}"),
        format!("op_{digits}aa"),
        format!("{digits}a"),
        format!("ok_{digits}a"),
        format!("op_{digits}A"),
        format!("op_{digits}1"),
        format!("op_{digits}8"),
        format!("op_{digits}{{"),
    ] {
        assert!(OperationId::parse(&wrong).is_err(), "{wrong}");
        assert!(serde_json::from_str::<OperationId>(&format!("{wrong:?}")).is_err(), "{wrong}");
    }
    for right in ["a", "z", "2", "7"] {
        assert!(OperationId::parse(&format!("op_{digits}{right}")).is_ok(), "{right}");
    }
}

#[test]
fn a_given_key_is_1_to_255_visible_ascii_characters() {
    for right in ["!", "~", "a-b_c:d/e#f", &"k".repeat(MAX_NAME)] {
        let key = Key::given(right).unwrap();
        assert_eq!((key.text.as_str(), key.origin), (right, KeyOrigin::Given));
    }
    for wrong in ["", " ", "a b", "a\n", "\u{7f}", "é", &"k".repeat(MAX_NAME + 1)] {
        assert!(Key::given(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_name_is_1_to_255_characters_without_control_characters() {
    for right in ["x", " ", "é", &"😀".repeat(MAX_NAME)] {
        name_like("name", right).unwrap();
        assert_eq!(Occurrence::parse(right).unwrap().to_string(), right);
    }
    for wrong in ["", "a\tb", "\u{85}", &"x".repeat(MAX_NAME + 1)] {
        assert!(name_like("name", wrong).is_err() && Occurrence::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_first_occurrence_is_the_default_one() {
    assert_eq!(Occurrence::default(), Occurrence::parse("1").unwrap());
    let id = |operation: Operation| operation.intent().unwrap().id;
    for operation in [Operation::new("pay"), Operation::new("pay").key("a")] {
        assert_eq!(id(operation.clone()), id(operation.clone().occurrence("1")));
        assert_ne!(id(operation.clone()), id(operation.occurrence("2")));
    }
}

#[test]
fn fields_are_told_apart_without_keeping_their_values() {
    let id = OperationId::of("default", "pay", "a");
    let digests = |text: &str| field_digests(&id, &Json::parse(text).unwrap(), None);
    let a = digests(r#"{"same":1,"other":2,"gone":3,"deep":{"list":[1,{"x/y":2}],"empty":[]}}"#);
    let b = digests(r#"{"deep":{"empty":{},"list":[1,{"x/y":3}]},"same":1.0,"other":"2","new":4}"#);
    assert_eq!(fields_that_differ(&a, &b), ["/deep/empty", "/deep/list/1/x~1y", "/gone", "/new", "/other"]);
    assert_eq!(fields_that_differ(&a, &a), Vec::<String>::new());
    // The same value has a different digest in another field and in another operation.
    assert_ne!(digests(r#"{"a":1}"#)["/a"], digests(r#"{"b":1}"#)["/b"]);
    let elsewhere =
        field_digests(&OperationId::of("default", "pay", "b"), &Json::parse(r#"{"a":1}"#).unwrap(), None);
    assert_ne!(digests(r#"{"a":1}"#)["/a"], elsewhere["/a"]);
}

#[test]
fn as_many_fields_are_told_apart_as_the_limit_says() {
    let id = OperationId::of("default", "pay", "a");
    let many: BTreeMap<String, u64> = (0..100).map(|index| (format!("f{index:03}"), index)).collect();
    let input = Json::object(many.into_iter().map(|(name, number)| (name, Json::from(number))));
    let digests = field_digests(&id, &input, None);
    assert_eq!(digests.len(), MAX_FIELDS);
    assert!(digests.contains_key("/f063") && !digests.contains_key("/f064"));
}

#[test]
fn a_number_is_made_of_its_text() {
    let text = |token: &str| Json::number(token).map(|number| number.canonical()).ok();
    assert_eq!(text("1.00").as_deref(), Some("1"));
    assert_eq!(text("18446744073709551617").as_deref(), Some("18446744073709551617"));
    for token in ["\"1\"", "true", "1 2", "NaN", "1e999999", ""] {
        assert_eq!(text(token), None, "{token}");
    }
}
