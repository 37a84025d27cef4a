//! The page about the inbox says what the presets do.

use onceward_http::inbox::{Judgement, SourceConfig, Trial, presets};

use super::{NOW_MS, URL, event, judge};

const PAGE: &str = include_str!("../../../../../docs/inbox.md");

#[test]
fn the_table_of_presets_is_complete_and_true() {
    for (name, preset) in presets::all().unwrap() {
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let cells: Vec<&str> =
            row.unwrap_or_else(|| panic!("{name} has no row")).split('|').map(str::trim).collect();
        let tolerance = preset.config.tolerance.map(|span| humantime::format_duration(span).to_string());
        let written =
            humantime::parse_duration(cells[6]).map(|span| humantime::format_duration(span).to_string());
        assert_eq!(written.ok(), tolerance, "{name}");
        let about = &preset.about;
        assert_eq!(
            [cells[5], cells[7], cells[8]],
            [&about.digest, &about.deadline, &about.retries],
            "{name}"
        );
        let sources = PAGE.lines().find(|line| line.starts_with(&format!("- {}: ", about.title)));
        let sources = sources.unwrap_or_else(|| panic!("{name} has no sources"));
        assert!(about.sources.iter().all(|source| sources.contains(source.as_str())), "{name}");
        let trial = Trial::new(name).unwrap();
        let found = judge(&trial, &trial.sign_sample(URL, 1, NOW_MS).unwrap(), NOW_MS);
        let is_signed = event(found).is_id_signed;
        let said = !cells[4].starts_with("**no**");
        // The sample of Discord is a webhook event, which has no id.
        assert!(is_signed == said || name == "discord", "{name}: {}", cells[4]);
    }
}

#[test]
fn the_sample_of_a_sender_without_a_preset_works() {
    let (_, sample) = PAGE.split_once("[hook.acme]\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    let mut config: SourceConfig = toml::from_str(sample).unwrap();
    config.secrets = Vec::new();
    let trial = Trial::with("hmac", config).unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    assert!(matches!(judge(&trial, &signed, NOW_MS), Judgement::Events(_)));
}

#[test]
fn the_settings_of_the_page_are_valid() {
    let mut count = 0;
    for block in PAGE.split("```toml\n").skip(1) {
        let sample = block.split("```").next().unwrap();
        let policy = onceward::Policy::parse(sample).unwrap_or_else(|error| panic!("{error}: {sample}"));
        onceward_http::Config::from_policy(&policy).unwrap_or_else(|error| panic!("{error}: {sample}"));
        count += 1;
    }
    assert!(count >= 4, "{count} samples");
}
