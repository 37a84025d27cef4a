//! Vendor presets: data, embedded from `presets.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use onceward::InvalidInput;

use super::config::UpstreamConfig;

/// All presets as TOML.
pub(crate) const TEXT: &str = include_str!("presets.toml");

static PRESETS: LazyLock<Result<BTreeMap<String, UpstreamConfig>, InvalidInput>> = LazyLock::new(|| {
    toml::from_str(TEXT).map_err(|error| InvalidInput::new(format!("presets.toml: {}", error.message())))
});

/// All presets, by name.
pub(crate) fn all() -> Result<&'static BTreeMap<String, UpstreamConfig>, InvalidInput> {
    PRESETS.as_ref().map_err(Clone::clone)
}

/// The preset of an upstream, if it has one.
///
/// # Errors
/// If the configuration names a preset that does not exist.
pub(crate) fn of(name: &str, chosen: Option<&str>) -> Result<Option<&'static UpstreamConfig>, InvalidInput> {
    let presets = all()?;
    match chosen {
        Some("none") => Ok(None),
        Some(chosen) => presets.get(chosen).map(Some).ok_or_else(|| {
            let names: Vec<&str> = presets.keys().map(String::as_str).collect();
            InvalidInput::new(format!("there is no preset {chosen:?}; there are {}", names.join(", ")))
        }),
        None => Ok(presets.get(name)),
    }
}
