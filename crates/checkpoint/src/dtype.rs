//! Names of element types in safetensors headers.

use tensor::DType;

/// The name safetensors uses, e.g. "BF16".
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::BF16 => "BF16",
        DType::F16 => "F16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::U8 => "U8",
    }
}

/// Inverse of [`dtype_name`]; `None` for a type we do not compute with.
pub fn parse_dtype(name: &str) -> Option<DType> {
    Some(match name {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "BF16" => DType::BF16,
        "F16" => DType::F16,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "U8" => DType::U8,
        _ => return None,
    })
}
