//! Instants and spans, as people read them.

use jiff::{Timestamp, tz::TimeZone};

/// Time of day on this machine.
pub fn time_of_day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// Time of day; with its date if that is not today's.
pub fn moment(time: Timestamp, now: Timestamp) -> String {
    let (then, today) = (time.to_zoned(TimeZone::system()), now.to_zoned(TimeZone::system()));
    let format = if then.date() == today.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    then.strftime(format).to_string()
}

/// How long ago, as `kubectl` writes it.
pub fn age(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{}s", seconds.max(0)),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A span to the second while seconds matter: `1m12s`.
pub fn span(seconds: i64) -> String {
    match seconds {
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..172_800 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => age(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_to_the_second_while_seconds_matter() {
        let told: Vec<_> = [-3, 9, 72, 3599, 3600, 90_000, 400_000].into_iter().map(span).collect();
        assert_eq!(told, ["0s", "9s", "1m12s", "59m59s", "1h00m", "25h00m", "4d"]);
        assert_eq!([119, 120, 7200, 172_800].map(age), ["119s", "2m", "2h", "2d"]);
    }

    #[test]
    fn an_instant_of_another_day_has_its_date() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        assert_eq!(moment(now, now).len(), 8);
        assert_eq!(moment(Timestamp::from_second(1_799_000_000).unwrap(), now).len(), 19);
    }
}
