//! A tar stream on a pipe: buffered, its bytes counted and summed (CRC-32 of zlib).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use space_protocol::Failure;

use crate::crc::Crc32;
use crate::sys;

const BUFFER: usize = 256 << 10;

/// The stream that comes in.
pub struct Input<'a> {
    pipe: BorrowedFd<'a>,
    buf: Vec<u8>,
    start: usize,
    end: usize,
    bytes: u64,
    crc: Crc32,
}

impl<'a> Input<'a> {
    /// Standard input.
    pub fn standard() -> Self {
        // SAFETY: a child's descriptor 0 is open for as long as it lives.
        Self::new(unsafe { sys::numbered(0) })
    }

    /// A stream that is read from `pipe`.
    pub fn new(pipe: BorrowedFd<'a>) -> Self {
        Self { pipe, buf: vec![0; BUFFER], start: 0, end: 0, bytes: 0, crc: Crc32::default() }
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
            let count = loop {
                match sys::read(self.pipe, &mut self.buf) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.map_err(|error| Failure::guest(format!("the tar stream cannot be read: {error}")))?,
                }
            };
            self.crc.update(&self.buf[..count]);
            self.bytes += count as u64;
            (self.start, self.end) = (0, count);
        }
        let at = self.start;
        self.start = self.end.min(at.saturating_add(most));
        Ok(&self.buf[at..self.start])
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
        while !self.some(BUFFER)?.is_empty() {}
        Ok(())
    }
}

/// The stream ended before the archive did.
pub fn cut_off() -> Failure {
    Failure::invalid("the tar stream was cut off before the archive's end")
}

/// The stream that goes out.
pub struct Output<'a> {
    pipe: BorrowedFd<'a>,
    buf: Vec<u8>,
    end: usize,
    bytes: u64,
    crc: Crc32,
}

impl<'a> Output<'a> {
    /// Standard output.
    pub fn standard() -> Self {
        // SAFETY: a child's descriptor 1 is open for as long as it lives.
        Self::new(unsafe { sys::numbered(1) })
    }

    /// A stream that is written to `pipe`.
    pub fn new(pipe: BorrowedFd<'a>) -> Self {
        Self { pipe, buf: vec![0; BUFFER], end: 0, bytes: 0, crc: Crc32::default() }
    }

    /// Bytes of the stream so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.end as u64
    }

    /// The sum of what was written out.
    pub fn crc32(&self) -> u32 {
        self.crc.value()
    }

    /// Where to put bytes; never empty.
    pub fn room(&mut self) -> Result<&mut [u8], Failure> {
        if self.end == self.buf.len() {
            self.flush()?;
        }
        Ok(&mut self.buf[self.end..])
    }

    /// `count` bytes were put into the room.
    pub fn put(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buf.len());
    }

    /// Append bytes.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
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

    fn flush(&mut self) -> Result<(), Failure> {
        self.crc.update(&self.buf[..self.end]);
        sys::write_all(self.pipe.as_fd(), &self.buf[..self.end])
            .map_err(|error| Failure::guest(format!("the tar stream cannot be written: {error}")))?;
        self.bytes += self.end as u64;
        self.end = 0;
        Ok(())
    }

    /// Write out what waits.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.flush()
    }
}
