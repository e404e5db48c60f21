//! Stop strings: looked for in the text of the last tokens, as they come.

use std::sync::Arc;

use crate::text::Text;

/// The stop strings of one request.
#[derive(Clone)]
pub(crate) struct StopStrings {
    text: Arc<Text>,
    strings: Arc<[String]>,
    /// Tokens that can hold the longest string: one per character at least, and some whose text is empty or a part of a
    /// character.
    tail: usize,
    skip_special_tokens: bool,
}

impl StopStrings {
    pub(crate) fn new(text: Arc<Text>, strings: Vec<String>, skip_special_tokens: bool) -> Self {
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        Self { text, strings: strings.into(), tail: longest + 8, skip_special_tokens }
    }

    /// The first of the strings that the end of `output` contains.
    pub(crate) fn find(&self, output: &[u32]) -> Option<String> {
        let tail = &output[output.len().saturating_sub(self.tail)..];
        let text = self.text.decode(tail, self.skip_special_tokens);
        self.strings.iter().find(|stop| text.contains(stop.as_str())).cloned()
    }
}

/// `text` up to the first `stop`.
pub(crate) fn trim(text: &mut String, stop: &str) {
    if let Some(at) = text.find(stop) {
        text.truncate(at);
    }
}
