/// A queue of a device: work on one stream runs in order, work on two streams is ordered by events only.
/// The CPU backends run everything at once, so there every stream is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u32);

impl Stream {
    pub const COMPUTE: Stream = Stream(0);
    pub const COMM: Stream = Stream(1);
    pub const COPY: Stream = Stream(2);
}

/// A point in a stream that another stream can wait for. The number means something to its backend only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);
