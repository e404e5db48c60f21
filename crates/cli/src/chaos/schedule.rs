//! Who dies when: a function of the seed and the number of kills.

use super::{
    dice::Dice,
    kill::{ConductorDeath, Moment, Strike, TrainerDeath},
};

/// Points of the trainer that every longer run meets first, with the rank that dies there. Both ranks write tiles, rank 0
/// writes the weights and speaks for all.
const TRAINER_FIRST: [(u32, &str); 8] = [
    (1, "backward"),
    (0, "tiles-half"),
    (1, "tiles-written"),
    (0, "weights-half"),
    (0, "weights-written"),
    (0, "optimizer"),
    (1, "loaded"),
    (0, "before-report"),
];
/// The others.
const TRAINER_LATER: [(u32, &str); 10] = [
    (0, "claimed"),
    (1, "claimed"),
    (0, "loaded"),
    (0, "batch-read"),
    (0, "backward"),
    (1, "optimizer"),
    (0, "updated"),
    (1, "tiles-half"),
    (1, "weights-written"),
    (0, "after-report"),
];
/// Of the conductor: a batch accepted and not converted, converted and not given out, before and after the commit record,
/// and with one engine updated.
const CONDUCTOR_FIRST: [(&str, Option<&str>); 5] = [
    ("after-journal", Some("Accepted")),
    ("after-journal", Some("Converted")),
    ("before-journal", Some("Committed")),
    ("after-journal", Some("Committed")),
    ("engine-updated", None),
];
/// The others.
const CONDUCTOR_LATER: [(&str, Option<&str>); 8] = [
    ("before-journal", Some("Opened")),
    ("before-journal", Some("Accepted")),
    ("before-journal", Some("Reported")),
    ("after-journal", Some("Reported")),
    ("after-commands", Some("Ordered")),
    ("before-journal", Some("VersionAdvanced")),
    ("after-journal", Some("VersionAdvanced")),
    ("after-journal", Some("Completed")),
];
/// Of so many lives of the trainer, the last is struck only after it has committed: without a commit now and then the run
/// would rightly give up.
const LIVES_PER_COMMIT: usize = 4;
/// Each reign of the conductor of this number is ended by a signal.
const REIGNS_PER_SIGNAL: usize = 4;
const DELAY_MS: u64 = 400;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How each attempt ends, the first attempt first.
    pub trainer: Vec<TrainerDeath>,
    /// How each reign ends, the first epoch first.
    pub conductor: Vec<ConductorDeath>,
    /// Deaths of engines.
    pub engines: Vec<Strike>,
    /// Deaths of workers.
    pub workers: Vec<Strike>,
}

impl Schedule {
    /// `kills` of them. Half are the trainer's, since it is what dies most; the conductor meets each of its first points as
    /// soon as there are twenty, and has a small share after that: there is one of it, and it waits longer before each start.
    pub fn new(seed: u64, kills: usize) -> Self {
        let mut dice = Dice::new(seed);
        let trainer = kills.div_ceil(2);
        let rest = kills - trainer;
        let conductor = (kills * 2 / 25).max(rest.div_ceil(2).min(6));
        let engines = (rest - conductor).div_ceil(2);
        let workers = rest - conductor - engines;
        Self {
            trainer: trainers(&mut dice, trainer),
            conductor: conductors(&mut dice, conductor),
            engines: strikes(&mut dice, engines, &[Moment::Generating, Moment::Updating, Moment::Any]),
            workers: strikes(&mut dice, workers, &[Moment::Generating, Moment::Generating, Moment::Any]),
        }
    }

    /// For the trainer's environment.
    pub fn trainer_faults(&self) -> String {
        let faults = (1..).zip(&self.trainer).filter_map(|(attempt, death)| match death {
            TrainerDeath::Armed { rank, point } => Some(format!("kill:attempt={attempt},rank={rank},point={point}")),
            TrainerDeath::Struck(_) => None,
        });
        faults.collect::<Vec<_>>().join(";")
    }

    /// For the conductor's.
    pub fn conductor_faults(&self) -> String {
        let faults = (1..).zip(&self.conductor).filter_map(|(epoch, death)| match death {
            ConductorDeath::Armed { point, record, passes } => {
                let record = record.map_or(String::new(), |record| format!(",record={record}"));
                Some(format!("kill:epoch={epoch},point={point}{record},nth={passes}"))
            }
            ConductorDeath::Struck(_) => None,
        });
        faults.collect::<Vec<_>>().join(";")
    }
}

fn strike(dice: &mut Dice, moments: &[Moment], places: u64) -> Strike {
    Strike {
        place: usize::try_from(dice.below(places)).unwrap_or(0),
        moment: dice.pick(moments).unwrap_or(Moment::Any),
        after_ms: dice.below(DELAY_MS),
        together: dice.once_in(2),
    }
}

fn strikes(dice: &mut Dice, count: usize, moments: &[Moment]) -> Vec<Strike> {
    (0..count).map(|_| strike(dice, moments, 2)).collect()
}

fn trainers(dice: &mut Dice, count: usize) -> Vec<TrainerDeath> {
    let mut points = deck(dice, &TRAINER_FIRST, &TRAINER_LATER, count);
    (1..=count)
        .map(|life| {
            let moments = [Moment::Any, Moment::Learning, Moment::Saving, Moment::Publishing, Moment::Generating];
            if life % LIVES_PER_COMMIT == 0 {
                return TrainerDeath::Struck(strike(dice, &moments, 3));
            }
            match points.next() {
                Some((rank, point)) => TrainerDeath::Armed { rank, point },
                None => TrainerDeath::Struck(strike(dice, &moments, 3)),
            }
        })
        .collect()
}

fn conductors(dice: &mut Dice, count: usize) -> Vec<ConductorDeath> {
    let mut points = deck(dice, &CONDUCTOR_FIRST, &CONDUCTOR_LATER, count);
    (1..=count)
        .map(|reign| {
            let moments = [Moment::Any, Moment::Generating, Moment::Learning, Moment::Updating];
            if reign > CONDUCTOR_FIRST.len() && reign % REIGNS_PER_SIGNAL == 0 {
                return ConductorDeath::Struck(strike(dice, &moments, 1));
            }
            match points.next() {
                Some((point, record)) => {
                    let passes = match record {
                        Some("Opened") => 0,
                        Some("Completed") => dice.below(20),
                        _ => dice.below(3),
                    };
                    ConductorDeath::Armed { point, record, passes }
                }
                None => ConductorDeath::Struck(strike(dice, &moments, 1)),
            }
        })
        .collect()
}

/// The first cards shuffled, then all cards shuffled, again and again.
fn deck<T: Copy>(dice: &mut Dice, first: &[T], later: &[T], count: usize) -> std::vec::IntoIter<T> {
    let mut cards = first.to_vec();
    dice.shuffle(&mut cards);
    while cards.len() < count {
        let mut all: Vec<T> = first.iter().chain(later).copied().collect();
        dice.shuffle(&mut all);
        cards.extend(all);
    }
    cards.truncate(count);
    cards.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kills(schedule: &Schedule) -> usize {
        schedule.trainer.len() + schedule.conductor.len() + schedule.engines.len() + schedule.workers.len()
    }

    #[test]
    fn a_seed_gives_one_schedule_of_exactly_the_kills_asked_for() {
        for count in (1..60).chain([1000]) {
            assert_eq!(kills(&Schedule::new(7, count)), count);
        }
        assert_eq!(Schedule::new(7, 100), Schedule::new(7, 100));
        assert_ne!(Schedule::new(7, 100), Schedule::new(8, 100));
    }

    #[test]
    fn twenty_kills_meet_every_target_in_each_of_its_phases() {
        for seed in 0..50 {
            let schedule = Schedule::new(seed, 20);
            let (trainer, conductor) = (schedule.trainer_faults(), schedule.conductor_faults());
            for (rank, point) in TRAINER_FIRST {
                assert!(trainer.contains(&format!("rank={rank},point={point}")), "{point}: {trainer}");
            }
            for (point, record) in CONDUCTOR_FIRST {
                let record = record.map_or(String::new(), |record| format!(",record={record}"));
                assert!(conductor.contains(&format!("point={point}{record},nth")), "{point}: {conductor}");
            }
            assert!(schedule.trainer.iter().any(|death| matches!(death, TrainerDeath::Struck(_))));
            assert!(!schedule.engines.is_empty() && !schedule.workers.is_empty());
        }
    }

    #[test]
    fn no_more_than_three_attempts_in_a_row_may_die_before_they_commit() {
        let schedule = Schedule::new(3, 1000);
        for lives in schedule.trainer.windows(LIVES_PER_COMMIT) {
            assert!(lives.iter().any(|death| matches!(death, TrainerDeath::Struck(_))));
        }
    }
}
