//! Workload cgroups: everything that runs for the host lives below `/work`, each process started by the host in a leaf of its own.
//!
//! The daemon itself stays in the root group, which has no limit: when workloads want more memory than there is, the kernel
//! looks for a victim below `/work` only. Directories are held open from boot on, so that a guest root who mounts over
//! or unmounts them changes nothing.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys;

const CONTROLLERS: [&str; 4] = ["+memory", "+pids", "+cpu", "+io"];
const DIRECTORY: i32 = libc::O_RDONLY | libc::O_DIRECTORY;
const MIB: u64 = 1 << 20;

/// Memory that workloads may not have, in bytes, of what is available after boot: for the daemon, its buffers and what the kernel
/// charges to nobody.
const fn reserve(available: u64) -> u64 {
    let part = available / 16;
    if part < 24 * MIB {
        24 * MIB
    } else if part > 128 * MIB {
        128 * MIB
    } else {
        part
    }
}

/// The group above all workloads.
pub struct Workloads {
    dir: OwnedFd,
    next: u64,
    dying: Vec<Leaf>,
}

impl Workloads {
    /// Make `/work` below a cgroup file system. memory: what is available, bytes. tasks: how many the kernel can have.
    pub fn new(root: BorrowedFd<'_>, memory: u64, tasks: u64) -> io::Result<Self> {
        enable(root);
        let dir = make(root, c"work")?;
        enable(dir.as_fd());
        sys::write_small(&dir, c"memory.max", &memory.saturating_sub(reserve(memory)).to_string())?;
        sys::write_small(&dir, c"pids.max", &(tasks / 4 * 3).to_string())?;
        Ok(Self { dir, next: 1, dying: Vec::new() })
    }

    /// A fresh leaf.
    pub fn leaf(&mut self) -> io::Result<Leaf> {
        let name = CString::new(format!("p{}", self.next)).unwrap_or_default();
        self.next += 1;
        let dir = make(self.dir.as_fd(), &name)?;
        let events = sys::open_at(dir.as_fd(), c"cgroup.events", libc::O_RDONLY, 0)?;
        Ok(Leaf { name, dir, events })
    }

    /// Processes and threads of all workloads.
    pub fn tasks(&self) -> u64 {
        sys::read_small(&self.dir, c"pids.current").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Kill what is left of a leaf and remove it, now or when [`Workloads::sweep`] finds it empty.
    pub fn bury(&mut self, leaf: Leaf) {
        leaf.kill();
        self.dying.push(leaf);
        self.sweep();
    }

    /// Remove the leaves that have become empty.
    pub fn sweep(&mut self) {
        let dir = self.dir.as_fd();
        self.dying.retain(|leaf| !leaf.is_empty() || remove(dir, &leaf.name, 8).is_err());
    }

    /// Whether no workload runs.
    pub fn is_empty(&self) -> bool {
        sys::read_small(&self.dir, c"cgroup.events").is_ok_and(|text| text.contains("populated 0"))
    }

    /// Send a signal to every workload process that is there now.
    pub fn signal_all(&self, signal: i32) {
        signal_below(self.dir.as_fd(), signal, 8);
    }

    /// Kill every workload.
    pub fn kill_all(&self) {
        let _ = sys::write_small(&self.dir, c"cgroup.kill", "1");
    }
}

/// The group of one process that the host started, and of all that came of it.
pub struct Leaf {
    name: CString,
    dir: OwnedFd,
    events: OwnedFd,
}

impl Leaf {
    /// What `clone3` takes.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Where the kernel tells (as `EPOLLPRI`) that the leaf became empty.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether no process is left.
    pub fn is_empty(&self) -> bool {
        let mut text = [0; 128];
        sys::read_at_start(self.events(), &mut text).is_ok_and(|count| text[..count].windows(11).any(|part| part == b"populated 0"))
    }

    /// Kill everything in it.
    pub fn kill(&self) {
        let _ = sys::write_small(&self.dir, c"cgroup.kill", "1");
    }

    /// Whether the kernel killed one of its processes for want of memory.
    pub fn was_out_of_memory(&self) -> bool {
        sys::read_small(&self.dir, c"memory.events")
            .is_ok_and(|text| text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count != "0")))
    }
}

/// Controllers are taken one by one: a kernel without one of them still has the others.
fn enable(dir: BorrowedFd<'_>) {
    for controller in CONTROLLERS {
        let _ = sys::write_small(dir, c"cgroup.subtree_control", controller);
    }
}

fn make(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a valid descriptor and string.
    sys::check(unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o755) })?;
    sys::open_at(parent, name, DIRECTORY, 0)
}

/// Guest root may have made groups of its own in a leaf.
fn remove(parent: BorrowedFd<'_>, name: &CStr, depth: u8) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    let unlink = || sys::check(unsafe { libc::unlinkat(parent.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) });
    match unlink() {
        Err(error) if depth == 0 => return Err(error),
        Err(_) => {}
        Ok(_) => return Ok(()),
    }
    let dir = sys::open_at(parent, name, DIRECTORY, 0)?;
    for child in sys::names(dir.try_clone()?)? {
        let _ = remove(dir.as_fd(), &child, depth - 1);
    }
    unlink().map(drop)
}

fn signal_below(dir: BorrowedFd<'_>, signal: i32, depth: u8) {
    for pid in sys::read_small(dir, c"cgroup.procs").unwrap_or_default().lines().filter_map(|line| line.parse::<i32>().ok()) {
        if pid > 1 {
            // SAFETY: a plain call.
            unsafe { libc::kill(pid, signal) };
        }
    }
    let Ok(again) = sys::open_at(dir, c".", DIRECTORY, 0) else { return };
    for name in sys::names(again).unwrap_or_default() {
        if let Some(child) = sys::open_at(dir, &name, DIRECTORY | libc::O_NOFOLLOW, 0).ok().filter(|_| depth > 0) {
            signal_below(child.as_fd(), signal, depth - 1);
        }
    }
}
