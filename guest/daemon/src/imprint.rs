//! `prepare_snapshot`, and `imprint`: a restored guest becomes another machine than those of the same snapshot.
//!
//! What must differ differs before anything of the caller's runs: first the kernel's random numbers, then the names, then connections to
//! elsewhere are aborted, then what the template's own hooks make anew is. Any step that fails fails the whole.
//!
//! Most machines need no more than three small files written and have no hooks, and everything that runs for the first time after a
//! restore is slow where the processor is emulated. So the daemon does it itself, as long as all lies on the root file system,
//! in plain files. Guest root can still make that hang (a frozen file system), as it could a child: its own machine
//! then never answers, and the host gives it up. Everything else is left to a child, which can be killed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use space_protocol::messages::{Empty, Imprint, Imprinted, PrepareSnapshot};
use space_protocol::{Failure, Message};

use crate::boot::Held;
use crate::child::{EXTRA, PROC};
use crate::configure::{self, fault};
use crate::{inherited, sys};

const HOOKS: &str = "/etc/space/restore.d";
const MOST_HOOKS: usize = 64;
/// How long one hook may take, and all of them.
const ONE: Duration = Duration::from_secs(10);
const ALL: Duration = Duration::from_secs(20);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Refuse a request that cannot be obeyed.
pub fn check(request: &Imprint) -> Result<(), Failure> {
    configure::check_identity(&request.entropy.0, &request.hostname)?;
    let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if request.machine_id.len() != 32 || !hex(&request.machine_id) {
        return Err(Failure::invalid("machine_id must be 32 hex digits"));
    }
    let parts: Vec<&str> = request.boot_id.split('-').collect();
    if !parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) || !parts.iter().all(|part| hex(part)) {
        return Err(Failure::invalid("boot_id must be a UUID"));
    }
    Ok(())
}

/// What the child of an imprint needs.
pub fn needs(held: &Held) -> [BorrowedFd<'_>; 1] {
    [held.root.as_fd()]
}

/// In a child: everything that was written is on the disk.
pub fn prepare(request: &PrepareSnapshot) -> Result<Message, Failure> {
    // SAFETY: a plain call; the child was given the descriptor.
    let proc = unsafe {
        libc::sync();
        sys::numbered(PROC)
    };
    if request.drop_caches {
        sys::write_small(proc, c"sys/vm/drop_caches", "3").map_err(fault("drop the caches"))?;
    }
    Ok(Message::Done(Empty {}))
}

/// How far the daemon has come by itself.
pub enum Step {
    /// It is done.
    Done(Imprinted),
    /// A child has to do the rest.
    Left(Left),
}

/// What a child has to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Programs are to be run, or connections aborted.
    Processes,
    /// That, and names, too.
    Names,
}

/// In the daemon: everything, if that is little.
pub fn at_once(request: &Imprint, held: &Held) -> Result<Step, Failure> {
    let began = sys::clock(libc::CLOCK_MONOTONIC);
    let (root, proc) = (held.root.as_fd(), held.proc.as_fd());
    configure::add_entropy(held.random.as_fd(), &request.entropy.0).map_err(fault("reseed the kernel's random numbers"))?;
    if names_in_place(request, held).is_err() {
        return Ok(Step::Left(Left::Names));
    }
    let hooks = has_any(root, c"etc/space/restore.d", |_| true);
    let keys = has_any(root, c"etc/ssh", is_host_key);
    if !matches!((hooks, keys, inherited::any(proc)), (Ok(false), Ok(false), Ok(false))) {
        return Ok(Step::Left(Left::Processes));
    }
    Ok(Step::Done(imprinted(0, began)))
}

/// In the child of an imprint.
pub fn run(request: &Imprint, left: Left) -> Result<Message, Failure> {
    let began = sys::clock(libc::CLOCK_MONOTONIC);
    // SAFETY: the child was given these, and keeps them.
    let [root, proc] = [EXTRA, PROC].map(|at| unsafe { sys::numbered(at) });
    if left == Left::Names {
        configure::set_name(root, &request.hostname)?;
        let machine_id = format!("{}\n", request.machine_id);
        configure::replace(root, c"etc/machine-id", machine_id.as_bytes()).map_err(fault("write /etc/machine-id"))?;
        set_boot_id(root, proc, &request.boot_id).map_err(fault("set the boot id"))?;
    }
    inherited::abort(proc).map_err(fault("abort connections of the machine before"))?;
    let end = began + ALL;
    renew_host_keys(Path::new("/etc/ssh"), end)?;
    let hooks = hooks(Path::new(HOOKS)).map_err(fault("list the restore hooks"))?;
    for hook in &hooks {
        let name = hook.display().to_string();
        run_within(&mut Command::new(hook), end, &name)?;
    }
    Ok(Message::Imprinted(imprinted(hooks.len(), began)))
}

fn imprinted(hooks: usize, began: Duration) -> Imprinted {
    Imprinted { hooks: hooks as u16, wall_ms: sys::clock(libc::CLOCK_MONOTONIC).saturating_sub(began).as_millis() as u64 }
}

/// The names, where all that holds them is a plain file of the root file system, or the file over the kernel's boot id.
fn names_in_place(request: &Imprint, held: &Held) -> io::Result<()> {
    let root = held.root.as_fd();
    let machine_id = format!("{}\n", request.machine_id);
    configure::overwrite(plain_file(root, c"etc/machine-id")?.as_fd(), machine_id.as_bytes())?;
    name_in_place(root, &request.hostname)?;
    configure::overwrite(held.boot_id.as_fd(), format!("{}\n", request.boot_id).as_bytes())?;
    if configure::boot_id(held.proc.as_fd())? == request.boot_id {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ENOENT)) // it was taken away from over the kernel's
}

/// The host's name, in the kernel and in files that are plain ones.
pub fn name_in_place(root: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    configure::set_kernel_name(name)?;
    configure::overwrite(plain_file(root, c"etc/hostname")?.as_fd(), format!("{name}\n").as_bytes())?;
    let hosts = plain_file(root, c"etc/hosts")?;
    if let Some(text) = configure::hosts_with(&sys::read_text(&hosts)?, name) {
        configure::overwrite(hosts.as_fd(), text.as_bytes())?;
    }
    Ok(())
}

/// A regular file of the root file system, whose opening waits for nobody.
fn plain_file(root: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let file = sys::open_at2(root, name, libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0, libc::RESOLVE_NO_XDEV)?;
    let regular = sys::stat(file.as_fd())?.st_mode & libc::S_IFMT == libc::S_IFREG;
    if regular { Ok(file) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}

/// Whether a directory of the root file system has an entry of such a name.
fn has_any(root: BorrowedFd<'_>, name: &CStr, wanted: fn(&str) -> bool) -> io::Result<bool> {
    match sys::open_at2(root, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK, 0, libc::RESOLVE_NO_XDEV) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        directory => Ok(sys::names(directory?)?.iter().any(|entry| wanted(&entry.to_string_lossy()))),
    }
}

fn is_host_key(name: &str) -> bool {
    name.starts_with("ssh_host_") && (name.ends_with("_key") || name.ends_with("_key.pub"))
}

/// The kernel makes its boot id once and shows it in one file: another file is put over that one.
fn set_boot_id(root: BorrowedFd<'_>, proc: BorrowedFd<'_>, id: &str) -> io::Result<()> {
    sys::make_dir("/run/space", 0o755)?;
    configure::replace(root, c"run/space/boot_id", format!("{id}\n").as_bytes())?;
    if configure::boot_id(proc).is_ok_and(|seen| seen == id) {
        return Ok(()); // an earlier life put that file there
    }
    let file = sys::open_at(root, c"run/space/boot_id", libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0)?;
    // SAFETY: a valid descriptor.
    sys::check(unsafe { libc::fchdir(proc.as_raw_fd()) })?; // by the held /proc, wherever guest root has put the name
    sys::mount(&format!("self/fd/{}", file.as_raw_fd()), "sys/kernel/random/boot_id", "", libc::MS_BIND, "")?;
    sys::change_dir(Path::new("/"))
}

/// SSH host keys, where there are any, are another machine's.
fn renew_host_keys(directory: &Path, end: Duration) -> Result<(), Failure> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(()) };
    let old: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| is_host_key(&name.to_string_lossy())))
        .collect();
    for path in &old {
        std::fs::remove_file(path).map_err(fault("remove an SSH host key of the template's"))?;
    }
    let program = Path::new("/usr/bin/ssh-keygen");
    if old.is_empty() || !program.exists() {
        return Ok(());
    }
    run_within(Command::new(program).arg("-A"), end, "ssh-keygen -A")
}

/// What is to be run, by name.
fn hooks(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(entries) => {
            for entry in entries.flatten() {
                let executable = std::fs::metadata(entry.path())
                    .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0 && data.size() > 0);
                if executable {
                    found.push(entry.path());
                }
            }
        }
    }
    found.sort();
    if found.len() > MOST_HOOKS {
        return Err(io::Error::other(format!("there are {} of them, and at most {MOST_HOOKS} are run", found.len())));
    }
    Ok(found)
}

/// Run a program as root with nothing to read and nowhere to write; success, in time, or it is a failure.
fn run_within(command: &mut Command, end: Duration, name: &str) -> Result<(), Failure> {
    let now = sys::clock(libc::CLOCK_MONOTONIC);
    let until = end.min(now + ONE);
    command.env_clear().env("PATH", PATH).env("HOME", "/root").env("LANG", "C.UTF-8").current_dir("/");
    // The three that this child has are the held /dev/null.
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit()).process_group(0);
    let mut child = command.spawn().map_err(|error| Failure::guest(format!("cannot run {name}: {error}")))?;
    let ended = wait_until(child.id() as i32, until);
    if !ended {
        sys::kill(-(child.id() as i32));
    }
    let status: ExitStatus = child.wait().map_err(fault("wait for a program"))?;
    if !ended {
        return Err(Failure::new("deadline_exceeded", format!("{name} did not end in time and was killed")));
    }
    if status.success() { Ok(()) } else { Err(Failure::guest(format!("{name} failed: {status}"))) }
}

/// Whether a child of ours ends before `until` (monotonic).
fn wait_until(pid: i32, until: Duration) -> bool {
    // SAFETY: plain calls; the descriptor is closed here.
    unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if pidfd < 0 {
            return true; // wait for it without a bound
        }
        let left = until.saturating_sub(sys::clock(libc::CLOCK_MONOTONIC));
        let mut ask = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
        let count = libc::poll(&raw mut ask, 1, i32::try_from(left.as_millis()).unwrap_or(i32::MAX));
        libc::close(pidfd);
        count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use space_protocol::Bytes;

    fn request() -> Imprint {
        let boot_id = "0b9f6a52-5d0e-4c55-8f7e-31c3a2c0d1e2".to_owned();
        Imprint { entropy: Bytes(vec![7; 32]), hostname: "sb-1".to_owned(), machine_id: "0".repeat(32), boot_id }
    }

    #[test]
    fn what_could_not_be_set_is_refused() {
        check(&request()).unwrap();
        for wrong in [
            Imprint { entropy: Bytes(vec![7; 31]), ..request() },
            Imprint { hostname: "a b".to_owned(), ..request() },
            Imprint { machine_id: "0".repeat(31), ..request() },
            Imprint { machine_id: "G".repeat(32), ..request() },
            Imprint { boot_id: "0b9f6a52".to_owned(), ..request() },
            Imprint { boot_id: "0b9f6a52-5d0e-4c55-8f7e-31c3a2c0d1e2-".to_owned(), ..request() },
            Imprint { boot_id: "../../../../etc/passwd-4c55-8f7e-31c3".to_owned(), ..request() },
        ] {
            assert_eq!(check(&wrong).unwrap_err().code, "invalid_argument");
        }
    }

    #[test]
    fn hooks_are_the_executable_files_in_order() {
        let scratch = std::env::temp_dir().join(format!("space-hooks-{}", std::process::id()));
        std::fs::create_dir(&scratch).unwrap();
        for (name, mode) in [("20-b", 0o755), ("10-a", 0o700), ("README", 0o644)] {
            std::fs::write(scratch.join(name), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(scratch.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(scratch.join("30-directory")).unwrap();
        let found = hooks(&scratch).unwrap();
        assert_eq!(found, [scratch.join("10-a"), scratch.join("20-b")]);
        assert!(hooks(&scratch.join("none")).unwrap().is_empty());
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_program_that_fails_or_is_late_is_a_failure() {
        let soon = || sys::clock(libc::CLOCK_MONOTONIC) + Duration::from_millis(200);
        run_within(&mut Command::new("/bin/true"), soon() + ONE, "true").unwrap();
        assert_eq!(run_within(&mut Command::new("/bin/false"), soon() + ONE, "false").unwrap_err().code, "guest_error");
        assert_eq!(run_within(Command::new("/bin/sleep").arg("20"), soon(), "sleep").unwrap_err().code, "deadline_exceeded");
        assert_eq!(run_within(&mut Command::new("/nowhere"), soon(), "nowhere").unwrap_err().code, "guest_error");
    }
}
