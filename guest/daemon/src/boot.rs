//! From `/init` of the initramfs to PID 1 of the root disk: modules, ports, network, disk, switch of the root, cgroups.
//!
//! Devices appear when the kernel says so: it waits on kernel events and looks again. Everything that later needs a
//! file of proc, sys or dev uses a descriptor that was opened here, because guest root may mount or delete what it likes.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::cgroup::Workloads;
use crate::devices::Announcements;
use crate::{metrics, net, sys, vsock};

/// How long a device may take to appear.
const PATIENCE: Duration = Duration::from_secs(20);
/// Descriptors that the daemon may have: a job holds six, and a thousand streams may be open.
const DESCRIPTORS: u64 = 65_536;
const NEW_ROOT: &str = "/newroot";
const PORTS: &str = "/sys/class/virtio-ports";

/// What the daemon holds of the system it runs on.
pub struct Machine {
    /// The ports `space.control` and `space.bulk`.
    pub ports: [OwnedFd; 2],
    /// Where the host's connections come from that take the places of the ports, if it has no ports.
    pub inlets: Option<[OwnedFd; 2]>,
    /// Where workloads live.
    pub workloads: Workloads,
    /// What children of the daemon need of the system.
    pub held: Held,
}

/// Files that must be reachable whatever guest root does to the tree.
pub struct Held {
    /// `/proc`.
    pub proc: OwnedFd,
    /// `/`.
    pub root: OwnedFd,
    /// `/dev/null`.
    pub null: OwnedFd,
    /// The root of the terminals' file system.
    pub terminals: OwnedFd,
    /// `/dev/random`.
    pub random: OwnedFd,
    /// The root file system's block device.
    pub disk: OwnedFd,
    /// The file that lies over the kernel's boot id, which never changes.
    pub boot_id: OwnedFd,
    /// The file that shows the sandbox's variables to programs that ran before it was anybody's.
    pub environment: OwnedFd,
}

/// Boot. The error is one line for the console.
pub fn boot() -> Result<Machine, String> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        sys::make_dir(target, 0o755).and_then(|()| mount_plain(kind, target)).map_err(|error| format!("cannot mount {target}: {error}"))?;
    }
    sys::limit_descriptors(DESCRIPTORS, DESCRIPTORS).map_err(|error| format!("cannot raise the limit of descriptors: {error}"))?;
    let words = command_line(&std::fs::read_to_string("/proc/cmdline").unwrap_or_default());
    let root = words.get("space.root").ok_or("space.root is not on the kernel's command line")?;
    let events = Announcements::listen().map_err(|error| format!("cannot listen to device events: {error}"))?;
    load_modules(Path::new("/lib/space"))?;
    net::loopback()?;
    if let Some(address) = words.get("space.ip") {
        net::Plan::parse(address, words.get("space.gateway").map(String::as_str))?.apply()?;
    }
    sys::make_dir(NEW_ROOT, 0o755).map_err(|error| format!("cannot make {NEW_ROOT}: {error}"))?;
    let disk = wait_for(&events, &format!("the root disk {root}"), || sys::open(root, libc::O_RDONLY))?;
    sys::mount(root, NEW_ROOT, "ext4", libc::MS_NOATIME, "").map_err(|error| format!("cannot mount {root} as ext4: {error}"))?;
    let (ports, inlets) = channel(&events, words.get("space.channel").map(String::as_str))?;
    drop(events);
    switch_root().map_err(|error| format!("cannot switch to the root disk: {error}"))?;
    let workloads = furnish().map_err(|error| format!("cannot set up the root disk's mounts and cgroups: {error}"))?;
    let hold = |path: &str, flags| sys::open(path, flags).map_err(|error| format!("cannot open {path}: {error}"));
    let held = Held {
        proc: hold("/proc", libc::O_RDONLY | libc::O_DIRECTORY)?,
        root: hold("/", libc::O_RDONLY | libc::O_DIRECTORY)?,
        null: hold("/dev/null", libc::O_RDWR)?,
        terminals: hold("/dev/pts", libc::O_RDONLY | libc::O_DIRECTORY)?,
        random: hold("/dev/random", libc::O_RDWR)?,
        disk,
        boot_id: shown_boot_id().map_err(|error| format!("cannot show a boot id: {error}"))?,
        environment: shown_environment().map_err(|error| format!("cannot show an environment: {error}"))?,
    };
    Ok(Machine { ports, inlets, workloads, held })
}

/// `key=value` words.
fn command_line(text: &str) -> BTreeMap<String, String> {
    text.split_ascii_whitespace().filter_map(|word| word.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn mount_plain(kind: &str, target: &str) -> io::Result<()> {
    let flags = libc::MS_NOSUID | if kind == "devtmpfs" { 0 } else { libc::MS_NODEV | libc::MS_NOEXEC };
    match sys::mount(kind, target, kind, flags, "") {
        // The kernel may have mounted devtmpfs itself.
        Err(error) if error.raw_os_error() != Some(libc::EBUSY) => Err(error),
        _ => Ok(()),
    }
}

fn load_modules(below: &Path) -> Result<(), String> {
    let order = below.join("modules.order");
    let text = std::fs::read_to_string(&order).map_err(|error| format!("cannot read {}: {error}", order.display()))?;
    for name in text.split_ascii_whitespace() {
        let path = below.join("modules").join(name);
        let file = std::fs::File::open(&path).map_err(|error| format!("cannot open the module {name}: {error}"))?;
        match sys::load_module(file.as_fd()) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(format!("cannot load the module {name}: {error}")),
            _ => {}
        }
    }
    Ok(())
}

/// What is not there yet comes within `PATIENCE`. A port's node comes before the port itself (ENXIO), and no event tells of that.
fn wait_for<T>(events: &Announcements, what: &str, attempt: impl FnMut() -> io::Result<T>) -> Result<T, String> {
    let waited = events.wait_for(PATIENCE, Some(Duration::from_millis(5)), attempt);
    waited.map_err(|error| format!("{what} did not appear within {} s: {error}", PATIENCE.as_secs()))
}

/// The pipes to the host: two virtio ports, or what stands for them until the host connects by vsock.
fn channel(events: &Announcements, kind: Option<&str>) -> Result<([OwnedFd; 2], Option<[OwnedFd; 2]>), String> {
    match kind {
        None => {
            let control = wait_for(events, "port space.control", || open_port("space.control"))?;
            let bulk = wait_for(events, "port space.bulk", || open_port("space.bulk"))?;
            Ok(([control, bulk], None))
        }
        Some("vsock") => {
            let fault = |error: io::Error| format!("cannot listen to the host by vsock: {error}");
            Ok(([vsock::nobody().map_err(fault)?, vsock::nobody().map_err(fault)?], Some(vsock::listen().map_err(fault)?)))
        }
        Some(other) => Err(format!("space.channel is {other}, which is none: it can be vsock")),
    }
}

/// Open the virtio port of that name.
fn open_port(name: &str) -> io::Result<OwnedFd> {
    for entry in std::fs::read_dir(PORTS)?.flatten() {
        if std::fs::read_to_string(entry.path().join("name")).is_ok_and(|found| found.trim_end() == name) {
            return sys::open(&format!("/dev/{}", entry.file_name().to_string_lossy()), libc::O_RDWR | libc::O_NONBLOCK);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENODEV))
}

/// Make the disk the root, and free the memory that the initramfs takes.
fn switch_root() -> io::Result<()> {
    for target in ["/proc", "/sys", "/dev"] {
        let there = format!("{NEW_ROOT}{target}");
        sys::make_dir(&there, 0o755)?;
        sys::mount(target, &there, "", libc::MS_MOVE, "")?;
    }
    let _ = std::fs::remove_dir_all("/lib/space");
    let _ = std::fs::remove_file("/init");
    sys::change_dir(Path::new(NEW_ROOT))?;
    sys::mount(".", "/", "", libc::MS_MOVE, "")?;
    sys::change_root(".")
}

/// What a system expects to find mounted, and the cgroups.
fn furnish() -> io::Result<Workloads> {
    let tmpfs = |target: &str, data: &str| {
        sys::make_dir(target, 0o755)?;
        sys::mount("tmpfs", target, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, data)
    };
    tmpfs("/dev/shm", "mode=1777,size=50%")?;
    tmpfs("/run", "mode=755,size=10%")?;
    sys::make_dir("/run/lock", 0o1777)?;
    sys::make_dir("/dev/pts", 0o755)?;
    sys::mount("devpts", "/dev/pts", "devpts", libc::MS_NOSUID | libc::MS_NOEXEC, "gid=5,mode=620,ptmxmode=666")?;
    for (link, to) in [("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "fd/0"), ("/dev/stdout", "fd/1"), ("/dev/stderr", "fd/2")] {
        let _ = std::os::unix::fs::symlink(to, link);
    }
    // /tmp stays on the disk: a small guest's builds need more room than its memory has.
    sys::make_dir("/tmp", 0o1777)?;
    let group = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    sys::mount("cgroup2", "/sys/fs/cgroup", "cgroup2", group, "")?;
    let root = sys::open("/sys/fs/cgroup", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let proc = sys::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let number = |name: &CStr| sys::read_small(&proc, name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024);
    sys::write_small(&proc, c"self/oom_score_adj", "-1000")?;
    // A watch is an inotify instance of the user's, of which the kernel gives 128; hundreds are watched at once, beside tools that do so too.
    let _ = sys::write_small(&proc, c"sys/fs/inotify/max_user_instances", "1024");
    // A restart tries the firmware before what always works, and the firmware of a restored machine has no kernel to boot: it would stay in
    // there for ever. A triple fault is a reset to every VMM.
    let _ = std::fs::write("/sys/kernel/reboot/type", "triple");
    // SAFETY: plain calls. Workloads at full load must not keep the channel from being answered.
    unsafe {
        libc::umask(0o022);
        libc::setpriority(libc::PRIO_PROCESS, 0, -15);
    }
    Workloads::new(root.as_fd(), metrics::memory_available(proc.as_fd()), number(c"sys/kernel/threads-max"))
}

/// The kernel makes its boot id once. Another file is put over that one, so that a copy of this machine need only write its own there.
fn shown_boot_id() -> io::Result<OwnedFd> {
    const SHOWN: &str = "/run/space/boot_id";
    const KERNELS: &str = "/proc/sys/kernel/random/boot_id";
    let kernels = sys::read_text(&sys::open(KERNELS, libc::O_RDONLY)?)?;
    sys::make_dir("/run/space", 0o755)?;
    std::fs::write(SHOWN, kernels)?;
    sys::mount(SHOWN, KERNELS, "", libc::MS_BIND, "")?;
    sys::open(SHOWN, libc::O_RDWR)
}

/// Programs of a template's start command run before the sandbox has variables: here they find them. For root and the usual user's group,
/// whose processes all have them.
fn shown_environment() -> io::Result<OwnedFd> {
    const SHOWN: &str = "/run/space/environment";
    const USER: u32 = 1000;
    std::fs::write(SHOWN, "")?;
    std::os::unix::fs::chown(SHOWN, Some(0), Some(USER))?;
    std::fs::set_permissions(SHOWN, std::os::unix::fs::PermissionsExt::from_mode(0o640))?;
    sys::open(SHOWN, libc::O_RDWR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_words_with_values() {
        let words = command_line("quiet console=ttyS0 space.root=/dev/vda space.ip=10.0.0.2/30 a=b=c\n");
        assert_eq!(words["space.root"], "/dev/vda");
        assert_eq!(words["a"], "b=c");
        assert!(!words.contains_key("quiet"));
    }
}
