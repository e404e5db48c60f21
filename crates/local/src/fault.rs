//! Faults this node can play, for tests and chaos. They happen to pods and nodes; the brain is not told, it must notice.

use rustix::process::Signal;

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A signal to a pod's process: KILL, or STOP and CONT for one that hangs and comes back.
    Signal {
        /// The pod.
        pod: String,
        /// Which.
        signal: Signal,
    },
    /// A signal to one process of a pod's group (a trainer rank), by its place in [`crate::Node::processes`].
    SignalProcess {
        /// The pod.
        pod: String,
        /// 0 is the first process.
        place: usize,
        /// Which.
        signal: Signal,
    },
    /// The node cannot be reached: its processes live on, the brain sees them gone.
    Unreachable {
        /// The node.
        node: String,
    },
    /// The node is back; what was deleted meanwhile is ended now.
    Reachable {
        /// The node.
        node: String,
    },
    /// The folder of a claim is gone from its place. Open files live on, as with a dead mount's page cache.
    MountLost {
        /// The claim.
        claim: String,
    },
    /// And back again.
    MountBack {
        /// The claim.
        claim: String,
    },
}
