//! Packs that are mostly dead are emptied while the run lives; wherever the conductor dies meanwhile, its successor has every
//! record, and the space comes free.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use control::{
    client::{ConductorClient, EpochMemory},
    wire::{CompactRequest, CompleteRequest, Finished, Outcome},
};
use straw::{RealFs, Record, Store};
use thresh_rollout::lone::{Lone, finished, worker};

use crate::{http, model, successors::Process};

const GROUPS: u8 = 8;
/// Nothing here takes this long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(120);
const OFTEN: [(&str, &str); 4] = [
    ("THRESH_GIVE_BACK_LOOK_MS", "50"),
    ("THRESH_GIVE_BACK_SETTLE_MS", "100"),
    ("THRESH_GIVE_BACK_GAIN_BYTES", "1"),
    ("THRESH_GIVE_BACK_LIVE_PERCENT", "50"),
];

struct Emptied {
    _folder: tempfile::TempDir,
    lone: Lone,
    results: Vec<Finished>,
    /// The pack of which little is needed.
    old: PathBuf,
}

impl Emptied {
    /// A run with groups accepted from a pack that holds much else.
    async fn prepare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lone = Lone::prepare(folder.path(), &model(), 100).await.unwrap();
        Self { _folder: folder, lone, results: Vec::new(), old: PathBuf::new() }
    }

    fn store(&self) -> Store {
        Store::open(RealFs::new(), self.lone.run_dir().join("packs")).unwrap()
    }

    async fn fill(&mut self, client: &ConductorClient) {
        self.lone.wait_for(client).await.unwrap();
        self.lone.publish_once(client).await.unwrap();
        let writer = self.store().writer("worker-0").unwrap();
        writer.publish("rejected", &[Record::new(vec![255; 1 << 20])]).unwrap();
        for (lease, n) in self.lone.lease(client, &worker(0), usize::from(GROUPS)).await.unwrap().iter().zip(0..) {
            let group = writer.publish(&format!("group-{n}"), &[Record::new(vec![n; 4096])]).unwrap().remove(0);
            self.results.push(Finished { group, ..finished(lease) });
        }
        self.old = self.lone.run_dir().join("packs").join(format!("{}.pack", self.results[0].group.pack));
        let request = CompleteRequest { worker: worker(0), results: self.results.clone() };
        let reply = client.complete(&request).await.unwrap();
        assert!(reply.outcomes.iter().all(|outcome| *outcome == Outcome::Accepted), "{reply:?}");
        // Its writer has finished it.
        writer.seal();
    }

    async fn until_it_is_gone(&self) {
        let since = Instant::now();
        while self.old.exists() {
            assert!(since.elapsed() < PATIENCE, "{} stays", self.old.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Every group is there, once, with the bytes that were accepted.
    async fn is_whole(&self, client: &ConductorClient) {
        // An old reference is as good as it was.
        let request = CompleteRequest { worker: worker(0), results: self.results.clone() };
        let reply = client.complete(&request).await.unwrap();
        assert!(reply.outcomes.iter().all(|outcome| *outcome == Outcome::Duplicate), "{reply:?}");
        let journal = self.lone.run_dir().join("journal");
        let (snapshot, txns) = straw::journal::read(&*RealFs::new(), journal).unwrap();
        let records = txns.iter().flatten().map(Vec::as_slice);
        let state = conductor::replay(snapshot.as_deref(), records).unwrap();
        let accepted: Vec<_> = state.queue.accepted().map(|(_, group)| group.result[0].clone()).collect();
        assert_eq!(accepted.len(), usize::from(GROUPS));
        for (group, n) in accepted.iter().zip(0u8..) {
            assert_ne!(group.pack, self.results[usize::from(n)].group.pack);
            assert_eq!(self.store().read(group).unwrap().meta, vec![n; 4096]);
        }
    }
}

fn start(lone: &Lone, uid: &str, environment: &[(&str, &str)]) -> Process {
    let mut command = lone.command(Path::new(env!("CARGO_BIN_EXE_thresh-rollout")), uid);
    command.envs(environment.iter().copied()).env("RUST_LOG", "warn");
    Process(command.spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_conductor_that_is_asked_to_empties_packs_and_gives_them_back() {
    let mut run = Emptied::prepare().await;
    // By itself it would not, for so little.
    let settled = [("THRESH_GIVE_BACK_SETTLE_MS", "100"), ("THRESH_GIVE_BACK_LOOK_MS", "50")];
    let _conductor = start(&run.lone, "pod-1", &settled);
    let client = run.lone.client(http(), EpochMemory::default());
    run.fill(&client).await;
    let refused = client.compact(&CompactRequest { live_percent: 101 }).await.unwrap_err();
    assert!(refused.to_string().contains("livePercent: 101"), "{refused}");
    let none = client.compact(&CompactRequest { live_percent: 1 }).await.unwrap();
    assert_eq!((none.packs, none.records), (0, 0), "more than a hundredth is needed");
    assert!(run.old.exists());
    let found = client.compact(&CompactRequest { live_percent: 50 }).await.unwrap();
    assert_eq!((found.packs, found.records), (1, u64::from(GROUPS)));
    assert!(found.bytes > 1 << 20 && found.live_bytes < 64 << 10, "{found:?}");
    run.until_it_is_gone().await;
    run.is_whole(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_conductor_dies_while_it_empties_a_pack_nothing_is_lost_and_the_pack_goes() {
    for record in ["RecordsMoved", "PacksRetired"] {
        for point in ["before-journal", "after-journal", "after-commands"] {
            let mut run = Emptied::prepare().await;
            let faults = format!("kill:point={point},record={record}");
            let mut environment = OFTEN.to_vec();
            environment.push(("THRESH_CONDUCTOR_FAULTS", &faults));
            let mut first = start(&run.lone, "pod-1", &environment);
            let epochs = EpochMemory::default();
            run.fill(&run.lone.client(http(), epochs.clone())).await;
            let ended = tokio::task::spawn_blocking(move || first.0.wait().unwrap()).await.unwrap();
            assert!(!ended.success(), "{faults}: {ended}");

            run.lone = run.lone.for_a_successor().unwrap();
            let _second = start(&run.lone, "pod-2", &OFTEN);
            let client = run.lone.client(http(), epochs);
            run.lone.wait_for(&client).await.unwrap();
            run.until_it_is_gone().await;
            run.is_whole(&client).await;
        }
    }
}
