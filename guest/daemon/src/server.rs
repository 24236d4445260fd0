//! The loop: two pipes to the host, the children, and the clock. One thread, nothing in it waits for anything but epoll.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use space_protocol::messages::Variable;
use space_protocol::{Decoder, Event, Failure, Message, Mux, Pipe, Role};

use crate::boot::{Held, Machine};
use crate::calibrate::Calibration;
use crate::cgroup::Workloads;
use crate::child;
use crate::connect::Connection;
use crate::job::{self, Job, Outcome, Purpose, SLOTS, Way};
use crate::processes::Processes;
use crate::procs;
use crate::shutdown::Shutdown;
use crate::sys::{self, Epoll};
use crate::vsock;

mod open;
mod verbs;

/// Tokens below this are not a job's.
const FIRST_JOB: u64 = 2 * SLOTS;
const SIGNALS: u64 = 2;
/// Of the control pipe; the bulk pipe's follows.
const INLETS: u64 = 3;
/// Bytes that are read from one port before the others have their turn.
const TURN: usize = 1 << 20;

struct Port {
    fd: OwnedFd,
    decoder: Decoder,
    readable: bool,
    writable: bool,
}

impl Port {
    fn new(fd: OwnedFd, pipe: Pipe) -> Self {
        Self { fd, decoder: Decoder::new(pipe, Role::Acceptor), readable: true, writable: true }
    }
}

/// A port whose host is away reports EPOLLHUP all the time: only its edges are news.
fn watch(epoll: &Epoll, fd: &OwnedFd, pipe: Pipe) -> std::io::Result<()> {
    epoll.add(fd.as_fd(), libc::EPOLLIN | libc::EPOLLOUT, pipe.index() as u64)
}

/// The daemon after boot.
pub struct Server {
    ports: [Port; 2],
    inlets: Option<[OwnedFd; 2]>,
    signals: OwnedFd,
    core: Core,
    /// There is place again in a queue that was full.
    relieved: bool,
}

/// What the events of the ports act on.
struct Core {
    held: Held,
    workloads: Workloads,
    epoll: Epoll,
    mux: Mux,
    jobs: BTreeMap<u64, Job>,
    processes: Processes,
    connections: BTreeMap<u64, Connection>,
    calibrations: BTreeMap<u32, Calibration>,
    /// Sessions to be killed before the next child is reaped.
    doomed: BTreeSet<i32>,
    next_job: u64,
    env: Option<Vec<Variable>>,
    /// The life that `configure` or `claim` gave, once one has.
    life: Option<u64>,
    /// The size of the disk that the root file system was made to fill.
    filled: Option<u64>,
    standing: Standing,
    shutdown: Option<Shutdown>,
}

/// How the session stands to the life of this guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is of the present life, or there is none yet.
    Own,
    /// Its life is another: this guest was restored, and has still the identity of the one that it is a copy of.
    Restored,
    /// Restored, with an identity of its own, and nobody's yet.
    Imprinted,
}

fn now() -> Duration {
    sys::clock(libc::CLOCK_MONOTONIC)
}

impl Server {
    /// A server over a machine's ports.
    pub fn new(machine: Machine) -> Result<Self, String> {
        let fault = |what: &'static str| move |error: std::io::Error| format!("cannot {what}: {error}");
        let epoll = Epoll::new().map_err(fault("make an epoll instance"))?;
        let signals = sys::child_signals().map_err(fault("take signals"))?;
        epoll.add(signals.as_fd(), libc::EPOLLIN, SIGNALS).map_err(fault("watch signals"))?;
        for (pipe, port) in Pipe::ALL.into_iter().zip(&machine.ports) {
            watch(&epoll, port, pipe).map_err(fault("watch a port"))?;
        }
        for (token, inlet) in (INLETS..).zip(machine.inlets.iter().flatten()) {
            epoll.add(inlet.as_fd(), libc::EPOLLIN, token).map_err(fault("watch for the host"))?;
        }
        let [control, bulk] = machine.ports;
        let core = Core {
            held: machine.held,
            workloads: machine.workloads,
            epoll,
            mux: Mux::new(),
            jobs: BTreeMap::new(),
            processes: Processes::default(),
            connections: BTreeMap::new(),
            calibrations: BTreeMap::new(),
            doomed: BTreeSet::new(),
            next_job: FIRST_JOB,
            env: None,
            life: None,
            filled: None,
            standing: Standing::Own,
            shutdown: None,
        };
        let ports = [Port::new(control, Pipe::Control), Port::new(bulk, Pipe::Bulk)];
        Ok(Self { ports, inlets: machine.inlets, signals, core, relieved: false })
    }

    /// Serve for ever.
    pub fn run(mut self) -> ! {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            let count = self.core.epoll.wait(self.patience(), &mut events);
            for event in &events[..count] {
                self.note(event.u64);
            }
            for pipe in Pipe::ALL {
                self.read(pipe);
            }
            self.core.keep_time();
            self.core.pump();
            self.core.pump_connections();
            self.core.hunt();
            let full = self.core.mux.is_full();
            for pipe in Pipe::ALL {
                self.write(pipe);
            }
            // What waited for place in the queue and for nothing else will have no other news.
            self.relieved = full && !self.core.mux.is_full();
            if self.core.mux.open_streams() == 0 {
                self.core.mux.shrink();
                self.ports.iter_mut().for_each(|port| port.decoder.shrink());
            }
        }
    }

    /// How long the next wait may take.
    fn patience(&self) -> Option<Duration> {
        let readable = self.ports.iter().any(|port| port.readable) && !self.core.mux.is_congested();
        let more_to_send = Pipe::ALL.iter().any(|pipe| self.ports[pipe.index()].writable && !self.core.mux.pending(*pipe).is_empty());
        if readable || more_to_send || self.relieved {
            return Some(Duration::ZERO);
        }
        let verbs = self.core.jobs.values().filter_map(Job::deadline);
        let connections = self.core.connections.values().filter_map(Connection::deadline);
        let deadlines =
            verbs.chain(connections).chain(self.core.processes.deadline()).chain(self.core.shutdown.as_ref().map(Shutdown::deadline));
        deadlines.min().map(|at| at.saturating_sub(now()))
    }

    fn note(&mut self, token: u64) {
        match token {
            0 | 1 => {
                let port = &mut self.ports[token as usize];
                (port.readable, port.writable) = (true, true);
            }
            INLETS => self.welcome(Pipe::Control),
            token if token == INLETS + 1 => self.welcome(Pipe::Bulk),
            SIGNALS => {
                let mut buf = [0; 1024];
                while sys::read(self.signals.as_fd(), &mut buf).is_ok_and(|count| count > 0) {}
                self.core.reap();
            }
            _ => {
                if let Some(job) = self.core.jobs.get_mut(&(token / SLOTS * SLOTS)) {
                    job.mark(token % SLOTS);
                } else if let Some(connection) = self.core.connections.get_mut(&token) {
                    connection.mark();
                } else {
                    self.core.processes.mark(token);
                }
            }
        }
    }

    /// The host has connected again, if it was the host: what belonged to its earlier connection ends.
    fn welcome(&mut self, pipe: Pipe) {
        let waiting = self.inlets.as_ref().and_then(|inlets| vsock::accept(inlets[pipe.index()].as_fd()));
        let Some(fd) = waiting.filter(|fd| watch(&self.core.epoll, fd, pipe).is_ok()) else { return };
        self.ports[pipe.index()] = Port::new(fd, pipe);
        if let Some(event) = self.core.mux.hang_up(pipe) {
            self.core.act(&event);
        }
    }

    fn read(&mut self, pipe: Pipe) {
        let port = &mut self.ports[pipe.index()];
        let mut left = TURN;
        while port.readable && left > 0 && !self.core.mux.is_congested() {
            match sys::read(port.fd.as_fd(), port.decoder.room()) {
                Ok(0) => {
                    port.readable = false;
                    if let Some(event) = self.core.mux.hang_up(pipe) {
                        self.core.act(&event);
                    }
                }
                Ok(count) => {
                    left = left.saturating_sub(count);
                    port.decoder.filled(count);
                    while let Some(item) = port.decoder.next_item() {
                        if let Some(event) = self.core.mux.take(pipe, &item) {
                            self.core.act(&event);
                        }
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => port.readable = false,
            }
        }
    }

    fn write(&mut self, pipe: Pipe) {
        let port = &mut self.ports[pipe.index()];
        while port.writable {
            let pending = self.core.mux.pending(pipe);
            if pending.is_empty() {
                return;
            }
            match sys::write(port.fd.as_fd(), pending) {
                Ok(count) => self.core.mux.written(pipe, count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => port.writable = false,
            }
        }
    }
}

impl Core {
    fn act(&mut self, event: &Event<'_>) {
        match *event {
            Event::Begin(greeting) => {
                self.end_session();
                let own = self.life.is_none_or(|life| life == greeting.generation);
                self.standing = if own { Standing::Own } else { Standing::Restored };
            }
            Event::End => self.end_session(),
            Event::Open { stream, verb, request, .. } => {
                if let Err(failure) = self.open(stream, verb, request) {
                    self.mux.reset(stream, &failure);
                }
            }
            Event::Data(stream, bytes) => {
                if let Some(calibration) = self.calibrations.get_mut(&stream) {
                    calibration.feed(&mut self.mux, stream, bytes);
                } else if let Some(process) = self.processes.on(stream) {
                    let fed = process.feed(&mut self.mux, bytes);
                    self.unless_refused(stream, fed);
                } else if let Some(job) = self.jobs.values_mut().find(|job| job.stream() == stream) {
                    job.feed(&mut self.mux, bytes);
                } else if let Some(connection) = self.connections.values_mut().find(|connection| connection.stream() == stream) {
                    connection.feed(&mut self.mux, bytes);
                } else {
                    self.mux.consumed(stream, bytes.len());
                }
            }
            Event::Message(stream, bytes) => {
                let heard = match self.processes.on(stream) {
                    Some(process) => Message::decode(bytes).and_then(|message| {
                        if matches!(&message, Message::Signal(it) if it.all && i32::from(it.signal) == libc::SIGKILL) {
                            // Guest root may have left its cgroup; its session it left only if it gave up being the leader.
                            self.doomed.extend(process.life.session());
                        }
                        process.obey(&message)
                    }),
                    None => match self.jobs.values_mut().find(|job| job.stream() == stream) {
                        Some(job) => job.tell(bytes).map(|()| 0),
                        None => Err(job::unwanted(stream)),
                    },
                };
                self.mux.consumed(stream, bytes.len() - heard.as_ref().unwrap_or(&0));
                self.unless_refused(stream, heard.map(drop));
            }
            Event::Credit(stream) => {
                if let Some(process) = self.processes.on(stream) {
                    process.credited(&self.mux);
                }
            }
            Event::Close(stream) => {
                if let Some(calibration) = self.calibrations.get_mut(&stream) {
                    if calibration.end_input(&mut self.mux, stream) {
                        self.calibrations.remove(&stream);
                    }
                } else if let Some(job) = self.jobs.values_mut().find(|job| job.stream() == stream) {
                    job.end_input();
                } else if let Some(connection) = self.connections.values_mut().find(|connection| connection.stream() == stream) {
                    connection.end_input();
                } else {
                    let closed = self.processes.closed(stream, &mut self.workloads).map(|session| self.doomed.extend(session));
                    self.unless_refused(stream, closed);
                }
            }
            Event::Reset(stream) => {
                self.calibrations.remove(&stream);
                self.doomed.extend(self.processes.lost(stream, &mut self.workloads));
                let cut = self.connections.iter().find(|(_, connection)| connection.stream() == stream).map(|(id, _)| *id);
                if let Some(connection) = cut.and_then(|id| self.connections.remove(&id)) {
                    connection.cut();
                }
                let found = self.jobs.iter_mut().find(|(_, job)| job.stream() == stream);
                let found = found.and_then(|(id, job)| (!job.let_go(now())).then_some(*id));
                if let Some(job) = found.and_then(|id| self.jobs.remove(&id)) {
                    self.doomed.extend(job.abandon(&mut self.workloads));
                }
            }
        }
    }

    /// A stream's host broke its rules: the stream ends.
    fn unless_refused(&mut self, stream: u32, done: Result<(), Failure>) {
        if let Err(failure) = done {
            self.mux.reset(stream, &failure);
            self.act(&Event::Reset(stream));
        }
    }

    /// What was started in a session does not outlive it, wherever it went, unless it is kept.
    fn end_session(&mut self) {
        self.calibrations.clear();
        std::mem::take(&mut self.connections).into_values().for_each(Connection::cut);
        let (mut doomed, mut spared) = self.processes.end_session(&mut self.workloads);
        // A child that clears up after itself is given the time for that.
        let mut jobs = Vec::new();
        for (id, mut job) in std::mem::take(&mut self.jobs) {
            if job.let_go(now()) {
                self.jobs.insert(id, job);
            } else {
                jobs.push(job);
            }
        }
        for (leaf, leader) in self.jobs.values().map(Job::members) {
            spared.leaves.insert(leaf.to_owned());
            spared.leaders.insert(leader);
        }
        spared.leaves.extend(self.workloads.staying());
        doomed.append(&mut self.doomed);
        if spared.leaves.is_empty() || self.workloads.kill_all_but(&spared).is_err() {
            sys::kill_all_others();
        } else {
            // Some of it may be in a group that is spared.
            procs::kill_sessions(self.held.proc.as_fd(), &doomed);
        }
        for job in jobs {
            job.abandon(&mut self.workloads);
        }
    }

    /// The first of as many tokens as a child may have descriptors.
    fn token(&mut self) -> u64 {
        self.next_job += SLOTS;
        self.next_job - SLOTS
    }

    fn start(&mut self, stream: u32, purpose: Purpose, way: Way, child: child::Child) -> Result<&mut Job, Failure> {
        let id = self.token();
        let job = Job::new(stream, purpose, way, child);
        if let Err(error) = job.watch(&self.epoll, id) {
            self.doomed.extend(job.abandon(&mut self.workloads));
            return Err(child::refusal("watch a process", &error));
        }
        Ok(self.jobs.entry(id).or_insert(job))
    }

    /// Kill the doomed sessions. Their leaders' numbers are theirs until they are reaped.
    fn hunt(&mut self) {
        let doomed = std::mem::take(&mut self.doomed);
        if !doomed.is_empty() {
            procs::kill_sessions(self.held.proc.as_fd(), &doomed);
        }
    }

    /// PID 1 takes everybody's orphans.
    fn reap(&mut self) {
        self.hunt();
        while let Some((pid, status)) = sys::reap() {
            if let Some(job) = self.jobs.values_mut().find(|job| job.awaits(pid)) {
                job.leader_ended();
            } else {
                self.processes.reaped(pid, status, now());
            }
        }
        self.workloads.sweep();
    }

    fn keep_time(&mut self) {
        let now = now();
        self.doomed.extend(self.processes.keep_time(now));
        for job in self.jobs.values_mut().filter(|job| job.deadline().is_some_and(|at| at <= now)) {
            self.doomed.extend(job.time_out());
        }
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.step(&self.workloads, self.mux.pending(Pipe::Control).is_empty(), now);
        }
    }

    fn pump(&mut self) {
        let mux = &mut self.mux;
        self.calibrations.retain(|stream, calibration| !calibration.pump(mux, *stream));
        let (mut over, mut given) = (Vec::new(), None);
        for (id, job) in &mut self.jobs {
            match job.pump(mux) {
                Outcome::Pending => continue,
                Outcome::Done(message) => {
                    match &mut job.purpose {
                        Purpose::Configure(all) => given = Some(std::mem::take(all)),
                        Purpose::Grow(bytes) => self.filled = Some(*bytes),
                        Purpose::Imprint if self.standing == Standing::Restored => self.standing = Standing::Imprinted,
                        Purpose::Imprint | Purpose::Verb => {}
                    }
                    mux.send(job.stream(), &message);
                    mux.close(job.stream());
                }
                Outcome::Failed(failure) => mux.reset(job.stream(), &failure),
            }
            over.push(*id);
        }
        if let Some(given) = given {
            self.become_own(given);
        }
        self.doomed.extend(self.processes.pump(&mut self.mux, &mut self.workloads));
        for id in over {
            if let Some(job) = self.jobs.remove(&id) {
                self.doomed.extend(job.abandon(&mut self.workloads));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::cgroup::fake;

    fn core(scratch: &fake::Scratch) -> Core {
        let open = |path: &str| sys::open(path, libc::O_RDONLY).unwrap();
        let held = Held {
            proc: open("/proc"),
            root: open("/"),
            null: open("/dev/null"),
            terminals: open("/dev/pts"),
            random: open("/dev/null"),
            disk: open("/dev/null"),
            boot_id: open("/dev/null"),
            environment: open("/dev/null"),
        };
        Core {
            held,
            workloads: fake::workloads(&scratch.0),
            epoll: Epoll::new().unwrap(),
            mux: Mux::new(),
            jobs: BTreeMap::new(),
            processes: Processes::default(),
            connections: BTreeMap::new(),
            calibrations: BTreeMap::new(),
            doomed: BTreeSet::new(),
            next_job: FIRST_JOB,
            env: None,
            life: None,
            filled: None,
            standing: Standing::Own,
            shutdown: None,
        }
    }

    #[test]
    fn a_process_that_cannot_be_watched_is_killed_and_its_cgroup_removed() {
        let scratch = fake::Scratch::new();
        let mut core = core(&scratch);
        let mut process = Command::new("sleep").arg("20").spawn().unwrap();
        let leaf = fake::leaf(&scratch.0, "p1", false);
        std::fs::remove_file(scratch.0.join("p1/cgroup.kill")).unwrap();
        // epoll takes no directories.
        let report = sys::open("/", libc::O_RDONLY).unwrap();
        let child = child::Child { pid: process.id() as i32, leaf, report, inlet: None, outlets: [None, None] };
        let refused = core.start(1, Purpose::Verb, Way::Pipes, child).err().unwrap();
        core.hunt();
        assert_eq!((refused.code.as_str(), core.jobs.len()), ("guest_error", 0), "{}", refused.message);
        assert!(!scratch.0.join("p1").exists());
        assert_eq!(process.wait().unwrap().signal(), Some(9));
    }
}
