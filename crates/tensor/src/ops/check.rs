use crate::{DType, Error, Result, Tensor};

/// The operand has exactly these dimensions.
pub(super) fn dims(op: &'static str, name: &'static str, t: &Tensor, want: &[usize]) -> Result<()> {
    if t.dims() == want {
        Ok(())
    } else {
        Err(Error::shape(op, format!("{name} is {:?}, expected {want:?}", t.dims())))
    }
}

pub(super) fn rank(op: &'static str, name: &'static str, t: &Tensor, want: usize) -> Result<()> {
    if t.rank() == want {
        Ok(())
    } else {
        Err(Error::shape(op, format!("{name} is {:?}, expected {want} dimensions", t.dims())))
    }
}

/// Neighbours in the last dimension are neighbours in memory.
pub(super) fn inner_unit(op: &'static str, name: &'static str, t: &Tensor) -> Result<()> {
    let last = t.rank().wrapping_sub(1);
    if t.rank() == 0 || t.stride(last) == 1 || t.dim(last) <= 1 {
        Ok(())
    } else {
        Err(Error::shape(op, format!("{name}: the last dimension must be contiguous, strides are {:?}", t.strides())))
    }
}

pub(super) fn contiguous(op: &'static str, name: &'static str, t: &Tensor) -> Result<()> {
    if t.is_contiguous() {
        Ok(())
    } else {
        Err(Error::shape(op, format!("{name} must be contiguous, strides are {:?}", t.strides())))
    }
}

pub(super) fn dtype(op: &'static str, operand: &'static str, t: &Tensor, want: DType) -> Result<()> {
    if t.dtype() == want {
        return Ok(());
    }
    let expected = match want {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::U8 => "u8",
    };
    Err(Error::DType { op, operand, got: t.dtype(), expected })
}

pub(super) fn float(op: &'static str, operand: &'static str, t: &Tensor) -> Result<()> {
    if t.dtype().is_float() { Ok(()) } else { Err(Error::DType { op, operand, got: t.dtype(), expected: "a float" }) }
}

/// A contiguous float operand of this type and these dimensions.
pub(super) fn dense(op: &'static str, name: &'static str, t: &Tensor, ty: DType, want: &[usize]) -> Result<()> {
    dtype(op, name, t, ty)?;
    dims(op, name, t, want)?;
    contiguous(op, name, t)
}

/// A contiguous vector of int32.
pub(super) fn indices(op: &'static str, name: &'static str, t: &Tensor, len: usize) -> Result<()> {
    dense(op, name, t, DType::I32, &[len])
}
