use tensor::Tensor;

use crate::{Error, Result};

/// What a layer keeps between its passes: numbered tensors of its own and a `Saved` per inner layer. It owns them, so
/// memory goes back to the pool when the backward pass takes the last one.
#[derive(Debug, Default)]
pub struct Saved {
    keep: bool,
    slots: Vec<Option<Tensor>>,
    children: Vec<Saved>,
}

impl Saved {
    /// Keeps what layers put into it.
    pub fn keep() -> Saved {
        Saved { keep: true, ..Saved::default() }
    }

    /// Forgets at once: for inference, and for a forward pass that will be run again.
    pub fn forget() -> Saved {
        Saved::default()
    }

    pub fn keeps(&self) -> bool {
        self.keep
    }

    pub fn put(&mut self, slot: usize, t: &Tensor) {
        if self.keep {
            if self.slots.len() <= slot {
                self.slots.resize(slot + 1, None);
            }
            self.slots[slot] = Some(t.clone());
        }
    }

    pub fn get(&self, slot: usize, layer: &'static str, what: &'static str) -> Result<&Tensor> {
        self.slots.get(slot).and_then(Option::as_ref).ok_or(Error::NotSaved { layer, what })
    }

    pub fn take(&mut self, slot: usize, layer: &'static str, what: &'static str) -> Result<Tensor> {
        self.slots.get_mut(slot).and_then(Option::take).ok_or(Error::NotSaved { layer, what })
    }

    /// Drop a tensor before its turn, if it is there.
    pub fn release(&mut self, slot: usize) {
        if let Some(s) = self.slots.get_mut(slot) {
            *s = None;
        }
    }

    /// The `Saved` of inner layer `i`.
    pub fn child(&mut self, i: usize) -> &mut Saved {
        let keep = self.keep;
        while self.children.len() <= i {
            self.children.push(Saved { keep, ..Saved::default() });
        }
        &mut self.children[i]
    }

    /// Move the `Saved` of inner layer `i` out.
    pub fn take_child(&mut self, i: usize) -> Saved {
        std::mem::take(self.child(i))
    }

    /// Put a `Saved` in the place of inner layer `i`.
    pub fn set_child(&mut self, i: usize, saved: Saved) {
        *self.child(i) = saved;
    }

    /// Bytes kept, views counted by their elements.
    pub fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(|t| t.numel() * t.dtype().size()).sum::<usize>()
            + self.children.iter().map(Saved::bytes).sum::<usize>()
    }
}
