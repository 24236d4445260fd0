//! What an OPEN asks for: the verbs by name, and those that need no files of the guest's. (The others are in `verbs`.)

use std::os::fd::AsFd;

use space_protocol::messages::{Attach, Claim, Configure, Empty, Exec, Grow, Imprint, Process, Source, Variable, decode};
use space_protocol::{Failure, Message};

use super::{Core, Standing, now};
use crate::calibrate::Calibration;
use crate::child::{self, Needs};
use crate::imprint::Step;
use crate::job::{Given, Purpose, Way};
use crate::shutdown::Shutdown;
use crate::{configure, disk, exec, files, imprint, metrics, process, watch};

impl Core {
    pub(super) fn open(&mut self, stream: u32, verb: &str, request: &[u8]) -> Result<(), Failure> {
        if self.shutdown.is_some() {
            return Err(Failure::new("gone", "the sandbox is shutting down"));
        }
        self.permit(verb)?;
        match verb {
            "noop" => decode::<Empty>(request).map(|request| self.answer(stream, &Message::Done(request))),
            "metrics" => {
                decode::<Empty>(request)?;
                let message = Message::Metrics(metrics::take(&self.held, &self.workloads));
                self.answer(stream, &message);
                Ok(())
            }
            "shutdown" => {
                let request = decode::<Empty>(request)?;
                self.answer(stream, &Message::Done(request));
                self.shutdown = Some(Shutdown::begin(&self.workloads, now()));
                Ok(())
            }
            "echo" => decode::<Empty>(request).map(|_| self.calibrate(stream, Calibration::Echo { waiting: [].into(), ends: false })),
            "sink" => decode::<Empty>(request).map(|_| self.calibrate(stream, Calibration::Sink(0))),
            "source" => {
                let Source { bytes } = decode(request)?;
                self.calibrate(stream, Calibration::Source { left: bytes, total: bytes });
                Ok(())
            }
            "configure" => self.configure(stream, &decode(request)?),
            "prepare_snapshot" => self.in_child(stream, &decode(request)?, imprint::prepare),
            "imprint" => self.imprint(stream, &decode(request)?),
            "claim" => self.claim(stream, &decode(request)?),
            "grow" => self.grow(stream, &decode(request)?),
            "exec" => self.exec(stream, &decode(request)?, false),
            "launch" => self.exec(stream, &decode(request)?, true),
            "attach" => {
                let Attach { process, stdout, stderr } = decode(request)?;
                self.processes.attach(stream, &process, [stdout, stderr], &mut self.mux)
            }
            "processes" => {
                decode::<Empty>(request)?;
                self.processes.list().iter().for_each(|message| self.mux.send(stream, message));
                self.mux.close(stream);
                Ok(())
            }
            "forget" => {
                let Process { process } = decode(request)?;
                self.doomed.extend(self.processes.forget(&process, &mut self.mux, &mut self.workloads)?);
                self.answer(stream, &Message::Done(Empty {}));
                Ok(())
            }
            "tree_put" => self.tree(stream, &decode(request)?, true),
            "tree_get" => self.tree(stream, &decode(request)?, false),
            "file_stat" => self.in_child(stream, &decode(request)?, files::stat),
            "file_list" => self.in_child(stream, &decode(request)?, files::list),
            "file_mkdir" => self.in_child(stream, &decode(request)?, files::make_dir),
            "file_move" => self.in_child(stream, &decode(request)?, files::rename),
            "file_remove" => self.in_child(stream, &decode(request)?, files::remove),
            "file_chmod" => self.in_child(stream, &decode(request)?, files::change_mode),
            "file_chown" => self.in_child(stream, &decode(request)?, files::change_owner),
            "file_symlink" => self.in_child(stream, &decode(request)?, files::link),
            "watch" => self.in_child(stream, &decode(request)?, watch::watch),
            "connect" => self.connect(stream, &decode(request)?),
            "file_read" => self.file_read(stream, &decode(request)?),
            "file_write" => self.written(stream, &decode(request)?, files::write),
            "entry_stat" => self.in_child(stream, &decode(request)?, files::entry),
            "entry_list" => self.in_child(stream, &decode(request)?, files::list_entries),
            "entry_mkdir" => self.in_child(stream, &decode(request)?, files::make_entry_dir),
            "entry_move" => self.in_child(stream, &decode(request)?, files::move_entry),
            "entry_remove" => self.in_child(stream, &decode(request)?, files::remove_entry),
            "entry_write" => self.written(stream, &decode(request)?, files::write_entry),
            "entry_watch" => self.asked(stream, &decode(request)?, watch::watch_entry),
            _ => Err(Failure::new("unsupported", format!("this daemon does not know the verb '{}'", exec::shown(verb.as_bytes())))),
        }
    }

    pub(super) fn answer(&mut self, stream: u32, message: &Message) {
        self.mux.send(stream, message);
        self.mux.close(stream);
    }

    fn calibrate(&mut self, stream: u32, calibration: Calibration) {
        self.calibrations.insert(stream, calibration);
    }

    fn configure(&mut self, stream: u32, request: &Configure) -> Result<(), Failure> {
        configure::check(request)?;
        let filled = disk::size_of_root(&self.held);
        let needs = Needs { inlet: false, outlets: [false; 2] };
        let extra = configure::needs(&self.held);
        let child = child::spawn(&self.held, &mut self.workloads, needs, &extra, || configure::run(request))?;
        let given = Given { env: request.env.clone(), life: request.generation, filled };
        self.start(stream, Purpose::Configure(given), Way::Pipes, child).map(drop)
    }

    fn claim(&mut self, stream: u32, request: &Claim) -> Result<(), Failure> {
        configure::check_claim(request)?;
        self.configured()?;
        let given = Given { env: request.env.clone(), life: request.generation, filled: disk::size_of_root(&self.held) };
        if given.filled == self.filled
            && let Some(done) = configure::claim_at_once(request, &self.held)
        {
            let message = done?;
            self.become_own(given);
            self.answer(stream, &message);
            return Ok(());
        }
        let needs = Needs { inlet: false, outlets: [false; 2] };
        let extra = configure::needs(&self.held);
        let child = child::spawn(&self.held, &mut self.workloads, needs, &extra, || configure::claim(request))?;
        self.start(stream, Purpose::Configure(given), Way::Pipes, child).map(drop)
    }

    fn grow(&mut self, stream: u32, request: &Grow) -> Result<(), Failure> {
        self.configured()?;
        let needs = Needs { inlet: false, outlets: [false; 2] };
        let extra = configure::needs(&self.held);
        let child = child::spawn(&self.held, &mut self.workloads, needs, &extra, || disk::grow(request))?;
        self.start(stream, Purpose::Grow(request.disk_bytes), Way::Pipes, child).map(drop)
    }

    fn imprint(&mut self, stream: u32, request: &Imprint) -> Result<(), Failure> {
        imprint::check(request)?;
        let left = match imprint::at_once(request, &self.held)? {
            Step::Done(imprinted) => {
                if self.standing == Standing::Restored {
                    self.standing = Standing::Imprinted;
                }
                self.answer(stream, &Message::Imprinted(imprinted));
                return Ok(());
            }
            Step::Left(left) => left,
        };
        let needs = Needs { inlet: false, outlets: [false; 2] };
        let extra = imprint::needs(&self.held);
        let child = child::spawn(&self.held, &mut self.workloads, needs, &extra, || imprint::run(request, left))?;
        self.start(stream, Purpose::Imprint, Way::Pipes, child).map(drop)
    }

    pub(super) fn become_own(&mut self, given: Given) {
        let shown: Vec<u8> = given.env.iter().flat_map(|(name, value)| [&name.0[..], b"=", &value.0[..], b"\0"].concat()).collect();
        // By a held descriptor, of a file of memory: nothing that guest root does can make this wait.
        let _ = configure::overwrite(self.held.environment.as_fd(), &shown);
        (self.env, self.life, self.standing) = (Some(given.env), Some(given.life), Standing::Own);
        self.filled = given.filled;
    }

    /// A restored guest does nothing for its host before it is somebody of its own.
    fn permit(&self, verb: &str) -> Result<(), Failure> {
        let allowed = match self.standing {
            Standing::Own => true,
            Standing::Restored => matches!(verb, "noop" | "metrics" | "shutdown" | "imprint"),
            Standing::Imprinted => matches!(verb, "noop" | "metrics" | "shutdown" | "imprint" | "claim" | "exec"),
        };
        if allowed {
            return Ok(());
        }
        let missing = if self.standing == Standing::Restored { "imprinted" } else { "claimed" };
        Err(Failure::new(
            "conflict",
            format!("this guest was restored and is not {missing} yet: '{}' has to wait", exec::shown(verb.as_bytes())),
        ))
    }

    /// stays: what the program leaves behind goes on.
    fn exec(&mut self, stream: u32, request: &Exec, stays: bool) -> Result<(), Failure> {
        exec::check(request)?;
        if stays && (request.keep.is_none() || request.pty.is_some()) {
            return Err(Failure::invalid("what is launched is kept, and has no terminal"));
        }
        if self.standing == Standing::Imprinted && request.keep.is_some() {
            return Err(Failure::new("conflict", "this guest was restored and is not claimed yet: nothing is kept in it"));
        }
        request.keep.as_deref().map_or(Ok(()), |name| self.processes.admit(name))?;
        let base = self.configured()?;
        let body = || exec::run(request, &base);
        let child = if let Some(size) = &request.pty {
            child::spawn_on_terminal(&self.held, &mut self.workloads, size, body)
        } else {
            let needs = Needs { inlet: request.stdin, outlets: [true; 2] };
            child::spawn(&self.held, &mut self.workloads, needs, &[], body)
        }?;
        let mut process = process::Process::new(stream, request, child, now());
        if stays {
            process.life.stay();
        }
        let id = self.token();
        if let Err(error) = process.watch(&self.epoll, id) {
            self.doomed.extend(process.abandon(&mut self.workloads));
            return Err(child::refusal("watch a process", &error));
        }
        self.processes.insert(id, process);
        Ok(())
    }

    /// Nothing of the caller's runs before clock and random numbers are right.
    pub(super) fn configured(&self) -> Result<Vec<Variable>, Failure> {
        self.env.clone().ok_or_else(|| Failure::new("unavailable", "the sandbox has not been configured since it booted"))
    }
}
