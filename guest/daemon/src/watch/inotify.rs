//! The kernel's news of directories: events from bytes, and the calls.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::sys;

/// What is wanted of a directory. Links are not followed, and nothing but a directory is watched.
const DIRECTORY: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MODIFY
    | libc::IN_ATTRIB
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF
    | libc::IN_ONLYDIR
    | libc::IN_DONT_FOLLOW
    | libc::IN_EXCL_UNLINK;
const HEADER: usize = size_of::<libc::inotify_event>();

/// One piece of news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which watch.
    pub watch: i32,
    /// What happened, and whether to a directory.
    pub mask: u32,
    /// The same number for both halves of a move.
    pub cookie: u32,
    /// The name in the directory that is watched; empty for itself.
    pub name: Vec<u8>,
}

impl Event {
    /// Whether one of these happened.
    pub fn is(&self, mask: u32) -> bool {
        self.mask & mask != 0
    }

    /// Whether it is about a directory.
    pub fn directory(&self) -> bool {
        self.is(libc::IN_ISDIR)
    }
}

/// An inotify instance.
pub struct Inotify(OwnedFd);

impl Inotify {
    /// `inotify_init1`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain call; the descriptor is ours.
        unsafe { sys::check(libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK)).map(|fd| Self(OwnedFd::from_raw_fd(fd))) }
    }

    /// Watch a directory; its number.
    pub fn add(&self, path: &CStr) -> io::Result<i32> {
        // SAFETY: a valid descriptor and string.
        sys::check(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), DIRECTORY) })
    }

    /// Watch it no longer.
    pub fn remove(&self, watch: i32) {
        // SAFETY: a valid descriptor; a number that is none is refused.
        unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), watch) };
    }

    /// Wait until there is news, here or on the other descriptor, or for that long.
    pub fn wait(&self, most: Option<Duration>, also: Option<BorrowedFd<'_>>) {
        let poll = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // The kernel passes over what is negative.
        let mut polls = [poll(self.0.as_raw_fd()), poll(also.map_or(-1, |fd| fd.as_raw_fd()))];
        let most = most.map_or(-1, |most| most.as_millis().max(1) as i32);
        // SAFETY: as many pollfds as we say.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, most) };
    }

    /// Some of the news; none when there is none now.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        let mut buf = vec![0; 16 << 10];
        match sys::read(self.0.as_fd(), &mut buf) {
            Ok(count) => Ok(parse(&buf[..count])),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(vec![]),
            Err(error) => Err(error),
        }
    }
}

/// Whether a read would not wait: there is something, or the end.
pub fn has_news(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// What the kernel has written: each event a header, then its name, filled up with NUL bytes.
pub fn parse(mut bytes: &[u8]) -> Vec<Event> {
    let mut out = vec![];
    while let Some((head, rest)) = bytes.split_at_checked(HEADER) {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let Some((name, behind)) = rest.split_at_checked(word(12) as usize) else { break };
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        out.push(Event { watch: word(0) as i32, mask: word(4), cookie: word(8), name });
        bytes = behind;
    }
    out
}
