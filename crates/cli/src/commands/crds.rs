//! `thresh crds`

use anyhow::{Context, Result};

use crate::{args::Crds, display::say};

/// Writes the CustomResourceDefinitions.
pub fn crds(args: Crds) -> Result<u8> {
    let crds = api::crds();
    match args.out {
        None => {
            let all: Vec<String> = crds.into_iter().map(|(_, yaml)| yaml.trim_end().to_owned()).collect();
            say(&all.join("\n---\n"));
        }
        Some(folder) => {
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
            for (file, yaml) in crds {
                let path = folder.join(file);
                std::fs::write(&path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    Ok(0)
}
