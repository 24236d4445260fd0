//! What the tests of these modules share.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use space_protocol::files::{File, FileStat};
use space_protocol::{Bytes, Failure, Message};

use crate::tree::stream::Feed;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let name = format!("space-files-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn bytes(&self, name: &str) -> Bytes {
        Bytes(self.path(name).as_os_str().as_bytes().to_vec())
    }

    /// What is in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut found: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        found
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `SplitMix64`.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// Bytes in parts of odd sizes.
pub struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Parts<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, end: 0 }
    }
}

impl Feed for Parts<'_> {
    fn advance(&mut self) -> std::io::Result<()> {
        self.at = self.end;
        self.end = (self.end + 70_003).min(self.bytes.len());
        Ok(())
    }

    fn part(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }
}

/// The file of an answer.
pub fn file(answer: Result<Message, Failure>) -> File {
    match answer.unwrap() {
        Message::File(answer) => answer.file,
        other => panic!("{other:?}"),
    }
}

/// It fails with that code, and says so in these words.
pub fn refused(answer: Result<Message, Failure>, code: &str, words: &str) {
    let failure = answer.unwrap_err();
    assert_eq!(failure.code, code, "{failure}");
    assert!(failure.message.contains(words), "{failure}");
}

#[test]
fn a_path_is_told_as_it_is_or_as_what_it_leads_to() {
    let scratch = Scratch::new();
    let stat = |name: &str, follow| super::stat(&FileStat { path: scratch.bytes(name), user: None, follow });
    fs::write(scratch.path("f"), "12345").unwrap();
    std::os::unix::fs::symlink("f", scratch.path("link")).unwrap();
    let link = file(stat("link", false));
    assert_eq!((link.kind.as_str(), link.size, link.target), ("symlink", 1, Some(Bytes(b"f".to_vec()))));
    let found = file(stat("link", true));
    assert_eq!((found.kind.as_str(), found.size, found.target, found.name.0), ("file", 5, None, b"link".to_vec()));
    assert!(found.mtime_ns > 1_000_000_000_000_000_000 && found.allocated <= 8192 && found.links == 1 && found.inode > 0);
    refused(stat("no", true), "not_found", "no such");
    refused(stat("f/x", false), "conflict", "not a directory");
    refused(stat(&"x".repeat(300), true), "invalid_argument", "");
    let root = |path: &[u8]| super::stat(&FileStat { path: Bytes(path.to_vec()), user: None, follow: false });
    assert_eq!(file(root(b"//")).name.0, b"/");
    refused(root(b""), "invalid_argument", "empty");
    refused(root(b"a\0"), "invalid_argument", "NUL");
}
