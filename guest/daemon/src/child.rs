//! Children: a fork in a cgroup of its own, joined to the daemon by pipes only.
//!
//! Everything that may wait for the guest's file system (accounts, PATH, trees, resizing) happens in a child, because guest root
//! can make any file hang; the daemon itself never does. A child says how it went on its report pipe: one byte, 0 and a message
//! or 1 and a failure; messages may come before ([`crate::report`]). A program that was executed says nothing, its report just ends.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use space_protocol::messages::Window;
use space_protocol::{Failure, Message, messages};

use crate::boot::Held;
use crate::cgroup::{Leaf, Workloads};
use crate::sys::{self, Fork};
use crate::terminal::Terminal;

/// Where a child says how it went.
pub const REPORT: i32 = 3;
/// The kernel's process file system.
pub const PROC: i32 = 4;
/// The first of the descriptors that a child was given besides.
pub const EXTRA: i32 = 5;
const PIPE_BYTES: i32 = 256 << 10;

/// Which pipes a child gets; what it has none for is `/dev/null`.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Standard input.
    pub inlet: bool,
    /// Standard output, standard error.
    pub outlets: [bool; 2],
}

/// The daemon's ends of what a child reads and writes, and the child's.
struct Ends {
    inlet: Option<OwnedFd>,
    outlets: [Option<OwnedFd>; 2],
    theirs: [Option<OwnedFd>; 3],
}

impl Ends {
    fn pipes(needs: Needs) -> std::io::Result<Self> {
        let pipe = |wanted: bool, to_child: bool| {
            if !wanted {
                return Ok((None, None));
            }
            let (read, write) = sys::pipe()?;
            let (ours, theirs) = if to_child { (write, read) } else { (read, write) };
            sys::set_nonblocking(ours.as_fd())?;
            sys::grow_pipe(ours.as_fd(), PIPE_BYTES);
            Ok::<_, std::io::Error>((Some(ours), Some(theirs)))
        };
        let (inlet, stdin) = pipe(needs.inlet, true)?;
        let (out, stdout) = pipe(needs.outlets[0], false)?;
        let (err, stderr) = pipe(needs.outlets[1], false)?;
        Ok(Self { inlet, outlets: [out, err], theirs: [stdin, stdout, stderr] })
    }

    fn terminal(terminals: BorrowedFd<'_>, size: &Window) -> std::io::Result<Self> {
        let Terminal { master, slave } = Terminal::open(terminals, size)?;
        let theirs = [Some(slave.try_clone()?), Some(slave.try_clone()?), Some(slave)];
        Ok(Self { inlet: Some(master.try_clone()?), outlets: [Some(master), None], theirs })
    }
}

/// A running child, as the daemon holds it. All pipes are non-blocking.
pub struct Child {
    /// Process id.
    pub pid: i32,
    /// Its cgroup.
    pub leaf: Leaf,
    /// Ends with what the child has to say, or with its exec.
    pub report: OwnedFd,
    /// Its standard input.
    pub inlet: Option<OwnedFd>,
    /// Its standard output and error.
    pub outlets: [Option<OwnedFd>; 2],
}

/// Start a child that runs `body`.
pub fn spawn(
    held: &Held,
    workloads: &mut Workloads,
    needs: Needs,
    extra: &[BorrowedFd<'_>],
    body: impl FnOnce() -> Result<Message, Failure>,
) -> Result<Child, Failure> {
    let ends = Ends::pipes(needs).map_err(|error| refusal("make a pipe", &error))?;
    start(held, workloads, ends, extra, body)
}

/// Start a child on a terminal of its own. It inherits that as its three descriptors, and has yet to take it for its session.
pub fn spawn_on_terminal(
    held: &Held,
    workloads: &mut Workloads,
    size: &Window,
    body: impl FnOnce() -> Result<Message, Failure>,
) -> Result<Child, Failure> {
    let ends = Ends::terminal(held.terminals.as_fd(), size).map_err(|error| refusal("make a terminal", &error))?;
    start(held, workloads, ends, &[], body)
}

fn start(
    held: &Held,
    workloads: &mut Workloads,
    ends: Ends,
    extra: &[BorrowedFd<'_>],
    body: impl FnOnce() -> Result<Message, Failure>,
) -> Result<Child, Failure> {
    let fault = |what: &'static str| move |error: std::io::Error| refusal(what, &error);
    let (report, told) = sys::pipe().map_err(fault("make a pipe"))?;
    sys::set_nonblocking(report.as_fd()).map_err(fault("make a pipe"))?;
    let leaf = workloads.leaf().map_err(fault("make a cgroup"))?;
    let mut fds: Vec<i32> = ends.theirs.iter().map(|end| end.as_ref().unwrap_or(&held.null).as_raw_fd()).collect();
    fds.extend([told.as_raw_fd(), held.proc.as_raw_fd()]);
    fds.extend(extra.iter().map(AsRawFd::as_raw_fd));
    // SAFETY: the daemon has one thread.
    match unsafe { sys::fork_into(Some(leaf.dir())) } {
        Ok(Fork::Child) => run(&fds, body),
        Ok(Fork::Parent(pid)) => Ok(Child { pid, leaf, report, inlet: ends.inlet, outlets: ends.outlets }),
        Err(error) => {
            workloads.bury(leaf);
            Err(fault("start a process")(error))
        }
    }
}

/// Why a child cannot be had: the sandbox is full, or something is wrong with it.
pub fn refusal(what: &str, error: &std::io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM | libc::ENOSPC) => {
            Failure::new("no_capacity", format!("the sandbox has too much running to {what}: {error}"))
        }
        _ => Failure::guest(format!("the sandbox cannot {what}: {error}")),
    }
}

/// What a child said in its report, if anything.
pub fn read_report(report: &[u8]) -> Option<Result<Message, Failure>> {
    let (kind, body) = report.split_first()?;
    Some(match kind {
        0 => Message::decode(body),
        _ => Err(messages::decode(body).unwrap_or_else(|_| Failure::guest("a child of the daemon ended in the middle of its report"))),
    })
}

/// The child's life.
fn run(fds: &[i32], body: impl FnOnce() -> Result<Message, Failure>) -> ! {
    let outcome =
        prepare(fds).map_err(|error| Failure::guest(format!("the sandbox cannot prepare a process: {error}"))).and_then(|()| body());
    let report = match outcome {
        Ok(message) => [vec![0], message.encode()].concat(),
        Err(failure) => [vec![1], messages::encode(&failure)].concat(),
    };
    // SAFETY: the report's descriptor is open since `prepare`; _exit runs nothing of the daemon's.
    unsafe {
        let _ = sys::write_all(sys::numbered(REPORT), &report);
        libc::_exit(127)
    }
}

/// Take off what makes the daemon special.
fn prepare(fds: &[i32]) -> std::io::Result<()> {
    sys::keep_only(fds)?;
    // SAFETY: `keep_only` has just made it.
    sys::write_small(unsafe { sys::numbered(PROC) }, c"self/oom_score_adj", "0")?;
    sys::default_signals();
    sys::limit_descriptors(1024, 524_288)?;
    // SAFETY: plain calls.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::umask(0o022);
        let core = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const core);
        sys::check(libc::setsid()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_sandbox_is_told_apart_from_a_broken_one() {
        for (errno, code) in [
            (libc::EMFILE, "no_capacity"),
            (libc::ENFILE, "no_capacity"),
            (libc::EAGAIN, "no_capacity"),
            (libc::ENOMEM, "no_capacity"),
            (libc::EIO, "guest_error"),
        ] {
            let failure = refusal("start a process", &std::io::Error::from_raw_os_error(errno));
            assert_eq!(failure.code, code, "{}", failure.message);
        }
    }
}
