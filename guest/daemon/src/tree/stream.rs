//! A tar stream through a ring (or, in tests, a file): in parts, its bytes counted and summed.

use std::io;

use space_protocol::Failure;

use crate::crc::Crc32;
use crate::ring::{Corrupt, Ring, copy_slice};
use crate::sys;

/// Where a stream comes from.
pub trait Feed {
    /// Go on to the next part; an empty one is the end.
    fn advance(&mut self) -> io::Result<()>;
    /// The part.
    fn part(&self) -> &[u8];
}

/// Where a stream goes.
pub trait Sink {
    /// Room for the next bytes, never empty; the same until something is published.
    fn room(&mut self) -> io::Result<&mut [u8]>;
    /// The first `count` bytes of the room are there.
    fn publish(&mut self, count: usize) -> io::Result<()>;
}

fn corrupt(_: Corrupt) -> io::Error {
    io::Error::other("the ring is corrupt")
}

/// Wait for a byte on standard input; false when the daemon has closed it.
fn wait_for_bell() -> io::Result<bool> {
    let mut bells = [0; 64];
    loop {
        // SAFETY: a child's descriptor 0 is open for as long as it lives.
        match sys::read(unsafe { sys::numbered(0) }, &mut bells) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|count| count > 0),
        }
    }
}

fn toll(bell: bool) -> io::Result<()> {
    // SAFETY: a child's descriptor 1 is open for as long as it lives.
    if bell { sys::write_all(unsafe { sys::numbered(1) }, &[1]) } else { Ok(()) }
}

/// A child's end of a ring that it reads.
pub struct RingFeed<'a> {
    ring: &'a Ring,
    part: &'a [u8],
}

impl<'a> RingFeed<'a> {
    /// Read this ring.
    pub fn new(ring: &'a Ring) -> Self {
        Self { ring, part: &[] }
    }
}

impl Feed for RingFeed<'_> {
    fn advance(&mut self) -> io::Result<()> {
        let done = std::mem::take(&mut self.part).len();
        toll(done > 0 && self.ring.was_read(done))?;
        let mut open = true;
        loop {
            let (at, count) = self.ring.readable().map_err(corrupt)?;
            if count > 0 || !open {
                // SAFETY: the writer leaves these bytes alone until they are said to be read.
                self.part = unsafe { std::slice::from_raw_parts(at, count) };
                return Ok(());
            }
            if self.ring.reader_waits().map_err(corrupt)? {
                open = wait_for_bell()?;
            }
        }
    }

    fn part(&self) -> &[u8] {
        self.part
    }
}

/// A child's end of a ring that it writes.
pub struct RingSink<'a>(pub &'a Ring);

impl Sink for RingSink<'_> {
    fn room(&mut self) -> io::Result<&mut [u8]> {
        loop {
            let (at, count) = self.0.writable().map_err(corrupt)?;
            if count > 0 {
                // SAFETY: the reader looks at these bytes only when they are said to be written.
                return Ok(unsafe { std::slice::from_raw_parts_mut(at, count) });
            }
            if self.0.writer_waits().map_err(corrupt)? && !wait_for_bell()? {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    fn publish(&mut self, count: usize) -> io::Result<()> {
        toll(count > 0 && self.0.was_written(count))
    }
}

/// The stream that comes in.
pub struct Input<'a> {
    feed: &'a mut dyn Feed,
    start: usize,
    end: usize,
    bytes: u64,
    crc: Crc32,
}

impl<'a> Input<'a> {
    /// A stream from `feed`.
    pub fn new(feed: &'a mut dyn Feed) -> Self {
        Self { feed, start: 0, end: 0, bytes: 0, crc: Crc32::default() }
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Their sum.
    pub fn crc32(&self) -> u32 {
        self.crc.value()
    }

    /// Some bytes, at most `most`; empty at the end of the stream.
    pub fn some(&mut self, most: usize) -> Result<&[u8], Failure> {
        if self.start == self.end {
            self.feed.advance().map_err(|error| Failure::guest(format!("the tar stream cannot be read: {error}")))?;
            let part = self.feed.part();
            self.crc.update(part);
            self.bytes += part.len() as u64;
            (self.start, self.end) = (0, part.len());
        }
        let at = self.start;
        self.start = self.end.min(at.saturating_add(most));
        Ok(&self.feed.part()[at..self.start])
    }

    /// Fill `out`; false at the end of the stream, an error when that comes in the middle.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<bool, Failure> {
        let mut done = 0;
        while done < out.len() {
            let part = self.some(out.len() - done)?;
            if part.is_empty() {
                return if done == 0 { Ok(false) } else { Err(cut_off()) };
            }
            out[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        Ok(true)
    }

    /// Pass over `count` bytes.
    pub fn skip(&mut self, mut count: u64) -> Result<(), Failure> {
        while count > 0 {
            let part = self.some(usize::try_from(count).unwrap_or(usize::MAX))?.len();
            if part == 0 {
                return Err(cut_off());
            }
            count -= part as u64;
        }
        Ok(())
    }

    /// Read to the end of the stream: what follows the archive's end is padding.
    pub fn finish(&mut self) -> Result<(), Failure> {
        while !self.some(usize::MAX)?.is_empty() {}
        Ok(())
    }
}

/// The stream ended before the archive did.
pub fn cut_off() -> Failure {
    Failure::invalid("the tar stream was cut off before the archive's end")
}

/// The stream that goes out.
pub struct Output<'a> {
    sink: &'a mut dyn Sink,
    end: usize,
    bytes: u64,
    crc: Crc32,
}

impl<'a> Output<'a> {
    /// A stream to `sink`.
    pub fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink, end: 0, bytes: 0, crc: Crc32::default() }
    }

    /// Bytes of the stream so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.end as u64
    }

    /// The sum of what was published.
    pub fn crc32(&self) -> u32 {
        self.crc.value()
    }

    /// Where to put bytes; never empty.
    pub fn room(&mut self) -> Result<&mut [u8], Failure> {
        if self.end > 0 && self.sink.room().map_err(unwritable)?.len() == self.end {
            self.finish()?;
        }
        let end = self.end;
        self.sink.room().map(|room| &mut room[end..]).map_err(unwritable)
    }

    /// `count` bytes were put into the room.
    pub fn put(&mut self, count: usize) {
        self.end += count;
    }

    /// Append bytes.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let count = copy_slice(bytes, self.room()?);
            bytes = &bytes[count..];
            self.put(count);
        }
        Ok(())
    }

    /// Append zeros.
    pub fn zeros(&mut self, mut count: u64) -> Result<(), Failure> {
        while count > 0 {
            let room = self.room()?;
            let part = room.len().min(usize::try_from(count).unwrap_or(usize::MAX));
            room[..part].fill(0);
            count -= part as u64;
            self.put(part);
        }
        Ok(())
    }

    /// Publish what waits.
    pub fn finish(&mut self) -> Result<(), Failure> {
        let end = std::mem::take(&mut self.end);
        if end > 0 {
            self.crc.update(&self.sink.room().map_err(unwritable)?[..end]);
            self.sink.publish(end).map_err(unwritable)?;
            self.bytes += end as u64;
        }
        Ok(())
    }
}

#[allow(clippy::needless_pass_by_value)] // as map_err gives it
fn unwritable(error: io::Error) -> Failure {
    Failure::guest(format!("the tar stream cannot be written: {error}"))
}
