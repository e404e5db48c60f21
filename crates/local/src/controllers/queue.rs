//! The queue of a laptop: a Job that is made suspended to wait for its quota is let go at once, since nobody else is here.

use k8s_openapi::api::batch::v1::Job;

/// The Job as its queue lets it go; nothing if it waits in none.
#[must_use]
pub fn admitted(job: &Job) -> Option<Job> {
    let queued = job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(api::labels::QUEUE_NAME));
    let held = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
    if !queued || !held {
        return None;
    }
    let mut job = job.clone();
    job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
    job.spec.as_mut()?.suspend = Some(false);
    Some(job)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_job_that_waits_in_a_queue_is_let_go_and_that_is_another_generation() {
        let job = |labels, suspend| -> Job {
            let value = json!({"metadata": {"name": "r-t1", "generation": 1, "labels": labels},
                "spec": {"suspend": suspend, "template": {}}});
            serde_json::from_value(value).unwrap()
        };
        let queue = json!({api::labels::QUEUE_NAME: "research"});
        let free = admitted(&job(queue.clone(), true)).unwrap();
        assert_eq!((free.metadata.generation, free.spec.as_ref().unwrap().suspend), (Some(2), Some(false)));
        assert_eq!(admitted(&free), None);
        assert_eq!(admitted(&job(json!({}), true)), None, "suspended by a hand, which knows why");
    }
}
