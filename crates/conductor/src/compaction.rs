//! Space inside packs: what is needed of a pack that is mostly dead moves to another one, so that the pack can go.
//!
//! The brain chooses and journals; the binary copies, a bounded number of bytes at a time and on a thread of its own, so that
//! nobody waits for it. Before [`Record::RecordsMoved`] nothing refers to the copies, after it nothing durable refers to the old
//! place. Old references are in few hands then:
//!
//! - a trainer may read the batch of an order that it was given before: no pack is given up while that order is at hand;
//! - a conversion or a scoring under way that comes too late fails, and is tried again with the references of the moment;
//! - a worker that brings an old reference has it translated by the queue.

use control::wire::{CompactReply, CompactRequest, RefusalKind};
use straw::{
    PackInfo, Ref,
    compact::{Sparse, sparse},
};

use crate::{Command, Conductor, Error, Record, Reply, ReplyId, Step};

/// Records of one move.
const MOVES_MAX: usize = 4096;

/// When space is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// Time between two looks at the packs, milliseconds.
    pub look_every_ms: u64,
    /// A pack that nothing refers to, and that nobody adds to any more, is kept this long, milliseconds: a worker may be about to
    /// offer what is in it.
    pub settle_ms: u64,
    /// A pack is emptied when at most this share of its bytes is needed, percent.
    pub live_percent_max: u64,
    /// Packs are emptied once that gives back so many bytes. Less is not worth the copying.
    pub gain_bytes_min: u64,
    /// Bytes that are copied at a time, unless one record alone has more.
    pub copy_bytes_max: u64,
}

impl Default for GiveBack {
    fn default() -> Self {
        Self {
            look_every_ms: 60_000,
            settle_ms: 120_000,
            live_percent_max: 50,
            // As much as a whole pack holds.
            gain_bytes_min: 256 << 20,
            copy_bytes_max: 32 << 20,
        }
    }
}

/// Packs that are being emptied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Emptying {
    /// Asked for by a person: the answer says what was found.
    asked: Vec<(ReplyId, u64)>,
    /// The records still to be copied, of one pack after the other, with its name.
    left: Vec<(String, Vec<Ref>)>,
    busy: bool,
    /// The order that was at hand, by trainer epoch and number, when records were last moved, or when this conductor took over:
    /// whoever carries it out may read at old places.
    given_before: Option<(u64, u64)>,
}

impl Conductor {
    /// Gives space back at other times than by default.
    pub fn set_give_back(&mut self, rule: GiveBack) {
        self.memory.set_give_back(rule);
    }

    pub(crate) fn on_compact(&mut self, reply: ReplyId, request: &CompactRequest, out: &mut Step) {
        if request.live_percent > 100 {
            let message = format!("livePercent: {} is more than the whole pack; say 0 to 100", request.live_percent);
            self.refuse(out, reply, RefusalKind::Invalid, message);
            return;
        }
        self.memory.emptying.asked.push((reply, request.live_percent));
        out.commands.push(Command::ListPacks);
    }

    /// Chooses packs to be emptied, if that is worth it or somebody asks.
    pub(crate) fn choose_packs(&mut self, packs: &[PackInfo], out: &mut Step) {
        let rule = self.memory.give_back;
        for (reply, live_percent) in std::mem::take(&mut self.memory.emptying.asked) {
            let found = self.sparse(packs, live_percent);
            let sum = |of: fn(&Sparse) -> u64| found.iter().map(of).sum();
            let compact = CompactReply {
                conductor_epoch: self.epoch,
                packs: found.len() as u64,
                records: sum(|pack| pack.live.len() as u64),
                live_bytes: sum(|pack| pack.live_bytes),
                bytes: sum(|pack| pack.bytes),
            };
            out.commands.push(Command::Reply(reply, Reply::Compact(compact)));
            self.begin_emptying(found);
        }
        if self.memory.emptying.left.is_empty() && !self.memory.emptying.busy {
            let found = self.sparse(packs, rule.live_percent_max);
            let gain: u64 = found.iter().map(|pack| pack.bytes.saturating_sub(pack.live_bytes)).sum();
            if gain >= rule.gain_bytes_min {
                self.begin_emptying(found);
            }
        }
        self.copy_on(out);
    }

    /// An archive's index is a record of its own, with references that no queue translates.
    fn sparse(&self, packs: &[PackInfo], live_percent: u64) -> Vec<Sparse> {
        sparse(packs, &self.state.queue, live_percent, straw::Archive::is_owner)
    }

    fn begin_emptying(&mut self, mut found: Vec<Sparse>) {
        let emptying = &mut self.memory.emptying;
        if !emptying.left.is_empty() || emptying.busy || found.is_empty() {
            return;
        }
        let (packs, records) = (found.len(), found.iter().map(|pack| pack.live.len()).sum::<usize>());
        tracing::info!(packs, records, "what is needed of packs that are mostly dead is moved to another one");
        // The emptiest is taken first, from the end.
        found.reverse();
        emptying.left = found.into_iter().map(|pack| (pack.pack, pack.live)).collect();
    }

    /// Has the next records copied, unless some are being copied.
    fn copy_on(&mut self, out: &mut Step) {
        let bytes_max = self.memory.give_back.copy_bytes_max;
        let emptying = &mut self.memory.emptying;
        while !emptying.busy
            && let Some((out_of, mut records)) = emptying.left.pop()
        {
            // Nothing of it may be needed any more since it was chosen, and then it may be gone.
            records.retain(|record| self.state.queue.is_live(&record.pack));
            let mut bytes = 0;
            let fits = |record: &&Ref| {
                bytes += record.len;
                bytes <= bytes_max
            };
            let count = records.iter().take(MOVES_MAX).take_while(fits).count().max(1).min(records.len());
            let later = records.split_off(count);
            if !later.is_empty() {
                emptying.left.push((out_of.clone(), later));
            }
            if !records.is_empty() {
                emptying.busy = true;
                out.commands.push(Command::CopyRecords { out_of, records });
            }
        }
    }

    pub(crate) fn on_copied(&mut self, result: Result<Vec<(Ref, Ref)>, String>, out: &mut Step) -> Result<(), Error> {
        self.memory.emptying.busy = false;
        let refused = match result {
            Ok(moves) => match self.state.queue.move_records(&moves) {
                Ok(_) => {
                    self.emit(out, Record::RecordsMoved { moves })?;
                    self.note_given_orders();
                    None
                }
                Err(refused) => Some(refused.to_string()),
            },
            Err(problem) => Some(problem),
        };
        if let Some(problem) = refused {
            tracing::warn!(problem, "records were not moved; it is tried again at the next look");
            self.memory.emptying.left.clear();
        }
        self.copy_on(out);
        Ok(())
    }

    /// Takes note of the order at hand: it may name places that records are moved away from.
    pub(crate) fn note_given_orders(&mut self) {
        self.memory.emptying.given_before = self.order_at_hand();
    }

    /// Somebody may read where records were before they were moved.
    pub(crate) fn old_places_are_read(&self) -> bool {
        let given = self.memory.emptying.given_before;
        given.is_some() && given == self.order_at_hand()
    }

    fn order_at_hand(&self) -> Option<(u64, u64)> {
        let trainer = self.state.trainer.as_ref()?;
        trainer.order.as_ref().map(|_| (trainer.epoch, trainer.done + 1))
    }
}
