//! What a rank reads and writes: commits, model folders, published weights, the reference.

use std::path::{Path, PathBuf};

use checkpoint::{ExportTypes, FILE_BYTES_MAX, Fingerprint, Position, PublishTo, Rng, hf};
use control::run_dir::REFERENCES;
use control::wire::{CommitRef, Phase, Report, ScoreSet};
use models::Model;
use serde::{Deserialize, Serialize};
use tensor::ops::Nonfinite;
use tensor::{DType, Stream, Tag, Tensor};

use crate::error::Error;
use crate::faults::{FaultyDisk, Point, double_one_weight};
use crate::reference::Origin;
use crate::space;
use crate::trainer::Trainer;

/// What a trainer keeps in a checkpoint beside tensors and optimizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    phase: Phase,
    reference: Option<Origin>,
}

impl Trainer {
    /// Digest of the weights held; computed, by all ranks together, when it is not known.
    pub(crate) fn weights_digest(&mut self) -> Result<&str, Error> {
        let digest = match self.held.take() {
            Some(digest) => digest,
            None => digest_of(self, &self.model)?,
        };
        Ok(self.held.insert(digest))
    }

    /// Weights, optimizer and phase of a commit, whatever layout saved it.
    pub(crate) fn load_commit(&mut self, commit: &CommitRef) -> Result<(), Error> {
        let folder = self.volume.run_dir.join(&commit.folder);
        let meta = checkpoint::load(
            &folder,
            Some(&commit.index_digest),
            &self.fingerprint()?,
            &self.groups,
            &*self.backend,
            self.model.params(),
            &mut self.optimizer,
        )?;
        let differs = |what: String| Error::Mismatch { folder: folder.display().to_string(), what };
        if meta.weights_digest != commit.weights_digest {
            return Err(differs(format!(
                "its weights have digest {}, the commit says {}; the folder belongs to another commit",
                meta.weights_digest, commit.weights_digest
            )));
        }
        let kept: Kept = serde_json::from_value(meta.position.extra)
            .map_err(|e| differs(format!("its meta.json was not written by this trainer: {e}")))?;
        if (kept.phase == Phase::WarmStart) != commit.warming {
            return Err(differs(format!("it was saved in the {:?} phase, the commit says otherwise", kept.phase)));
        }
        self.phase = kept.phase;
        self.reference = kept.reference;
        self.settle_optimizer();
        self.held = Some(meta.weights_digest);
        Ok(())
    }

    /// The model folder's own weights.
    pub(crate) fn load_pretrained(&mut self) -> Result<(), Error> {
        load_folder(self, &self.model_dir, &self.model)
    }

    /// What to tell people when the volume cannot hold a checkpoint.
    pub(crate) fn short_of_space(&self) -> Option<String> {
        space::shortage(checkpoint::bytes_of_save(self.model.params()), space::available(&self.volume.run_dir)?)
    }

    /// Weights that are no numbers must not become a commit, which would cost the last good one its place, nor reach engines.
    fn demand_finite(&self) -> Result<(), Error> {
        let count = Tensor::empty(&*self.backend, DType::I32, &[1], Tag::Work)?;
        let bad: Vec<&str> = self
            .model
            .params()
            .layout()
            .entries
            .iter()
            .map(|entry| {
                let x = self.model.params().flat().flat(entry.offset, entry.rect.numel())?;
                self.backend.nonfinite(Stream::COMPUTE, &Nonfinite { x: &x, out: &count })?;
                let mut bytes = [0; 4];
                self.backend.download(Stream::COMPUTE, &count, &mut bytes)?;
                Ok((i32::from_ne_bytes(bytes) > 0).then_some(entry.name.as_str()))
            })
            .filter_map(Result::transpose)
            .collect::<Result<_, Error>>()?;
        match bad.first() {
            None => Ok(()),
            Some(first) => Err(Error::NotFinite { first: (*first).to_owned(), others: bad.len() - 1 }),
        }
    }

    /// Tiles of weights and optimizer.
    pub(crate) fn save(&mut self, step: u64, folder: &str) -> Result<Report, Error> {
        self.demand_finite()?;
        let kept = Kept { phase: self.phase, reference: self.reference.clone() };
        let position = Position {
            step,
            schedule_position: self.optimizer.optimizer_steps(),
            // Training draws nothing: initialisation is a function of its seed, and there is no dropout.
            rng: Rng::default(),
            fingerprint: self.fingerprint()?,
            extra: serde_json::to_value(kept).map_err(|e| Error::Config(format!("meta.json: {e}")))?,
        };
        let saved = checkpoint::save(
            &FaultyDisk::new(&self.faults, Point::TilesHalf),
            &self.volume.run_dir.join(folder),
            &self.groups,
            &*self.backend,
            self.model.params(),
            &self.optimizer,
            &position,
        )?;
        self.held = Some(saved.weights_digest.clone());
        self.faults.at(Point::TilesWritten)?;
        Ok(Report::Tiles { index_digest: saved.index_sha256, weights_digest: saved.weights_digest, bytes: saved.bytes })
    }

    /// A model folder for the engines, in the type the trainer computes in, so that both hold the same bits.
    pub(crate) fn publish(&mut self, folder: &str, score: Option<&ScoreSet>) -> Result<Report, Error> {
        let folder = self.volume.run_dir.join(folder);
        self.demand_finite()?;
        let weights_digest = self.weights_digest()?.to_owned();
        let scores = score.map(|set| self.score_set(set)).transpose()?;
        self.write_folder(&folder)?;
        if self.groups.world.rank() == 0 && self.faults.flips_weight() {
            double_one_weight(&folder)?;
        }
        self.faults.at(Point::WeightsWritten)?;
        Ok(Report::Weights { weights_digest, bytes: bytes_of(&folder)?, scores })
    }

    /// The final model folder. Its name is the run's, not an attempt's, so one that an earlier attempt left is kept if it
    /// holds these very weights, and replaced if not.
    pub(crate) fn export(&mut self, folder: &str) -> Result<Report, Error> {
        let folder = self.volume.run_dir.join(folder);
        let weights_digest = self.weights_digest()?.to_owned();
        let fresh = beside(&folder, &format!("e{}", self.trainer_epoch));
        self.remove(&fresh)?;
        self.write_folder(&fresh)?;
        self.on_rank_0(|| {
            if folder.exists() {
                if hf::folder_digest(&folder).is_ok_and(|digest| digest == weights_digest) {
                    return remove_folder(&fresh);
                }
                let old = beside(&folder, &format!("old-e{}", self.trainer_epoch));
                remove_folder(&old)?;
                std::fs::rename(&folder, &old).map_err(Error::io(&folder))?;
                std::fs::rename(&fresh, &folder).map_err(Error::io(&fresh))?;
                remove_folder(&old)?;
            } else {
                std::fs::rename(&fresh, &folder).map_err(Error::io(&fresh))?;
            }
            sync_parent(&folder)
        })?;
        Ok(Report::Exported { bytes: bytes_of(&folder)? })
    }

    /// Writes the weights the RL phase begins with to where a later attempt finds them ([`crate::reference`]).
    pub(crate) fn keep_reference(&mut self) -> Result<(), Error> {
        let digest = self.weights_digest()?.to_owned();
        let folder = reference_folder(&self.volume.run_dir, &digest);
        let fresh = beside(&folder, &format!("e{}", self.trainer_epoch));
        self.on_rank_0(|| {
            let all = self.volume.run_dir.join(REFERENCES);
            match std::fs::create_dir(&all) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(&all)(e)),
                _ => Ok(()),
            }
        })?;
        self.remove(&fresh)?;
        self.write_folder(&fresh)?;
        self.on_rank_0(|| {
            // A folder of that name holds the same weights. Renaming onto one that is not empty fails, so of two attempts
            // that get here at once, one keeps its folder.
            if std::fs::rename(&fresh, &folder).is_err() {
                if !folder.exists() {
                    std::fs::rename(&fresh, &folder).map_err(Error::io(&fresh))?;
                }
                remove_folder(&fresh)?;
            }
            sync_parent(&folder)
        })?;
        self.reference = Some(Origin::Kept { digest });
        Ok(())
    }

    /// Fills `model` with the reference weights.
    pub(crate) fn fill_reference(&self, model: &Model) -> Result<(), Error> {
        match &self.reference {
            None => Err(Error::Config(
                "the KL term needs the weights the RL phase began with, and this run's commits do not say which they are"
                    .to_owned(),
            )),
            Some(Origin::ModelFolder) => load_folder(self, &self.model_dir, model),
            Some(Origin::Random { seed }) => Ok(model.init_random(*seed)?),
            Some(Origin::Kept { digest }) => {
                let folder = reference_folder(&self.volume.run_dir, digest);
                load_folder(self, &folder, model)?;
                let got = digest_of(self, model)?;
                if got == *digest {
                    return Ok(());
                }
                let what = format!("the reference weights have digest {got}, their name says {digest}; restore the folder");
                Err(Error::Mismatch { folder: folder.display().to_string(), what })
            }
        }
    }

    fn fingerprint(&self) -> Result<Fingerprint, Error> {
        Ok(Fingerprint::of_folder(&self.model_dir)?)
    }

    /// Collective: all weights as a model folder.
    fn write_folder(&self, folder: &Path) -> Result<(), Error> {
        let to = PublishTo {
            folder,
            config_from: &self.model_dir,
            types: ExportTypes::All(self.model.params().dtype()),
            file_bytes_max: FILE_BYTES_MAX,
        };
        let disk = FaultyDisk::new(&self.faults, Point::WeightsHalf);
        Ok(checkpoint::publish(&disk, &to, &self.groups, &*self.backend, self.model.params())?)
    }

    pub(crate) fn remove(&self, folder: &Path) -> Result<(), Error> {
        self.on_rank_0(|| remove_folder(folder))
    }

    /// Rank 0 does it, the others wait for it, and fail if it does.
    fn on_rank_0(&self, act: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let done = if self.groups.world.rank() == 0 { act() } else { Ok(()) };
        let problem = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let problem = self.groups.world.broadcast_bytes(problem.into_bytes(), 0)?;
        done?;
        if problem.is_empty() {
            return Ok(());
        }
        Err(checkpoint::Error::Rank { rank: 0, what: String::from_utf8_lossy(&problem).into_owned() }.into())
    }
}

fn reference_folder(run_dir: &Path, digest: &str) -> PathBuf {
    run_dir.join(REFERENCES).join(digest)
}

fn digest_of(trainer: &Trainer, model: &Model) -> Result<String, Error> {
    let owned = trainer.optimizer.owned().map(|piece| piece.flat.clone());
    Ok(checkpoint::weights_digest(&*trainer.groups.world, &*trainer.backend, model.params(), owned)?)
}

fn load_folder(trainer: &Trainer, folder: &Path, model: &Model) -> Result<(), Error> {
    Ok(hf::load_weights(&hf::Folder::open(folder)?, &*trainer.backend, model.params())?)
}

fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn remove_folder(folder: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(folder)(e)),
        _ => Ok(()),
    }
}

fn sync_parent(folder: &Path) -> Result<(), Error> {
    let parent = folder.parent().unwrap_or(folder);
    std::fs::File::open(parent).and_then(|f| f.sync_all()).map_err(Error::io(parent))
}

/// Bytes of a folder's files.
fn bytes_of(folder: &Path) -> Result<u64, Error> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        bytes += entry.metadata().map_err(Error::io(entry.path()))?.len();
    }
    Ok(bytes)
}
