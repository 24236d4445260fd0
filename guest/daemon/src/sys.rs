//! The kernel's words: one short function per system call, errors as `io::Error`. No decisions.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use libc::{c_int, c_void};

/// An errno where a call returned -1.
pub fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: isize) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// A descriptor that a call has just made, or its error.
pub fn own(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `socket` with `SOCK_CLOEXEC`.
pub fn socket(family: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers to be wrong.
    own(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Bytes as a C string; `EINVAL` when one of them is NUL.
pub fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn c_path(path: &Path) -> io::Result<CString> {
    c_string(path.as_os_str().as_bytes())
}

/// `openat` with `O_CLOEXEC`.
pub fn open_at(dir: BorrowedFd<'_>, name: &CStr, flags: c_int, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: a valid descriptor and string.
    own(unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode) })
}

/// `open` with `O_CLOEXEC`.
pub fn open(path: &str, flags: c_int) -> io::Result<OwnedFd> {
    let path = c_string(path.as_bytes())?;
    // SAFETY: a valid string.
    own(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

/// `openat` with `O_CLOEXEC`; `EXDEV` where something was mounted over the name: it might be a FIFO, and opening it never end.
pub fn open_held(dir: BorrowedFd<'_>, name: &CStr, flags: c_int) -> io::Result<OwnedFd> {
    open_at2(dir, name, flags, 0, libc::RESOLVE_NO_XDEV)
}

/// `openat2` with `O_CLOEXEC`.
pub fn open_at2(dir: BorrowedFd<'_>, name: &CStr, flags: c_int, mode: u32, resolve: u64) -> io::Result<OwnedFd> {
    // SAFETY: open_how is plain data, all zeros being valid.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = mode as u64;
    how.resolve = resolve;
    // SAFETY: a valid descriptor, string and structure of the size given.
    own(unsafe { libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), name.as_ptr(), &raw const how, size_of::<libc::open_how>()) } as c_int)
}

/// `read`.
pub fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is ours and as long as we say.
    check_size(unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
}

/// `pread` from the start.
pub fn read_at_start(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is ours and as long as we say.
    check_size(unsafe { libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) })
}

/// `write`.
pub fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is ours and as long as we say.
    check_size(unsafe { libc::write(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len()) })
}

/// Write all of it to a descriptor that blocks.
pub fn write_all(fd: BorrowedFd<'_>, mut buf: &[u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match write(fd, buf) {
            Ok(count) => buf = &buf[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `pipe2` with `O_CLOEXEC`: (read end, write end).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which are then ours.
    unsafe {
        check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Ask for a larger pipe; a smaller one works as well.
pub fn grow_pipe(fd: BorrowedFd<'_>, bytes: c_int) {
    // SAFETY: a valid descriptor.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
}

/// Set `O_NONBLOCK`.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) | libc::O_NONBLOCK) }).map(drop)
}

/// `mount`.
pub fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let (source, target, kind, data) =
        (c_string(source.as_bytes())?, c_string(target.as_bytes())?, c_string(kind.as_bytes())?, c_string(data.as_bytes())?);
    // SAFETY: valid strings.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) }).map(drop)
}

/// `mkdir`; a directory that is there already is no error.
pub fn make_dir(path: &str, mode: u32) -> io::Result<()> {
    let path = c_string(path.as_bytes())?;
    // SAFETY: a valid string.
    match check(unsafe { libc::mkdir(path.as_ptr(), mode) }) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(()),
    }
}

/// `chroot`, then `chdir` to its root.
pub fn change_root(path: &str) -> io::Result<()> {
    let path = c_string(path.as_bytes())?;
    // SAFETY: valid strings.
    unsafe {
        check(libc::chroot(path.as_ptr()))?;
        check(libc::chdir(c"/".as_ptr())).map(drop)
    }
}

/// `chdir`.
pub fn change_dir(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a valid string.
    check(unsafe { libc::chdir(path.as_ptr()) }).map(drop)
}

/// `finit_module`.
pub fn load_module(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) } as c_int).map(drop)
}

/// A kernel's clock.
pub fn clock(id: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for one timespec.
    unsafe { libc::clock_gettime(id, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// `clock_settime(CLOCK_REALTIME)`.
pub fn set_clock(since_1970: Duration) -> io::Result<()> {
    let value = libc::timespec { tv_sec: since_1970.as_secs() as i64, tv_nsec: i64::from(since_1970.subsec_nanos()) };
    // SAFETY: a valid timespec.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const value) }).map(drop)
}

/// `ioctl` with a pointer to (or into) `argument`.
///
/// # Safety
/// `argument` must be what the request reads and writes.
pub unsafe fn ioctl<T: ?Sized>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: *mut T) -> io::Result<c_int> {
    // SAFETY: as the caller promised.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument.cast::<c_void>()) })
}

/// `fstatvfs`-like figures of the file system behind a descriptor.
pub fn file_system(fd: BorrowedFd<'_>) -> io::Result<libc::statfs> {
    // SAFETY: statfs is plain data that the kernel fills.
    unsafe {
        let mut out: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(fd.as_raw_fd(), &raw mut out))?;
        Ok(out)
    }
}

/// `fstat`.
pub fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data that the kernel fills.
    unsafe {
        let mut out: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut out))?;
        Ok(out)
    }
}

/// `fstatat`, of a link itself.
pub fn stat_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data that the kernel fills; a valid descriptor and string.
    unsafe {
        let mut out: libc::stat = std::mem::zeroed();
        check(libc::fstatat(dir.as_raw_fd(), name.as_ptr(), &raw mut out, libc::AT_SYMLINK_NOFOLLOW))?;
        Ok(out)
    }
}

/// `uname`'s release.
pub fn kernel_release() -> String {
    // SAFETY: utsname is plain data that the kernel fills with a string that ends.
    unsafe {
        let mut out: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut out);
        CStr::from_ptr(out.release.as_ptr()).to_string_lossy().into_owned()
    }
}

/// An epoll instance.
pub struct Epoll(OwnedFd);

impl Epoll {
    /// `epoll_create1`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no arguments to be wrong.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Watch a descriptor, edge-triggered. Closing it ends the watch.
    pub fn add(&self, fd: BorrowedFd<'_>, events: c_int, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (events | libc::EPOLLET) as u32, u64: token };
        // SAFETY: valid descriptors and one event.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) }).map(drop)
    }

    /// What happened, or nothing when the time is over (`None`: wait for ever).
    pub fn wait(&self, timeout: Option<Duration>, events: &mut [libc::epoll_event]) -> usize {
        // Round up: a timer that is a little late is right, one that spins is not.
        let timeout = timeout.map_or(-1, |left| c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
        // SAFETY: room for as many events as we say.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as c_int, timeout) };
        count.max(0) as usize
    }
}

/// Block every signal and get `SIGCHLD` as a descriptor.
pub fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain data that the calls fill.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
            libc::sigdelset(&raw mut set, fault);
        }
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()))?;
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        own(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
    }
}

/// In a child: signals as a fresh process has them.
pub fn default_signals() {
    // SAFETY: plain calls; the set is filled before it is used.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// One child that has ended: (pid, wait status).
pub fn reap() -> Option<(c_int, c_int)> {
    let mut status = 0;
    // SAFETY: room for one status.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Kill a process or, by minus its number, a process group.
pub fn kill(pid: c_int) {
    // SAFETY: a plain call.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Send a signal to the process group of a leader, or to a leader that has no group yet.
pub fn signal_group(leader: c_int, signal: c_int) {
    // SAFETY: plain calls.
    unsafe {
        if libc::kill(-leader, signal) != 0 {
            libc::kill(leader, signal);
        }
    }
}

/// The session of a process, by its leader's number; 0 for a thread of the kernel, nothing for a process that is gone.
pub fn session_of(pid: c_int) -> Option<c_int> {
    // SAFETY: a plain call.
    check(unsafe { libc::getsid(pid) }).ok()
}

/// Kill every other process, in one step that no fork escapes. Threads of the kernel do not hear it. Only PID 1 may want that.
pub fn kill_all_others() {
    if std::process::id() == 1 {
        kill(-1);
    }
}

/// Set how many descriptors the process may have: now, and at most.
pub fn limit_descriptors(now: u64, most: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: now, rlim_max: most };
    // SAFETY: a valid rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(drop)
}

/// libc's constant of this name does not fit its type.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Which side of a fork this is.
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with the new one's pid.
    Parent(c_int),
}

/// `clone3` as a fork; with a cgroup, the child begins its life in it.
///
/// # Safety
/// The calling process has one thread. (The C library's fork hooks are passed by.)
pub unsafe fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    // SAFETY: clone_args is plain data, all zeros being valid; without CLONE_VM the child has its own copy of everything.
    unsafe {
        let mut args: libc::clone_args = std::mem::zeroed();
        args.exit_signal = libc::SIGCHLD as u64;
        if let Some(cgroup) = cgroup {
            args.flags = CLONE_INTO_CGROUP;
            args.cgroup = cgroup.as_raw_fd() as u64;
        }
        match check(libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) as c_int)? {
            0 => Ok(Fork::Child),
            pid => Ok(Fork::Parent(pid)),
        }
    }
}

/// In a child: make `fds` its descriptors 0, 1, 2 ..., those from 3 on with `FD_CLOEXEC`, and close all others.
pub fn keep_only(fds: &[RawFd]) -> io::Result<()> {
    let base = fds.len() as c_int;
    // SAFETY: plain descriptor calls.
    unsafe {
        // First out of the way of the numbers that they are to have.
        let mut high = Vec::with_capacity(fds.len());
        for fd in fds {
            high.push(check(libc::fcntl(*fd, libc::F_DUPFD, base.max(3)))?);
        }
        for (want, have) in (0..).zip(high) {
            check(libc::dup3(have, want, if want < 3 { 0 } else { libc::O_CLOEXEC }))?;
        }
        check(libc::syscall(libc::SYS_close_range, base, u32::MAX, 0) as c_int).map(drop)
    }
}

/// A descriptor of the calling process by its number.
///
/// # Safety
/// It must be open, and stay so while the result is used.
pub unsafe fn numbered<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: as the caller promised.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The text of a small file of proc, sys or a cgroup below a directory, as far as it goes (64 KiB).
pub fn read_small(dir: impl AsFd, name: &CStr) -> io::Result<String> {
    read_text(&open_held(dir.as_fd(), name, libc::O_RDONLY)?)
}

/// The text of an open file, as far as it goes (64 KiB).
pub fn read_text(file: &OwnedFd) -> io::Result<String> {
    read_text_up_to(file, 64 << 10)
}

/// The text of an open file, as far as it goes and is wanted. Most are a line or two, so room is made as it is needed.
pub fn read_text_up_to(file: &OwnedFd, most: usize) -> io::Result<String> {
    let (mut bytes, mut end) = (vec![0; most.min(4096)], 0);
    loop {
        match read(file.as_fd(), &mut bytes[end..])? {
            0 => break,
            count => end += count,
        }
        if end == bytes.len() {
            if end == most {
                break;
            }
            bytes.resize(most.min(2 * end), 0);
        }
    }
    bytes.truncate(end);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `readlinkat`, of a link of at most 255 bytes.
pub fn read_link_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 256];
    // SAFETY: a valid descriptor and string, and a buffer as long as we say.
    let count = check_size(unsafe { libc::readlinkat(dir.as_raw_fd(), name.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) })?;
    bytes.truncate(count);
    Ok(bytes)
}

/// `pwrite` of all of it from the start on, to a descriptor that blocks.
pub fn write_at_start(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is ours and as long as we say.
    let count = check_size(unsafe { libc::pwrite(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len(), 0) })?;
    if count == buf.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) }
}

/// Write a value to a file of proc, sys or a cgroup.
pub fn write_small(dir: impl AsFd, name: &CStr, value: &str) -> io::Result<()> {
    let file = open_held(dir.as_fd(), name, libc::O_WRONLY)?;
    write_all(file.as_fd(), value.as_bytes())
}

/// Names in a directory, without `.` and `..`; sorted. The descriptor's position is used up.
pub fn names(dir: OwnedFd) -> io::Result<Vec<CString>> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the stream takes the descriptor over, is used by us alone, and closed once.
    unsafe {
        let raw = dir.into_raw_fd();
        let stream = libc::fdopendir(raw);
        if stream.is_null() {
            let error = io::Error::last_os_error();
            libc::close(raw);
            return Err(error);
        }
        let mut found = Vec::new();
        loop {
            *libc::__errno_location() = 0;
            let entry = libc::readdir(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                found.push(name.to_owned());
            }
        }
        let errno = *libc::__errno_location();
        libc::closedir(stream);
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        found.sort();
        Ok(found)
    }
}
