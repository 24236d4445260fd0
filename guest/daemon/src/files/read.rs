//! A file's bytes. Holes are not read: they travel as zeros, and their sum is reckoned.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use space_protocol::files::{Content, FileAnswer, FileRead};
use space_protocol::{Failure, Message};

use super::fault::at;
use super::place::{self, base};
use super::record::{self, Names};
use super::{calls, enter};
use crate::crc::Crc32;
use crate::exec::shown;
use crate::ring::{self, Ring};
use crate::tree::content::{LARGE, Reader, set_direct};
use crate::tree::stream::{RingSink, Sink};
use crate::{report, sys};

const WHAT: &str = "read";
/// The most that is read of a file that says it is empty, as those of the kernel do.
const PSEUDO: usize = 16 << 20;
const PAGE: u64 = 4096;

/// In a child: send a file's bytes through the ring.
pub fn read(request: &FileRead, ring: &Ring) -> Result<Message, Failure> {
    let path = &request.path.0;
    place::check(path)?;
    enter(request.user.as_deref())?;
    let (file, stat) = open(path)?;
    let mut record = record::file(&base(path), &stat, None, &Names::load());
    let pseudo = if record.size == 0 { whole(&file).map_err(at(WHAT, path))? } else { vec![] };
    record.size = record.size.max(pseudo.len() as u64);
    let end = record.size.min(request.length.map_or(u64::MAX, |length| request.offset.saturating_add(length)));
    report::say(&Message::File(FileAnswer { file: record }))?;
    let mut sink = RingSink(ring);
    let mut sender = Sender::new(&mut sink);
    let begin = request.offset.min(end);
    let sent = if pseudo.is_empty() { sender.extents(&file, begin, end) } else { sender.bytes(&pseudo[begin as usize..end as usize]) };
    sent.map_err(at(WHAT, path))?;
    Ok(Message::Content(Content { bytes: sender.count, crc32: sender.crc.value() }))
}

/// A regular file. Others are not opened: that alone can have effects, or never end.
fn open(path: &[u8]) -> Result<(OwnedFd, libc::stat), Failure> {
    let wrong = at(WHAT, path);
    let name = sys::c_string(path).map_err(&wrong)?;
    let file = sys::open_at(calls::here(), &name, libc::O_PATH, 0).map_err(&wrong)?;
    let stat = sys::stat(file.as_fd()).map_err(&wrong)?;
    match record::kind(stat.st_mode) {
        "file" => Ok((calls::reopen(file.as_fd(), libc::O_RDONLY).map_err(&wrong)?, stat)),
        kind => Err(Failure::new("conflict", format!("cannot read '{}': it is no regular file, but of the kind {kind}", shown(path)))),
    }
}

/// All of a file whose size says nothing.
fn whole(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    let mut piece = vec![0; 64 << 10];
    loop {
        match sys::read(file.as_fd(), &mut piece)? {
            0 => return Ok(bytes),
            count if bytes.len() + count <= PSEUDO => bytes.extend_from_slice(&piece[..count]),
            _ => return Err(io::Error::from_raw_os_error(libc::EFBIG)),
        }
    }
}

/// Bytes on the disk or a hole, up to an offset.
#[derive(Debug, PartialEq, Eq)]
pub enum Extent {
    /// Bytes.
    Data(u64),
    /// Zeros that take no room.
    Hole(u64),
}

/// What begins at `at`, as far as `end`.
pub fn extent(file: BorrowedFd<'_>, at: u64, end: u64) -> Extent {
    match calls::seek(file, at, libc::SEEK_DATA) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            // No more data: a hole to the end of the file, which may have come nearer.
            let size = sys::stat(file).map_or(0, |stat| stat.st_size.max(0) as u64);
            Extent::Hole(end.min(size).max(at))
        }
        Ok(data) if data > at => Extent::Hole(data.min(end)),
        // A file system that knows nothing of holes has data.
        _ => Extent::Data(calls::seek(file, at, libc::SEEK_HOLE).ok().filter(|hole| *hole > at).map_or(end, |hole| hole.min(end))),
    }
}

struct Sender<'a> {
    sink: &'a mut dyn Sink,
    reader: Reader,
    count: u64,
    crc: Crc32,
    /// Zeros that were sent last: when a whole ring of them was, its memory holds nothing else.
    zeros: usize,
}

impl<'a> Sender<'a> {
    fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink, reader: Reader::default(), count: 0, crc: Crc32::default(), zeros: 0 }
    }

    fn extents(&mut self, file: &OwnedFd, begin: u64, end: u64) -> io::Result<()> {
        let mut at = begin;
        while at < end {
            match extent(file.as_fd(), at, end) {
                Extent::Hole(to) if to == at => return Ok(()), // it has become shorter
                Extent::Hole(to) => {
                    self.hole(to - at)?;
                    at = to;
                }
                Extent::Data(to) => {
                    // What the disk is read for directly begins at a page.
                    let to = if at % PAGE == 0 { to } else { to.min(at.next_multiple_of(PAGE)) };
                    if self.data(file.as_fd(), at, to)? < to - at {
                        return Ok(());
                    }
                    at = to;
                }
            }
        }
        Ok(())
    }

    /// Send what lies there; how much that was.
    fn data(&mut self, file: BorrowedFd<'_>, at: u64, to: u64) -> io::Result<u64> {
        calls::seek(file, at, libc::SEEK_SET)?;
        let mut left = to - at;
        if left < LARGE {
            let _ = set_direct(file, false);
        }
        self.reader.begin(file, left);
        self.zeros = 0;
        while left > 0 {
            let room = self.sink.room()?;
            let most = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match self.reader.read(file, &mut room[..most]) {
                Ok(0) => break,
                Ok(count) => {
                    self.crc.update(&room[..count]);
                    self.sink.publish(count)?;
                    self.count += count as u64;
                    left -= count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(to - at - left)
    }

    fn hole(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let room = self.sink.room()?;
            let part = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if self.zeros < ring::SIZE {
                room[..part].fill(0);
                self.zeros += part;
            }
            self.sink.publish(part)?;
            left -= part as u64;
        }
        self.crc.update_zeros(count);
        self.count += count;
        Ok(())
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.sink.room()?;
            let part = room.len().min(bytes.len());
            room[..part].copy_from_slice(&bytes[..part]);
            self.sink.publish(part)?;
            self.crc.update(&bytes[..part]);
            self.count += part as u64;
            bytes = &bytes[part..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;
    use crate::files::tests::{Random, Scratch};

    /// A ring in memory, one byte short of the real one's parts, that keeps what went through it.
    struct Kept {
        memory: Vec<u8>,
        at: usize,
        bytes: Vec<u8>,
        most: usize,
    }

    impl Kept {
        fn new(most: usize) -> Self {
            Self { memory: vec![0xaa; ring::SIZE], at: 0, bytes: vec![], most }
        }
    }

    impl Sink for Kept {
        fn room(&mut self) -> io::Result<&mut [u8]> {
            let end = (self.at + 70_001).min(ring::SIZE);
            Ok(&mut self.memory[self.at..end])
        }

        fn publish(&mut self, count: usize) -> io::Result<()> {
            let place = self.bytes.len().saturating_add(count).min(self.most) - self.bytes.len();
            self.bytes.extend_from_slice(&self.memory[self.at..self.at + place]);
            self.at = (self.at + count) % ring::SIZE;
            Ok(())
        }
    }

    fn sent(scratch: &Scratch, name: &str, begin: u64, end: u64) -> (Vec<u8>, u32) {
        let file = sys::open(scratch.path(name).to_str().unwrap(), libc::O_RDONLY).unwrap();
        let mut kept = Kept::new(usize::MAX);
        let mut sender = Sender::new(&mut kept);
        sender.extents(&file, begin, end).unwrap();
        let (count, sum) = (sender.count, sender.crc.value());
        assert_eq!(count, kept.bytes.len() as u64);
        (kept.bytes, sum)
    }

    fn crc(bytes: &[u8]) -> u32 {
        let mut sum = Crc32::default();
        sum.update(bytes);
        sum.value()
    }

    #[test]
    fn any_part_of_a_file_with_holes_is_what_reading_it_gives() {
        let mut random = Random(3);
        let scratch = Scratch::new();
        for round in 0..8 {
            let name = format!("f{round}");
            let file = fs::File::create(scratch.path(&name)).unwrap();
            let size = 3 << 20;
            file.set_len(size).unwrap();
            for _ in 0..random.below(6) {
                let piece = vec![random.below(256) as u8; 1 + random.below(700_000)];
                let at = random.below(size as usize - piece.len()) as u64;
                file.write_all_at(&piece, if random.below(2) == 0 { at / 4096 * 4096 } else { at }).unwrap();
            }
            let whole = fs::read(scratch.path(&name)).unwrap();
            for _ in 0..6 {
                let begin = random.below(size as usize + 1);
                let end = begin + random.below(size as usize - begin + 1);
                let (bytes, sum) = sent(&scratch, &name, begin as u64, end as u64);
                assert!(bytes == whole[begin..end], "{begin}..{end}");
                assert_eq!(sum, crc(&bytes));
            }
        }
    }

    #[test]
    fn two_gigabytes_of_hole_are_not_read() {
        let scratch = Scratch::new();
        let file = fs::File::create(scratch.path("sparse")).unwrap();
        file.set_len(2_100_000_000).unwrap();
        file.write_all_at(b"end", 2_099_999_997).unwrap();
        assert!(file.metadata().unwrap().blocks() < 1000, "this file system has no holes");
        let open = sys::open(scratch.path("sparse").to_str().unwrap(), libc::O_RDONLY).unwrap();
        assert!(matches!(extent(open.as_fd(), 0, 2_100_000_000), Extent::Hole(to) if to > 2_099_000_000));
        let mut kept = Kept::new(5 << 20);
        let mut sender = Sender::new(&mut kept);
        sender.extents(&open, 0, 2_100_000_000).unwrap();
        let mut want = Crc32::default();
        want.update_zeros(2_099_999_997);
        want.update(b"end");
        assert_eq!((sender.count, sender.crc), (2_100_000_000, want));
        assert!(kept.bytes.iter().all(|byte| *byte == 0), "memory that is not filled again holds zeros");
    }

    #[test]
    fn a_file_that_shrinks_ends_early() {
        let scratch = Scratch::new();
        fs::write(scratch.path("f"), vec![1; 500_000]).unwrap();
        let (bytes, sum) = sent(&scratch, "f", 100, 900_000);
        assert_eq!((bytes.len(), sum), (499_900, crc(&vec![1; 499_900])));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let scratch = Scratch::new();
        let path = |name: &str| scratch.bytes(name).0;
        for (name, word) in [("", "directory"), ("fifo", "fifo")] {
            if name == "fifo" {
                let made = std::process::Command::new("mkfifo").arg(scratch.path(name)).status().unwrap();
                assert!(made.success());
            }
            let failure = open(&path(name)).unwrap_err();
            assert_eq!(failure.code, "conflict");
            assert!(failure.message.contains(word), "{failure}");
        }
        assert_eq!(open(b"/dev/null").unwrap_err().code, "conflict");
        assert_eq!(open(&path("no")).unwrap_err().code, "not_found");
        assert!(whole(&open(b"/proc/version").unwrap().0).unwrap().starts_with(b"Linux"));
    }
}
