//! How the ranks of one attempt find each other, and how a rank of an older attempt is kept out.
//!
//! Rank 0 listens at a known address. Every other rank opens a listener of its own, says hello to rank 0 (run uid,
//! attempt, world size, rank, own address) and is told the addresses of all, together with a session number that rank
//! 0 has just drawn. It then connects to each lower rank, showing that number, and accepts each higher one. So a
//! connection inside the mesh exists only between ranks that the same rank 0 admitted to the same attempt.
//!
//! The run uid is an identity, not a secret: whoever may open connections in the pods' network is trusted.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::abort::Abort;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::mesh::TcpTransport;

/// Finds the address of rank 0. Asked again before every try, since a name may begin to resolve later, or resolve to
/// another pod.
pub type Resolve = Arc<dyn Fn() -> io::Result<SocketAddr> + Send + Sync>;

/// What one rank needs to know to join its world.
#[derive(Clone)]
pub struct TcpConfig {
    /// The run; a rank of another run is refused.
    pub run_uid: String,
    /// The attempt; a rank of another attempt is refused.
    pub attempt: u64,
    /// This rank, from 0.
    pub rank: usize,
    /// Ranks in all.
    pub world_size: usize,
    /// Address of rank 0 for messages, e.g. `MASTER_ADDR:MASTER_PORT`.
    pub master: String,
    /// Finds the address of rank 0. Rank 0 itself listens at the port this yields.
    pub resolve: Resolve,
    /// The address of this process (the pod's). Listeners bind it and nothing else; it is what the others dial.
    pub bind: IpAddr,
    /// How long all ranks may take to meet.
    pub join_timeout: Duration,
    /// How long any single wait of a collective may last.
    pub wait_timeout: Duration,
    /// A rank whose process says nothing for so long is given up, whatever it is waited for.
    pub silence: Duration,
}

/// [`TcpConfig::silence`] by default. A process that lives says so ten times meanwhile, whatever else it does.
pub const SILENCE: Duration = Duration::from_secs(20);

impl TcpConfig {
    /// A configuration whose master is a plain `address:port` and whose timeouts are the defaults: 300 s to meet,
    /// 600 s for a wait (a rank may be compiling, loading or saving while the others wait for it).
    ///
    /// # Errors
    /// [`Error::Config`] if `master` is not an address and port.
    pub fn new(
        run_uid: &str,
        attempt: u64,
        rank: usize,
        world_size: usize,
        master: &str,
        bind: IpAddr,
    ) -> Result<Self> {
        let address: SocketAddr = master.parse().map_err(|e| Error::Config(format!("master '{master}': {e}")))?;
        Ok(TcpConfig {
            run_uid: run_uid.to_owned(),
            attempt,
            rank,
            world_size,
            master: master.to_owned(),
            resolve: Arc::new(move || Ok(address)),
            bind,
            join_timeout: Duration::from_secs(300),
            wait_timeout: Duration::from_secs(600),
            silence: SILENCE,
        })
    }
}

/// Joins the world; returns when every rank is connected to every other.
///
/// `abort` can end this wait and every later one.
///
/// # Errors
/// [`Error::Refused`] if this rank belongs to an older attempt or to a world of another size; [`Error::Rendezvous`]
/// if the ranks did not meet in time; [`Error::Aborted`]; [`Error::Config`].
pub fn join(config: &TcpConfig, abort: &Abort) -> Result<Group> {
    if config.rank >= config.world_size {
        let what = format!("rank {} of a world of {}", config.rank, config.world_size);
        return Err(Error::Config(what));
    }
    let meeting = Meeting { config, abort, started: Instant::now() };
    let streams = match (config.world_size, config.rank) {
        (1, _) => vec![None],
        (_, 0) => meeting.host()?,
        _ => meeting.attend()?,
    };
    let transport = TcpTransport::start(config.rank, config.wait_timeout, config.silence, streams)
        .map_err(|e| meeting.failed(&format!("starting the readers: {e}")))?;
    let world = Group::world(Arc::new(transport));
    world.attach(abort);
    // Nobody starts to work in a mesh that is not whole. Waiting for it is still part of the meeting.
    world.meet_within(meeting.check(&|| "not all ranks are connected".into())?)?;
    Ok(world)
}

const GREETING: &str = "thresh-comm/1";
const GREETING_BYTES_MAX: usize = 1 << 20;
/// Silence after connecting (a port scan, a probe) is not allowed to hold up anybody for longer.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    greeting: String,
    run_uid: String,
    attempt: u64,
    world_size: usize,
    rank: usize,
    /// To rank 0: where this rank listens.
    listens: Option<SocketAddr>,
    /// To any other rank: the number drawn by rank 0.
    session: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Where each rank listens (element 0 unused), and the session.
    Roster {
        session: u64,
        addresses: Vec<Option<SocketAddr>>,
    },
    Refused {
        why: String,
        final_: bool,
    },
}

struct Meeting<'a> {
    config: &'a TcpConfig,
    abort: &'a Abort,
    started: Instant,
}

impl Meeting<'_> {
    fn failed(&self, why: &str) -> Error {
        let c = self.config;
        Error::Rendezvous {
            rank: c.rank,
            world_size: c.world_size,
            run_uid: c.run_uid.clone(),
            attempt: c.attempt,
            master: c.master.clone(),
            waited: self.started.elapsed(),
            why: why.to_owned(),
        }
    }

    fn refused(&self, why: String) -> Error {
        Error::Refused { rank: self.config.rank, master: self.config.master.clone(), why }
    }

    /// Fails when there is no point in going on.
    fn check(&self, obstacle: &dyn Fn() -> String) -> Result<Duration> {
        if let Some(why) = self.abort.reason() {
            return Err(Error::Aborted { rank: self.config.rank, op: "rendezvous", group: "world".to_owned(), why });
        }
        match self.config.join_timeout.checked_sub(self.started.elapsed()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(self.failed(&obstacle())),
        }
    }

    fn hello(&self, listens: Option<SocketAddr>, session: Option<u64>) -> Hello {
        let c = self.config;
        Hello {
            greeting: GREETING.to_owned(),
            run_uid: c.run_uid.clone(),
            attempt: c.attempt,
            world_size: c.world_size,
            rank: c.rank,
            listens,
            session,
        }
    }

    fn listen(&self, port: u16) -> Result<TcpListener> {
        let address = SocketAddr::new(self.config.bind, port);
        loop {
            let error = match TcpListener::bind(address) {
                Ok(listener) => {
                    return listener
                        .set_nonblocking(true)
                        .map(|()| listener)
                        .map_err(|e| self.failed(&format!("listening at {address}: {e}")));
                }
                Err(e) => e,
            };
            // The predecessor of this attempt may not have let go of the port yet.
            self.check(&|| format!("cannot listen at {address}: {error}"))?;
            std::thread::sleep(RETRY);
        }
    }

    /// Rank 0: waits for everyone, then tells everyone about everyone.
    fn host(&self) -> Result<Vec<Option<TcpStream>>> {
        let c = self.config;
        let port = loop {
            match (c.resolve)() {
                Ok(address) => break address.port(),
                Err(e) => {
                    self.check(&|| format!("finding {}: {e}", c.master))?;
                    std::thread::sleep(RETRY);
                }
            }
        };
        let arrivals = Arrivals::listen(self.listen(port)?);
        let mut streams: Vec<Option<TcpStream>> = (0..c.world_size).map(|_| None).collect();
        let mut addresses: Vec<Option<SocketAddr>> = vec![None; c.world_size];
        loop {
            let missing: Vec<usize> = (1..c.world_size).filter(|r| !streams[*r].as_ref().is_some_and(alive)).collect();
            if missing.is_empty() {
                break;
            }
            self.check(&|| format!("rank 0 still misses ranks {missing:?}"))?;
            let Some((mut stream, hello)) = arrivals.next(POLL * 10) else { continue };
            if let Err(refusal) = self.admit(&hello, &streams) {
                let _ = write_json(&mut stream, &refusal.answer());
                match refusal {
                    Refusal::Superseded(why) => return Err(self.refused(why)),
                    Refusal::Final(_) | Refusal::Later(_) => continue,
                }
            }
            addresses[hello.rank] = hello.listens;
            streams[hello.rank] = Some(stream);
        }
        let session = draw();
        for (rank, stream) in streams.iter_mut().enumerate() {
            if let Some(stream) = stream {
                write_json(stream, &Answer::Roster { session, addresses: addresses.clone() })
                    .map_err(|e| self.failed(&format!("rank {rank} left before all had come: {e}")))?;
            }
        }
        Ok(streams)
    }

    /// Whether rank 0 takes this one in.
    fn admit(&self, hello: &Hello, streams: &[Option<TcpStream>]) -> std::result::Result<(), Refusal> {
        let c = self.config;
        if hello.greeting != GREETING {
            return Err(Refusal::Final(format!("this is {GREETING}, not {}", hello.greeting)));
        }
        if hello.run_uid != c.run_uid {
            let why = format!("this is rank 0 of run {}, not of run {}", c.run_uid, hello.run_uid);
            return Err(Refusal::Later(why));
        }
        if hello.attempt < c.attempt {
            let why = format!("attempt {} has superseded attempt {}", c.attempt, hello.attempt);
            return Err(Refusal::Final(why));
        }
        if hello.attempt > c.attempt {
            let why = format!("a rank of attempt {} has come to rank 0 of attempt {}", hello.attempt, c.attempt);
            return Err(Refusal::Superseded(why));
        }
        if hello.world_size != c.world_size {
            let why = format!("this world has {} ranks, not {}", c.world_size, hello.world_size);
            return Err(Refusal::Final(why));
        }
        if hello.rank == 0 || hello.rank >= c.world_size || hello.listens.is_none() {
            return Err(Refusal::Final(format!("no place for a rank {} that listens nowhere", hello.rank)));
        }
        if streams[hello.rank].as_ref().is_some_and(alive) {
            return Err(Refusal::Final(format!("rank {} is here already", hello.rank)));
        }
        Ok(())
    }

    /// Any other rank.
    fn attend(&self) -> Result<Vec<Option<TcpStream>>> {
        let c = self.config;
        let listener = self.listen(0)?;
        let listens = listener.local_addr().map_err(|e| self.failed(&format!("own address: {e}")))?;
        let arrivals = Arrivals::listen(listener);
        let (master, session, addresses) = self.admission(listens)?;
        let mut streams: Vec<Option<TcpStream>> = (0..c.world_size).map(|_| None).collect();
        streams[0] = Some(master);
        for (rank, slot) in streams.iter_mut().enumerate().take(c.rank).skip(1) {
            let address = addresses.get(rank).copied().flatten();
            let address = address.ok_or_else(|| self.failed(&format!("the roster lacks rank {rank}")))?;
            let left = self.check(&|| format!("rank {rank} at {address} not reached"))?;
            let stream = TcpStream::connect_timeout(&address, left)
                .and_then(|mut s| write_json(&mut s, &self.hello(None, Some(session))).map(|()| s))
                .map_err(|e| self.failed(&format!("connecting to rank {rank} at {address}: {e}")))?;
            *slot = Some(stream);
        }
        loop {
            let missing: Vec<usize> = (c.rank + 1..c.world_size).filter(|r| streams[*r].is_none()).collect();
            if missing.is_empty() {
                return Ok(streams);
            }
            self.check(&|| format!("ranks {missing:?} have not connected"))?;
            let Some((stream, hello)) = arrivals.next(POLL * 10) else { continue };
            let ours = hello.session == Some(session) && hello.run_uid == c.run_uid && hello.attempt == c.attempt;
            if ours && missing.contains(&hello.rank) {
                streams[hello.rank] = Some(stream);
            }
        }
    }

    /// Asks rank 0 until it answers.
    fn admission(&self, listens: SocketAddr) -> Result<(TcpStream, u64, Vec<Option<SocketAddr>>)> {
        let c = self.config;
        let mut obstacle = "not tried".to_owned();
        loop {
            let left = self.check(&|| obstacle.clone())?;
            match self.ask(listens, left) {
                Ok((stream, Answer::Roster { session, addresses })) => return Ok((stream, session, addresses)),
                Ok((_, Answer::Refused { why, final_: true })) => return Err(self.refused(why)),
                Ok((_, Answer::Refused { why, final_: false })) => obstacle = format!("refused: {why}"),
                Err(e) => obstacle = format!("rank 0 at {}: {e}", c.master),
            }
            std::thread::sleep(RETRY);
        }
    }

    fn ask(&self, listens: SocketAddr, left: Duration) -> io::Result<(TcpStream, Answer)> {
        let mut stream = TcpStream::connect_timeout(&(self.config.resolve)()?, left.min(GREETING_TIMEOUT))?;
        stream.set_nodelay(true)?;
        write_json(&mut stream, &self.hello(Some(listens), None))?;
        // Rank 0 answers when all have come, so this wait is as long as the meeting; look up for aborts meanwhile.
        stream.set_read_timeout(Some(POLL * 10))?;
        let answer = read_json(&mut stream, &|| {
            self.check(&|| "rank 0 has not assembled the world".into()).map(|_| ()).map_err(io::Error::other)
        })?;
        Ok((stream, answer))
    }
}

enum Refusal {
    /// It can never fit.
    Final(String),
    /// Its own rank 0 may come up at this address yet.
    Later(String),
    /// It is us who are out of date.
    Superseded(String),
}

impl Refusal {
    fn answer(&self) -> Answer {
        match self {
            Refusal::Final(why) => Answer::Refused { why: why.clone(), final_: true },
            Refusal::Later(why) | Refusal::Superseded(why) => Answer::Refused { why: why.clone(), final_: false },
        }
    }
}

/// Accepts connections in the background and reads their hello, so that a silent one delays nobody.
struct Arrivals {
    greeted: mpsc::Receiver<(TcpStream, Hello)>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Arrivals {
    fn listen(listener: TcpListener) -> Arrivals {
        let (tx, greeted) = mpsc::channel();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(POLL);
                    continue;
                };
                let tx = tx.clone();
                std::thread::spawn(move || {
                    if let Ok(arrival) = greet(stream) {
                        let _ = tx.send(arrival);
                    }
                });
            }
        });
        Arrivals { greeted, stop }
    }

    fn next(&self, wait: Duration) -> Option<(TcpStream, Hello)> {
        self.greeted.recv_timeout(wait).ok()
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

fn greet(mut stream: TcpStream) -> io::Result<(TcpStream, Hello)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL * 10))?;
    let since = Instant::now();
    let hello = read_json(&mut stream, &|| {
        if since.elapsed() < GREETING_TIMEOUT { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    })?;
    Ok((stream, hello))
}

/// Whether the other end of a quiet connection is still there.
fn alive(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let peeked = stream.peek(&mut [0]);
    let usable = stream.set_nonblocking(false).is_ok();
    usable && matches!(peeked, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

/// A number that no earlier meeting drew: hash keys of the standard library are seeded by the system.
fn draw() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn write_json(stream: &mut TcpStream, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&body);
    stream.write_all(&out)
}

/// Reads one value; the stream has a short read timeout, and after each `go_on` may give up.
fn read_json<T: for<'de> Deserialize<'de>>(
    stream: &mut TcpStream,
    go_on: &dyn Fn() -> io::Result<()>,
) -> io::Result<T> {
    let mut len = [0; 4];
    read_patiently(stream, &mut len, go_on)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > GREETING_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a greeting of {len} bytes")));
    }
    let mut body = vec![0; len];
    read_patiently(stream, &mut body, go_on)?;
    Ok(serde_json::from_slice(&body)?)
}

fn read_patiently(stream: &mut TcpStream, out: &mut [u8], go_on: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
    let mut have = 0;
    while have < out.len() {
        match stream.read(&mut out[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) =>
            {
                go_on()?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
