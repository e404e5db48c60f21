use crate::{Error, Result};

/// Place of a parameter in its stage's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// How tensor-parallel ranks share a parameter. The number is the dimension that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shard {
    /// Every rank holds all of it.
    Replicated,
    /// Output features; equal parts.
    Column(usize),
    /// Input features; equal parts.
    Row(usize),
    /// Vocabulary; parts of `ceil(V / tp)`, the last may be smaller.
    Vocab(usize),
}

/// Whether the gradient of a replicated parameter is a partial sum on each tensor-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TpGrad {
    /// Complete on every rank.
    Complete,
    /// Partial when tokens are sharded (sequence parallel): norms.
    PartialIfSequenceParallel,
    /// Partial always, since each rank sees its own heads: q and k norms.
    Partial,
}

/// Random initialisation, a function of (seed, name, global index) only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Ones,
    Normal { std: f64 },
}

/// One parameter: its global tensor, how ranks share it, and where it lives in a Hugging Face checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// ours, for instance `layers.7.attn.qkv`
    pub name: String,
    /// global
    pub shape: Vec<usize>,
    pub shard: Shard,
    pub tp_grad: TpGrad,
    pub init: Init,
    /// matrices decay, norms do not
    pub weight_decay: bool,
    /// together these cover the global tensor exactly once
    pub hf: Vec<HfPiece>,
}

/// A part of a global tensor that is one tensor of a Hugging Face checkpoint: reshaped (row-major, no element moves)
/// to `rect.shape`, it is the rectangle `rect` of ours. Load, save, publish and checkpoints all use this map.
#[derive(Clone, Debug, PartialEq)]
pub struct HfPiece {
    /// for instance `model.layers.7.self_attn.q_proj.weight`
    pub name: String,
    pub shape: Vec<usize>,
    pub rect: Rect,
}

/// An axis-parallel box in a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rect {
    pub offset: Vec<usize>,
    pub shape: Vec<usize>,
}

impl Rect {
    /// All of a tensor of this shape.
    pub fn full(shape: &[usize]) -> Rect {
        Rect { offset: vec![0; shape.len()], shape: shape.to_vec() }
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// `None` when they share nothing.
    pub fn intersect(&self, other: &Rect) -> Option<Rect> {
        let (mut offset, mut shape) = (Vec::new(), Vec::new());
        for i in 0..self.shape.len() {
            let lo = self.offset[i].max(other.offset[i]);
            let hi = (self.offset[i] + self.shape[i]).min(other.offset[i] + other.shape[i]);
            if lo >= hi {
                return None;
            }
            offset.push(lo);
            shape.push(hi - lo);
        }
        Some(Rect { offset, shape })
    }

    /// Runs of elements that are contiguous both in the row-major storage of this rectangle and in that of `other`,
    /// over what they share: `f(start in self, start in other, length)`.
    pub fn shared_runs(&self, other: &Rect, mut f: impl FnMut(usize, usize, usize)) {
        let Some(both) = self.intersect(other) else { return };
        let n = both.shape.len();
        if n == 0 {
            return f(0, 0, 1);
        }
        // Trailing dimensions that all three hold whole make one run.
        let mut split = n - 1;
        while split > 0 && both.shape[split] == self.shape[split] && both.shape[split] == other.shape[split] {
            split -= 1;
        }
        let run: usize = both.shape[split..].iter().product();
        let start = |r: &Rect, index: &[usize]| {
            index.iter().zip(r.offset.iter().zip(&r.shape)).fold(0, |at, (i, (offset, n))| at * n + i - offset)
        };
        let mut index = both.offset.clone();
        loop {
            f(start(self, &index), start(other, &index), run);
            let mut i = split;
            loop {
                if i == 0 {
                    return;
                }
                i -= 1;
                index[i] += 1;
                if index[i] < both.offset[i] + both.shape[i] {
                    break;
                }
                index[i] = both.offset[i];
            }
        }
    }
}

impl ParamSpec {
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The part of the global tensor that tensor-parallel rank `rank` of `size` holds.
    ///
    /// # Errors
    /// [`Error::Shard`] when it does not divide, or a rank would be left without any of the vocabulary.
    pub fn local(&self, rank: usize, size: usize) -> Result<Rect> {
        let mut rect = Rect::full(&self.shape);
        let (dim, equal) = match self.shard {
            Shard::Replicated => return Ok(rect),
            Shard::Column(d) | Shard::Row(d) => (d, true),
            Shard::Vocab(d) => (d, false),
        };
        let n = self.shape[dim];
        let part = n.div_ceil(size);
        if (equal && !n.is_multiple_of(size)) || part * (size - 1) >= n {
            return Err(Error::Shard { name: self.name.clone(), dim, shape: self.shape.clone(), tp: size, by: n });
        }
        rect.offset[dim] = part * rank;
        rect.shape[dim] = part.min(n - part * rank);
        Ok(rect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_a_tensor_exactly_once() {
        for (shard, shape, tp) in
            [(Shard::Column(1), vec![2, 6, 5], 3), (Shard::Row(1), vec![4, 8], 4), (Shard::Vocab(0), vec![47, 3], 2)]
        {
            let spec = ParamSpec {
                name: "w".into(),
                shape: shape.clone(),
                shard,
                tp_grad: TpGrad::Complete,
                init: Init::Ones,
                weight_decay: true,
                hf: vec![],
            };
            let full = Rect::full(&shape);
            let mut seen = vec![0; full.numel()];
            for r in 0..tp {
                let local = spec.local(r, tp).unwrap();
                let mut inside = vec![0; local.numel()];
                local.shared_runs(&full, |a, b, n| {
                    inside[a..a + n].iter_mut().for_each(|x| *x += 1);
                    seen[b..b + n].iter_mut().for_each(|x| *x += 1);
                });
                assert!(inside.iter().all(|&x| x == 1));
            }
            assert!(seen.iter().all(|&x| x == 1), "{shard:?}");
        }
    }

    #[test]
    fn a_dimension_that_does_not_divide_is_refused() {
        let mut spec = ParamSpec {
            name: "w".into(),
            shape: vec![6, 4],
            shard: Shard::Column(0),
            tp_grad: TpGrad::Complete,
            init: Init::Ones,
            weight_decay: true,
            hf: vec![],
        };
        assert!(matches!(spec.local(0, 4), Err(Error::Shard { tp: 4, by: 6, .. })));
        spec.shard = Shard::Vocab(1);
        assert!(spec.local(3, 4).is_ok());
        // Parts of two: the third rank would have nothing.
        assert!(spec.local(0, 3).is_err());
    }
}
