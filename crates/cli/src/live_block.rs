//! One live block at the foot of a terminal, drawn again in place, with everything else scrolling away above it.
//!
//! The cursor rests on the empty line below the block, and no line of it reaches the last column: what the terminal itself
//! writes meanwhile (the `^C` of a Ctrl-C) stands alone on that line, and is wiped with the block. A terminal that became
//! narrower has broken the block's lines anew, which is counted.

use std::io::Write;

use console::{Term, measure_text_width};

/// Narrower terminals get lines of this length all the same.
const NARROWEST: usize = 20;

/// See the module.
#[derive(Debug)]
pub struct LiveBlock {
    term: Term,
    shown: Vec<String>,
}

impl LiveBlock {
    /// On standard error; nothing is drawn yet.
    pub fn new() -> Self {
        Self { term: Term::stderr(), shown: Vec::new() }
    }

    /// Columns that a line may fill.
    pub fn width(&self) -> usize {
        usize::from(self.term.size().1).saturating_sub(1).max(NARROWEST)
    }

    /// Draws the block, if it is another than is shown.
    pub fn draw(&mut self, block: &str) {
        // Higher than the terminal it could not be wiped: its last lines matter most.
        let room = usize::from(self.term.size().0).saturating_sub(2).max(1);
        let lines: Vec<String> = block.lines().map(str::to_owned).collect();
        let lines = lines[lines.len().saturating_sub(room)..].to_vec();
        if lines != self.shown {
            self.replace("", lines);
        }
    }

    /// Writes lines above the block.
    pub fn print(&mut self, text: &str) {
        self.replace(&format!("{text}\n"), self.shown.clone());
    }

    /// Takes the block away.
    pub fn clear(&mut self) {
        self.replace("", Vec::new());
    }

    fn replace(&mut self, above: &str, lines: Vec<String>) {
        let drawn = redrawn(&self.shown, usize::from(self.term.size().1), above, &lines);
        // A terminal that went away is no reason to stop a run.
        let _ = std::io::stderr().lock().write_all(drawn.as_bytes());
        self.shown = lines;
    }
}

/// What takes `old` away, on a terminal of so many columns, and writes `above` and `new` in its place.
fn redrawn(old: &[String], columns: usize, above: &str, new: &[String]) -> String {
    let columns = columns.max(1);
    let rows: usize = old.iter().map(|line| measure_text_width(line).div_ceil(columns).max(1)).sum();
    let up = if rows > 0 { format!("\u{1b}[{rows}A") } else { String::new() };
    let new: String = new.iter().map(|line| format!("{line}\n")).collect();
    format!("\r{up}\u{1b}[J{above}{new}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn the_old_block_is_wiped_with_what_the_terminal_wrote_below_it() {
        let drawn = redrawn(&lines(&["one", "two"]), 80, "event\n", &lines(&["three"]));
        assert_eq!(drawn, "\r\u{1b}[2A\u{1b}[Jevent\nthree\n");
        assert_eq!(redrawn(&[], 80, "", &lines(&["one"])), "\r\u{1b}[Jone\n");
        assert_eq!(redrawn(&lines(&["one"]), 80, "", &[]), "\r\u{1b}[1A\u{1b}[J", "the end leaves nothing");
    }

    #[test]
    fn a_terminal_that_became_narrower_has_more_rows_to_wipe() {
        let old = lines(&[&"x".repeat(79), "", &"━".repeat(20)]);
        assert!(redrawn(&old, 80, "", &[]).contains("\u{1b}[3A"));
        assert!(redrawn(&old, 40, "", &[]).contains("\u{1b}[4A"));
        assert!(redrawn(&old, 10, "", &[]).contains("\u{1b}[11A"));
    }
}
