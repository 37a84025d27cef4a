//! The vendors as data, embedded from `presets.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use onceward::{InvalidInput, suggestion};
use serde::Deserialize;

use super::settings::SourceConfig;

/// All presets as TOML.
pub const TEXT: &str = include_str!("presets.toml");

/// What is known about a vendor.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Table")]
#[non_exhaustive]
pub struct Preset {
    /// Its name for people.
    pub about: About,
    /// An event as it would send it.
    pub sample: SampleEvent,
    /// The settings of its sources.
    pub config: SourceConfig,
}

/// What people need to know about a vendor.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct About {
    /// Its name.
    pub title: String,
    /// Where the facts come from.
    pub sources: Vec<String>,
    /// How long it waits for an answer.
    pub deadline: String,
    /// How it tries again.
    pub retries: String,
    /// What the digest of an event covers.
    pub digest: String,
    /// The status that it wants.
    #[serde(default = "ok")]
    pub answer: u16,
}

/// An event as the vendor would send it. `{id}`, `{now_s}`, `{now_ms}` and `{now}` are replaced.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SampleEvent {
    /// What ids begin with.
    #[serde(default)]
    pub id: String,
    /// The type of the body.
    #[serde(default = "json")]
    pub content_type: String,
    /// Further headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

const ABOUT: [&str; 6] = ["title", "sources", "deadline", "retries", "digest", "answer"];

impl TryFrom<toml::Table> for Preset {
    type Error = InvalidInput;

    fn try_from(mut table: toml::Table) -> Result<Self, InvalidInput> {
        let invalid = |error: toml::de::Error| InvalidInput::new(error.message());
        let about: toml::Table =
            ABOUT.iter().filter_map(|name| Some(((*name).to_owned(), table.remove(*name)?))).collect();
        let sample = table.remove("sample").ok_or_else(|| InvalidInput::new("there is no sample"))?;
        Ok(Self {
            about: about.try_into().map_err(invalid)?,
            sample: sample.try_into().map_err(invalid)?,
            config: table.try_into().map_err(invalid)?,
        })
    }
}

static PRESETS: LazyLock<Result<BTreeMap<String, Preset>, InvalidInput>> = LazyLock::new(|| {
    toml::from_str(TEXT).map_err(|error| InvalidInput::new(format!("presets.toml: {}", error.message())))
});

/// All presets, by name.
///
/// # Errors
/// If the embedded file is invalid, which a test excludes.
pub fn all() -> Result<&'static BTreeMap<String, Preset>, InvalidInput> {
    PRESETS.as_ref().map_err(Clone::clone)
}

/// The preset with this name.
///
/// # Errors
/// If there is none.
pub fn of(name: &str) -> Result<&'static Preset, InvalidInput> {
    let presets = all()?;
    presets.get(name).ok_or_else(|| {
        let names = || presets.keys().map(String::as_str);
        let mut meant = suggestion(name, names());
        if meant.is_empty() {
            meant = format!("; there are {}", names().collect::<Vec<_>>().join(", "));
        }
        InvalidInput::new(format!("there is no preset {name:?}{meant}"))
    })
}

fn ok() -> u16 {
    200
}

fn json() -> String {
    "application/json".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_names_its_sources() {
        let presets = all().unwrap();
        assert_eq!(presets.len(), 17);
        for (name, preset) in presets {
            assert!(!preset.about.sources.is_empty(), "{name}");
        }
        let error = of("strpe").unwrap_err().to_string();
        assert!(error.contains("did you mean `stripe`"), "{error}");
    }
}
