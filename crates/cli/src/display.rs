//! Where a run is shown: a terminal (events above, one live block below), plain lines, or JSON lines.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use control::wire::StepRecord;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use local::{event::Event, run::Update};
use serde_json::json;

use crate::{
    args::Output,
    view::{self, View},
};

/// How often the live block is drawn again, for its spinner-free clock.
const DRAW: Duration = Duration::from_millis(250);
/// The warm start is told at most this often where every line stays.
const WARM_LINE: Duration = Duration::from_secs(5);

enum Kind {
    Terminal(ProgressBar),
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
            Output::Human => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                if let Ok(style) = ProgressStyle::with_template("{msg}") {
                    bar.set_style(style);
                }
                bar.enable_steady_tick(DRAW);
                Kind::Terminal(bar)
            }
        };
        Self { kind, view: View::default(), warm_told: None }
    }

    /// The first line.
    pub fn header(&self, line: &str) {
        match &self.kind {
            Kind::Terminal(bar) => bar.println(line),
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
        if let Kind::Terminal(bar) = &self.kind {
            bar.set_message(self.view.block(jiff::Timestamp::now()));
        }
    }

    fn event(&self, event: &Event) {
        match &self.kind {
            Kind::Terminal(bar) => {
                let time = view::time_of_day(event.time);
                // Yellow for what is worth a look; the block's own text stays plain.
                let (on, off) = if event.warning { ("\u{1b}[33m", "\u{1b}[0m") } else { ("", "") };
                let text = event.text.replace('\n', "\n          ");
                bar.println(format!("{time}  {on}{text}{off}"));
            }
            Kind::Plain => {
                let time = view::time_of_day(event.time);
                let level = if event.warning { "warning" } else { "info" };
                say(&format!("event={} level={level} time={time} text={:?}", event.reason, event.text));
            }
            Kind::Json => say(&json!({"type": "event", "event": event}).to_string()),
        }
    }

    /// Takes the live block away; what follows is printed below the events.
    pub fn finish(&self) {
        if let Kind::Terminal(bar) = &self.kind {
            // The last state of the block stays readable above the summary.
            bar.println(self.view.block(jiff::Timestamp::now()));
            bar.finish_and_clear();
        }
    }

    /// True when the summary should be JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.kind, Kind::Json)
    }
}

/// A line on standard output. A reader that went away is no reason to stop a run.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A line on standard error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
