//! A program's life as the kernel tells of it: its report, its leader's end, its cgroup's emptiness, its time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use space_protocol::Failure;
use space_protocol::messages::Exited;

use crate::cgroup::{Leaf, Workloads};
use crate::child;
use crate::sys;

const LARGEST_REPORT: usize = 64 << 10;

/// See the module.
#[allow(clippy::struct_excessive_bools)] // each is news of one descriptor, or a fact that cannot be undone
pub struct Life {
    /// The leader's process id.
    pub pid: i32,
    leaf: Option<Leaf>,
    leaf_news: bool,
    out_of_memory: bool,
    report: Option<OwnedFd>,
    report_ready: bool,
    said: Vec<u8>,
    began: Duration,
    deadline: Option<Duration>,
    timed_out: bool,
    ended: Option<(i32, Duration)>,
    empty: bool,
    stays: bool,
}

impl Life {
    /// It begins. now: monotonic. timeout: kill it when this long has passed.
    pub fn new(pid: i32, leaf: Leaf, report: OwnedFd, now: Duration, timeout: Option<Duration>) -> Self {
        Self {
            pid,
            leaf: Some(leaf),
            leaf_news: false,
            out_of_memory: false,
            report: Some(report),
            report_ready: false,
            said: Vec::new(),
            began: now,
            deadline: timeout.and_then(|left| now.checked_add(left)),
            timed_out: false,
            ended: None,
            empty: false,
            stays: false,
        }
    }

    /// What its leader leaves behind goes on; it is over with its leader.
    pub fn stay(&mut self) {
        self.stays = true;
    }

    /// Whether its outputs may be held open by what goes on, so that their ends alone are their ends.
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// Where the kernel tells (as `EPOLLIN`) of the report.
    pub fn report(&self) -> Option<&OwnedFd> {
        self.report.as_ref()
    }

    /// Its cgroup, until everything in it has ended.
    pub fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// The kernel has news of the report.
    pub fn mark_report(&mut self) {
        self.report_ready = true;
    }

    /// The kernel has news of the cgroup.
    pub fn mark_leaf(&mut self) {
        self.leaf_news = true;
    }

    /// Its leader's session, unless the leader was reaped: then the number may be another's.
    pub fn session(&self) -> Option<i32> {
        self.ended.is_none().then_some(self.pid)
    }

    /// Whether nothing of it runs any more.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() && self.empty
    }

    /// When its time is up, unless it has ended or was killed for that already.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline.filter(|_| !self.timed_out && self.ended.is_none())
    }

    /// Its time is up. What is to be killed besides its cgroup, as guest root may have left that: its leader's session.
    pub fn time_out(&mut self) -> Option<i32> {
        self.timed_out = true;
        self.kill();
        self.session()
    }

    /// Kill everything in its cgroup.
    pub fn kill(&self) {
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
    }

    /// Send a signal to the leader's process group, or to everything in its cgroup. Nothing hears it when the leader has ended.
    pub fn signal(&self, signal: i32, all: bool) {
        match &self.leaf {
            Some(leaf) if all && self.ended.is_none() => leaf.signal(signal),
            _ => {
                if let Some(leader) = self.session() {
                    sys::signal_group(leader, signal);
                }
            }
        }
    }

    /// The leader was reaped: what it left behind is killed, unless that stays.
    pub fn leader_ended(&mut self, status: i32, now: Duration) {
        self.ended = Some((status, now));
        if self.stays && !self.timed_out {
            self.empty = true;
            self.out_of_memory |= self.leaf.as_ref().is_some_and(Leaf::was_out_of_memory);
            return;
        }
        self.leaf_news = true;
        self.kill();
    }

    /// Read the report; whether it has ended: the program runs, or never will.
    pub fn hear(&mut self) -> bool {
        let mut buf = [0; 4096];
        while let Some(report) = self.report.as_ref().filter(|_| self.report_ready) {
            match sys::read(report.as_fd(), &mut buf) {
                Ok(count @ 1..) if self.said.len() < LARGEST_REPORT => self.said.extend(&buf[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.report_ready = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => self.report = None,
            }
        }
        self.report.is_none()
    }

    /// Why the program could not be run, if it could not.
    pub fn failure(&self) -> Option<Failure> {
        child::read_report(&self.said).and_then(Result::err)
    }

    /// Whether it is over since just now: whatever was written is in the pipes, even if somebody outside of the cgroup holds them open.
    pub fn settle(&mut self) -> bool {
        let Some(leaf) = self.leaf.as_ref().filter(|_| self.leaf_news && self.ended.is_some() && !self.empty) else { return false };
        self.leaf_news = false;
        self.empty = leaf.is_empty();
        self.out_of_memory |= self.empty && leaf.was_out_of_memory();
        self.empty
    }

    /// How it ended, once it is over. bytes: what it wrote.
    pub fn exited(&self, bytes: [u64; 2]) -> Option<Exited> {
        let (status, at) = self.ended.filter(|_| self.empty)?;
        let signalled = libc::WIFSIGNALED(status);
        Some(Exited {
            code: (!signalled).then(|| libc::WEXITSTATUS(status) as u8),
            signal: signalled.then(|| libc::WTERMSIG(status) as u8),
            oom_killed: self.out_of_memory,
            timed_out: self.timed_out,
            stdout_bytes: bytes[0],
            stderr_bytes: bytes[1],
            wall_ms: at.saturating_sub(self.began).as_millis() as u64,
        })
    }

    /// Remove its cgroup, and kill what is in it, unless that stays behind a leader that has ended.
    pub fn bury(&mut self, workloads: &mut Workloads) {
        match self.leaf.take() {
            Some(leaf) if self.stays && !self.timed_out && self.is_over() => workloads.leave(leaf),
            Some(leaf) => workloads.bury(leaf),
            None => {}
        }
    }
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

    /// A life whose processes, if any, are in no cgroup of its own. The scratch directory is its cgroup.
    fn life(scratch: &fake::Scratch, pid: i32, timeout: Option<Duration>) -> Life {
        Life::new(pid, fake::leaf(&scratch.0, "p1", false), sys::pipe().unwrap().0, NOW, timeout)
    }

    #[test]
    fn a_leader_that_was_reaped_has_no_session_any_more() {
        let scratch = fake::Scratch::new();
        let mut draining = life(&scratch, 77, None);
        assert_eq!(draining.session(), Some(77));
        draining.leader_ended(3 << 8, NOW);
        assert_eq!(draining.session(), None, "after all numbers were used, 77 may be an orphan, or the leader of another");
        assert!(draining.exited([0; 2]).is_none(), "it is over when its cgroup is empty");
        assert!(draining.settle());
        assert_eq!(draining.exited([0; 2]).unwrap().code, Some(3));
    }

    #[test]
    fn what_stays_is_not_killed_with_its_leader() {
        let scratch = fake::Scratch::new();
        let mut workloads = fake::workloads(&scratch.0);
        let mut life = Life::new(77, fake::leaf(&scratch.0, "p1", true), sys::pipe().unwrap().0, NOW, None);
        life.stay();
        life.leader_ended(3 << 8, NOW);
        assert!(life.is_over() && !life.settle());
        assert_eq!(life.exited([0; 2]).unwrap().code, Some(3));
        life.bury(&mut workloads);
        assert_eq!(workloads.staying().count(), 1);
        assert_eq!(std::fs::read(scratch.0.join("p1/cgroup.kill")).unwrap(), b"");
        let mut killed = Life::new(78, fake::leaf(&scratch.0, "p2", true), sys::pipe().unwrap().0, NOW, None);
        killed.stay();
        killed.bury(&mut workloads);
        assert_eq!(std::fs::read(scratch.0.join("p2/cgroup.kill")).unwrap(), b"1", "its leader runs");
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
        let mut late = life(&scratch, leader.id() as i32, Some(NOW));
        assert_eq!(late.deadline(), Some(NOW * 2));
        let sessions = late.time_out().into_iter().collect();
        procs::kill_sessions(sys::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY).unwrap().as_fd(), &sessions);
        let all_ended = ended.recv_timeout(Duration::from_secs(20));
        let _ = leader.kill();
        let status = std::os::unix::process::ExitStatusExt::into_raw(leader.wait().unwrap());
        assert_eq!(all_ended, Ok(0), "somebody still holds the output");
        assert_eq!(std::fs::read(scratch.0.join("p1/cgroup.kill")).unwrap(), b"1");
        late.leader_ended(status, NOW * 2);
        assert!(late.settle());
        let exited = late.exited([0; 2]).unwrap();
        assert_eq!((exited.code, exited.signal, exited.timed_out, exited.wall_ms), (None, Some(9), true, 1000));
    }
}
