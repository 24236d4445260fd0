//! Files to a tar stream: files, directories, symbolic and hard links; of files with
//! holes what is not one. What has no content that could travel (sockets, FIFOs,
//! devices) is left out. A file that shrinks while it is read is filled up with zeros, one that vanishes is left out.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use space_protocol::Failure;

use super::content::Reader;
use super::fault;
use super::header::{self, BLOCK, Header};
use super::sparse::{self, Segment};
use super::stream::Output;
use crate::sys;

/// Directories within directories.
const DEEPEST: usize = 1024;

/// Pack what `source` is: a directory's entries as `./...`, a file as `base`. path: as the caller named it. How many entries.
pub fn pack(output: &mut Output<'_>, source: &OwnedFd, path: &[u8], base: &[u8]) -> Result<u64, Failure> {
    let wrong = |error: io::Error| fault("read", path, &error);
    let stat = sys::stat(source.as_fd()).map_err(wrong)?;
    let mut walk = Walk { output, reader: Reader::default(), entries: 0, seen: HashMap::new(), shown: path.to_vec() };
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {
            walk.entry(b'5', b"./", b"", &stat)?;
            walk.directory(source, b"./", 0)?;
        }
        libc::S_IFREG => walk.content(source, base, &stat)?,
        _ => return Err(Failure::invalid(format!("'{}' is neither a file nor a directory", crate::exec::shown(path)))),
    }
    walk.output.zeros(2 * BLOCK as u64)?;
    Ok(walk.entries)
}

struct Walk<'a, 'b> {
    output: &'a mut Output<'b>,
    reader: Reader,
    entries: u64,
    /// Where the first name of a file with several is.
    seen: HashMap<(u64, u64), Vec<u8>>,
    shown: Vec<u8>,
}

impl Walk<'_, '_> {
    /// An errno at a name below the source.
    fn wrong(&self, name: &[u8]) -> impl Fn(io::Error) -> Failure + use<> {
        let path = [self.shown.strip_suffix(b"/").unwrap_or(&self.shown), name.strip_prefix(b".").unwrap_or(name)].concat();
        move |error| fault("read", &path, &error)
    }

    fn directory(&mut self, dir: &OwnedFd, prefix: &[u8], depth: usize) -> Result<(), Failure> {
        let names = dir.try_clone().and_then(sys::names).map_err(self.wrong(prefix))?;
        for name in names {
            let path = [prefix, name.to_bytes()].concat();
            match self.one(dir.as_fd(), &name, &path, depth) {
                Ok(()) | Err(Fault::Vanished) => {}
                Err(Fault::Failed(failure)) => return Err(failure),
            }
        }
        Ok(())
    }

    fn one(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8], depth: usize) -> Result<(), Fault> {
        let wrong = self.wrong(path);
        let gone =
            |error: io::Error| if error.raw_os_error() == Some(libc::ENOENT) { Fault::Vanished } else { Fault::Failed(wrong(error)) };
        let stat = sys::stat_at(dir, name).map_err(gone)?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR if depth >= DEEPEST => {
                Err(Failure::invalid(format!("'{}' lies more than {DEEPEST} directories deep", crate::exec::shown(path))).into())
            }
            libc::S_IFDIR => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
                let below = sys::open_at(dir, name, flags, 0).map_err(gone)?;
                let path = [path, b"/"].concat();
                self.entry(b'5', &path, b"", &stat)?;
                Ok(self.directory(&below, &path, depth + 1)?)
            }
            libc::S_IFLNK => {
                let to = read_link(dir, name).map_err(gone)?;
                Ok(self.entry(b'2', path, &to, &stat)?)
            }
            libc::S_IFREG => {
                if let Some(first) = self.seen.get(&(stat.st_dev, stat.st_ino)).cloned() {
                    return Ok(self.entry(b'1', path, &first, &stat)?);
                }
                // Not blocking, for it may have become a FIFO meanwhile.
                let file = sys::open_at(dir, name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0).map_err(gone)?;
                let stat = sys::stat(file.as_fd()).map_err(gone)?;
                if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
                    return Err(Fault::Vanished);
                }
                if stat.st_nlink > 1 {
                    self.seen.insert((stat.st_dev, stat.st_ino), path.to_vec());
                }
                Ok(self.content(&file, path, &stat)?)
            }
            _ => Ok(()),
        }
    }

    fn entry(&mut self, kind: u8, path: &[u8], link: &[u8], stat: &libc::stat) -> Result<(), Failure> {
        let size = if kind == b'0' { stat.st_size as u64 } else { 0 };
        let mut blocks = Vec::with_capacity(2 * BLOCK);
        let header = Header { kind, path: path.to_vec(), link: link.to_vec(), mode: stat.st_mode & 0o7777, size, mtime: stat.st_mtime };
        header::format(&header, &mut blocks);
        self.entries += 1;
        self.output.append(&blocks)
    }

    fn content(&mut self, file: &OwnedFd, path: &[u8], stat: &libc::stat) -> Result<(), Failure> {
        if let Some(segments) = sparse::segments(file.as_fd(), stat) {
            return self.sparse(file, path, stat, &segments);
        }
        self.entry(b'0', path, b"", stat)?;
        let size = stat.st_size as u64;
        self.reader.begin(file.as_fd(), size);
        self.data(file, path, size)?;
        self.output.zeros(size.next_multiple_of(BLOCK as u64) - size)
    }

    /// A file with holes: what is not one.
    fn sparse(&mut self, file: &OwnedFd, path: &[u8], stat: &libc::stat, segments: &[Segment]) -> Result<(), Failure> {
        let map = sparse::format(segments);
        let size = map.len() as u64 + segments.iter().map(|segment| segment.length).sum::<u64>();
        let mut blocks = Vec::with_capacity(3 * BLOCK);
        let header = Header { kind: b'0', path: path.to_vec(), link: vec![], mode: stat.st_mode & 0o7777, size, mtime: stat.st_mtime };
        header::format_sparse(&header, stat.st_size as u64, &mut blocks);
        self.entries += 1;
        self.output.append(&blocks)?;
        self.output.append(&map)?;
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            self.reader.begin_at(file.as_fd(), segment.at, segment.length).map_err(self.wrong(path))?;
            self.data(file, path, segment.length)?;
        }
        self.output.zeros(size.next_multiple_of(BLOCK as u64) - size)
    }

    /// So many bytes of a file; zeros for those that are no longer there.
    fn data(&mut self, file: &OwnedFd, path: &[u8], mut left: u64) -> Result<(), Failure> {
        while left > 0 {
            let room = self.output.room()?;
            let most = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match self.reader.read(file.as_fd(), &mut room[..most]) {
                Ok(0) => break,
                Ok(count) => {
                    self.output.put(count);
                    left -= count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.wrong(path)(error)),
            }
        }
        self.output.zeros(left)
    }
}

/// Why an entry is not in the stream.
enum Fault {
    /// It went away while the tree was read.
    Vanished,
    /// The whole fails.
    Failed(Failure),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn read_link(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<u8>> {
    let mut out = vec![0; libc::PATH_MAX as usize];
    // SAFETY: a valid descriptor and string; room as we say.
    let count = unsafe { libc::readlinkat(dir.as_raw_fd(), name.as_ptr(), out.as_mut_ptr().cast(), out.len()) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    out.truncate(count as usize);
    Ok(out)
}
