//! Which line a field is on.

use std::collections::BTreeMap;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

/// Lines of one document: field path to line.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    by_path: BTreeMap<String, u32>,
}

impl Lines {
    /// Line of the field, or of its nearest parent that is present.
    pub fn of(&self, path: &str) -> Option<u32> {
        let mut path = path;
        loop {
            if let Some(line) = self.by_path.get(path) {
                return Some(*line);
            }
            if path.is_empty() {
                return None;
            }
            path = match path.rfind(['.', '[']) {
                Some(cut) => &path[..cut],
                None => "",
            };
        }
    }
}

enum Frame {
    Map { path: String, key: Option<String> },
    Seq { path: String, next: usize },
}

/// Lines of every document that is not empty.
pub(super) fn documents(text: &str) -> Vec<Lines> {
    let mut out = Vec::new();
    let mut lines = Lines::default();
    let mut stack: Vec<Frame> = Vec::new();
    let mut empty = true;
    for item in Parser::new_from_str(text) {
        // A syntax error was reported by the reader itself.
        let Ok((event, span)) = item else { break };
        let line = u32::try_from(span.start.line()).unwrap_or(u32::MAX);
        match event {
            Event::DocumentStart(..) => {
                lines = Lines::default();
                stack.clear();
                empty = true;
            }
            Event::DocumentEnd if !empty => out.push(std::mem::take(&mut lines)),
            Event::Scalar(value, style, _, _) => {
                if stack.is_empty()
                    && style == ScalarStyle::Plain
                    && matches!(&*value, "" | "~" | "null" | "Null" | "NULL")
                {
                    continue;
                }
                empty = false;
                match stack.last_mut() {
                    Some(Frame::Map { path, key: key @ None }) => {
                        let full = if path.is_empty() { value.to_string() } else { format!("{path}.{value}") };
                        lines.by_path.entry(full.clone()).or_insert(line);
                        *key = Some(full);
                    }
                    _ => drop(place(&mut stack, &mut lines, line)),
                }
            }
            Event::Alias(_) => drop(place(&mut stack, &mut lines, line)),
            Event::MappingStart(..) => {
                empty = false;
                let path = place(&mut stack, &mut lines, line);
                stack.push(Frame::Map { path, key: None });
            }
            Event::SequenceStart(..) => {
                empty = false;
                let path = place(&mut stack, &mut lines, line);
                stack.push(Frame::Seq { path, next: 0 });
            }
            Event::MappingEnd | Event::SequenceEnd => {
                stack.pop();
            }
            _ => {}
        }
    }
    out
}

/// Path of the value that begins now; the frame it is in moves on.
fn place(stack: &mut [Frame], lines: &mut Lines, line: u32) -> String {
    match stack.last_mut() {
        None => {
            lines.by_path.entry(String::new()).or_insert(line);
            String::new()
        }
        Some(Frame::Map { key, .. }) => key.take().unwrap_or_default(),
        Some(Frame::Seq { path, next }) => {
            let full = format!("{path}[{next}]");
            *next += 1;
            lines.by_path.entry(full.clone()).or_insert(line);
            full
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_line_of_its_key_and_a_missing_one_that_of_its_parent() {
        let docs = documents("# c\na:\n  b: 1\n  c: [x,\n    {d: 2}]\n---\n\n---\ne: &x {f: 1}\ng: *x\nh: 2\n");
        assert_eq!(docs.len(), 2);
        assert_eq!(docs[0].of("a.b"), Some(3));
        assert_eq!(docs[0].of("a.c[1].d"), Some(5));
        assert_eq!(docs[0].of("a.missing.too"), Some(2));
        assert_eq!(docs[1].of("h"), Some(11));
        assert_eq!(docs[1].of("e.f"), Some(9));
    }
}
