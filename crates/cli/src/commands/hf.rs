//! `thresh hf export`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use api::{manifest::Kind, volume::parse_pvc};
use checkpoint::{Checkpoint, ExportTypes, FILE_BYTES_MAX, PublishTo, RealDisk, hf as folder_of};
use local::{preflight, status_file::StatusFile};
use models::{ModelConfig, param_specs};
use tensor::{CpuBackend, DType};

use crate::{
    args::{Hf, HfExport},
    display::say,
    find_run::run_dir_of,
};

/// Writes a commit's weights as a Hugging Face folder.
pub fn hf(command: Hf) -> Result<u8> {
    let Hf::Export(args) = command;
    if args.out.exists() {
        bail!(
            "--out {}: is there already, and nothing is written over\n  fix: name another folder with --out, or remove this one",
            args.out.display()
        );
    }
    let Source { tiles, digest, model } = source(&args)?;
    let config_path = model.join("config.json");
    let text = std::fs::read_to_string(&config_path).map_err(|reason| {
        anyhow!(
            "cannot read {}: {reason}\n  fix: name the folder with the model's config.json and tokenizer with --model DIR",
            config_path.display()
        )
    })?;
    let config = ModelConfig::from_json(&text).with_context(|| config_path.display().to_string())?;
    let checkpoint = Checkpoint::open(&tiles, digest.as_deref())?;
    let backend = CpuBackend::default();
    // Tensors keep the types of the folder the run began with; a model that began at random is written as it was trained.
    let types = if folder_of::has_weights(&model) {
        ExportTypes::of_folder(&folder_of::Folder::open(&model)?, DType::F32)
    } else {
        ExportTypes::All(DType::F32)
    };
    let to = PublishTo { folder: &args.out, config_from: &model, types, file_bytes_max: FILE_BYTES_MAX };
    checkpoint.export(&RealDisk, &backend, &param_specs(&config), &to)?;
    say(&format!("{} from {}", args.out.display(), tiles.display()));
    Ok(0)
}

struct Source {
    tiles: PathBuf,
    digest: Option<String>,
    model: PathBuf,
}

/// From a state folder: the last commit its conductor told of. From a folder of tiles: those, with the model that is named.
fn source(args: &HfExport) -> Result<Source> {
    if args.folder.join(checkpoint::INDEX_FILE).is_file() {
        let Some(model) = args.model.clone() else {
            bail!(
                "{}: tiles hold weights, but neither config.json nor tokenizer\n  fix: name the folder the run began with: \
                 thresh hf export {} --out {} --model VOLUME/sort5/model",
                args.folder.display(),
                args.folder.display(),
                args.out.display()
            );
        };
        return Ok(Source { tiles: args.folder.clone(), digest: None, model });
    }
    let Some(status) = StatusFile::read(&args.folder)? else {
        bail!(
            "{}: neither a state folder of a run nor a folder of tiles\n  fix: name the folder that --state named \
             (runs/NAME by default), or a folder tiles/… of a run",
            args.folder.display()
        );
    };
    let Some(commit) = status.progress.as_ref().and_then(|progress| progress.commit.clone()) else {
        bail!(
            "the run {} has no commit yet, so there are no weights to export\n  fix: let it run to its first one \
             (spec.checkpoint.everySteps, or Ctrl-C); `thresh status {}` shows where it is",
            status.name,
            args.folder.display()
        );
    };
    let tiles = run_dir_of(&status)?.join(&commit.folder);
    let model = match args.model.clone() {
        Some(model) => model,
        None => model_of(&args.folder, &status.volume)?,
    };
    Ok(Source { tiles, digest: Some(commit.index_digest), model })
}

fn model_of(state: &Path, volume: &Path) -> Result<PathBuf> {
    let source = preflight::stored(state)?.into_iter().find_map(|one| match one {
        Kind::RLJob(job) => Some(job.spec.model.source),
        Kind::ServingCluster(_) | Kind::RolloutPool(_) => None,
    });
    let source = source.context("the state folder holds no RLJob")?;
    let (_, path) = parse_pvc(&source).with_context(|| format!("{source}: not on a volume"))?;
    Ok(volume.join(path))
}
