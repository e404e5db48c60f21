//! Loopback addresses: each run holds one subnet 127.77.x.0/24 of this machine, each pod one address in it.
//!
//! A subnet is held by a lock on a file that every user of the machine can see, so two runs never share one, and the lock
//! goes with the process. Addresses are handed out in a circle: a pod that replaces another gets a new address, so that
//! whoever still talks to the old one talks to nobody.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    net::Ipv4Addr,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::PathBuf,
};

use rustix::fs::{FlockOperation, flock};

use crate::error::{At, Error, Result};

const SUBNETS: usize = 256;
const FIRST: u8 = 1;
const LAST: u8 = 254;

/// A subnet of this machine's loopback network, held while this value lives.
#[derive(Debug)]
pub struct Subnet {
    third: u8,
    next: u8,
    held: BTreeMap<Ipv4Addr, String>,
    _lock: File,
}

impl Subnet {
    /// Takes a free subnet, trying first the one that `seed` prefers (so a run usually meets its old one again).
    ///
    /// # Errors
    /// [`Error::NoAddress`] when all are taken.
    pub fn take(seed: u64) -> Result<Self> {
        Self::take_in(&std::env::temp_dir().join("thresh-loopback"), seed)
    }

    fn take_in(folder: &std::path::Path, seed: u64) -> Result<Self> {
        fs::create_dir_all(folder).at("create", folder)?;
        // Other users of this machine lock files here too. Only the folder's owner can open it to them.
        let _ = fs::set_permissions(folder, Permissions::from_mode(0o1777));
        let mut taken = 0;
        for offset in 0..SUBNETS {
            let third = ((seed as usize % SUBNETS + offset) % SUBNETS) as u8;
            let path: PathBuf = folder.join(format!("127.77.{third}"));
            // A file that cannot be opened belongs to someone else: as good as locked.
            let lock = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .mode(0o666)
                .open(&path)
                .or_else(|_| File::open(&path));
            match lock {
                Ok(lock) if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() => {
                    return Ok(Self { third, next: FIRST, held: BTreeMap::new(), _lock: lock });
                }
                _ => taken += 1,
            }
        }
        Err(Error::NoAddress { taken, folder: folder.into() })
    }

    /// Address for a pod: the next in the circle that nobody holds.
    ///
    /// # Errors
    /// [`Error::NoAddress`] when 254 pods hold one.
    pub fn assign(&mut self, pod: &str) -> Result<Ipv4Addr> {
        for _ in FIRST..=LAST {
            let address = Ipv4Addr::new(127, 77, self.third, self.next);
            self.next = if self.next == LAST { FIRST } else { self.next + 1 };
            if let std::collections::btree_map::Entry::Vacant(free) = self.held.entry(address) {
                free.insert(pod.to_owned());
                return Ok(address);
            }
        }
        Err(Error::NoAddress { taken: self.held.len(), folder: format!("127.77.{}.0/24", self.third).into() })
    }

    /// Gives an address back.
    pub fn release(&mut self, address: Ipv4Addr) {
        self.held.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_never_share_a_subnet() {
        let folder = tempfile::tempdir().unwrap();
        let one = Subnet::take_in(folder.path(), 7).unwrap();
        let two = Subnet::take_in(folder.path(), 7).unwrap();
        assert_eq!((one.third, two.third), (7, 8));
        drop(one);
        assert_eq!(Subnet::take_in(folder.path(), 7).unwrap().third, 7);
    }

    #[test]
    fn a_replaced_pod_gets_another_address_than_its_predecessor() {
        let folder = tempfile::tempdir().unwrap();
        let mut subnet = Subnet::take_in(folder.path(), 255).unwrap();
        let old = subnet.assign("engine-0").unwrap();
        let peer = subnet.assign("engine-1").unwrap();
        subnet.release(old);
        let new = subnet.assign("engine-0").unwrap();
        assert_eq!(old, Ipv4Addr::new(127, 77, 255, 1));
        assert!(new != old && new != peer);
    }

    #[test]
    fn addresses_in_use_are_skipped_when_the_circle_closes() {
        let folder = tempfile::tempdir().unwrap();
        let mut subnet = Subnet::take_in(folder.path(), 0).unwrap();
        let keep = subnet.assign("keep").unwrap();
        for _ in 0..300 {
            let address = subnet.assign("short").unwrap();
            assert_ne!(address, keep);
            subnet.release(address);
        }
        while subnet.assign("more").is_ok() {}
        assert_eq!(subnet.held.len(), 254);
    }
}
