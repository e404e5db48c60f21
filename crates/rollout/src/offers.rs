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
            let _turn = self.calling.lock().await;
            // Whoever had the turn before may have taken this one along.
            match told.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Empty) => self.call().await,
                // Its caller was dropped in the middle of the call. An offer that is repeated is the same offer.
                Err(oneshot::error::TryRecvError::Closed) => told = self.push(finished),
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
