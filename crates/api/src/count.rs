//! Numbers of things, for people.

/// `1 failure`, `2 failures`, `0 failures`: a regular noun with its number.
pub fn count(n: impl TryInto<u64>, noun: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0_u64, 1, 2].map(|n| count(n, "failure")), ["0 failures", "1 failure", "2 failures"]);
    }
}
