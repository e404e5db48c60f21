//! Runs tests, one after the other or a few at a time, and reports.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt, stream};
use kube::Client;

use crate::{bare::Bare, evidence, operator::Operator, stage::Stage};

/// The body of a test.
pub type Body = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// What a test needs beyond a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The operator as the chart installs it; may run beside others.
    Operator,
    /// The same, and nobody else on the cluster meanwhile: it breaks nodes, volumes or figures.
    OperatorAlone,
    /// No operator: it brings its own.
    Own,
    /// No cluster, only an API server: nothing runs pods, and no controllers do anything.
    Bare,
}

/// A test.
#[derive(Clone, Copy)]
pub struct Test {
    /// The rule, in words joined by `_`.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// Nodes it needs.
    pub nodes: usize,
    /// Ready after this long or failed.
    pub deadline: Duration,
    /// What it does.
    pub body: Body,
}

/// What became of a test.
enum Verdict {
    Passed,
    Failed(anyhow::Error),
    Skipped(String),
}

/// Makes a [`Test`] of an async function.
#[macro_export]
macro_rules! test {
    ($body:path, $needs:ident, $nodes:expr, $seconds:expr) => {
        $crate::harness::Test {
            name: {
                let path = stringify!($body);
                // The last part of the path; `rsplit` cannot be empty.
                match path.rsplit("::").next() {
                    Some(name) => name.trim_ascii(),
                    None => path,
                }
            },
            needs: $crate::harness::Needs::$needs,
            nodes: $nodes,
            deadline: std::time::Duration::from_secs($seconds),
            body: |stage| Box::pin($body(stage)),
        }
    };
}

/// Runs the tests that `filter` picks; how many failed.
pub async fn run(
    tests: Vec<Test>,
    filter: &[String],
    list: bool,
    parallel: usize,
    keep: bool,
) -> anyhow::Result<usize> {
    let tests: Vec<Test> =
        tests.into_iter().filter(|t| filter.is_empty() || filter.iter().any(|f| t.name.contains(f))).collect();
    if list {
        for test in &tests {
            println!("{}", test.name);
        }
        return Ok(0);
    }
    let mut counts = (0, 0, 0);
    let pick = |needs: Needs| tests.iter().filter(move |t| t.needs == needs).copied().collect::<Vec<_>>();
    let bare = pick(Needs::Bare);
    if !bare.is_empty() {
        let server = Bare::start().await.context("start an API server")?;
        for &test in &bare {
            report(test, one(&server.client, test, 0, keep).await, &mut counts);
        }
    }
    if tests.len() > bare.len() {
        on_cluster(pick(Needs::Own), pick(Needs::Operator), pick(Needs::OperatorAlone), parallel, keep, &mut counts)
            .await?;
    }
    let (passed, failed, skipped) = counts;
    let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    println!("e2e: {passed} passed, {failed} failed{skipped}");
    Ok(failed)
}

async fn on_cluster(
    own: Vec<Test>,
    beside: Vec<Test>,
    alone: Vec<Test>,
    parallel: usize,
    keep: bool,
    counts: &mut (usize, usize, usize),
) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no cluster: `make cluster` first, or set KUBECONFIG")?;
    let nodes = Stage::ready_nodes(&client).await?;
    for test in own {
        report(test, one(&client, test, nodes, keep).await, counts);
    }
    if !beside.is_empty() || !alone.is_empty() {
        let operator = Operator::install(&client).await.context("install the operator")?;
        let mut running = stream::iter(beside)
            .map(|test| {
                let client = client.clone();
                async move { (test, one(&client, test, nodes, keep).await) }
            })
            .buffer_unordered(parallel.max(1));
        while let Some((test, outcome)) = running.next().await {
            report(test, outcome, counts);
        }
        drop(running);
        for test in alone {
            report(test, one(&client, test, nodes, keep).await, counts);
        }
        if counts.1 > 0 {
            operator.keep_logs().await;
        }
        operator.remove().await.context("remove the operator")?;
    }
    Ok(())
}

async fn one(client: &Client, test: Test, nodes: usize, keep: bool) -> (Verdict, Duration) {
    let begun = Instant::now();
    if nodes < test.nodes {
        return (Verdict::Skipped(format!("needs {} nodes, there are {nodes}", test.nodes)), begun.elapsed());
    }
    let stage = match test.needs {
        Needs::Bare => Stage::bare(client, test.name).await,
        _ => Stage::set(client, test.name).await,
    };
    let stage = match stage {
        Ok(stage) => stage,
        Err(error) => return (Verdict::Failed(error.context("set the stage")), begun.elapsed()),
    };
    let result = match tokio::time::timeout(test.deadline, (test.body)(&stage)).await {
        Ok(result) => result,
        Err(_) => Err(anyhow::anyhow!("not done after {} s; it was {}", test.deadline.as_secs(), stage.doing())),
    };
    let verdict = match result {
        Ok(()) => Verdict::Passed,
        Err(error) => match error.downcast::<Skip>() {
            Ok(Skip(why)) => Verdict::Skipped(why),
            Err(error) => {
                evidence::gather(&stage, &error).await;
                Verdict::Failed(error)
            }
        },
    };
    if test.needs == Needs::Own {
        stage.release().await;
    }
    // On an API server alone nobody would take a namespace away; it goes with its server.
    if test.needs != Needs::Bare && !(keep && matches!(verdict, Verdict::Failed(_))) {
        stage.strike().await;
    }
    (verdict, begun.elapsed())
}

fn report(test: Test, (verdict, took): (Verdict, Duration), counts: &mut (usize, usize, usize)) {
    let took = took.as_secs_f64();
    match verdict {
        Verdict::Passed => {
            counts.0 += 1;
            println!("ok      {} ({took:.1} s)", test.name);
        }
        Verdict::Failed(error) => {
            counts.1 += 1;
            println!("FAILED  {} ({took:.1} s)\n        {error:#}\n        see target/e2e/{}/", test.name, test.name);
        }
        Verdict::Skipped(why) => {
            counts.2 += 1;
            println!("skipped {}: {why}", test.name);
        }
    }
}

/// A test cannot run here, for this reason.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}
