//! Faults a test can order by the environment, at named points of the step loop.
//!
//! `THRESH_FAULTS` holds faults separated by `;`, each `what:key=value,key=value`:
//!
//! | what | does |
//! |---|---|
//! | `kill` | SIGKILL to this rank at a point |
//! | `stop` | SIGSTOP to this rank at a point: a zombie, until somebody continues it |
//! | `error` | the point returns an error |
//! | `away` | the first time, the point returns the error of a mount that has died, which is waited for |
//! | `flip-weight` | rank 0 doubles one weight of a published folder after its digest was taken (`version` says which) |
//! | `poison-gradient` | one gradient element becomes NaN before the optimizer update |
//!
//! The keys select: `point` (see [`Point`], needed by the first four), `rank` (default 0), `step` (of a train or save order:
//! RL step or warm-start update), `phase` (`warm` or `rl`: which of them), `seq`, `version`, `attempt` (default: the first, so that the successor of a killed attempt lives).
//! `attempt=*` means every attempt. Unset, the whole module costs a look at an empty list.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use checkpoint::disk::DiskFile;
use checkpoint::{Disk, RealDisk};
use control::wire::Phase;

use crate::error::Error;

/// Name of the variable.
pub const VARIABLE: &str = "THRESH_FAULTS";

/// Where a fault can strike. The names in the variable are those of the variants in kebab case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The claim is answered, nothing is loaded.
    Claimed,
    /// Weights and optimizer are in memory.
    Loaded,
    /// A batch's rows are read.
    BatchRead,
    /// The first micro-batch's gradient is accumulated.
    Backward,
    /// All gradients are there, the update is not made.
    Optimizer,
    /// The last update is made.
    Updated,
    /// Half of this rank's tiles are written.
    TilesHalf,
    /// All tiles are durable.
    TilesWritten,
    /// Some of the published weights are written.
    WeightsHalf,
    /// The published folder is durable under its name.
    WeightsWritten,
    /// The order is done, the conductor does not know.
    BeforeReport,
    /// The conductor has journaled the report.
    AfterReport,
}

const POINTS: [(&str, Point); 12] = [
    ("claimed", Point::Claimed),
    ("loaded", Point::Loaded),
    ("batch-read", Point::BatchRead),
    ("backward", Point::Backward),
    ("optimizer", Point::Optimizer),
    ("updated", Point::Updated),
    ("tiles-half", Point::TilesHalf),
    ("tiles-written", Point::TilesWritten),
    ("weights-half", Point::WeightsHalf),
    ("weights-written", Point::WeightsWritten),
    ("before-report", Point::BeforeReport),
    ("after-report", Point::AfterReport),
];

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = POINTS.iter().find(|(_, p)| p == self).map_or("?", |(n, _)| n);
        f.write_str(name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Kill,
    Stop,
    Error,
    Away,
    FlipWeight,
    PoisonGradient,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Error => "error",
            Self::Away => "away",
            Self::FlipWeight => "flip-weight",
            Self::PoisonGradient => "poison-gradient",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    what: What,
    point: Option<Point>,
    rank: usize,
    step: Option<u64>,
    phase: Option<Phase>,
    seq: Option<u64>,
    version: Option<u64>,
    attempt: Option<u64>,
}

/// What a rank is doing, for faults to select by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Step of the order at hand: RL step or warm-start update.
    pub step: Option<u64>,
    /// Which of them.
    pub phase: Option<Phase>,
    /// Number of the order at hand.
    pub seq: u64,
    /// Version of the publication at hand.
    pub version: Option<u64>,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, phase, seq, version } = *self;
        match (phase, step) {
            (Some(Phase::WarmStart), Some(step)) => write!(f, "warm-start update {step}, ")?,
            (_, Some(step)) => write!(f, "step {step}, ")?,
            (_, None) => {}
        }
        if let Some(version) = version {
            write!(f, "version {version}, ")?;
        }
        if seq == 0 { f.write_str("before the first order") } else { write!(f, "order {seq}") }
    }
}

/// The faults of one rank.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    mine: Vec<Fault>,
    moment: Moment,
    /// The volume was away once.
    was_away: Arc<AtomicBool>,
}

impl Faults {
    /// None at all.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The faults in the environment that concern this rank of this attempt.
    ///
    /// # Errors
    /// [`Error::Config`] when the variable cannot be read: a test that orders a fault must not pass by a typing error.
    pub fn from_env(rank: usize, attempt: u64) -> Result<Self, Error> {
        match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => Self::parse(&text, rank, attempt),
            _ => Ok(Self::none()),
        }
    }

    /// The faults in `text` that concern this rank of this attempt.
    ///
    /// # Errors
    /// [`Error::Config`] naming the word that was not understood.
    pub fn parse(text: &str, rank: usize, attempt: u64) -> Result<Self, Error> {
        let mut mine = Vec::new();
        for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            let fault = parse_one(part).map_err(|why| Error::Config(format!("{VARIABLE}: '{part}': {why}")))?;
            if fault.rank == rank && fault.attempt.is_none_or(|a| a == attempt) {
                mine.push(fault);
            }
        }
        Ok(Self { mine, ..Self::default() })
    }

    /// Says what is being done from now on.
    pub fn now(&mut self, moment: Moment) {
        self.moment = moment;
    }

    /// Strikes if a fault is ordered here.
    ///
    /// # Errors
    /// [`Error::Injected`], for faults that ask for one.
    #[inline]
    pub fn at(&self, point: Point) -> Result<(), Error> {
        if self.mine.is_empty() { Ok(()) } else { self.strike(point) }
    }

    /// True when a weight of the publication at hand is to be changed.
    #[must_use]
    pub fn flips_weight(&self) -> bool {
        self.mine.iter().any(|f| f.what == What::FlipWeight && self.selects(f))
    }

    /// True when the gradient of the update at hand is to be spoilt.
    #[must_use]
    pub fn poisons_gradient(&self) -> bool {
        self.mine.iter().any(|f| f.what == What::PoisonGradient && self.selects(f))
    }

    fn selects(&self, fault: &Fault) -> bool {
        fault.step.is_none_or(|s| self.moment.step == Some(s))
            && fault.phase.is_none_or(|p| self.moment.phase == Some(p))
            && fault.seq.is_none_or(|s| self.moment.seq == s)
            && fault.version.is_none_or(|v| self.moment.version == Some(v))
    }

    #[cold]
    fn strike(&self, point: Point) -> Result<(), Error> {
        for fault in self.mine.iter().filter(|f| f.point == Some(point) && self.selects(f)) {
            tracing::warn!("injected fault: {} at {point}, {}", fault.what, self.moment);
            let signal = match fault.what {
                What::Kill => rustix::process::Signal::KILL,
                What::Stop => rustix::process::Signal::STOP,
                What::Error => return Err(Error::Injected { point }),
                What::Away if self.was_away.swap(true, Ordering::Relaxed) => continue,
                What::Away => return Err(Error::io(point.to_string())(io::ErrorKind::NotConnected.into())),
                What::FlipWeight | What::PoisonGradient => continue,
            };
            rustix::process::kill_process(rustix::process::getpid(), signal)
                .map_err(|e| Error::Config(format!("{VARIABLE}: cannot signal myself: {e}")))?;
        }
        Ok(())
    }
}

/// The file system, with a point in the middle of each file's first write.
pub(crate) struct FaultyDisk<'a> {
    faults: &'a Faults,
    point: Point,
}

impl<'a> FaultyDisk<'a> {
    pub(crate) fn new(faults: &'a Faults, point: Point) -> Self {
        Self { faults, point }
    }
}

impl Disk for FaultyDisk<'_> {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = RealDisk.create(path)?;
        if self.faults.mine.is_empty() {
            return Ok(file);
        }
        Ok(Box::new(FaultyFile { file, faults: self.faults.clone(), point: self.point, struck: false }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir_all(path)
    }
}

struct FaultyFile {
    file: Box<dyn DiskFile>,
    faults: Faults,
    point: Point,
    struck: bool,
}

impl DiskFile for FaultyFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.file.write_all(first)?;
        if !std::mem::replace(&mut self.struck, true) {
            self.faults.at(self.point).map_err(io::Error::other)?;
        }
        self.file.write_all(second)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Doubles the first element of the final norm in a model folder: one weight that every logit depends on.
pub(crate) fn double_one_weight(folder: &Path) -> Result<(), Error> {
    const TENSOR: &str = "model.norm.weight";
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let mut bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let Some(at) = element(&bytes, TENSOR) else { continue };
        let Some(four) = bytes.get_mut(at..at + 4) else { continue };
        let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]) * 2.0;
        four.copy_from_slice(&value.to_le_bytes());
        tracing::warn!(file = %path.display(), "injected fault: doubled one weight of {TENSOR}");
        return std::fs::write(&path, bytes).map_err(Error::io(&path));
    }
    Err(Error::Config(format!("{VARIABLE}: {} has no {TENSOR} to change", folder.display())))
}

/// Where the first element of an f32 tensor lies in a safetensors file.
fn element(file: &[u8], tensor: &str) -> Option<usize> {
    let length = usize::try_from(u64::from_le_bytes(file.get(..8)?.try_into().ok()?)).ok()?;
    let header: serde_json::Value = serde_json::from_slice(file.get(8..8 + length)?).ok()?;
    let info = header.get(tensor).filter(|info| info["dtype"] == "F32")?;
    Some(8 + length + usize::try_from(info["data_offsets"][0].as_u64()?).ok()?)
}

fn parse_one(text: &str) -> Result<Fault, String> {
    let (what, rest) = text.split_once(':').unwrap_or((text, ""));
    let what = match what {
        "kill" => What::Kill,
        "stop" => What::Stop,
        "error" => What::Error,
        "away" => What::Away,
        "flip-weight" => What::FlipWeight,
        "poison-gradient" => What::PoisonGradient,
        other => {
            return Err(format!("'{other}' is not one of kill, stop, error, away, flip-weight, poison-gradient"));
        }
    };
    let mut fault =
        Fault { what, point: None, rank: 0, step: None, phase: None, seq: None, version: None, attempt: Some(1) };
    for pair in rest.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("'{pair}' is not key=value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("'{value}' of '{key}' is not a number"));
        match key {
            "point" => {
                let known = POINTS.iter().find(|(name, _)| *name == value);
                fault.point = Some(known.ok_or_else(|| format!("'{value}' is not a point"))?.1);
            }
            "rank" => fault.rank = number()? as usize,
            "step" => fault.step = Some(number()?),
            "phase" if value == "warm" => fault.phase = Some(Phase::WarmStart),
            "phase" if value == "rl" => fault.phase = Some(Phase::Rl),
            "phase" => return Err(format!("'{value}' is not one of warm, rl")),
            "seq" => fault.seq = Some(number()?),
            "version" => fault.version = Some(number()?),
            "attempt" if value == "*" => fault.attempt = None,
            "attempt" => fault.attempt = Some(number()?),
            other => return Err(format!("'{other}' is not one of point, rank, step, phase, seq, version, attempt")),
        }
    }
    let strikes = matches!(what, What::Kill | What::Stop | What::Error | What::Away);
    if strikes != fault.point.is_some() {
        return Err(if strikes { "it needs point=..." } else { "it has its own point" }.to_owned());
    }
    Ok(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_only_its_rank_attempt_step_and_point() {
        let text = "error:rank=1,step=7,point=backward; flip-weight:version=5";
        let mut f = Faults::parse(text, 1, 1).unwrap();
        f.now(Moment { step: Some(7), seq: 3, ..Moment::default() });
        assert!(matches!(f.at(Point::Backward), Err(Error::Injected { point: Point::Backward })));
        assert!(f.at(Point::Optimizer).is_ok() && !f.flips_weight());
        f.now(Moment { step: Some(8), seq: 4, ..Moment::default() });
        assert!(f.at(Point::Backward).is_ok());

        let mut f = Faults::parse(text, 0, 1).unwrap();
        f.now(Moment { step: Some(7), seq: 3, ..Moment::default() });
        assert!(f.at(Point::Backward).is_ok() && !f.flips_weight());
        f.now(Moment { seq: 5, version: Some(5), ..Moment::default() });
        assert!(f.flips_weight());

        let mut f = Faults::parse(text, 1, 2).unwrap();
        f.now(Moment { step: Some(7), seq: 3, ..Moment::default() });
        assert!(f.at(Point::Backward).is_ok(), "the second attempt is spared");
        let mut f = Faults::parse("error:phase=rl,step=7,point=backward", 0, 1).unwrap();
        f.now(Moment { step: Some(7), phase: Some(Phase::WarmStart), ..Moment::default() });
        assert!(f.at(Point::Backward).is_ok());
        f.now(Moment { step: Some(7), phase: Some(Phase::Rl), ..Moment::default() });
        assert!(f.at(Point::Backward).is_err());
        assert!(Faults::parse("error:point=claimed,attempt=*", 0, 9).unwrap().at(Point::Claimed).is_err());
    }

    #[test]
    fn a_fault_that_is_not_understood_is_an_error() {
        for (text, word) in [
            ("explode:point=backward", "explode"),
            ("kill:rank=1", "point"),
            ("kill:point=lunch", "lunch"),
            ("kill:point=backward,rank=one", "one"),
            ("kill:backward", "backward"),
            ("flip-weight:point=backward", "own point"),
        ] {
            let error = Faults::parse(text, 0, 1).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn every_point_has_one_name() {
        for (name, point) in POINTS {
            assert_eq!(point.to_string(), name);
            assert!(Faults::parse(&format!("error:point={name}"), 0, 1).unwrap().at(point).is_err());
        }
    }

    #[test]
    fn a_moment_is_told_in_words() {
        assert_eq!(Moment::default().to_string(), "before the first order");
        let moment = Moment { step: Some(7), phase: Some(Phase::Rl), seq: 12, version: None };
        assert_eq!(moment.to_string(), "step 7, order 12");
        let moment = Moment { phase: Some(Phase::WarmStart), version: Some(3), ..moment };
        assert_eq!(moment.to_string(), "warm-start update 7, version 3, order 12");
    }
}
