//! The page allocator of the KV pool: reference counts, nothing of what the pages hold.
//!
//! A page is free (no reference), used by sequences (one reference each), remembered by the prefix tree (one more), or idle:
//! remembered and used by nobody. Only idle pages may be evicted.

/// Tokens in a page. The prefix cache shares whole pages only.
pub(crate) const PAGE_TOKENS: usize = tensor::PAGE;

/// Index of a page in the pool.
pub(crate) type PageId = u32;

/// Pages needed to hold `tokens` tokens.
pub(crate) const fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Who holds which page.
pub(crate) struct Pages {
    references: Vec<u32>,
    remembered: Vec<bool>,
    free: Vec<PageId>,
    idle: usize,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            references: vec![0; count],
            remembered: vec![false; count],
            // Lowest first, so that a lightly loaded engine touches little memory.
            free: (0..count as PageId).rev().collect(),
            idle: 0,
        }
    }

    /// All pages.
    pub(crate) fn count(&self) -> usize {
        self.references.len()
    }

    /// Pages that [`take`](Self::take) hands out without eviction.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that only the prefix tree holds.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    /// Pages that sequences hold.
    pub(crate) fn used(&self) -> usize {
        self.count() - self.free() - self.idle()
    }

    /// A free page, with one reference.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        Some(page)
    }

    /// A further sequence uses `page`.
    pub(crate) fn retain(&mut self, page: PageId) {
        let references = &mut self.references[page as usize];
        debug_assert!(*references > 0, "page {page} is free");
        if *references == 1 && self.remembered[page as usize] {
            self.idle -= 1;
        }
        *references += 1;
    }

    /// A sequence is done with `page`.
    pub(crate) fn release(&mut self, page: PageId) {
        let references = &mut self.references[page as usize];
        debug_assert!(*references > 0, "page {page} is free");
        *references -= 1;
        match *references {
            0 => self.free.push(page),
            1 if self.remembered[page as usize] => self.idle += 1,
            _ => {}
        }
    }

    /// The prefix tree takes a reference to a page that a sequence holds.
    pub(crate) fn remember(&mut self, page: PageId) {
        debug_assert!(!self.remembered[page as usize] && self.references[page as usize] > 0);
        self.remembered[page as usize] = true;
        self.references[page as usize] += 1;
    }

    /// The prefix tree gives its reference back.
    pub(crate) fn forget(&mut self, page: PageId) {
        debug_assert!(self.remembered[page as usize]);
        if self.is_idle(page) {
            self.idle -= 1;
        }
        self.remembered[page as usize] = false;
        self.release(page);
    }

    /// Whether only the prefix tree holds `page`.
    pub(crate) fn is_idle(&self, page: PageId) -> bool {
        self.remembered[page as usize] && self.references[page as usize] == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_again_when_the_last_holder_lets_go() {
        let mut pages = Pages::new(2);
        let page = pages.take().unwrap();
        pages.remember(page);
        pages.retain(page);
        pages.release(page);
        assert_eq!((pages.free(), pages.idle(), pages.used()), (1, 0, 1));
        pages.release(page);
        assert_eq!((pages.free(), pages.idle(), pages.used()), (1, 1, 0));
        pages.retain(page);
        assert_eq!((pages.free(), pages.idle(), pages.used()), (1, 0, 1));
        pages.forget(page);
        assert_eq!((pages.free(), pages.idle(), pages.used()), (1, 0, 1));
        pages.release(page);
        assert_eq!((pages.free(), pages.idle(), pages.used()), (2, 0, 0));
    }

    #[test]
    fn no_page_is_handed_out_twice() {
        let mut pages = Pages::new(3);
        let mut taken: Vec<_> = std::iter::from_fn(|| pages.take()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2]);
        assert!(pages.take().is_none());
    }
}
