use super::*;

#[test]
fn the_default_is_complete_and_commented() {
    let settings = Settings::default();
    assert_eq!(settings.terms.lease_ms, 15_000);
    assert_eq!(settings.terms.retention_ms, 86_400_000);
    settings.terms.check().unwrap();
}

#[test]
fn the_longest_pattern_decides_last_and_an_exact_name_wins() {
    let policy = Policy::parse(
        r#"
        [defaults]
        attempts = 7
        [operation."charge_*"]
        class = "keyed"
        wait = "1s"
        [operation."charge_card_*"]
        class = "probed"
        [operation."charge_card_x"]
        class = "idempotent"
        "#,
    )
    .unwrap();
    let class = |name: &str| policy.settings(name).unwrap().terms.class;
    assert_eq!(class("mail"), Class::Once);
    assert_eq!(class("charge_bank"), Class::Keyed);
    assert_eq!(class("charge_card_y"), Class::Probed);
    assert_eq!(class("charge_card_x"), Class::Idempotent);
    let settings = policy.settings("charge_card_x").unwrap();
    assert_eq!((settings.terms.wait_ms, settings.terms.max_attempts), (1_000, 7));
}

#[test]
fn patterns() {
    assert!(
        matches_pattern("a*c*e", "abcde")
            && matches_pattern("*", "")
            && matches_pattern("*x", "xxx")
            && matches_pattern("é*", "éa")
    );
    assert!(!matches_pattern("a*c", "ab") && !matches_pattern("a", "ab") && !matches_pattern("a*b", "a"));
}

#[test]
fn mistakes_are_named() {
    let problem = |text: &str| match Policy::parse(text) {
        Err(invalid) => invalid.to_string(),
        Ok(policy) => policy.check().unwrap_err().to_string(),
    };
    assert!(problem("[defaults]\nclas = \"once\"").contains("clas"));
    assert!(problem("[defaults]\nclass = \"twice\"").contains("twice"));
    assert!(problem("[defaults]\nlease = \"soon\"").contains("soon"));
    assert!(problem("[defaults]\nattempts = 0").contains("nothing could ever run"));
    assert!(problem("[operation.\"x\"]\nlease = \"1ms\"").starts_with("[operation.x] lease"));
    assert!(problem("[defaults]\neffect = \"would_create\"").contains("would_create"));
    assert!(problem("[defaults]\nkey = [\"a\", \"b\"]\nvolatile = [\"b\"]").contains("`b` is in both"));
    assert!(problem("[defaults]\nno_effect_exits = [3]\ndoubt_exit = [3]").contains("exit code 3"));
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_their_lines() {
    let text = "[defaults]\nretension = \"1h\"\nattempts = \"three\"\n[default]\n\
                [operation.\"[a-z]\"]\nprobe = true\nwait = 30\ndoubt_exit = [0]\n\
                key = \"id\"\nstore_command = \"no\"\n";
    let problems = Policy::parse(text).unwrap_err();
    insta::assert_snapshot!(problems.problems().join("\n"), @r#"
    line 2: [defaults] has no setting `retension`; did you mean `retention`?
    line 3: attempts is the text "three"; it must be a whole number, such as 20
    line 4: `default` is not a section of a policy; did you mean `defaults`?
    line 5: [operation."[a-z]"]: `[` has no special meaning in a name; only * matches any text
    line 6: probe is true; it must be a command in quotes, or a table such as {tool = "get_order", expect = "paid"}
    line 7: wait is the number 30; it must be a time with its unit, in quotes, such as "30s"
    line 8: doubt_exit contains the number 0; an exit code here is a number from 1 to 255; 0 is success
    line 9: key is the text "id"; it must be a list of texts, such as ["customer", "amount"]
    line 10: store_command is the text "no"; it must be true or false
    "#);
}

#[test]
fn every_setting_of_a_rule_is_described() {
    let error = toml::from_str::<Rule>("nothing = 1").unwrap_err().to_string();
    let (_, names) = error.split_once("expected one of ").unwrap();
    let mut known: Vec<&str> = names.split(['`', ',', ' ', '\n']).filter(|name| !name.is_empty()).collect();
    let mut described: Vec<&str> = fields::RULE.iter().map(|(name, _)| *name).collect();
    known.sort_unstable();
    described.sort_unstable();
    assert_eq!(known, described);
}

#[test]
fn each_setting_says_what_decided_it() {
    let text = "[defaults]\nwait = \"1s\"\nclass = \"once\"\n[operation.\"pay_*\"]\nclass = \"keyed\"\n\
                [operation.pay_x]\nattempts = 3\n";
    let settings = Policy::parse(text).unwrap().explain("pay_x");
    let told = |name: &str| {
        let setting = settings.iter().find(|setting| setting.name == name).unwrap();
        format!("{} # {}", setting.value, setting.origin)
    };
    assert_eq!(told("class"), "\"keyed\" # [operation.\"pay_*\"]");
    assert_eq!(told("attempts"), "3 # [operation.pay_x]");
    assert_eq!(told("wait"), "\"1s\" # [defaults]");
    assert_eq!(told("retention"), "\"24h\" # built in");
    assert!(settings.iter().all(|setting| setting.name != "probe"));
}
