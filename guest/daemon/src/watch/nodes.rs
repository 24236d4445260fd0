//! Which directory a watch stands for (pure): a tree of names, so that a directory that is moved takes with it what is below.

use std::collections::{BTreeMap, HashMap, HashSet};

/// The watch of what was asked for.
pub const NONE: i32 = -1;

struct Node {
    parent: i32,
    name: Vec<u8>,
    children: BTreeMap<Vec<u8>, i32>,
    /// Names that were told because they were found there; the kernel may tell them once more.
    found: HashSet<Vec<u8>>,
}

/// Directories by the numbers of their watches.
#[derive(Default)]
pub struct Nodes {
    nodes: HashMap<i32, Node>,
    /// Directories of which the kernel may tell names that were found.
    unsettled: Vec<i32>,
}

impl Nodes {
    /// A directory has a watch. parent: `NONE` for the topmost. A number that is known already stands for it from now on.
    pub fn add(&mut self, watch: i32, parent: i32, name: &[u8]) {
        if watch == parent {
            return;
        }
        self.detach(watch);
        let children = self.nodes.remove(&watch).map(|node| node.children).unwrap_or_default();
        self.nodes.insert(watch, Node { parent, name: name.to_vec(), children, found: HashSet::new() });
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.children.insert(name.to_vec(), watch);
        }
    }

    /// Whether that watch stands for a directory.
    pub fn knows(&self, watch: i32) -> bool {
        self.nodes.contains_key(&watch)
    }

    /// The path of a name in a directory, relative to the topmost.
    pub fn path(&self, watch: i32, name: &[u8]) -> Option<Vec<u8>> {
        let mut parts = vec![name];
        let mut at = watch;
        loop {
            let node = self.nodes.get(&at)?;
            if node.parent == NONE {
                break;
            }
            // No path is longer than what a kernel takes, unless directories were mounted into themselves.
            if parts.len() > libc::PATH_MAX as usize {
                return None;
            }
            parts.push(&node.name);
            at = node.parent;
        }
        parts.reverse();
        Some(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/'))
    }

    /// The watch of the directory of that name in another.
    pub fn child(&self, watch: i32, name: &[u8]) -> Option<i32> {
        self.nodes.get(&watch)?.children.get(name).copied()
    }

    /// The directory of that name is not there any more; its watch, which stands for it until it is elsewhere.
    pub fn lift(&mut self, watch: i32, name: &[u8]) -> Option<i32> {
        self.nodes.get_mut(&watch)?.children.remove(name)
    }

    /// A directory is called otherwise, or lies elsewhere.
    pub fn rename(&mut self, watch: i32, parent: i32, name: &[u8]) {
        self.detach(watch);
        if let Some(node) = self.nodes.get_mut(&watch) {
            (node.parent, node.name) = (parent, name.to_vec());
        }
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.children.insert(name.to_vec(), watch);
        }
    }

    /// A directory and all below it are no longer of interest; their watches.
    pub fn remove(&mut self, watch: i32) -> Vec<i32> {
        self.detach(watch);
        let (mut left, mut gone) = (vec![watch], vec![]);
        while let Some(watch) = left.pop() {
            if let Some(node) = self.nodes.remove(&watch) {
                left.extend(node.children.into_values());
                gone.push(watch);
            }
        }
        gone
    }

    /// A name was told because it was found.
    pub fn found(&mut self, watch: i32, name: &[u8]) {
        if let Some(node) = self.nodes.get_mut(&watch) {
            if node.found.is_empty() {
                self.unsettled.push(watch);
            }
            node.found.insert(name.to_vec());
        }
    }

    /// Whether it was; it is not any more.
    pub fn was_found(&mut self, watch: i32, name: &[u8]) -> bool {
        self.nodes.get_mut(&watch).is_some_and(|node| node.found.remove(name))
    }

    /// The kernel has told all that it had to tell of the time when names were found.
    pub fn settle(&mut self) {
        for watch in self.unsettled.drain(..) {
            if let Some(node) = self.nodes.get_mut(&watch) {
                node.found = HashSet::new();
            }
        }
    }

    fn detach(&mut self, watch: i32) {
        let Some(node) = self.nodes.get(&watch) else { return };
        let (parent, name) = (node.parent, node.name.clone());
        if let Some(above) = self.nodes.get_mut(&parent) {
            if above.children.get(&name) == Some(&watch) {
                above.children.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Nodes {
        let mut nodes = Nodes::default();
        nodes.add(1, NONE, b"");
        nodes.add(2, 1, b"a");
        nodes.add(3, 2, b"b");
        nodes.add(4, 1, b"c");
        nodes
    }

    #[test]
    fn what_is_below_moves_with_its_directory() {
        let mut nodes = tree();
        assert_eq!(nodes.path(3, b"f").unwrap(), b"a/b/f");
        assert_eq!(nodes.path(1, b"f").unwrap(), b"f");
        assert_eq!(nodes.path(1, b"").unwrap(), b"");
        assert_eq!((nodes.lift(1, b"a"), nodes.lift(1, b"a")), (Some(2), None));
        nodes.rename(2, 4, b"d");
        assert_eq!(nodes.path(3, b"f").unwrap(), b"c/d/b/f");
        assert_eq!((nodes.child(1, b"a"), nodes.child(4, b"d")), (None, Some(2)));
        assert_eq!(nodes.path(9, b"f"), None);
    }

    #[test]
    fn what_is_removed_goes_with_all_below_and_its_name_may_be_anothers_by_then() {
        let mut nodes = tree();
        nodes.add(5, 1, b"a");
        let mut gone = nodes.remove(2);
        gone.sort_unstable();
        assert_eq!(gone, [2, 3]);
        assert_eq!(nodes.child(1, b"a"), Some(5));
        assert!(nodes.knows(4) && !nodes.knows(3));
    }

    #[test]
    fn directories_that_are_mounted_into_themselves_end() {
        let mut nodes = tree();
        nodes.rename(2, 3, b"x");
        assert_eq!(nodes.path(3, b"f"), None);
        nodes.add(4, 4, b"self");
        assert_eq!(nodes.path(4, b"").unwrap(), b"c");
        assert_eq!(nodes.remove(2).len(), 2);
    }

    #[test]
    fn a_name_that_was_found_is_expected_once() {
        let mut nodes = tree();
        nodes.found(2, b"f");
        assert!(!nodes.was_found(1, b"f"));
        assert!(nodes.was_found(2, b"f") && !nodes.was_found(2, b"f"));
        nodes.found(2, b"g");
        nodes.settle();
        assert!(!nodes.was_found(2, b"g"));
    }
}
