//! The native engine's process.

/// Serves until asked to stop.
pub async fn run(options: engine::EngineOptions) -> anyhow::Result<()> {
    Ok(engine::serve(options).await?)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        _options: engine::EngineOptions,
    }

    #[test]
    fn the_manifest_may_give_every_flag_that_the_operator_does_not_set() {
        let mut flags: Vec<String> = Line::command()
            .get_arguments()
            .filter_map(|flag| flag.get_long().map(|name| format!("--{name}")))
            .filter(|flag| flag != "--help" && !api::OPERATOR_ENGINE_FLAGS.contains(&flag.as_str()))
            .collect();
        let mut known: Vec<&str> = api::NATIVE_ENGINE_FLAGS.to_vec();
        flags.sort();
        known.sort_unstable();
        assert_eq!(flags, known);
    }
}
