//! Figures on the screen of a terminal, until a key ends the display.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};
use ratatui::{DefaultTerminal, Frame};

use super::{StatusResult, lines};
use crate::status::change::StatusDelta;
use crate::status::json::Status;

/// Number of stored rates, for a wide screen.
const MAX_RATES: usize = 512;

/// The displayed data.
struct Screen {
    before: Option<Status>,
    now: Status,
    /// Operations per second, the latest first.
    rates: VecDeque<u64>,
    /// Error of the latest request.
    error: Option<String>,
}

/// Shows `first`, and then the replies of `fetch`.
pub(super) fn run(
    first: Status,
    fetch: &dyn Fn() -> StatusResult,
    interval: Duration,
) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut screen = Screen {
        before: None,
        now: first,
        rates: VecDeque::new(),
        error: None,
    };
    let shown = screen.run_until_quit(&mut terminal, fetch, interval);
    ratatui::restore();
    shown
}

impl Screen {
    fn run_until_quit(
        &mut self,
        terminal: &mut DefaultTerminal,
        fetch: &dyn Fn() -> StatusResult,
        interval: Duration,
    ) -> io::Result<()> {
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            let due = Instant::now() + interval;
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if !event::poll(left)? {
                    break;
                }
                match event::read()? {
                    Event::Key(key) if is_quit_key(key.code, key.modifiers) => return Ok(()),
                    Event::Resize(..) => {
                        terminal.draw(|frame| self.draw(frame))?;
                    }
                    _ => {}
                }
            }
            match fetch() {
                Ok(status) => self.update(status),
                Err(failure) => self.error = Some(failure.message),
            }
        }
    }

    fn update(&mut self, status: Status) {
        let rate = StatusDelta::new(&status, Some(&self.now)).rate(|done| done.requests);
        self.rates.push_front(rate as u64);
        self.rates.truncate(MAX_RATES);
        self.before = Some(std::mem::replace(&mut self.now, status));
        self.error = None;
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let change = StatusDelta::new(&self.now, self.before.as_ref());
        let operations = change.operations();
        let mut head = lines::summary(&change, &operations);
        if let Some(why) = &self.error {
            head[0] = format!("no reply: {why}");
        }
        // The status page shows all exports.
        head.truncate(6);
        let clients = change.now.clients.len().min(8) as u16;
        let places = Layout::vertical([
            Constraint::Length(head.len() as u16),
            Constraint::Length(5),
            Constraint::Fill(1),
            Constraint::Length(clients + 2),
        ]);
        let [top, line, middle, bottom] = places.areas(frame.area());
        let style = match self.error {
            Some(_) => Style::new().red(),
            None => Style::new(),
        };
        frame.render_widget(Paragraph::new(head.join("\n")).style(style), top);
        let rates: Vec<u64> = self.rates.iter().rev().copied().collect();
        let wide = usize::from(line.width);
        let rates = &rates[rates.len().saturating_sub(wide)..];
        let sparkline = Sparkline::default()
            .block(Block::new().title(" operations per second ").dim())
            .data(rates)
            .style(Style::new().cyan().not_dim());
        frame.render_widget(sparkline, line);
        let rows = operations.iter().map(lines::operation);
        let widths = [24, 10, 8, 9, 9, 9, 8, 8];
        frame.render_widget(table(lines::OPERATION_HEADINGS, rows, widths), middle);
        let rows = change.now.clients.iter().take(8).map(lines::client);
        let widths = [24, 10, 14, 7, 8, 9, 9, 9];
        frame.render_widget(table(lines::CLIENT_HEADINGS, rows, widths), bottom);
    }
}

fn is_quit_key(code: KeyCode, modifiers: KeyModifiers) -> bool {
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

fn table<'a>(
    heads: [&'a str; 8],
    rows: impl Iterator<Item = [String; 8]>,
    widths: [u16; 8],
) -> Table<'a> {
    let head =
        Row::new(heads).style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
    Table::new(rows.map(Row::new), widths.map(Constraint::Length))
        .header(head)
        .column_spacing(1)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::status::json::{Client, Counts, Operation};

    #[test]
    fn it_fits_a_small_terminal_and_shows_a_loss() {
        let client = Client {
            peer: "127.0.0.1:999".into(),
            protocol: "9p".into(),
            version: "9P2000.L".into(),
            user: "uid 0 at /".into(),
            age: 1.0,
            done: Counts::default(),
            in_flight: 3,
            parked: 1,
        };
        let operation = Operation {
            protocol: "9p".into(),
            name: "Tread".into(),
            count: 1000,
            errors: Default::default(),
            nanos: 1,
            buckets: vec![(2048, 1000)],
        };
        let status = Status {
            uptime: 10.0,
            clients: vec![client],
            operations: vec![operation],
            ..Status::default()
        };
        let mut screen = Screen {
            before: None,
            now: status,
            rates: [5, 4, 3].into(),
            error: None,
        };
        for (width, height) in [(100, 30), (40, 10), (5, 2)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
            screen.error = None;
            terminal.draw(|frame| screen.draw(frame)).expect("drawn");
            if width == 100 {
                let seen = terminal.backend().to_string();
                for part in ["Tread", "100", "2.05 µs", "127.0.0.1:999", "9P2000.L"] {
                    assert!(seen.contains(part), "{part} in {seen}");
                }
                screen.error = Some("gone".into());
                terminal.draw(|frame| screen.draw(frame)).expect("drawn");
                assert!(terminal.backend().to_string().contains("no reply: gone"));
            }
        }
        assert!(is_quit_key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!is_quit_key(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
