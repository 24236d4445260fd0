//! Bytes of one pipe, in one direction, to frames.
//!
//! ```text
//!   searching --greeting found--> reading --malformed--> searching   (acceptor: hunt for the next HELLO)
//!                                         --malformed--> dead        (opener: the peer is hostile or broken)
//! ```
//!
//! The caller reads into [`Decoder::room`], says how much with [`Decoder::filled`], and takes items until there is none.
//! A header is judged before its payload is waited for, so the buffer never grows beyond one frame and one read.

use crate::frame::{GREETING, Greeting, HEADER, Header, Kind, Pipe, Reject, TRAILER, seq_after, u32_at};

/// Bytes that [`Decoder::room`] offers at least: what one read of a virtio port returns.
const ROOM: usize = 4096;

/// Which end of the link reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Waits for HELLO.
    Acceptor,
    /// Has sent HELLO with this nonce and waits for its answer.
    Opener([u8; 16]),
}

/// What bytes turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A HELLO (to an acceptor) or `HELLO_ACK` (to an opener).
    Greeting(Greeting),
    /// Any other frame.
    Frame(Header, &'a [u8]),
    /// Malformed bytes: an acceptor hunts on; for an opener the session is over.
    Lost(Reject),
}

enum State {
    Searching,
    Reading(u32),
    Dead,
}

enum Step {
    More,
    Item { end: usize, header: Header },
    Lost { end: usize, why: Reject },
}

/// The decoder of one pipe.
pub struct Decoder {
    pipe: Pipe,
    role: Role,
    state: State,
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Decoder {
    /// A decoder that has seen nothing.
    pub const fn new(pipe: Pipe, role: Role) -> Self {
        Self { pipe, role, state: State::Searching, buf: Vec::new(), start: 0, end: 0 }
    }

    /// Where to read to; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        // What is left behind a frame is little: moved now, and not when the next frame is nearly whole and the buffer's end is reached.
        let left = self.end - self.start;
        if self.start > 0 && (left <= ROOM || self.buf.len() < self.end + ROOM) {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, left);
        }
        if self.buf.len() < self.end + ROOM {
            let whole = HEADER + self.pipe.max_payload() + TRAILER + ROOM;
            let wanted = if self.end + ROOM > 4 * ROOM { whole } else { 4 * ROOM };
            if self.buf.len() < self.end + ROOM {
                self.buf.resize(wanted.max(self.end + ROOM), 0);
            }
        }
        &mut self.buf[self.end..]
    }

    /// `count` bytes were read into [`Decoder::room`].
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buf.len());
    }

    /// Let go of a buffer that holds nothing.
    pub fn shrink(&mut self) {
        if self.start == self.end {
            (self.start, self.end, self.buf) = (0, 0, Vec::new());
        }
    }

    /// The next item, or `None` when more bytes are needed.
    pub fn next_item(&mut self) -> Option<Item<'_>> {
        loop {
            match self.state {
                State::Dead => {
                    self.start = self.end;
                    return None;
                }
                State::Searching => {
                    if !self.search() {
                        return None;
                    }
                }
                State::Reading(expected) => match self.step(expected) {
                    Step::More => return None,
                    Step::Lost { end, why } => {
                        self.start = end;
                        self.state = if self.role == Role::Acceptor { State::Searching } else { State::Dead };
                        return Some(Item::Lost(why));
                    }
                    Step::Item { end, header } => {
                        let at = self.start + HEADER;
                        self.start = end;
                        let payload = &self.buf[at..at + header.length];
                        if !matches!(header.kind, Kind::Hello | Kind::HelloAck) {
                            self.state = State::Reading(seq_after(expected));
                            return Some(Item::Frame(header, payload));
                        }
                        // A late answer to a repeated HELLO leaves an opener's count as it is.
                        if header.kind == Kind::Hello || expected == 1 {
                            self.state = State::Reading(2);
                        }
                        return Greeting::parse(payload, header.kind, self.pipe).ok().map(Item::Greeting);
                    }
                },
            }
        }
    }

    /// Judge the frame at `start`.
    fn step(&self, expected: u32) -> Step {
        let bytes = &self.buf[self.start..self.end];
        let Some(head) = bytes.first_chunk::<HEADER>() else { return Step::More };
        let header = match Header::parse(head, self.pipe, self.role == Role::Acceptor) {
            Ok(header) => header,
            Err(why) => return Step::Lost { end: self.start + 1, why },
        };
        let greets = matches!(header.kind, Kind::Hello | Kind::HelloAck);
        if header.seq != if greets { 1 } else { expected } {
            return Step::Lost { end: self.start + 1, why: Reject::Seq };
        }
        let whole = HEADER + header.length + TRAILER;
        if bytes.len() < whole {
            return Step::More;
        }
        let end = self.start + whole;
        if u32_at(bytes, whole - TRAILER) != header.seq {
            return Step::Lost { end, why: Reject::Trailer };
        }
        if greets {
            match (Greeting::parse(&bytes[HEADER..HEADER + GREETING], header.kind, self.pipe), self.role) {
                (Err(why), _) => return Step::Lost { end, why },
                (Ok(greeting), Role::Opener(nonce)) if greeting.nonce != nonce => return Step::Lost { end, why: Reject::Nonce },
                _ => {}
            }
        }
        Step::Item { end, header }
    }

    /// Discard up to the greeting that is waited for; whether it is there.
    fn search(&mut self) -> bool {
        let (mark, length) = self.mark();
        let bytes = &self.buf[self.start..self.end];
        // Byte by byte first: runs of zeros, which begin no mark, are what is mostly passed over.
        let mut at = 0;
        while let Some(next) = bytes[at..].iter().position(|byte| *byte == mark[0]) {
            at += next;
            if bytes[at..].starts_with(&mark[..length]) {
                self.start += at;
                self.state = State::Reading(1);
                return true;
            }
            at += 1;
        }
        self.start = self.end - longest_start(bytes, &mark[..length]);
        false
    }

    /// What a search looks for: header and magic, for an opener the nonce as well.
    fn mark(&self) -> ([u8; HEADER + 32], usize) {
        let mut mark = [0; HEADER + 32];
        let kind = if self.role == Role::Acceptor { Kind::Hello } else { Kind::HelloAck };
        mark[..HEADER].copy_from_slice(&Header { length: GREETING, kind, flags: 0, stream: 0, seq: 1 }.bytes());
        mark[HEADER..HEADER + 16].copy_from_slice(&Greeting::magic(kind));
        match self.role {
            Role::Acceptor => (mark, HEADER + 16),
            Role::Opener(nonce) => {
                mark[HEADER + 16..].copy_from_slice(&nonce);
                (mark, HEADER + 32)
            }
        }
    }
}

/// How many of the last bytes may be the beginning of `mark`.
fn longest_start(bytes: &[u8], mark: &[u8]) -> usize {
    (1..mark.len().min(bytes.len() + 1)).rev().find(|n| bytes.ends_with(&mark[..*n])).unwrap_or(0)
}
