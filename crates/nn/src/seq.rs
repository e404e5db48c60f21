use tensor::{Backend, Tag, Tensor};

use crate::{Error, Result};

/// How sequences are packed into one row of tokens. Positions restart at 0 in each.
#[derive(Clone, Debug)]
pub struct SeqLayout {
    cu_seqlens: Vec<i32>,
    tokens: usize,
    max_seqlen: usize,
    cu: Tensor,
    positions: Tensor,
}

impl SeqLayout {
    /// Sequences of these lengths one after the other; lengths of 0 and 1 are fine. When their sum is not a multiple
    /// of `multiple_of` (tensor-parallel size under sequence parallelism), a pad sequence makes it one.
    pub fn new(be: &dyn Backend, lengths: &[usize], multiple_of: usize) -> Result<SeqLayout> {
        let tokens: usize = lengths.iter().sum();
        let padded = tokens.next_multiple_of(multiple_of.max(1));
        if i32::try_from(padded).is_err() {
            return Err(Error::Layout(format!("{tokens} tokens in one micro-batch: at most 2^31 - 1")));
        }
        let mut cu_seqlens = vec![0i32];
        let mut positions = Vec::with_capacity(padded);
        let pad = padded - tokens;
        for &n in lengths.iter().chain((pad > 0).then_some(&pad)) {
            positions.extend(0..n as i32);
            cu_seqlens.push(positions.len() as i32);
        }
        let max_seqlen = lengths.iter().copied().max().unwrap_or(0).max(pad);
        let cu = Tensor::from_slice(be, &cu_seqlens, &[cu_seqlens.len()], Tag::Act)?;
        let positions = Tensor::from_slice(be, &positions, &[padded], Tag::Act)?;
        Ok(SeqLayout { cu_seqlens, tokens, max_seqlen, cu, positions })
    }

    /// Tokens, padding left out.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens, padding included.
    pub fn padded(&self) -> usize {
        self.positions.numel()
    }

    pub fn max_seqlen(&self) -> usize {
        self.max_seqlen
    }

    /// The pad sequence, if any, is the last.
    pub fn cu_seqlens(&self) -> &[i32] {
        &self.cu_seqlens
    }

    /// `[S + 1]` i32 on the device
    pub fn cu(&self) -> &Tensor {
        &self.cu
    }

    /// `[padded]` i32 on the device
    pub fn positions(&self) -> &Tensor {
        &self.positions
    }
}
