//! What a child says on its report pipe: any number of messages, then how it ended.
//!
//! ```text
//!   2, u32 length, a message    it goes on to the stream at once
//!   0, a message                the last one, up to the end: the child's verb is done
//!   1, a failure                up to the end: it failed
//! ```
//!
//! The daemon looks into no message; it holds at most one, and reads on when that has gone. So a host that takes nothing holds back
//! the child, in its write, and nobody else.

use std::os::fd::BorrowedFd;

use space_protocol::{Failure, Message, Pipe};

use crate::child;
use crate::sys;

/// The largest message before the last: one that fits the frames of either pipe.
pub const LARGEST: usize = 60 << 10;
const _: () = assert!(LARGEST <= Pipe::Control.max_payload());
const MESSAGE: u8 = 2;
const HEADER: usize = 5;

/// In a child: say a message that is not the last.
pub fn say(message: &Message) -> Result<(), Failure> {
    // SAFETY: a child's report is open for as long as it lives.
    say_to(unsafe { sys::numbered(child::REPORT) }, message)
}

fn say_to(pipe: BorrowedFd<'_>, message: &Message) -> Result<(), Failure> {
    let body = message.encode();
    debug_assert!(body.len() <= LARGEST);
    let head = [&[MESSAGE][..], &(body.len() as u32).to_le_bytes()].concat();
    let sent = sys::write_all(pipe, &head).and_then(|()| sys::write_all(pipe, &body));
    sent.map_err(|error| Failure::guest(format!("the daemon does not listen any more: {error}")))
}

/// What a child has said and is not passed on.
#[derive(Default)]
pub struct Report(Vec<u8>);

impl Report {
    /// More of it.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes that it holds.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Where the message at its front ends, when it is there as a whole. `None` also for one that no child of ours says.
    fn end(&self) -> Option<usize> {
        let head = self.0.get(..HEADER).filter(|head| head[0] == MESSAGE)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        (length <= LARGEST && self.0.len() >= HEADER + length).then_some(HEADER + length)
    }

    /// Whether a message can be taken.
    pub fn has_message(&self) -> bool {
        self.end().is_some()
    }

    /// The next message.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        let end = self.end()?;
        let rest = self.0.split_off(end);
        let mut message = std::mem::replace(&mut self.0, rest);
        message.drain(..HEADER);
        Some(message)
    }

    /// How it ended, when the pipe has and no message waits.
    pub fn outcome(&self) -> Option<Result<Message, Failure>> {
        child::read_report(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use space_protocol::files::{Content, Listed};
    use space_protocol::messages::{Empty, encode};

    use super::*;

    fn said(messages: &[Message]) -> Vec<u8> {
        let (read, write) = sys::pipe().unwrap();
        for message in messages {
            say_to(write.as_fd(), message).unwrap();
        }
        drop(write);
        let mut bytes = vec![0; 4096];
        let count = sys::read(read.as_fd(), &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn messages_come_out_as_they_were_said_however_they_are_cut() {
        let messages = [Message::Watching(Empty {}), Message::Content(Content { bytes: 5, crc32: 7 }), Message::Overflow(Empty {})];
        let last = Message::Listed(Listed { more: true });
        let bytes = [said(&messages), vec![0], last.encode()].concat();
        for cut in 1..bytes.len() {
            let (mut report, mut got) = (Report::default(), Vec::new());
            for part in bytes.chunks(cut) {
                report.push(part);
                while let Some(message) = report.message() {
                    got.push(Message::decode(&message).unwrap());
                }
            }
            assert_eq!(got, messages);
            assert_eq!(report.outcome(), Some(Ok(last.clone())));
        }
    }

    #[test]
    fn a_child_that_was_changed_makes_the_daemon_hold_no_more_than_one_message() {
        for head in [[2, 0, 0, 0, 0xff], [2, 1, 0, 2, 0]] {
            let mut report = Report::default();
            report.push(&head);
            report.push(&vec![7; 300_000]);
            assert!(!report.has_message());
            assert_eq!(report.outcome().unwrap().unwrap_err().code, "guest_error");
        }
    }

    #[test]
    fn a_failure_may_follow_messages() {
        let failure = Failure::new("no_capacity", "full");
        let mut report = Report::default();
        report.push(&[said(&[Message::Watching(Empty {})]), vec![1], encode(&failure)].concat());
        assert!(report.outcome().is_some_and(|outcome| outcome.is_err()));
        report.message().unwrap();
        assert_eq!(report.outcome(), Some(Err(failure)));
        assert_eq!(Report::default().outcome(), None);
    }
}
