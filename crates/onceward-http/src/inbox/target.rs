//! How a handler gets its events.

use std::sync::Arc;

use onceward::InvalidInput;

use super::config::HandlerConfig;
use super::endpoint::Endpoint;
use super::host_environment::{HostEnvironment, RunCommand};

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
    pub(crate) fn new(config: &HandlerConfig, environment: &HostEnvironment) -> Result<Self, InvalidInput> {
        match (&config.url, &config.command) {
            (Some(url), _) => Ok(Self::Url(Box::new(Endpoint::new(url, config, environment)?))),
            (None, Some(command)) => Ok(Self::Command(command.clone(), environment.runner().cloned())),
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
