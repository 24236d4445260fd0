//! Removing: a name, or a directory with everything in it. No link is followed, and nothing that is mounted below is entered.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use space_protocol::files::FileRemove;
use space_protocol::messages::Empty;
use space_protocol::{Failure, Message};

use super::fault::{at, fault};
use super::place::{self, Place};
use super::{calls, enter};
use crate::exec::shown;
use crate::sys;

const WHAT: &str = "remove";

/// In a child: remove.
pub fn remove(request: &FileRemove) -> Result<Message, Failure> {
    let path = &request.path.0;
    place::check(path)?;
    enter(request.user.as_deref())?;
    remove_here(request)
}

/// The same as who this child is already.
pub fn remove_here(request: &FileRemove) -> Result<Message, Failure> {
    let path = &request.path.0;
    let done = Place::named(WHAT, path, false).and_then(|place| {
        let stat = place.stat().map_err(at(WHAT, path))?;
        let directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        if directory && request.recursive {
            return tree(&place, path);
        }
        calls::unlink(place.dir(), place.name(), directory).map_err(at(WHAT, path))
    });
    match done {
        Err(failure) if failure.code == "not_found" && request.missing_ok => {}
        other => other?,
    }
    Ok(Message::Done(Empty {}))
}

struct Level {
    dir: OwnedFd,
    name: CString,
    names: std::vec::IntoIter<CString>,
}

impl Level {
    fn open(parent: BorrowedFd<'_>, name: CString) -> io::Result<Self> {
        let dir = calls::open_below(parent, &name)?;
        let names = sys::names(dir.try_clone()?)?.into_iter();
        Ok(Self { dir, name, names })
    }
}

/// As deep as descriptors reach, and without recursion: the tree may have been made to be deep.
fn tree(place: &Place, path: &[u8]) -> Result<(), Failure> {
    let mut levels = vec![Level::open(place.dir(), place.name().to_owned()).map_err(|error| wrong(path, &[], &error))?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            let Some(done) = levels.pop() else { break };
            let parent = levels.last().map_or(place.dir(), |level| level.dir.as_fd());
            gone(calls::unlink(parent, &done.name, true)).map_err(|error| wrong(path, &levels, &error))?;
            continue;
        };
        match calls::unlink(level.dir.as_fd(), &name, false) {
            // The standard's word, and Linux's.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EISDIR)) => {
                let stat = sys::stat_at(level.dir.as_fd(), &name);
                if stat.is_ok_and(|stat| stat.st_mode & libc::S_IFMT != libc::S_IFDIR) {
                    return Err(wrong(path, &levels, &error));
                }
                match Level::open(level.dir.as_fd(), name) {
                    Ok(below) => levels.push(below),
                    Err(error) => gone(Err(error)).map_err(|error| wrong(path, &levels, &error))?,
                }
            }
            other => gone(other).map_err(|error| wrong(path, &levels, &error))?,
        }
    }
    Ok(())
}

/// Somebody else was quicker.
fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// What stops it, in which directory.
fn wrong(path: &[u8], levels: &[Level], error: &io::Error) -> Failure {
    let below = levels.iter().skip(1).map(|level| level.name.as_bytes()).flat_map(|name| [b"/", name]).flatten().copied();
    let at: Vec<u8> = path.iter().copied().chain(below).collect();
    if matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EBUSY)) {
        return Failure::new("conflict", format!("cannot remove '{}': something is mounted there, or in it", shown(&at)));
    }
    fault("remove what is in", &at, error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::files::tests::{Scratch, refused};

    fn away(scratch: &Scratch, name: &str, recursive: bool, missing_ok: bool) -> Result<Message, Failure> {
        remove(&FileRemove { path: scratch.bytes(name), user: None, recursive, missing_ok })
    }

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.path("t/a/b")).unwrap();
        fs::create_dir(scratch.path("kept")).unwrap();
        fs::write(scratch.path("kept/file"), "").unwrap();
        for place in ["t/link", "t/a/b/link", "link"] {
            symlink(scratch.path("kept"), scratch.path(place)).unwrap();
        }
        refused(away(&scratch, "t", false, false), "conflict", "not empty");
        away(&scratch, "t", true, false).unwrap();
        away(&scratch, "link", true, false).unwrap();
        assert_eq!(scratch.names(), ["kept"]);
        assert!(scratch.path("kept/file").exists());
        refused(away(&scratch, "t", true, false), "not_found", "no such");
        away(&scratch, "t", true, true).unwrap();
        away(&scratch, "no/t", false, true).unwrap();
        refused(away(&scratch, "kept/.", true, true), "invalid_argument", "no name");
        refused(
            remove(&FileRemove { path: space_protocol::Bytes(b"/".to_vec()), user: None, recursive: true, missing_ok: true }),
            "invalid_argument",
            "'/'",
        );
        away(&scratch, "kept/file", false, false).unwrap();
        away(&scratch, "kept", false, false).unwrap();
    }

    #[test]
    fn a_very_deep_tree_goes() {
        let scratch = Scratch::new();
        let mut at = sys::open(scratch.path("").to_str().unwrap(), libc::O_RDONLY).unwrap();
        for _ in 0..700 {
            calls::make_dir(at.as_fd(), c"a-name-that-makes-a-long-path", 0o755).unwrap();
            at = calls::open_below(at.as_fd(), c"a-name-that-makes-a-long-path").unwrap();
        }
        drop(at);
        away(&scratch, "a-name-that-makes-a-long-path", true, false).unwrap();
        assert_eq!(scratch.names(), [""; 0]);
    }
}
