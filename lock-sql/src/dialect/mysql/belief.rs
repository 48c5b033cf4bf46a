//! What was last seen of names, so that a try begins with the statement that most likely settles it.
//!
//! Only the order of the statements depends on it, never what they decide.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lock_core::LockName;

/// Names remembered at most; beyond that all are forgotten, which costs each a longer statement once.
const MOST: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    /// Its row is there and nobody holds it.
    Free,
    /// Somebody holds it.
    Held,
}

#[derive(Debug, Default)]
pub(super) struct Beliefs(Mutex<BTreeMap<LockName, Belief>>);

impl Beliefs {
    fn map(&self) -> MutexGuard<'_, BTreeMap<LockName, Belief>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, name: &LockName, belief: Belief) {
        let mut map = self.map();
        if map.len() >= MOST && !map.contains_key(name) {
            map.clear();
        }
        map.insert(name.clone(), belief);
    }

    /// What is believed, and no longer: a try that goes wrong must not go wrong again.
    pub(super) fn take(&self, name: &LockName) -> Option<Belief> {
        self.map().remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_belief_is_used_once_and_there_are_not_too_many() {
        let name = |n: usize| LockName::new(format!("n{n}")).expect("valid");
        let beliefs = Beliefs::default();
        beliefs.set(&name(0), Belief::Free);
        beliefs.set(&name(0), Belief::Held);
        assert_eq!(beliefs.take(&name(0)), Some(Belief::Held));
        assert_eq!(beliefs.take(&name(0)), None);
        for n in 0..3 * MOST {
            beliefs.set(&name(n), Belief::Free);
        }
        assert!(beliefs.map().len() <= MOST);
    }
}
