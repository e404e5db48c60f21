//! Engines: who is live, who is at the current version, and publication in two phases.

use control::wire::EngineAddress;

use crate::{
    Command, Conductor, Error, PUBLISH_PATIENCE_MS, Record, Step, Unreached,
    memory::{EngineSeen, backoff_ms},
};

/// Probes in a row that a slow engine may miss.
const FAILED_PROBES_MAX: u32 = 5;

impl Conductor {
    pub(crate) fn on_engines(&mut self, named: &[EngineAddress]) {
        self.memory.engines.retain(|url, _| named.iter().any(|engine| engine.url == *url));
        for engine in named {
            self.memory.engines.entry(engine.url.clone()).or_insert_with(|| EngineSeen::new(engine.name.clone()));
        }
    }

    pub(crate) fn on_probed(&mut self, url: &str, result: Result<u64, Unreached>) {
        let Some(engine) = self.memory.engines.get_mut(url) else { return };
        match result {
            Ok(version) => {
                engine.failed_probes = 0;
                if !engine.live {
                    engine.live = true;
                    engine.retry_ms = 0;
                }
                // While it loads, what it serves is about to change.
                if engine.updating.is_none() {
                    if engine.version != Some(version) {
                        // It was restarted, or commanded by somebody else: whatever it was told to do, it forgot.
                        engine.open = false;
                    }
                    engine.version = Some(version);
                }
            }
            Err(unreached) => {
                engine.failed_probes += 1;
                if unreached.gone || engine.failed_probes >= FAILED_PROBES_MAX {
                    engine.live = false;
                    engine.open = false;
                    engine.version = None;
                    engine.problem = Some(unreached.message);
                }
            }
        }
    }

    pub(crate) fn on_updated(&mut self, url: &str, version: u64, result: Result<(), String>, now: u64) {
        let Some(engine) = self.memory.engines.get_mut(url) else { return };
        if engine.updating != Some(version) {
            return;
        }
        engine.updating = None;
        match result {
            Ok(()) => {
                engine.live = true;
                engine.version = Some(version);
                engine.failed_updates = 0;
                engine.problem = None;
            }
            Err(problem) => {
                engine.version = None;
                engine.failed_updates += 1;
                engine.retry_ms = now + backoff_ms(engine.failed_updates);
                engine.problem = Some(problem);
            }
        }
    }

    pub(crate) fn on_resumed(&mut self, url: &str, result: Result<(), String>, now: u64) {
        let Some(engine) = self.memory.engines.get_mut(url) else { return };
        if let Err(problem) = result {
            engine.open = false;
            engine.failed_updates += 1;
            engine.retry_ms = now + backoff_ms(engine.failed_updates);
            engine.problem = Some(problem);
        }
    }

    /// Brings every live engine to the version it should serve. While a publication is under way that is the new one, and
    /// nobody generates before it is journaled; else it is the current one. An engine that returns empty or stale takes the
    /// same path, in the background, and is admitted at its end.
    pub(crate) fn drive_engines(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        let state = &self.state;
        let publishing = state.publishing.as_ref().map(|publishing| (publishing.version, publishing.folder.clone()));
        let current = state.versions.get(&state.version).map(|version| (state.version, version.folder.clone()));
        let intent = publishing.is_some();
        let Some((target, folder)) = publishing.or(current) else { return Ok(()) };
        if intent && self.memory.publication.map(|(version, _)| version) != Some(target) {
            self.memory.publication = Some((target, now));
            // Earlier failures say nothing about this version.
            for engine in self.memory.engines.values_mut() {
                (engine.failed_updates, engine.retry_ms) = (0, 0);
            }
        }
        for (url, engine) in &mut self.memory.engines {
            if !engine.live || engine.updating.is_some() || engine.retry_ms > now {
                continue;
            }
            if engine.version != Some(target) {
                engine.updating = Some(target);
                engine.open = false;
                let (url, folder) = (url.clone(), folder.clone());
                out.commands.push(Command::UpdateEngine { url, version: target, folder });
            } else if !intent && !engine.open {
                engine.open = true;
                out.commands.push(Command::ResumeEngine { url: url.clone() });
            }
        }
        if intent { self.conclude_publication(target, now, out) } else { Ok(()) }
    }

    /// The version advances when every live engine has acknowledged it, at least one; one that fails or takes too long is
    /// left behind, to be brought up later.
    fn conclude_publication(&mut self, target: u64, now: u64, out: &mut Step) -> Result<(), Error> {
        let Some((_, since)) = self.memory.publication else { return Ok(()) };
        let patient = now < since + PUBLISH_PATIENCE_MS;
        let live = || self.memory.engines.values().filter(|engine| engine.live);
        let acknowledged = |engine: &EngineSeen| engine.updating.is_none() && engine.version == Some(target);
        if live().any(|engine| !acknowledged(engine) && engine.failed_updates == 0 && patient) {
            return Ok(());
        }
        let engines: Vec<String> =
            live().filter(|engine| acknowledged(engine)).map(|engine| engine.name.clone()).collect();
        if engines.is_empty() {
            return Ok(());
        }
        let began = self.state.publishing.as_ref().map_or(now, |publishing| publishing.since_ms);
        let record =
            Record::VersionAdvanced { version: target, engines, publish_ms: now.saturating_sub(began), time_ms: now };
        self.emit(out, record)?;
        self.memory.publication = None;
        Ok(())
    }
}
