//! A stream that a child works for: its pipes on one side, the stream's frames and credit on the other.
//!
//! ```text
//!   starting --report ends--> running --leader ends--> draining --pipes and cgroup empty--> done (exit message, CLOSE)
//!       \--report has a failure--> failed (RESET)                      (a child that is no program: its report is the message)
//! ```
//!
//! When the leader has ended, what it left behind in its cgroup is killed: whatever should outlive a command needs an interface
//! of its own, and a stream must not hang on a pipe that some daemon holds open.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use space_protocol::messages::Variable;
use space_protocol::{Failure, Message, Mux};

use crate::cgroup::{Leaf, Workloads};
use crate::child::Child;
use crate::report::{self, Report};
use crate::ring::Ring;
use crate::sys::{self, Epoll};

/// The parts of a job that the kernel has news of; numbers are part of epoll tokens.
pub const SLOTS: u64 = 8;
const REPORT: u64 = 0;
const OUTLET: u64 = 2;
const LEAF: u64 = 4;
/// A message, and what was read behind it.
const LARGEST_REPORT: usize = report::LARGEST + (64 << 10);
/// No stream has this number.
const NOBODY: u32 = 0;
/// How long a child may take to clear up after itself.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of a message of the host's.
const LARGEST_ASIDE: usize = 4096;

/// What the child is.
pub enum Purpose {
    /// A verb that is done in a child of the daemon.
    Verb,
    /// The verbs `configure` and `claim`: what counts once it has succeeded.
    Configure(Given),
    /// The verb `grow`: the size of the disk that the root file system fills then.
    Grow(u64),
    /// The verb `imprint`.
    Imprint,
}

/// What `configure` and `claim` give.
#[derive(Default)]
pub struct Given {
    /// Variables of every process.
    pub env: Vec<Variable>,
    /// Which life of which sandbox.
    pub life: u64,
    /// The size of the disk before it, which the root file system fills at least: the disk may be growing meanwhile.
    pub filled: Option<u64>,
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

/// How a child's bytes travel.
pub enum Way {
    /// Through its pipes.
    Pipes,
    /// The same, and it reads what the host sends, which is little.
    Asked,
    /// To it through a ring; the pipes are bells.
    Into(Ring),
    /// From it through a ring; the pipes are bells.
    OutOf(Ring),
}

struct Outlet {
    pipe: Option<OwnedFd>,
    ready: bool,
}

/// A child and its stream.
#[allow(clippy::struct_excessive_bools)] // each is news of one descriptor, or a fact that cannot be undone
pub struct Job {
    stream: u32,
    /// What the child is.
    pub purpose: Purpose,
    way: Way,
    pid: i32,
    leaf: Leaf,
    leaf_news: bool,
    empty: bool,
    report: Option<OwnedFd>,
    report_ready: bool,
    said: Report,
    /// No bytes of the child's go on before its first message has.
    speaks_first: bool,
    /// Where messages of the host go; the child reads them when its input has ended.
    aside: Option<OwnedFd>,
    tidy: bool,
    inlet: Option<OwnedFd>,
    /// What the child had taken out of its ring when it was last looked.
    taken: u64,
    /// The child waits for what its ring holds now.
    bell: bool,
    input_ends: bool,
    outlets: [Outlet; 2],
    deadline: Option<Duration>,
    timed_out: bool,
    ended: bool,
}

impl Job {
    /// Take charge of a child.
    pub fn new(stream: u32, purpose: Purpose, way: Way, child: Child) -> Self {
        Self {
            stream,
            purpose,
            way,
            pid: child.pid,
            leaf: child.leaf,
            leaf_news: false,
            empty: false,
            report: Some(child.report),
            report_ready: false,
            said: Report::default(),
            speaks_first: false,
            aside: None,
            tidy: false,
            inlet: child.inlet,
            taken: 0,
            bell: false,
            input_ends: false,
            outlets: child.outlets.map(|pipe| Outlet { pipe, ready: false }),
            deadline: None,
            timed_out: false,
            ended: false,
        }
    }

    /// Have the kernel's news of it. token: of its slot 0; the others follow.
    pub fn watch(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        if let Some(report) = &self.report {
            epoll.add(report.as_fd(), libc::EPOLLIN, token + REPORT)?;
        }
        epoll.add(self.leaf.events(), libc::EPOLLPRI, token + LEAF)?;
        for (lane, outlet) in (0..).zip(&self.outlets) {
            if let Some(pipe) = &outlet.pipe {
                epoll.add(pipe.as_fd(), libc::EPOLLIN, token + OUTLET + lane)?;
            }
        }
        Ok(())
    }

    /// Let the child's first message go before its first bytes.
    pub fn speak_first(&mut self) {
        self.speaks_first = true;
    }

    /// Let a message of the host go into this pipe, which is empty. Such a child makes things that it takes back when its input ends
    /// without one, so that it is given the time for that.
    pub fn take_messages(&mut self, pipe: OwnedFd) {
        (self.aside, self.tidy) = (Some(pipe), true);
    }

    /// Nobody waits for it any more: end its input, and let a child that is tidy end by itself. Whether it goes on.
    pub fn let_go(&mut self, now: Duration) -> bool {
        let goes_on = self.tidy && !self.ended;
        if goes_on {
            (self.stream, self.aside, self.inlet) = (NOBODY, None, None);
            self.deadline = Some(now + GRACE);
        }
        goes_on
    }

    /// Its cgroup and its leader.
    pub fn members(&self) -> (&CStr, i32) {
        (self.leaf.name(), self.pid)
    }

    /// The stream it works for.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// Whether the end of that process is the end of its leader. Once that was reaped, the number may be another's.
    pub fn awaits(&self, pid: i32) -> bool {
        !self.ended && self.pid == pid
    }

    /// When its time is up, unless it has ended or was killed for that already.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline.filter(|_| !self.timed_out && !self.ended)
    }

    /// The kernel has news of one of its parts.
    pub fn mark(&mut self, slot: u64) {
        match slot {
            REPORT => self.report_ready = true,
            LEAF => self.leaf_news = true,
            _ => {
                if let Some(outlet) = self.outlets.get_mut((slot - OUTLET) as usize) {
                    outlet.ready = true;
                }
            }
        }
    }

    /// Its time is up. What is to be killed besides its cgroup, as guest root may have left that: its leader's session.
    pub fn time_out(&mut self) -> Option<i32> {
        self.timed_out = true;
        self.leaf.kill();
        self.session()
    }

    /// The session of a leader that was not reaped yet.
    fn session(&self) -> Option<i32> {
        (!self.ended).then_some(self.pid)
    }

    /// The leader was reaped.
    pub fn leader_ended(&mut self) {
        self.ended = true;
        self.leaf_news = true;
        if !self.leaf.is_empty() {
            self.leaf.kill();
        }
    }

    /// Bytes for it, which come through a ring; any other child takes none, and they are dropped.
    pub fn feed(&mut self, mux: &mut Mux, bytes: &[u8]) {
        match (&self.way, &self.inlet) {
            // There is place for all that the stream's credit allows; it returns as the child takes the bytes.
            (Way::Into(ring), Some(_)) => match ring.write(bytes) {
                // Rung when all that has come is there: the child would run at once, and again for each of the frames behind.
                Ok((count, bell)) if count == bytes.len() => self.bell |= bell,
                _ => self.leaf.kill(),
            },
            (Way::Asked, Some(pipe)) => {
                // A host that asks more often than a pipe holds is not answered every time.
                let _ = sys::write(pipe.as_fd(), bytes);
                mux.consumed(self.stream, bytes.len());
            }
            _ => mux.consumed(self.stream, bytes.len()),
        }
    }

    /// A message of the host's. Why not, when it is none that the child waits for: they are few and small.
    pub fn tell(&mut self, message: &[u8]) -> Result<(), Failure> {
        let aside = self.aside.take().filter(|_| message.len() <= LARGEST_ASIDE).ok_or_else(|| unwanted(self.stream))?;
        // An empty pipe takes that much. A child that does not read any more has said why, or was killed.
        let _ = sys::write(aside.as_fd(), message);
        Ok(())
    }

    /// No more bytes will come for its standard input.
    pub fn end_input(&mut self) {
        self.aside = None;
        // The pipe to a child that sends through a ring is its bell, and needed to the end.
        self.input_ends = !matches!(self.way, Way::OutOf(_));
    }

    /// Move what can be moved, and say what became of the job.
    pub fn pump(&mut self, mux: &mut Mux) -> Outcome {
        if (self.report.is_some() || self.said.has_message()) && !self.hear(mux) {
            return Outcome::Pending;
        }
        if std::mem::take(&mut self.leaf_news) && self.ended && !self.empty && self.leaf.is_empty() {
            // Whatever was written is in the pipes by now, even if somebody outside of the cgroup holds them open.
            self.empty = true;
            self.outlets.iter_mut().for_each(|outlet| outlet.ready = true);
        }
        for lane in 0..2 {
            self.drain(mux, lane);
        }
        let bell = std::mem::take(&mut self.bell);
        self.toll(bell);
        if self.input_ends {
            self.inlet = None;
        }
        let drained = self.outlets.iter().all(|outlet| outlet.pipe.is_none());
        if self.ended && drained && self.empty { self.outcome() } else { Outcome::Pending }
    }

    /// End it, whatever it does. What is to be killed besides its cgroup: its leader's session.
    pub fn abandon(self, workloads: &mut Workloads) -> Option<i32> {
        let session = self.session();
        workloads.bury(self.leaf);
        session
    }

    /// Read the report; whether bytes may flow: a program's must have ended, a verb's ends with the verb.
    fn hear(&mut self, mux: &mut Mux) -> bool {
        let mut buf = [0; 4096];
        loop {
            while mux.takes_messages(self.stream) {
                let Some(message) = self.said.message() else { break };
                mux.send_encoded(self.stream, message);
                self.speaks_first = false;
            }
            let Some(report) = self.report.as_ref().filter(|_| self.report_ready && !self.said.has_message()) else { break };
            match sys::read(report.as_fd(), &mut buf) {
                Ok(count @ 1..) if self.said.size() < LARGEST_REPORT => self.said.push(&buf[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.report_ready = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => self.report = None,
            }
        }
        if self.report.is_none() && !self.said.has_message() {
            self.speaks_first = false;
        }
        true
    }

    fn outcome(&self) -> Outcome {
        if self.report.is_some() || self.said.has_message() {
            return Outcome::Pending;
        }
        match self.said.outcome() {
            Some(Err(failure)) => Outcome::Failed(failure),
            Some(Ok(message)) => Outcome::Done(message),
            None if self.leaf.was_out_of_memory() => {
                Outcome::Failed(Failure::guest("the sandbox ran out of memory, and its kernel killed the transfer"))
            }
            None => Outcome::Failed(Failure::guest("the process that did this in the sandbox was killed")),
        }
    }

    /// Wake the child, which waits for a byte on its standard input.
    fn toll(&mut self, bell: bool) {
        if let Some(pipe) = self.inlet.as_ref().filter(|_| bell) {
            if sys::write(pipe.as_fd(), &[1]).is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                self.inlet = None;
            }
        }
    }

    /// Bytes from the child to the stream, as far as there is credit.
    fn drain(&mut self, mux: &mut Mux, lane: usize) {
        while self.outlets[lane].ready && self.outlets[lane].pipe.is_some() {
            let mut bells = [0; 64];
            let news = match (&self.way, lane) {
                (Way::Into(ring), 0) => {
                    // Bells first: one that comes after this is for what is taken after the question.
                    let news = self.hark(lane, &mut bells);
                    let _ = ring.writer_waits();
                    match ring.total_read() {
                        Ok(total) => mux.consumed(self.stream, total.wrapping_sub(std::mem::replace(&mut self.taken, total)) as usize),
                        Err(_) => self.leaf.kill(),
                    }
                    news
                }
                (Way::OutOf(_), 0) if self.speaks_first => return,
                (Way::OutOf(ring), 0) => {
                    let slot = mux.data_slot(self.stream);
                    if slot.is_empty() {
                        return;
                    }
                    let Ok((count, bell)) = ring.read(slot) else {
                        self.leaf.kill();
                        self.outlets[lane].pipe = None;
                        return;
                    };
                    if count > 0 {
                        mux.data_commit(self.stream, 0, count);
                        self.toll(bell);
                        continue;
                    }
                    // Bells first: one that comes after this is for bytes that come after the question.
                    let news = self.hark(lane, &mut bells);
                    if let Way::OutOf(ring) = &self.way {
                        if ring.reader_waits() == Ok(false) {
                            continue;
                        }
                    }
                    news
                }
                // A child without a ring says all on its report.
                _ => News::End,
            };
            match news {
                News::Bells => {}
                News::End => self.outlets[lane].pipe = None,
                News::None => {
                    self.outlets[lane].ready = false;
                    if self.empty {
                        self.outlets[lane].pipe = None;
                    }
                }
            }
        }
    }

    /// Read bells from a pipe of the child's.
    fn hark(&self, lane: usize, buf: &mut [u8]) -> News {
        let Some(pipe) = &self.outlets[lane].pipe else { return News::End };
        loop {
            match sys::read(pipe.as_fd(), buf) {
                Ok(1..) => return News::Bells,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return News::None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return News::End,
            }
        }
    }
}

/// Why a message of the host's is refused.
pub fn unwanted(stream: u32) -> Failure {
    Failure::new("protocol_error", format!("stream {stream} takes no such message"))
}

enum News {
    Bells,
    None,
    End,
}

#[cfg(test)]
mod tests;
