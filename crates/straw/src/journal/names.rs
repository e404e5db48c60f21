//! Names of the journal's files. Numbers have a fixed width, so that names sort as numbers do.

/// Place of a segment in the order of the journal: epoch, then index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct SegmentId {
    pub(crate) epoch: u64,
    pub(crate) index: u64,
}

/// A file of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Claim {
        epoch: u64,
    },
    Segment(SegmentId),
    Snapshot {
        lsn: u64,
        epoch: u64,
    },
    /// A snapshot that was not finished.
    Temporary {
        epoch: u64,
    },
}

impl Name {
    pub(crate) fn text(self) -> String {
        match self {
            Name::Claim { epoch } => format!("epoch-{epoch:010}"),
            Name::Segment(SegmentId { epoch, index }) => format!("seg-{epoch:010}-{index:08}.log"),
            Name::Snapshot { lsn, epoch } => format!("snap-{lsn:016}-{epoch:010}.snap"),
            Name::Temporary { epoch } => format!("snap-{epoch:010}.tmp"),
        }
    }

    /// The epoch a name mentions.
    pub(crate) fn epoch(self) -> u64 {
        match self {
            Name::Claim { epoch } | Name::Snapshot { epoch, .. } | Name::Temporary { epoch } => epoch,
            Name::Segment(id) => id.epoch,
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Name> {
        let name = if let Some(rest) = text.strip_prefix("epoch-") {
            Name::Claim { epoch: rest.parse().ok()? }
        } else if let Some(rest) = text.strip_prefix("seg-").and_then(|t| t.strip_suffix(".log")) {
            let (epoch, index) = rest.split_once('-')?;
            Name::Segment(SegmentId { epoch: epoch.parse().ok()?, index: index.parse().ok()? })
        } else if let Some(rest) = text.strip_prefix("snap-").and_then(|t| t.strip_suffix(".snap")) {
            let (lsn, epoch) = rest.split_once('-')?;
            Name::Snapshot { lsn: lsn.parse().ok()?, epoch: epoch.parse().ok()? }
        } else {
            let rest = text.strip_prefix("snap-").and_then(|t| t.strip_suffix(".tmp"))?;
            Name::Temporary { epoch: rest.parse().ok()? }
        };
        (name.text() == text).then_some(name)
    }
}
