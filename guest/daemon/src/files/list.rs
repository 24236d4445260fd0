//! A directory in pages: what is below it, to a depth, in byte order of the names' components, behind a cursor.
//!
//! One directory's names are held for each level, sorted; nothing of the others. Links are told, never followed. What vanishes
//! in the middle is left out, and so is what lies in a directory below that the user may not look into.

use std::cmp::Ordering;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::vec::IntoIter;

use space_protocol::files::{File, FileList, Files, Listed};
use space_protocol::{Failure, Message};

use super::fault::at;
use super::record::{self, Names};
use super::{calls, enter, place};
use crate::{report, sys};

const LARGEST_PAGE: u32 = 10_000;
/// Bytes of a message, about; the largest entry comes on top.
pub const BATCH: usize = 48 << 10;
/// Bytes of an entry without its names, at most.
const ENTRY: usize = 180;

/// In a child: list.
pub fn list(request: &FileList) -> Result<Message, Failure> {
    place::check(&request.path.0)?;
    if request.depth == 0 || request.limit == 0 || request.limit > LARGEST_PAGE {
        return Err(Failure::invalid(format!("depth must be at least 1 and limit 1 to {LARGEST_PAGE}")));
    }
    enter(request.user.as_deref())?;
    let path = &request.path.0;
    let wrong = at("list", path);
    let name = sys::c_string(path).map_err(&wrong)?;
    let dir = sys::open_at(calls::here(), &name, libc::O_RDONLY | libc::O_DIRECTORY, 0).map_err(&wrong)?;
    let after = request.after.as_ref().map(|name| name.0.as_slice());
    let mut walk = Walk::new(dir, request.depth, after, Names::load()).map_err(&wrong)?;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for _ in 0..request.limit {
        let Some(file) = walk.next().map_err(&wrong)? else { break };
        bytes += size(&file);
        batch.push(file);
        if bytes >= BATCH {
            report::say(&Message::Files(Files { files: std::mem::take(&mut batch) }))?;
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        report::say(&Message::Files(Files { files: batch }))?;
    }
    let more = walk.next().map_err(&wrong)?.is_some();
    Ok(Message::Listed(Listed { more }))
}

/// Bytes of an entry in a message, at most.
pub fn size(file: &File) -> usize {
    ENTRY + file.name.0.len() + file.target.as_ref().map_or(0, |target| target.0.len()) + file.owner.len() + file.group.len()
}

/// What a cursor means for a name beside its component.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// It, and all below, came before.
    Over,
    /// It came before; of what is below, this is behind the cursor.
    Within(Vec<Vec<u8>>),
    /// It and all below is still to come.
    Ahead,
}

/// Where a name stands to the rest of a cursor; an empty rest is behind everything that matters.
fn turn(name: &[u8], cursor: &[Vec<u8>]) -> Turn {
    match cursor.split_first() {
        None => Turn::Ahead,
        Some((first, rest)) => match name.cmp(first) {
            Ordering::Less => Turn::Over,
            Ordering::Equal => Turn::Within(rest.to_vec()),
            Ordering::Greater => Turn::Ahead,
        },
    }
}

struct Level {
    dir: OwnedFd,
    names: IntoIter<CString>,
    prefix: Vec<u8>,
    cursor: Vec<Vec<u8>>,
}

impl Level {
    fn new(dir: OwnedFd, prefix: Vec<u8>, cursor: Vec<Vec<u8>>) -> io::Result<Self> {
        let mut names = sys::names(dir.try_clone()?)?;
        names.retain(|name| turn(name.as_bytes(), &cursor) != Turn::Over);
        Ok(Self { dir, names: names.into_iter(), prefix, cursor })
    }
}

pub struct Walk {
    levels: Vec<Level>,
    depth: usize,
    names: Names,
}

impl Walk {
    pub fn new(dir: OwnedFd, depth: u32, after: Option<&[u8]>, names: Names) -> io::Result<Self> {
        let cursor = after.map_or(vec![], |after| after.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect());
        Ok(Self { levels: vec![Level::new(dir, vec![], cursor)?], depth: depth as usize, names })
    }

    /// The next entry.
    pub fn next(&mut self) -> io::Result<Option<File>> {
        loop {
            let depth = self.levels.len();
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let path = [&level.prefix[..], name.as_bytes()].concat();
            let file = match record::look(level.dir.as_fd(), &name, &path, &self.names) {
                Ok(file) => file,
                // A directory whose names may be read and no more: the one that was asked for must not look empty.
                Err(error) if error.raw_os_error() == Some(libc::EACCES) && depth == 1 => return Err(error),
                Err(_) => continue,
            };
            let (told, cursor) = match turn(name.as_bytes(), &level.cursor) {
                Turn::Over => continue,
                Turn::Within(rest) => (true, rest),
                Turn::Ahead => (false, vec![]),
            };
            // No path leads to what is deeper than the longest.
            if file.kind == "directory" && depth < self.depth && path.len() < libc::PATH_MAX as usize {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
                let below = sys::open_at(level.dir.as_fd(), &name, flags, 0);
                let below = below.and_then(|dir| Level::new(dir, [&path[..], b"/"].concat(), cursor));
                match below {
                    Ok(below) => self.levels.push(below),
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => return Err(error),
                    Err(_) => {}
                }
            }
            if !told {
                return Ok(Some(file));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use space_protocol::Bytes;

    use super::*;
    use crate::files::tests::{Random, Scratch};

    fn page(scratch: &Scratch, depth: u32, after: Option<&[u8]>, limit: usize) -> (Vec<Vec<u8>>, bool) {
        let dir = sys::open(scratch.path("").to_str().unwrap(), libc::O_RDONLY).unwrap();
        let mut walk = Walk::new(dir, depth, after, Names::default()).unwrap();
        let mut found = vec![];
        while found.len() < limit {
            let Some(file) = walk.next().unwrap() else { return (found, false) };
            found.push(file.name.0);
        }
        (found, walk.next().unwrap().is_some())
    }

    #[test]
    fn messages_fit_their_frames_whatever_the_entries_are() {
        let long = File {
            name: Bytes(vec![b'n'; 4096]),
            kind: "character".into(),
            size: u64::MAX,
            allocated: u64::MAX,
            mode: 0o7777,
            uid: u32::MAX,
            gid: u32::MAX,
            owner: "o".repeat(128),
            group: "g".repeat(128),
            mtime_ns: i64::MIN,
            inode: u64::MAX,
            links: u32::MAX,
            target: Some(Bytes(vec![b't'; 4096])),
        };
        let short = File { name: Bytes(vec![b'n']), target: None, ..long.clone() };
        let mut files = vec![short.clone(); (BATCH - 1) / size(&short)];
        files.push(long);
        assert!(Message::Files(Files { files }).encode().len() <= report::LARGEST);
    }

    fn components(path: &[u8]) -> Vec<&[u8]> {
        path.split(|byte| *byte == b'/').collect()
    }

    #[test]
    fn pages_put_together_are_the_whole_in_order_of_components() {
        let mut random = Random(7);
        for _ in 0..12 {
            let scratch = Scratch::new();
            for _ in 0..random.below(40) {
                let names: [&[u8]; 7] = [b"a", b"a-b", b"a.b", b"b", b"\xff\xfe", b"a b\n", b"-"];
                let depth = 1 + random.below(4);
                let path: Vec<&[u8]> = (0..depth).map(|_| names[random.below(7)]).collect();
                let _ = fs::create_dir_all(scratch.path("").join(OsStr::from_bytes(&path.join(&b'/'))));
            }
            let depth = 1 + random.below(5) as u32;
            let (whole, more) = page(&scratch, depth, None, 10_000);
            assert!(!more);
            assert!(whole.is_sorted_by_key(|path| components(path).into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()));
            assert!(whole.iter().all(|path| components(path).len() <= depth as usize));
            for limit in [1, 2, 7] {
                let mut put_together: Vec<Vec<u8>> = vec![];
                loop {
                    let (found, more) = page(&scratch, depth, put_together.last().map(Vec::as_slice), limit);
                    assert!(found.len() == limit || !more);
                    put_together.extend(found);
                    if !more {
                        break;
                    }
                }
                assert_eq!(put_together, whole);
            }
        }
    }

    #[test]
    fn a_cursor_need_not_be_there_any_more() {
        let scratch = Scratch::new();
        for name in ["a/x", "a/y", "c"] {
            fs::create_dir_all(scratch.path(name)).unwrap();
        }
        let behind = |after: &[u8]| page(&scratch, 9, Some(after), 9).0;
        assert_eq!(behind(b"a/w/q"), [&b"a/x"[..], b"a/y", b"c"]);
        assert_eq!(behind(b"a/x/q"), [&b"a/y"[..], b"c"]);
        assert_eq!(behind(b"b"), [b"c"]);
        assert_eq!(behind(b"c/"), [b""; 0]);
        assert_eq!(behind(b""), [&b"a"[..], b"a/x", b"a/y", b"c"]);
    }

    #[test]
    fn links_are_told_and_not_followed() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("real")).unwrap();
        fs::write(scratch.path("real/file"), "12").unwrap();
        std::os::unix::fs::symlink("real", scratch.path("link")).unwrap();
        let dir = sys::open(scratch.path("").to_str().unwrap(), libc::O_RDONLY).unwrap();
        let mut walk = Walk::new(dir, 9, None, Names::default()).unwrap();
        let link = walk.next().unwrap().unwrap();
        assert_eq!((link.name.0, link.kind.as_str(), link.target.unwrap().0), (b"link".to_vec(), "symlink", b"real".to_vec()));
        assert_eq!(walk.next().unwrap().unwrap().links, 2);
        assert_eq!(walk.next().unwrap().unwrap().size, 2);
        assert!(walk.next().unwrap().is_none());
    }
}
