//! Modes and owners, of one file or of everything below a directory. Links are no way out of it: `chmod` leaves them alone, `chown` changes
//! the links themselves.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use space_protocol::files::{FileAnswer, FileChmod, FileChown};
use space_protocol::{Failure, Message};

use super::fault::at;
use super::place;
use super::record::{self, Names};
use super::{calls, enter};
use crate::sys;

/// The mode, if it can be one.
pub fn checked(mode: u32) -> Result<u32, Failure> {
    if mode > 0o7777 {
        return Err(Failure::invalid(format!("mode must be at most 0o7777, not 0o{mode:o}")));
    }
    Ok(mode)
}

/// In a child: set permission bits.
pub fn change_mode(request: &FileChmod) -> Result<Message, Failure> {
    let path = &request.path.0;
    place::check(path)?;
    let mode = checked(request.mode)?;
    enter(request.user.as_deref())?;
    let wrong = at("change the mode of", path);
    let name = sys::c_string(path).map_err(&wrong)?;
    let file = sys::open_at(calls::here(), &name, libc::O_PATH, 0).map_err(&wrong)?;
    if request.recursive && is_directory(&sys::stat(file.as_fd()).map_err(&wrong)?) {
        modes(&file, mode).map_err(&wrong)?;
    }
    calls::change_mode(file.as_fd(), mode).map_err(&wrong)?;
    tell(&file, path).map_err(&wrong)
}

/// In a child: set owner, group or both.
pub fn change_owner(request: &FileChown) -> Result<Message, Failure> {
    let path = &request.path.0;
    place::check(path)?;
    enter(request.user.as_deref())?;
    let names = Names::load();
    let unknown = |what: &str, name: &str| Failure::invalid(format!("there is no {what} {name:?} in the sandbox"));
    let wanted = |what: &str, name: &Option<String>, find: &dyn Fn(&str) -> Option<u32>| match name {
        Some(name) => find(name).ok_or_else(|| unknown(what, name)),
        None => Ok(u32::MAX),
    };
    let uid = wanted("user", &request.owner, &|name| names.uid(name))?;
    let gid = wanted("group", &request.group, &|name| names.gid(name))?;
    let wrong = at("change the owner of", path);
    let name = sys::c_string(path).map_err(&wrong)?;
    let file = sys::open_at(calls::here(), &name, libc::O_PATH | libc::O_NOFOLLOW, 0).map_err(&wrong)?;
    if request.recursive && is_directory(&sys::stat(file.as_fd()).map_err(&wrong)?) {
        walk(&file, &|_, _| Ok(()), &|dir, name| calls::change_owner(dir, name, uid, gid)).map_err(&wrong)?;
    }
    calls::change_owner(calls::here(), &name, uid, gid).map_err(&wrong)?;
    tell(&file, path).map_err(&wrong)
}

fn is_directory(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

/// The answer, of a file that is held open.
fn tell(file: &OwnedFd, path: &[u8]) -> io::Result<Message> {
    let stat = sys::stat(file.as_fd())?;
    let link = stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
    let target = if link { Some(calls::read_link(file.as_fd(), c"")?) } else { None };
    Ok(Message::File(FileAnswer { file: record::file(&place::base(path), &stat, target, &Names::load()) }))
}

/// Everything below gets that mode: directories after what is in them, but one that cannot be looked into before.
fn modes(top: &OwnedFd, mode: u32) -> io::Result<()> {
    let set = |dir: BorrowedFd<'_>, name: &CStr| {
        let file = sys::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        if sys::stat(file.as_fd())?.st_mode & libc::S_IFMT == libc::S_IFLNK { Ok(()) } else { calls::change_mode(file.as_fd(), mode) }
    };
    walk(top, &set, &set)
}

struct Level {
    dir: OwnedFd,
    name: CString,
    names: std::vec::IntoIter<CString>,
}

impl Level {
    fn open(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Self> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let dir = sys::open_at(parent, name, flags, 0)?;
        let names = sys::names(dir.try_clone()?)?.into_iter();
        Ok(Self { dir, name: name.to_owned(), names })
    }
}

/// `each` for every name below `top`, directories last; `open` for one that may not be looked into, before another attempt. What vanishes
/// meanwhile is passed over.
fn walk(
    top: &OwnedFd,
    open: &dyn Fn(BorrowedFd<'_>, &CStr) -> io::Result<()>,
    each: &dyn Fn(BorrowedFd<'_>, &CStr) -> io::Result<()>,
) -> io::Result<()> {
    let enter = |dir: BorrowedFd<'_>, name: &CStr| match Level::open(dir, name) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => open(dir, name).and_then(|()| Level::open(dir, name)),
        other => other,
    };
    let mut levels = vec![enter(top.as_fd(), c".")?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            let Some(done) = levels.pop() else { break };
            if let Some(parent) = levels.last() {
                unless_gone(each(parent.dir.as_fd(), &done.name))?;
            }
            continue;
        };
        match sys::stat_at(level.dir.as_fd(), &name) {
            Ok(stat) if is_directory(&stat) => match enter(level.dir.as_fd(), &name) {
                Ok(below) => levels.push(below),
                Err(error) => unless_gone(Err(error))?,
            },
            Ok(_) => unless_gone(each(level.dir.as_fd(), &name))?,
            Err(error) => unless_gone(Err(error))?,
        }
    }
    Ok(())
}

fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use crate::files::tests::{Scratch, file, refused};

    fn chmod(scratch: &Scratch, name: &str, mode: u32, recursive: bool) -> Result<Message, Failure> {
        change_mode(&FileChmod { path: scratch.bytes(name), user: None, mode, recursive })
    }

    fn tree() -> Scratch {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.path("t/a/b")).unwrap();
        fs::write(scratch.path("t/a/file"), "").unwrap();
        fs::write(scratch.path("outside"), "").unwrap();
        symlink("../../outside", scratch.path("t/a/link")).unwrap();
        scratch
    }

    fn mode(scratch: &Scratch, name: &str) -> u32 {
        fs::metadata(scratch.path(name)).unwrap().mode() & 0o7777
    }

    #[test]
    fn modes_are_set_below_and_not_through_links() {
        let scratch = tree();
        let before = mode(&scratch, "outside");
        assert_eq!(file(chmod(&scratch, "t", 0o750, true)).mode, 0o750);
        for name in ["t/a", "t/a/b", "t/a/file"] {
            assert_eq!(mode(&scratch, name), 0o750);
        }
        assert_eq!(mode(&scratch, "outside"), before);
        chmod(&scratch, "t/a/link", 0o600, true).unwrap();
        assert_eq!(mode(&scratch, "outside"), 0o600, "the link that was named is followed");
        chmod(&scratch, "t", 0, false).unwrap();
        assert_eq!((mode(&scratch, "t"), mode(&scratch, "t/a")), (0, 0o750));
        refused(chmod(&scratch, "no", 0o600, true), "not_found", "no such");
        refused(chmod(&scratch, "t", 0o10_000, true), "invalid_argument", "0o10000");
    }

    #[test]
    fn owners_are_set_below_links_themselves() {
        let scratch = tree();
        let chown = |owner: Option<&str>, group: Option<&str>, name: &str| {
            let text = |name: &str| name.to_owned();
            change_owner(&FileChown {
                path: scratch.bytes(name),
                user: None,
                owner: owner.map(text),
                group: group.map(text),
                recursive: true,
            })
        };
        let own = (fs::metadata(scratch.path("t")).unwrap().uid(), fs::metadata(scratch.path("t")).unwrap().gid());
        if own.0 == 0 {
            assert_eq!(file(chown(Some("12345"), Some("root"), "t")).owner, "12345");
            for name in ["t/a", "t/a/b", "t/a/file", "t/a/link"] {
                assert_eq!(fs::symlink_metadata(scratch.path(name)).unwrap().uid(), 12345);
            }
            assert_eq!(fs::metadata(scratch.path("outside")).unwrap().uid(), own.0);
            assert_eq!(file(chown(None, Some("7"), "t/a/link")).gid, 7);
        }
        refused(chown(Some("nobody-of-this-name"), None, "t"), "invalid_argument", "no user");
        refused(chown(None, Some("-1"), "t"), "invalid_argument", "no group");
    }
}
