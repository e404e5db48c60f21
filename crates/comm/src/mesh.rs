//! Ranks that are processes: one TCP connection between every two, made by [`crate::tcp`].
//!
//! A thread per peer reads whatever arrives into the inbox, so a sender never waits for the receiver's program, only
//! for its network; and so the death of a peer (its kernel closes the connection) is seen at once, in whatever
//! collective we are.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::beat::beat;
use crate::error::{Error, Result};
use crate::frame::Header;
use crate::inbox::{Departure, Inbox};
use crate::message::{Message, Tag};
use crate::transport::{Transport, describe_wait};

/// A blocked write looks this often whether it has become pointless.
const WRITE_POLL: Duration = Duration::from_millis(100);

/// After a failed write, how long to wait for the reader to find the peer's parting words.
const REASON_PATIENCE: Duration = Duration::from_millis(500);

/// A long message is a sign of life in every part.
const PART: usize = 16 << 20;

pub(crate) struct TcpTransport {
    rank: usize,
    timeout: Duration,
    inbox: Arc<Inbox>,
    /// By world rank; `None` at our own.
    peers: Arc<Vec<Option<Peer>>>,
    /// Dropped with us, it ends the beat.
    _beating: Sender<()>,
}

pub(crate) struct Peer {
    pub(crate) writer: Mutex<TcpStream>,
    /// The same socket, to shut it down while a writer holds the lock.
    pub(crate) socket: TcpStream,
}

impl TcpTransport {
    /// Takes over the connections of a complete mesh: `streams[r]` leads to rank `r`, `None` at `rank` itself. A peer that
    /// says nothing for `silence` is given up.
    pub(crate) fn start(
        rank: usize,
        timeout: Duration,
        silence: Duration,
        streams: Vec<Option<TcpStream>>,
    ) -> io::Result<TcpTransport> {
        let inbox = Arc::new(Inbox::new(rank));
        let mut peers = Vec::with_capacity(streams.len());
        for (peer, stream) in streams.into_iter().enumerate() {
            let Some(stream) = stream else {
                peers.push(None);
                continue;
            };
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(WRITE_POLL))?;
            let (reader, socket) = (stream.try_clone()?, stream.try_clone()?);
            let inbox = inbox.clone();
            std::thread::Builder::new()
                .name(format!("comm-from-{peer}"))
                .spawn(move || read_from(peer, reader, &inbox))?;
            peers.push(Some(Peer { writer: Mutex::new(stream), socket }));
        }
        let peers = Arc::new(peers);
        let (beating, stop) = channel();
        let (theirs, ears) = (peers.clone(), inbox.clone());
        std::thread::Builder::new().name("comm-beat".into()).spawn(move || beat(&theirs, &ears, silence, &stop))?;
        Ok(TcpTransport { rank, timeout, inbox, peers, _beating: beating })
    }

    fn leave(&self, why: &str, orderly: bool) {
        for peer in self.peers.iter().flatten() {
            // A writer that is stuck holds the lock until it looks up; if it does not, the peer learns from the closed
            // connection instead.
            let patience = Instant::now();
            let mut writer = peer.writer.try_lock();
            while writer.is_err() && patience.elapsed() < WRITE_POLL * 2 {
                std::thread::sleep(Duration::from_millis(1));
                writer = peer.writer.try_lock();
            }
            if let Ok(mut stream) = writer {
                let header = Header::Leave { orderly, len: why.len() as u64 }.encode();
                let _ = stream.write_all(&[&header, why.as_bytes()].concat());
            }
            // Only our half: the peer may still be reading what we sent before.
            let _ = peer.socket.shutdown(if orderly { Shutdown::Write } else { Shutdown::Both });
        }
    }

    fn write(&self, to: usize, stream: &mut TcpStream, group: &str, tag: Tag, payload: &[u8]) -> Result<()> {
        let started = Instant::now();
        let header = Header::Data { tag, len: payload.len() as u64 }.encode();
        let lost = |why: &str| {
            self.inbox.depart(to, Departure { why: why.to_owned(), orderly: false });
            let op = tag.op.name();
            Error::PeerGone { rank: self.rank, peer: to, op, group: group.to_owned(), why: why.to_owned() }
        };
        let total = header.len() + payload.len();
        let mut done = 0;
        while done < total {
            let outcome = if done < header.len() {
                stream.write_vectored(&[IoSlice::new(&header[done..]), IoSlice::new(payload)])
            } else {
                stream.write(&payload[done - header.len()..])
            };
            match outcome {
                Ok(0) => return Err(lost("its connection takes no more bytes")),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.inbox.check(group, tag)?;
                    if started.elapsed() > self.timeout {
                        let why = format!("it read nothing for {} s", started.elapsed().as_secs());
                        return Err(lost(&why));
                    }
                }
                Err(e) => {
                    // The reader thread knows better (the reason the peer gave), or will in a moment.
                    self.inbox.await_departure(to, REASON_PATIENCE);
                    self.inbox.check(group, tag)?;
                    return Err(lost(&e.to_string()));
                }
            }
        }
        Ok(())
    }
}

/// A killed process closes its connections; of one that is stopped, and of a node that is gone, the beat tells
/// ([`crate::beat`]). This frees the connection.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// Moves everything a peer sends into the inbox, until it leaves.
fn read_from(peer: usize, mut stream: TcpStream, inbox: &Inbox) {
    let gone = |why: String, orderly| inbox.depart(peer, Departure { why, orderly });
    loop {
        let header = Header::read(&mut stream);
        inbox.hear(peer);
        match header {
            Ok(Some(Header::Data { tag, len })) => {
                let mut bytes = inbox.buffer(len as usize);
                for part in bytes.chunks_mut(PART) {
                    if let Err(e) = stream.read_exact(part) {
                        return gone(format!("its connection broke inside a message: {e}"), false);
                    }
                    inbox.hear(peer);
                }
                inbox.deliver(peer, Message { tag, bytes });
            }
            Ok(Some(Header::Beat)) => {}
            Ok(Some(Header::Leave { orderly, len })) => {
                let mut why = Vec::new();
                let _ = (&mut stream).take(len.min(4096)).read_to_end(&mut why);
                return gone(String::from_utf8_lossy(&why).into_owned(), orderly);
            }
            Ok(None) => return gone("its connection closed without a word: the process died".into(), false),
            Err(e) => return gone(format!("its connection broke: {e}"), false),
        }
    }
}

fn lock(stream: &Mutex<TcpStream>) -> MutexGuard<'_, TcpStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for TcpTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.peers.len()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn send(&self, to: usize, group: &str, tag: Tag, bytes: &[u8]) -> Result<()> {
        self.inbox.check(group, tag)?;
        let Some(peer) = &self.peers[to] else {
            return Err(Error::Argument {
                rank: self.rank,
                group: group.to_owned(),
                op: tag.op.name(),
                what: "a rank cannot exchange messages with itself".into(),
            });
        };
        self.write(to, &mut lock(&peer.writer), group, tag, bytes)
    }

    fn abort(&self, why: &str) {
        self.inbox.abort(why);
        self.leave(&format!("it was told to stop: {why}"), false);
    }

    fn describe_waits(&self) -> String {
        let waits = self.inbox.waits();
        waits.iter().map(|w| describe_wait(self.rank, w)).collect::<Vec<_>>().join("; ")
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.leave("its thread panicked", false);
        } else {
            self.leave("it finished and left the world", true);
        }
    }
}
