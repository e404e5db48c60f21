//! One safetensors file: written front to back, read by position.
//!
//! The header is read through the `safetensors` crate, which checks that the tensors tile the data without holes; the
//! data are read with `pread`, so a reader fetches what it needs and nothing is mapped.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;
use tensor::DType;

use crate::disk::{Disk, DiskFile};
use crate::dtype::{dtype_name, parse_dtype};
use crate::error::{Error, Result};
use crate::rect::{Rect, fits, runs};

/// Two runs closer than this are fetched by one read: a seek on a network file system costs more than the bytes.
const GAP_BYTES_MAX: usize = 64 << 10;

/// A tensor to be written: name, type, shape.
pub(crate) type Entry = (String, DType, Vec<usize>);

/// Bytes of the tensor.
fn entry_bytes((_, dtype, shape): &Entry) -> usize {
    shape.iter().product::<usize>() * dtype.size()
}

/// A safetensors file being written. Tensors come in the order announced.
pub(crate) struct SafetensorsWriter {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    left: usize,
    /// Small tensors gather here: on a network file system a call costs more than its bytes.
    buffer: Vec<u8>,
}

const BUFFER_BYTES: usize = 1 << 20;

impl SafetensorsWriter {
    /// Creates the file and writes its header. `metadata` becomes `__metadata__`.
    pub(crate) fn create(
        disk: &dyn Disk,
        path: &Path,
        entries: &[Entry],
        metadata: &BTreeMap<String, String>,
    ) -> Result<SafetensorsWriter> {
        let mut header = serde_json::Map::new();
        if !metadata.is_empty() {
            header.insert("__metadata__".into(), serde_json::json!(metadata));
        }
        let mut at = 0;
        for entry in entries {
            let end = at + entry_bytes(entry);
            let (name, dtype, shape) = entry;
            header.insert(
                name.clone(),
                serde_json::json!({"dtype": dtype_name(*dtype), "shape": shape, "data_offsets": [at, end]}),
            );
            at = end;
        }
        let mut text = serde_json::Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let file = disk.create(path).map_err(|e| Error::io("create", path, e))?;
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(&(text.len() as u64).to_le_bytes());
        buffer.extend_from_slice(&text);
        Ok(SafetensorsWriter { path: path.to_owned(), file, left: at, buffer })
    }

    /// Appends the bytes of the next tensor, or the next part of them.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.left, "more bytes than the header of {} announces", self.path.display());
        self.left -= bytes.len();
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() > BUFFER_BYTES {
            return self.file.write_all(bytes).map_err(|e| Error::io("write", &self.path, e));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_all(&self.buffer).map_err(|e| Error::io("write", &self.path, e))?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Makes the bytes durable. The entry in the folder is the caller's to sync.
    pub(crate) fn finish(mut self) -> Result<()> {
        assert_eq!(self.left, 0, "fewer bytes than the header of {} announces", self.path.display());
        self.flush()?;
        self.file.sync().map_err(|e| Error::io("sync", &self.path, e))
    }
}

/// Where a tensor lies in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub(crate) start: u64,
}

impl TensorInfo {
    /// Bytes of the tensor.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// An open safetensors file.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, TensorInfo>,
}

impl SafetensorsFile {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if the header or the length of the file is wrong.
    pub fn open(path: &Path) -> Result<SafetensorsFile> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        let length = file.metadata().map_err(|e| Error::io("read", path, e))?.len();
        let mut prefix = [0; 8];
        if length < 8 {
            return Err(Error::damaged(path, format!("{length} bytes are no safetensors file")));
        }
        file.read_exact_at(&mut prefix, 0).map_err(|e| Error::io("read", path, e))?;
        let header = u64::from_le_bytes(prefix);
        if header > length - 8 {
            return Err(Error::damaged(path, format!("header of {header} bytes in a file of {length}")));
        }
        let mut head = vec![0; 8 + header as usize];
        file.read_exact_at(&mut head, 0).map_err(|e| Error::io("read", path, e))?;
        // The crate's own reader wants the whole file in memory; its type checks offsets and shapes just the same.
        let metadata: Metadata = serde_json::from_slice(&head[8..]).map_err(|e| Error::damaged(path, e.to_string()))?;
        let mut tensors = BTreeMap::new();
        let mut end = 0;
        for (name, info) in metadata.tensors() {
            let type_name = info.dtype.to_string();
            let dtype = parse_dtype(&type_name).ok_or_else(|| Error::Mismatch {
                path: path.to_owned(),
                tensor: name.clone(),
                what: format!("its type {type_name} is not supported"),
            })?;
            end = end.max(info.data_offsets.1);
            let start = 8 + header + info.data_offsets.0 as u64;
            tensors.insert(name, TensorInfo { dtype, shape: info.shape.clone(), start });
        }
        let wanted = 8 + header + end as u64;
        if length != wanted {
            return Err(Error::damaged(path, format!("it has {length} bytes, its header announces {wanted}")));
        }
        Ok(SafetensorsFile { path: path.to_owned(), file, tensors })
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads rectangle `part` of a tensor seen as `shape` (its own, or a reshape of it), row-major, into `out`:
    /// neighbouring rows by one read, rows with small gaps between them likewise.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Missing`]; [`Error::Mismatch`] if the rectangle does not fit.
    ///
    /// # Panics
    /// If `out` is not as large as the rectangle.
    pub fn read_rect(&self, name: &str, shape: &[usize], part: &Rect, out: &mut [u8]) -> Result<()> {
        let info = self.tensors.get(name).ok_or_else(|| Error::Missing {
            path: self.path.clone(),
            names: vec![name.to_owned()],
            hint: "",
        })?;
        let size = info.dtype.size();
        if shape.iter().product::<usize>() != info.shape.iter().product::<usize>() || !fits(part, shape) {
            let what = format!("it has shape {:?}, wanted was {part:?} of {shape:?}", info.shape);
            return Err(Error::Mismatch { path: self.path.clone(), tensor: name.to_owned(), what });
        }
        assert_eq!(out.len(), part.numel() * size, "buffer for {part:?} of {name}");
        let (starts, len) = runs(shape, part);
        let run = len * size;
        let mut first = 0;
        let mut scratch = Vec::new();
        while first < starts.len() {
            let mut last = first;
            while last + 1 < starts.len() && (starts[last + 1] - starts[last]) * size - run <= GAP_BYTES_MAX.min(run) {
                last += 1;
            }
            let at = info.start + (starts[first] * size) as u64;
            let target = &mut out[first * run..(last + 1) * run];
            if first == last {
                self.read_at(target, at)?;
            } else {
                scratch.resize((starts[last] - starts[first]) * size + run, 0);
                self.read_at(&mut scratch, at)?;
                for (to, start) in target.chunks_exact_mut(run).zip(&starts[first..=last]) {
                    to.copy_from_slice(&scratch[(start - starts[first]) * size..][..run]);
                }
            }
            first = last + 1;
        }
        Ok(())
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(out, at).map_err(|e| Error::io("read", &self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use safetensors::SafeTensors;

    fn write(path: &Path) -> (Vec<u8>, Vec<u8>) {
        let a: Vec<u8> = (0..60u8).collect();
        let b: Vec<u8> = (100..108u8).collect();
        let entries = [("a".to_owned(), DType::BF16, vec![5, 6]), ("b".to_owned(), DType::F32, vec![2])];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut writer = SafetensorsWriter::create(&RealDisk, path, &entries, &metadata).unwrap();
        writer.write(&a).unwrap();
        writer.write(&b).unwrap();
        writer.finish().unwrap();
        (a, b)
    }

    #[test]
    fn the_reference_reader_reads_what_we_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let (a, b) = write(&path);
        let bytes = std::fs::read(&path).unwrap();
        let parsed = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(parsed.tensor("a").unwrap().data(), a);
        assert_eq!(parsed.tensor("b").unwrap().data(), b);
        assert_eq!(parsed.tensor("a").unwrap().shape(), [5, 6]);
    }

    #[test]
    fn any_rectangle_reads_like_a_slice_of_the_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let (a, _) = write(&path);
        let file = SafetensorsFile::open(&path).unwrap();
        for (offset, shape) in
            [([0, 0], [5, 6]), ([1, 0], [3, 6]), ([1, 2], [3, 3]), ([4, 5], [1, 1]), ([0, 3], [5, 1])]
        {
            let part = Rect { offset: offset.to_vec(), shape: shape.to_vec() };
            let mut got = vec![0; part.numel() * 2];
            file.read_rect("a", &[5, 6], &part, &mut got).unwrap();
            let mut want = vec![0; part.numel() * 2];
            crate::rect::copy_shared(&a, &Rect::full(&[5, 6]), &mut want, &part, 2);
            assert_eq!(got, want, "{part:?}");
        }
        assert!(
            file.read_rect("a", &[5, 6], &Rect { offset: vec![4, 0], shape: vec![2, 6] }, &mut [0; 24]).is_err(),
            "out of bounds"
        );
        assert!(file.read_rect("c", &[1], &Rect::full(&[1]), &mut [0; 2]).is_err(), "unknown");
    }

    #[test]
    fn a_torn_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        write(&path);
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 5, 8, 40, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = SafetensorsFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("x.safetensors") && error.contains("damaged"), "{length} bytes: {error}");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(SafetensorsFile::open(&path).is_err(), "a longer file is not ours either");
    }
}
