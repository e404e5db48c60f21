//! An attempt in a queue. Its Job is made suspended; another manager (Kueue) lets it go, and may take it back. What it then
//! takes back is over: two executions never share an attempt, so the next attempt queues anew.

use api::{AttemptStatus, Outcome, conditions as cond};
use k8s_openapi::api::batch::v1::Job;

use super::Pass;
use crate::micro;

const BY_QUEUE: &str = "SuspendedByQueue";

/// The Job is suspended: by its queue, since we never do that. It has no pods, or they are on their way out.
fn held(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|s| s.suspend == Some(true))
}

/// Its Job was seen, and has never been free to run.
pub(super) fn queued(a: &AttemptStatus) -> bool {
    a.job_uid.is_some() && a.released_time.is_none()
}

impl Pass<'_> {
    fn queue_name(&self) -> Option<&str> {
        self.job.spec.scheduling.as_ref()?.queue_name.as_deref()
    }

    /// Takes note of the first sight of a Job that is free to run.
    pub(super) fn note_release(&mut self, a: &mut AttemptStatus, job: &Job) {
        if held(job) || a.released_time.is_some() {
            return;
        }
        a.released_time = Some(micro(self.now));
        a.released_generation = job.metadata.generation;
        // Time in the queue is not the run's.
        self.s.start_time.get_or_insert(micro(self.now));
    }

    /// The queue has taken the Job back after it could run, and may have let it go again since. A cache may lag: only a generation
    /// after the one that was free to run says so. If that one was never seen, a claim of the attempt tells that there was one.
    pub(super) fn taken_back(&self, a: &AttemptStatus, job: &Job) -> bool {
        let claimed = self.report().is_some_and(|r| r.attempt >= a.id);
        let free = a.released_generation.or(claimed.then_some(1));
        let seen = job.metadata.generation.unwrap_or(0);
        // Suspended once more, and free once more: two changes.
        free.is_some_and(|g| seen > if held(job) { g } else { g + 1 })
    }

    /// Where the attempt waits in a queue, why: reason and message of TrainerReady.
    pub(super) fn why_queued(&self) -> (&'static str, String) {
        let queue = self.queue_name().unwrap_or("that another controller keeps");
        match &self.world.quota {
            Some(q) if q.reserved => {
                ("QueueNotReleased", format!("queue {queue} has set its quota aside and has not let the Job go yet"))
            }
            Some(q) if !q.message.is_empty() => ("Queued", format!("in queue {queue}: {}", q.message)),
            _ => ("Queued", format!("in queue {queue}")),
        }
    }

    /// Conditions QuotaReserved and, of a queue, Suspended.
    pub(super) fn quota(&mut self) {
        let queue = self.queue_name().is_some();
        let waits = match &self.s.attempt {
            Some(a) if queued(a) => {
                let (why, message) = self.why_queued();
                let inadmissible = self.world.quota.as_ref().is_some_and(|q| !q.reserved && q.reason == "Inadmissible");
                let reason = match why {
                    "QueueNotReleased" => "NotReleased",
                    _ if inadmissible => "QueueNotFound",
                    _ => "Queued",
                };
                self.set(cond::QUOTA_RESERVED, reason == "NotReleased", reason, &message);
                true
            }
            Some(a) if queue || cond::get(&self.s.conditions, cond::QUOTA_RESERVED).is_some() => {
                match a.released_time {
                    Some(_) => self.set(cond::QUOTA_RESERVED, true, "Admitted", ""),
                    None => self.set(cond::QUOTA_RESERVED, false, "Queued", "its Job is being made"),
                }
                false
            }
            Some(_) => false,
            None => {
                let last = self.s.last_attempt.as_ref().filter(|l| l.outcome == Outcome::Preempted).map(|l| l.id);
                match last.filter(|_| queue && !self.terminal()) {
                    Some(id) => {
                        let said = format!("attempt {id} gave its quota back; the next one queues anew");
                        self.set(cond::QUOTA_RESERVED, false, "Preempted", said);
                    }
                    None => cond::clear(&mut self.s.conditions, cond::QUOTA_RESERVED),
                }
                false
            }
        };
        let by_queue = cond::get(&self.s.conditions, cond::SUSPENDED).is_some_and(|c| c.reason == BY_QUEUE);
        if waits {
            self.set(cond::SUSPENDED, true, BY_QUEUE, "no trainer runs; its queue decides when");
        } else if by_queue {
            self.set(cond::SUSPENDED, false, "Resumed", "");
        }
    }

    /// The trainer has stopped because the user wants it so.
    pub(super) fn suspended_by_user(&self) -> bool {
        let suspended = cond::get(&self.s.conditions, cond::SUSPENDED);
        self.job.spec.suspend && suspended.is_some_and(|c| c.status == "True" && c.reason != BY_QUEUE)
    }
}
