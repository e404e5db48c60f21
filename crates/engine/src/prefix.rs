//! The prefix cache: a radix tree over whole pages of token ids.
//!
//! A node is one full page of tokens after its parent's; the page's KV depends on nothing but those tokens and the weights, so
//! whoever starts with the same tokens may read it, and gets the bits it would have computed. The tree holds KV of one set of
//! weights only: the scheduler clears it at every update, so a request never reads KV of other weights.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use crate::pages::{PAGE_TOKENS, PageId, Pages};

/// Index of a node.
pub(crate) type NodeId = u32;
/// The root, which holds no page.
pub(crate) const ROOT: NodeId = 0;

type PageKey = [u32; PAGE_TOKENS];

struct Node {
    parent: NodeId,
    key: PageKey,
    page: PageId,
    children: u32,
    last_used: u64,
}

/// Which pages hold the KV of which prefixes.
pub(crate) struct PrefixTree {
    // Index 0 is the root; a hole is in `vacant`.
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    index: HashMap<(NodeId, PageKey), NodeId>,
    clock: u64,
}

impl PrefixTree {
    pub(crate) fn new() -> Self {
        Self { nodes: vec![None], vacant: Vec::new(), index: HashMap::new(), clock: 0 }
    }

    /// The longest known prefix of `tokens`, in at most `limit` pages: appends to `pages` and returns the last node. The caller
    /// retains the pages.
    pub(crate) fn find(&mut self, tokens: &[u32], limit: usize, found: &mut Vec<PageId>) -> NodeId {
        self.clock += 1;
        let mut at = ROOT;
        for chunk in tokens.chunks_exact(PAGE_TOKENS).take(limit) {
            let Some(next) = self.child(at, chunk) else { break };
            at = next;
            if let Some(node) = &mut self.nodes[at as usize] {
                node.last_used = self.clock;
                found.push(node.page);
            }
        }
        at
    }

    /// Remembers `page` as the KV of `tokens` (one page of them) after `parent`. When these tokens are known already, the known
    /// page is returned: it holds the same bits, and the caller gives its own up for it.
    pub(crate) fn insert(
        &mut self,
        pages: &mut Pages,
        parent: NodeId,
        tokens: &[u32],
        page: PageId,
    ) -> (NodeId, PageId) {
        self.clock += 1;
        if let Some(known) = self.child(parent, tokens)
            && let Some(node) = &mut self.nodes[known as usize]
        {
            node.last_used = self.clock;
            return (known, node.page);
        }
        let Ok(key) = PageKey::try_from(tokens) else {
            debug_assert!(false, "a node is a whole page of tokens");
            return (parent, page);
        };
        let node = Node { parent, key, page, children: 0, last_used: self.clock };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id as usize] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as NodeId
            }
        };
        if let Some(parent) = &mut self.nodes[parent as usize] {
            parent.children += 1;
        }
        self.index.insert((parent, key), id);
        pages.remember(page);
        (id, page)
    }

    /// Forgets idle pages, least recently used first, leaves before their parents, until `wanted` are free or none is idle.
    /// Returns how many.
    pub(crate) fn evict(&mut self, pages: &mut Pages, wanted: usize) -> usize {
        let leaf = |node: &Node, pages: &Pages| node.children == 0 && pages.is_idle(node.page);
        let mut leaves: BinaryHeap<Reverse<(u64, NodeId)>> = (0..)
            .zip(&self.nodes)
            .filter_map(|(id, node)| node.as_ref().map(|node| (id, node)))
            .filter(|(_, node)| leaf(node, pages))
            .map(|(id, node)| Reverse((node.last_used, id)))
            .collect();
        let mut evicted = 0;
        while evicted < wanted
            && let Some(Reverse((_, id))) = leaves.pop()
            && let Some(node) = self.nodes[id as usize].take()
        {
            self.vacant.push(id);
            self.index.remove(&(node.parent, node.key));
            pages.forget(node.page);
            evicted += 1;
            if let Some(parent) = &mut self.nodes[node.parent as usize] {
                parent.children -= 1;
                if leaf(parent, pages) {
                    leaves.push(Reverse((parent.last_used, node.parent)));
                }
            }
        }
        evicted
    }

    /// Forgets everything. Pages that sequences use stay theirs.
    pub(crate) fn clear(&mut self, pages: &mut Pages) {
        for node in self.nodes.drain(..).flatten() {
            pages.forget(node.page);
        }
        self.nodes.push(None);
        self.vacant.clear();
        self.index.clear();
    }

    fn child(&self, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let key = PageKey::try_from(tokens).ok()?;
        self.index.get(&(parent, key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(first: u32) -> Vec<u32> {
        (first..first + PAGE_TOKENS as u32).collect()
    }

    fn insert_path(tree: &mut PrefixTree, pages: &mut Pages, path: &[Vec<u32>]) -> Vec<PageId> {
        let mut at = ROOT;
        let mut held = Vec::new();
        for tokens in path {
            let page = pages.take().unwrap();
            let (node, known) = tree.insert(pages, at, tokens, page);
            if known != page {
                pages.retain(known);
                pages.release(page);
            }
            at = node;
            held.push(known);
        }
        held
    }

    #[test]
    fn the_longest_common_prefix_of_whole_pages_is_found() {
        let (mut tree, mut pages) = (PrefixTree::new(), Pages::new(8));
        let held = insert_path(&mut tree, &mut pages, &[page_of(0), page_of(100)]);
        let mut tokens = [page_of(0), page_of(100)].concat();
        tokens.extend([7; 10]);
        let mut found = Vec::new();
        tree.find(&tokens, usize::MAX, &mut found);
        assert_eq!(found, held);
        found.clear();
        tree.find(&tokens, 1, &mut found);
        assert_eq!(found, held[..1]);
        found.clear();
        tokens[100] += 1;
        tree.find(&tokens, usize::MAX, &mut found);
        assert_eq!(found, held[..1]);
    }

    #[test]
    fn two_sequences_with_one_prefix_hold_one_copy() {
        let (mut tree, mut pages) = (PrefixTree::new(), Pages::new(8));
        let first = insert_path(&mut tree, &mut pages, &[page_of(0), page_of(100)]);
        let second = insert_path(&mut tree, &mut pages, &[page_of(0), page_of(200)]);
        assert_eq!(first[0], second[0]);
        assert_eq!(pages.used(), 3);
    }

    #[test]
    fn eviction_takes_the_oldest_leaf_first_and_never_a_page_in_use() {
        let (mut tree, mut pages) = (PrefixTree::new(), Pages::new(8));
        let old = insert_path(&mut tree, &mut pages, &[page_of(0), page_of(100)]);
        let new = insert_path(&mut tree, &mut pages, &[page_of(0), page_of(200)]);
        let busy = insert_path(&mut tree, &mut pages, &[page_of(300)]);
        for page in old.iter().chain(&new) {
            pages.release(*page);
        }
        assert_eq!(pages.idle(), 3);
        assert_eq!(tree.evict(&mut pages, 1), 1);
        let mut found = Vec::new();
        tree.find(&[page_of(0), page_of(200)].concat(), usize::MAX, &mut found);
        assert_eq!(found, new, "the younger branch and the shared root page stay");
        assert_eq!(tree.evict(&mut pages, 10), 2, "the busy page stays");
        assert_eq!(pages.used(), 1);
        pages.release(busy[0]);
        assert_eq!(tree.evict(&mut pages, 10), 1);
        assert_eq!(pages.free(), 8);
    }

    #[test]
    fn a_cleared_tree_knows_nothing_and_frees_what_nobody_uses() {
        let (mut tree, mut pages) = (PrefixTree::new(), Pages::new(4));
        let held = insert_path(&mut tree, &mut pages, &[page_of(0), page_of(100)]);
        pages.release(held[1]);
        tree.clear(&mut pages);
        assert_eq!((pages.free(), pages.used(), pages.idle()), (3, 1, 0));
        let mut found = Vec::new();
        assert_eq!(tree.find(&page_of(0), usize::MAX, &mut found), ROOT);
        assert!(found.is_empty());
    }
}
