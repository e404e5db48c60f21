//! Argument structs of the operations, plain data, and the one place that checks them.
//!
//! `T` is tokens, `G` key-value heads, `R` query heads per key-value head, `D` head dim, `F` FFN width, `V` (local)
//! vocabulary, `S` sequences. "float" is the compute type: every float operand of one call has the same type unless
//! its line says otherwise; statistics (`rstd`, `lse`, ...) have [`crate::DType::accumulator`] of it.

mod adamw;
mod attention;
mod check;
mod embed;
mod gemm;
mod logprob;
mod norm;
mod rope;
mod sample;
mod swiglu;
mod vector;

pub use adamw::AdamW;
pub use attention::{AttnBwd, AttnDims, AttnFwd, AttnPaged, KvWrite, PagedDims, k_page_dims, v_page_dims};
pub use embed::{EmbedBwd, EmbedFwd};
pub use gemm::{Gemm, GemmDims};
pub use logprob::{LogprobDlogits, LogprobMerge, LogprobStats, TokenStats};
pub use norm::{ROW_BLOCK, RmsNormBwd, RmsNormFwd, row_blocks};
pub use rope::{QkNormRopeBwd, QkNormRopeFwd, RopeDims};
pub use sample::{Sample, SampleParams};
pub use swiglu::{SwigluBwd, SwigluFwd};
pub use vector::{Add, AddBias, Axpy, Cast, GatherRows, Nonfinite, ReduceRows, Scale, ScatterRows, SumSq};
