//! A program that the host has started: its pipes on one side, a stream's frames and credit on the other.
//!
//! ```text
//!   starting --report ends--> running --leader ends--> draining --pipes and cgroup empty--> over (exit message, CLOSE)
//!       \--report has a failure--> failed (RESET)
//! ```
//!
//! When the leader has ended, what it left behind in its cgroup is killed, unless it was told to stay (`launch`). A kept process has the same states without a stream: nothing
//! is read then, so that its output waits in its pipes, and an exit waits to be told to whoever attaches.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use space_protocol::messages::{Empty, Exec, Kept, Started};
use space_protocol::{Failure, Message, Mux};

use crate::cgroup::Workloads;
use crate::child::Child;
use crate::inlet::Inlet;
use crate::job::Outcome;
use crate::life::Life;
use crate::retain::Retained;
use crate::sys::{self, Epoll};
use crate::terminal;

const REPORT: u64 = 0;
const INLET: u64 = 1;
const OUTLET: u64 = 2;
const LEAF: u64 = 4;
/// Bytes for standard input that may wait: four windows, as each new stream begins with one.
const MOST_WAITING: usize = 1 << 20;

struct Outlet {
    pipe: Option<OwnedFd>,
    /// Whether it is a terminal's master.
    terminal: bool,
    ready: bool,
    bytes: u64,
}

/// What was said on the stream that it is attached to.
#[derive(Default)]
struct Said {
    started: bool,
    exited: bool,
    refused: bool,
}

/// A program and, unless it is kept and nobody is attached, its stream.
pub struct Process {
    /// The kernel's side.
    pub life: Life,
    stream: Option<u32>,
    said: Said,
    stalled: bool,
    keep: Option<Keep>,
    inlet: Inlet,
    outlets: [Outlet; 2],
}

struct Keep {
    name: String,
    retained: Retained,
}

impl Process {
    /// Take charge of a child that the request has started on that stream. now: monotonic.
    pub fn new(stream: u32, request: &Exec, child: Child, now: Duration) -> Self {
        let terminal = request.pty.is_some();
        Self {
            life: Life::new(child.pid, child.leaf, child.report, now, request.timeout_ms.map(Duration::from_millis)),
            stream: Some(stream),
            said: Said::default(),
            stalled: false,
            keep: request.keep.clone().map(|name| Keep { name, retained: Retained::default() }),
            inlet: Inlet::new(child.inlet),
            outlets: child.outlets.map(|pipe| Outlet { pipe, terminal, ready: false, bytes: 0 }),
        }
    }

    /// Have the kernel's news of it. token: of its slot 0; the others follow.
    pub fn watch(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        if let Some(report) = self.life.report() {
            epoll.add(report.as_fd(), libc::EPOLLIN, token + REPORT)?;
        }
        if let Some(leaf) = self.life.leaf() {
            epoll.add(leaf.events(), libc::EPOLLPRI, token + LEAF)?;
        }
        if let Some(pipe) = self.inlet.pipe() {
            epoll.add(pipe.as_fd(), libc::EPOLLOUT, token + INLET)?;
        }
        for (lane, outlet) in (0..).zip(&self.outlets) {
            if let Some(pipe) = &outlet.pipe {
                epoll.add(pipe.as_fd(), libc::EPOLLIN, token + OUTLET + lane)?;
            }
        }
        Ok(())
    }

    /// The kernel has news of one of its parts.
    pub fn mark(&mut self, slot: u64) {
        match slot {
            REPORT => self.life.mark_report(),
            INLET => self.inlet.mark(),
            LEAF => self.life.mark_leaf(),
            _ => {
                if let Some(outlet) = self.outlets.get_mut((slot - OUTLET) as usize) {
                    outlet.ready = true;
                }
            }
        }
    }

    /// The stream that it is attached to.
    pub fn stream(&self) -> Option<u32> {
        self.stream
    }

    /// Its name, when it is kept.
    pub fn name(&self) -> Option<&str> {
        self.keep.as_ref().map(|keep| keep.name.as_str())
    }

    /// Whether its exit was told on this stream: the host's CLOSE then means that all is stored.
    pub fn was_told(&self) -> bool {
        self.said.exited
    }

    /// As `processes` tells it.
    pub fn kept(&self) -> Option<Kept> {
        self.name().map(|name| Kept { process: name.to_owned(), pid: self.life.pid as u32, ended: self.life.is_over() })
    }

    /// Whether a pump would send something more that waited for the pipe, and not for credit.
    pub fn wants_room(&self, mux: &Mux) -> bool {
        self.stream.filter(|_| self.stalled).is_some_and(|stream| mux.has_credit(stream))
    }

    /// Go on to another stream, whose host holds this much of its output.
    pub fn attach(&mut self, stream: u32, held: [u64; 2]) -> Result<(), Failure> {
        let keep = self.keep.as_mut().ok_or_else(|| Failure::new("not_found", "the process is not kept"))?;
        keep.retained.attach(held)?;
        self.detach();
        self.stream = Some(stream);
        Ok(())
    }

    /// Its stream is gone.
    pub fn detach(&mut self) {
        (self.stream, self.said, self.stalled) = (None, Said::default(), false);
        self.inlet.disown();
    }

    /// The host has returned credit.
    pub fn credited(&mut self, mux: &Mux) {
        if let (Some(keep), Some(stream)) = (&mut self.keep, self.stream) {
            keep.retained.credited(mux.outstanding(stream));
        }
    }

    /// Bytes for its standard input.
    pub fn feed(&mut self, mux: &mut Mux, bytes: &[u8]) -> Result<(), Failure> {
        if self.inlet.waiting() + bytes.len() > MOST_WAITING {
            return Err(Failure::new("no_capacity", format!("{MOST_WAITING} bytes wait to be read by the process already")));
        }
        let gone = self.inlet.feed(bytes);
        self.took(mux, gone);
        Ok(())
    }

    /// No more bytes will come for its standard input. A terminal's cannot end: its reader is told so by a character, behind what waits.
    /// How many bytes that is of what the host is to get credit for.
    pub fn end_input(&mut self) -> usize {
        if let Some(character) = self.master().map(terminal::end_of_input) {
            return 1 - self.inlet.feed(&[character]);
        }
        self.inlet.end();
        0
    }

    /// What the host wants besides. How many bytes of the message are credited later, with what waits.
    pub fn obey(&mut self, message: &Message) -> Result<usize, Failure> {
        match message {
            Message::Eof(_) => return Ok(self.end_input()),
            Message::Signal(it) if (1..=64).contains(&it.signal) => self.life.signal(it.signal.into(), it.all),
            Message::Signal(it) => return Err(Failure::invalid(format!("there is no signal {}", it.signal))),
            Message::Resize(size) => match self.master().map(|master| terminal::resize(master, size)) {
                Some(Err(error)) => return Err(Failure::guest(format!("cannot resize the terminal: {error}"))),
                Some(Ok(())) => {}
                None if self.outlets[0].terminal => {} // it has ended
                None => return Err(Failure::invalid("the process has no terminal")),
            },
            _ => return Err(Failure::invalid("a process takes the messages eof, resize and signal only")),
        }
        Ok(0)
    }

    fn master(&self) -> Option<BorrowedFd<'_>> {
        self.outlets[0].pipe.as_ref().filter(|_| self.outlets[0].terminal).map(AsFd::as_fd)
    }

    /// Move what can be moved, and say what became of it. An exit is told once on each stream.
    pub fn pump(&mut self, mux: &mut Mux) -> Outcome {
        if !self.life.hear() {
            return Outcome::Pending;
        }
        if self.life.settle() {
            self.outlets.iter_mut().for_each(|outlet| outlet.ready = true);
        }
        if let Some(failure) = self.life.failure() {
            return if self.life.is_over() { Outcome::Failed(failure) } else { Outcome::Pending };
        }
        let gone = self.inlet.pour();
        self.took(mux, gone);
        let Some(stream) = self.stream else { return Outcome::Pending };
        if !std::mem::replace(&mut self.said.started, true) {
            mux.send(stream, &Message::Started(Started { pid: self.life.pid as u32 }));
        }
        if self.keep.is_some()
            && self.inlet.is_refused()
            && !self.outlets[0].terminal
            && !self.said.exited
            && !std::mem::replace(&mut self.said.refused, true)
        {
            mux.send(stream, &Message::StdinClosed(Empty {}));
        }
        self.stalled = !(self.resend(mux, stream) && self.drain(mux, stream, 0) & self.drain(mux, stream, 1));
        let drained = self.outlets.iter().all(|outlet| outlet.pipe.is_none());
        match self.life.exited([self.outlets[0].bytes, self.outlets[1].bytes]) {
            Some(exited) if drained && !self.stalled && !self.said.exited => {
                self.said.exited = true;
                Outcome::Done(Message::Exited(exited))
            }
            _ => Outcome::Pending,
        }
    }

    /// End it, whatever it does. What is to be killed besides its cgroup: its leader's session.
    pub fn abandon(mut self, workloads: &mut Workloads) -> Option<i32> {
        let session = self.life.session();
        self.life.bury(workloads);
        session
    }

    fn took(&self, mux: &mut Mux, count: usize) {
        if let Some(stream) = self.stream.filter(|_| count > 0) {
            mux.consumed(stream, count);
        }
    }

    /// What the host has not, before anything fresh. Whether nothing is left of it.
    fn resend(&mut self, mux: &mut Mux, stream: u32) -> bool {
        let Some(keep) = &mut self.keep else { return true };
        while keep.retained.is_behind() {
            let slot = mux.data_slot(stream);
            if slot.is_empty() {
                return false;
            }
            let (lane, count) = keep.retained.resend(slot);
            mux.data_commit(stream, lane as u8, count);
        }
        true
    }

    /// Bytes from the process to the stream, as far as there is credit. Whether all that is there was moved.
    fn drain(&mut self, mux: &mut Mux, stream: u32, lane: usize) -> bool {
        while self.outlets[lane].ready && self.outlets[lane].pipe.is_some() {
            let slot = mux.data_slot(stream);
            if slot.is_empty() {
                return false;
            }
            let outlet = &mut self.outlets[lane];
            match outlet.read(slot) {
                News::Bytes(count) => {
                    outlet.bytes += count as u64;
                    if let Some(keep) = &mut self.keep {
                        keep.retained.push(lane, &slot[..count]);
                    }
                    mux.data_commit(stream, lane as u8, count);
                }
                News::None => {
                    outlet.ready = false;
                    if self.life.is_over() && !self.life.stays() {
                        outlet.pipe = None;
                    }
                }
                News::End => outlet.pipe = None,
            }
        }
        true
    }
}

enum News {
    Bytes(usize),
    None,
    End,
}

impl Outlet {
    fn read(&self, buf: &mut [u8]) -> News {
        let Some(pipe) = &self.pipe else { return News::End };
        loop {
            match sys::read(pipe.as_fd(), buf) {
                Ok(count @ 1..) => return News::Bytes(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return News::None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nobody has the terminal open just now, but a process may open it again.
                Err(error) if self.terminal && error.raw_os_error() == Some(libc::EIO) => return News::None,
                Ok(0) | Err(_) => return News::End,
            }
        }
    }
}
