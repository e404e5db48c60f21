//! The CPU backend: f32, one thread unless asked for more, the same bits with any number of them.
//!
//! Matrix products are `matrixmultiply`'s; everything else is loops the compiler vectorises (see `simd`).

mod attention;
mod gemm;
#[cfg(target_arch = "x86_64")]
mod gemv;
mod layers;
mod logprob;
mod simd;
mod threads;
mod vector;

use std::sync::Arc;

use crate::ops::*;
use crate::pool::Pool;
use crate::{Backend, Buf, Caps, DType, Event, MemStats, Result, Stream, Tag, Tensor, reference};

use threads::Threads;

/// f32 on this machine's cores.
pub struct CpuBackend {
    pool: Arc<Pool>,
    threads: Threads,
    caps: Caps,
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuBackend").field("threads", &self.threads.count()).finish_non_exhaustive()
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new(1)
    }
}

impl CpuBackend {
    /// `threads` in all; 0 counts as 1. Several processes usually share the cores, so 1 is the right default.
    pub fn new(threads: usize) -> Self {
        let threads = Threads::new(threads);
        let caps = Caps {
            name: "cpu",
            compute: vec![DType::F32],
            head_dim_max: usize::MAX,
            batch_invariant: true,
            host_memory: true,
            threads: threads.count(),
        };
        CpuBackend { pool: Pool::new(), threads, caps }
    }
}

impl Backend for CpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn alloc(&self, bytes: usize, tag: Tag) -> Result<Buf> {
        self.pool.alloc(bytes, tag)
    }
    fn mem_stats(&self) -> MemStats {
        self.pool.stats()
    }
    fn trim(&self) {
        self.pool.trim();
    }
    fn copy(&self, _: Stream, dst: &Tensor, src: &Tensor) -> Result<()> {
        reference::copy(dst, src)
    }
    fn upload(&self, _: Stream, dst: &Tensor, src: &[u8]) -> Result<()> {
        reference::upload(dst, src)
    }
    fn download(&self, _: Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        reference::download(src, dst)
    }
    fn fill(&self, s: Stream, dst: &Tensor, value: f64) -> Result<()> {
        if dst.dtype() == DType::F32 && dst.is_contiguous() {
            dst.write::<f32>()?.fill(value as f32);
            return Ok(());
        }
        let _ = s;
        reference::fill(dst, value)
    }
    fn record(&self, _: Stream) -> Result<Event> {
        Ok(Event(0))
    }
    fn wait(&self, _: Stream, _: &Event) -> Result<()> {
        Ok(())
    }
    fn sync(&self, _: Stream) -> Result<()> {
        Ok(())
    }
    fn gemm(&self, _: Stream, a: &Gemm) -> Result<()> {
        gemm::gemm(&self.threads, a)
    }
    fn embed_fwd(&self, _: Stream, a: &EmbedFwd) -> Result<()> {
        layers::embed_fwd(a)
    }
    fn embed_bwd(&self, _: Stream, a: &EmbedBwd) -> Result<()> {
        layers::embed_bwd(a)
    }
    fn rmsnorm_fwd(&self, _: Stream, a: &RmsNormFwd) -> Result<()> {
        layers::rmsnorm_fwd(&self.threads, a)
    }
    fn rmsnorm_bwd(&self, _: Stream, a: &RmsNormBwd) -> Result<()> {
        layers::rmsnorm_bwd(&self.threads, a)
    }
    fn qk_norm_rope_fwd(&self, _: Stream, a: &QkNormRopeFwd) -> Result<()> {
        layers::qk_norm_rope_fwd(&self.threads, a)
    }
    fn qk_norm_rope_bwd(&self, _: Stream, a: &QkNormRopeBwd) -> Result<()> {
        layers::qk_norm_rope_bwd(&self.threads, a)
    }
    fn attn_fwd(&self, _: Stream, a: &AttnFwd) -> Result<()> {
        attention::attn_fwd(&self.threads, a)
    }
    fn attn_bwd(&self, _: Stream, a: &AttnBwd) -> Result<()> {
        attention::attn_bwd(&self.threads, a)
    }
    fn kv_write(&self, _: Stream, a: &KvWrite) -> Result<()> {
        attention::kv_write(a)
    }
    fn attn_paged(&self, _: Stream, a: &AttnPaged) -> Result<()> {
        attention::attn_paged(&self.threads, a)
    }
    fn swiglu_fwd(&self, _: Stream, a: &SwigluFwd) -> Result<()> {
        layers::swiglu_fwd(&self.threads, a)
    }
    fn swiglu_bwd(&self, _: Stream, a: &SwigluBwd) -> Result<()> {
        layers::swiglu_bwd(&self.threads, a)
    }
    fn logprob_stats(&self, _: Stream, a: &LogprobStats) -> Result<()> {
        logprob::stats(&self.threads, a)
    }
    fn logprob_merge(&self, _: Stream, a: &LogprobMerge) -> Result<()> {
        logprob::merge(a)
    }
    fn logprob_dlogits(&self, _: Stream, a: &LogprobDlogits) -> Result<()> {
        logprob::dlogits(&self.threads, a)
    }
    fn sample(&self, _: Stream, a: &Sample) -> Result<()> {
        logprob::sample(a)
    }
    fn add(&self, _: Stream, a: &Add) -> Result<()> {
        vector::add(a)
    }
    fn add_bias(&self, _: Stream, a: &AddBias) -> Result<()> {
        vector::add_bias(a)
    }
    fn axpy(&self, _: Stream, a: &Axpy) -> Result<()> {
        vector::axpy(a)
    }
    fn scale(&self, _: Stream, a: &Scale) -> Result<()> {
        vector::scale(a)
    }
    fn cast(&self, _: Stream, a: &Cast) -> Result<()> {
        vector::cast(a)
    }
    fn gather_rows(&self, _: Stream, a: &GatherRows) -> Result<()> {
        vector::gather_rows(a)
    }
    fn scatter_rows(&self, _: Stream, a: &ScatterRows) -> Result<()> {
        vector::scatter_rows(a)
    }
    fn reduce_rows(&self, _: Stream, a: &ReduceRows) -> Result<()> {
        if a.src.dtype() != DType::F32 {
            return reference::vector::reduce_rows(a);
        }
        vector::reduce_rows(a)
    }
    fn sum_sq(&self, _: Stream, a: &SumSq) -> Result<()> {
        vector::sum_sq(a)
    }
    fn nonfinite(&self, _: Stream, a: &Nonfinite) -> Result<()> {
        vector::nonfinite(a)
    }
    fn adamw(&self, _: Stream, a: &AdamW) -> Result<()> {
        vector::adamw(a)
    }
}
