//! Files by another custom: what is done is done as root, and what is made belongs to a user, in whose home relative paths begin.
//!
//! A path is first made absolute and plain, by its text alone. A file is written in its place: whoever watches sees it appear, change its
//! owner, and change. Metadata are extended attributes of a name space of their own.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;

use space_protocol::entries::{Entries, Entry, EntryAnswer, EntryList, EntryMove, EntryPath, EntryWrite, Leads};
use space_protocol::files::{File, FileRemove, Listed};
use space_protocol::messages::Variable;
use space_protocol::{Bytes, Failure, Message};

use super::fault::at;
use super::list::{self, Walk};
use super::place::{self, split};
use super::record::{self, Names};
use super::{calls, remove, write};
use crate::exec::{DEFAULT_USER, shown};
use crate::ring::Ring;
use crate::sys::{self, check};
use crate::tree;
use crate::tree::stream::{Feed, RingFeed};
use crate::users::Account;

/// What the names of metadata begin with.
const PREFIX: &[u8] = b"user.e2b.";
/// Bytes of an entry's metadata; what is more is not told.
const MOST_METADATA: usize = 8 << 10;
/// Bytes of a message, about: a large entry more fits into it.
const BATCH: usize = 32 << 10;
const MOST_ENTRIES: u32 = 1_000_000;
const DIR_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Whose files these are, and in whose home we are.
struct Owner {
    uid: u32,
    gid: u32,
    home: Vec<u8>,
}

/// Go to the user's home, as root.
fn enter(user: Option<&str>) -> Result<Owner, Failure> {
    if cfg!(test) {
        // Tests have one process for all.
        // SAFETY: plain calls.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        return Ok(Owner { uid, gid, home: b"/tmp".to_vec() });
    }
    let account = Account::load(user.unwrap_or(DEFAULT_USER))?;
    tree::settle(&account)?;
    Ok(Owner { uid: account.uid, gid: account.gid, home: account.home })
}

/// Absolute, without `.`, `..` and repeated slashes, by the text alone.
fn plain(home: &[u8], path: &[u8]) -> Vec<u8> {
    let whole = if path.starts_with(b"/") { path.to_vec() } else { [home, b"/", path].concat() };
    let mut parts: Vec<&[u8]> = vec![];
    for part in whole.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    [&b"/"[..], &parts.join(&b'/')].concat()
}

/// Enter, and make the path absolute.
fn begin(path: &[u8], user: Option<&str>) -> Result<(Owner, Vec<u8>), Failure> {
    place::check(path)?;
    let owner = enter(user)?;
    let path = plain(&owner.home, path);
    Ok((owner, path))
}

/// In a child: become whoever looks at entries, and the path absolute.
pub fn entry_path(path: &[u8], user: Option<&str>) -> Result<Vec<u8>, Failure> {
    begin(path, user).map(|(_, path)| path)
}

/// In a child: what a path is.
pub fn entry(request: &EntryPath) -> Result<Message, Failure> {
    let (_, path) = begin(&request.path.0, request.user.as_deref())?;
    answer("look at", &path)
}

fn answer(what: &'static str, path: &[u8]) -> Result<Message, Failure> {
    let wrong = at(what, path);
    let name = sys::c_string(path).map_err(&wrong)?;
    let file = record::look(calls::here(), &name, &place::base(path), &Names::load()).map_err(&wrong)?;
    Ok(Message::Entry(Box::new(EntryAnswer { entry: whole(file, path.to_vec()) })))
}

/// A file with what entries say besides.
fn whole(file: File, path: Vec<u8>) -> Entry {
    let leads = if file.kind == "symlink" { leads(&path) } else { None };
    let metadata = if matches!(file.kind.as_str(), "file" | "directory") || leads.is_some() { metadata(&path) } else { vec![] };
    Entry { file, path: Bytes(path), leads, metadata }
}

/// What a link leads to, if that is there.
fn leads(path: &[u8]) -> Option<Leads> {
    let real = std::fs::canonicalize(OsStr::from_bytes(path)).ok()?;
    let found = std::fs::metadata(&real).ok()?;
    let mode = found.mode();
    Some(Leads { path: Bytes(real.into_os_string().into_vec()), kind: record::kind(mode).to_owned(), mode: mode & 0o7777 })
}

/// In a child: what is in a directory.
pub fn list_entries(request: &EntryList) -> Result<Message, Failure> {
    list_to(request, &mut crate::report::say)
}

fn list_to(request: &EntryList, say: &mut dyn FnMut(&Message) -> Result<(), Failure>) -> Result<Message, Failure> {
    if request.depth == 0 || request.limit == 0 || request.limit > MOST_ENTRIES {
        return Err(Failure::invalid(format!("depth must be at least 1 and limit 1 to {MOST_ENTRIES}")));
    }
    let (_, top) = begin(&request.path.0, request.user.as_deref())?;
    let wrong = at("list", &top);
    let name = sys::c_string(&top).map_err(&wrong)?;
    let dir = match sys::open_at(calls::here(), &name, libc::O_RDONLY | libc::O_DIRECTORY, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
            return Err(Failure::invalid(format!("path '{}' is not a directory", shown(&top))));
        }
        other => other.map_err(&wrong)?,
    };
    let mut walk = Walk::new(dir, request.depth, None, Names::load()).map_err(&wrong)?;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let mut left = request.limit;
    let more = loop {
        let Some(file) = walk.next().map_err(&wrong)? else { break false };
        if left == 0 {
            break true;
        }
        left -= 1;
        let path = if top == b"/" { [&top[..], &file.name.0].concat() } else { [&top[..], b"/", &file.name.0].concat() };
        let entry = whole(file, path);
        bytes += size(&entry);
        batch.push(entry);
        if bytes >= BATCH {
            say(&Message::Entries(Entries { entries: std::mem::take(&mut batch) }))?;
            bytes = 0;
        }
    };
    if !batch.is_empty() {
        say(&Message::Entries(Entries { entries: batch }))?;
    }
    Ok(Message::Listed(Listed { more }))
}

/// Bytes of an entry in a message, about.
fn size(entry: &Entry) -> usize {
    let metadata: usize = entry.metadata.iter().map(|(name, value)| name.0.len() + value.0.len() + 8).sum();
    list::size(&entry.file) + entry.path.0.len() + entry.leads.as_ref().map_or(0, |leads| leads.path.0.len() + 40) + metadata + 60
}

/// In a child: make a directory.
pub fn make_entry_dir(request: &EntryPath) -> Result<Message, Failure> {
    const WHAT: &str = "make the directory";
    let (owner, path) = begin(&request.path.0, request.user.as_deref())?;
    match std::fs::metadata(OsStr::from_bytes(&path)) {
        Ok(found) if found.is_dir() => return Err(Failure::new("conflict", format!("directory already exists: {}", shown(&path)))),
        Ok(_) => return Err(Failure::invalid(format!("path already exists but it is not a directory: {}", shown(&path)))),
        Err(_) => make_dirs(&path, &owner).map_err(at(WHAT, &path))?,
    }
    answer(WHAT, &path)
}

/// The directory, and those above it, the user's where they are made.
fn make_dirs(path: &[u8], owner: &Owner) -> io::Result<()> {
    let mut missing = vec![];
    let mut at = path;
    while at.len() > 1 && std::fs::metadata(OsStr::from_bytes(at)).is_err() {
        missing.push(at);
        let parent = split(at).0;
        at = &parent[..parent.len() - usize::from(parent.len() > 1)];
    }
    for one in missing.into_iter().rev() {
        let name = sys::c_string(one)?;
        match calls::make_dir(calls::here(), &name, DIR_MODE) {
            Ok(()) => calls::change_owner(calls::here(), &name, owner.uid, owner.gid)?,
            // Somebody was quicker, or it is a link to nowhere, which the next step will find.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The directories above a path.
fn make_parents(path: &[u8], owner: &Owner) -> io::Result<()> {
    let parent = split(path).0;
    make_dirs(&parent[..parent.len() - usize::from(parent.len() > 1)], owner)
}

/// In a child: give a path another name.
pub fn move_entry(request: &EntryMove) -> Result<Message, Failure> {
    const WHAT: &str = "move";
    place::check(&request.to.0)?;
    let (owner, from) = begin(&request.path.0, request.user.as_deref())?;
    let to = plain(&owner.home, &request.to.0);
    let wrong = at(WHAT, &from);
    let names = (sys::c_string(&from).map_err(&wrong)?, sys::c_string(&to).map_err(&wrong)?);
    sys::stat_at(calls::here(), &names.0).map_err(&wrong)?;
    make_parents(&to, &owner).map_err(at("move to", &to))?;
    calls::rename(calls::here(), &names.0, calls::here(), &names.1, true).map_err(&wrong)?;
    answer(WHAT, &to)
}

/// In a child: remove a path with everything in it; nothing there is no error.
pub fn remove_entry(request: &EntryPath) -> Result<Message, Failure> {
    let (_, path) = begin(&request.path.0, request.user.as_deref())?;
    remove::remove_here(&FileRemove { path: Bytes(path), user: None, recursive: true, missing_ok: true })
}

/// In a child: write what comes through the ring.
pub fn write_entry(request: &EntryWrite, ring: &Ring) -> Result<Message, Failure> {
    put(request, &mut RingFeed::new(ring), &write::told)
}

/// told: the sender's count, when all has come.
fn put(request: &EntryWrite, feed: &mut dyn Feed, told: &dyn Fn() -> io::Result<Vec<u8>>) -> Result<Message, Failure> {
    const WHAT: &str = "write";
    let (owner, path) = begin(&request.path.0, request.user.as_deref())?;
    let wrong = at(WHAT, &path);
    make_parents(&path, &owner).map_err(&wrong)?;
    let name = sys::c_string(&path).map_err(&wrong)?;
    let file = open(&name, &path)?;
    calls::change_owner_open(file.as_fd(), owner.uid, owner.gid).map_err(&wrong)?;
    set_metadata(&file, &request.metadata).map_err(&wrong)?;
    let came = write::receive(feed, file.as_fd(), true, &path)?;
    write::expect(&came, told, &path)?;
    drop(file);
    answer(WHAT, &path)
}

/// A regular file, empty.
fn open(name: &CStr, path: &[u8]) -> Result<OwnedFd, Failure> {
    let wrong = at("write", path);
    let directory = || Failure::invalid(format!("path '{}' is a directory", shown(path)));
    // Not blocking, for the path may lead to a FIFO.
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match sys::open_at(calls::here(), name, flags, FILE_MODE) {
        Err(error) if error.raw_os_error() == Some(libc::EISDIR) => return Err(directory()),
        other => other.map_err(&wrong)?,
    };
    let stat = sys::stat(file.as_fd()).map_err(&wrong)?;
    match record::kind(stat.st_mode) {
        "file" => {}
        kind => return Err(Failure::invalid(format!("path '{}' is no regular file, but of the kind {kind}", shown(path)))),
    }
    if stat.st_size > 0 {
        calls::set_size(file.as_fd(), 0).map_err(&wrong)?;
    }
    Ok(file)
}

/// The file has these, and no others.
fn set_metadata(file: &OwnedFd, wanted: &[Variable]) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    for (name, _) in metadata(own.as_bytes()) {
        if !wanted.iter().any(|(kept, _)| *kept == name) {
            remove_attribute(file.as_fd(), &attribute(&name.0)?)?;
        }
    }
    wanted.iter().try_for_each(|(name, value)| set_attribute(file.as_fd(), &attribute(&name.0)?, &value.0))
}

fn attribute(name: &[u8]) -> io::Result<CString> {
    sys::c_string(&[PREFIX, name].concat())
}

/// What a path, or what it leads to, has of them, as far as it is not too much.
fn metadata(path: &[u8]) -> Vec<Variable> {
    let Ok(path) = sys::c_string(path) else { return vec![] };
    let mut found = vec![];
    let mut left = MOST_METADATA;
    for name in attributes(&path) {
        let Some(short) = name.strip_prefix(PREFIX) else { continue };
        let Some(value) = sys::c_string(&name).ok().and_then(|name| value(&path, &name)) else { continue };
        let Some(rest) = left.checked_sub(short.len() + value.len()) else { break };
        left = rest;
        found.push((Bytes(short.to_vec()), Bytes(value)));
    }
    found
}

/// `listxattr`; none where the file system has none.
fn attributes(path: &CStr) -> Vec<Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    // SAFETY: a valid string, and room as we say.
    let count = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(count.max(0) as usize);
    names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// `getxattr`, of a value that is not too long.
fn value(path: &CStr, name: &CStr) -> Option<Vec<u8>> {
    let mut bytes = vec![0; MOST_METADATA];
    // SAFETY: valid strings, and room as we say.
    let count = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    bytes.truncate(usize::try_from(count).ok()?);
    Some(bytes)
}

/// `fsetxattr`.
fn set_attribute(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: a valid descriptor and string; as many bytes as we say.
    check(unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }).map(drop)
}

/// `fremovexattr`.
fn remove_attribute(file: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) }).map(drop)
}

#[cfg(test)]
mod tests;
