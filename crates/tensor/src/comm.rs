use crate::ops::ReduceRows;
use crate::{Backend, Error, Result, Stream, Tag, Tensor};

/// Moves between the ranks of one group. Implementations move bytes and never add: every sum is one of the derived
/// methods below, which gathers the operands and adds them on this device in rank order, so its bits depend on
/// nothing but the operands.
///
/// Every call is collective but `send` and `recv`. A call that waits too long returns [`Error::CommTimeout`] with the
/// ranks it waits for; after `abort`, by anybody in the group, every waiting and every later call returns
/// [`Error::CommAborted`]. Tensors are contiguous.
pub trait Comm: Send + Sync + std::fmt::Debug {
    /// Names the group in messages: "world", "tp", "dp", ...
    fn name(&self) -> &str;
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// `recv` holds the `send` of every rank in rank order; all are of one size.
    fn all_gather(&self, s: Stream, send: &Tensor, recv: &Tensor) -> Result<()>;
    /// Piece `i` of `send` goes to rank `i`; piece `i` of `recv` came from rank `i`. Equal pieces.
    fn all_to_all(&self, s: Stream, send: &Tensor, recv: &Tensor) -> Result<()> {
        let (n, m) = (self.size(), send.numel());
        if !m.is_multiple_of(n) || recv.numel() != m {
            return Err(Error::shape(
                "all_to_all",
                format!("{m} elements to send, {} to receive, {n} ranks", recv.numel()),
            ));
        }
        let counts = vec![m / n; n];
        self.all_to_all_v(s, send, &counts, recv, &counts)
    }
    /// As `all_to_all` with `send_counts[i]` elements for rank `i` and `recv_counts[i]` from it.
    fn all_to_all_v(
        &self,
        s: Stream,
        send: &Tensor,
        send_counts: &[usize],
        recv: &Tensor,
        recv_counts: &[usize],
    ) -> Result<()>;
    fn broadcast(&self, s: Stream, t: &Tensor, root: usize) -> Result<()>;
    fn send(&self, s: Stream, t: &Tensor, to: usize) -> Result<()>;
    fn recv(&self, s: Stream, t: &Tensor, from: usize) -> Result<()>;
    fn barrier(&self) -> Result<()>;

    /// Host bytes of every rank in rank order, of any sizes: scalars, plans, digests.
    fn all_gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Host bytes of `root`; what the others pass is ignored.
    fn broadcast_bytes(&self, mine: Vec<u8>, root: usize) -> Result<Vec<u8>>;

    /// Ends every waiting and every later call of the group. Any thread may call it.
    fn abort(&self, reason: &str);

    /// `recv = ` piece `rank` of the sum over ranks of `send`, summed in rank order. `recv` may have the accumulator
    /// type of `send`.
    fn reduce_scatter(&self, be: &dyn Backend, s: Stream, send: &Tensor, recv: &Tensor) -> Result<()> {
        let n = self.size();
        if recv.numel() * n != send.numel() {
            return Err(Error::shape(
                "reduce_scatter",
                format!("{} elements to send, {} to keep, {n} ranks", send.numel(), recv.numel()),
            ));
        }
        let pieces = Tensor::empty(be, send.dtype(), &[n, recv.numel()], Tag::Work)?;
        self.all_to_all(s, send, &pieces)?;
        be.reduce_rows(s, &ReduceRows { src: &pieces, dst: recv, beta: 0.0 })
    }

    /// `t = ` the sum over ranks of `t`, summed in rank order, the same bits on every rank.
    fn all_reduce(&self, be: &dyn Backend, s: Stream, t: &Tensor) -> Result<()> {
        let (n, m) = (self.size(), t.numel());
        if n == 1 {
            return Ok(());
        }
        // Small or odd: one exchange of everything. Else every rank sums its piece. Both add in the same order.
        if m < 4096 || !m.is_multiple_of(n) {
            let all = Tensor::empty(be, t.dtype(), &[n, m], Tag::Work)?;
            self.all_gather(s, t, &all)?;
            return be.reduce_rows(s, &ReduceRows { src: &all, dst: t, beta: 0.0 });
        }
        let piece = Tensor::empty(be, t.dtype(), &[m / n], Tag::Work)?;
        self.reduce_scatter(be, s, t, &piece)?;
        self.all_gather(s, &piece, t)
    }
}

/// The group of one.
#[derive(Debug)]
pub struct SingleRank {
    name: String,
}

impl SingleRank {
    pub fn new(name: impl Into<String>) -> Self {
        SingleRank { name: name.into() }
    }

    fn copy(op: &'static str, send: &Tensor, recv: &Tensor) -> Result<()> {
        if send.numel() != recv.numel() || send.dtype() != recv.dtype() {
            return Err(Error::shape(op, format!("{send:?} to {recv:?}")));
        }
        // In place is allowed: the one rank already holds everything.
        if std::sync::Arc::ptr_eq(send.buf(), recv.buf()) && send.offset() == recv.offset() {
            return Ok(());
        }
        let src = send.read_bytes()?;
        recv.write_bytes()?.copy_from_slice(&src);
        Ok(())
    }

    fn no_peer(&self, op: &'static str, peer: usize) -> Error {
        Error::CommLost { group: self.name.clone(), op, rank: 0, peer, reason: "the group has one rank".into() }
    }
}

impl Comm for SingleRank {
    fn name(&self) -> &str {
        &self.name
    }
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_gather(&self, _: Stream, send: &Tensor, recv: &Tensor) -> Result<()> {
        Self::copy("all_gather", send, recv)
    }
    fn all_to_all_v(&self, _: Stream, send: &Tensor, _: &[usize], recv: &Tensor, _: &[usize]) -> Result<()> {
        Self::copy("all_to_all_v", send, recv)
    }
    fn broadcast(&self, _: Stream, _: &Tensor, root: usize) -> Result<()> {
        if root == 0 { Ok(()) } else { Err(self.no_peer("broadcast", root)) }
    }
    fn send(&self, _: Stream, _: &Tensor, to: usize) -> Result<()> {
        Err(self.no_peer("send", to))
    }
    fn recv(&self, _: Stream, _: &Tensor, from: usize) -> Result<()> {
        Err(self.no_peer("recv", from))
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn all_gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }
    fn broadcast_bytes(&self, mine: Vec<u8>, root: usize) -> Result<Vec<u8>> {
        if root == 0 { Ok(mine) } else { Err(self.no_peer("broadcast_bytes", root)) }
    }
    fn abort(&self, _: &str) {}
    fn reduce_scatter(&self, _: &dyn Backend, _: Stream, send: &Tensor, recv: &Tensor) -> Result<()> {
        Self::copy("reduce_scatter", send, recv)
    }
}
