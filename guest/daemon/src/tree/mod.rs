//! Trees in and out of the guest as tar streams, by a child that has become the user they belong to.
//!
//! - [`header`]: blocks of 512 bytes to records and back (pure)
//! - [`stream`]: the tar stream in a ring, counted and summed
//! - [`sparse`]: the map of a file with holes (pure)
//! - [`content`]: a file's bytes to the disk
//! - [`unpack`]: a stream to files below a destination, never outside of it
//! - [`pack`]: files to a stream

pub mod content;
mod header;
mod pack;
mod sparse;
pub mod stream;
mod unpack;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use space_protocol::messages::{Tree, TreeDone};
use space_protocol::{Failure, Message};

use crate::exec::{DEFAULT_USER, shown};
use crate::ring::Ring;
use crate::sys;
use crate::users::Account;

/// Refuse a path that cannot be one.
pub fn check(request: &Tree) -> Result<(), Failure> {
    if request.path.0.is_empty() || request.path.0.contains(&0) {
        return Err(Failure::invalid("path must not be empty or hold NUL bytes"));
    }
    Ok(())
}

/// In a child: unpack what comes through the ring below the path.
pub fn put(request: &Tree, ring: &Ring) -> Result<Message, Failure> {
    become_user(request.user.as_deref())?;
    let path = &request.path.0;
    let target = destination(path).map_err(|error| fault("unpack into", path, &error))?;
    let mut feed = stream::RingFeed::new(ring);
    let mut input = stream::Input::new(&mut feed);
    let entries = unpack::unpack(&mut input, target.as_fd())?;
    input.finish()?;
    Ok(Message::Tree(TreeDone { entries, bytes: input.bytes(), crc32: input.crc32() }))
}

/// In a child: pack the path into the ring.
pub fn get(request: &Tree, ring: &Ring) -> Result<Message, Failure> {
    become_user(request.user.as_deref())?;
    let path = &request.path.0;
    let name = sys::c_string(path).map_err(|error| fault("read", path, &error))?;
    // Not blocking, for the path may lead to a FIFO.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    // SAFETY: AT_FDCWD stands for the working directory.
    let here = unsafe { sys::numbered(libc::AT_FDCWD) };
    let source = sys::open_at(here, &name, flags, 0).map_err(|error| fault("read", path, &error))?;
    let mut sink = stream::RingSink(ring);
    let mut output = stream::Output::new(&mut sink);
    let base = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let entries = pack::pack(&mut output, &source, path, base)?;
    output.finish()?;
    Ok(Message::Tree(TreeDone { entries, bytes: output.bytes(), crc32: output.crc32() }))
}

/// Relative paths begin at the user's home, as they do for `exec`.
pub fn become_user(user: Option<&str>) -> Result<(), Failure> {
    let account = Account::load(user.unwrap_or(DEFAULT_USER))?;
    account.enter()?;
    settle(&account)
}

/// In a user's home, with exactly the modes that are asked for.
pub fn settle(account: &Account) -> Result<(), Failure> {
    let home = Path::new(OsStr::from_bytes(&account.home));
    sys::change_dir(home).or_else(|_| sys::change_dir(Path::new("/"))).map_err(|error| fault("enter", &account.home, &error))?;
    // SAFETY: plain calls. Modes are the archive's; deep trees hold a descriptor for each level.
    unsafe {
        libc::umask(0);
        let files = libc::rlimit { rlim_cur: 524_288, rlim_max: 524_288 };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
    }
    Ok(())
}

/// The directory, made with its parents if missing.
fn destination(path: &[u8]) -> io::Result<OwnedFd> {
    let path = Path::new(OsStr::from_bytes(path));
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o755);
    builder.create(path)?;
    let name = sys::c_string(path.as_os_str().as_bytes())?;
    // SAFETY: AT_FDCWD stands for the working directory.
    sys::open_at(unsafe { sys::numbered(libc::AT_FDCWD) }, &name, libc::O_PATH | libc::O_DIRECTORY, 0)
}

/// What an errno means for a path.
fn fault(what: &str, path: &[u8], error: &io::Error) -> Failure {
    let code = match error.raw_os_error() {
        Some(libc::ENOENT) => "not_found",
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => "permission_denied",
        Some(
            libc::ENOTDIR | libc::EEXIST | libc::EISDIR | libc::ENOTEMPTY | libc::ENAMETOOLONG | libc::ELOOP | libc::EINVAL | libc::EXDEV,
        ) => "invalid_argument",
        Some(libc::ENOSPC | libc::EDQUOT) => {
            return Failure::new("no_capacity", format!("cannot {what} '{}': the sandbox's disk is full", shown(path)));
        }
        Some(libc::EFBIG) => "too_large",
        _ => "guest_error",
    };
    Failure::new(code, format!("cannot {what} '{}': {error}", shown(path)))
}

#[cfg(test)]
mod tests;
