//! Supervised learning: the mean negative log-prob of the response tokens.

use crate::TokenCoefficients;
use crate::error::Error;

/// Per-token inputs, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct SftBatch<'a> {
    /// Log-probs of the tokens under the current weights, nats.
    pub current: &'a [f64],
    /// Entropy at the tokens, nats; reported only.
    pub entropy: &'a [f64],
    /// 1 where the token is learnt.
    pub mask: &'a [u8],
    /// Weight of the token in the objective ([`crate::LossReduction::token_weight`]).
    pub weight: &'a [f64],
}

/// Sums over the unmasked tokens, to be added over micro-batches and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SftSums {
    /// The objective.
    pub loss: f64,
    /// Weighted entropy.
    pub entropy: f64,
    /// Unmasked tokens.
    pub tokens: u64,
    /// Unmasked tokens whose log-prob or entropy is not finite: their coefficients are NaN, so that the update is
    /// skipped. The other sums leave them out.
    pub non_finite: u64,
}

/// Negative log-likelihood.
///
/// # Errors
/// [`Error::Length`] when the slices differ in length.
pub fn sft_loss(batch: &SftBatch<'_>) -> Result<(TokenCoefficients, SftSums), Error> {
    let n = batch.current.len();
    for (what, got) in [("entropy", batch.entropy.len()), ("mask", batch.mask.len()), ("weight", batch.weight.len())] {
        if got != n {
            return Err(Error::Length { what, got, expected: n });
        }
    }
    let mut out = TokenCoefficients::zeros(n);
    let mut sums = SftSums::default();
    for t in 0..n {
        if batch.mask[t] == 0 {
            continue;
        }
        sums.tokens += 1;
        let w = batch.weight[t];
        if !(batch.current[t].is_finite() && batch.entropy[t].is_finite()) {
            sums.non_finite += 1;
            (out.loss[t], out.dlogp[t]) = (f64::NAN, f64::NAN);
            continue;
        }
        out.loss[t] = -w * batch.current[t];
        out.dlogp[t] = -w;
        sums.loss += out.loss[t];
        sums.entropy += w * batch.entropy[t];
    }
    Ok((out, sums))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervised_loss_is_the_weighted_negative_log_likelihood_of_unmasked_tokens() {
        let (c, s) = sft_loss(&SftBatch {
            current: &[-1.0, f64::NAN, -3.0],
            entropy: &[0.5, f64::NAN, 1.5],
            mask: &[1, 0, 1],
            weight: &[0.5, 0.5, 0.5],
        })
        .unwrap();
        assert_eq!(c.loss, [0.5, 0.0, 1.5]);
        assert_eq!(c.dlogp, [-0.5, 0.0, -0.5]);
        assert_eq!(c.dentropy, [0.0; 3]);
        assert_eq!(s, SftSums { loss: 2.0, entropy: 1.0, tokens: 2, non_finite: 0 });
    }
}
