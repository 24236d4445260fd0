//! A path as a name in an open directory, so that what is done to it is done there, whatever becomes of the path meanwhile.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use space_protocol::Failure;

use super::calls;
use super::fault::at;
use crate::sys;

/// As many links as the kernel follows.
const LINKS: usize = 40;
const WALK: i32 = libc::O_PATH | libc::O_DIRECTORY;

/// A name in a directory.
pub struct Place {
    dir: OwnedFd,
    name: CString,
}

/// A path's directory (empty: the working one) and last name, which is empty for the root directory. Slashes at the end say nothing.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let trimmed = trim(path);
    match trimmed.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&trimmed[..=slash], &trimmed[slash + 1..]),
        None => (&[], trimmed),
    }
}

/// What a path is called in answers.
pub fn base(path: &[u8]) -> Vec<u8> {
    match split(path).1 {
        b"" => b"/".to_vec(),
        name => name.to_vec(),
    }
}

fn trim(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1)]
}

/// Refuse what can be no path.
pub fn check(path: &[u8]) -> Result<(), Failure> {
    if path.is_empty() || path.contains(&0) {
        return Err(Failure::invalid("a path must not be empty or hold NUL bytes"));
    }
    Ok(())
}

impl Place {
    /// The name that a path ends with, a link itself. Refused when it is none that could be made or removed (`/`, `.`, `..`).
    pub fn named(what: &str, path: &[u8], parents: bool) -> Result<Self, Failure> {
        let (parent, name) = split(path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Failure::invalid(format!("cannot {what} '{}': it ends with no name of its own", crate::exec::shown(path))));
        }
        if parents && !parent.is_empty() {
            make_parents(calls::here(), parent).map_err(at(what, path))?;
        }
        Self::below(calls::here(), parent, name).map_err(at(what, path))
    }

    /// The same, where a link leads to if it is one. What it leads to need not be there.
    pub fn followed(what: &str, path: &[u8], parents: bool) -> Result<Self, Failure> {
        let mut place = Self::named(what, path, parents)?;
        for _ in 0..LINKS {
            match calls::read_link(place.dir(), place.name()) {
                Ok(target) => place = place.next(&target).map_err(at(what, path))?,
                // No link, or nothing at all: whatever is wrong with it, the next step will say.
                Err(_) => return Ok(place),
            }
        }
        Err(at(what, path)(io::Error::from_raw_os_error(libc::ELOOP)))
    }

    fn next(&self, target: &[u8]) -> io::Result<Self> {
        match split(target) {
            // A link to a directory: its last name would be that of another.
            (_, b"" | b"." | b"..") => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            (parent, name) => Self::below(self.dir(), parent, name),
        }
    }

    fn below(start: BorrowedFd<'_>, parent: &[u8], name: &[u8]) -> io::Result<Self> {
        let parent = if parent.is_empty() { c".".to_owned() } else { sys::c_string(parent)? };
        Ok(Self { dir: sys::open_at(start, &parent, WALK, 0)?, name: sys::c_string(name)? })
    }

    /// The directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The name.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// What is there.
    pub fn stat(&self) -> io::Result<libc::stat> {
        sys::stat_at(self.dir(), self.name())
    }
}

/// Make a directory and those above it; one that is there is no error.
fn make_parents(start: BorrowedFd<'_>, path: &[u8]) -> io::Result<()> {
    let path = sys::c_string(trim(path))?;
    if path.is_empty() || sys::open_at(start, &path, WALK, 0).is_ok() {
        return Ok(());
    }
    let parent = split(path.as_bytes()).0;
    if !parent.is_empty() {
        make_parents(start, parent)?;
    }
    match calls::make_dir(start, &path, 0o755) {
        // Somebody was quicker, or it is a link to nowhere, which the next step will find.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_before_its_last_name() {
        for (path, parent, name) in [
            (&b"/a/b"[..], &b"/a/"[..], &b"b"[..]),
            (b"a", b"", b"a"),
            (b"a/b///", b"a/", b"b"),
            (b"/", b"", b""),
            (b"//", b"", b""),
            (b"/a", b"/", b"a"),
            (b"a/..", b"a/", b".."),
            (b"-", b"", b"-"),
        ] {
            assert_eq!(split(path), (parent, name), "{path:?}");
        }
        assert_eq!((base(b"//"), base(b"/x/y/")), (b"/".to_vec(), b"y".to_vec()));
    }
}
