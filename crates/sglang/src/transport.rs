//! How new weights reach an engine.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};

use crate::{Cause, Engine, EngineError, PauseMode, WeightUpdate};

/// Weights that were written and are to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The version they become.
    pub version: u64,
    /// Folder as the engines see it.
    pub folder: String,
}

/// Brings a publication to engines, in three steps so that the pause between the first and the last is short.
pub trait WeightTransport: Send + Sync {
    /// Whatever can be done while the engine still generates.
    fn prepare<'a>(
        &'a self,
        engine: &'a dyn Engine,
        publication: &'a Publication,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Swaps the weights. The engine is paused.
    fn apply<'a>(
        &'a self,
        engine: &'a dyn Engine,
        publication: &'a Publication,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Asks the engine which version it serves, and accepts only this one.
    fn acknowledge<'a>(
        &'a self,
        engine: &'a dyn Engine,
        publication: &'a Publication,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        async move {
            let info = engine.model_info(limit).await?;
            if info.version() == publication.version {
                return Ok(());
            }
            let why = format!("it serves version {:?} after an update to {}", info.weight_version, publication.version);
            Err(EngineError::BadReply { url: engine.url().to_owned(), cause: Cause::Versions, why })
        }
        .boxed()
    }
}

/// A folder of safetensors on the volume that both sides mount; the engines read it themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskTransport;

impl WeightTransport for DiskTransport {
    fn prepare<'a>(
        &'a self,
        _: &'a dyn Engine,
        _: &'a Publication,
        _: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        async { Ok(()) }.boxed()
    }

    fn apply<'a>(
        &'a self,
        engine: &'a dyn Engine,
        publication: &'a Publication,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        async move {
            let update = WeightUpdate {
                model_path: publication.folder.clone(),
                version: publication.version,
                // Keys and values computed by other weights must not be met by new requests.
                flush_cache: true,
            };
            engine.update_weights(&update, limit).await
        }
        .boxed()
    }
}

/// How long each part of an update may take.
#[derive(Clone, Copy, Debug)]
pub struct UpdateLimits {
    /// A pause is answered when nothing runs any more.
    pub pause: Duration,
    /// Loading weights is reading a folder.
    pub load: Duration,
    /// Everything else an engine does at once.
    pub short: Duration,
}

/// Brings an engine to `publication`: prepare while it still generates, pause, swap, and believe only what it says it serves.
/// It stays paused; whoever is told `Ok` may let it go on.
///
/// # Errors
/// Of the first part that failed. Without the engine's answer to the pause no weight is touched: it may still be decoding.
pub async fn update_engine(
    engine: &dyn Engine,
    transport: &dyn WeightTransport,
    publication: &Publication,
    limits: UpdateLimits,
) -> Result<(), EngineError> {
    transport.prepare(engine, publication, limits.load).await?;
    // Requests in flight are computed again with the new weights; in Sync mode there are none.
    engine.pause(PauseMode::Retract, limits.pause).await?;
    transport.apply(engine, publication, limits.load).await?;
    transport.acknowledge(engine, publication, limits.short).await
}
