//! The data source: which row becomes the next prompt group. Only indices; the rows are somebody else's.

use serde::{Deserialize, Serialize};

use crate::mix::CounterRng;

/// How far the data has been handed out. It moves in the same record as the groups it gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Pass over the data, 0-based.
    pub epoch: u64,
    /// Rows of this pass that were handed out.
    pub offset: u64,
    /// Index the next group gets; never used twice in a run, across passes.
    pub next_group: u64,
}

/// A prompt group that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// Unique in the run.
    pub group_index: u64,
    /// Row of the data set.
    pub row: u64,
}

/// The order of pass `epoch` over `rows` rows: a pure function of its arguments (Fisher-Yates over a counter-based
/// generator), so that a resumed run and an uninterrupted one read the same rows.
#[must_use]
pub fn order(seed: u64, epoch: u64, rows: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..rows).collect();
    let mut rng = CounterRng::new(seed, epoch);
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}

/// A cursor's walk over the rows. Holds the order of one pass, so that it is not shuffled anew for each draw.
#[derive(Clone, Debug)]
pub struct Source {
    seed: u64,
    rows: u64,
    pass: Option<(u64, Vec<u64>)>,
}

impl Source {
    /// Rows in the order of (`seed`, pass).
    #[must_use]
    pub fn new(seed: u64, rows: u64) -> Self {
        Self { seed, rows, pass: None }
    }

    /// The row at `offset` of pass `epoch`, or nothing past its end.
    pub fn row(&mut self, epoch: u64, offset: u64) -> Option<u64> {
        if self.pass.as_ref().is_none_or(|(of, _)| *of != epoch) {
            self.pass = Some((epoch, order(self.seed, epoch, self.rows)));
        }
        let (_, order) = self.pass.as_ref()?;
        order.get(usize::try_from(offset).ok()?).copied()
    }

    /// The next `count` groups after `cursor`, and the cursor behind them. A draw may straddle passes, several if it is
    /// larger than the data; it is short only when there are no rows at all.
    pub fn draw(&mut self, mut cursor: Cursor, count: u64) -> (Vec<Drawn>, Cursor) {
        let mut drawn = Vec::new();
        while self.rows > 0 && (drawn.len() as u64) < count {
            match self.row(cursor.epoch, cursor.offset) {
                Some(row) => {
                    drawn.push(Drawn { group_index: cursor.next_group, row });
                    cursor.offset += 1;
                    cursor.next_group += 1;
                }
                None => {
                    cursor.epoch += 1;
                    cursor.offset = 0;
                }
            }
        }
        (drawn, cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pass_hands_out_every_row_once_and_in_an_order_of_its_own() {
        let first = order(42, 0, 100);
        let second = order(42, 1, 100);
        assert_ne!(first, second);
        assert_eq!(first, order(42, 0, 100));
        assert_ne!(first, order(43, 0, 100));
        for mut pass in [first, second] {
            pass.sort_unstable();
            assert_eq!(pass, (0..100).collect::<Vec<_>>());
        }
        assert_eq!(order(1, 0, 0), Vec::<u64>::new());
        assert_eq!(order(1, 0, 1), vec![0]);
    }

    #[test]
    fn a_draw_larger_than_the_data_loops_until_it_is_satisfied() {
        let mut source = Source::new(7, 5);
        let (drawn, cursor) = source.draw(Cursor::default(), 13);
        assert_eq!(drawn.iter().map(|d| d.group_index).collect::<Vec<_>>(), (0..13).collect::<Vec<_>>());
        assert_eq!(cursor, Cursor { epoch: 2, offset: 3, next_group: 13 });
        let expected: Vec<u64> = [order(7, 0, 5), order(7, 1, 5), order(7, 2, 5)].concat();
        assert_eq!(drawn.iter().map(|d| d.row).collect::<Vec<_>>(), expected[..13]);
    }

    #[test]
    fn the_rows_do_not_depend_on_how_the_draws_were_cut() {
        let whole = Source::new(3, 11).draw(Cursor::default(), 40).0;
        let mut cut = Vec::new();
        let mut cursor = Cursor::default();
        for count in [1, 7, 0, 12, 3, 17] {
            // A new source each time: nothing is remembered but the cursor.
            let (mut drawn, after) = Source::new(3, 11).draw(cursor, count);
            cut.append(&mut drawn);
            cursor = after;
        }
        assert_eq!(cut, whole);
    }

    #[test]
    fn a_source_without_rows_gives_nothing_and_ends() {
        assert_eq!(Source::new(1, 0).draw(Cursor::default(), 3), (Vec::new(), Cursor::default()));
    }
}
