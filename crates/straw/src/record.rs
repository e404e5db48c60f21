//! What one reference names: opaque meta and named tensors.

use crate::limits::{META_BYTES_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_PER_RECORD_MAX, at_most};
use crate::{Error, Result, Tensor};

/// A tensor and its name, unique within the record.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// The name.
    pub name: String,
    /// The tensor.
    pub tensor: Tensor,
}

/// The payload of one reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Bytes that straw does not look at (callers use JSON).
    pub meta: Vec<u8>,
    /// Tensors, in the order given.
    pub tensors: Vec<NamedTensor>,
}

impl Record {
    /// A record with meta alone.
    pub fn new(meta: impl Into<Vec<u8>>) -> Self {
        Record { meta: meta.into(), tensors: Vec::new() }
    }

    /// Adds a tensor.
    pub fn with(mut self, name: impl Into<String>, tensor: Tensor) -> Self {
        self.tensors.push(NamedTensor { name: name.into(), tensor });
        self
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let found = self.tensors.iter().find(|t| t.name == name);
        found.map(|t| &t.tensor).ok_or_else(|| no_tensor(name, self.tensors.iter().map(|t| t.name.as_str())))
    }

    /// Checks the limits and that names are unique.
    pub(crate) fn check(&self) -> Result<()> {
        at_most("bytes of a record's meta", self.meta.len() as u64, META_BYTES_MAX)?;
        at_most("tensors of a record", self.tensors.len() as u64, TENSORS_PER_RECORD_MAX as u64)?;
        for (i, t) in self.tensors.iter().enumerate() {
            at_most("bytes of a tensor's name", t.name.len() as u64, TENSOR_NAME_BYTES_MAX as u64)?;
            if self.tensors.iter().take(i).any(|other| other.name == t.name) {
                return Err(Error::Tensor { name: t.name.clone(), what: "occurs twice in one record".into() });
            }
        }
        Ok(())
    }
}

pub(crate) fn no_tensor<'a>(name: &str, have: impl Iterator<Item = &'a str>) -> Error {
    let have = have.collect::<Vec<_>>().join(", ");
    Error::Tensor { name: name.to_owned(), what: format!("is not in this record, which has: {have}") }
}
