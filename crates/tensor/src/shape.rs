use std::ops::Deref;

/// The most dimensions a tensor has.
pub const MAX_RANK: usize = 5;

/// Up to [`MAX_RANK`] sizes, kept inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    rank: u8,
    d: [usize; MAX_RANK],
}

impl Dims {
    /// # Panics
    /// With more than [`MAX_RANK`] sizes: ranks are literals in code, never data.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= MAX_RANK, "a tensor has at most {MAX_RANK} dimensions, got {dims:?}");
        let mut d = [0; MAX_RANK];
        d[..dims.len()].copy_from_slice(dims);
        Dims { rank: dims.len() as u8, d }
    }

    pub fn numel(&self) -> usize {
        self.iter().product()
    }

    /// Strides of the contiguous row-major layout.
    pub fn row_major_strides(&self) -> Dims {
        let mut s = *self;
        let mut acc = 1;
        for i in (0..self.rank as usize).rev() {
            s.d[i] = acc;
            acc *= self.d[i];
        }
        s
    }

    pub(crate) fn set(&mut self, i: usize, v: usize) {
        debug_assert!(i < self.rank as usize);
        self.d[i] = v;
    }
}

impl Deref for Dims {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.d[..self.rank as usize]
    }
}

impl std::fmt::Debug for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl From<&[usize]> for Dims {
    fn from(d: &[usize]) -> Self {
        Dims::new(d)
    }
}
