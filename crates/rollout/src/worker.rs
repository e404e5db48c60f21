//! A worker process: it waits to be invited into runs and serves each until that run is over.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Json, Router, extract::State, response::Response, routing::post};
use control::wire::{Invite, InviteAck, Refusal, RefusalKind, WorkerId};
use tokio::task::JoinHandle;

use crate::{Figures, session::Session};

/// What a worker is told at its start.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Pod name.
    pub name: String,
    /// Node name.
    pub node: String,
    /// Root of the volume.
    pub volume: PathBuf,
    /// Groups worked on at a time, per run.
    pub capacity: usize,
    /// How long work in flight may take after the worker was asked to stop.
    pub drain: Duration,
}

/// A worker. Cloning shares it.
#[derive(Clone)]
pub struct Worker(Arc<Inner>);

struct Inner {
    options: WorkerOptions,
    id: WorkerId,
    http: reqwest::Client,
    figures: Figures,
    sessions: Mutex<HashMap<String, Serving>>,
}

struct Serving {
    session: Arc<Session>,
    task: JoinHandle<()>,
}

impl Worker {
    /// A worker that serves nothing yet.
    #[must_use]
    pub fn new(options: WorkerOptions, http: reqwest::Client, figures: Figures) -> Self {
        // RandomState draws its keys from the system's entropy.
        let incarnation = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let id = WorkerId { name: options.name.clone(), incarnation, node: options.node.clone() };
        Self(Arc::new(Inner { options, id, http, figures, sessions: Mutex::default() }))
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> &WorkerId {
        &self.0.id
    }

    /// `POST /v1/runs`.
    pub fn routes(&self) -> Router {
        Router::new().route("/v1/runs", post(invited)).with_state(self.clone())
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<String, Serving>> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes part in a run, or says that it does already.
    ///
    /// # Errors
    /// When the inviting conductor was superseded, or the run's model or store is not usable here.
    pub fn join(&self, invite: &Invite) -> Result<InviteAck, Refusal> {
        let refuse = |kind, message| Refusal { kind, message, conductor_epoch: 0 };
        let mut sessions = self.sessions();
        sessions.retain(|_, serving| !serving.task.is_finished());
        if let Some(serving) = sessions.get(&invite.run) {
            if let Err(met) = serving.session.epochs().meet(invite.conductor_epoch) {
                let message =
                    format!("invited by conductor epoch {}, but epoch {met} was met before", invite.conductor_epoch);
                return Err(refuse(RefusalKind::ConductorSuperseded, message));
            }
            if serving.session.conductor() == invite.conductor.trim_end_matches('/') {
                return Ok(InviteAck { worker: self.0.id.clone(), known: true });
            }
            // The conductor moved. What the old session has finished it cannot offer there; leases will expire.
            serving.task.abort();
        }
        let options = &self.0.options;
        let (id, http, figures) = (self.0.id.clone(), self.0.http.clone(), self.0.figures.clone());
        let session = Session::new(id, invite, &options.volume, http, options.capacity, figures)
            .map_err(|error| refuse(RefusalKind::Unavailable, error.to_string()))?;
        let session = Arc::new(session);
        tracing::info!(run = %invite.run, conductor = %invite.conductor, epoch = invite.conductor_epoch, "joined a run");
        let task = tokio::spawn(session.clone().run());
        sessions.insert(invite.run.clone(), Serving { session, task });
        Ok(InviteAck { worker: self.0.id.clone(), known: false })
    }

    /// Takes no more work and finishes what is at hand, for at most the drain time.
    pub async fn drain(&self) {
        let serving: Vec<Serving> = self.sessions().drain().map(|(_, serving)| serving).collect();
        for one in &serving {
            one.session.drain();
        }
        let all = futures::future::join_all(serving.into_iter().map(|one| one.task));
        if tokio::time::timeout(self.0.options.drain, all).await.is_err() {
            tracing::warn!("work was left unfinished; its leases will expire");
        }
    }
}

async fn invited(State(worker): State<Worker>, Json(invite): Json<Invite>) -> Result<Json<InviteAck>, Response> {
    use axum::response::IntoResponse;
    // Opening a tokenizer and a store blocks.
    let joined = tokio::task::spawn_blocking(move || worker.join(&invite));
    match joined.await {
        Ok(Ok(ack)) => Ok(Json(ack)),
        Ok(Err(refusal)) => Err(refusal.into_response()),
        Err(error) => {
            let message = format!("joining failed: {error}");
            Err(Refusal { kind: RefusalKind::Unavailable, message, conductor_epoch: 0 }.into_response())
        }
    }
}
