//! The loop of a rank: rank 0 asks the conductor, every rank obeys, rank 0 reports.
//!
//! One turn is the same sequence of collectives on every rank, whatever happens: all tell whether they were asked to end,
//! rank 0 shares the order (or that there is none yet), all carry it out. So no rank can be left waiting in a collective
//! that another never enters, and a rank that fails ends the others' waits by leaving the world.

use std::path::PathBuf;
use std::sync::Arc;

use comm::Group;
use control::wire::{ClaimReply, ClaimRequest, Layout, Order, Phase, Report, Work};
use parallel::{Grid, Groups};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tensor::Backend;

use crate::error::Error;
use crate::failure::{Failure, describe};
use crate::faults::{Faults, Moment, Point};
use crate::link::{Link, LinkConfig};
use crate::stop::Stop;
use crate::trainer::Trainer;
use crate::volume::{Volume, Waiting};

/// What a rank is made of.
pub struct RankConfig {
    /// All ranks of the attempt; nothing is split from it yet.
    pub world: Group,
    /// How they are laid out.
    pub layout: Layout,
    /// This rank's device.
    pub backend: Arc<dyn Backend>,
    /// Root of the volume.
    pub volume: PathBuf,
    /// The attempt, for the log.
    pub attempt: u64,
    /// Faults ordered by a test.
    pub faults: Faults,
    /// Set by SIGTERM: the attempt ends at the end of the order at hand.
    pub stop: Stop,
}

/// What rank 0 has besides.
pub struct Claimant {
    /// The line to the conductor.
    pub link: LinkConfig,
    /// Its claim.
    pub request: ClaimRequest,
}

/// How a rank ends when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `finished` is journaled.
    Finished,
    /// The conductor ordered a stop.
    Stopped,
}

/// What the loop tells its observer as it goes.
pub enum Event<'a> {
    /// The claim was answered.
    Claimed(&'a ClaimReply),
    /// The volume cannot hold a checkpoint. Rank 0 only.
    ShortOfSpace(&'a str),
    /// Weights and optimizer are in memory.
    Loaded {
        /// Digest of the weights.
        weights_digest: &'a str,
    },
    /// No order yet, and why. Rank 0 only.
    Waiting(&'a str),
    /// An order begins.
    Ordered(&'a Work),
    /// An order is done and, on rank 0, reported.
    Done {
        /// Its number.
        seq: u64,
        /// What was reported.
        report: &'a Report,
    },
}

/// Runs a rank to its end. `claimant` is rank 0's, and only rank 0's.
///
/// # Errors
/// [`Failure`], which says what this process should exit with. The other ranks are told by the loss of this one.
pub fn run(
    config: RankConfig,
    claimant: Option<Claimant>,
    observer: &mut dyn FnMut(Event<'_>),
) -> Result<Ended, Failure> {
    let rank = config.world.world_rank();
    if (rank == 0) != claimant.is_some() {
        let error = Error::Config("rank 0 claims, and nobody else".to_owned());
        return Err(Failure::early(rank, error));
    }
    let RankConfig { world, layout, backend, volume, attempt, faults, stop } = config;
    let groups = groups(world, layout).map_err(|error| Failure::early(rank, error))?;
    let mut state =
        Loop { groups, backend, volume, attempt, faults, stop, waiting: Waiting::default(), link: None, during: None };
    let result = state.go(claimant, observer);
    result.map_err(|error| {
        // What the pulse learnt is the cause; the broken collective is its consequence.
        let superseded = state.link.as_ref().and_then(Link::superseded).map(Error::Superseded);
        Failure { rank, during: state.during.take(), error: Box::new(superseded.unwrap_or(error)) }
    })
}

fn groups(world: Group, layout: Layout) -> Result<Groups, Error> {
    let Layout { dp, tp, pp, cp } = layout;
    let grid = Grid::new(parallel::Layout { dp, tp, pp, cp, ..parallel::Layout::default() })?;
    Ok(Groups::new(world, grid)?)
}

struct Loop {
    groups: Groups,
    backend: Arc<dyn Backend>,
    volume: PathBuf,
    attempt: u64,
    faults: Faults,
    stop: Stop,
    waiting: Waiting,
    link: Option<Link>,
    during: Option<String>,
}

impl Loop {
    fn go(&mut self, claimant: Option<Claimant>, observer: &mut dyn FnMut(Event<'_>)) -> Result<Ended, Error> {
        let claim = match claimant {
            Some(Claimant { link, request }) => {
                let (link, reply) = Link::claim(link, &request, self.waiting.clone(), self.stop.clone())?;
                self.link = Some(link);
                Some(reply)
            }
            None => None,
        };
        let claim: ClaimReply = self.share(claim)?;
        observer(Event::Claimed(&claim));
        tracing::info!(
            rank = self.groups.world.rank(),
            attempt = self.attempt,
            epoch = claim.trainer_epoch,
            start = ?claim.start,
            "claimed"
        );
        self.faults.at(Point::Claimed)?;
        let mut trainer = {
            // Loading may take longer than the conductor's patience with a silent trainer.
            let _busy = self.link.as_ref().map(|link| link.busy(0));
            let volume = Volume {
                world: self.groups.world.clone(),
                run_dir: self.volume.join(&claim.config.run_dir),
                stop: self.stop.clone(),
                waiting: self.waiting.clone(),
            };
            volume.takes("finding the run's folder", || {
                std::fs::metadata(&volume.run_dir).map(drop).map_err(Error::io(&volume.run_dir))
            })?;
            Trainer::start(self.groups.clone(), self.backend.clone(), &self.volume, volume, self.faults.clone(), claim)?
        };
        if self.link.is_some()
            && let Some(short) = trainer.short_of_space()
        {
            tracing::warn!("{short}");
            observer(Event::ShortOfSpace(&short));
        }
        observer(Event::Loaded { weights_digest: trainer.weights_digest()? });
        self.faults.at(Point::Loaded)?;

        let mut done = 0;
        loop {
            self.during = None;
            if trainer.volume.asked_to_end()? {
                return Err(Error::Terminated);
            }
            let Some(work) = self.next(done, observer)? else { continue };
            self.during = Some(describe(&work));
            self.faults.now(moment(&work));
            trainer.faults_now(moment(&work));
            observer(Event::Ordered(&work));
            let began = std::time::Instant::now();
            let busy = self.link.as_ref().map(|link| link.busy(done));
            let report = trainer.obey(&work.order)?;
            self.faults.at(Point::BeforeReport)?;
            drop(busy);
            if let Some(link) = &mut self.link {
                link.report(work.seq, report.clone())?;
                tracing::info!(seconds = began.elapsed().as_secs_f32(), "done: {}", describe(&work));
            }
            self.faults.at(Point::AfterReport)?;
            observer(Event::Done { seq: work.seq, report: &report });
            done = work.seq;
            let ended = match work.order {
                Order::Stop { .. } => Some(Ended::Stopped),
                Order::Finish => Some(Ended::Finished),
                _ => None,
            };
            if let Some(ended) = ended {
                // Nobody exits 0 before rank 0 knows that the end is journaled.
                self.groups.world.barrier()?;
                return Ok(ended);
            }
        }
    }

    fn next(&mut self, done: u64, observer: &mut dyn FnMut(Event<'_>)) -> Result<Option<Work>, Error> {
        let polled = match &mut self.link {
            Some(link) => {
                let (work, waiting_for) = link.next(done)?;
                if let (None, Some(reason)) = (&work, &waiting_for) {
                    observer(Event::Waiting(reason));
                }
                Some(work)
            }
            None => None,
        };
        self.share(polled)
    }

    /// Rank 0's value, at everyone.
    fn share<T: Serialize + DeserializeOwned>(&self, mine: Option<T>) -> Result<T, Error> {
        let wire = |e: serde_json::Error| Error::Order { what: format!("rank 0's message cannot be read: {e}") };
        let blob = match &mine {
            Some(value) => serde_json::to_vec(value).map_err(wire)?,
            None => Vec::new(),
        };
        let blob = self.groups.world.broadcast_bytes(blob, 0)?;
        // Rank 0 too goes by the message, so that no rank can see an f64 another does not.
        serde_json::from_slice(&blob).map_err(wire)
    }
}

fn moment(work: &Work) -> Moment {
    let (step, phase, version) = match &work.order {
        Order::Train(order) => (Some(order.step), Some(order.phase), None),
        Order::Save { warm_step, warming: true, .. } => (Some(*warm_step), Some(Phase::WarmStart), None),
        Order::Save { step, .. } => (Some(*step), Some(Phase::Rl), None),
        Order::Publish { version, .. } => (None, None, Some(*version)),
        _ => (None, None, None),
    };
    Moment { step, phase, seq: work.seq, version }
}
