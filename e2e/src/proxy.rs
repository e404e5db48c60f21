//! A proxy in front of the API server that the operator under test talks through: it counts what is written, and breaks what it
//! is told to. It adds nothing of its own: what passes, passes as it is.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use kube::Client;
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

use crate::operator::folder;

/// The longest body that is taken in.
const BODY_MAX: usize = 16 << 20;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// GET, POST, ...
    pub method: Method,
    /// Path and query.
    pub uri: String,
}

impl Asked {
    /// True if it changes something.
    pub fn writes(&self) -> bool {
        [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(&self.method)
    }

    /// True if it is a watch.
    pub fn watches(&self) -> bool {
        self.uri.contains("watch=true")
    }
}

/// What is done instead of, or before, passing a request on.
#[derive(Clone)]
pub enum Act {
    /// It is answered with this status and the API server's own form of a refusal.
    Refuse(u16, &'static str),
    /// A watch begins, and says that it is too old.
    Expired,
    /// Something else happens first; then it passes.
    After(Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>),
}

struct Rule {
    matches: Box<dyn Fn(&Asked) -> bool + Send + Sync>,
    left: u64,
    act: Act,
}

struct Shared {
    client: Client,
    rules: Mutex<Vec<Rule>>,
    /// Writes that passed.
    writes: AtomicU64,
    /// Requests that a rule met.
    met: AtomicU64,
    /// Writes that may still pass.
    allowance: Mutex<Option<u64>>,
    spent: watch::Sender<bool>,
    /// Nothing passes while this is true.
    silent: watch::Sender<bool>,
    /// Connections older than the last change of this end.
    cut: watch::Sender<u64>,
}

/// A running proxy.
pub struct Proxy {
    shared: Arc<Shared>,
    server: JoinHandle<()>,
    kubeconfig: PathBuf,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// Starts one on loopback, with `client`'s rights.
    ///
    /// # Errors
    /// When it cannot listen or write its kubeconfig.
    pub async fn start(client: &Client, name: &str) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            client: client.clone(),
            rules: Mutex::default(),
            writes: AtomicU64::new(0),
            met: AtomicU64::new(0),
            allowance: Mutex::new(None),
            spent: watch::Sender::new(false),
            silent: watch::Sender::new(false),
            cut: watch::Sender::new(0),
        });
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let server = tokio::spawn(async move {
            // Ends with the process or by being aborted.
            let _ = axum::serve(listener, router).await;
        });
        std::fs::create_dir_all(folder())?;
        let kubeconfig = std::path::absolute(folder())?.join(format!("{name}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        std::fs::write(&kubeconfig, config.to_string())?;
        Ok(Self { shared, server, kubeconfig })
    }

    /// The kubeconfig by which it is reached.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig.display().to_string()
    }

    /// Writes that passed so far.
    pub fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }

    /// Requests that a rule met so far.
    pub fn met(&self) -> u64 {
        self.shared.met.load(Ordering::Relaxed)
    }

    /// Lets so many writes pass. The last one's answer never comes, and later writes go nowhere. `None`: no limit.
    pub fn allow(&self, writes: Option<u64>) {
        *self.shared.allowance.lock().unwrap_or_else(PoisonError::into_inner) = writes;
        self.shared.spent.send_replace(false);
    }

    /// Waits until the last write that may pass has passed, or, if none may, until there is one.
    pub async fn spent(&self) {
        // The sender lives as long as the proxy.
        let _ = self.shared.spent.subscribe().wait_for(|spent| *spent).await;
    }

    /// The next `times` requests that match are met with `act`.
    pub fn on(&self, times: u64, matches: impl Fn(&Asked) -> bool + Send + Sync + 'static, act: Act) {
        let rule = Rule { matches: Box::new(matches), left: times, act };
        self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    /// Takes all rules back.
    pub fn obey(&self) {
        self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Ends every answer that is under way, watches too.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// Neither a request nor an answer passes for that long; connections stay open.
    pub async fn hold(&self, how_long: Duration) {
        self.shared.silent.send_replace(true);
        tokio::time::sleep(how_long).await;
        self.shared.silent.send_replace(false);
    }
}

impl Shared {
    fn rule(&self, asked: &Asked) -> Option<Act> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let rule = rules.iter_mut().find(|rule| rule.left > 0 && (rule.matches)(asked))?;
        rule.left -= 1;
        Some(rule.act.clone())
    }

    /// True if it is the last; `None` if it may not pass.
    fn take_one(&self) -> Option<bool> {
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        match allowance.as_mut() {
            None => Some(false),
            Some(0) => None,
            Some(left) => {
                *left -= 1;
                Some(*left == 0)
            }
        }
    }

    async fn unless_silent(&self) {
        // The sender is ours.
        let _ = self.silent.subscribe().wait_for(|silent| !*silent).await;
    }
}

fn refusal(code: u16, reason: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": format!("refused by the test: {reason}"),
    });
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (code, status.to_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    if code == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}

fn expired() -> Response {
    let event = json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version: 1 (2)",
    } });
    ([(header::CONTENT_TYPE, "application/json")], format!("{event}\n")).into_response()
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let uri = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let asked = Asked { method: parts.method, uri };
    shared.unless_silent().await;
    match shared.rule(&asked) {
        None => {}
        Some(act) => {
            shared.met.fetch_add(1, Ordering::Relaxed);
            match act {
                Act::Refuse(code, reason) => return refusal(code, reason),
                Act::Expired => return expired(),
                Act::After(act) => act().await,
            }
        }
    }
    let mut last = false;
    if asked.writes() {
        match shared.take_one() {
            Some(is_last) => last = is_last,
            None => {
                shared.spent.send_replace(true);
                return std::future::pending().await;
            }
        }
    }
    let answer = match axum::body::to_bytes(body, BODY_MAX).await {
        Ok(body) => forward(&shared, &asked, &parts.headers, body).await,
        Err(error) => Err(error.into()),
    };
    if asked.writes() {
        shared.writes.fetch_add(1, Ordering::Relaxed);
    }
    if last {
        shared.spent.send_replace(true);
        return std::future::pending().await;
    }
    answer.unwrap_or_else(|error| (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response())
}

async fn forward(shared: &Arc<Shared>, asked: &Asked, headers: &HeaderMap, body: Bytes) -> anyhow::Result<Response> {
    let mut request = kube::client::Body::from(body.to_vec());
    if body.is_empty() {
        request = kube::client::Body::empty();
    }
    let mut builder = axum::http::Request::builder().method(asked.method.clone()).uri(&asked.uri);
    // Compression and connections are between neighbours.
    for name in [header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT] {
        if let Some(value) = headers.get(&name) {
            builder = builder.header(name, value);
        }
    }
    let answer = shared.client.send(builder.body(request)?).await?;
    let (mut parts, body) = answer.into_parts();
    for name in [header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::CONNECTION] {
        parts.headers.remove(name);
    }
    // An answer to a write is whole before it is passed on: it may be the last one.
    let body = Body::new(body);
    if asked.writes() {
        return Ok(Response::from_parts(parts, Body::from(axum::body::to_bytes(body, BODY_MAX).await?)));
    }
    let mut cut = shared.cut.subscribe();
    cut.mark_unchanged();
    let ended = async move {
        // The sender is ours.
        let _ = cut.changed().await;
    };
    let shared = shared.clone();
    let chunks = body.into_data_stream().then(move |chunk| {
        let shared = shared.clone();
        async move {
            shared.unless_silent().await;
            chunk
        }
    });
    Ok(Response::from_parts(parts, Body::from_stream(chunks.take_until(ended.boxed()))))
}
