//! What survives a restart, and what is refused.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::Fingerprint;
use control::wire::{CommitRef, Order, Phase, Report, Start, TrainConfig};
use rl::{KlConfig, KlKind};
use serde_json::Value;
use support::*;
use train::exit;

const RANDOM: Start = Start::Random { seed: 3 };

/// A run with a warm start and a KL term: everything a commit must carry.
fn full() -> TrainConfig {
    let mut config = TrainConfig { warm_optimizer: Some(optimizer()), ..config() };
    config.optimizer.lr = 1e-2;
    config.loss.kl = Some(KlConfig { coef: 0.1, kind: KlKind::K3 });
    config
}

fn commit(report: &Report, folder: &str, step: u64, warming: bool) -> Start {
    let Report::Tiles { index_digest, weights_digest, .. } = report else { panic!("{report:?}") };
    Start::Commit(CommitRef {
        step,
        warm_step: 0,
        warming,
        folder: folder.into(),
        index_digest: index_digest.clone(),
        weights_digest: weights_digest.clone(),
    })
}

struct Run {
    volume: Volume,
    samples: Vec<Sample>,
}

impl Run {
    fn new() -> Self {
        Self { volume: Volume::new(), samples: samples(7, 21) }
    }

    fn train(&self, phase: Phase, step: u64, dp: usize) -> Order {
        train_order(&self.volume.store, phase, step, &self.samples, dp, 2)
    }

    fn play(&self, (dp, tp): (usize, usize), start: Start, config: &TrainConfig, orders: Vec<Order>) -> Vec<Report> {
        Attempt::new(&self.volume, dp, tp).play(start, config.clone(), orders)
    }
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    use Phase::{Rl, WarmStart};
    for layout in [(1, 1), (2, 2)] {
        let dp = layout.0;
        let whole = Run::new();
        let orders = vec![
            whole.train(WarmStart, 0, dp),
            whole.train(WarmStart, 1, dp),
            Order::BeginRl,
            whole.train(Rl, 0, dp),
            whole.train(Rl, 1, dp),
            publish(1, "weights/v1"),
        ];
        let whole = whole.play(layout, RANDOM, &full(), orders);

        // Stopped and restarted after each order; the commits lie where the loop's own do.
        let run = Run::new();
        let warm = |step| Order::Save { step: 0, warm_step: step, warming: true, folder: format!("tiles/warm-{step}") };
        let first = run.play(layout, RANDOM, &full(), vec![run.train(WarmStart, 0, dp), warm(1)]);
        let start = commit(&first[1], "tiles/warm-1", 0, true);
        let second =
            run.play(layout, start, &full(), vec![run.train(WarmStart, 1, dp), Order::BeginRl, save(0, "tiles/0")]);
        let start = commit(&second[2], "tiles/0", 0, false);
        let third = run.play(layout, start, &full(), vec![run.train(Rl, 0, dp), save(1, "tiles/1")]);
        let start = commit(&third[1], "tiles/1", 1, false);
        let fourth = run.play(layout, start, &full(), vec![run.train(Rl, 1, dp), publish(1, "weights/v1")]);

        for (a, b) in [(&whole[0], &first[0]), (&whole[1], &second[0]), (&whole[3], &third[0]), (&whole[4], &fourth[0])]
        {
            assert_eq!(timeless(a), timeless(b));
        }
        assert!(trained(&fourth[0]).kl > 0.0, "the reference is where the RL phase began, not where the attempt did");
        assert_eq!(weights_digest(&whole[5]), weights_digest(&fourth[1]));
    }
}

/// All tensors of a folder of tiles, put together as the index says.
fn read_tiles(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let index: Value = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let numbers = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect::<Vec<_>>();
    let mut out = BTreeMap::new();
    for (name, entry) in index["tensors"].as_object().unwrap() {
        let shape = numbers(&entry["shape"]);
        assert_eq!(entry["dtype"], "F32");
        let mut whole = vec![0u8; 4 * shape.iter().product::<usize>()];
        for tile in entry["tiles"].as_array().unwrap() {
            let bytes = std::fs::read(folder.join(tile["file"].as_str().unwrap())).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let data = file.tensor(tile["key"].as_str().unwrap()).unwrap();
            let (offset, size) = (numbers(&tile["offset"]), numbers(&tile["shape"]));
            for (n, element) in data.data().chunks_exact(4).enumerate() {
                let (mut rest, mut at, mut stride) = (n, 0, 1);
                for d in (0..shape.len()).rev() {
                    at += (offset[d] + rest % size[d]) * stride;
                    rest /= size[d];
                    stride *= shape[d];
                }
                whole[4 * at..4 * at + 4].copy_from_slice(element);
            }
        }
        out.insert(name.clone(), whole);
    }
    out
}

#[test]
fn any_layout_loads_the_masters_and_moments_of_any_other_bit_for_bit() {
    let layouts = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)];
    let run = Run::new();
    for (a, from) in layouts.into_iter().enumerate() {
        let folder = format!("tiles/from-{a}");
        let orders = vec![run.train(Phase::Rl, 0, from.0), run.train(Phase::Rl, 1, from.0), save(2, &folder)];
        let saved = run.play(from, RANDOM, &config(), orders);
        let wanted = read_tiles(&run.volume.run_dir().join(&folder));
        assert!(wanted.keys().any(|k| k.starts_with("m.")) && wanted.keys().any(|k| k.starts_with("v.")));
        assert!(wanted.iter().filter(|(k, _)| k.starts_with("m.")).all(|(_, v)| v.iter().any(|b| *b != 0)));
        for (b, to) in layouts.into_iter().enumerate() {
            let again = format!("tiles/from-{a}-to-{b}");
            let start = commit(&saved[2], &folder, 2, false);
            let loaded = run.play(to, start, &config(), vec![save(2, &again), run.train(Phase::Rl, 2, to.0)]);
            assert_eq!(weights_digest(&loaded[0]), weights_digest(&saved[2]), "{from:?} to {to:?}");
            assert_eq!(read_tiles(&run.volume.run_dir().join(&again)), wanted, "{from:?} to {to:?}");
            assert_eq!(trained(&loaded[1]).updates_done, 3);
        }
    }
}

#[test]
fn after_a_reshard_the_losses_are_those_of_a_run_in_the_new_layout_from_the_same_commit() {
    let run = Run::new();
    let saved = run.play((1, 1), RANDOM, &config(), vec![run.train(Phase::Rl, 0, 1), save(1, "tiles/a")]);
    let play = |start: Start, to: (usize, usize)| {
        let orders = vec![run.train(Phase::Rl, 1, to.0), run.train(Phase::Rl, 2, to.0)];
        run.play(to, start, &config(), orders).iter().map(timeless).collect::<Vec<_>>()
    };
    for to in [(2, 1), (1, 2)] {
        let first = play(commit(&saved[1], "tiles/a", 1, false), to);
        assert_eq!(first, play(commit(&saved[1], "tiles/a", 1, false), to));
    }
}

/// How an attempt ends whose start cannot be honoured.
fn refused(run: &Run, start: Start, config: &TrainConfig) -> (u8, String) {
    let conductor = conduct(start, config.clone(), 1, vec![Order::Finish]);
    let end = Attempt::new(&run.volume, 1, 1).run(&conductor).remove(0);
    let failure = end.unwrap_err();
    (failure.exit_code(), failure.to_string())
}

#[test]
fn a_commit_that_is_not_what_the_journal_says_is_refused() {
    let run = Run::new();
    let saved = run.play((1, 1), RANDOM, &config(), vec![run.train(Phase::Rl, 0, 1), save(1, "tiles/a")]);
    let Start::Commit(good) = commit(&saved[1], "tiles/a", 1, false) else { unreachable!() };
    let other = |f: &dyn Fn(&mut CommitRef)| {
        let mut commit = good.clone();
        f(&mut commit);
        refused(&run, Start::Commit(commit), &config())
    };
    let (code, text) = other(&|c| c.index_digest = "0".repeat(64));
    assert!(code == exit::USER_MUST_ACT && text.contains("index.json"), "{code} {text}");
    let (code, text) = other(&|c| c.weights_digest = "0".repeat(64));
    assert!(code == exit::USER_MUST_ACT && text.contains("digest"), "{code} {text}");
    let (code, text) = other(&|c| c.warming = true);
    assert!(code == exit::USER_MUST_ACT && text.contains("phase"), "{code} {text}");
    let (code, text) = other(&|c| c.folder = "tiles/gone".into());
    assert!(code != exit::COMPLETE && text.contains("tiles/gone"), "{code} {text}");

    // Another model in the same folder.
    let model = run.volume.dir.path().join("model/config.json");
    std::fs::write(&model, CONFIG.replace("\"intermediate_size\": 64", "\"intermediate_size\": 32")).unwrap();
    let (code, text) = other(&|_| {});
    assert!(code == exit::USER_MUST_ACT && text.contains("model qwen3"), "{code} {text}");
}

/// Every file below a folder, with its bytes.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(tree(&path));
        } else {
            all.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    all
}

#[test]
fn a_checkpoint_of_another_model_or_tokenizer_stops_the_attempt_names_both_and_is_left_untouched() {
    let run = Run::new();
    let model = run.volume.dir.path().join("model");
    let hidden = |n: u32| {
        let config = CONFIG.replace("\"hidden_size\": 32", &format!("\"hidden_size\": {n}"));
        std::fs::write(model.join("config.json"), config).unwrap();
        Fingerprint::of_folder(&model).unwrap()
    };
    let saved_with = hidden(64);
    let saved = run.play((1, 1), RANDOM, &config(), vec![run.train(Phase::Rl, 0, 1), save(1, "tiles/a")]);
    let start = || commit(&saved[1], "tiles/a", 1, false);
    let before = tree(&run.volume.run_dir().join("tiles"));

    let wanted = hidden(128);
    assert!(saved_with.model.contains("-h64-") && wanted.model.contains("-h128-"));
    let (code, text) = refused(&run, start(), &config());
    assert!(code == exit::USER_MUST_ACT, "{code} {text}");
    assert!(text.contains(&saved_with.model) && text.contains(&wanted.model), "{text}");

    hidden(64);
    std::fs::write(model.join("tokenizer.json"), "{\"version\":\"2.0\"}").unwrap();
    let wanted = Fingerprint::of_folder(&model).unwrap();
    let (code, text) = refused(&run, start(), &config());
    assert!(code == exit::USER_MUST_ACT, "{code} {text}");
    assert!(text.contains(&saved_with.tokenizer) && text.contains(&wanted.tokenizer), "{text}");
    assert_eq!(tree(&run.volume.run_dir().join("tiles")), before);
}

#[test]
fn a_resumed_schedule_stands_at_the_updates_that_were_made() {
    let run = Run::new();
    // Eight steps of three updates; a position counted in steps would be 8, one counted twice 48.
    let order = |step: u64| {
        let Order::Train(mut order) = run.train(Phase::Rl, step, 1) else { unreachable!() };
        order.updates = [[0, 1], [2, 3], [4, 5]].map(|members| plan(&run.samples, &members, 1, 2)).to_vec();
        Order::Train(order)
    };
    let steps = |from: u64, to: u64| (from..to).map(order).collect::<Vec<_>>();
    let whole = run.play((1, 1), RANDOM, &config(), steps(0, 9));
    let saved = run.play((1, 1), RANDOM, &config(), [steps(0, 8), vec![save(8, "tiles/a")]].concat());
    let meta = checkpoint::Checkpoint::open(&run.volume.run_dir().join("tiles/a"), None).unwrap().meta().clone();
    assert_eq!((meta.position.schedule_position, meta.optimizer_steps), (24, 24));
    let resumed = run.play((1, 1), commit(&saved[8], "tiles/a", 8, false), &config(), steps(8, 9));
    let (resumed, whole) = (trained(&resumed[0]), trained(&whole[8]));
    assert_eq!((resumed.updates_done, resumed.lr), (27, whole.lr), "the very rate of the run that never stopped");
    assert!((config().optimizer.lr_at(26) - resumed.lr).abs() < 1e-12);
}

#[test]
fn a_missing_moment_is_an_error_that_names_it() {
    let run = Run::new();
    let saved = run.play((1, 1), RANDOM, &config(), vec![run.train(Phase::Rl, 0, 1), save(1, "tiles/a")]);
    let index = run.volume.run_dir().join("tiles/a/index.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    value["tensors"].as_object_mut().unwrap().remove("m.final_norm").unwrap();
    let text = serde_json::to_vec(&value).unwrap();
    std::fs::write(&index, &text).unwrap();
    let Start::Commit(mut commit) = commit(&saved[1], "tiles/a", 1, false) else { unreachable!() };
    commit.index_digest = checkpoint::digest::sha256_hex(&text);
    let (code, text) = refused(&run, Start::Commit(commit), &config());
    assert!(code == exit::USER_MUST_ACT && text.contains("m.final_norm"), "{code} {text}");
}

#[test]
fn the_kl_term_can_be_turned_on_by_an_edit_long_after_the_rl_phase_began() {
    let run = Run::new();
    let off = TrainConfig { loss: loss(), ..full() };
    let orders = vec![
        run.train(Phase::WarmStart, 0, 1),
        Order::BeginRl,
        save(0, "tiles/0"),
        run.train(Phase::Rl, 0, 1),
        run.train(Phase::Rl, 1, 1),
        save(2, "tiles/2"),
    ];
    let saved = run.play((1, 1), RANDOM, &off, orders);
    // The commit of the warm start's end is garbage by now.
    std::fs::remove_dir_all(run.volume.run_dir().join("tiles/0")).unwrap();
    let start = || commit(&saved[5], "tiles/2", 2, false);
    let on = run.play((1, 2), start(), &full(), vec![run.train(Phase::Rl, 2, 1)]);
    assert!(trained(&on[0]).kl > 1e-6, "{:?}", on[0]);

    let kept = std::fs::read_dir(run.volume.run_dir().join("reference")).unwrap().next().unwrap().unwrap().path();
    let file = kept.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (code, text) = refused(&run, start(), &full());
    assert!(code == exit::USER_MUST_ACT && text.contains("reference"), "{code} {text}");
    std::fs::remove_dir_all(&kept).unwrap();
    let (code, text) = refused(&run, start(), &full());
    assert!(code != exit::COMPLETE && text.contains("reference"), "{code} {text}");
}

#[test]
fn beginning_the_rl_phase_again_changes_nothing() {
    let run = Run::new();
    let play = |orders: Vec<Order>| {
        weights_digest(run.play((1, 1), RANDOM, &full(), orders).last_chunk::<2>().unwrap().first().unwrap()).to_owned()
    };
    let once = play(vec![Order::BeginRl, run.train(Phase::Rl, 0, 1), publish(1, "weights/a")]);
    let twice = play(vec![Order::BeginRl, Order::BeginRl, run.train(Phase::Rl, 0, 1), publish(1, "weights/b")]);
    assert_eq!(once, twice);
    let kept: Vec<_> = std::fs::read_dir(run.volume.run_dir().join("reference")).unwrap().collect();
    assert_eq!(kept.len(), 1, "two attempts that began from the same weights keep one folder: {kept:?}");
}

#[test]
fn a_batch_of_the_wrong_phase_step_or_layout_is_refused() {
    let run = Run::new();
    let end = |order: Order| {
        let conductor = conduct(RANDOM, full(), 1, vec![order]);
        Attempt::new(&run.volume, 1, 1).run(&conductor).remove(0).unwrap_err().to_string()
    };
    let text = end(run.train(Phase::Rl, 0, 1));
    assert!(text.contains("Rl phase") && text.starts_with("rank 0, train RL step 0 (order 1): "), "{text}");
    let text = end(run.train(Phase::WarmStart, 0, 2));
    assert!(text.contains("planned for dp 2"), "{text}");
    let Order::Train(mut order) = run.train(Phase::WarmStart, 4, 1) else { unreachable!() };
    order.step = 5;
    let text = end(Order::Train(order));
    assert!(text.contains("step 4") && text.contains("step 5"), "{text}");
    let Order::Train(mut order) = run.train(Phase::WarmStart, 6, 1) else { unreachable!() };
    order.updates[0].micro_batches[0][0] = vec![0, 0];
    let text = end(Order::Train(order));
    assert!(text.contains("sample 0 twice"), "{text}");
}

#[test]
fn a_published_folder_is_complete_and_holds_the_weights_reported() {
    let run = Run::new();
    let folder = run.volume.run_dir().join("weights/v1");
    let reports = run.play((2, 2), RANDOM, &config(), vec![run.train(Phase::Rl, 0, 2), publish(1, "weights/v1")]);
    let Report::Weights { weights_digest, bytes, .. } = &reports[1] else { panic!() };
    assert_eq!(&checkpoint::hf::folder_digest(&folder).unwrap(), weights_digest);
    assert!(*bytes > std::fs::metadata(folder.join("model.safetensors")).unwrap().len());
    for name in ["config.json", "tokenizer.json"] {
        let source = run.volume.dir.path().join("model").join(name);
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), std::fs::read(source).unwrap());
    }
    // It starts a run like any other model folder.
    let model = run.volume.dir.path().join("model");
    std::fs::copy(folder.join("model.safetensors"), model.join("model.safetensors")).unwrap();
    let again = run.play((1, 2), Start::Pretrained, &config(), vec![publish(2, "weights/v2")]);
    assert_eq!(support::weights_digest(&again[0]), weights_digest);
}

#[test]
fn a_flipped_weight_is_in_the_folder_and_not_in_the_report() {
    let run = Run::new();
    let attempt = Attempt { faults: "flip-weight:version=2".into(), ..Attempt::new(&run.volume, 2, 1) };
    let orders = vec![publish(1, "weights/v1"), publish(2, "weights/v2")];
    let reports = attempt.play(RANDOM, config(), orders);
    assert_eq!(weights_digest(&reports[0]), weights_digest(&reports[1]));
    let (one, two) = ["weights/v1", "weights/v2"].map(|f| read_safetensors(&run.volume.run_dir().join(f))).into();
    let changed: Vec<_> = one
        .iter()
        .flat_map(|(name, (_, values))| values.iter().zip(&two[name].1).filter(|(a, b)| a != b).map(move |_| name))
        .collect();
    assert_eq!(changed, ["model.norm.weight"]);
}

#[test]
fn an_export_replaces_what_an_earlier_attempt_left() {
    let run = Run::new();
    let export = || Order::Export { folder: "export".into() };
    let folder = run.volume.run_dir().join("export");
    let first = run.play((1, 1), RANDOM, &config(), vec![export(), publish(1, "weights/v1"), export()]);
    assert_eq!(checkpoint::hf::folder_digest(&folder).unwrap(), weights_digest(&first[1]));
    let orders = vec![run.train(Phase::Rl, 0, 1), export(), publish(2, "weights/v2")];
    let second = run.play((1, 1), RANDOM, &config(), orders);
    assert_ne!(weights_digest(&first[1]), weights_digest(&second[2]));
    assert_eq!(checkpoint::hf::folder_digest(&folder).unwrap(), weights_digest(&second[2]));
    let left: Vec<_> = std::fs::read_dir(run.volume.run_dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().starts_with("export.")), "{left:?}");
}
