//! An error and its causes in one line.

use std::{error::Error, fmt::Write as _};

/// The error and its causes, each after a colon. A cause whose words the line holds already is left out: many errors repeat it in
/// their own words, and others leave it to the reader.
#[must_use]
pub fn said_once(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !line.contains(&words) {
            // A String takes everything.
            let _ = write!(line, ": {words}");
        }
        cause = next.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Told(&'static str, Option<Box<Told>>);

    impl std::fmt::Display for Told {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Told {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_cause_is_said_once_whoever_says_it() {
        let system = || Some(Box::new(Told("No such file (os error 2)", None)));
        let repeats = Told("cannot read x: No such file (os error 2)\n  fix: make it", system());
        assert_eq!(said_once(&repeats), "cannot read x: No such file (os error 2)\n  fix: make it");
        let leaves = Told("cannot read x", system());
        assert_eq!(said_once(&leaves), "cannot read x: No such file (os error 2)");
        let above = Told("the run cannot start", Some(Box::new(repeats)));
        assert_eq!(said_once(&above), "the run cannot start: cannot read x: No such file (os error 2)\n  fix: make it");
    }
}
