//! Runs tests, one after the other or a few at a time, and reports.

use std::{
    cell::{Cell, RefCell},
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

/// How tests are run.
#[derive(Clone, Debug)]
pub struct How {
    /// Only tests whose name contains one of these.
    pub filter: Vec<String>,
    /// Names, and nothing else.
    pub list: bool,
    /// Tests at a time, of those that may run beside others.
    pub parallel: usize,
    /// Keep namespaces of tests that failed.
    pub keep: bool,
    /// What fails on the cluster is tried once more, alone.
    pub again: bool,
}

/// Runs the tests that are picked; how many failed.
pub async fn run(tests: Vec<Test>, how: How) -> anyhow::Result<usize> {
    let How { filter, list, parallel, keep, again } = how;
    let tests: Vec<Test> =
        tests.into_iter().filter(|t| filter.is_empty() || filter.iter().any(|f| t.name.contains(f))).collect();
    if list {
        for test in &tests {
            println!("{}", test.name);
        }
        return Ok(0);
    }
    let counts = Counts::default();
    let pick = |needs: Needs| tests.iter().filter(move |t| t.needs == needs).copied().collect::<Vec<_>>();
    let bare = pick(Needs::Bare);
    if tests.len() == bare.len() {
        on_api_server(bare, keep, &counts).await?;
    } else {
        let client = Client::try_default().await.context("no cluster: `make cluster` first, or set KUBECONFIG")?;
        let nodes = Stage::ready_nodes(&client).await?;
        // Those that bring an operator of their own mostly wait, and so do those with an API server of their own.
        let own = async {
            for test in pick(Needs::Own) {
                counts.report(test, one(&client, test, nodes, keep).await);
            }
        };
        tokio::join!(on_api_server(bare, keep, &counts), own).0?;
        let retry = async |counts: &Counts| {
            for test in counts.to_try_again(again) {
                counts.report(test, one(&client, test, nodes, keep).await);
            }
            counts.tried.set(counts.failed());
        };
        retry(&counts).await;
        let (beside, alone) = (pick(Needs::Operator), pick(Needs::OperatorAlone));
        if !beside.is_empty() || !alone.is_empty() {
            let operator = Operator::install(&client).await.context("install the operator")?;
            let mut running = stream::iter(beside)
                .map(|test| {
                    let client = client.clone();
                    async move { (test, one(&client, test, nodes, keep).await) }
                })
                .buffer_unordered(parallel.max(1));
            while let Some((test, outcome)) = running.next().await {
                counts.report(test, outcome);
            }
            drop(running);
            for test in alone {
                counts.report(test, one(&client, test, nodes, keep).await);
            }
            if counts.failed() > 0 {
                operator.keep_logs().await;
            }
            retry(&counts).await;
            operator.remove().await.context("remove the operator")?;
        }
    }
    let (passed, failed, skipped) = (counts.passed.get(), counts.failed(), counts.skipped.get());
    for name in counts.second.borrow().iter() {
        println!("e2e: {name} passed at the second try, alone; see target/e2e/{name}/ for the first");
    }
    let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    println!("e2e: {passed} passed, {failed} failed{skipped}");
    Ok(failed)
}

async fn on_api_server(tests: Vec<Test>, keep: bool, counts: &Counts) -> anyhow::Result<()> {
    if tests.is_empty() {
        return Ok(());
    }
    let server = Bare::start().await.context("start an API server")?;
    for test in tests {
        counts.report(test, one(&server.client, test, 0, keep).await);
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

/// What came of all tests so far.
#[derive(Default)]
struct Counts {
    passed: Cell<usize>,
    failures: RefCell<Vec<Test>>,
    /// Failed, and tried again by now.
    tried: Cell<usize>,
    /// Of those that passed, the ones that had failed before.
    second: RefCell<Vec<&'static str>>,
    skipped: Cell<usize>,
}

impl Counts {
    fn failed(&self) -> usize {
        self.failures.borrow().len()
    }

    /// What has failed once and needs a cluster, if anything is to be tried again. It counts by its second try.
    fn to_try_again(&self, again: bool) -> Vec<Test> {
        let mut failures = self.failures.borrow_mut();
        let once = failures.split_off(self.tried.get());
        let (retried, kept): (Vec<Test>, Vec<Test>) =
            once.into_iter().partition(|test| again && test.needs != Needs::Bare);
        failures.extend(kept);
        self.second.borrow_mut().extend(retried.iter().map(|test| test.name));
        retried
    }

    fn report(&self, test: Test, (verdict, took): (Verdict, Duration)) {
        let more = |count: &Cell<usize>| count.set(count.get() + 1);
        let took = took.as_secs_f64();
        match verdict {
            Verdict::Passed => {
                more(&self.passed);
                println!("ok      {} ({took:.1} s)", test.name);
            }
            Verdict::Failed(error) => {
                self.failures.borrow_mut().push(test);
                self.second.borrow_mut().retain(|name| *name != test.name);
                println!(
                    "FAILED  {} ({took:.1} s)\n        {error:#}\n        see target/e2e/{}/",
                    test.name, test.name
                );
            }
            Verdict::Skipped(why) => {
                more(&self.skipped);
                println!("skipped {}: {why}", test.name);
            }
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
