use crate::ops::*;
use crate::{Buf, Caps, Event, MemStats, Result, Stream, Tag, Tensor};

/// Compute and memory of one device.
///
/// Object-safe: layers hold `Arc<dyn Backend>`. Every operation is `out = op(in)`, checks its arguments with their
/// shared `validate`, and is queued on a stream; it may return before it has run. Outputs that an operation
/// overwrites are not read.
pub trait Backend: Send + Sync + std::fmt::Debug {
    fn caps(&self) -> &Caps;

    // memory
    /// The contents are undefined. Dropping the last reference gives the memory back to the pool.
    fn alloc(&self, bytes: usize, tag: Tag) -> Result<Buf>;
    fn mem_stats(&self) -> MemStats;
    /// Give pooled memory back to the system.
    fn trim(&self);
    /// Copy between tensors of this device, of one shape and type, any strides.
    fn copy(&self, s: Stream, dst: &Tensor, src: &Tensor) -> Result<()>;
    /// Host bytes to a contiguous tensor. The bytes are consumed before this returns.
    fn upload(&self, s: Stream, dst: &Tensor, src: &[u8]) -> Result<()>;
    /// A contiguous tensor to host bytes. Waits for the stream.
    fn download(&self, s: Stream, src: &Tensor, dst: &mut [u8]) -> Result<()>;
    /// Every element becomes `value`.
    fn fill(&self, s: Stream, dst: &Tensor, value: f64) -> Result<()>;

    // order
    fn record(&self, s: Stream) -> Result<Event>;
    fn wait(&self, s: Stream, e: &Event) -> Result<()>;
    /// Wait on the host until the stream is empty.
    fn sync(&self, s: Stream) -> Result<()>;

    // matrix products
    fn gemm(&self, s: Stream, a: &Gemm) -> Result<()>;

    // layers
    fn embed_fwd(&self, s: Stream, a: &EmbedFwd) -> Result<()>;
    fn embed_bwd(&self, s: Stream, a: &EmbedBwd) -> Result<()>;
    fn rmsnorm_fwd(&self, s: Stream, a: &RmsNormFwd) -> Result<()>;
    fn rmsnorm_bwd(&self, s: Stream, a: &RmsNormBwd) -> Result<()>;
    fn qk_norm_rope_fwd(&self, s: Stream, a: &QkNormRopeFwd) -> Result<()>;
    fn qk_norm_rope_bwd(&self, s: Stream, a: &QkNormRopeBwd) -> Result<()>;
    fn attn_fwd(&self, s: Stream, a: &AttnFwd) -> Result<()>;
    fn attn_bwd(&self, s: Stream, a: &AttnBwd) -> Result<()>;
    fn kv_write(&self, s: Stream, a: &KvWrite) -> Result<()>;
    fn attn_paged(&self, s: Stream, a: &AttnPaged) -> Result<()>;
    fn swiglu_fwd(&self, s: Stream, a: &SwigluFwd) -> Result<()>;
    fn swiglu_bwd(&self, s: Stream, a: &SwigluBwd) -> Result<()>;

    // log-probs and sampling
    fn logprob_stats(&self, s: Stream, a: &LogprobStats) -> Result<()>;
    fn logprob_merge(&self, s: Stream, a: &LogprobMerge) -> Result<()>;
    fn logprob_dlogits(&self, s: Stream, a: &LogprobDlogits) -> Result<()>;
    fn sample(&self, s: Stream, a: &Sample) -> Result<()>;

    // vectors
    fn add(&self, s: Stream, a: &Add) -> Result<()>;
    fn add_bias(&self, s: Stream, a: &AddBias) -> Result<()>;
    fn axpy(&self, s: Stream, a: &Axpy) -> Result<()>;
    fn scale(&self, s: Stream, a: &Scale) -> Result<()>;
    fn cast(&self, s: Stream, a: &Cast) -> Result<()>;
    fn gather_rows(&self, s: Stream, a: &GatherRows) -> Result<()>;
    fn scatter_rows(&self, s: Stream, a: &ScatterRows) -> Result<()>;
    fn reduce_rows(&self, s: Stream, a: &ReduceRows) -> Result<()>;
    fn sum_sq(&self, s: Stream, a: &SumSq) -> Result<()>;
    fn nonfinite(&self, s: Stream, a: &Nonfinite) -> Result<()>;

    // optimizer
    fn adamw(&self, s: Stream, a: &AdamW) -> Result<()>;
}
