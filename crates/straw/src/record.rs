//! What one reference names: opaque meta and named tensors.

use crate::compression::Compression;
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
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Bytes that straw does not look at (callers use JSON).
    pub meta: Vec<u8>,
    /// Tensors, in the order given.
    pub tensors: Vec<NamedTensor>,
    /// How it is to be stored; `None` is as the store's options say.
    pub(crate) compression: Option<Compression>,
}

/// Equal when the contents are: how a record is stored is no part of it.
impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.meta == other.meta && self.tensors == other.tensors
    }
}

impl Record {
    /// A record with meta alone.
    pub fn new(meta: impl Into<Vec<u8>>) -> Self {
        Record { meta: meta.into(), ..Record::default() }
    }

    /// Adds a tensor.
    pub fn with(mut self, name: impl Into<String>, tensor: Tensor) -> Self {
        self.tensors.push(NamedTensor { name: name.into(), tensor });
        self
    }

    /// Says how its tensors are to be stored, whatever the store's options say ([`crate::Options::compression`]).
    pub fn compressed(mut self, how: Compression) -> Self {
        self.compression = Some(how);
        self
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let found = self.tensors.iter().find(|t| t.name == name);
        found.map(|t| &t.tensor).ok_or_else(|| no_tensor(name, self.tensors.iter().map(|t| t.name.as_str())))
    }

    /// Checks the limits and that names are unique.
    pub(crate) fn check(&self) -> Result<()> {
        check(&self.meta, self.tensors.iter().map(|t| t.name.as_str()))
    }
}

/// Checks the limits of a record with this meta and tensors of these names, and that the names are unique.
pub(crate) fn check<'a>(meta: &[u8], names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
    at_most("bytes of a record's meta", meta.len() as u64, META_BYTES_MAX)?;
    at_most("tensors of a record", names.clone().count() as u64, TENSORS_PER_RECORD_MAX as u64)?;
    for (i, name) in names.clone().enumerate() {
        at_most("bytes of a tensor's name", name.len() as u64, TENSOR_NAME_BYTES_MAX as u64)?;
        if names.clone().take(i).any(|other| other == name) {
            return Err(Error::Tensor { name: name.to_owned(), what: "occurs twice in one record".into() });
        }
    }
    Ok(())
}

pub(crate) fn no_tensor<'a>(name: &str, have: impl Iterator<Item = &'a str>) -> Error {
    let have = have.collect::<Vec<_>>().join(", ");
    Error::Tensor { name: name.to_owned(), what: format!("is not in this record, which has: {have}") }
}
