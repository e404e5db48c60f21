//! The set of tasks that are over.

use std::collections::BTreeSet;

use proptest::prelude::*;
use straw::queue::Settled;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn settled_is_a_set(ids in proptest::collection::vec(0..200u64, 0..300)) {
        let mut naive = BTreeSet::new();
        let mut settled = Settled::default();
        for id in ids {
            prop_assert_eq!(settled.insert(id), naive.insert(id));
        }
        prop_assert!((0..200).all(|id| settled.contains(id) == naive.contains(&id)));
        prop_assert_eq!(settled.len(), naive.len() as u64);
    }
}
