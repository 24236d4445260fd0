//! Workload cgroups: everything that runs for the host lives below `/work`, each process started by the host in a leaf of its own.
//!
//! The daemon itself stays in the root group, which has no limit: when workloads want more memory than there is, the kernel
//! looks for a victim below `/work` only. Directories are held open from boot on, so that a guest root who mounts over
//! or unmounts them changes nothing.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys;

const CONTROLLERS: [&str; 4] = ["+memory", "+pids", "+cpu", "+io"];
const DIRECTORY: i32 = libc::O_RDONLY | libc::O_DIRECTORY;
const MIB: u64 = 1 << 20;
const WORK: &CStr = c"work";
/// How often it is looked for what was forked meanwhile.
const ROUNDS: usize = 64;
/// How deep groups are looked into.
const DEPTH: u8 = 8;
/// How often an empty leaf's removal is attempted.
const ATTEMPTS: u8 = 8;

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
    root: OwnedFd,
    dir: OwnedFd,
    next: u64,
    dying: Vec<Leaf>,
    staying: Vec<Leaf>,
}

impl Workloads {
    /// Make `/work` below a cgroup file system. memory: what is available, bytes. tasks: how many the kernel can have.
    pub fn new(root: BorrowedFd<'_>, memory: u64, tasks: u64) -> io::Result<Self> {
        enable(root);
        let dir = make(root, WORK)?;
        enable(dir.as_fd());
        sys::write_small(&dir, c"memory.max", &memory.saturating_sub(reserve(memory)).to_string())?;
        sys::write_small(&dir, c"pids.max", &(tasks / 4 * 3).to_string())?;
        let root = sys::open_held(root, c".", DIRECTORY)?;
        Ok(Self { root, dir, next: 1, dying: Vec::new(), staying: Vec::new() })
    }

    /// A fresh leaf.
    pub fn leaf(&mut self) -> io::Result<Leaf> {
        let name = CString::new(format!("p{}", self.next)).unwrap_or_default();
        self.next += 1;
        let dir = make(self.dir.as_fd(), &name)?;
        let events = sys::open_held(dir.as_fd(), c"cgroup.events", libc::O_RDONLY)?;
        Ok(Leaf { name, dir, events, attempts: 0 })
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

    /// Let what is left of a leaf go on: it is nobody's, and goes when it has ended, or with everything.
    pub fn leave(&mut self, leaf: Leaf) {
        self.staying.push(leaf);
        self.sweep();
    }

    /// Names of the leaves that go on.
    pub fn staying(&self) -> impl Iterator<Item = CString> {
        self.staying.iter().map(|leaf| leaf.name.clone())
    }

    /// Remove the leaves that have become empty. One that guest root keeps from being removed is left to it after some attempts.
    pub fn sweep(&mut self) {
        let (over, staying): (Vec<_>, Vec<_>) = std::mem::take(&mut self.staying).into_iter().partition(Leaf::is_empty);
        self.staying = staying;
        self.dying.extend(over);
        let dir = self.dir.as_fd();
        self.dying.retain_mut(|leaf| {
            if !leaf.is_empty() {
                return true;
            }
            leaf.attempts += 1;
            remove(dir, &leaf.name).is_err() && leaf.attempts < ATTEMPTS
        });
    }

    /// Whether no workload runs.
    pub fn is_empty(&self) -> bool {
        sys::read_small(&self.dir, c"cgroup.events").is_ok_and(|text| text.contains("populated 0"))
    }

    /// Send a signal to every workload process that is there now.
    pub fn signal_all(&self, signal: i32) {
        signal_below(self.dir.as_fd(), signal);
    }

    /// Kill everything that is not spared, wherever guest root has moved it: groups by their own kill, which no fork escapes; what is in
    /// the root group by moving it into a group that is then killed, so that its forks are born there.
    pub fn kill_all_but(&mut self, spared: &Spared) -> io::Result<()> {
        let gallows = self.leaf()?;
        for _ in 0..ROUNDS {
            kill_groups(self.root.as_fd(), |name| name != WORK);
            kill_groups(self.dir.as_fd(), |name| !spared.leaves.contains(name) && name != gallows.name.as_c_str());
            let strays = members(self.root.as_fd()).into_iter().filter(|pid| *pid > 1 && !spared.leaders.contains(pid));
            // A thread of the kernel is in no session, and must not be moved.
            let strays = strays.filter(|pid| sys::session_of(*pid).is_some_and(|session| session > 0));
            let moved = strays.filter(|pid| sys::write_small(&gallows.dir, c"cgroup.procs", &pid.to_string()).is_ok()).count();
            gallows.kill();
            if moved == 0 {
                break;
            }
        }
        self.bury(gallows);
        Ok(())
    }

    /// Kill every workload.
    pub fn kill_all(&self) {
        let _ = sys::write_small(&self.dir, c"cgroup.kill", "1");
    }
}

/// What outlives a session: leaves with all that is in them, and leaders wherever they are.
#[derive(Default)]
pub struct Spared {
    /// Names of leaves.
    pub leaves: BTreeSet<CString>,
    /// Process ids, none of which was reaped.
    pub leaders: BTreeSet<i32>,
}

/// The group of one process that the host started, and of all that came of it.
pub struct Leaf {
    name: CString,
    dir: OwnedFd,
    events: OwnedFd,
    attempts: u8,
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

    /// Its name below the workloads.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Send a signal to everything in it. `SIGKILL` no fork escapes; others are sent until nobody new is found.
    pub fn signal(&self, signal: i32) {
        if signal == libc::SIGKILL {
            self.kill();
        } else {
            signal_below(self.dir.as_fd(), signal);
        }
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
    sys::open_held(parent, name, DIRECTORY)
}

/// Guest root may have made groups of its own in a leaf, as deep as it liked: a way down is a list of names, not of descriptors.
fn remove(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    let unlink =
        |dir: BorrowedFd<'_>, name: &CStr| sys::check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) });
    if unlink(parent, name).is_ok() {
        return Ok(());
    }
    let mut at = sys::open_held(parent, name, DIRECTORY)?;
    let mut way: Vec<(CString, Vec<CString>)> = Vec::new();
    let mut left = sys::names(sys::open_held(at.as_fd(), c".", DIRECTORY)?)?;
    loop {
        if let Some(child) = left.pop() {
            // Most names are the kernel's files.
            if unlink(at.as_fd(), &child).is_err_and(|error| error.raw_os_error() != Some(libc::ENOTDIR)) {
                at = sys::open_held(at.as_fd(), &child, DIRECTORY)?;
                let below = sys::names(sys::open_held(at.as_fd(), c".", DIRECTORY)?)?;
                way.push((child, std::mem::replace(&mut left, below)));
            }
        } else {
            let Some((child, rest)) = way.pop() else { return unlink(parent, name).map(drop) };
            at = sys::open_held(at.as_fd(), c"..", DIRECTORY)?;
            left = rest;
            unlink(at.as_fd(), &child)?;
        }
    }
}

/// Signal everything in a group and those below it, each process once.
fn signal_below(dir: BorrowedFd<'_>, signal: i32) {
    let mut reached = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut found = Vec::new();
        members_below(dir, DEPTH, &mut found);
        let before = reached.len();
        for pid in found.into_iter().filter(|pid| *pid > 1) {
            if reached.insert(pid) {
                // SAFETY: a plain call.
                unsafe { libc::kill(pid, signal) };
            }
        }
        if reached.len() == before {
            return;
        }
    }
}

fn members(dir: BorrowedFd<'_>) -> Vec<i32> {
    sys::read_small(dir, c"cgroup.procs").unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
}

fn members_below(dir: BorrowedFd<'_>, depth: u8, found: &mut Vec<i32>) {
    found.extend(members(dir));
    for child in groups(dir).into_iter().filter(|_| depth > 0) {
        if let Ok(child) = sys::open_held(dir, &child, DIRECTORY | libc::O_NOFOLLOW) {
            members_below(child.as_fd(), depth - 1, found);
        }
    }
}

/// Names of the groups in a group.
fn groups(dir: BorrowedFd<'_>) -> Vec<CString> {
    let listed = sys::open_held(dir, c".", DIRECTORY).and_then(sys::names).unwrap_or_default();
    listed.into_iter().filter(|name| sys::stat_at(dir, name).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)).collect()
}

fn kill_groups(dir: BorrowedFd<'_>, chosen: impl Fn(&CStr) -> bool) {
    for name in groups(dir).into_iter().filter(|name| chosen(name)) {
        if let Ok(group) = sys::open_held(dir, &name, DIRECTORY | libc::O_NOFOLLOW) {
            let _ = sys::write_small(&group, c"cgroup.kill", "1");
        }
    }
}

#[cfg(test)]
pub mod fake {
    //! Directories that look like cgroups as far as the daemon looks.

    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::{env, fs, process};

    use super::*;

    static NEXT: AtomicU32 = AtomicU32::new(0);

    /// A directory that goes with the test.
    pub struct Scratch(pub PathBuf);

    impl Scratch {
        pub fn new() -> Self {
            let path = env::temp_dir().join(format!("space-cgroup-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    pub fn open(path: &Path) -> OwnedFd {
        sys::open(path.to_str().unwrap(), DIRECTORY).unwrap()
    }

    pub fn workloads(path: &Path) -> Workloads {
        Workloads { root: open(path), dir: open(path), next: 1, dying: Vec::new(), staying: Vec::new() }
    }

    /// A leaf of that name below them, with or without processes. What kills it can be read from its file `cgroup.kill`.
    pub fn leaf(path: &Path, name: &str, populated: bool) -> Leaf {
        let own = path.join(name);
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("cgroup.kill"), "").unwrap();
        let events = path.join(format!("{name}.events"));
        fs::write(&events, format!("populated {}\nfrozen 0\n", u8::from(populated))).unwrap();
        let events = sys::open(events.to_str().unwrap(), libc::O_RDONLY).unwrap();
        Leaf { name: CString::new(name).unwrap(), dir: open(&own), events, attempts: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn groups_of_any_depth_and_width_are_removed() {
        let scratch = fake::Scratch::new();
        let mut at = fake::open(&scratch.0);
        for name in std::iter::once(c"p1").chain(std::iter::repeat_n(c"deeper", 1500)) {
            at = make(at.as_fd(), name).unwrap();
            make(at.as_fd(), c"beside").unwrap();
        }
        drop(at);
        remove(fake::open(&scratch.0).as_fd(), c"p1").unwrap();
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    }

    #[test]
    fn all_groups_are_killed_but_those_that_are_spared() {
        let scratch = fake::Scratch::new();
        for name in ["p7", "p8", "made-by-root", "work"] {
            drop(fake::leaf(&scratch.0, name, true));
        }
        let spared = [c"p7".to_owned(), c"work".to_owned()];
        kill_groups(fake::open(&scratch.0).as_fd(), |name| !spared.iter().any(|one| one.as_c_str() == name));
        let groups = ["p7", "p8", "made-by-root", "work"].map(|name| fs::read(scratch.0.join(name).join("cgroup.kill")).unwrap());
        assert_eq!(groups, [b"".to_vec(), b"1".to_vec(), b"1".to_vec(), b"".to_vec()]);
    }

    #[test]
    fn a_leaf_that_goes_on_is_not_killed_and_is_removed_when_it_is_empty() {
        let scratch = fake::Scratch::new();
        let mut workloads = fake::workloads(&scratch.0);
        workloads.leave(fake::leaf(&scratch.0, "server", true));
        workloads.bury(fake::leaf(&scratch.0, "other", true));
        assert_eq!(workloads.staying().collect::<Vec<_>>(), [c"server".to_owned()]);
        let kill = |name: &str| fs::read(scratch.0.join(name).join("cgroup.kill")).unwrap();
        assert_eq!((kill("server"), kill("other")), (b"".to_vec(), b"1".to_vec()));
        fs::write(scratch.0.join("server.events"), "populated 0\nfrozen 0\n").unwrap();
        workloads.sweep();
        assert_eq!(workloads.staying().count(), 0);
    }

    #[test]
    fn a_leaf_that_cannot_be_removed_is_let_go_of() {
        let scratch = fake::Scratch::new();
        let mut workloads = fake::workloads(&scratch.0);
        workloads.bury(fake::leaf(&scratch.0, "stuck", false)); // its file keeps it, which no cgroup's would
        workloads.bury(fake::leaf(&scratch.0, "alive", true));
        assert_eq!(workloads.dying.len(), 2);
        for _ in 0..ATTEMPTS {
            workloads.sweep();
        }
        assert_eq!(workloads.dying.iter().map(|leaf| leaf.name.as_c_str()).collect::<Vec<_>>(), [c"alive"]);
    }
}
