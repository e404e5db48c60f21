//! What a conductor says of its volume, and to whom.

use std::io::ErrorKind;

use control::{
    client::patiently,
    wire::{Progress, Wait},
};
use straw::mount_probe::{Finding, MountReport};
use thresh_rollout::{conductor::Volume, lone::quick};

use crate::{Service, gate::Gate};

/// What it waits for, once it says so.
async fn waits_for_storage(service: &Service) -> (Progress, Wait) {
    let progress = patiently(quick(), || service.client.progress(), |_, _| {}).await.unwrap();
    let wait = progress.waits.first().cloned().expect("it waits for something");
    assert_eq!(wait.owner, "storage", "{wait:?}");
    (progress, wait)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_cannot_be_written_at_the_very_start_is_waited_for_and_whoever_asks_is_told() {
    for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem] {
        let gate = Gate::new();
        gate.refuse(Some(kind));
        let service = Service::begin(8, Volume { fs: gate.fs(), ..Volume::real() }).await;
        let (progress, wait) = waits_for_storage(&service).await;
        assert!(wait.what.contains("journal"), "{wait:?}");
        assert_eq!((progress.conductor_epoch, progress.attempt), (0, 0), "nothing has happened");
        gate.refuse(None);
        service.lone.publish_once(&service.client).await.unwrap();
        let begun = service.client.progress().await.unwrap();
        assert_eq!((begun.conductor_epoch, begun.attempt), (1, 1));
        assert!(begun.waits.iter().all(|wait| wait.owner != "storage"), "{:?}", begun.waits);

        // Of a run that has come further, it says how far.
        gate.refuse(Some(kind));
        let again = service.start_again(Volume { fs: gate.fs(), ..Volume::real() }).await;
        let (stood, _) = waits_for_storage(&again).await;
        assert_eq!((stood.conductor_epoch, stood.attempt, stood.trainer_epoch), (1, 1, 1));
        gate.refuse(None);
        let progress = patiently(quick(), || again.client.progress(), |_, _| {}).await.unwrap();
        assert_eq!(progress.attempt, 1);
        again.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conductor_that_waits_for_its_volume_ends_when_it_is_asked_to() {
    let gate = Gate::new();
    gate.refuse(Some(ErrorKind::StorageFull));
    let service = Service::begin(8, Volume { fs: gate.fs(), ..Volume::real() }).await;
    waits_for_storage(&service).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_can_lose_what_was_acknowledged_is_refused_before_anything_is_written() {
    fn unsafe_mount(_: &std::path::Path) -> std::io::Result<MountReport> {
        let finding = Finding { what: "it keeps writes back".to_owned(), fix: "mount it without".to_owned() };
        Ok(MountReport { mount: None, juicefs: None, refusals: vec![finding], warnings: vec![] })
    }
    let gate = Gate::new();
    let service = Service::begin(8, Volume { fs: gate.fs(), probe: unsafe_mount }).await;
    let journal = service.lone.run_dir().join("journal");
    let why = format!("{:#}", service.ended().await);
    assert!(why.contains("not safe: it keeps writes back") && why.contains("fix: mount it without"), "{why}");
    assert_eq!(gate.counted(), Default::default());
    assert!(!journal.exists());
}
