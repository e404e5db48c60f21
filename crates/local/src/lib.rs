//! A cluster of one machine: it keeps API objects, plays their controllers and the kubelet, and runs pods as processes.
//!
//! What it is: the executor of the same plans the operator executes on Kubernetes. It knows Job, StatefulSet, DaemonSet,
//! Service, ConfigMap and Secret as far as our children use them, and does with them what a cluster does.
//!
//! [`Node`] is the cluster, [`operator::Operator`] the operator on it, [`run`] the two of them with a manifest and a person.
//!
//! What it is **not**: a container runtime. Images are ignored, `command[0]` names one of our binaries, file systems are
//! this machine's, and only loopback is used. It decides nothing about runs: that is `plan`.
//!
//! Invariants:
//! - no process outlives the node, and none is ever adopted by another ([`process`], [`leftovers`]);
//! - a state folder has one holder ([`folder::Folder`]); its files change in one step each;
//! - a pod's address and a pod's process belong to one pod uid; a replaced pod gets new ones;
//! - how a trainer pod ended is on record until its Job has counted it ([`controllers::job`]).

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod address;
pub mod container;
pub mod controllers;
mod error;
pub mod event;
pub mod fault;
pub mod folder;
pub mod full_disk;
pub mod hosts;
pub mod leftovers;
pub mod manifest_watch;
pub mod mount;
pub mod node;
pub mod objects;
pub mod operator;
pub mod pod;
pub mod pod_group;
pub mod pod_log;
pub mod preflight;
pub mod probe;
pub mod process;
pub mod run;
pub mod status_file;
pub mod steps;
pub mod template;

pub use error::{Error, Result};
pub use fault::Fault;
pub use node::{Health, Node, Notice, Options};
