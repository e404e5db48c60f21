//! The RLJob and what lies on the volume, made into one configuration.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use api::RLJob;
use checkpoint::Fingerprint;
use conductor::{DataFile, Found, RunConfig};
use control::{run_dir::RunDir, wire::RolloutConfig};
use rollout::{Dataset, Tokenizer};

use super::{
    Environment,
    rows::{Rows, data_file},
};

/// A generate call that takes longer is aborted and tried elsewhere.
const GENERATE_TIMEOUT_MS: u64 = 600_000;

/// Everything a conductor is started with.
pub struct Setup {
    /// The job as the manifest says it.
    pub job: RLJob,
    /// What was found on the volume.
    pub found: Found,
    /// Both, resolved.
    pub config: RunConfig,
    /// Texts.
    pub rows: Rows,
    /// Root of the volume.
    pub volume: PathBuf,
    /// The run's folder.
    pub run_dir: RunDir,
    /// Uid of this pod.
    pub pod_uid: String,
    /// The run's bearer token.
    pub token: String,
    /// The engines' bearer token.
    pub engine_token: Option<String>,
    /// The workers' bearer token.
    pub worker_token: String,
}

impl Setup {
    /// Reads the job at `config`, then the volume.
    pub fn read(config: &Path, environment: Environment) -> anyhow::Result<Self> {
        let Environment { identity, run, token, engine_token, worker_token, .. } = environment;
        let (volume, pod_uid) = (identity.volume, identity.uid);
        let text = std::fs::read(config).with_context(|| format!("reading {}", config.display()))?;
        let job: RLJob =
            serde_json::from_slice(&text).with_context(|| format!("{} is not an RLJob", config.display()))?;
        let job = job.defaulted();
        let spec = &job.spec;
        let Some((_, model)) = api::volume::parse_pvc(&spec.model.source) else {
            bail!("spec.model.source: {} is not pvc://CLAIM/PATH", spec.model.source);
        };
        let model_dir = volume.join(model);
        let tokenizer = Tokenizer::from_folder(&model_dir)?;
        let fingerprint = Fingerprint::of_folder(&model_dir)?;

        let (prompt_key, label_key) = (&spec.data.prompt_key, &spec.data.label_key);
        let train = Dataset::prompts(&volume.join(&spec.data.path), prompt_key, label_key)?;
        let data = data_file(&volume, &spec.data.path, [prompt_key, label_key], train.len())?;
        let mut held_out = None;
        if let Some(path) = &spec.data.eval_path {
            let rows = Dataset::prompts(&volume.join(path), prompt_key, label_key)?;
            let file = data_file(&volume, path, [prompt_key, label_key], rows.len())?;
            held_out = Some((rows, file));
        }
        let mut warm = None;
        if let Some(start) = &spec.warm_start {
            let keys = [&start.prompt_key, &start.completion_key];
            let rows = Dataset::supervised(&volume.join(&start.data), keys[0], keys[1])?;
            let file = data_file(&volume, &start.data, keys, rows.len())?;
            warm = Some((rows, file));
        }
        let stop_token_ids =
            spec.sampling.stop.iter().map(|text| stop_id(&tokenizer, text)).collect::<anyhow::Result<_>>()?;
        let file = |loaded: &DataFile| loaded.clone();
        let found = Found {
            run_dir: api::volume::run_dir(&run),
            run,
            model: format!("{}, tokenizer {}", fingerprint.model, fingerprint.tokenizer),
            data,
            held_out: held_out.as_ref().map(|(_, loaded)| file(loaded)),
            warm: warm.as_ref().map(|(_, loaded)| file(loaded)),
            stop_token_ids,
        };
        let config = RunConfig::resolve(&job, found.clone())?;
        let rows = Rows::new(tokenizer, train, held_out.map(|(rows, _)| rows), warm.map(|(rows, _)| rows));
        Ok(Self {
            config,
            rows,
            run_dir: RunDir::new(&volume, &found.run_dir),
            pod_uid,
            engine_token,
            worker_token: worker_token.unwrap_or_else(|| token.clone()),
            token,
            volume,
            job,
            found,
        })
    }

    /// The configuration that another spec of the same job gives.
    pub fn resolve(&self, spec: &serde_json::Value) -> Result<RunConfig, conductor::Error> {
        let bad = |what: String| conductor::Error::BadConfig { field: String::new(), what };
        let spec = serde_json::from_value(spec.clone()).map_err(|error| bad(error.to_string()))?;
        let job = RLJob { spec, ..self.job.clone() }.defaulted();
        RunConfig::resolve(&job, self.found.clone())
    }

    /// The model lies where it lay when this was read: the volume is not away.
    pub fn volume_is_there(&self) -> bool {
        self.volume.join(&self.config.frozen.model_dir).join("config.json").is_file()
    }

    /// What workers are told of the run.
    pub fn rollout(&self) -> RolloutConfig {
        RolloutConfig {
            model_dir: self.config.frozen.model_dir.clone(),
            reward: self.config.frozen.reward.clone(),
            engine_token: self.engine_token.clone(),
            generate_timeout_ms: GENERATE_TIMEOUT_MS,
        }
    }
}

fn stop_id(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<u32> {
    let ids = tokenizer.encode(text).with_context(|| format!("spec.sampling.stop: {text:?}"))?;
    match ids.as_slice() {
        [id] => Ok(*id),
        ids => {
            bail!("spec.sampling.stop: {text:?} is {} tokens of this tokenizer; a stop string must be one", ids.len())
        }
    }
}
