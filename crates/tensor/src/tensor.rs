use std::sync::Arc;

use crate::host::{self, HostRead, HostWrite};
use crate::{Backend, Buf, DType, Dims, Element, Error, Result, Stream, Tag};

/// A strided view of a shared buffer. Cloning shares the memory; an operation writes through a `&Tensor`, as a device
/// would.
#[derive(Clone)]
pub struct Tensor {
    buf: Arc<Buf>,
    dtype: DType,
    /// in elements
    offset: usize,
    dims: Dims,
    strides: Dims,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}{:?}@{} ({:?})", self.dtype, self.dims, self.offset, self.buf.tag())
    }
}

impl Tensor {
    /// A new contiguous tensor. Its contents are undefined: fill it, or let an operation overwrite it.
    pub fn empty(be: &dyn Backend, dtype: DType, dims: &[usize], tag: Tag) -> Result<Tensor> {
        let dims = Dims::new(dims);
        let buf = be.alloc(dims.numel() * dtype.size(), tag)?;
        Ok(Tensor { buf: Arc::new(buf), dtype, offset: 0, dims, strides: dims.row_major_strides() })
    }

    /// A new contiguous tensor of zeros.
    pub fn zeros(be: &dyn Backend, dtype: DType, dims: &[usize], tag: Tag) -> Result<Tensor> {
        let t = Tensor::empty(be, dtype, dims, tag)?;
        be.fill(Stream::COMPUTE, &t, 0.0)?;
        Ok(t)
    }

    /// A new contiguous tensor with these elements, row-major.
    pub fn from_slice<T: Element>(be: &dyn Backend, data: &[T], dims: &[usize], tag: Tag) -> Result<Tensor> {
        let t = Tensor::empty(be, T::DTYPE, dims, tag)?;
        be.upload(Stream::COMPUTE, &t, bytemuck::cast_slice(data))?;
        Ok(t)
    }

    /// A float tensor of `dtype` from f64 values.
    pub fn from_f64(be: &dyn Backend, dtype: DType, data: &[f64], dims: &[usize], tag: Tag) -> Result<Tensor> {
        match dtype {
            DType::F64 => Tensor::from_slice(be, data, dims, tag),
            DType::F32 => Tensor::from_slice(be, &data.iter().map(|&x| x as f32).collect::<Vec<_>>(), dims, tag),
            DType::BF16 => {
                Tensor::from_slice(be, &data.iter().map(|&x| half::bf16::from_f64(x)).collect::<Vec<_>>(), dims, tag)
            }
            DType::F16 => {
                Tensor::from_slice(be, &data.iter().map(|&x| half::f16::from_f64(x)).collect::<Vec<_>>(), dims, tag)
            }
            DType::I32 => Tensor::from_slice(be, &data.iter().map(|&x| x as i32).collect::<Vec<_>>(), dims, tag),
            other => Err(Error::DType { op: "from_f64", operand: "dtype", got: other, expected: "a float or i32" }),
        }
    }

    /// All elements, row-major. Works for any backend and any strides.
    pub fn to_vec<T: Element>(&self, be: &dyn Backend) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType {
                op: "to_vec",
                operand: "tensor",
                got: self.dtype,
                expected: "the element type asked for",
            });
        }
        let mut out = vec![T::zeroed(); self.numel()];
        if self.is_contiguous() {
            be.download(Stream::COMPUTE, self, bytemuck::cast_slice_mut(&mut out))?;
        } else {
            let dense = Tensor::empty(be, self.dtype, self.dims(), Tag::Work)?;
            be.copy(Stream::COMPUTE, &dense, self)?;
            be.download(Stream::COMPUTE, &dense, bytemuck::cast_slice_mut(&mut out))?;
        }
        Ok(out)
    }

    /// All elements as f64, row-major, from any float or integer type.
    pub fn to_f64(&self, be: &dyn Backend) -> Result<Vec<f64>> {
        Ok(match self.dtype {
            DType::F64 => self.to_vec::<f64>(be)?,
            DType::F32 => self.to_vec::<f32>(be)?.into_iter().map(f64::from).collect(),
            DType::BF16 => self.to_vec::<half::bf16>(be)?.into_iter().map(f64::from).collect(),
            DType::F16 => self.to_vec::<half::f16>(be)?.into_iter().map(f64::from).collect(),
            DType::I64 => self.to_vec::<i64>(be)?.into_iter().map(|x| x as f64).collect(),
            DType::I32 => self.to_vec::<i32>(be)?.into_iter().map(f64::from).collect(),
            DType::U8 => self.to_vec::<u8>(be)?.into_iter().map(f64::from).collect(),
        })
    }

    pub fn buf(&self) -> &Arc<Buf> {
        &self.buf
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// First element, counted in elements from the start of the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Size of dimension `i`; 1 beyond the rank.
    pub fn dim(&self, i: usize) -> usize {
        self.dims.get(i).copied().unwrap_or(1)
    }

    /// Stride of dimension `i`, in elements; 1 beyond the rank.
    pub fn stride(&self, i: usize) -> usize {
        self.strides.get(i).copied().unwrap_or(1)
    }

    pub fn numel(&self) -> usize {
        self.dims.numel()
    }

    pub fn is_contiguous(&self) -> bool {
        let mut acc = 1;
        for i in (0..self.rank()).rev() {
            if self.dims[i] != 1 && self.strides[i] != acc {
                return false;
            }
            acc *= self.dims[i];
        }
        true
    }

    /// Elements between the first and the last one, both included.
    pub fn span(&self) -> usize {
        if self.numel() == 0 {
            0
        } else {
            self.dims.iter().zip(self.strides.iter()).map(|(d, s)| (d - 1) * s).sum::<usize>() + 1
        }
    }

    /// The part `start..start + len` of dimension `dim`.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Tensor> {
        if dim >= self.rank() || start + len > self.dims[dim] {
            return Err(Error::shape(
                "narrow",
                format!("{start}..{} of dimension {dim} of {:?}", start + len, self.dims),
            ));
        }
        let mut t = self.clone();
        t.offset += start * self.strides[dim];
        t.dims.set(dim, len);
        Ok(t)
    }

    /// Drop dimension `dim` at `index`.
    pub fn select(&self, dim: usize, index: usize) -> Result<Tensor> {
        let t = self.narrow(dim, index, 1)?;
        let keep = |v: &Dims| v.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, x)| *x).collect::<Vec<_>>();
        Ok(Tensor { dims: Dims::new(&keep(&t.dims)), strides: Dims::new(&keep(&t.strides)), ..t })
    }

    /// The same elements in the same order with other dimensions. A strided view can be split or merged only where
    /// its memory allows it.
    pub fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        let dims = Dims::new(dims);
        let fail = || Error::shape("reshape", format!("{:?} (strides {:?}) to {dims:?}", self.dims, self.strides));
        if dims.numel() != self.numel() {
            return Err(fail());
        }
        if self.is_contiguous() {
            return Ok(Tensor { dims, strides: dims.row_major_strides(), ..self.clone() });
        }
        // Walk both shapes from the right; each group of old dimensions that makes up a group of new ones must be
        // contiguous inside.
        let (mut strides, mut i) = (dims, self.rank());
        let mut j = dims.len();
        while j > 0 {
            if dims[j - 1] == 1 {
                strides.set(j - 1, 1);
                j -= 1;
                continue;
            }
            while i > 0 && self.dims[i - 1] == 1 {
                i -= 1;
            }
            if i == 0 {
                return Err(fail());
            }
            i -= 1;
            let (mut have, mut stride) = (self.dims[i], self.strides[i]);
            loop {
                let want = dims[j - 1];
                if have.is_multiple_of(want) {
                    strides.set(j - 1, stride);
                    stride *= want;
                    have /= want;
                    j -= 1;
                    if have == 1 {
                        break;
                    }
                    if j == 0 {
                        return Err(fail());
                    }
                } else if i > 0 && want.is_multiple_of(have) && self.strides[i - 1] == self.strides[i] * self.dims[i] {
                    i -= 1;
                    have *= self.dims[i];
                } else {
                    return Err(fail());
                }
            }
        }
        Ok(Tensor { dims, strides, ..self.clone() })
    }

    /// `len` elements from `start` of a contiguous tensor, as a vector. This is how flat buffers are cut.
    pub fn flat(&self, start: usize, len: usize) -> Result<Tensor> {
        if !self.is_contiguous() || start + len > self.numel() {
            return Err(Error::shape("flat", format!("{start}..{} of {self:?}", start + len)));
        }
        Ok(Tensor { offset: self.offset + start, dims: Dims::new(&[len]), strides: Dims::new(&[1]), ..self.clone() })
    }

    /// Borrow the host elements this view spans; element `(i, j, ..)` is at `i * stride(0) + j * stride(1) + ..`.
    pub fn read<T: Element>(&self) -> Result<HostRead<'_, T>> {
        self.check_type::<T>()?;
        host::read(&self.buf, self.offset, self.span())
    }

    /// Borrow the host elements this view spans, exclusively.
    pub fn write<T: Element>(&self) -> Result<HostWrite<'_, T>> {
        self.check_type::<T>()?;
        host::write(&self.buf, self.offset, self.span())
    }

    /// The bytes of a contiguous host tensor.
    pub fn read_bytes(&self) -> Result<HostRead<'_, u8>> {
        self.check_contiguous()?;
        host::read(&self.buf, self.offset * self.dtype.size(), self.numel() * self.dtype.size())
    }

    /// The bytes of a contiguous host tensor, exclusively.
    pub fn write_bytes(&self) -> Result<HostWrite<'_, u8>> {
        self.check_contiguous()?;
        host::write(&self.buf, self.offset * self.dtype.size(), self.numel() * self.dtype.size())
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            Ok(())
        } else {
            Err(Error::DType {
                op: "host access",
                operand: "tensor",
                got: self.dtype,
                expected: std::any::type_name::<T>(),
            })
        }
    }

    fn check_contiguous(&self) -> Result<()> {
        if self.is_contiguous() {
            Ok(())
        } else {
            Err(Error::shape("host access", format!("{self:?} is strided {:?}", self.strides)))
        }
    }
}
