//! The native engine's process.

/// Serves until asked to stop.
pub async fn run(options: engine::EngineOptions) -> anyhow::Result<()> {
    Ok(engine::serve(options).await?)
}
