//! A tar stream to files below a destination.
//!
//! Every directory is opened with `openat2(RESOLVE_BENEATH)`: a name or a link that leads out of the destination is an error
//! that names the entry. What is in the way is replaced, except a directory by something else. Directories that were there keep
//! their mode and time. Owners are not taken over: everything belongs to the user who unpacks. A failure leaves what came before it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use space_protocol::Failure;

use super::content::Writer;
use super::fault;
use super::header::{self, BLOCK, Header, Overrides};
use super::sparse::{Map, Segment};
use super::stream::{Input, cut_off};
use crate::exec::shown;
use crate::files::set_size;
use crate::sys;

/// Bytes of a pax header or a GNU long name.
const LARGEST_META: u64 = 1 << 20;
const BENEATH: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;

/// An entry whose overrides were applied.
struct Entry {
    kind: u8,
    path: Vec<u8>,
    link: Vec<u8>,
    mode: u32,
    /// Bytes of content in the stream.
    size: u64,
    /// Bytes of a file with holes, whose content begins with their map.
    real: Option<u64>,
    mtime: libc::timespec,
}

/// Unpack; how many entries there were.
pub fn unpack(input: &mut Input<'_>, target: BorrowedFd<'_>) -> Result<u64, Failure> {
    let mut tree = Target { root: target, writer: Writer::default(), parent: None, made: BTreeMap::new() };
    let mut entries = 0;
    while let Some(entry) = next(input)? {
        tree.add(input, &entry)?;
        input.skip(entry.size.next_multiple_of(BLOCK as u64) - entry.size)?;
        entries += 1;
    }
    tree.dress()?;
    Ok(entries)
}

/// The next entry, or `None` at the archive's end.
fn next(input: &mut Input<'_>) -> Result<Option<Entry>, Failure> {
    let mut over = Overrides::default();
    loop {
        let mut block = [0; BLOCK];
        let at = input.bytes();
        if !input.fill(&mut block)? {
            return Err(if at == 0 { Failure::invalid("the tar stream is empty") } else { cut_off() });
        }
        let parsed = header::parse(&block).map_err(|why| Failure::invalid(format!("the tar stream holds a header that is none: {why}")))?;
        let Some(header) = parsed else { return Ok(None) };
        let wrong = |why: &str| Failure::invalid(format!("entry '{}' of the tar stream cannot be read: {why}", shown(&header.path)));
        match header.kind {
            b'x' => header::pax(&meta(input, &header)?, &mut over).map_err(wrong)?,
            // Global records (as of git archive) say nothing that a tree needs.
            b'g' => drop(meta(input, &header)?),
            b'L' => over.path = Some(long_name(meta(input, &header)?)),
            b'K' => over.link = Some(long_name(meta(input, &header)?)),
            b'S' => return Err(wrong("it is sparse in GNU's old form; pack it with --format=posix, or without holes")),
            _ => return entry(header, over).map(Some),
        }
    }
}

fn meta(input: &mut Input<'_>, header: &Header) -> Result<Vec<u8>, Failure> {
    if header.size > LARGEST_META {
        return Err(Failure::invalid(format!("the tar stream has a header of {} bytes, at most {LARGEST_META} are read", header.size)));
    }
    let mut bytes = vec![0; header.size as usize];
    if !bytes.is_empty() && !input.fill(&mut bytes)? {
        return Err(cut_off());
    }
    input.skip(header.size.next_multiple_of(BLOCK as u64) - header.size)?;
    Ok(bytes)
}

fn long_name(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}

fn entry(header: Header, over: Overrides) -> Result<Entry, Failure> {
    let shown_as = shown(&header.path);
    let holes =
        over.sparse.judge().map_err(|why| Failure::invalid(format!("entry '{shown_as}' of the tar stream cannot be read: {why}")))?;
    let (name, real) = holes.map_or((None, None), |(name, real)| (Some(name), Some(real)));
    let path = name.or(over.path).unwrap_or(header.path);
    let wrong = |why: String| Failure::invalid(format!("entry '{}' of the tar stream cannot be unpacked: {why}", shown(&path)));
    let kind = match header.kind {
        // The oldest archives mark directories by the name's end.
        0 | b'0' | b'7' if path.ends_with(b"/") => b'5',
        0 | b'0' | b'7' => b'0',
        b'1' | b'2' | b'5' => header.kind,
        b'3' | b'4' | b'6' => return Err(wrong("it is a device or FIFO".to_owned())),
        other => return Err(wrong(format!("its type '{}' is not known", shown(&[other])))),
    };
    if real.is_some() && kind != b'0' {
        return Err(wrong("it is sparse and no file".to_owned()));
    }
    let size = if kind == b'0' { over.size.unwrap_or(header.size) } else { 0 };
    if size.max(real.unwrap_or(0)) > i64::MAX as u64 - BLOCK as u64 {
        return Err(wrong(format!("its size of {size} bytes is none")));
    }
    let (tv_sec, nanos) = over.mtime.unwrap_or((header.mtime, 0));
    let link = over.link.unwrap_or(header.link);
    if path.contains(&0) || link.contains(&0) {
        return Err(wrong("its name holds a NUL byte".to_owned()));
    }
    Ok(Entry { kind, path, link, mode: header.mode, size, real, mtime: libc::timespec { tv_sec, tv_nsec: i64::from(nanos) } })
}

/// The parts of a name; an error for one that points upwards or to the root.
fn parts(name: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    if name.starts_with(b"/") {
        return Err("its name is absolute");
    }
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) { Err("its name holds '..'") } else { Ok(parts) }
}

struct Target<'a> {
    root: BorrowedFd<'a>,
    writer: Writer,
    /// The directory of the last entry: the next one is mostly beside it.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// Directories made here, with the mode and time that they get at the end (a read-only one must first be filled).
    made: BTreeMap<Vec<u8>, (u32, libc::timespec)>,
}

impl Target<'_> {
    fn add(&mut self, input: &mut Input<'_>, entry: &Entry) -> Result<(), Failure> {
        let refuse = |why: &str| Failure::invalid(format!("entry '{}' of the tar stream is refused: {why}", shown(&entry.path)));
        let wrong = |error: io::Error| match error.raw_os_error() {
            Some(libc::EXDEV) => refuse("its name leads out of the destination"),
            _ => fault("unpack", &entry.path, &error),
        };
        let names = parts(&entry.path).map_err(refuse)?;
        let Some((name, above)) = names.split_last() else {
            // The destination itself is there and stays as it is.
            return if entry.kind == b'5' { Ok(()) } else { Err(refuse("its name is the destination's")) };
        };
        let name = sys::c_string(name).map_err(wrong)?;
        let above = above.join(&b'/');
        self.enter(&above).map_err(wrong)?;
        let dir = self.parent.as_ref().map_or(self.root, |(_, dir)| dir.as_fd());
        match entry.kind {
            b'0' => return write_file(&mut self.writer, input, dir, &name, entry),
            b'1' => {
                let names = parts(&entry.link).map_err(|_| refuse("its link leads out of the destination"))?;
                let (last, above) = names.split_last().ok_or_else(|| refuse("its link leads nowhere"))?;
                let from = open_beneath(self.root, &above.join(&b'/')).map_err(wrong)?;
                let last = sys::c_string(last).map_err(wrong)?;
                // SAFETY: valid descriptors and strings.
                replacing(dir, &name, || unsafe { libc::linkat(from.as_raw_fd(), last.as_ptr(), dir.as_raw_fd(), name.as_ptr(), 0) })
                    .map_err(wrong)?;
            }
            b'2' => {
                let to = sys::c_string(&entry.link).map_err(wrong)?;
                // SAFETY: valid descriptors and strings; one pair of times.
                unsafe {
                    replacing(dir, &name, || libc::symlinkat(to.as_ptr(), dir.as_raw_fd(), name.as_ptr())).map_err(wrong)?;
                    libc::utimensat(dir.as_raw_fd(), name.as_ptr(), [entry.mtime; 2].as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
                }
            }
            _ => {
                let path = names.join(&b'/');
                if make_dir(dir, &name).map_err(wrong)? || self.made.contains_key(&path) {
                    self.made.insert(path, (entry.mode, entry.mtime));
                }
            }
        }
        Ok(())
    }

    /// Make `above` the current directory, with parents that are missing.
    fn enter(&mut self, above: &[u8]) -> io::Result<()> {
        if self.parent.as_ref().map_or(&[][..], |(path, _)| path) == above {
            return Ok(());
        }
        self.parent = None;
        if above.is_empty() {
            return Ok(());
        }
        let dir = match open_beneath(self.root, above) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => self.make_parents(above)?,
            other => other?,
        };
        self.parent = Some((above.to_vec(), dir));
        Ok(())
    }

    fn make_parents(&mut self, above: &[u8]) -> io::Result<OwnedFd> {
        let mut done: Vec<u8> = Vec::new();
        let mut dir = open_beneath(self.root, b"")?;
        for part in above.split(|byte| *byte == b'/') {
            let name = sys::c_string(part)?;
            // SAFETY: a valid descriptor and string.
            match sys::check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) }) {
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
                _ => {}
            }
            if !done.is_empty() {
                done.push(b'/');
            }
            done.extend_from_slice(part);
            // From the root again: a link that was there is followed as far as it stays beneath.
            dir = open_beneath(self.root, &done)?;
        }
        Ok(dir)
    }

    /// Give the directories that were made their mode and time, the deepest first.
    fn dress(&self) -> Result<(), Failure> {
        for (path, (mode, mtime)) in self.made.iter().rev() {
            let wrong = |error: io::Error| fault("set the mode of", path, &error);
            let name = sys::c_string(path).map_err(wrong)?;
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let dir = match sys::open_at2(self.root, &name, flags, 0, BENEATH) {
                // A later entry has replaced it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => continue,
                other => other.map_err(wrong)?,
            };
            // SAFETY: a valid descriptor; one pair of times.
            unsafe {
                sys::check(libc::futimens(dir.as_raw_fd(), [*mtime; 2].as_ptr())).map_err(wrong)?;
                sys::check(libc::fchmod(dir.as_raw_fd(), *mode)).map_err(wrong)?;
            }
        }
        Ok(())
    }
}

/// A directory below the destination; the destination itself for no name.
fn open_beneath(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let name = if path.is_empty() { c".".to_owned() } else { CString::new(path)? };
    let mut left = 16;
    loop {
        match sys::open_at2(root, &name, libc::O_PATH | libc::O_DIRECTORY, 0, BENEATH) {
            // Somebody renames directories meanwhile, and the kernel could not be sure.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && left > 0 => left -= 1,
            other => return other,
        }
    }
}

/// Make something under a name; what is in the way goes, unless it is a directory.
fn replacing(dir: BorrowedFd<'_>, name: &CStr, make: impl Fn() -> i32) -> io::Result<i32> {
    match sys::check(make()) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            // SAFETY: a valid descriptor and string.
            sys::check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) })?;
            sys::check(make())
        }
        other => other,
    }
}

/// Make a directory unless there is one; whether it was made.
fn make_dir(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    // SAFETY: a valid descriptor and string.
    let make = || unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o700) };
    match sys::check(make()) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            if sys::stat_at(dir, name)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
                return Ok(false);
            }
            replacing(dir, name, make).map(|_| true)
        }
        other => other.map(|_| true),
    }
}

fn write_file(writer: &mut Writer, input: &mut Input<'_>, dir: BorrowedFd<'_>, name: &CStr, entry: &Entry) -> Result<(), Failure> {
    let wrong = |error: io::Error| fault("unpack", &entry.path, &error);
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    // A new file each time: writing into one that is there would write through its links.
    let file = match sys::open_at(dir, name, flags, entry.mode) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            // SAFETY: a valid descriptor and string.
            sys::check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) }).map_err(wrong)?;
            sys::open_at(dir, name, flags, entry.mode).map_err(wrong)?
        }
        other => other.map_err(wrong)?,
    };
    match entry.real {
        None => {
            writer.begin(file.as_fd(), entry.size);
            write_data(writer, input, file.as_fd(), entry, entry.size)?;
        }
        Some(real) => {
            for Segment { at, length } in map(input, entry, real)? {
                writer.begin_at(file.as_fd(), at, length).map_err(wrong)?;
                write_data(writer, input, file.as_fd(), entry, length)?;
            }
            set_size(file.as_fd(), real).map_err(wrong)?;
        }
    }
    // SAFETY: a valid descriptor; one pair of times.
    sys::check(unsafe { libc::futimens(file.as_raw_fd(), [entry.mtime; 2].as_ptr()) }).map(drop).map_err(wrong)
}

/// The map at the begin of a sparse file's content.
fn map(input: &mut Input<'_>, entry: &Entry, real: u64) -> Result<Vec<Segment>, Failure> {
    let mut map = Map::new(entry.size, real);
    loop {
        let mut block = [0; BLOCK];
        if map.left() >= BLOCK as u64 && !input.fill(&mut block)? {
            return Err(cut_off());
        }
        let taken = map.take(&block);
        let wrong = |why: &str| Failure::invalid(format!("entry '{}' of the tar stream is refused: {why}", shown(&entry.path)));
        if let Some(segments) = taken.map_err(wrong)? {
            return Ok(segments);
        }
    }
}

/// The next `left` bytes of the stream.
fn write_data(writer: &mut Writer, input: &mut Input<'_>, file: BorrowedFd<'_>, entry: &Entry, mut left: u64) -> Result<(), Failure> {
    let wrong = |error: io::Error| fault("unpack", &entry.path, &error);
    while left > 0 {
        let part = input.some(usize::try_from(left).unwrap_or(usize::MAX))?;
        if part.is_empty() {
            return Err(cut_off());
        }
        writer.write(file, part).map_err(wrong)?;
        left -= part.len() as u64;
    }
    writer.finish(file).map_err(wrong)
}
