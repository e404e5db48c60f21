//! The oracle: every operation as its formula reads, in f64, one loop nest each. Slow on purpose. It takes f64 tensors
//! (finite differences), f32 (each result rounded once) and bf16/f16.

pub(crate) mod attention;
mod layers;
pub(crate) mod logprob;
pub(crate) mod vector;

use std::sync::Arc;

use crate::ops::*;
use crate::pool::Pool;
use crate::{Backend, Buf, Caps, DType, Error, Event, MemStats, Result, Stream, Tag, Tensor};

/// Scalar f64 backend over host memory.
pub struct ReferenceBackend {
    pool: Arc<Pool>,
    caps: Caps,
}

impl std::fmt::Debug for ReferenceBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReferenceBackend")
    }
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceBackend {
    pub fn new() -> Self {
        ReferenceBackend {
            pool: Pool::new(),
            caps: Caps {
                name: "reference",
                compute: vec![DType::F64, DType::F32, DType::BF16, DType::F16],
                head_dim_max: usize::MAX,
                batch_invariant: true,
                host_memory: true,
                threads: 1,
            },
        }
    }
}

/// Visit the storage offsets of a view in row-major order.
pub(crate) fn for_each_offset(t: &Tensor, mut f: impl FnMut(usize)) {
    let (dims, strides) = (t.dims(), t.strides());
    if t.numel() == 0 {
        return;
    }
    let mut index = vec![0usize; dims.len()];
    let mut offset = 0;
    loop {
        f(offset);
        let mut i = dims.len();
        loop {
            if i == 0 {
                return;
            }
            i -= 1;
            index[i] += 1;
            offset += strides[i];
            if index[i] < dims[i] {
                break;
            }
            offset -= strides[i] * dims[i];
            index[i] = 0;
        }
    }
}

/// The elements of any view as f64, row-major.
pub(crate) fn get(t: &Tensor) -> Result<Vec<f64>> {
    let mut out = Vec::with_capacity(t.numel());
    macro_rules! all {
        ($ty:ty, $f:expr) => {{
            let x = t.read::<$ty>()?;
            for_each_offset(t, |o| out.push($f(x[o])));
        }};
    }
    match t.dtype() {
        DType::F64 => all!(f64, |v: f64| v),
        DType::F32 => all!(f32, f64::from),
        DType::BF16 => all!(half::bf16, f64::from),
        DType::F16 => all!(half::f16, f64::from),
        DType::I64 => all!(i64, |v: i64| v as f64),
        DType::I32 => all!(i32, f64::from),
        DType::U8 => all!(u8, f64::from),
    }
    Ok(out)
}

/// The elements of an index tensor.
pub(crate) fn get_index(t: &Tensor) -> Result<Vec<i64>> {
    Ok(get(t)?.into_iter().map(|x| x as i64).collect())
}

/// Overwrite a view, row-major, rounding once.
pub(crate) fn put(t: &Tensor, data: &[f64]) -> Result<()> {
    debug_assert_eq!(t.numel(), data.len());
    let mut it = data.iter();
    macro_rules! all {
        ($ty:ty, $f:expr) => {{
            let mut x = t.write::<$ty>()?;
            for_each_offset(t, |o| {
                if let Some(v) = it.next() {
                    x[o] = $f(*v);
                }
            });
        }};
    }
    match t.dtype() {
        DType::F64 => all!(f64, |v: f64| v),
        DType::F32 => all!(f32, |v: f64| v as f32),
        DType::BF16 => all!(half::bf16, half::bf16::from_f64),
        DType::F16 => all!(half::f16, half::f16::from_f64),
        DType::I64 => all!(i64, |v: f64| v as i64),
        DType::I32 => all!(i32, |v: f64| v as i32),
        DType::U8 => all!(u8, |v: f64| v as u8),
    }
    Ok(())
}

/// An index that must lie in `0..len`.
pub(crate) fn checked(op: &'static str, index: i64, len: usize) -> Result<usize> {
    usize::try_from(index).ok().filter(|&i| i < len).ok_or(Error::Index { op, index, len })
}

pub(crate) fn copy(dst: &Tensor, src: &Tensor) -> Result<()> {
    if dst.dims() != src.dims() || dst.dtype() != src.dtype() {
        return Err(Error::shape("copy", format!("{src:?} to {dst:?}")));
    }
    if dst.is_contiguous() && src.is_contiguous() {
        let s = src.read_bytes()?;
        dst.write_bytes()?.copy_from_slice(&s);
        return Ok(());
    }
    // f64 holds every value of every type but large i64, which nothing strides.
    let data = get(src)?;
    put(dst, &data)
}

pub(crate) fn fill(dst: &Tensor, value: f64) -> Result<()> {
    put(dst, &vec![value; dst.numel()])
}

pub(crate) fn upload(dst: &Tensor, src: &[u8]) -> Result<()> {
    let mut d = dst.write_bytes()?;
    if d.len() != src.len() {
        return Err(Error::shape("upload", format!("{} bytes to {dst:?}", src.len())));
    }
    d.copy_from_slice(src);
    Ok(())
}

pub(crate) fn download(src: &Tensor, dst: &mut [u8]) -> Result<()> {
    let s = src.read_bytes()?;
    if s.len() != dst.len() {
        return Err(Error::shape("download", format!("{src:?} to {} bytes", dst.len())));
    }
    dst.copy_from_slice(&s);
    Ok(())
}

impl Backend for ReferenceBackend {
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
        copy(dst, src)
    }
    fn upload(&self, _: Stream, dst: &Tensor, src: &[u8]) -> Result<()> {
        upload(dst, src)
    }
    fn download(&self, _: Stream, src: &Tensor, dst: &mut [u8]) -> Result<()> {
        download(src, dst)
    }
    fn fill(&self, _: Stream, dst: &Tensor, value: f64) -> Result<()> {
        fill(dst, value)
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
        layers::gemm(a)
    }
    fn embed_fwd(&self, _: Stream, a: &EmbedFwd) -> Result<()> {
        layers::embed_fwd(a)
    }
    fn embed_bwd(&self, _: Stream, a: &EmbedBwd) -> Result<()> {
        layers::embed_bwd(a)
    }
    fn rmsnorm_fwd(&self, _: Stream, a: &RmsNormFwd) -> Result<()> {
        layers::rmsnorm_fwd(a)
    }
    fn rmsnorm_bwd(&self, _: Stream, a: &RmsNormBwd) -> Result<()> {
        layers::rmsnorm_bwd(a)
    }
    fn qk_norm_rope_fwd(&self, _: Stream, a: &QkNormRopeFwd) -> Result<()> {
        layers::qk_norm_rope_fwd(a)
    }
    fn qk_norm_rope_bwd(&self, _: Stream, a: &QkNormRopeBwd) -> Result<()> {
        layers::qk_norm_rope_bwd(a)
    }
    fn attn_fwd(&self, _: Stream, a: &AttnFwd) -> Result<()> {
        attention::attn_fwd(a)
    }
    fn attn_bwd(&self, _: Stream, a: &AttnBwd) -> Result<()> {
        attention::attn_bwd(a)
    }
    fn kv_write(&self, _: Stream, a: &KvWrite) -> Result<()> {
        attention::kv_write(a)
    }
    fn attn_paged(&self, _: Stream, a: &AttnPaged) -> Result<()> {
        attention::attn_paged(a)
    }
    fn swiglu_fwd(&self, _: Stream, a: &SwigluFwd) -> Result<()> {
        layers::swiglu_fwd(a)
    }
    fn swiglu_bwd(&self, _: Stream, a: &SwigluBwd) -> Result<()> {
        layers::swiglu_bwd(a)
    }
    fn logprob_stats(&self, _: Stream, a: &LogprobStats) -> Result<()> {
        logprob::stats(a)
    }
    fn logprob_merge(&self, _: Stream, a: &LogprobMerge) -> Result<()> {
        logprob::merge(a)
    }
    fn logprob_dlogits(&self, _: Stream, a: &LogprobDlogits) -> Result<()> {
        logprob::dlogits(a)
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
