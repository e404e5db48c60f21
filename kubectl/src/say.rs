//! Lines on the terminal.

use std::io::Write;

/// A line on standard output. Who reads no further is no reason to complain.
///
/// # Errors
/// When it cannot be written.
pub fn say(line: &str) -> anyhow::Result<()> {
    let written = writeln!(std::io::stdout().lock(), "{line}");
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// A line on standard error.
pub fn complain(line: &str) {
    // There is nobody left to tell.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
