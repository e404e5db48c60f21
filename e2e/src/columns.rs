//! What `kubectl get` prints of one object.

use anyhow::Context as _;

/// `(head, cell)` of each column of a table with one row; an empty cell is blank, so only the head says where a column begins.
///
/// # Errors
/// When there is no head or no row.
pub fn of(table: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut lines = table.lines();
    let (head, row) = (lines.next().context("a head")?, lines.next().context("a row")?);
    let blank = |at: usize| head.as_bytes().get(at) == Some(&b' ');
    let mut starts: Vec<usize> = (0..head.len()).filter(|&at| !blank(at) && (at == 0 || blank(at - 1))).collect();
    starts.push(usize::MAX);
    let cell = |text: &str, from: usize, to: usize| {
        text.get(from.min(text.len())..to.min(text.len())).unwrap_or_default().trim().to_owned()
    };
    Ok(starts.windows(2).map(|w| (cell(head, w[0], w[1]), cell(row, w[0], w[1]))).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_cell_does_not_shift_its_neighbours() {
        let columns = of("NAME   QUEUE   TP\nruns           2\n").unwrap();
        let pair = |head: &str, cell: &str| (head.to_owned(), cell.to_owned());
        assert_eq!(columns, [pair("NAME", "runs"), pair("QUEUE", ""), pair("TP", "2")]);
    }
}
