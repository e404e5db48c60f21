//! Carrying commands out: each ends in an event.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use conductor::{
    Command, Converted, Event, convert,
    convert::{Conversion, WarmRow},
};
use rl::GroupAdvantage;
use sglang::{DiskTransport, Engine, HttpEngine, Publication, UpdateLimits, update_engine};
use straw::{Member, Ref, Store, Writer};
use tokio::runtime::Handle;

use super::{inbox::Inbox, scoring, setup::Setup, tiles};

/// Of bringing an engine to a version.
const UPDATE_LIMITS: UpdateLimits =
    UpdateLimits { pause: Duration::from_secs(60), load: Duration::from_secs(600), short: SHORT_LIMIT };
/// Everything else an engine does at once.
const SHORT_LIMIT: Duration = Duration::from_secs(10);
/// Folders that hold one folder per commit and per version.
const KINDS: [&str; 2] = ["tiles", "weights"];

/// Carries commands out, without ever holding the brain up.
pub struct Performer {
    setup: Arc<Setup>,
    inbox: Inbox,
    http: reqwest::Client,
    runtime: Handle,
    store: Store,
    writer: Arc<Writer>,
    /// The run's queue among those that use its packs.
    member: Member,
}

impl Performer {
    /// For the reign `epoch`.
    pub fn new(
        setup: Arc<Setup>,
        inbox: Inbox,
        http: reqwest::Client,
        runtime: Handle,
        store: Store,
        epoch: u64,
    ) -> anyhow::Result<Self> {
        let writer = Arc::new(store.writer(&format!("conductor-{epoch}"))?);
        let member = store.register(straw::pool::MAIN)?;
        Ok(Self { setup, inbox, http, runtime, store, writer, member })
    }

    /// Begins; the event follows.
    pub fn perform(&self, command: Command) {
        match command {
            Command::Reply(id, reply) => self.inbox.answer(id, reply),
            Command::Convert { step, groups, advantage } => {
                let (store, writer) = (self.store.clone(), self.writer.clone());
                // What the trainer computes at.
                let temperature = self.setup.config.frozen.sampling.temperature;
                self.blocking(move || {
                    let result = convert_batch(&store, &writer, step, &groups, advantage, temperature);
                    Event::Converted { step, result: result.map(Box::new).map_err(|error| format!("{error:#}")) }
                });
            }
            Command::ConvertWarm { first, rows } => {
                let (setup, writer) = (self.setup.clone(), self.writer.clone());
                self.blocking(move || {
                    let result = convert_warm(&setup, &writer, first, &rows);
                    Event::WarmConverted { first, result: result.map_err(|error| format!("{error:#}")) }
                });
            }
            Command::VerifyTiles { trainer_epoch, seq, folder, index_digest } => {
                let folder = self.path(&folder);
                self.blocking(move || Event::TilesVerified {
                    trainer_epoch,
                    seq,
                    result: tiles::verify(&folder, &index_digest),
                });
            }
            Command::UpdateEngine { url, version, folder } => self.update_engine(url, version, folder),
            Command::ResumeEngine { url } => {
                let (engine, inbox) = (self.engine(&url), self.inbox.clone());
                self.runtime.spawn(async move {
                    let result = engine.resume(SHORT_LIMIT).await.map_err(|error| error.to_string());
                    inbox.post(Event::EngineResumed { url, result });
                });
            }
            Command::ListFolders => {
                let root = self.setup.run_dir.path().to_owned();
                self.blocking(move || Event::FoldersFound(list_folders(&root)));
            }
            Command::Score { version, scores, engines } => {
                let engines: Vec<HttpEngine> = engines.iter().map(|url| self.engine(url)).collect();
                let temperature = self.setup.config.frozen.sampling.temperature;
                let (store, inbox) = (self.store.clone(), self.inbox.clone());
                self.runtime.spawn(async move {
                    let result = scoring::compare(store, &engines, version, scores, temperature).await;
                    inbox.post(Event::Scored { version, result: result.map_err(|error| format!("{error:#}")) });
                });
            }
            Command::ListPacks => {
                let (store, writer, inbox) = (self.store.clone(), self.writer.clone(), self.inbox.clone());
                self.runtime.spawn_blocking(move || match store.packs() {
                    Ok(mut packs) => {
                        // What is being written here is about to be referred to.
                        let own = writer.pack();
                        packs.retain(|pack| Some(&pack.name) != own.as_ref());
                        inbox.post(Event::PacksFound(packs));
                    }
                    Err(error) => tracing::warn!(%error, "the packs cannot be listed; none is given up"),
                });
            }
            Command::CopyRecords { out_of, records } => {
                let (store, writer) = (self.store.clone(), self.writer.clone());
                self.blocking(move || {
                    let copied = straw::compact::copy(&store, &writer, &out_of, &records);
                    Event::RecordsCopied(copied.map_err(|error| error.to_string()))
                });
            }
            Command::RemovePacks { retired } => {
                let member = self.member.clone();
                self.runtime.spawn_blocking(move || match member.remove(&retired) {
                    Ok(0) => {}
                    Ok(bytes) => tracing::info!(bytes, "packs that nothing refers to were removed"),
                    Err(error) => tracing::warn!(%error, "packs could not be removed; it is tried again"),
                });
            }
            Command::DeleteFolder { folder } => {
                let path = self.path(&folder);
                self.blocking(move || {
                    let result = match std::fs::remove_dir_all(&path) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
                        _ => Ok(()),
                    };
                    Event::FolderDeleted { folder, result }
                });
            }
        }
    }

    fn blocking(&self, work: impl FnOnce() -> Event + Send + 'static) {
        let inbox = self.inbox.clone();
        self.runtime.spawn_blocking(move || inbox.post(work()));
    }

    fn path(&self, folder: &str) -> PathBuf {
        self.setup.run_dir.path().join(folder)
    }

    fn engine(&self, url: &str) -> HttpEngine {
        HttpEngine::new(self.http.clone(), url, self.setup.engine_token.clone())
    }

    fn update_engine(&self, url: String, version: u64, folder: String) {
        let (engine, inbox) = (self.engine(&url), self.inbox.clone());
        // Engines mount the volume where we do.
        let publication = Publication { version, folder: self.path(&folder).display().to_string() };
        self.runtime.spawn(async move {
            let result = update_engine(&engine, &DiskTransport, &publication, UPDATE_LIMITS).await;
            if let Err(error) = &result {
                tracing::warn!(url, version, %error, "an engine did not take its weights");
            }
            inbox.post(Event::EngineUpdated { url, version, result: result.map_err(|error| error.to_string()) });
        });
    }
}

fn convert_batch(
    store: &Store,
    writer: &Writer,
    step: u64,
    groups: &[(u64, Ref)],
    advantage: GroupAdvantage,
    temperature: f64,
) -> anyhow::Result<Converted> {
    let groups = groups
        .iter()
        .map(|(group_index, reference)| {
            let record = store.read(reference).with_context(|| format!("reading group {group_index}"))?;
            rollout::read_group(&record).with_context(|| format!("reading group {group_index}"))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let Conversion { record, shapes, stats, left_out } = convert::rl_batch(step, &groups, advantage, temperature)?;
    if !left_out.is_empty() {
        tracing::warn!(step, ?left_out, "samples were left out of a batch");
    }
    let written = writer.publish(&format!("step-{step}"), std::slice::from_ref(&record))?;
    let batch = written.into_iter().next().context("straw gave no reference")?;
    Ok(Converted::new(batch, &shapes, stats))
}

fn convert_warm(setup: &Setup, writer: &Writer, first: u64, rows: &[Vec<u64>]) -> anyhow::Result<Vec<Converted>> {
    let conversions = (first..)
        .zip(rows)
        .map(|(update, rows)| {
            let rows: Vec<WarmRow> = setup.rows.warm(rows)?;
            Ok(convert::warm_batch(update, &rows)?)
        })
        .collect::<anyhow::Result<Vec<Conversion>>>()?;
    let (records, facts): (Vec<_>, Vec<_>) =
        conversions.into_iter().map(|made| (made.record, (made.shapes, made.stats))).unzip();
    let written = writer.publish(&format!("warm-{first}-{}", records.len()), &records)?;
    Ok(written.into_iter().zip(facts).map(|(batch, (shapes, stats))| Converted::new(batch, &shapes, stats)).collect())
}

/// Folders of tiles and weights; an error means none: what is not seen is not deleted.
pub fn list_folders(root: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for kind in KINDS {
        let Ok(entries) = std::fs::read_dir(root.join(kind)) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Some(name) = entry.file_name().to_str()
            {
                found.push(format!("{kind}/{name}"));
            }
        }
    }
    found.sort_unstable();
    found
}
