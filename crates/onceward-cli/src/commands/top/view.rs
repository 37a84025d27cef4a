//! How `once top` is drawn.

use onceward::State;
use onceward::{rfc3339, span_in_words};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::model::{Found, Mode, Model, Tab, took_ms};
use crate::cli::SettleAs;
use crate::commands::listing;
use crate::table::one_line;

/// Below this size there is no room for lists.
const SMALLEST: (u16, u16) = (40, 8);
/// From this width on the reason is shown beside the operation.
const WIDE: u16 = 90;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        return small(frame, model, area);
    }
    let parts = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, tabs, list, foot] = parts.areas(area);
    frame.render_widget(summary(model), head);
    frame.render_widget(titles(model), tabs);
    lists(frame, model, list);
    frame.render_widget(message(model), foot);
    dialog(frame, model, area);
}

/// A terminal with no room for lists: the numbers alone.
fn small(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let (doubts, running) = (model.snapshot.in_doubt.len(), model.snapshot.running.len());
    let text = format!("{doubts} in doubt, {running} running; make the terminal larger, or q to quit");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
}

fn summary(model: &Model) -> Paragraph<'static> {
    let snapshot = &model.snapshot;
    let more = if snapshot.cut { "+" } else { "" };
    let doubts = snapshot.in_doubt.len();
    let alarm =
        if doubts == 0 { Style::new() } else { style(model, Color::Yellow).add_modifier(Modifier::BOLD) };
    let slowest = snapshot.slowest.first();
    let slowest =
        slowest.map_or_else(|| "-".to_owned(), |(r, s)| span_in_words(took_ms(r, *s, snapshot.now_ms)));
    let numbers = Line::from(vec![
        Span::raw(format!("{:.1}/s  ", snapshot.rate())),
        Span::styled(format!("{doubts}{more} in doubt"), alarm),
        Span::raw(format!("  {}{more} running  ", snapshot.running.len())),
        Span::styled(
            format!("{} duplicates prevented (+{})", snapshot.replays, model.new_replays()),
            style(model, Color::Green),
        ),
        Span::raw(format!("  slowest {slowest}")),
    ]);
    let title = Line::from(vec![
        Span::styled("once top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {}  {}", one_line(&model.ledger), rfc3339(snapshot.now_ms))),
    ]);
    Paragraph::new(vec![title, numbers])
}

fn titles(model: &Model) -> Paragraph<'static> {
    let spans = Tab::ALL.iter().flat_map(|tab| {
        let chosen = *tab == model.tab;
        let style = if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {} ", tab.title()), style), Span::raw(" ")]
    });
    Paragraph::new(Line::from(spans.collect::<Vec<_>>()))
}

fn lists(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let wide = area.width >= WIDE;
    let now_ms = model.snapshot.now_ms;
    if model.listed().is_empty() {
        let text = format!("nothing is {}", if model.tab == Tab::InDoubt { "in doubt" } else { "here" });
        return frame.render_widget(Paragraph::new(text), area);
    }
    let rows = model.listed().iter().map(|found| row(model, found, now_ms, wide));
    let mut widths = vec![
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Fill(2),
        Constraint::Fill(3),
        Constraint::Length(11),
    ];
    let mut header = vec!["STATE", "TIME", "KEY", "WHAT", "ID"];
    if wide {
        widths.insert(4, Constraint::Fill(4));
        header.insert(4, "REASON");
    }
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(model.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn row(model: &Model, (record, state): &Found, now_ms: i64, wide: bool) -> Row<'static> {
    // Of what is done, how long it took; of a doubt, how long it has waited.
    let time = if *state == State::InDoubt {
        listing::age(now_ms - record.updated_ms)
    } else {
        span_in_words(took_ms(record, *state, now_ms))
    };
    let mut cells = vec![
        Span::styled(state.to_string(), state_style(model, *state)),
        Span::raw(time),
        Span::raw(one_line(&listing::key(record))),
        Span::raw(one_line(&listing::what(record))),
        Span::styled(listing::short_id(record), Style::new().add_modifier(Modifier::DIM)),
    ];
    if wide {
        cells.insert(4, Span::raw(one_line(&listing::reason(record, *state))));
    }
    Row::new(cells)
}

fn message(model: &Model) -> Paragraph<'static> {
    match &model.message {
        Some(Ok(text)) => Paragraph::new(one_line(text)).style(style(model, Color::Green)),
        Some(Err(text)) => Paragraph::new(one_line(text)).style(style(model, Color::Red)),
        None => Paragraph::new("q quit  tab list  ↑↓ select  enter details  s settle  p probe  ? help")
            .style(Style::new().add_modifier(Modifier::DIM)),
    }
}

fn dialog(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let (title, lines) = match &model.mode {
        Mode::Lists => return,
        Mode::Help => (" keys ", HELP.iter().map(|line| (*line).to_owned()).collect()),
        Mode::Details => match model.current() {
            Some(found) => (" operation ", details(found, model.snapshot.now_ms)),
            None => return,
        },
        Mode::Choose(found) => (
            " settle ",
            about(found, "Check first. Did it happen?  d: yes, it is done  f: no, it failed  esc: back"),
        ),
        Mode::Evidence((record, _), verdict, text) => {
            let meaning = match verdict {
                SettleAs::Done => "done: retries get its result",
                SettleAs::Failed => "failed: the next call runs it",
            };
            let ask = format!("Settle {} as {meaning}.", listing::short_id(record));
            let typed = format!("> {text}_");
            let keys = "What is that based on? It is recorded as your word.  enter: settle  esc: back";
            (" evidence ", vec![ask, keys.to_owned(), String::new(), typed])
        }
        Mode::ConfirmProbe(found) => (
            " probe ",
            about(found, "Run the probe of your policy and settle by its answer?  y: run  esc: back"),
        ),
    };
    let lines: Vec<Line<'_>> = lines.iter().map(|line| Line::from(one_line(line))).collect();
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(4);
    let place = centred(area, area.width.saturating_sub(4).min(100), height.min(area.height));
    frame.render_widget(Clear, place);
    let block = Block::new().borders(Borders::ALL).title(title);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), place);
}

const HELP: [&str; 7] = [
    "q, esc       quit",
    "tab, ← →     next list",
    "↑ ↓, j k     select; g and G: first and last",
    "enter        everything about the selected operation",
    "s            settle an operation in doubt, with evidence",
    "p            run the probe that your policy has for it",
    "r            read the ledger now",
];

fn about((record, state): &Found, ask: &str) -> Vec<String> {
    let what = format!("{}  {}", listing::key(record), listing::what(record));
    vec![what, listing::reason(record, *state), String::new(), ask.to_owned()]
}

fn details((record, state): &Found, now_ms: i64) -> Vec<String> {
    let mut lines = vec![
        format!("operation  {}", record.id),
        format!("state      {state}, attempt {} of {}", record.attempt, record.detail.max_attempts),
        format!("scope      {}", record.scope),
        format!("name       {}", record.name),
        format!("key        {}", record.key.text),
        format!("class      {}", record.detail.class),
        format!(
            "created    {} ({} ago)",
            rfc3339(record.created_ms),
            span_in_words(now_ms - record.created_ms)
        ),
        format!("took       {}", span_in_words(took_ms(record, *state, now_ms))),
        format!("replays    {}", record.replays),
    ];
    let reason = listing::reason(record, *state);
    if !reason.is_empty() {
        lines.push(format!("reason     {reason}"));
    }
    if let Some(probe) = &record.detail.probe {
        lines.push(format!("probe      {probe}"));
    }
    lines
}

fn centred(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect::new(area.x + (area.width - width) / 2, area.y + (area.height - height) / 2, width, height)
}

fn style(model: &Model, colour: Color) -> Style {
    if model.colour { Style::new().fg(colour) } else { Style::new() }
}

fn state_style(model: &Model, state: State) -> Style {
    match state {
        State::Done => style(model, Color::Green),
        State::InDoubt => style(model, Color::Yellow).add_modifier(Modifier::BOLD),
        State::Failed => style(model, Color::Red),
        State::Running | State::Staged => style(model, Color::Cyan),
        State::Cancelled | State::Expired => Style::new().add_modifier(Modifier::DIM),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may give up")]
mod tests {
    use std::sync::Arc;

    use onceward::{Failure, Ledger, ManualClock, MemoryStore, Operation};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyModifiers};

    use super::super::model::{Action, Snapshot};
    use super::*;

    /// A ledger with a doubt whose texts want to control the terminal, and an operation that is done.
    fn model() -> Model {
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(1_000)))).blocking();
        let pay = Operation::new("pay").key("order-7");
        ledger.run(pay, |_| Err(Failure::in_doubt("reset\u{1b}[2J by peer"))).unwrap_err();
        let mail = || Operation::new("mail").key("welcome");
        ledger.run(mail(), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
        ledger.run(mail(), |_| unreachable!("it is done")).unwrap();
        Model::new("sqlite:once.db".to_owned(), Snapshot::of(&ledger, None).unwrap(), true)
    }

    fn screen(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    fn press(model: &mut Model, keys: &[KeyCode]) -> Action {
        let mut last = Action::None;
        for key in keys {
            last = model.press(*key, KeyModifiers::NONE);
        }
        last
    }

    #[test]
    fn the_first_screen_shows_the_numbers_and_what_is_in_doubt() {
        let shown = screen(&model(), 120, 12);
        for text in
            ["1 in doubt", "0 running", "1 duplicates prevented (+0)", "sqlite:once.db", "pay", "reset"]
        {
            assert!(shown.contains(text), "{text}\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn every_size_can_be_drawn() {
        let mut model = model();
        for mode in
            [&[][..], &[KeyCode::Char('?')], &[KeyCode::Enter], &[KeyCode::Char('s')], &[KeyCode::Char('p')]]
        {
            model.mode = Mode::Lists;
            press(&mut model, mode);
            for (width, height) in [(1, 1), (10, 3), (39, 7), (40, 8), (80, 24), (300, 100)] {
                assert!(!screen(&model, width, height).is_empty());
            }
        }
        assert!(screen(&model, 60, 2).contains("1 in doubt"));
    }

    #[test]
    fn lists_are_turned_with_tab() {
        let mut model = model();
        press(&mut model, &[KeyCode::Tab]);
        assert!(screen(&model, 100, 10).contains("nothing is here"));
        press(&mut model, &[KeyCode::Tab, KeyCode::Tab]);
        assert!(screen(&model, 100, 10).contains("welcome"));
        press(&mut model, &[KeyCode::Char('s')]);
        assert!(matches!(model.mode, Mode::Lists), "only a doubt can be settled");
        assert!(screen(&model, 100, 10).contains("only an operation in doubt"));
    }

    #[test]
    fn a_settlement_needs_evidence_and_can_be_left() {
        let mut model = model();
        press(&mut model, &[KeyCode::Char('s')]);
        assert!(screen(&model, 120, 20).contains("Did it happen?"));
        let nothing = press(&mut model, &[KeyCode::Char('f'), KeyCode::Char(' '), KeyCode::Enter]);
        assert!(matches!(nothing, Action::None), "white space is no evidence");
        let settled = press(&mut model, &[KeyCode::Char('s'), KeyCode::Char('q'), KeyCode::Enter]);
        let Action::Settle { verdict: SettleAs::Failed, note, .. } = settled else { panic!("{settled:?}") };
        assert_eq!(note, "sq");
        press(&mut model, &[KeyCode::Char('s'), KeyCode::Char('d'), KeyCode::Esc]);
        assert!(matches!(model.mode, Mode::Lists));
    }

    #[test]
    fn a_probe_is_confirmed_first() {
        let mut model = model();
        assert!(matches!(press(&mut model, &[KeyCode::Char('p'), KeyCode::Esc]), Action::None));
        assert!(matches!(press(&mut model, &[KeyCode::Char('p'), KeyCode::Char('y')]), Action::Probe { .. }));
        assert!(matches!(press(&mut model, &[KeyCode::Char('q')]), Action::Quit));
    }
}
