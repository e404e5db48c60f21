//! The running operator: watches at once, acts while it holds the Lease, ends when it cannot prove that it does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use api::{RLJob, RolloutPool, ServingCluster, conditions as cond};
use control::health::Health;
use futures::StreamExt;
use kube::{
    Client,
    core::error_boundary::DeserializeGuard,
    runtime::{
        controller::{Config, applier},
        reflector::{self, ObjectRef},
    },
};
use plan::{Images, Settings};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{interval, sleep},
};

use crate::{
    api_server, args,
    cache::Cache,
    context::{AllRequests, Caches, Context, Guarded, Memory, Stores},
    events::Events,
    kind::{Kind, identity},
    leader::Candidate,
    links::Links,
    metrics::Metrics,
    reconcile::{on_error, reconcile, say_only},
    schema,
    spell::Spell,
    watches::{self, OWNERS, Writers, request_all},
};

/// How often the served CRDs are looked at: until then one that was replaced by an older one hides what users wrote.
const SCHEMA: Duration = Duration::from_secs(3);
/// Several changes of an object within this are one look.
const DEBOUNCE: Duration = Duration::from_millis(30);
/// Name of the Lease.
const LEASE: &str = "thresh-operator";
/// Names of the objects by phase are counted this often.
const COUNT: Duration = Duration::from_secs(15);

type Queue<K> = mpsc::UnboundedReceiver<ObjectRef<Guarded<K>>>;

/// One set of namespaces: its context, and who waits for a look.
struct Realm {
    context: Arc<Context>,
    rljobs: Queue<RLJob>,
    servings: Queue<ServingCluster>,
    pools: Queue<RolloutPool>,
}

/// Runs until SIGTERM, or until the Lease is lost.
///
/// # Errors
/// When it cannot start, or may no longer act.
pub async fn run(args: args::Run) -> anyhow::Result<()> {
    let health = Health::starting("starting");
    let metrics = Metrics::new(health.registry()).context("metrics")?;
    let listener =
        tokio::net::TcpListener::bind(args.listen).await.with_context(|| format!("listen on {}", args.listen))?;
    let (stop, stopped) = watch::channel(false);
    let ended = |mut stopped: watch::Receiver<bool>| async move {
        // The sender outlives everybody; if not, that is an end too.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let server = tokio::spawn(control::server::serve(listener, health.router(), ended(stopped.clone())));
    let client = api_server().await?;
    let mut tasks = JoinSet::new();
    let namespaces: Vec<Option<String>> = match args.namespaces.iter().filter(|n| !n.is_empty()).collect::<Vec<_>>() {
        none if none.is_empty() => vec![None],
        some => some.into_iter().cloned().map(Some).collect(),
    };
    let current = schema::missing(&client).await;
    let mut realms = Vec::new();
    for namespace in namespaces {
        realms.push(realm(&args, &client, &metrics, namespace.as_deref(), &mut tasks)?);
    }
    let contexts: Vec<_> = realms.iter().map(|realm| realm.context.clone()).collect();
    for context in &contexts {
        context.schema_is_current.store(matches!(current, Ok(None)), Ordering::Relaxed);
        tasks.spawn(count(context.clone()));
    }
    tasks.spawn(watch_schema(client.clone(), contexts.clone(), health.clone()));

    let mut asked = std::pin::pin!(control::server::asked_to_stop());
    let candidate = Candidate::new(client, &args.pod_namespace, LEASE, &args.pod_name);
    let lead = async {
        for context in &contexts {
            filled(&context.caches).await;
        }
        if args.leader_election {
            candidate.acquire().await;
        }
    };
    tokio::select! {
        () = &mut asked => {
            // It leads nobody yet.
            stop.send_replace(true);
            return server.await?.context("the metrics server");
        }
        () = lead => {}
    }
    metrics.leader.set(1);
    tracing::info!(pod = args.pod_name, "acting");
    let mut workers = JoinSet::new();
    for realm in realms {
        let Realm { context, rljobs, servings, pools } = realm;
        context.active.store(true, Ordering::Relaxed);
        workers.spawn(work(context.clone(), rljobs, args.concurrency, ended(stopped.clone())));
        workers.spawn(work(context.clone(), servings, args.concurrency, ended(stopped.clone())));
        workers.spawn(work(context.clone(), pools, args.concurrency, ended(stopped.clone())));
        request_all(&context);
    }
    let lost = async { if args.leader_election { candidate.hold().await } else { std::future::pending().await } };
    tokio::select! {
        () = &mut asked => {}
        // What we do now could contradict our successor.
        why = lost => anyhow::bail!("ending, since this process may no longer act: {why}"),
        died = tasks.join_next() => anyhow::bail!("a watch has ended: {died:?}"),
        died = workers.join_next() => anyhow::bail!("a controller has ended: {died:?}"),
    }
    tracing::info!("asked to stop: finishing what is under way");
    stop.send_replace(true);
    while workers.join_next().await.is_some() {}
    metrics.leader.set(0);
    if args.leader_election {
        candidate.release().await;
    }
    server.await?.context("the metrics server")
}

fn realm(
    args: &args::Run,
    client: &Client,
    metrics: &Metrics,
    namespace: Option<&str>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Realm> {
    let images = Images { trainer_cpu: args.trainer_image.clone(), rollout: args.rollout_image.clone() };
    let ((rljobs, w1), (servings, w2), (pools, w3)) = (reflector::store(), reflector::store(), reflector::store());
    let ((ask1, queue1), (ask2, queue2), (ask3, queue3)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let context = Arc::new(Context {
        client: client.clone(),
        settings: Settings::cluster(images),
        metrics: metrics.clone(),
        events: Events::new(client.clone(), &args.pod_name),
        links: Links::new().context("HTTP client")?,
        caches: Caches {
            pods: Cache::new(OWNERS),
            jobs: Cache::new(OWNERS),
            config_maps: Cache::new(OWNERS),
            services: Cache::new(OWNERS),
            stateful_sets: Cache::new(OWNERS),
            daemon_sets: Cache::new(OWNERS),
            budgets: Cache::new(OWNERS),
            claims: Cache::new(&[]),
            nodes: Cache::new(&[]),
        },
        stores: Stores { rljobs, servings, pools },
        requests: AllRequests { rljobs: ask1, servings: ask2, pools: ask3 },
        rljobs: Memory::default(),
        servings: Memory::default(),
        pools: Memory::default(),
        schema_is_current: AtomicBool::new(false),
        active: AtomicBool::new(false),
    });
    let mut watches = watches::start(&context, namespace, Writers { rljobs: w1, servings: w2, pools: w3 });
    let stores = context.clone();
    tasks.spawn(async move {
        drop(watches.join_next().await);
        drop(stores);
    });
    Ok(Realm { context, rljobs: queue1, servings: queue2, pools: queue3 })
}

/// Waits until every cache has been filled once.
async fn filled(caches: &Caches) {
    // Without `..`: a cache that is added must be waited for.
    let Caches { pods, jobs, config_maps, services, stateful_sets, daemon_sets, budgets, claims, nodes } = caches;
    pods.filled().await;
    jobs.filled().await;
    config_maps.filled().await;
    services.filled().await;
    stateful_sets.filled().await;
    daemon_sets.filled().await;
    budgets.filled().await;
    claims.filled().await;
    nodes.filled().await;
}

async fn work<K: Kind>(
    context: Arc<Context>,
    mut queue: Queue<K>,
    concurrency: u16,
    ended: impl Future<Output = ()> + Send,
) where
    DeserializeGuard<K>: Clone,
{
    let store = K::store(&context).clone();
    let mut ended = Box::pin(ended);
    tokio::select! {
        // Without its definition a kind is never listed, and the end comes all the same.
        () = &mut ended => return,
        // Both ends are ours and live as long as the process.
        _ = store.wait_until_ready() => {}
    }
    let requests = futures::stream::poll_fn(move |cx| queue.poll_recv(cx)).take_until(ended);
    applier(
        |guarded, context| Box::pin(reconcile::<K>(guarded, context)),
        on_error::<K>,
        context,
        store,
        requests.map(Ok::<_, std::convert::Infallible>),
        Config::default().concurrency(concurrency).debounce(DEBOUNCE),
    )
    .for_each(|result| async move {
        if let Err(error) = result {
            tracing::debug!(kind = K::NAME, %error, "a look came to nothing");
        }
    })
    .await;
}

/// Keeps an eye on the served CRDs, and on what `/readyz` says.
async fn watch_schema(client: Client, contexts: Vec<Arc<Context>>, health: Health) {
    let mut judged = None;
    let mut spell = Spell::new("look at the served CustomResourceDefinitions");
    let mut lacking = None;
    loop {
        // Asked for before the schemas, so that a change between the two is seen the next time.
        let editions = schema::editions(&client).await.ok();
        if judged.is_some() && judged == editions {
            sleep(SCHEMA).await;
            continue;
        }
        match schema::missing(&client).await {
            Ok(None) => {
                spell.over();
                lacking = None;
                for context in &contexts {
                    context.metrics.schema_outdated.set(0);
                    if !context.schema_is_current.swap(true, Ordering::Relaxed) {
                        request_all(context);
                    }
                }
                for context in &contexts {
                    filled(&context.caches).await;
                }
                health.ready();
                judged = editions;
            }
            Ok(Some(missing)) => {
                spell.over();
                if lacking.as_ref() != Some(&missing) {
                    tracing::warn!("{missing}; touching nothing until then");
                    lacking = Some(missing.clone());
                }
                for context in &contexts {
                    context.schema_is_current.store(false, Ordering::Relaxed);
                    context.metrics.schema_outdated.set(1);
                    if context.is_active() {
                        outdated::<RLJob>(context, &missing).await;
                        outdated::<ServingCluster>(context, &missing).await;
                        outdated::<RolloutPool>(context, &missing).await;
                    }
                }
                health.not_ready(missing);
                judged = None;
            }
            Err(error) => {
                spell.failed(error);
                judged = None;
            }
        }
        sleep(SCHEMA).await;
    }
}

/// Says on every object that nothing is done, and nothing else.
async fn outdated<K: Kind>(context: &Context, missing: &str) {
    for guarded in K::store(context).state() {
        let (namespace, name, _) = identity(&*guarded);
        let mut list = match &guarded.0 {
            Ok(object) => K::conditions(&mut object.status_or_default()).clone(),
            Err(_) => Vec::new(),
        };
        if cond::get(&list, cond::ACCEPTED).is_some_and(|c| c.reason == "SchemaOutdated" && c.message == missing) {
            continue;
        }
        let (generation, now) = (guarded_generation(&guarded), jiff::Timestamp::now());
        cond::set(&mut list, cond::ACCEPTED, cond::Truth::False, "SchemaOutdated", missing, generation, now);
        list.retain(|c| c.type_ == cond::ACCEPTED);
        if let Err(error) = say_only::<K>(context, namespace, name, generation, &list).await {
            tracing::warn!(%error, namespace, name, "the condition SchemaOutdated was not written");
        }
    }
}

fn guarded_generation<K: Kind>(guarded: &Guarded<K>) -> Option<i64> {
    kube::Resource::meta(guarded).generation
}

/// Counts objects by phase.
async fn count(context: Arc<Context>) {
    let mut ticks = interval(COUNT);
    loop {
        ticks.tick().await;
        let mut phases = std::collections::BTreeMap::<String, i64>::new();
        for guarded in context.stores.rljobs.state() {
            let phase = match &guarded.0 {
                Ok(job) => job.status.as_ref().map(|s| s.phase).unwrap_or_default().to_string(),
                Err(_) => "Unreadable".into(),
            };
            *phases.entry(phase).or_default() += 1;
        }
        let objects = &context.metrics.objects;
        objects.reset();
        for (phase, n) in phases {
            objects.with_label_values(&["RLJob", &phase]).set(n);
        }
        let whole = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        objects.with_label_values(&["ServingCluster", ""]).set(whole(context.stores.servings.len()));
        objects.with_label_values(&["RolloutPool", ""]).set(whole(context.stores.pools.len()));
    }
}
