//! Colours and other styles of text.

use anstyle::{AnsiColor, Style};
use onceward::State;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Text in a style.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// The colour of a state: green is done, yellow needs attention.
pub(crate) fn state_style(state: State) -> Style {
    match state {
        State::Done => GREEN,
        State::InDoubt => YELLOW.bold(),
        State::Failed => RED,
        State::Running | State::Staged => CYAN,
        State::Cancelled | State::Expired => DIM,
    }
}
