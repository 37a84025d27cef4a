//! The settings of model calls.

use std::time::Duration;

use onceward::{InvalidInput, span_ms};

use super::super::config;
use super::unattended::Unattended;

/// How long a provider may take before its answer begins. SDKs wait ten minutes.
const FIRST_BYTE: Duration = Duration::from_secs(600);
/// How long a stream may be silent.
const IDLE: Duration = Duration::from_secs(300);
/// The largest answer, before it is compressed.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// The settings of an upstream that serves models.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) unattended: Unattended,
    pub(crate) first_byte: Duration,
    pub(crate) idle: Duration,
    pub(crate) max_answer: usize,
}

impl Settings {
    pub(crate) fn new(config: &config::Upstream) -> Result<Self, InvalidInput> {
        let idle = match &config.idle {
            Some(text) => Duration::from_millis(span_ms(text)?),
            None => IDLE,
        };
        Ok(Self {
            unattended: Unattended::new(config.unattended.as_deref(), config.max_unattended)?,
            first_byte: FIRST_BYTE,
            idle,
            max_answer: config.max_answer.unwrap_or(MAX_ANSWER),
        })
    }
}
