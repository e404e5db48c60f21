//! An ordered set of ranks and the moves between them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensor::{Comm, Stream, Tensor};

use crate::abort::Abort;
use crate::error::{Error, Result};
use crate::message::{Op, Tag};
use crate::transport::Transport;

/// Ranks in a fixed order, of which this process (or thread) is one. Implements [`tensor::Comm`].
///
/// A world is the group of all ranks; [`Group::split`] makes smaller ones on the same connections, at no cost.
/// Calls of one group must come from one thread at a time and in the same order on every member; different groups
/// may be used from different threads at once. Counts are bytes throughout.
pub struct Group {
    endpoint: Arc<Endpoint>,
    name: String,
    id: u64,
    ranks: Vec<usize>,
    me: usize,
    collectives: AtomicU64,
    sent: Vec<AtomicU64>,
    received: Vec<AtomicU64>,
}

/// What the groups of one world share.
struct Endpoint {
    transport: Arc<dyn Transport>,
    names: Mutex<BTreeMap<u64, String>>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("name", &self.name).field("ranks", &self.ranks).field("me", &self.me).finish()
    }
}

impl Group {
    pub(crate) fn world(transport: Arc<dyn Transport>) -> Group {
        let ranks: Vec<usize> = (0..transport.size()).collect();
        let me = transport.rank();
        let id = group_id("world", &ranks);
        let names = Mutex::new(BTreeMap::from([(id, "world".to_owned())]));
        Group::build(Arc::new(Endpoint { transport, names }), "world", id, ranks, me)
    }

    fn build(endpoint: Arc<Endpoint>, name: &str, id: u64, ranks: Vec<usize>, me: usize) -> Group {
        let counters = || ranks.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Group {
            sent: counters(),
            received: counters(),
            endpoint,
            name: name.to_owned(),
            id,
            ranks,
            me,
            collectives: AtomicU64::new(0),
        }
    }

    /// The group of the given world ranks, in the given order. Every member must call this with the same arguments;
    /// nobody waits. `name` appears in errors and must be new in this world.
    ///
    /// # Errors
    /// [`Error::Group`] if this rank is not a member, a rank is out of range or named twice, or the name is taken.
    pub fn split(&self, name: &str, ranks: &[usize]) -> Result<Group> {
        let refuse = |what: String| Error::Group { name: name.to_owned(), ranks: ranks.to_vec(), what };
        let world_rank = self.world_rank();
        let size = self.endpoint.transport.size();
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            return Err(refuse("a rank is named twice".into()));
        }
        if let Some(out) = sorted.last().filter(|r| **r >= size) {
            return Err(refuse(format!("rank {out} is not in a world of {size}")));
        }
        let Some(me) = ranks.iter().position(|r| *r == world_rank) else {
            return Err(refuse(format!("rank {world_rank} is not a member")));
        };
        let id = group_id(name, ranks);
        let mut names = self.endpoint.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = names.get(&id) {
            return Err(refuse(format!("it exists already as '{other}'; a group is split once per world")));
        }
        names.insert(id, name.to_owned());
        drop(names);
        Ok(Group::build(self.endpoint.clone(), name, id, ranks.to_vec(), me))
    }

    /// World ranks of the members, in group order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// This rank's place in the world.
    pub fn world_rank(&self) -> usize {
        self.endpoint.transport.rank()
    }

    /// A handle that ends every wait of this rank, in any group of this world.
    pub fn abort_handle(&self) -> Abort {
        let abort = Abort::new();
        abort.attach(&self.endpoint.transport);
        abort
    }

    pub(crate) fn attach(&self, abort: &Abort) {
        abort.attach(&self.endpoint.transport);
    }

    fn next(&self, op: Op) -> Tag {
        Tag { group: self.id, op, seq: self.collectives.fetch_add(1, Ordering::Relaxed) }
    }

    fn push(&self, to: usize, tag: Tag, bytes: &[u8]) -> Result<()> {
        self.endpoint.transport.send(self.ranks[to], &self.name, tag, bytes)
    }

    fn pull(&self, from: usize, tag: Tag, out: &mut [u8]) -> Result<()> {
        self.pull_within(from, tag, out, self.endpoint.transport.timeout())
    }

    fn pull_within(&self, from: usize, tag: Tag, out: &mut [u8], timeout: Duration) -> Result<()> {
        let t = &self.endpoint.transport;
        t.inbox().take(self.ranks[from], &self.name, tag, out, timeout, &|| t.describe_waits())
    }

    fn argument(&self, op: &'static str, what: String) -> Error {
        Error::Argument { rank: self.world_rank(), group: self.name.clone(), op, what }
    }

    /// The other members, starting after this one, so that not everybody sends to rank 0 first.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, n) = (self.me, self.ranks.len());
        (1..n).map(move |d| (me + d) % n)
    }

    /// Concatenates everyone's `send` in group order into `recv`; `recv.len() == size * send.len()`.
    fn gather(&self, send: &[u8], recv: &mut [u8]) -> Result<()> {
        if recv.len() != send.len() * self.ranks.len() {
            let what = format!("recv has {} bytes, not {} times {}", recv.len(), self.ranks.len(), send.len());
            return Err(self.argument("all_gather", what));
        }
        let tag = self.next(Op::AllGather);
        let n = send.len();
        recv[self.me * n..][..n].copy_from_slice(send);
        self.exchange(tag, |_| send, recv, |from| (from * n, n))
    }

    /// The same without a separate `send`: this rank's part already lies in its place in `buffer`.
    fn gather_in_place(&self, buffer: &mut [u8]) -> Result<()> {
        if !buffer.len().is_multiple_of(self.ranks.len()) {
            let what = format!("{} bytes do not divide by {} ranks", buffer.len(), self.ranks.len());
            return Err(self.argument("all_gather", what));
        }
        let tag = self.next(Op::AllGather);
        let n = buffer.len() / self.ranks.len();
        for to in self.others() {
            self.push(to, tag, &buffer[self.me * n..][..n])?;
        }
        for from in self.others() {
            self.pull(from, tag, &mut buffer[from * n..][..n])?;
        }
        Ok(())
    }

    /// Sends consecutive pieces of `send`, `send_counts[r]` bytes to member `r`, and fills `recv` with
    /// `recv_counts[r]` bytes from each, in group order.
    fn exchange_pieces(
        &self,
        send: &[u8],
        send_counts: &[usize],
        recv: &mut [u8],
        recv_counts: &[usize],
    ) -> Result<()> {
        let n = self.ranks.len();
        if send_counts.len() != n || recv_counts.len() != n {
            return Err(self.argument("all_to_all", format!("counts must name all {n} ranks")));
        }
        let (send_at, sent) = starts(send_counts);
        let (recv_at, received) = starts(recv_counts);
        if sent != send.len() || received != recv.len() {
            let what =
                format!("counts add up to {sent} and {received} bytes, buffers have {} and {}", send.len(), recv.len());
            return Err(self.argument("all_to_all", what));
        }
        let me = self.me;
        if send_counts[me] != recv_counts[me] {
            return Err(self.argument("all_to_all", "own piece has two sizes".into()));
        }
        let tag = self.next(Op::AllToAll);
        recv[recv_at[me]..][..recv_counts[me]].copy_from_slice(&send[send_at[me]..][..send_counts[me]]);
        self.exchange(
            tag,
            |to| &send[send_at[to]..][..send_counts[to]],
            recv,
            |from| (recv_at[from], recv_counts[from]),
        )
    }

    fn exchange<'a>(
        &self,
        tag: Tag,
        piece: impl Fn(usize) -> &'a [u8],
        recv: &mut [u8],
        place: impl Fn(usize) -> (usize, usize),
    ) -> Result<()> {
        for to in self.others() {
            self.push(to, tag, piece(to))?;
        }
        for from in self.others() {
            let (at, len) = place(from);
            self.pull(from, tag, &mut recv[at..][..len])?;
        }
        Ok(())
    }

    /// Copies `buffer` of member `root` to everyone.
    fn spread(&self, buffer: &mut [u8], root: usize) -> Result<()> {
        self.member("broadcast", root)?;
        let tag = self.next(Op::Broadcast);
        if self.me == root {
            for to in self.others() {
                self.push(to, tag, buffer)?;
            }
            return Ok(());
        }
        self.pull(root, tag, buffer)
    }

    /// Like `spread` where only `root` knows the length: `root` passes what to send, the others
    /// pass anything; all get what `root` sent.
    fn spread_blob(&self, blob: &[u8], root: usize) -> Result<Vec<u8>> {
        let mut len = (blob.len() as u64).to_le_bytes();
        self.spread(&mut len, root)?;
        let mut out = vec![0; u64::from_le_bytes(len) as usize];
        if self.me == root {
            out.copy_from_slice(blob);
        }
        self.spread(&mut out, root)?;
        Ok(out)
    }

    /// Everyone's blob, of whatever length, in group order, at everyone.
    fn gather_blobs(&self, blob: &[u8]) -> Result<Vec<Vec<u8>>> {
        let n = self.ranks.len();
        let mut lens = vec![0u8; 8 * n];
        self.gather(&(blob.len() as u64).to_le_bytes(), &mut lens)?;
        let lens: Vec<usize> = lens
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]) as usize)
            .collect();
        let tag = self.next(Op::AllGather);
        let mut out: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        out[self.me].copy_from_slice(blob);
        for to in self.others() {
            self.push(to, tag, blob)?;
        }
        for from in self.others() {
            self.pull(from, tag, &mut out[from])?;
        }
        Ok(out)
    }

    /// Hands `bytes` to member `to`, who takes them by `pull_from`. Does not wait for the taking.
    fn push_to(&self, bytes: &[u8], to: usize) -> Result<()> {
        self.peer("send", to)?;
        let seq = self.sent[to].fetch_add(1, Ordering::Relaxed);
        self.push(to, Tag { group: self.id, op: Op::PointToPoint, seq }, bytes)
    }

    /// Takes the next message of member `from`, which must have exactly `out.len()` bytes.
    fn pull_from(&self, out: &mut [u8], from: usize) -> Result<()> {
        self.peer("recv", from)?;
        let seq = self.received[from].fetch_add(1, Ordering::Relaxed);
        self.pull(from, Tag { group: self.id, op: Op::PointToPoint, seq }, out)
    }

    /// Returns once every member has called it.
    fn meet(&self) -> Result<()> {
        self.meet_within(self.endpoint.transport.timeout())
    }

    /// The same, with another bound on each wait.
    pub(crate) fn meet_within(&self, timeout: Duration) -> Result<()> {
        let tag = self.next(Op::Barrier);
        for to in self.others() {
            self.push(to, tag, &[])?;
        }
        for from in self.others() {
            self.pull_within(from, tag, &mut [], timeout)?;
        }
        Ok(())
    }

    fn member(&self, op: &'static str, rank: usize) -> Result<()> {
        if rank < self.ranks.len() {
            return Ok(());
        }
        Err(self.argument(op, format!("rank {rank} is not among its {} ranks", self.ranks.len())))
    }

    fn peer(&self, op: &'static str, rank: usize) -> Result<()> {
        self.member(op, rank)?;
        if rank != self.me {
            return Ok(());
        }
        Err(self.argument(op, "a rank cannot exchange messages with itself".into()))
    }
}

fn need(group: &Group, op: &'static str, ok: bool, what: impl FnOnce() -> String) -> tensor::Result<()> {
    if ok { Ok(()) } else { Err(group.argument(op, what()).into()) }
}

fn scaled(counts: &[usize], t: &Tensor) -> Vec<usize> {
    counts.iter().map(|c| c * t.dtype().size()).collect()
}

/// Tensors are in host memory here, so every stream is the same and each call is done when it returns.
impl Comm for Group {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.me
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    /// `send` may be this rank's own place inside `recv`.
    fn all_gather(&self, _: Stream, send: &Tensor, recv: &Tensor) -> tensor::Result<()> {
        need(self, "all_gather", send.dtype() == recv.dtype(), || format!("{send:?} to {recv:?}"))?;
        if Arc::ptr_eq(send.buf(), recv.buf()) {
            let n = send.numel();
            let in_place = send.offset() == recv.offset() + self.me * n && n * self.ranks.len() == recv.numel();
            need(self, "all_gather", in_place, || format!("{send:?} is not rank {}'s place in {recv:?}", self.me))?;
            return Ok(self.gather_in_place(&mut recv.write_bytes()?)?);
        }
        Ok(self.gather(&send.read_bytes()?, &mut recv.write_bytes()?)?)
    }

    fn all_to_all_v(
        &self,
        _: Stream,
        send: &Tensor,
        send_counts: &[usize],
        recv: &Tensor,
        recv_counts: &[usize],
    ) -> tensor::Result<()> {
        need(self, "all_to_all_v", send.dtype() == recv.dtype(), || format!("{send:?} to {recv:?}"))?;
        let (sc, rc) = (scaled(send_counts, send), scaled(recv_counts, recv));
        Ok(self.exchange_pieces(&send.read_bytes()?, &sc, &mut recv.write_bytes()?, &rc)?)
    }

    fn broadcast(&self, _: Stream, t: &Tensor, root: usize) -> tensor::Result<()> {
        Ok(self.spread(&mut t.write_bytes()?, root)?)
    }

    fn send(&self, _: Stream, t: &Tensor, to: usize) -> tensor::Result<()> {
        Ok(self.push_to(&t.read_bytes()?, to)?)
    }

    fn recv(&self, _: Stream, t: &Tensor, from: usize) -> tensor::Result<()> {
        Ok(self.pull_from(&mut t.write_bytes()?, from)?)
    }

    fn barrier(&self) -> tensor::Result<()> {
        Ok(self.meet()?)
    }

    fn all_gather_bytes(&self, mine: &[u8]) -> tensor::Result<Vec<Vec<u8>>> {
        Ok(self.gather_blobs(mine)?)
    }

    fn broadcast_bytes(&self, mine: Vec<u8>, root: usize) -> tensor::Result<Vec<u8>> {
        Ok(self.spread_blob(&mine, root)?)
    }

    fn abort(&self, reason: &str) {
        self.endpoint.transport.abort(reason);
    }
}

/// Where each piece starts, and the sum.
fn starts(counts: &[usize]) -> (Vec<usize>, usize) {
    let mut at = 0;
    let starts = counts
        .iter()
        .map(|c| {
            let start = at;
            at += c;
            start
        })
        .collect();
    (starts, at)
}

/// FNV-1a over name and members: the same on every member without a word exchanged.
fn group_id(name: &str, ranks: &[usize]) -> u64 {
    let members = ranks.iter().flat_map(|r| (*r as u64).to_le_bytes());
    name.bytes()
        .chain([0])
        .chain(members)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
