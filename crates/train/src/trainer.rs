//! The state of a rank, and how it obeys orders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::wire::{ClaimReply, Order, Phase, Report, Start, TrainConfig};
use models::{GradStore, Model, ModelConfig, ModelOptions};
use parallel::{AdamWConfig, DistOptimizer, FlatParam, Groups};
use rl::OptimizerConfig;
use straw::{RealFs, Store};
use tensor::Backend;

use crate::error::Error;
use crate::faults::{Faults, Moment};
use crate::reference::Origin;
use crate::volume::Volume;

/// One rank of an attempt: weights, gradients, optimizer, and where it stands.
pub struct Trainer {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) groups: Groups,
    pub(crate) config: TrainConfig,
    pub(crate) trainer_epoch: u64,
    /// Folder of the model.
    pub(crate) model_dir: PathBuf,
    pub(crate) volume: Volume,
    pub(crate) store: Store,
    pub(crate) model: Model,
    pub(crate) grads: GradStore,
    pub(crate) optimizer: DistOptimizer,
    pub(crate) phase: Phase,
    /// Where the weights the RL phase began with come from; known once it has begun.
    pub(crate) reference: Option<Origin>,
    /// They themselves, when the KL term needs them.
    reference_model: Option<Model>,
    /// Digest of the weights, while it is known.
    pub(crate) held: Option<String>,
    pub(crate) faults: Faults,
}

impl Trainer {
    /// Builds the model and fills it as the claim says. Collective.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Mismatch`] for what the user must mend, others for what may pass.
    pub(crate) fn start(
        groups: Groups,
        backend: Arc<dyn Backend>,
        root: &Path,
        volume: Volume,
        faults: Faults,
        claim: ClaimReply,
    ) -> Result<Self, Error> {
        let ClaimReply { trainer_epoch, start, config, .. } = claim;
        config.loss.validate()?;
        config.optimizer.validate()?;
        config.warm_optimizer.iter().try_for_each(OptimizerConfig::validate)?;
        let model_dir = root.join(&config.model_dir);
        if let Some(refusal) = straw::mount_probe::probe(&volume.run_dir).ok().and_then(|report| report.refusal()) {
            return Err(Error::Config(format!("the run's volume is not safe: {refusal}")));
        }
        let store = Store::open(RealFs::new(), volume.run_dir.join("packs"))?;
        let model = build_model(&backend, &groups, &model_dir, config.recompute)?;
        let grads = model.new_grads()?;
        // Whether the warm start is over is for the commit to say; without one, a run that has a warm start begins with it.
        let phase = if config.warm_optimizer.is_some() { Phase::WarmStart } else { Phase::Rl };
        let optimizer = new_optimizer(&backend, &groups, &model, &config, phase)?;
        let mut trainer = Self {
            backend,
            groups,
            config,
            trainer_epoch,
            model_dir,
            volume,
            store,
            model,
            grads,
            optimizer,
            phase,
            reference: None,
            reference_model: None,
            held: None,
            faults,
        };
        match &start {
            Start::Commit(commit) => trainer.load_commit(commit)?,
            Start::Pretrained => {
                trainer.load_pretrained()?;
                if phase == Phase::Rl {
                    trainer.reference = Some(Origin::ModelFolder);
                }
            }
            Start::Random { seed } => {
                trainer.model.init_random(*seed)?;
                if phase == Phase::Rl {
                    trainer.reference = Some(Origin::Random { seed: *seed });
                }
            }
        }
        if !matches!(start, Start::Commit(_)) {
            // The masters were taken from weights that were not there yet.
            trainer.optimizer =
                new_optimizer(&trainer.backend, &trainer.groups, &trainer.model, &trainer.config, phase)?;
        }
        trainer.load_reference()?;
        Ok(trainer)
    }

    /// Does what an order says. Collective: every rank obeys the same order, and all get the same report.
    ///
    /// # Errors
    /// Any of [`Error`]; the attempt is over then.
    pub(crate) fn obey(&mut self, order: &Order) -> Result<Report, Error> {
        match order {
            Order::Train(order) => Ok(Report::Trained(Box::new(self.learn(order)?))),
            Order::Save { step, folder, .. } => {
                self.writes_folder("writing tiles", folder, |trainer| trainer.save(*step, folder))
            }
            Order::Publish { folder, score, .. } => {
                self.writes_folder("writing weights", folder, |trainer| trainer.publish(folder, score.as_ref()))
            }
            Order::BeginRl => self.begin_rl(),
            Order::Export { folder } => self.on_volume("writing the final model", |trainer| trainer.export(folder)),
            Order::Stop { .. } => Ok(Report::Stopping),
            Order::Finish => Ok(Report::Finished),
        }
    }

    /// See [`Volume::takes`].
    fn on_volume<T>(&mut self, what: &str, mut act: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.volume.clone().takes(what, || act(self))
    }

    /// The same for a folder that is written once. A try may have given it its name before it failed: nobody was told of it,
    /// and what a dying volume kept of it is not known, so the next try begins anew.
    fn writes_folder<T>(
        &mut self,
        what: &str,
        folder: &str,
        mut act: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut again = false;
        self.on_volume(what, |trainer| {
            if std::mem::replace(&mut again, true) {
                trainer.remove(&trainer.volume.run_dir.join(folder))?;
            }
            act(trainer)
        })
    }

    /// Tells the fault hooks what is being done.
    pub(crate) fn faults_now(&mut self, moment: Moment) {
        self.faults.now(moment);
    }

    /// The phase's optimizer settings.
    pub(crate) fn optimizer_config(&self) -> &OptimizerConfig {
        optimizer_config(&self.config, self.phase)
    }

    /// Gives the optimizer the phase's settings, after a load.
    pub(crate) fn settle_optimizer(&mut self) {
        *self.optimizer.config_mut() = adamw(&self.config, self.phase);
    }

    /// The warm start is over. Obeyed again (after a restart between this order and the first update) it changes nothing.
    fn begin_rl(&mut self) -> Result<Report, Error> {
        if self.phase == Phase::Rl {
            if self.optimizer.optimizer_steps() > 0 {
                let done = self.optimizer.optimizer_steps();
                return Err(Error::Order { what: format!("the RL phase to begin, but it has made {done} updates") });
            }
            return Ok(Report::RlBegun);
        }
        self.on_volume("writing the reference weights", Self::keep_reference)?;
        self.phase = Phase::Rl;
        self.optimizer = new_optimizer(&self.backend, &self.groups, &self.model, &self.config, self.phase)?;
        self.load_reference()?;
        Ok(Report::RlBegun)
    }

    /// The reference weights, if the loss needs them.
    ///
    /// # Errors
    /// [`Error::Order`] when they are needed before the RL phase has begun.
    pub(crate) fn reference_model(&self) -> Result<Option<&Model>, Error> {
        if self.phase != Phase::Rl || !self.config.loss.needs_reference() {
            return Ok(None);
        }
        match &self.reference_model {
            Some(model) => Ok(Some(model)),
            None => Err(Error::Order { what: "a KL term without reference weights".to_owned() }),
        }
    }

    fn load_reference(&mut self) -> Result<(), Error> {
        if self.phase != Phase::Rl || !self.config.loss.needs_reference() {
            return Ok(());
        }
        let model = build_model(&self.backend, &self.groups, &self.model_dir, false)?;
        self.fill_reference(&model)?;
        self.reference_model = Some(model);
        Ok(())
    }
}

fn optimizer_config(config: &TrainConfig, phase: Phase) -> &OptimizerConfig {
    match (phase, &config.warm_optimizer) {
        (Phase::WarmStart, Some(warm)) => warm,
        _ => &config.optimizer,
    }
}

fn adamw(config: &TrainConfig, phase: Phase) -> AdamWConfig {
    let c = optimizer_config(config, phase);
    AdamWConfig {
        beta1: c.beta1,
        beta2: c.beta2,
        eps: c.eps,
        weight_decay: c.weight_decay,
        max_grad_norm: (c.clip_grad_norm > 0.0).then_some(c.clip_grad_norm),
        ..AdamWConfig::default()
    }
}

fn build_model(backend: &Arc<dyn Backend>, groups: &Groups, model_dir: &Path, recompute: bool) -> Result<Model, Error> {
    let path = model_dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let bad = |e: models::Error| Error::Config(format!("{}: {e}", path.display()));
    let config = ModelConfig::from_json(&text).map_err(bad)?;
    let options = ModelOptions { recompute, ..ModelOptions::default() };
    Ok(Model::new(backend.clone(), groups.tp.clone(), config, options)?)
}

fn new_optimizer(
    backend: &Arc<dyn Backend>,
    groups: &Groups,
    model: &Model,
    config: &TrainConfig,
    phase: Phase,
) -> Result<DistOptimizer, Error> {
    Ok(DistOptimizer::new(
        backend.clone(),
        groups.dp.clone(),
        groups.tp.clone(),
        &flat_params(model),
        model.params().flat(),
        adamw(config, phase),
    )?)
}

/// What the optimizer must know of the model's parameters.
fn flat_params(model: &Model) -> Vec<FlatParam> {
    // Gradients that are partial on a tensor parallel rank are summed by Model::finish_grads before the optimizer sees them.
    let params = model.params();
    let specs = params.specs().iter().zip(&params.layout().entries);
    specs
        .map(|(spec, entry)| FlatParam {
            name: entry.name.clone(),
            range: entry.range(),
            decay: entry.weight_decay,
            replicated: spec.shard == nn::Shard::Replicated,
        })
        .collect()
}
