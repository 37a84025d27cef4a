//! Properties of keys: equal intents have the same key however they are written, and different ones never share a
//! key.

use onceward::{Json, Operation};
use proptest::prelude::*;
use serde_json::Value;

/// A JSON tree with numbers as canonical text, so that it can be written in many ways.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Null,
    Bool(bool),
    Integer(String),
    Fraction(f64),
    Text(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{0,2}",
        "[\\x00-\\x1f\"\\\\/\\x7f]{0,4}",
        proptest::collection::vec(any::<char>(), 0..5).prop_map(|chars| chars.into_iter().collect()),
        proptest::sample::select(vec!["é", "e\u{301}", "😀", "\u{ffff}", "\u{10000}", "1", "true"])
            .prop_map(str::to_owned),
    ]
}

/// Whether all libraries write the double with the same digits. Of a double half way between two decimals, such as
/// 1474686406135830.25, both are as short and as close, and libraries choose differently.
fn has_one_shortest_text(double: f64) -> bool {
    let digits = |text: &str| {
        let mantissa = text.split('e').next().unwrap_or_default();
        mantissa.chars().filter(char::is_ascii_digit).collect::<String>().trim_matches('0').to_owned()
    };
    digits(&double.to_string()) == digits(ryu_js::Buffer::new().format(double))
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Null),
        any::<bool>().prop_map(Tree::Bool),
        any::<i64>().prop_map(|number| Tree::Integer(number.to_string())),
        (-3_i64..3).prop_map(|number| Tree::Integer(number.to_string())),
        "-?[1-9][0-9]{18,40}".prop_map(Tree::Integer),
        any::<f64>()
            .prop_filter("a fraction", |double| double.is_finite() && double.fract() != 0.0)
            .prop_filter("one shortest text", |double| has_one_shortest_text(*double))
            .prop_map(Tree::Fraction),
        (1_u32..1000).prop_map(|thousandth| Tree::Fraction(f64::from(thousandth) / 1_024.5)),
        texts().prop_map(Tree::Text),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Tree::Array),
            proptest::collection::btree_map(texts(), inner, 0..5)
                .prop_map(|map| Tree::Object(map.into_iter().collect())),
        ]
    })
}

/// Choices for one way to write a tree, consumed one by one.
struct Pen {
    choices: Vec<u8>,
    at: usize,
}

impl Pen {
    fn plain() -> Self {
        Self { choices: vec![0], at: 0 }
    }

    fn choose(&mut self, of: u8) -> u8 {
        let choice = self.choices[self.at % self.choices.len()];
        self.at += 1;
        choice % of
    }

    fn space(&mut self, out: &mut String) {
        out.push_str(["", "", " ", "\n\t", "\r\n  "][usize::from(self.choose(5))]);
    }

    fn write(&mut self, tree: &Tree, out: &mut String) {
        self.space(out);
        match tree {
            Tree::Null => out.push_str("null"),
            Tree::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Tree::Integer(digits) => self.integer(digits, out),
            Tree::Fraction(double) => self.fraction(*double, out),
            Tree::Text(text) => self.text(text, out),
            Tree::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.write(item, out);
                }
                out.push(']');
            }
            Tree::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                if !members.is_empty() {
                    let turn = usize::from(self.choose(5)) % members.len();
                    members.rotate_left(turn);
                }
                if self.choose(2) == 1 {
                    members.reverse();
                }
                out.push('{');
                for (index, (name, value)) in members.into_iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.space(out);
                    self.text(name, out);
                    self.space(out);
                    out.push(':');
                    self.write(value, out);
                }
                out.push('}');
            }
        }
        self.space(out);
    }

    fn integer(&mut self, digits: &str, out: &mut String) {
        let (sign, unsigned) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
        match self.choose(6) {
            1 => out.push_str(&format!("{digits}.000")),
            2 => out.push_str(&format!("{digits}e0")),
            3 if digits != "0" => out.push_str(&format!("{digits}00E-2")),
            4 => out.push_str(&format!("{digits}.0e+0")),
            5 if unsigned.len() > 1 => {
                out.push_str(&format!("{sign}{}.{}e{}", &unsigned[..1], &unsigned[1..], unsigned.len() - 1));
            }
            _ => out.push_str(digits),
        }
    }

    fn fraction(&mut self, double: f64, out: &mut String) {
        match self.choose(4) {
            1 => out.push_str(&format!("{double:e}")),
            2 => out.push_str(&format!("{double:E}")),
            // More digits would be another number; zeros are not.
            3 if double.fract() != 0.0 => out.push_str(&format!("{double}000")),
            _ => out.push_str(&format!("{double}")),
        }
    }

    fn text(&mut self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            let must = character < ' ' || matches!(character, '"' | '\\');
            match self.choose(4) {
                1 => escape(character, out),
                2 if character == '/' => out.push_str("\\/"),
                2 if character == '\n' => out.push_str("\\n"),
                2 if matches!(character, '"' | '\\') => out.extend(['\\', character]),
                _ if must => escape(character, out),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

fn escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04X}"));
    }
}

fn plain(tree: &Tree) -> String {
    let mut out = String::new();
    Pen::plain().write(tree, &mut out);
    out
}

fn identity(text: &str) -> (String, String) {
    let intent =
        Operation::new("pay").input_json(text).intent().unwrap_or_else(|error| panic!("{text}: {error}"));
    (intent.key.text, intent.fingerprint.as_str().to_owned())
}

fn canonical(text: &str) -> String {
    Json::parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).canonical()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canonical_text_is_its_own_canonical_text(tree in trees()) {
        let once = canonical(&plain(&tree));
        prop_assert_eq!(canonical(&once), once);
    }

    #[test]
    fn one_intent_has_one_key_however_it_is_written(tree in trees(), choices in proptest::collection::vec(any::<u8>(), 1..40)) {
        let mut other = String::new();
        Pen { choices, at: 0 }.write(&tree, &mut other);
        prop_assert_eq!(canonical(&plain(&tree)), canonical(&other));
        prop_assert_eq!(identity(&plain(&tree)), identity(&other));
    }

    #[test]
    fn two_intents_never_share_a_key(a in trees(), b in trees()) {
        prop_assume!(a != b);
        prop_assert_ne!(canonical(&plain(&a)), canonical(&plain(&b)));
        let ((key_a, print_a), (key_b, print_b)) = (identity(&plain(&a)), identity(&plain(&b)));
        prop_assert_ne!(key_a, key_b);
        prop_assert_ne!(print_a, print_b);
    }

    /// Two trees that differ in one place are the easiest to confuse.
    #[test]
    fn a_small_change_is_another_key(tree in trees(), other in trees(), name in texts()) {
        prop_assume!(tree != other);
        let around = |inner: &Tree| Tree::Object(vec![(name.clone(), Tree::Array(vec![inner.clone(), Tree::Null]))]);
        prop_assert_ne!(identity(&plain(&around(&tree))), identity(&plain(&around(&other))));
        prop_assert_ne!(identity(&plain(&tree)), identity(&plain(&around(&tree))));
    }

    #[test]
    fn neighbouring_integers_are_two(digits in "[1-9][0-9]{0,60}") {
        prop_assume!(!digits.ends_with('9'));
        let mut neighbour = digits.clone().into_bytes();
        if let Some(last) = neighbour.last_mut() {
            *last += 1;
        }
        let neighbour = String::from_utf8_lossy(&neighbour).into_owned();
        prop_assert_ne!(identity(&digits), identity(&neighbour));
        prop_assert_ne!(identity(&digits), identity(&format!("-{digits}")));
        prop_assert_eq!(canonical(&digits), digits);
    }

    #[test]
    fn a_double_is_printed_so_that_it_is_read_back(double in any::<f64>().prop_filter("finite", |double| double.is_finite())) {
        let text = canonical(&format!("{double:e}"));
        prop_assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok((double + 0.0).to_bits()));
        prop_assert_eq!(canonical(&text), text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        drop(Json::parse(&text));
    }

    /// Text that is almost JSON, where parsers make mistakes.
    #[test]
    fn text_that_is_almost_json_is_accepted_only_if_serde_json_accepts_it(text in "[\\[\\]{}\",:0-9eE+.\\\\unltrfas\\- \n]{0,24}") {
        let serde_accepts = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        let we = Json::parse(&text);
        match we {
            Ok(value) => {
                prop_assert!(serde_accepts, "only we accept {text:?}");
                let canonical = value.canonical();
                prop_assert_eq!(Json::parse(&canonical), Ok(value));
            }
            Err(problem) if serde_accepts => {
                // We reject text that would make a key ambiguous, and no other valid JSON.
                let reason = problem.to_string();
                let strict = ["occurs twice", "surrogate", "out of range"].iter().any(|why| reason.contains(why));
                prop_assert!(strict, "we alone refuse {text:?}: {reason}");
            }
            Err(_) => {}
        }
    }

    #[test]
    fn a_value_of_another_library_is_the_same_as_its_text(tree in trees()) {
        // serde_json holds only 64-bit integers; larger ones must be given as text.
        if let Some(value) = value(&tree) {
            prop_assert_eq!(Json::from(value).canonical(), canonical(&plain(&tree)));
        }
    }

    #[test]
    fn a_field_that_is_removed_is_not_in_the_fingerprint(tree in trees(), a in trees(), b in trees()) {
        let with = |volatile: &Tree| {
            let object = Tree::Object(vec![("kept".to_owned(), tree.clone()), ("trace".to_owned(), volatile.clone())]);
            Operation::new("pay").input_json(&plain(&object)).volatile(["trace"]).key_fields(["kept"])
        };
        let (a, b) = (with(&a).intent().expect("valid"), with(&b).intent().expect("valid"));
        prop_assert_eq!((a.key, a.fingerprint, a.id), (b.key, b.fingerprint, b.id));
    }
}

fn value(tree: &Tree) -> Option<Value> {
    Some(match tree {
        Tree::Null => Value::Null,
        Tree::Bool(flag) => Value::Bool(*flag),
        Tree::Integer(digits) => Value::Number(digits.parse::<i64>().ok()?.into()),
        Tree::Fraction(double) => Value::Number(serde_json::Number::from_f64(*double)?),
        Tree::Text(text) => Value::String(text.clone()),
        Tree::Array(items) => Value::Array(items.iter().map(value).collect::<Option<_>>()?),
        Tree::Object(members) => {
            let members = members.iter().map(|(name, inner)| Some((name.clone(), value(inner)?)));
            Value::Object(members.collect::<Option<_>>()?)
        }
    })
}
