//! How a handler gets its events.

use std::sync::Arc;
use std::time::Duration;

use onceward::InvalidInput;

use super::config::HandlerConfig;
use super::endpoint::Endpoint;
use super::outside::{Outside, RunCommand};

/// How a handler gets its events.
pub(crate) enum Target {
    /// A request to a URL.
    Url(Box<Endpoint>),
    /// A command.
    Command(Vec<String>, Option<Arc<dyn RunCommand>>),
    /// Programs fetch them.
    Pull,
}

impl Target {
    pub(crate) fn new(
        config: &HandlerConfig,
        outside: &Outside,
        timeout: Duration,
    ) -> Result<Self, InvalidInput> {
        match (&config.url, &config.command) {
            (Some(url), _) => Ok(Self::Url(Box::new(Endpoint::new(url, config, outside, timeout)?))),
            (None, Some(command)) => Ok(Self::Command(command.clone(), outside.runner().cloned())),
            (None, None) => Ok(Self::Pull),
        }
    }

    /// The kind of target, as the API names it.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Url(_) => "url",
            Self::Command(..) => "command",
            Self::Pull => "pull",
        }
    }
}
