//! The table of runs: the columns of `kubectl get rljob`.

use api::RLJob;
use jiff::Timestamp;
use serde::Serialize;

use crate::age;

/// A run in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its namespace, where several are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// One word.
    pub phase: String,
    /// Steps done, of how many.
    pub step: String,
    /// Version that the engines serve.
    pub version: String,
    /// Ranks that are ready, of how many.
    pub ranks: String,
    /// Engines that are ready, of how many.
    pub serving: String,
    /// The last attempt.
    pub attempt: String,
    /// Failures so far.
    pub fails: String,
    /// How old the object is.
    pub age: String,
}

impl Row {
    /// From the object. What its status does not hold stays empty, as in `kubectl get`.
    pub fn of(job: &RLJob, now: Timestamp) -> Self {
        let status = job.status.as_ref();
        let progress = status.and_then(|s| s.progress.as_ref());
        let created = job.metadata.creation_timestamp.as_ref();
        Self {
            namespace: None,
            name: job.metadata.name.clone().unwrap_or_default(),
            phase: status.map(|s| s.phase.to_string()).unwrap_or_default(),
            step: progress.map(|p| p.steps.clone()).unwrap_or_default(),
            version: progress.map(|p| p.weight_version.to_string()).unwrap_or_default(),
            ranks: status.and_then(|s| s.ranks.as_ref()).map(|r| r.summary.clone()).unwrap_or_default(),
            serving: status.and_then(|s| s.serving.as_ref()).map(|s| s.summary.clone()).unwrap_or_default(),
            attempt: status.map(|s| s.attempts.to_string()).unwrap_or_default(),
            fails: status.map(|s| s.counters.failures.to_string()).unwrap_or_default(),
            age: created.map_or_else(|| "?".into(), |t| age(now.duration_since(t.0).as_secs())),
        }
    }

    fn cells(&self) -> [&str; 9] {
        // Without `..`: a column that is added must be shown.
        let Self { namespace: _, name, phase, step, version, ranks, serving, attempt, fails, age } = self;
        [name, phase, step, version, ranks, serving, attempt, fails, age]
    }
}

/// Heading and rows. The namespace is a column if any row has one.
pub fn table(rows: &[Row]) -> Vec<String> {
    const HEADS: [&str; 9] = ["NAME", "PHASE", "STEP", "VERSION", "RANKS", "SERVING", "ATTEMPT", "FAILS", "AGE"];
    let wide = rows.iter().any(|row| row.namespace.is_some());
    let with = |space: &str, cells: [&str; 9]| -> Vec<String> {
        let first = wide.then(|| space.to_owned());
        first.into_iter().chain(cells.into_iter().map(str::to_owned)).collect()
    };
    let mut lines = vec![with("NAMESPACE", HEADS)];
    lines.extend(rows.iter().map(|row| with(row.namespace.as_deref().unwrap_or_default(), row.cells())));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0) + 3;
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let line = |cells: &Vec<String>| {
        let padded: String = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.trim_end().to_owned()
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn the_columns_are_those_of_kubectl_get() {
        let sample = Sample::new();
        let row = Row::of(&sample.job, sample.now);
        let lines = table(&[row.clone(), Row { name: "a-longer-name".into(), ..row.clone() }]);
        assert_eq!(lines[0], "NAME            PHASE     STEP    VERSION   RANKS   SERVING   ATTEMPT   FAILS   AGE");
        assert_eq!(lines[1], "sort5           Running   13/50   14        2/2     2/2       2         1       3m");
        let wide = table(&[Row { namespace: Some("rl".into()), ..row }]);
        assert!(wide[0].starts_with("NAMESPACE   NAME") && wide[1].starts_with("rl          sort5"), "{wide:?}");
    }

    #[test]
    fn a_run_that_nobody_has_looked_at_is_a_row_too() {
        let mut sample = Sample::new();
        sample.job.status = None;
        assert_eq!(
            table(&[Row::of(&sample.job, sample.now)])[1].split_whitespace().collect::<Vec<_>>(),
            ["sort5", "3m"]
        );
    }
}
