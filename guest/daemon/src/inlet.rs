//! The way to a process's standard input: what has come and was not taken yet, and whose credit it is.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;

/// A pipe, or a terminal's master, that does not block.
pub struct Inlet {
    pipe: Option<OwnedFd>,
    ready: bool,
    waiting: VecDeque<u8>,
    /// Of what waits, the first bytes came on a stream that is gone: nobody gets credit for them.
    orphaned: usize,
    ends: bool,
    refused: bool,
}

impl Inlet {
    /// Without a pipe everything is dropped.
    pub fn new(pipe: Option<OwnedFd>) -> Self {
        Self { pipe, ready: true, waiting: VecDeque::new(), orphaned: 0, ends: false, refused: false }
    }

    /// What the kernel tells of.
    pub fn pipe(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref()
    }

    /// The kernel has news.
    pub fn mark(&mut self) {
        self.ready = true;
    }

    /// Whether bytes came that nobody reads any more (EPIPE).
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes for it. How many have gone on at once, and are to be credited; [`Inlet::pour`] tells of the others.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        if self.pipe.is_none() || self.ends {
            return bytes.len();
        }
        let sent = if self.waiting.is_empty() { self.write(bytes) } else { 0 };
        self.waiting.extend(&bytes[sent..]);
        sent
    }

    /// Move what can be moved; how many bytes are to be credited.
    pub fn pour(&mut self) -> usize {
        let mut gone = 0;
        while self.ready && !self.waiting.is_empty() && self.pipe.is_some() {
            let waiting = std::mem::take(&mut self.waiting);
            let sent = self.write(waiting.as_slices().0);
            self.waiting = waiting;
            self.waiting.drain(..sent);
            gone += sent;
        }
        if self.pipe.is_none() && !self.waiting.is_empty() {
            gone += std::mem::take(&mut self.waiting).len();
        }
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
            if self.ends {
                self.pipe = None;
            }
        }
        let unowned = gone.min(self.orphaned);
        self.orphaned -= unowned;
        gone - unowned
    }

    /// No more bytes will come.
    pub fn end(&mut self) {
        self.ends = true;
    }

    /// The stream is gone that everything came on.
    pub fn disown(&mut self) {
        self.orphaned = self.waiting.len();
    }

    /// Write as far as it is taken; a reader that went away takes everything.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while let Some(pipe) = self.pipe.as_ref().filter(|_| self.ready && sent < bytes.len()) {
            match sys::write(pipe.as_fd(), &bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ready = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    (self.pipe, self.refused) = (None, true);
                    return bytes.len();
                }
            }
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inlet() -> (OwnedFd, Inlet) {
        let (read, write) = sys::pipe().unwrap();
        sys::set_nonblocking(write.as_fd()).unwrap();
        (read, Inlet::new(Some(write)))
    }

    fn take(from: &OwnedFd, count: usize) {
        let mut buf = vec![0; count];
        assert_eq!(sys::read(from.as_fd(), &mut buf).unwrap(), count);
    }

    #[test]
    fn what_came_on_a_stream_that_is_gone_goes_on_and_is_credited_to_nobody() {
        let (read, mut inlet) = inlet();
        assert_eq!(inlet.feed(&vec![1; 70_000]), 65_536);
        inlet.disown();
        assert_eq!(inlet.feed(&[2; 10_000]), 0);
        assert_eq!(inlet.waiting(), 14_464);
        inlet.end();
        take(&read, 65_536);
        inlet.mark();
        assert_eq!(inlet.pour(), 10_000, "and not the 4,464 of the first stream");
        take(&read, 14_464);
        assert_eq!(sys::read(read.as_fd(), &mut [0]).unwrap(), 0, "the end comes behind all of it");
    }

    #[test]
    fn a_reader_that_closed_takes_everything() {
        let (read, mut inlet) = inlet();
        assert_eq!(inlet.feed(&vec![1; 70_000]), 65_536);
        drop(read);
        inlet.mark();
        assert!(!inlet.is_refused());
        assert_eq!(inlet.pour(), 4464);
        assert!(inlet.is_refused());
        assert_eq!(inlet.feed(&[1; 5]), 5);
    }
}
