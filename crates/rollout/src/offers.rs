//! Finished groups on their way to the conductor: what is finished while a call is under way shares the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::{
    client::{ClientError, ConductorClient, Patience, patiently},
    wire::{CompleteReply, CompleteRequest, Finished, Outcome, RESULTS_MAX, WorkerId},
};
use tokio::sync::oneshot;

/// What became of an offer; an error concerns all that shared the call.
type Answer = Result<Outcome, Arc<ClientError>>;

/// The offers of one worker in one run.
pub struct Offers {
    client: ConductorClient,
    worker: WorkerId,
    patience: Patience,
    waiting: Mutex<Vec<(Finished, oneshot::Sender<Answer>)>>,
    /// Held by whoever makes a call.
    calling: tokio::sync::Mutex<()>,
}

impl Offers {
    /// No offers yet. Each is repeated for as long as `patience` says.
    pub fn new(client: ConductorClient, worker: WorkerId, patience: Patience) -> Self {
        Self { client, worker, patience, waiting: Mutex::default(), calling: tokio::sync::Mutex::default() }
    }

    /// Offers a group and waits until what became of it is durable. A call that is dropped may have been made or not.
    pub async fn offer(&self, finished: &Finished) -> Answer {
        let mut told = self.push(finished);
        loop {
            tokio::select! {
                biased;
                answer = &mut told => match answer {
                    Ok(answer) => return answer,
                    // Whoever made the call was dropped in the middle of it. An offer that is repeated is the same offer.
                    Err(_) => told = self.push(finished),
                },
                _turn = self.calling.lock() => self.call().await,
            }
        }
    }

    fn push(&self, finished: &Finished) -> oneshot::Receiver<Answer> {
        let (tell, told) = oneshot::channel();
        self.waiting().push((finished.clone(), tell));
        told
    }

    /// One call with all that wait, those first that have waited longest.
    async fn call(&self) {
        let offered: Vec<_> = {
            let mut waiting = self.waiting();
            // Nobody wants to know any more what becomes of these: nor need the conductor.
            waiting.retain(|(_, tell)| !tell.is_closed());
            let count = waiting.len().min(RESULTS_MAX);
            waiting.drain(..count).collect()
        };
        if offered.is_empty() {
            return;
        }
        let (results, tell): (Vec<_>, Vec<_>) = offered.into_iter().unzip();
        let request = CompleteRequest { worker: self.worker.clone(), results };
        let said = crate::session::waits("offering groups");
        let answers: Vec<Answer> = match patiently(self.patience, || self.client.complete(&request), said).await {
            Ok(CompleteReply { outcomes, .. }) if outcomes.len() == tell.len() => {
                outcomes.into_iter().map(Ok).collect()
            }
            Ok(reply) => all(tell.len(), self.client.bad_reply(format!("{} results: {reply:?}", tell.len()))),
            Err(error) => all(tell.len(), error),
        };
        for (tell, answer) in tell.into_iter().zip(answers) {
            let _ = tell.send(answer);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(Finished, oneshot::Sender<Answer>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn all(count: usize, error: ClientError) -> Vec<Answer> {
    let error = Arc::new(error);
    (0..count).map(|_| Err(error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, extract::State, routing::post};
    use control::{
        client::EpochMemory,
        wire::{GroupSummary, RefusalKind},
    };
    use std::time::Duration;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    /// A conductor that tells of each call and answers it when it is let to: even tasks are accepted, odd ones refused.
    struct Desk {
        called: mpsc::UnboundedSender<usize>,
        may_answer: Semaphore,
    }

    async fn complete(State(desk): State<Arc<Desk>>, Json(request): Json<CompleteRequest>) -> Json<CompleteReply> {
        desk.called.send(request.results.len()).unwrap();
        desk.may_answer.acquire().await.unwrap().forget();
        let outcome = |finished: Finished| {
            if finished.task.is_multiple_of(2) {
                Outcome::Accepted
            } else {
                Outcome::Refused { kind: RefusalKind::Invalid, message: format!("task {}", finished.task) }
            }
        };
        Json(CompleteReply { conductor_epoch: 1, outcomes: request.results.into_iter().map(outcome).collect() })
    }

    async fn desk() -> (Arc<Desk>, mpsc::UnboundedReceiver<usize>, Arc<Offers>) {
        let (called, calls) = mpsc::unbounded_channel();
        let desk = Arc::new(Desk { called, may_answer: Semaphore::new(0) });
        let routes = Router::new().route("/v1/complete", post(complete)).with_state(desk.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let client = ConductorClient::new(reqwest::Client::new(), url, "t", EpochMemory::default());
        let worker = WorkerId { name: "w".into(), incarnation: "1".into(), node: "n".into() };
        let offers = Offers::new(client, worker, Patience::for_at_most(Duration::from_secs(60)));
        (desk, calls, Arc::new(offers))
    }

    fn finished(task: u64) -> Finished {
        let group = straw::Ref { pack: "p".into(), offset: 0, len: 1, head: 1, crc: 1, ..straw::Ref::default() };
        let summary = GroupSummary {
            group_index: task,
            rewards: vec![],
            failed: 0,
            version_min: 1,
            version_max: 1,
            response_tokens: 0,
            tokens: 0,
            generate_calls: 0,
        };
        Finished { lease: "1.1".into(), task, submission: format!("s/{task}"), group, summary }
    }

    fn offer(offers: &Arc<Offers>, task: u64) -> tokio::task::JoinHandle<Answer> {
        let offers = offers.clone();
        tokio::spawn(async move { offers.offer(&finished(task)).await })
    }

    async fn until_waiting(offers: &Offers, count: usize) {
        while offers.waiting().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn what_is_finished_while_a_call_is_under_way_shares_the_next_and_each_has_its_own_answer() {
        let (desk, mut calls, offers) = desk().await;
        let first = offer(&offers, 0);
        assert_eq!(calls.recv().await, Some(1));
        let later: Vec<_> = (1..=5).map(|task| offer(&offers, task)).collect();
        until_waiting(&offers, 5).await;
        desk.may_answer.add_permits(2);
        assert_eq!(first.await.unwrap().unwrap(), Outcome::Accepted);
        assert_eq!(calls.recv().await, Some(5));
        for (task, answer) in (1..).zip(later) {
            match answer.await.unwrap().unwrap() {
                Outcome::Accepted => assert_eq!(task % 2, 0),
                Outcome::Refused { message, .. } => assert_eq!(message, format!("task {task}")),
                other => panic!("{other:?}"),
            }
        }
        assert!(calls.try_recv().is_err(), "two calls in all");
    }

    #[tokio::test]
    async fn who_goes_away_in_the_middle_of_its_call_takes_no_other_offer_along() {
        let (desk, mut calls, offers) = desk().await;
        let blocking = offer(&offers, 0);
        assert_eq!(calls.recv().await, Some(1));
        let leaves = offer(&offers, 2);
        until_waiting(&offers, 1).await;
        let stays = offer(&offers, 4);
        until_waiting(&offers, 2).await;
        desk.may_answer.add_permits(1);
        blocking.await.unwrap().unwrap();
        // The second makes the call for both, and nobody wants its group any more.
        assert_eq!(calls.recv().await, Some(2));
        leaves.abort();
        assert_eq!(calls.recv().await, Some(1), "offered again");
        desk.may_answer.add_permits(2);
        assert_eq!(stays.await.unwrap().unwrap(), Outcome::Accepted);
    }
}
