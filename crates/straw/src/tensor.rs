//! Typed tensors: a view of shared bytes, so that neither publishing nor reading copies them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::dtype::{DType, Element};
use crate::fs::Mapping;
use crate::limits::RANK_MAX;
use crate::{Error, Result};

#[cfg(target_endian = "big")]
compile_error!("straw stores little-endian bytes as they lie in memory");

/// Something that owns bytes: a read buffer, or a caller's vector.
trait Bytes: Send + Sync {
    fn bytes(&self) -> &[u8];
}

impl<T: Element> Bytes for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

struct Mapped(Mapping);

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// A dense row-major tensor. Cloning shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<u64>,
    owner: Arc<dyn Bytes>,
    range: Range<usize>,
}

impl Tensor {
    /// Takes a vector over without copying it. `shape` multiplied out must be its length.
    pub fn from_vec<T: Element>(shape: &[u64], values: Vec<T>) -> Result<Self> {
        let len = values.len() * size_of::<T>();
        Self::over(T::DTYPE, shape, Arc::new(values), 0..len)
    }

    /// Copies a slice.
    pub fn from_slice<T: Element>(shape: &[u64], values: &[T]) -> Result<Self> {
        Self::from_vec(shape, values.to_vec())
    }

    /// Takes little-endian bytes over.
    pub fn from_bytes(dtype: DType, shape: &[u64], bytes: Vec<u8>) -> Result<Self> {
        let len = bytes.len();
        Self::over(dtype, shape, Arc::new(bytes), 0..len)
    }

    /// A view of a part of a read buffer.
    pub(crate) fn view(dtype: DType, shape: &[u64], buffer: Arc<Vec<u8>>, range: Range<usize>) -> Result<Self> {
        Self::over(dtype, shape, buffer, range)
    }

    /// A view of a part of a mapped file.
    pub(crate) fn mapped(dtype: DType, shape: &[u64], mapping: &Mapping, range: Range<usize>) -> Result<Self> {
        Self::over(dtype, shape, Arc::new(Mapped(mapping.clone())), range)
    }

    fn over(dtype: DType, shape: &[u64], owner: Arc<dyn Bytes>, range: Range<usize>) -> Result<Self> {
        let bad = |what: String| Error::Tensor { name: "?".into(), what };
        if shape.len() > RANK_MAX {
            return Err(bad(format!("rank {} is above {RANK_MAX}", shape.len())));
        }
        let want = bytes_of(dtype, shape).ok_or_else(|| bad(format!("shape {shape:?} is too large")))?;
        if want != range.len() as u64 || owner.bytes().get(range.clone()).is_none() {
            return Err(bad(format!("{dtype:?} of shape {shape:?} needs {want} bytes, {} were given", range.len())));
        }
        Ok(Tensor { dtype, shape: shape.to_vec(), owner, range })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the dimensions, outermost first. Empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Little-endian bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.owner.bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// Rows along the first dimension; 1 for a scalar.
    pub fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The elements. Borrowed when the bytes are aligned for `T` (they are, but for exotic allocators), else copied.
    /// Fails when `T` is not the tensor's type.
    pub fn to_slice<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        if T::DTYPE != self.dtype {
            let what = format!("is {:?}, not {:?}", self.dtype, T::DTYPE);
            return Err(Error::Tensor { name: "?".into(), what });
        }
        Ok(match bytemuck::try_cast_slice(self.bytes()) {
            Ok(values) => Cow::Borrowed(values),
            Err(_) => Cow::Owned(self.bytes().chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()),
        })
    }

    /// The elements, copied.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.to_slice::<T>()?.into_owned())
    }
}

/// Bytes of a tensor; `None` on overflow.
pub(crate) fn bytes_of(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.bytes(), |n, &d| n.checked_mul(d))
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.dtype, self.shape)
    }
}
