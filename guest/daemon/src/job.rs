//! A stream that a child works for: its pipes on one side, the stream's frames and credit on the other.
//!
//! ```text
//!   starting --report ends--> running --leader ends--> draining --pipes and cgroup empty--> done (exit message, CLOSE)
//!       \--report has a failure--> failed (RESET)                      (a child that is no program: its report is the message)
//! ```
//!
//! When the leader has ended, what it left behind in its cgroup is killed: whatever should outlive a command needs an interface
//! of its own, and a stream must not hang on a pipe that some daemon holds open.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use space_protocol::messages::{Exited, Started, Variable};
use space_protocol::{Failure, Message, Mux};

use crate::cgroup::{Leaf, Workloads};
use crate::child::{self, Child};
use crate::sys::{self, Epoll};

/// The parts of a job that the kernel has news of; numbers are part of epoll tokens.
pub const SLOTS: u64 = 8;
const REPORT: u64 = 0;
const INLET: u64 = 1;
const OUTLET: u64 = 2;
const LEAF: u64 = 4;
const LARGEST_REPORT: usize = 64 << 10;

/// What the child is.
pub enum Purpose {
    /// A program of the caller's.
    Program,
    /// A verb that is done in a child of the daemon.
    Verb,
    /// The verb `configure`, and the variables that count once it has succeeded.
    Configure(Vec<Variable>),
}

/// What became of a job.
pub enum Outcome {
    /// Not yet known.
    Pending,
    /// Done; the last message.
    Done(Message),
    /// Failed.
    Failed(Failure),
}

struct Outlet {
    pipe: Option<OwnedFd>,
    ready: bool,
    bytes: u64,
}

/// A child and its stream.
#[allow(clippy::struct_excessive_bools)] // each is news of one descriptor, or a fact that cannot be undone
pub struct Job {
    stream: u32,
    /// What the child is.
    pub purpose: Purpose,
    pid: i32,
    leaf: Leaf,
    leaf_news: bool,
    empty: bool,
    report: Option<OwnedFd>,
    report_ready: bool,
    said: Vec<u8>,
    inlet: Option<OwnedFd>,
    inlet_ready: bool,
    waiting: VecDeque<u8>,
    input_ends: bool,
    outlets: [Outlet; 2],
    began: Duration,
    deadline: Option<Duration>,
    timed_out: bool,
    ended: Option<(i32, Duration)>,
}

impl Job {
    /// Take charge of a child. token: of its slot 0; the others follow. now: monotonic.
    pub fn new(
        stream: u32,
        purpose: Purpose,
        child: Child,
        epoll: &Epoll,
        token: u64,
        now: Duration,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        epoll.add(child.report.as_fd(), libc::EPOLLIN, token + REPORT)?;
        epoll.add(child.leaf.events(), libc::EPOLLPRI, token + LEAF)?;
        if let Some(pipe) = &child.inlet {
            epoll.add(pipe.as_fd(), libc::EPOLLOUT, token + INLET)?;
        }
        for (lane, pipe) in (0..).zip(&child.outlets) {
            if let Some(pipe) = pipe {
                epoll.add(pipe.as_fd(), libc::EPOLLIN, token + OUTLET + lane)?;
            }
        }
        Ok(Self {
            stream,
            purpose,
            pid: child.pid,
            leaf: child.leaf,
            leaf_news: false,
            empty: false,
            report: Some(child.report),
            report_ready: false,
            said: Vec::new(),
            inlet: child.inlet,
            inlet_ready: true,
            waiting: VecDeque::new(),
            input_ends: false,
            outlets: child.outlets.map(|pipe| Outlet { pipe, ready: false, bytes: 0 }),
            began: now,
            deadline: timeout.and_then(|left| now.checked_add(left)),
            timed_out: false,
            ended: None,
        })
    }

    /// The stream it works for.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// When its time is up, unless it has ended or was killed for that already.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline.filter(|_| !self.timed_out && self.ended.is_none())
    }

    /// The kernel has news of one of its parts.
    pub fn mark(&mut self, slot: u64) {
        match slot {
            REPORT => self.report_ready = true,
            INLET => self.inlet_ready = true,
            LEAF => self.leaf_news = true,
            _ => {
                if let Some(outlet) = self.outlets.get_mut((slot - OUTLET) as usize) {
                    outlet.ready = true;
                }
            }
        }
    }

    /// Its time is up.
    pub fn time_out(&mut self) {
        self.timed_out = true;
        self.leaf.kill();
    }

    /// The leader was reaped.
    pub fn leader_ended(&mut self, status: i32, now: Duration) {
        self.ended = Some((status, now));
        self.leaf_news = true;
        if !self.leaf.is_empty() {
            self.leaf.kill();
        }
    }

    /// Bytes for its standard input.
    pub fn feed(&mut self, mux: &mut Mux, mut bytes: &[u8]) {
        if self.inlet.is_none() {
            mux.consumed(self.stream, bytes.len());
            return;
        }
        if self.waiting.is_empty() {
            let sent = self.write(bytes);
            mux.consumed(self.stream, sent);
            bytes = &bytes[sent..];
        }
        self.waiting.extend(bytes);
    }

    /// No more bytes will come for its standard input.
    pub fn end_input(&mut self) {
        self.input_ends = true;
    }

    /// Move what can be moved, and say what became of the job.
    pub fn pump(&mut self, mux: &mut Mux) -> Outcome {
        if self.report.is_some() && !self.hear(mux) {
            return Outcome::Pending;
        }
        self.pour(mux);
        if std::mem::take(&mut self.leaf_news) && self.ended.is_some() && !self.empty && self.leaf.is_empty() {
            // Whatever was written is in the pipes by now, even if somebody outside of the cgroup holds them open.
            self.empty = true;
            self.outlets.iter_mut().for_each(|outlet| outlet.ready = true);
        }
        for lane in 0..2 {
            self.drain(mux, lane);
        }
        let drained = self.outlets.iter().all(|outlet| outlet.pipe.is_none());
        match self.ended {
            Some((status, at)) if drained && self.empty => self.outcome(status, at),
            _ => Outcome::Pending,
        }
    }

    /// End it, whatever it does.
    pub fn abandon(self, workloads: &mut Workloads) {
        workloads.bury(self.leaf);
    }

    /// Read the report; whether bytes may flow: a program's must have ended, a verb's ends with the verb.
    fn hear(&mut self, mux: &mut Mux) -> bool {
        let mut buf = [0; 4096];
        while let Some(report) = self.report.as_ref().filter(|_| self.report_ready) {
            match sys::read(report.as_fd(), &mut buf) {
                Ok(count @ 1..) if self.said.len() < LARGEST_REPORT => self.said.extend(&buf[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.report_ready = false,
                _ => self.report = None,
            }
        }
        if !matches!(self.purpose, Purpose::Program) {
            return true;
        }
        if self.report.is_none() && self.said.is_empty() {
            mux.send(self.stream, &Message::Started(Started { pid: self.pid as u32 }));
        }
        self.report.is_none()
    }

    fn outcome(&mut self, status: i32, at: Duration) -> Outcome {
        if self.report.is_some() {
            return Outcome::Pending;
        }
        match (&self.purpose, child::read_report(&self.said)) {
            (_, Some(Err(failure))) => Outcome::Failed(failure),
            (Purpose::Program, _) => Outcome::Done(Message::Exited(self.exited(status, at))),
            (_, Some(Ok(message))) => Outcome::Done(message),
            (_, None) if self.leaf.was_out_of_memory() => {
                Outcome::Failed(Failure::guest("the sandbox ran out of memory, and its kernel killed the transfer"))
            }
            (_, None) => Outcome::Failed(Failure::guest("the process that did this in the sandbox was killed")),
        }
    }

    fn exited(&self, status: i32, at: Duration) -> Exited {
        let signalled = libc::WIFSIGNALED(status);
        Exited {
            code: (!signalled).then(|| libc::WEXITSTATUS(status) as u8),
            signal: signalled.then(|| libc::WTERMSIG(status) as u8),
            oom_killed: self.leaf.was_out_of_memory(),
            timed_out: self.timed_out,
            stdout_bytes: self.outlets[0].bytes,
            stderr_bytes: self.outlets[1].bytes,
            wall_ms: at.saturating_sub(self.began).as_millis() as u64,
        }
    }

    /// Bytes from the stream to the pipe.
    fn pour(&mut self, mux: &mut Mux) {
        while self.inlet_ready && !self.waiting.is_empty() && self.inlet.is_some() {
            let waiting = std::mem::take(&mut self.waiting);
            let sent = self.write(waiting.as_slices().0);
            self.waiting = waiting;
            self.waiting.drain(..sent);
            mux.consumed(self.stream, sent);
        }
        if self.inlet.is_none() && !self.waiting.is_empty() {
            mux.consumed(self.stream, self.waiting.len());
            self.waiting = VecDeque::new();
        }
        if self.input_ends && self.waiting.is_empty() {
            self.inlet = None;
        }
    }

    /// Write to the pipe as far as it takes; a reader that went away takes everything.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while let Some(pipe) = self.inlet.as_ref().filter(|_| self.inlet_ready && sent < bytes.len()) {
            match sys::write(pipe.as_fd(), &bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.inlet_ready = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.inlet = None;
                    return bytes.len();
                }
            }
        }
        sent
    }

    /// Bytes from a pipe to the stream, as far as there is credit.
    fn drain(&mut self, mux: &mut Mux, lane: usize) {
        let outlet = &mut self.outlets[lane];
        while let Some(pipe) = outlet.pipe.as_ref().filter(|_| outlet.ready) {
            let slot = mux.data_slot(self.stream);
            if slot.is_empty() {
                return;
            }
            match sys::read(pipe.as_fd(), slot) {
                Ok(0) => outlet.pipe = None,
                Ok(count) => {
                    mux.data_commit(self.stream, lane as u8, count);
                    outlet.bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outlet.ready = false;
                    if self.empty {
                        outlet.pipe = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => outlet.pipe = None,
            }
        }
    }
}
