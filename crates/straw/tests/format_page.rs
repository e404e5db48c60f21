//! The dumps of `docs/src/straw-format.md` are what is written: each is made anew, read here by hand as the page says (no decoder
//! of the library is used), and compared. `UPDATE=1` writes them into the page.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use straw::queue::{NewTask, Op, TaskId};
use straw::{Archive, Compression, Entry, Fs, Journal, Record, SimFs, Store, Tensor};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/straw-format.md")
}

/// Bytes, read field by field.
struct Dump<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the first byte lies in its file.
    base: usize,
    lines: String,
}

const ROW: usize = 8;

impl<'a> Dump<'a> {
    fn of(title: &str, bytes: &'a [u8], base: usize) -> Self {
        Dump { bytes, at: 0, base, lines: format!("{title}\n") }
    }

    fn done(self) -> String {
        assert_eq!(self.at, self.bytes.len(), "a dump shows every byte");
        self.lines
    }

    /// Shows `len` bytes.
    fn take(&mut self, len: usize, meaning: &str) -> &'a [u8] {
        let bytes = &self.bytes[self.at..self.at + len];
        let zeros = bytes.len() > ROW && bytes.iter().all(|b| *b == 0);
        for (i, row) in bytes.chunks(if zeros { usize::MAX } else { ROW }).enumerate() {
            let shown = if zeros {
                format!("00 x {}", row.len())
            } else {
                row.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
            };
            let line =
                format!("{:06x}  {shown:<23}  {}", self.base + self.at + i * ROW, if i == 0 { meaning } else { "" });
            self.lines.push_str(line.trim_end());
            self.lines.push('\n');
        }
        self.at += len;
        bytes
    }

    fn u32(&mut self, meaning: &str) -> u32 {
        let value = u32::from_le_bytes(self.bytes[self.at..self.at + 4].try_into().unwrap());
        self.take(4, &meaning.replace("{}", &value.to_string()));
        value
    }

    fn crc(&mut self, meaning: &str) -> u32 {
        let value = u32::from_le_bytes(self.bytes[self.at..self.at + 4].try_into().unwrap());
        self.take(4, &format!("{meaning} {value:08x}"));
        value
    }

    fn u64(&mut self, meaning: &str) -> u64 {
        let value = u64::from_le_bytes(self.bytes[self.at..self.at + 8].try_into().unwrap());
        self.take(8, &meaning.replace("{}", &value.to_string()));
        value
    }

    fn varint(&mut self, meaning: &str) -> u64 {
        let (mut value, mut len) = (0, 0);
        loop {
            let byte = self.bytes[self.at + len];
            value |= u64::from(byte & 0x7f) << (7 * len);
            len += 1;
            if byte < 0x80 {
                break;
            }
        }
        self.take(len, &meaning.replace("{}", &value.to_string()));
        value
    }

    /// A length and so many bytes.
    fn blob(&mut self, meaning: &str) -> &'a [u8] {
        let len = self.bytes[self.at] as usize;
        assert!(len < 0x80, "the samples are small");
        let bytes = &self.bytes[self.at + 1..self.at + 1 + len];
        self.take(1 + len, &format!("{meaning}: {} bytes, {:?}", len, String::from_utf8_lossy(bytes)));
        bytes
    }

    fn pad(&mut self, to: usize) {
        if self.base + self.at < to {
            let bytes = self.take(to - self.base - self.at, "zeros");
            assert!(bytes.iter().all(|b| *b == 0));
        }
    }

    /// A frame's prefix; checks the checksum with its salt (file, offset).
    fn prefix(&mut self, magic: &str, salt: (&str, u64)) {
        let start = self.at;
        assert_eq!(self.take(4, &format!("magic {magic:?}")), magic.as_bytes());
        let len = self.u32("length of the body: {}") as usize;
        let crc = self.crc("checksum");
        let frame = &self.bytes[start..start + 12 + len];
        let parts = [salt.0.as_bytes(), &salt.1.to_le_bytes(), &frame[..8], &frame[12..]];
        assert_eq!(crc, parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)));
    }
}

fn align(n: usize) -> usize {
    n.next_multiple_of(64)
}

fn files(sim: &SimFs, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = sim.open_dir(Path::new(folder)).unwrap();
    let read = |name: String, len: u64| (name.clone(), dir.open(&name).unwrap().read_at(0, len as usize).unwrap());
    dir.list().unwrap().into_iter().map(|entry| read(entry.name, entry.len)).collect()
}

fn store(sim: &SimFs) -> Store {
    Store::open(Arc::new(sim.clone()), "/run/packs").unwrap()
}

fn pack() -> String {
    let sim = SimFs::new(1);
    let writer = store(&sim).writer("w").unwrap();
    let tokens = Tensor::from_vec(&[3], vec![1i32, 2, 3]).unwrap();
    writer.publish("group-0", &[Record::new("{}").with("tokens", tokens)]).unwrap();
    writer.seal();
    let (file, bytes) = files(&sim, "/run/packs").pop_first().unwrap();
    let name = file.strip_suffix(".pack").unwrap();
    let mut d = Dump::of(&file, &bytes, 0);
    d.prefix("SPAK", (name, 0));
    d.varint("format {}");
    d.blob("owner");
    d.take(1, "its writer holds the lock: yes");
    d.pad(64);
    // The extent.
    let extent = d.at;
    d.prefix("SEXT", (name, extent as u64));
    d.blob("submission");
    d.u64("extents below {} are settled");
    let body = d.varint("length behind this header and its zeros: {}") as usize;
    assert_eq!(d.varint("records: {}"), 1);
    let len = d.varint("record 0: length {}") as usize;
    let head = d.varint("length of its head: {}") as usize;
    let head_crc = d.crc_varint("checksum of its head");
    assert_eq!(d.varint("length of its table: {}"), 0);
    assert_eq!(d.varint("packs that it shares blocks of: {}"), 0);
    d.pad(extent + align(d.at - extent));
    assert_eq!((d.at + body, align(len)), (bytes.len() - 16 - footer_len(&bytes), body));
    // The record.
    let record = d.at;
    d.prefix("SREC", ("", 0));
    assert_eq!(u32::from_le_bytes(bytes[record + 8..record + 12].try_into().unwrap()), head_crc);
    d.varint("bytes of a block: {}");
    assert_eq!(d.varint("tensors: {}"), 1);
    d.blob("name");
    assert_eq!(d.varint("element type {}: i32"), 5);
    d.varint("rank {}");
    d.varint("shape: {}");
    d.varint("blocks: {}");
    let tensor_crc = d.crc_varint("checksum of block 0");
    let meta_len = d.varint("length of the meta: {}") as usize;
    let meta_crc = d.crc_varint("checksum of the meta");
    assert_eq!(d.at - record, head);
    d.pad(record + align(head));
    assert_eq!(crc32c::crc32c(d.take(12, "tensor: 1, 2, 3")), tensor_crc);
    assert_eq!(crc32c::crc32c(d.take(meta_len, "meta: \"{}\"")), meta_crc);
    assert_eq!(d.at - record, len);
    d.pad(record + align(len));
    // The footer.
    let footer = d.at as u64;
    d.prefix("SFOT", (name, footer));
    d.varint("extents: {}");
    d.varint("extent 0: offset {}");
    d.varint("length of its header: {}");
    d.blob("its submission");
    let len = d.at as u64 - footer;
    assert_eq!(d.u64("the footer begins at {}"), footer);
    assert_eq!(u64::from(d.u32("length of the footer: {}")), len);
    assert_eq!(d.take(4, "magic \"SEAL\""), b"SEAL");
    d.done()
}

/// A record of which one block is compressed in another pack, and one is its own.
fn table() -> String {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let zeros = Tensor::from_vec(&[65537], vec![0u8; 65537]).unwrap();
    let base = Record::new("{}").with("t", zeros).compressed(Compression::Zstd(3));
    let base = store.writer("w").unwrap().publish("base", &[base]).unwrap().remove(0);
    let mut update = store.update(&base).unwrap();
    update.set_rows("t", 65536..65537, &Tensor::from_vec(&[1], vec![7u8]).unwrap()).unwrap();
    let r = store.writer("x").unwrap().publish_updates("update", &[update]).unwrap().remove(0);
    let found = files(&sim, "/run/packs");
    let of = |name: &str| &found[&format!("{name}.pack")];
    let bytes = &of(&r.pack)[r.offset as usize..(r.offset + r.len) as usize];
    let mut d = Dump::of("a record, from its first byte", bytes, 0);
    d.prefix("SREC", ("", 0));
    d.varint("bytes of a block: {}");
    d.varint("tensors: {}");
    d.blob("name");
    assert_eq!(d.varint("element type {}: u8"), 0);
    d.varint("rank {}");
    d.varint("shape: {}");
    assert_eq!(d.varint("blocks: {}"), 2);
    let zeros = d.crc_varint("checksum of block 0");
    let seven = d.crc_varint("checksum of block 1");
    let meta_len = d.varint("length of the meta: {}") as usize;
    d.crc_varint("checksum of the meta");
    assert_eq!((d.at, zeros), (r.head as usize, crc32c::crc32c(&[0; 65536])));
    d.prefix("STAB", ("", r.crc.into()));
    assert_eq!(d.varint("tensors: {}"), 1);
    assert_eq!(d.varint("places of blocks: {}"), 2);
    assert_eq!(d.take(1, "block 0 is shared: yes"), [1]);
    assert_eq!(d.varint("... of the reference's share {}"), 0);
    let at = d.varint("... at offset {} of its pack") as usize;
    assert_eq!(d.take(1, "... and compressed: yes"), [1]);
    let len = d.varint("... bytes that are stored: {}") as usize;
    let crc = d.crc_varint("... and their checksum");
    assert_eq!(crc, crc32c::crc32c(&of(&r.shares[0].pack)[at..at + len]));
    assert_eq!(d.take(1, "block 1 is shared: no"), [0]);
    assert_eq!(d.take(1, "... and compressed: no"), [0]);
    assert_eq!(d.at, (r.head + r.table) as usize);
    d.pad(align(d.at));
    assert_eq!(crc32c::crc32c(d.take(1, "block 1: 7")), seven);
    d.take(meta_len, "meta: \"{}\"");
    assert_eq!((r.shares.len(), r.shares[0].bytes), (1, len as u64));
    d.done()
}

fn footer_len(pack: &[u8]) -> usize {
    u32::from_le_bytes(pack[pack.len() - 8..pack.len() - 4].try_into().unwrap()) as usize
}

impl Dump<'_> {
    /// A checksum that is stored as a varint.
    fn crc_varint(&mut self, meaning: &str) -> u32 {
        let (at, lines) = (self.at, self.lines.len());
        let value = self.varint("");
        self.at = at;
        self.lines.truncate(lines);
        self.varint(&format!("{meaning} {value:08x}"));
        u32::try_from(value).unwrap()
    }

    fn frame(&mut self, segment: &str) {
        let start = self.at;
        let len = self.u32("frame: length of the body {}") as usize;
        let header_crc = self.crc("checksum of this header");
        let body_crc = self.crc("checksum of the body");
        self.u64("first transaction: {}");
        let seed = crc32c::crc32c_append(crc32c::crc32c(segment.as_bytes()), &(start as u64).to_le_bytes());
        let frame = &self.bytes[start..start + 20 + len];
        let of_header = crc32c::crc32c_append(crc32c::crc32c_append(seed, &frame[..4]), &frame[8..20]);
        assert_eq!(of_header, header_crc);
        assert_eq!(crc32c::crc32c_append(seed, &frame[20..]), body_crc);
    }

    fn segment_header(&mut self, segment: &str) -> bool {
        self.prefix("SSEG", (segment, 0));
        self.varint("format {}");
        self.varint("the first transaction it can hold: {}");
        let seals = self.take(1, "seals a segment: 0 no, 1 yes")[0] == 1;
        if seals {
            self.varint("... of epoch {}");
            self.varint("... and index {}");
            self.varint("... at length {}");
        }
        self.pad(128);
        seals
    }
}

fn journal() -> String {
    let sim = SimFs::new(1);
    let (journal, _) = Journal::claim(Arc::new(sim.clone()), "/run/journal", "pod-0").unwrap();
    let op = Op::Submit { tasks: vec![NewTask { id: TaskId(7), input: b"row".to_vec(), attempts_max: 3 }] };
    journal.append(&[postcard::to_stdvec(&op).unwrap()]).unwrap();
    journal.append(&["a", "b"]).unwrap();
    let before = files(&sim, "/run/journal");
    journal.snapshot(2, b"state").unwrap();
    let after = files(&sim, "/run/journal");

    let mut out = Vec::new();
    let (file, bytes) = before.first_key_value().unwrap();
    let mut d = Dump::of(file, bytes, 0);
    d.take(bytes.len(), "owner: \"pod-0\"");
    out.push(d.done());

    let (file, bytes) = before.last_key_value().unwrap();
    let mut d = Dump::of(file, bytes, 0);
    assert!(!d.segment_header(file));
    d.frame(file);
    d.varint("transaction 1: records {}");
    d.varint("record 0: length {}");
    assert_eq!(d.varint("op {}: Submit"), 0);
    d.varint("tasks: {}");
    d.varint("task {}");
    d.blob("its input");
    d.varint("attempts at most: {}");
    d.frame(file);
    d.varint("transaction 2: records {}");
    d.blob("record 0");
    d.blob("record 1");
    out.push(d.done());

    let (file, bytes) = after.last_key_value().unwrap();
    let mut d = Dump::of(file, bytes, 0);
    let start = d.at;
    d.take(8, "magic \"STRAWSN1\"");
    d.u64("state after transaction {}");
    let len = d.u64("length of the state: {}") as usize;
    let crc = d.crc("checksum");
    assert_eq!(crc, crc32c::crc32c_append(crc32c::crc32c(&bytes[start..start + 24]), &bytes[28..28 + len]));
    d.take(len, "state: \"state\"");
    out.push(d.done());

    let (file, bytes) = after.iter().find(|(file, _)| file.starts_with("seg-")).unwrap();
    let mut d = Dump::of(file, bytes, 0);
    assert!(d.segment_header(file));
    out.push(d.done());
    out.join("\n")
}

fn pool() -> String {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let writer = store.writer("w").unwrap();
    let pack = writer.publish("s", &[Record::new("x")]).unwrap().remove(0).pack;
    writer.seal();
    store.register("fork").unwrap();
    store.register("main").unwrap().remove(&[pack].into()).unwrap();
    let found = files(&sim, "/run/packs/pool");
    let mut out = Vec::new();
    for (file, bytes) in &found {
        let mut d = Dump::of(file, bytes, 0);
        if file.starts_with("gone-") {
            d.prefix("SGON", (file, 0));
            d.varint("packs: {}");
            d.blob("pack");
        } else {
            d.lines.push_str("        (no bytes)\n");
        }
        out.push(d.done());
    }
    assert_eq!(out.len(), 3);
    out.join("\n")
}

fn archive() -> String {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let writer = store.writer("w").unwrap();
    let reference = writer.publish("s", &[Record::new("x")]).unwrap().remove(0);
    let at = |key: &str, part| Entry { key: key.into(), part, reference: reference.clone() };
    let index = Archive::write(&writer, "index", &[at("task 7", 0), at("task 7/1", 1)]).unwrap();
    let index = store.read(&index).unwrap();
    let mut d = Dump::of("meta of the index", &index.meta, 0);
    d.varint("format {}");
    d.varint("entries: {}");
    d.varint("packs: {}");
    d.blob("pack 0");
    d.varint("pages: {}");
    d.blob("first key of page 0");
    d.varint("page 0 begins at {}");
    d.varint("bytes of all pages: {}");
    let meta = d.done();
    let pages = index.tensor("pages").unwrap();
    let mut d = Dump::of("tensor \"pages\" of the index", pages.bytes(), 0);
    for _ in 0..2 {
        d.blob("key");
        d.varint("pack {}");
        d.varint("offset {}");
        d.varint("length {}");
        d.varint("length of the head: {}");
        d.crc_varint("checksum of the head");
        d.varint("length of the table: {}");
        d.varint("packs that it shares blocks of: {}");
        d.varint("part {}");
    }
    [meta, d.done()].join("\n")
}

#[test]
fn the_page_shows_what_is_written() {
    let mut text = std::fs::read_to_string(page()).unwrap();
    let update = std::env::var_os("UPDATE").is_some();
    for (name, dump) in
        [("pack", pack()), ("table", table()), ("journal", journal()), ("pool", pool()), ("archive", archive())]
    {
        let begin = format!("<!-- dump: {name} -->\n```text\n");
        let start = text.find(&begin).unwrap_or_else(|| panic!("the page has no dump {name}")) + begin.len();
        let end = start + text[start..].find("```").unwrap();
        if update {
            text.replace_range(start..end, &dump);
        } else {
            assert_eq!(&text[start..end], dump, "the dump {name} of the page: UPDATE=1 writes it anew");
        }
    }
    if update {
        std::fs::write(page(), text).unwrap();
    }
}
