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
use crate::ring::Ring;
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

/// How a child's bytes travel.
pub enum Way {
    /// Through its pipes.
    Pipes,
    /// To it through a ring; the pipes are bells.
    Into(Ring),
    /// From it through a ring; the pipes are bells.
    OutOf(Ring),
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
    way: Way,
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
    /// What the child had taken out of its ring when it was last looked.
    taken: u64,
    /// The child waits for what its ring holds now.
    bell: bool,
    input_ends: bool,
    outlets: [Outlet; 2],
    began: Duration,
    deadline: Option<Duration>,
    timed_out: bool,
    ended: Option<(i32, Duration)>,
}

impl Job {
    /// Take charge of a child. now: monotonic.
    pub fn new(stream: u32, purpose: Purpose, way: Way, child: Child, now: Duration) -> Self {
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
            said: Vec::new(),
            inlet: child.inlet,
            inlet_ready: true,
            waiting: VecDeque::new(),
            taken: 0,
            bell: false,
            input_ends: false,
            outlets: child.outlets.map(|pipe| Outlet { pipe, ready: false, bytes: 0 }),
            began: now,
            deadline: None,
            timed_out: false,
            ended: None,
        }
    }

    /// Have the kernel's news of it. token: of its slot 0; the others follow.
    pub fn watch(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        if let Some(report) = &self.report {
            epoll.add(report.as_fd(), libc::EPOLLIN, token + REPORT)?;
        }
        epoll.add(self.leaf.events(), libc::EPOLLPRI, token + LEAF)?;
        if let Some(pipe) = &self.inlet {
            epoll.add(pipe.as_fd(), libc::EPOLLOUT, token + INLET)?;
        }
        for (lane, outlet) in (0..).zip(&self.outlets) {
            if let Some(pipe) = &outlet.pipe {
                epoll.add(pipe.as_fd(), libc::EPOLLIN, token + OUTLET + lane)?;
            }
        }
        Ok(())
    }

    /// Kill it when this long has passed from its start.
    pub fn limit(&mut self, timeout: Option<Duration>) {
        self.deadline = timeout.and_then(|left| self.began.checked_add(left));
    }

    /// The stream it works for.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// Whether the end of that process is the end of its leader. Once that was reaped, the number may be another's.
    pub fn awaits(&self, pid: i32) -> bool {
        self.ended.is_none() && self.pid == pid
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

    /// Its time is up. What is to be killed besides its cgroup, as guest root may have left that: its leader's session.
    pub fn time_out(&mut self) -> Option<i32> {
        self.timed_out = true;
        self.leaf.kill();
        self.session()
    }

    /// The session of a leader that was not reaped yet.
    fn session(&self) -> Option<i32> {
        self.ended.is_none().then_some(self.pid)
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
        if self.inlet.is_none() || matches!(self.way, Way::OutOf(_)) {
            mux.consumed(self.stream, bytes.len());
            return;
        }
        if let Way::Into(ring) = &self.way {
            // There is place for all that the stream's credit allows; it returns as the child takes the bytes.
            match ring.write(bytes) {
                // Rung when all that has come is there: the child would run at once, and again for each of the frames behind.
                Ok((count, bell)) if count == bytes.len() => self.bell |= bell,
                _ => self.leaf.kill(),
            }
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
        // The pipe to a child that sends through a ring is its bell, and needed to the end.
        self.input_ends = !matches!(self.way, Way::OutOf(_));
    }

    /// Move what can be moved, and say what became of the job.
    pub fn pump(&mut self, mux: &mut Mux) -> Outcome {
        if self.report.is_some() && !self.hear(mux) {
            return Outcome::Pending;
        }
        if std::mem::take(&mut self.leaf_news) && self.ended.is_some() && !self.empty && self.leaf.is_empty() {
            // Whatever was written is in the pipes by now, even if somebody outside of the cgroup holds them open.
            self.empty = true;
            self.outlets.iter_mut().for_each(|outlet| outlet.ready = true);
        }
        for lane in 0..2 {
            self.drain(mux, lane);
        }
        let bell = std::mem::take(&mut self.bell);
        self.toll(bell);
        self.pour(mux);
        let drained = self.outlets.iter().all(|outlet| outlet.pipe.is_none());
        match self.ended {
            Some((status, at)) if drained && self.empty => self.outcome(status, at),
            _ => Outcome::Pending,
        }
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

    /// Write as far as it is taken; a reader that went away takes everything.
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
                _ => {
                    let slot = mux.data_slot(self.stream);
                    if slot.is_empty() {
                        return;
                    }
                    let news = self.hark(lane, slot);
                    if let News::Bytes(count) = news {
                        mux.data_commit(self.stream, lane as u8, count);
                        self.outlets[lane].bytes += count as u64;
                    }
                    news
                }
            };
            match news {
                News::Bytes(_) => {}
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

    /// Read from a pipe of the child's.
    fn hark(&self, lane: usize, buf: &mut [u8]) -> News {
        let Some(pipe) = &self.outlets[lane].pipe else { return News::End };
        loop {
            match sys::read(pipe.as_fd(), buf) {
                Ok(count @ 1..) => return News::Bytes(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return News::None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return News::End,
            }
        }
    }
}

enum News {
    Bytes(usize),
    None,
    End,
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use super::*;
    use crate::cgroup::fake;
    use crate::procs;

    const NOW: Duration = Duration::from_secs(1);

    /// A job whose processes, if any, are in no cgroup of its own. The scratch directory is its cgroup.
    fn job(scratch: &fake::Scratch, pid: i32) -> Job {
        let leaf = fake::leaf(&scratch.0, "p1", false);
        let child = Child { pid, leaf, report: sys::pipe().unwrap().0, inlet: None, outlets: [None, None] };
        Job::new(1, Purpose::Program, Way::Pipes, child, NOW)
    }

    #[test]
    fn a_leader_that_was_reaped_is_not_awaited_again() {
        let scratch = fake::Scratch::new();
        let mut draining = job(&scratch, 77);
        assert!(draining.awaits(77) && !draining.awaits(78));
        draining.leader_ended(3 << 8, NOW);
        assert!(!draining.awaits(77), "after all numbers were used, 77 may be an orphan, or the leader of another job");
        assert_eq!(draining.exited(draining.ended.unwrap().0, NOW).code, Some(3));
    }

    #[test]
    fn a_timeout_kills_leader_and_session_also_outside_of_the_cgroup() {
        let scratch = fake::Scratch::new();
        let mut command = Command::new("sleep");
        command.arg("600").stdout(Stdio::piped());
        // SAFETY: plain calls. The leader gets a session, and a companion with a process group of its own, which holds its output open.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                if libc::fork() == 0 {
                    libc::setpgid(0, 0);
                    libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                    loop {
                        libc::pause();
                    }
                }
                Ok(())
            });
        }
        let mut leader = command.spawn().unwrap();
        let mut output = leader.stdout.take().unwrap();
        let (told, ended) = mpsc::channel();
        std::thread::spawn(move || told.send(output.read_to_end(&mut Vec::new()).unwrap()));
        let mut late = job(&scratch, leader.id() as i32);
        late.limit(Some(Duration::from_secs(1)));
        assert_eq!(late.deadline(), Some(NOW * 2));
        let sessions = late.time_out().into_iter().collect();
        procs::kill_sessions(sys::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY).unwrap().as_fd(), &sessions);
        let all_ended = ended.recv_timeout(Duration::from_secs(20));
        let _ = leader.kill();
        let status = std::os::unix::process::ExitStatusExt::into_raw(leader.wait().unwrap());
        assert_eq!(all_ended, Ok(0), "somebody still holds the output");
        assert_eq!(std::fs::read(scratch.0.join("p1/cgroup.kill")).unwrap(), b"1");
        late.leader_ended(status, NOW * 2);
        let exited = late.exited(status, NOW * 2);
        assert_eq!((exited.code, exited.signal, exited.timed_out, exited.wall_ms), (None, Some(9), true, 1000));
    }
}
