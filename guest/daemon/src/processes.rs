//! All processes of the host's, found by what events name: a token, a stream, a leader, a name, a time.
//!
//! Nothing here is done for each process at each turn of the loop: only those are pumped that something has happened to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use space_protocol::messages;
use space_protocol::{Failure, Message, Mux};

use crate::cgroup::{Spared, Workloads};
use crate::job::{Outcome, SLOTS};
use crate::process::Process;

/// Kept processes that there may be.
const MAX_KEPT: usize = 1024;
const MAX_NAME: usize = 64;
/// Bytes of one answer to `processes`; a thousand processes with usual names fit.
const ANSWER: usize = 60_000;

/// See the module.
#[derive(Default)]
pub struct Processes {
    /// By the token of slot 0, which rises: oldest first.
    all: BTreeMap<u64, Process>,
    streams: BTreeMap<u32, u64>,
    leaders: BTreeMap<i32, u64>,
    names: BTreeMap<String, u64>,
    timers: BTreeSet<(Duration, u64)>,
    busy: BTreeSet<u64>,
}

impl Processes {
    /// Refuse a name that cannot be kept.
    pub fn admit(&self, name: &str) -> Result<(), Failure> {
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
            return Err(Failure::invalid(format!("keep must be 1 to {MAX_NAME} characters of a-z, 0-9 and '-'")));
        }
        if self.names.contains_key(name) {
            return Err(Failure::new("conflict", format!("there is a kept process '{name}' already")));
        }
        if self.names.len() >= MAX_KEPT {
            return Err(Failure::new("no_capacity", format!("{MAX_KEPT} processes are kept already")));
        }
        Ok(())
    }

    /// A new one. id: the token of its slot 0.
    pub fn insert(&mut self, id: u64, process: Process) {
        self.streams.extend(process.stream().map(|stream| (stream, id)));
        self.names.extend(process.name().map(|name| (name.to_owned(), id)));
        self.timers.extend(process.life.deadline().map(|at| (at, id)));
        self.leaders.insert(process.life.pid, id);
        self.all.insert(id, process);
    }

    /// The kernel has news of one.
    pub fn mark(&mut self, token: u64) {
        let id = token / SLOTS * SLOTS;
        if let Some(process) = self.all.get_mut(&id) {
            process.mark(token % SLOTS);
            self.busy.insert(id);
        }
    }

    /// That of a stream, with which something happens now.
    pub fn on(&mut self, stream: u32) -> Option<&mut Process> {
        let id = *self.streams.get(&stream)?;
        self.busy.insert(id);
        self.all.get_mut(&id)
    }

    /// A child was reaped.
    pub fn reaped(&mut self, pid: i32, status: i32, now: Duration) {
        if let Some(id) = self.leaders.remove(&pid) {
            if let Some(process) = self.all.get_mut(&id) {
                if let Some(at) = process.life.deadline() {
                    self.timers.remove(&(at, id));
                }
                process.life.leader_ended(status, now);
                self.busy.insert(id);
            }
        }
    }

    /// When the next one's time is up.
    pub fn deadline(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Kill those whose time is up; leaders of the sessions that are to be killed besides.
    pub fn keep_time(&mut self, now: Duration) -> Vec<i32> {
        let mut sessions = Vec::new();
        while let Some((_, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            sessions.extend(self.all.get_mut(&id).and_then(|process| process.life.time_out()));
        }
        sessions
    }

    /// Move what can be moved. Leaders of the sessions that are to be killed.
    pub fn pump(&mut self, mux: &mut Mux, workloads: &mut Workloads) -> Vec<i32> {
        let mut sessions = Vec::new();
        for id in std::mem::take(&mut self.busy) {
            let Some(process) = self.all.get_mut(&id) else { continue };
            let outcome = process.pump(mux);
            if process.wants_room(mux) {
                self.busy.insert(id);
            }
            if process.life.is_over() {
                process.life.bury(workloads);
            }
            let stays = process.name().is_some();
            match (outcome, process.stream()) {
                (Outcome::Pending, _) => continue,
                (Outcome::Done(message), Some(stream)) => {
                    mux.send(stream, &message);
                    mux.close(stream);
                    if stays {
                        continue;
                    }
                }
                (Outcome::Failed(failure), Some(stream)) => mux.reset(stream, &failure),
                (_, None) => {}
            }
            sessions.extend(self.remove(id, workloads));
        }
        sessions
    }

    /// A stream is gone: what is not kept ends. Its leader's session, if it is to be killed.
    pub fn lost(&mut self, stream: u32, workloads: &mut Workloads) -> Option<i32> {
        let id = self.streams.remove(&stream)?;
        let process = self.all.get_mut(&id)?;
        if process.name().is_none() {
            return self.remove(id, workloads);
        }
        process.detach();
        None
    }

    /// The host closed a stream: no more input, or, of a kept process whose exit was told, nothing of it is wanted any more.
    pub fn closed(&mut self, stream: u32, workloads: &mut Workloads) -> Result<Option<i32>, Failure> {
        let Some(process) = self.on(stream) else { return Ok(None) };
        match (process.name().is_some(), process.was_told()) {
            (false, _) => drop(process.end_input()),
            (true, true) => {
                let id = self.streams.remove(&stream);
                return Ok(id.and_then(|id| self.remove(id, workloads)));
            }
            (true, false) => return Err(Failure::new("protocol_error", "the host closed a kept process's stream before the guest did")),
        }
        Ok(None)
    }

    /// Go on with a kept process on that stream.
    pub fn attach(&mut self, stream: u32, name: &str, held: [u64; 2], mux: &mut Mux) -> Result<(), Failure> {
        let id = self.named(name)?;
        let Some(process) = self.all.get_mut(&id) else { return Err(absent(name)) };
        let before = process.stream();
        process.attach(stream, held)?;
        if let Some(before) = before {
            self.streams.remove(&before);
            mux.reset(before, &Failure::new("conflict", format!("the process '{name}' was attached elsewhere")));
        }
        self.streams.insert(stream, id);
        self.busy.insert(id);
        Ok(())
    }

    /// Kill what is left of a kept process, and drop its output.
    pub fn forget(&mut self, name: &str, mux: &mut Mux, workloads: &mut Workloads) -> Result<Option<i32>, Failure> {
        let id = self.named(name)?;
        if let Some(stream) = self.all.get(&id).and_then(Process::stream) {
            mux.reset(stream, &Failure::new("conflict", format!("the process '{name}' was forgotten")));
        }
        Ok(self.remove(id, workloads))
    }

    /// The answer of `processes`, in as many messages as it needs.
    pub fn list(&self) -> Vec<Message> {
        let (mut pages, mut page, mut size) = (Vec::new(), Vec::new(), 0);
        for kept in self.all.values().filter_map(Process::kept) {
            let length = messages::encode(&kept).len();
            if size + length > ANSWER {
                pages.push(std::mem::take(&mut page));
                size = 0;
            }
            size += length;
            page.push(kept);
        }
        pages.push(page);
        pages.into_iter().map(|processes| Message::Processes(messages::Processes { processes })).collect()
    }

    /// The session has ended, and with it what is not kept. The leaders of their sessions, and what is to be spared.
    pub fn end_session(&mut self, workloads: &mut Workloads) -> (BTreeSet<i32>, Spared) {
        let ids: Vec<u64> = self.all.keys().copied().collect();
        let (mut doomed, mut spared) = (BTreeSet::new(), Spared::default());
        for id in ids {
            let Some(process) = self.all.get_mut(&id) else { continue };
            if process.name().is_none() {
                doomed.extend(self.remove(id, workloads));
                continue;
            }
            process.detach();
            if let Some(leaf) = process.life.leaf() {
                spared.leaves.insert(leaf.name().to_owned());
                spared.leaders.extend(process.life.session());
            }
        }
        self.streams.clear();
        (doomed, spared)
    }

    fn named(&self, name: &str) -> Result<u64, Failure> {
        self.names.get(name).copied().ok_or_else(|| absent(name))
    }

    fn remove(&mut self, id: u64, workloads: &mut Workloads) -> Option<i32> {
        let process = self.all.remove(&id)?;
        self.busy.remove(&id);
        if let Some(stream) = process.stream() {
            self.streams.remove(&stream);
        }
        if let Some(name) = process.name() {
            self.names.remove(name);
        }
        if let Some(at) = process.life.deadline() {
            self.timers.remove(&(at, id));
        }
        if let Some(leader) = process.life.session() {
            self.leaders.remove(&leader);
        }
        process.abandon(workloads)
    }
}

fn absent(name: &str) -> Failure {
    Failure::new("not_found", format!("there is no kept process '{}'", crate::exec::shown(name.as_bytes())))
}

#[cfg(test)]
mod tests {
    use space_protocol::Bytes;
    use space_protocol::messages::Exec;

    use super::*;
    use crate::cgroup::fake;
    use crate::child::Child;
    use crate::sys;

    const NOW: Duration = Duration::from_secs(1);

    /// A process with that number, which is in no cgroup of its own; its report has ended, so it runs.
    fn process(scratch: &fake::Scratch, stream: u32, keep: Option<&str>, pid: i32) -> Process {
        let argv = vec![Bytes(b"true".to_vec())];
        let keep = keep.map(str::to_owned);
        let request = Exec { argv, cwd: None, env: vec![], user: None, timeout_ms: Some(5000), stdin: false, pty: None, keep };
        let leaf = fake::leaf(&scratch.0, &format!("p{stream}"), true);
        let child = Child { pid, leaf, report: sys::pipe().unwrap().0, inlet: None, outlets: [None, None] };
        let mut process = Process::new(stream, &request, child, NOW);
        process.mark(0);
        process
    }

    #[test]
    fn the_end_of_a_session_spares_what_is_kept_and_nothing_else() {
        let scratch = fake::Scratch::new();
        let mut workloads = fake::workloads(&scratch.0);
        let mut all = Processes::default();
        all.insert(SLOTS, process(&scratch, 1, Some("one"), 71));
        all.insert(2 * SLOTS, process(&scratch, 2, None, 72));
        all.insert(3 * SLOTS, process(&scratch, 3, Some("two"), 73));
        all.reaped(73, 0, NOW);
        let (doomed, spared) = all.end_session(&mut workloads);
        assert_eq!(doomed, [72].into());
        assert_eq!(spared.leaders, [71].into(), "the number of a leader that was reaped may be another's");
        assert_eq!(spared.leaves.iter().map(|name| name.to_str().unwrap()).collect::<Vec<_>>(), ["p1", "p3"]);
        assert_eq!(std::fs::read(scratch.0.join("p2/cgroup.kill")).unwrap(), b"1");
        assert_eq!(std::fs::read(scratch.0.join("p1/cgroup.kill")).unwrap(), b"");
        assert!(all.on(1).is_none() && all.on(2).is_none() && all.on(3).is_none(), "all are detached");
        assert_eq!(all.list().len(), 1);
        assert_eq!(all.deadline(), Some(NOW + Duration::from_secs(5)), "a time limit goes on");
        assert_eq!(all.keep_time(NOW * 10), [71]);
    }

    #[test]
    fn names_are_taken_once_and_bounded() {
        let scratch = fake::Scratch::new();
        let mut all = Processes::default();
        for wrong in ["", "A", "a_b", "ä", &"x".repeat(65)] {
            assert_eq!(all.admit(wrong).unwrap_err().code, "invalid_argument", "{wrong}");
        }
        all.insert(SLOTS, process(&scratch, 1, Some("one"), 71));
        assert_eq!(all.admit("one").unwrap_err().code, "conflict");
        for number in 1..MAX_KEPT {
            all.names.insert(format!("n-{number}"), 0);
        }
        assert_eq!(all.admit("two").unwrap_err().code, "no_capacity");
    }

    #[test]
    fn a_list_of_long_names_comes_in_messages_that_fit_a_frame() {
        let scratch = fake::Scratch::new();
        let mut all = Processes::default();
        assert_eq!(all.list(), [Message::Processes(messages::Processes { processes: vec![] })]);
        let one = process(&scratch, 1, Some("pr-0123456789abcdef"), 71).kept().unwrap();
        assert!(messages::encode(&one).len() * MAX_KEPT < ANSWER, "usual names fit one message");
        for number in 0..700 {
            all.insert((number + 1) * SLOTS, process(&scratch, 1, Some(&format!("{number:064}")), 71));
        }
        let pages = all.list();
        assert_eq!(pages.len(), 2);
        assert!(pages.iter().all(|page| page.encode().len() <= 65_536));
    }
}
