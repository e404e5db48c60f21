//! A rank that lives says so, and one that says nothing is given up: a process that was stopped, or a node that is gone,
//! closes no connection.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use crate::frame::Header;
use crate::inbox::{Departure, Inbox};
use crate::mesh::Peer;

/// Beats that a peer may miss in a row.
const MISSED_MAX: u32 = 10;

/// Beats until the other end of `stop` is dropped. Silence is counted in our own beats and not by the clock, so that a
/// machine that was asleep, or a process that was stopped, blames nobody when it goes on.
pub(crate) fn beat(peers: &[Option<Peer>], inbox: &Arc<Inbox>, silence: Duration, stop: &Receiver<()>) {
    let every = silence / MISSED_MAX;
    let mut missed = vec![0u32; peers.len()];
    let mut heard = inbox.heard();
    while stop.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let now = inbox.heard();
        for (rank, peer) in peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            send(&peer.writer);
            let count = |heard: &std::collections::HashMap<usize, u64>| heard.get(&rank).copied().unwrap_or(0);
            missed[rank] = if count(&now) == count(&heard) { missed[rank] + 1 } else { 0 };
            if missed[rank] == MISSED_MAX {
                let why = format!(
                    "it has said nothing for {:.0} s: its process is stopped, or its node is lost",
                    silence.as_secs_f32()
                );
                inbox.depart(rank, Departure { why, orderly: false });
                // A write to it that is blocked ends, too.
                let _ = peer.socket.shutdown(Shutdown::Both);
            }
        }
        heard = now;
    }
}

/// Says that we live. While something else is being written, that says it.
fn send(writer: &Mutex<TcpStream>) {
    let mut stream = match writer.try_lock() {
        Ok(stream) => stream,
        Err(TryLockError::WouldBlock) => return,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
    };
    let header = Header::Beat.encode();
    let mut done = 0;
    while done < header.len() {
        match stream.write(&header[done..]) {
            Ok(n) if n > 0 => done += n,
            // Its buffer is full: what fills it speaks for us. Half a header must be finished.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) && done > 0 => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Whoever needs the connection finds out what is wrong with it.
            _ => return,
        }
    }
}
