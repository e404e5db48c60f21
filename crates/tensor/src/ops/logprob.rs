use super::check;
use crate::{Result, Tensor};

/// What one (shard of a) row of logits says about one token. With `x = logit / temperature` and `m = max x`:
/// `[m, sum exp(x - m), sum exp(x - m) (x - m), x of the target]`; the target is -inf on a shard that does not hold it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenStats<F = f32> {
    pub max: F,
    pub sum_exp: F,
    pub sum_exp_x: F,
    pub target: F,
}

macro_rules! token_stats {
    ($f:ty) => {
        impl TokenStats<$f> {
            pub fn from_row(row: [$f; 4]) -> Self {
                TokenStats { max: row[0], sum_exp: row[1], sum_exp_x: row[2], target: row[3] }
            }

            pub fn row(&self) -> [$f; 4] {
                [self.max, self.sum_exp, self.sum_exp_x, self.target]
            }

            /// Log-prob of the target, nats. The one function behind every log-prob of trainer and engine.
            pub fn logp(&self) -> $f {
                (self.target - self.max) - self.sum_exp.ln()
            }

            /// Entropy of the row, nats: `log Z - E[x - m]`.
            pub fn entropy(&self) -> $f {
                self.sum_exp.ln() - self.sum_exp_x / self.sum_exp
            }

            /// The statistics of two parts of one row. Not associative in floats: see `merge_all`.
            pub fn merge(&self, other: &Self) -> Self {
                let max = self.max.max(other.max);
                if max == <$f>::NEG_INFINITY {
                    return TokenStats { max, target: self.target.max(other.target), ..*self };
                }
                let part = |s: &Self| {
                    if s.max == <$f>::NEG_INFINITY {
                        return (0.0, 0.0);
                    }
                    let shift = s.max - max;
                    let c = shift.exp();
                    (s.sum_exp * c, (s.sum_exp_x + shift * s.sum_exp) * c)
                };
                let ((s0, w0), (s1, w1)) = (part(self), part(other));
                TokenStats { max, sum_exp: s0 + s1, sum_exp_x: w0 + w1, target: self.target.max(other.target) }
            }

            /// The statistics of parts `from..to` of one row: neighbours first, then pairs of them, and so on, so that the
            /// bits do not depend on how many neighbouring parts were merged before.
            pub(crate) fn merge_all(from: usize, to: usize, part: &impl Fn(usize) -> Self) -> Self {
                if to - from <= 1 {
                    return part(from);
                }
                let middle = from + (to - from).next_power_of_two() / 2;
                Self::merge_all(from, middle, part).merge(&Self::merge_all(middle, to, part))
            }
        }
    };
}
token_stats!(f32);
token_stats!(f64);

/// [`TokenStats`] of every row of a chunk of logits.
#[derive(Debug)]
pub struct LogprobStats<'a> {
    /// `[n, V]` float, unit inner stride: all columns of a row, or some
    pub logits: &'a Tensor,
    /// `[n]` i32, global ids
    pub targets: &'a Tensor,
    /// global id of column 0
    pub first: usize,
    /// `[n]` accumulator type, above 0
    pub temperature: &'a Tensor,
    /// `[n, 4]` accumulator type
    pub stats: &'a Tensor,
}

/// Fold the statistics of the parts of rows in pairs: neighbours, then pairs of them, and so on.
#[derive(Debug)]
pub struct LogprobMerge<'a> {
    /// `[parts, n, 4]`
    pub parts: &'a Tensor,
    /// `[n, 4]`
    pub stats: &'a Tensor,
}

/// Logits become their gradient, in place: with `p = softmax(x)`, `x = logit / temperature`,
/// `d x_v = dlogp (1[v = target] - p_v) - dentropy p_v (log p_v + entropy)`.
#[derive(Debug)]
pub struct LogprobDlogits<'a> {
    /// `[n, V]`, in place
    pub logits: &'a Tensor,
    pub targets: &'a Tensor,
    pub first: usize,
    pub temperature: &'a Tensor,
    /// `[n, 4]`, merged over the shards
    pub stats: &'a Tensor,
    /// `[n]` accumulator type
    pub dlogp: &'a Tensor,
    /// `[n]` accumulator type
    pub dentropy: Option<&'a Tensor>,
}

fn rows(
    op: &'static str,
    logits: &Tensor,
    targets: &Tensor,
    temperature: &Tensor,
    stats: &Tensor,
) -> Result<(usize, usize)> {
    check::float(op, "logits", logits)?;
    check::rank(op, "logits", logits, 2)?;
    check::inner_unit(op, "logits", logits)?;
    let (n, v) = (logits.dim(0), logits.dim(1));
    let acc = logits.dtype().accumulator();
    check::indices(op, "targets", targets, n)?;
    check::dense(op, "temperature", temperature, acc, &[n])?;
    check::dense(op, "stats", stats, acc, &[n, 4])?;
    Ok((n, v))
}

impl LogprobStats<'_> {
    /// `(n, V)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        rows("logprob_stats", self.logits, self.targets, self.temperature, self.stats)
    }
}

impl LogprobMerge<'_> {
    /// `(parts, n)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "logprob_merge";
        check::float(OP, "parts", self.parts)?;
        let (r, n) = (self.parts.dim(0), self.parts.dim(1));
        check::dense(OP, "parts", self.parts, self.parts.dtype(), &[r, n, 4])?;
        check::dense(OP, "stats", self.stats, self.parts.dtype(), &[n, 4])?;
        Ok((r, n))
    }
}

impl LogprobDlogits<'_> {
    /// `(n, V)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "logprob_dlogits";
        let (n, v) = rows(OP, self.logits, self.targets, self.temperature, self.stats)?;
        check::contiguous(OP, "logits", self.logits)?;
        let acc = self.logits.dtype().accumulator();
        check::dense(OP, "dlogp", self.dlogp, acc, &[n])?;
        if let Some(d) = self.dentropy {
            check::dense(OP, "dentropy", d, acc, &[n])?;
        }
        Ok((n, v))
    }
}
