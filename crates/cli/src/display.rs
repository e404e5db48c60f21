//! Where a run is shown: a terminal (events above, one live block below), plain lines, or JSON lines.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use control::wire::StepRecord;
use local::{event::Event, run::Update};
use serde_json::json;

use crate::{
    args::Output,
    live_block::LiveBlock,
    view::{self, View},
};

/// How often [`Display::tick`] is wanted: waits grow older, and terminals change their size.
pub const TICK: Duration = Duration::from_millis(250);
/// Lines after an event's first are set in so far, below its text.
const INDENT: usize = 10;
/// The warm start is told at most this often where every line stays.
const WARM_LINE: Duration = Duration::from_secs(5);

enum Kind {
    Terminal(LiveBlock),
    Plain,
    Json,
}

/// Shows a run.
pub struct Display {
    kind: Kind,
    view: View,
    warm_told: Option<std::time::Instant>,
}

impl Display {
    /// Chooses the form: JSON if asked for, the live block on a terminal that takes colours, plain lines elsewhere.
    pub fn new(output: Output, no_color: bool) -> Self {
        let plain = no_color
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || !std::io::stdout().is_terminal()
            || !std::io::stderr().is_terminal();
        let kind = match output {
            Output::Json => Kind::Json,
            Output::Human if plain => Kind::Plain,
            Output::Human => Kind::Terminal(LiveBlock::new()),
        };
        Self { kind, view: View::default(), warm_told: None }
    }

    /// The first line.
    pub fn header(&mut self, line: &str) {
        match &mut self.kind {
            Kind::Terminal(block) => {
                let lines = view::wrapped(line, block.width(), 2);
                block.print(&lines.join("\n"));
            }
            Kind::Plain => say(line),
            Kind::Json => say(&json!({"type": "run", "text": line}).to_string()),
        }
    }

    /// Steps of an earlier process: known, and not told again.
    pub fn past(&mut self, steps: &[StepRecord]) {
        for step in steps {
            self.view.step(step.clone());
        }
    }

    /// Takes an update and shows it.
    pub fn update(&mut self, update: Update) {
        match update {
            Update::Event(event) => {
                if event.reason == "Suspending" {
                    self.view.stopping();
                }
                self.event(&event);
            }
            Update::Step(step) => {
                match &self.kind {
                    Kind::Terminal(_) => {}
                    Kind::Plain => say(&view::plain(&step)),
                    Kind::Json => say(&json!({"type": "step", "step": step}).to_string()),
                }
                self.view.step(*step);
            }
            Update::Progress(progress) => {
                let warm = progress.phase == control::wire::RunPhase::WarmStart;
                let due = self.warm_told.is_none_or(|told| told.elapsed() >= WARM_LINE);
                match &self.kind {
                    Kind::Terminal(_) => {}
                    Kind::Plain => {
                        if warm && due {
                            self.warm_told = Some(std::time::Instant::now());
                            say(&view::plain_warm(&progress));
                        }
                    }
                    Kind::Json => {
                        if due {
                            self.warm_told = Some(std::time::Instant::now());
                            say(&json!({"type": "progress", "progress": progress}).to_string());
                        }
                    }
                }
                self.view.progress(*progress);
            }
            Update::Status(status) => {
                if let Kind::Json = &self.kind {
                    say(&json!({"type": "status", "status": status}).to_string());
                }
                self.view.status(*status);
            }
        }
        self.tick();
    }

    /// Draws the live block as it is now.
    pub fn tick(&mut self) {
        if let Kind::Terminal(block) = &mut self.kind {
            block.draw(&self.view.block(jiff::Timestamp::now(), block.width()));
        }
    }

    fn event(&mut self, event: &Event) {
        match &mut self.kind {
            Kind::Terminal(block) => {
                let time = glance::time_of_day(event.time);
                // Yellow for what is worth a look; the block's own text stays plain.
                let (on, off) = if event.warning { ("\u{1b}[33m", "\u{1b}[0m") } else { ("", "") };
                let text = format!("{time}  {}", event.text);
                let lines: Vec<String> =
                    text.lines().enumerate().flat_map(|(place, line)| below(place, line, block.width())).collect();
                block.print(&format!("{on}{}{off}", lines.join("\n")));
            }
            Kind::Plain => {
                let time = glance::time_of_day(event.time);
                let level = if event.warning { "warning" } else { "info" };
                say(&format!("event={} level={level} time={time} text={:?}", event.reason, event.text));
            }
            Kind::Json => say(&json!({"type": "event", "event": event}).to_string()),
        }
    }

    /// Takes the live block away, whose advice is over with the run; what follows is printed below the events.
    pub fn finish(&mut self) {
        if let Kind::Terminal(block) = &mut self.kind {
            block.clear();
        }
    }

    /// True when the summary should be JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.kind, Kind::Json)
    }
}

/// A line of an event: its first begins with the time, the others stand below its text.
fn below(place: usize, line: &str, width: usize) -> Vec<String> {
    if place == 0 {
        return view::wrapped(line, width, INDENT);
    }
    view::wrapped(&format!("{}{line}", " ".repeat(INDENT)), width, INDENT + 2)
}

/// A line on standard output. A reader that went away is no reason to stop a run.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A line on standard error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
