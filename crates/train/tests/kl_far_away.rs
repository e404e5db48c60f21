//! A reference that is far away from the policy pulls it back, and breaks nothing on the way.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use parallel::{AdamWConfig, DistOptimizer, FlatParam, Grid, Groups, Layout};
use rl::KlKind;
use tensor::{Backend, CpuBackend, Tag, Tensor};

#[test]
fn a_kl_to_a_reference_far_above_the_policy_leaves_finite_weights_after_an_update() {
    for kind in [KlKind::K1, KlKind::K2, KlKind::K3, KlKind::LowVar] {
        // Above 88.72 the exponential is no f32 any more.
        for distance in [90.0, 1000.0] {
            let (value, slope) = kind.value_and_derivative(-distance, 0.0);
            let (value, slope) = (value as f32, slope as f32);
            assert!(value.is_finite() && slope.is_finite(), "{kind:?} at {distance}: {value} {slope}");
            let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
            let world = comm::thread::world(1, Duration::from_secs(60)).unwrap().remove(0);
            let groups = Groups::new(world, Grid::new(Layout::dp_tp(1, 1)).unwrap()).unwrap();
            let weights = Tensor::from_slice(&*be, &[0.5f32; 16], &[16], Tag::Weight).unwrap();
            let params = [FlatParam { name: "w".to_owned(), range: 0..16, decay: true, replicated: false }];
            let config = AdamWConfig { max_grad_norm: None, ..AdamWConfig::default() };
            let (dp, tp) = (groups.dp.clone(), groups.tp.clone());
            let mut optimizer = DistOptimizer::new(be.clone(), dp, tp, &params, &weights, config).unwrap();
            let grad = Tensor::from_slice(&*be, &[slope; 16], &[16], Tag::Grad).unwrap();
            optimizer.step(&grad, 1e-2, 1.0).unwrap();
            let after = weights.to_vec::<f32>(&*be).unwrap();
            assert!(after.iter().all(|w| w.is_finite()), "{kind:?}: {after:?}");
            assert!(slope == 0.0 || after.iter().all(|w| *w != 0.5), "{kind:?} moved nothing");
        }
    }
}
