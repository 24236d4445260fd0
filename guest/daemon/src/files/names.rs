//! Directories, links, and other names for what is there.

use space_protocol::files::{FileMkdir, FileMove, FileSymlink};
use space_protocol::{Failure, Message};

use super::fault::at;
use super::place::{self, Place};
use super::{answer, calls, enter, write};
use crate::exec::shown;
use crate::sys;

/// In a child: make a directory.
pub fn make_dir(request: &FileMkdir) -> Result<Message, Failure> {
    const WHAT: &str = "make the directory";
    let path = &request.path.0;
    place::check(path)?;
    let mode = super::attributes::checked(request.mode.unwrap_or(0o755))?;
    enter(request.user.as_deref())?;
    let wrong = at(WHAT, path);
    if request.parents {
        let name = sys::c_string(path).map_err(&wrong)?;
        if let Ok(file) = sys::open_at(calls::here(), &name, libc::O_PATH | libc::O_DIRECTORY, 0) {
            let stat = sys::stat(std::os::fd::AsFd::as_fd(&file)).map_err(&wrong)?;
            let file = super::record::file(&place::base(path), &stat, None, &super::Names::load());
            return Ok(Message::File(space_protocol::files::FileAnswer { file }));
        }
    }
    let place = Place::named(WHAT, path, request.parents)?;
    calls::make_dir(place.dir(), place.name(), 0o700).map_err(&wrong)?;
    // A mode that mkdir is given loses its special bits.
    let dir = sys::open_at(place.dir(), place.name(), libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0).map_err(&wrong)?;
    calls::change_mode(std::os::fd::AsFd::as_fd(&dir), mode).map_err(&wrong)?;
    answer(WHAT, path, &place)
}

/// In a child: give a path another name.
pub fn rename(request: &FileMove) -> Result<Message, Failure> {
    const WHAT: &str = "move";
    let (path, to) = (&request.path.0, &request.to.0);
    place::check(path)?;
    place::check(to)?;
    enter(request.user.as_deref())?;
    let from = Place::named(WHAT, path, false)?;
    let place = Place::named("move to", to, false)?;
    from.stat().map_err(at(WHAT, path))?;
    calls::rename(from.dir(), from.name(), place.dir(), place.name(), request.replace).map_err(|error| {
        // What the kernel refuses of a move is nearly always the new name.
        let why = match error.raw_os_error() {
            Some(libc::EINVAL) => return Failure::invalid(format!("'{}' cannot be moved into itself ('{}')", shown(path), shown(to))),
            Some(libc::EISDIR) => "is a directory, and what would replace it is not",
            Some(libc::ENOTDIR) => "is not a directory, and what would replace it is one",
            Some(libc::EEXIST) if request.replace => "is a directory that is not empty",
            Some(libc::EEXIST) => "exists",
            _ => return at(WHAT, path)(error),
        };
        Failure::new("conflict", format!("cannot move '{}': '{}' {why}", shown(path), shown(to)))
    })?;
    answer(WHAT, to, &place)
}

/// In a child: make a symbolic link.
pub fn link(request: &FileSymlink) -> Result<Message, Failure> {
    const WHAT: &str = "make the link";
    let path = &request.path.0;
    place::check(path)?;
    place::check(&request.target.0)?;
    enter(request.user.as_deref())?;
    let wrong = at(WHAT, path);
    let target = sys::c_string(&request.target.0).map_err(&wrong)?;
    let place = Place::named(WHAT, path, false)?;
    match calls::make_link(&target, place.dir(), place.name()) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) && request.replace => {
            let beside = write::random_name().map_err(&wrong)?;
            calls::make_link(&target, place.dir(), &beside).map_err(&wrong)?;
            if let Err(error) = calls::rename(place.dir(), &beside, place.dir(), place.name(), true) {
                let _ = calls::unlink(place.dir(), &beside, false);
                return Err(wrong(error));
            }
        }
        other => other.map_err(&wrong)?,
    }
    answer(WHAT, path, &place)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use space_protocol::Bytes;

    use super::*;
    use crate::files::tests::{Scratch, file, refused};

    fn make(scratch: &Scratch, name: &str, mode: Option<u32>, parents: bool) -> Result<Message, Failure> {
        make_dir(&FileMkdir { path: scratch.bytes(name), user: None, mode, parents })
    }

    fn go(scratch: &Scratch, name: &str, to: &str, replace: bool) -> Result<Message, Failure> {
        rename(&FileMove { path: scratch.bytes(name), user: None, to: scratch.bytes(to), replace })
    }

    fn point(scratch: &Scratch, name: &str, target: &str, replace: bool) -> Result<Message, Failure> {
        link(&FileSymlink { path: scratch.bytes(name), user: None, target: Bytes(target.into()), replace })
    }

    #[test]
    fn directories_get_exactly_their_mode() {
        let scratch = Scratch::new();
        assert_eq!(file(make(&scratch, "a", Some(0o2777), false)).mode, 0o2777);
        assert_eq!(file(make(&scratch, "b/c/d/", None, true)).name.0, b"d");
        assert_eq!(fs::metadata(scratch.path("b/c")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(file(make(&scratch, "b/c", Some(0o700), true)).mode, 0o755, "one that is there is left alone");
        symlink("b", scratch.path("link")).unwrap();
        file(make(&scratch, "link", None, true));
        refused(make(&scratch, "a", None, false), "conflict", "it exists");
        refused(make(&scratch, "no/a", None, false), "not_found", "no such");
        fs::write(scratch.path("file"), "").unwrap();
        refused(make(&scratch, "file", None, true), "conflict", "it exists");
        refused(make(&scratch, "file/x/y", None, true), "conflict", "not a directory");
        refused(make(&scratch, "x", Some(0o10_000), true), "invalid_argument", "7777");
        refused(make(&scratch, "x/..", None, false), "invalid_argument", "no name");
    }

    #[test]
    fn a_move_replaces_only_what_it_was_told_to() {
        let scratch = Scratch::new();
        fs::write(scratch.path("a"), "a").unwrap();
        fs::write(scratch.path("b"), "b").unwrap();
        fs::create_dir_all(scratch.path("d/e")).unwrap();
        fs::create_dir(scratch.path("empty")).unwrap();
        refused(go(&scratch, "a", "b", false), "conflict", "exists");
        assert_eq!(file(go(&scratch, "a", "b", true)).name.0, b"b");
        assert_eq!(fs::read_to_string(scratch.path("b")).unwrap(), "a");
        refused(go(&scratch, "a", "c", true), "not_found", "no such");
        refused(go(&scratch, "b", "d", true), "conflict", "is a directory");
        refused(go(&scratch, "d", "b", true), "conflict", "not a directory");
        refused(go(&scratch, "empty", "d", true), "conflict", "not empty");
        refused(go(&scratch, "d", "d/e/f", true), "invalid_argument", "into itself");
        file(go(&scratch, "d", "empty", true));
        assert!(scratch.path("empty/e").is_dir());
        symlink("nowhere", scratch.path("link")).unwrap();
        assert_eq!(file(go(&scratch, "link", "b", true)).target.unwrap().0, b"nowhere", "a link itself is moved");
    }

    #[test]
    fn a_link_replaces_a_file_but_no_directory() {
        let scratch = Scratch::new();
        assert_eq!(file(point(&scratch, "l", "a b\n", false)).target.unwrap().0, b"a b\n");
        refused(point(&scratch, "l", "x", false), "conflict", "it exists");
        assert_eq!(file(point(&scratch, "l", "x", true)).target.unwrap().0, b"x");
        fs::create_dir(scratch.path("d")).unwrap();
        refused(point(&scratch, "d", "x", true), "conflict", "it is a directory");
        assert_eq!(scratch.names(), ["d", "l"]);
    }
}
