//! Tiles: any layout loads what any other saved, and nothing else is ever loaded.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;

use checkpoint::{Checkpoint, Error, Fingerprint, RealDisk, Saved};
use support::{LAYOUTS, Rank, config, fingerprint, new_optimizer, on_ranks, value};
use tensor::{DType, Stream};

fn save(layout: (usize, usize), folder: &Path, dtype: DType) -> Saved {
    let all = on_ranks(layout, |g| Rank::filled(g, &config(false), dtype).save(folder, 5).unwrap());
    assert!(all.windows(2).all(|w| w[0] == w[1]), "every rank knows the result");
    all[0].clone()
}

#[test]
fn any_layout_loads_what_any_other_saved_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let mut digests = Vec::new();
    for from in LAYOUTS {
        let folder = dir.path().join(format!("tiles/dp{}-tp{}", from.0, from.1));
        let saved = save(from, &folder, DType::F32);
        Checkpoint::open(&folder, Some(&saved.index_sha256)).unwrap().verify().unwrap();
        digests.push(saved.weights_digest.clone());
        for to in LAYOUTS {
            on_ranks(to, |g| {
                let mut rank = Rank::new(g, &config(false), DType::F32);
                let meta = rank.load(&folder, Some(&saved.index_sha256)).unwrap();
                rank.assert_filled();
                assert_eq!((meta.position, meta.optimizer_steps), (support::position(5), 7));
                assert_eq!(rank.optimizer.optimizer_steps(), 7);
                assert_eq!(rank.digest(), saved.weights_digest);
            });
        }
    }
    assert!(digests.windows(2).all(|w| w[0] == w[1]), "the digest does not know the layout: {digests:?}");
}

#[test]
fn weights_in_bf16_survive_a_change_of_layout() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    let saved = save((2, 2), &folder, DType::BF16);
    assert!(folder.join("w-0003.safetensors").exists());
    on_ranks((4, 1), |g| {
        let mut rank = Rank::new(g, &config(false), DType::BF16);
        rank.load(&folder, Some(&saved.index_sha256)).unwrap();
        rank.assert_filled();
        assert_eq!(rank.digest(), saved.weights_digest);
    });
    // Another compute type takes the masters.
    on_ranks((1, 2), |g| {
        let mut rank = Rank::new(g, &config(false), DType::F32);
        rank.load(&folder, Some(&saved.index_sha256)).unwrap();
        rank.assert_filled();
    });
}

#[test]
fn weights_alone_load_without_touching_an_optimizer() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let folder = dir.path().join(format!("{dtype:?}"));
        let saved = save((2, 1), &folder, dtype);
        for target in [DType::F32, DType::BF16] {
            on_ranks((1, 2), |g| {
                let rank = Rank::new(g, &config(false), target);
                let checkpoint = Checkpoint::open(&folder, Some(&saved.index_sha256)).unwrap();
                checkpoint.load_weights(&fingerprint(), &*rank.be, &rank.store).unwrap();
                if dtype == target || dtype == DType::F32 {
                    rank.assert_weights();
                }
                let own = rank.optimizer.owned().next().unwrap().m.to_vec::<f32>(&*rank.be).unwrap();
                assert!(own.iter().all(|x| *x == 0.0));
            });
        }
    }
}

/// A gradient that is the same whole tensor in any layout.
fn train(rank: &mut Rank, from: usize, to: usize) {
    for step in from..to {
        let mut grad = vec![0f32; rank.store.layout().len];
        for (spec, entry) in rank.store.specs().iter().zip(&rank.store.layout().entries) {
            entry.rect.shared_runs(&checkpoint::Rect::full(&spec.shape), |at, global, n| {
                for i in 0..n {
                    grad[entry.offset + at + i] = value(&format!("g{step}.{}", spec.name), global + i);
                }
            });
        }
        // All of it on the first data parallel rank: then no sum is bracketed differently.
        if rank.groups.dp.rank() != 0 {
            grad.fill(0.0);
        }
        let grad = tensor::Tensor::from_slice(&*rank.be, &grad, &[grad.len()], tensor::Tag::Grad).unwrap();
        rank.optimizer.step(&grad, 1e-2, 1.0).unwrap();
    }
}

#[test]
fn ten_steps_equal_five_then_a_reshard_then_five() {
    let dir = tempfile::tempdir().unwrap();
    let straight = on_ranks((1, 1), |g| {
        let mut rank = Rank::filled(g, &config(false), DType::F32);
        train(&mut rank, 0, 10);
        rank.digest()
    });
    for (from, to) in [((1, 1), (2, 2)), ((2, 1), (1, 2)), ((4, 2), (2, 1)), ((2, 2), (2, 2))] {
        let folder = dir.path().join(format!("{from:?}-{to:?}"));
        let saved = on_ranks(from, |g| {
            let mut rank = Rank::filled(g, &config(false), DType::F32);
            train(&mut rank, 0, 5);
            rank.save(&folder, 5).unwrap()
        });
        let digests = on_ranks(to, |g| {
            let mut rank = Rank::new(g, &config(false), DType::F32);
            rank.load(&folder, Some(&saved[0].index_sha256)).unwrap();
            train(&mut rank, 5, 10);
            rank.digest()
        });
        assert_eq!(digests[0], straight[0], "{from:?} to {to:?}");
    }
}

#[test]
fn one_changed_bit_of_one_weight_changes_the_digest_in_any_layout() {
    for layout in [(1, 1), (2, 2)] {
        let digests = on_ranks(layout, |g| {
            let rank = Rank::filled(g, &config(true), DType::F32);
            let before = rank.digest();
            let entry = rank.store.layout().entries.iter().find(|e| e.name == "layers.1.mlp.gate_up").unwrap();
            let at = entry.offset + 3;
            if rank.groups.tp.rank() == 0 {
                let x = rank.store.flat().flat(at, 1).unwrap();
                let flipped = f32::from_bits(x.to_vec::<f32>(&*rank.be).unwrap()[0].to_bits() ^ 1);
                rank.be.upload(Stream::COMPUTE, &x, &flipped.to_le_bytes()).unwrap();
            }
            (before, rank.digest())
        });
        assert!(digests.iter().all(|(before, after)| before != after && *after == digests[0].1));
    }
}

#[test]
fn a_checkpoint_of_another_model_or_tokenizer_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    let saved = save((2, 1), &folder, DType::F32);
    let bytes = |f: &str| std::fs::read(folder.join(f)).unwrap();
    let before = (bytes("index.json"), bytes("meta.json"), bytes("o-0000.safetensors"));
    for other in [
        Fingerprint { model: "qwen3-h128-l2-ffffffffffffffff".into(), ..fingerprint() },
        Fingerprint { tokenizer: "0000000000000000".into(), ..fingerprint() },
    ] {
        let errors = on_ranks((1, 2), |g| {
            let mut rank = Rank::new(g, &config(false), DType::F32);
            let (sha, groups) = (Some(saved.index_sha256.as_str()), &rank.groups);
            checkpoint::load(&folder, sha, &other, groups, &*rank.be, &rank.store, &mut rank.optimizer).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Fingerprint { .. }), "{text}");
            let names_both = [fingerprint().model, other.model.clone()].iter().all(|m| text.contains(m))
                || [fingerprint().tokenizer, other.tokenizer.clone()].iter().all(|t| text.contains(t));
            assert!(names_both, "{text}");
        }
    }
    assert_eq!((bytes("index.json"), bytes("meta.json"), bytes("o-0000.safetensors")), before);
}

/// What loading says, after `damage` was done to a good checkpoint, with the digest of the index as it now is (so that
/// the damage itself must be found, not the changed index).
fn after(damage: impl FnOnce(&Path, &mut serde_json::Value)) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    save((2, 2), &folder, DType::F32);
    let path = folder.join("index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    damage(&folder, &mut index);
    std::fs::write(&path, serde_json::to_vec(&index).unwrap()).unwrap();
    let mut errors = on_ranks((1, 2), |g| {
        let mut rank = Rank::new(g, &config(false), DType::F32);
        rank.load(&folder, None).unwrap_err()
    });
    // Both ranks fail; return the one that saw it.
    let at = errors.iter().position(|e| !matches!(e, Error::Rank { .. })).unwrap_or(0);
    errors.swap_remove(at)
}

#[test]
fn a_missing_moment_is_an_error_that_names_it() {
    let error = after(|_, index| {
        index["tensors"].as_object_mut().unwrap().remove("v.layers.1.mlp.down").unwrap();
    });
    assert!(matches!(&error, Error::Missing { names, .. } if names == &["v.layers.1.mlp.down"]), "{error}");
    let error = after(|_, index| {
        index["tensors"].as_object_mut().unwrap().retain(|name, _| !name.starts_with("m."));
    });
    assert!(error.to_string().contains("m.embed") && error.to_string().contains("more"), "{error}");
}

#[test]
fn a_changed_byte_is_found_by_its_checksum() {
    let error = after(|folder, _| {
        let path = folder.join("o-0001.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 5;
        bytes[last] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
    });
    assert!(matches!(&error, Error::Checksum { path, .. } if path.ends_with("o-0001.safetensors")), "{error}");
}

#[test]
fn a_torn_or_missing_file_is_named() {
    let error = after(|folder, _| {
        let path = folder.join("o-0002.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    });
    assert!(matches!(&error, Error::Damaged { path, .. } if path.ends_with("o-0002.safetensors")), "{error}");
    let error = after(|folder, _| std::fs::remove_file(folder.join("o-0003.safetensors")).unwrap());
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("o-0003.safetensors")), "{error}");
}

#[test]
fn a_missing_doubled_or_overlapping_tile_is_found() {
    let tiles = |index: &mut serde_json::Value| index["tensors"]["m.embed"]["tiles"].as_array_mut().unwrap().clone();
    let error = after(|_, index| {
        let mut left = tiles(index);
        left.remove(1);
        index["tensors"]["m.embed"]["tiles"] = left.into();
    });
    assert!(
        matches!(&error, Error::Coverage { tensor, what, .. } if tensor == "m.embed" && what.contains("in no tile")),
        "{error}"
    );
    let error = after(|_, index| {
        let mut more = tiles(index);
        more.push(more[0].clone());
        index["tensors"]["m.embed"]["tiles"] = more.into();
    });
    assert!(matches!(&error, Error::Coverage { what, .. } if what.contains("overlap")), "{error}");
    let error = after(|_, index| index["tensors"]["m.embed"]["tiles"][0]["key"] = "m.embed@99,99".into());
    assert!(matches!(&error, Error::Missing { names, .. } if names[0].contains("m.embed@99,99")), "{error}");
}

#[test]
fn an_index_or_meta_that_is_not_the_committed_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    let saved = save((1, 1), &folder, DType::F32);
    let error = Checkpoint::open(&folder, Some(&"0".repeat(64))).unwrap_err();
    assert!(error.to_string().contains(&saved.index_sha256), "{error}");
    let meta = folder.join("meta.json");
    let text = std::fs::read_to_string(&meta).unwrap().replace("\"step\": 5", "\"step\": 6");
    std::fs::write(&meta, text).unwrap();
    let error = Checkpoint::open(&folder, Some(&saved.index_sha256)).unwrap_err();
    assert!(matches!(&error, Error::Damaged { path, .. } if path.ends_with("meta.json")), "{error}");
}

#[test]
fn a_model_of_another_shape_is_refused_tensor_by_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    save((1, 1), &folder, DType::F32);
    let other = models::ModelConfig::from_json(&support::config_json(64, false)).unwrap();
    let errors = on_ranks((1, 1), |g| Rank::new(g, &other, DType::F32).load(&folder, None).unwrap_err());
    assert!(matches!(&errors[0], Error::Mismatch { tensor, .. } if tensor == "master.embed"), "{}", errors[0]);
}

#[test]
fn a_complete_folder_never_changes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    save((1, 1), &folder, DType::F32);
    let errors = on_ranks((2, 1), |g| Rank::filled(g, &config(false), DType::F32).save(&folder, 6).unwrap_err());
    assert!(errors.iter().any(|e| matches!(e, Error::Exists { .. })), "{errors:?}");
    assert!(Checkpoint::open(&folder, None).unwrap().verify().is_ok());
}

#[test]
fn a_failed_save_can_be_tried_again_in_the_same_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("o-0000.safetensors"), b"half a file of a save that ran out of disk").unwrap();
    save((2, 1), &folder, DType::F32);
    assert!(Checkpoint::open(&folder, None).unwrap().verify().is_ok());
}

#[test]
fn tiles_are_ordinary_tensors_in_ordinary_files() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    save((2, 2), &folder, DType::F32);
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    let entry = &checkpoint.index().tensors["m.layers.0.attn.qkv"];
    assert!(entry.tiles.len() > 1);
    for tile in &entry.tiles {
        let bytes = std::fs::read(folder.join(&tile.file)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = file.tensor(&tile.key).unwrap();
        assert_eq!(tensor.shape(), tile.shape);
        let first = f32::from_le_bytes(tensor.data()[..4].try_into().unwrap());
        let strides = [entry.shape[1] * entry.shape[2], entry.shape[2], 1];
        let at: usize = tile.offset.iter().zip(strides).map(|(o, s)| o * s).sum();
        assert_eq!(first.to_bits(), value("m.layers.0.attn.qkv", at).to_bits());
    }
    // No marker beside them: the commit record is the only truth.
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let files = ["o-0000", "o-0001", "o-0002", "o-0003"].map(|f| format!("{f}.safetensors"));
    assert_eq!(names, [&["index.json".to_owned(), "meta.json".to_owned()][..], &files].concat());
}

#[test]
fn a_save_fails_on_all_ranks_or_on_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    // The first rank cannot make the folder; the others could go on.
    let errors = on_ranks((2, 1), |g| {
        let rank = Rank::filled(g, &config(false), DType::F32);
        rank.save_on(&RealDisk, &file.join("a"), 5).unwrap_err()
    });
    assert!(matches!(errors[0], Error::Io { .. }), "{}", errors[0]);
    assert!(matches!(errors[1], Error::Rank { rank: 0, .. }), "{}", errors[1]);
}

#[test]
fn an_optimizer_made_from_loaded_weights_has_the_loaded_masters() {
    on_ranks((2, 1), |g| {
        let rank = Rank::filled(g, &config(false), DType::F32);
        let fresh = new_optimizer(&rank.groups, &rank.be, &rank.store);
        for (a, b) in fresh.owned().zip(rank.optimizer.owned()) {
            assert_eq!(a.master.to_vec::<f32>(&*rank.be).unwrap(), b.master.to_vec::<f32>(&*rank.be).unwrap());
        }
    });
}

/// A gated layer of eight rows whose gate rows hold 0..7 and whose up rows hold 100..107.
fn gated() -> Vec<models::ParamSpec> {
    let mut specs = models::param_specs(&config(true));
    specs.retain(|s| s.name == "layers.0.mlp.gate_up");
    specs[0].shape = vec![2, 8, 1];
    for (i, piece) in specs[0].hf.iter_mut().enumerate() {
        piece.shape = vec![8, 1];
        piece.rect = checkpoint::Rect { offset: vec![i, 0, 0], shape: vec![1, 8, 1] };
    }
    specs
}

#[test]
fn gate_and_up_stay_apart_when_a_gated_mlp_is_resharded() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    on_ranks((1, 4), |g| {
        let tp = g.tp.rank();
        let rank = Rank::of_specs(g, gated(), DType::F32);
        let rows = [0.0, 1.0, 100.0, 101.0].map(|x| x + 2.0 * tp as f32);
        for piece in rank.optimizer.owned() {
            let owned: Vec<f32> = piece.flat.clone().map(|i| rows.get(i).copied().unwrap_or(0.0)).collect();
            for t in [&piece.master, &piece.m] {
                rank.be.upload(Stream::COMPUTE, t, bytes_of(&owned).as_slice()).unwrap();
            }
        }
        rank.optimizer.weights_from_masters().unwrap();
        rank.save(&folder, 1).unwrap();
    });
    for tp in [1, 2, 8] {
        let ranks = on_ranks((1, tp), |g| {
            let mut rank = Rank::of_specs(g, gated(), DType::F32);
            rank.load(&folder, None).unwrap();
            let n = 16 / tp;
            let read = |t: &tensor::Tensor| t.flat(0, n).unwrap().to_vec::<f32>(&*rank.be).unwrap();
            let owned = rank.optimizer.owned().next().unwrap();
            assert_eq!(read(&owned.m), read(&owned.master));
            read(rank.store.flat())
        });
        let half = |first: usize| ranks.iter().flat_map(move |r| r[first * 8 / tp..][..8 / tp].to_vec());
        let gathered: Vec<f32> = half(0).chain(half(1)).collect();
        let want: Vec<f32> = (0..8).chain(100..108).map(|x| x as f32).collect();
        assert_eq!(gathered, want, "tp {tp}");
    }
}

fn bytes_of(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}
