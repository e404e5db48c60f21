//! Ours and a peer by turns.

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::line::Line;

/// Seconds of each round of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(pub Vec<f64>);

impl Times {
    /// Median seconds.
    pub fn median(&self) -> f64 {
        median(&self.0)
    }
}

/// Middle of some numbers; the mean of the middle two of an even count.
pub fn median(x: &[f64]) -> f64 {
    let mut x = x.to_vec();
    x.sort_by(f64::total_cmp);
    match x.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => x[n / 2],
        n => (x[n / 2 - 1] + x[n / 2]) / 2.0,
    }
}

/// A side of a comparison: runs once and gives the seconds that count.
pub type Side<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// Runs the sides by turns, `rounds` times each after one round of warm-up: A B, B A, A B, ... so that neither always comes
/// first.
pub fn by_turns(rounds: usize, mut sides: Vec<Side<'_>>) -> Result<Vec<Times>> {
    let mut times = vec![Times::default(); sides.len()];
    for round in 0..=rounds {
        let forward: Vec<usize> = (0..sides.len()).collect();
        let order: Vec<usize> = if round % 2 == 0 { forward } else { forward.into_iter().rev().collect() };
        for i in order {
            let seconds = sides[i]()?;
            if round > 0 {
                times[i].0.push(seconds);
            }
        }
    }
    Ok(times)
}

/// Which seconds count.
///
/// One thread that never waits takes as many seconds of CPU as of wall on a quiet machine, and on a busy one only the former
/// say how fast it is. Several threads are only worth what the wall says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CPU time of the process.
    Cpu,
    /// Time that passes.
    Wall,
}

impl Clock {
    /// The clock of computations on so many threads.
    pub fn of(threads: usize) -> Self {
        if threads == 1 { Clock::Cpu } else { Clock::Wall }
    }

    /// Its reading, seconds.
    pub fn now(self) -> f64 {
        let id = match self {
            Clock::Cpu => ClockId::ProcessCPUTime,
            Clock::Wall => ClockId::Monotonic,
        };
        let now = clock_gettime(id);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    }

    /// Its seconds of a call.
    pub fn seconds(self, f: impl FnOnce() -> Result<()>) -> Result<f64> {
        let since = self.now();
        f()?;
        Ok(self.now() - since)
    }

    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Cpu => "CPU",
            Clock::Wall => "wall",
        }
    }
}

/// Wall seconds of a call.
pub fn seconds(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let since = std::time::Instant::now();
    f()?;
    Ok(since.elapsed().as_secs_f64())
}

/// A rate: `amount` per round of ours.
pub fn rate(bench: &str, case: impl Into<String>, amount: f64, unit: &str, ours: &Times) -> Line {
    let rates: Vec<f64> = ours.0.iter().map(|s| amount / s).collect();
    let mut line = Line::new(bench, case, median(&rates), unit).with("rounds", rates.len());
    line.range = Some(range(&rates));
    line
}

/// A duration, per `count` things of a round.
pub fn duration(bench: &str, case: impl Into<String>, count: f64, ours: &Times) -> Line {
    let each: Vec<f64> = ours.0.iter().map(|s| s / count).collect();
    let mut line = Line::new(bench, case, median(&each), "s").with("rounds", each.len());
    line.range = Some(range(&each));
    line
}

fn range(x: &[f64]) -> [f64; 2] {
    [x.iter().copied().fold(f64::INFINITY, f64::min), x.iter().copied().fold(f64::NEG_INFINITY, f64::max)]
}

impl Line {
    /// Adds the peer that did the same work by turns.
    pub fn against(mut self, peer: &str, ours: &Times, theirs: &Times) -> Self {
        let ratios: Vec<f64> = ours.0.iter().zip(&theirs.0).map(|(a, b)| b / a).collect();
        let ratio = median(&ratios);
        self.peer = Some(peer.to_owned());
        self.ratio = Some(ratio);
        let scale = ours.median() / theirs.median();
        // The same amount in the peer's time.
        self.peer_value = Some(if self.unit == "s" { self.value / scale } else { self.value * scale });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_in_going_first_and_the_warm_up_does_not_count() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char, seconds: f64| -> Side<'_> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                Ok(seconds)
            })
        };
        let times = by_turns(2, vec![side('a', 1.0), side('b', 2.0)]).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!(times, [Times(vec![1.0; 2]), Times(vec![2.0; 2])]);
    }

    #[test]
    fn a_ratio_above_one_means_ours_is_faster() {
        let (ours, theirs) = (Times(vec![1.0, 1.0, 1.0]), Times(vec![2.0, 4.0, 2.0]));
        let line = rate("x", "", 10.0, "1/s", &ours).against("peer", &ours, &theirs);
        assert_eq!((line.value, line.ratio, line.peer_value), (10.0, Some(2.0), Some(5.0)));
        let line = duration("x", "", 1.0, &ours).against("peer", &ours, &theirs);
        assert_eq!((line.value, line.peer_value), (1.0, Some(2.0)));
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
    }
}
