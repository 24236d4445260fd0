//! `configure`: clock, entropy, name and disk of a fresh guest. Runs in a child; any step that fails fails the whole.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use space_protocol::messages::{Configure, Configured};
use space_protocol::{Failure, Message};

use crate::boot::Held;
use crate::child::EXTRA;
use crate::{exec, metrics, sys};

const ENTROPY: std::ops::RangeInclusive<usize> = 32..=512;
const NAME_BYTES: usize = 64;
const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const EXT4_IOC_RESIZE_FS: libc::c_ulong = 0x4008_6610;

/// Refuse a request that cannot be obeyed.
pub fn check(request: &Configure) -> Result<(), Failure> {
    let (entropy, name) = (request.entropy.0.len(), &request.hostname);
    if !ENTROPY.contains(&entropy) {
        return Err(Failure::invalid(format!("entropy has {entropy} bytes, and must have 32 to 512")));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(fits) {
        return Err(Failure::invalid(format!("hostname must be 1 to {NAME_BYTES} letters, digits, '-', '.' or '_'")));
    }
    exec::check_env(&request.env)
}

/// What the child needs, in the order in which [`run`] takes them.
pub fn needs(held: &Held) -> [BorrowedFd<'_>; 4] {
    [held.random.as_fd(), held.disk.as_fd(), held.root.as_fd(), held.proc.as_fd()]
}

/// In the child.
pub fn run(request: &Configure) -> Result<Message, Failure> {
    let fault = |what: &'static str| move |error: io::Error| Failure::guest(format!("cannot {what}: {error}"));
    // SAFETY: the child was given these, and keeps them.
    let [random, disk, root, proc] = [0, 1, 2, 3].map(|at| unsafe { sys::numbered(EXTRA + at) });
    add_entropy(random, &request.entropy.0).map_err(fault("reseed the kernel's random numbers"))?;
    sys::set_clock(Duration::from_nanos(request.realtime_ns)).map_err(fault("set the clock"))?;
    // SAFETY: a name of the length given.
    sys::check(unsafe { libc::sethostname(request.hostname.as_ptr().cast(), request.hostname.len()) })
        .map_err(fault("set the host name"))?;
    grow(disk, root).map_err(fault("grow the root file system to its device"))?;
    name_in_files(root, &request.hostname);
    let disk_bytes = sys::file_system(root).map(|fs| fs.f_blocks * fs.f_bsize as u64).map_err(fault("look at the root file system"))?;
    Ok(Message::Configured(Configured {
        boot_id: sys::read_small(proc, c"sys/kernel/random/boot_id").map_err(fault("read the boot id"))?.trim_end().to_owned(),
        kernel: sys::kernel_release(),
        uptime_ms: metrics::uptime_ms(),
        disk_bytes,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }))
}

/// A write to /dev/urandom would neither be credited nor reseed the generator that is in use.
fn add_entropy(random: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    #[repr(C)]
    struct Pool {
        bits: i32,
        size: i32,
        bytes: [u8; *ENTROPY.end()],
    }
    let mut pool = Pool { bits: bytes.len() as i32 * 8, size: bytes.len() as i32, bytes: [0; *ENTROPY.end()] };
    pool.bytes[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: rand_pool_info with as many bytes as it says; the second request takes no argument.
    unsafe {
        sys::ioctl(random, RNDADDENTROPY, &raw mut pool)?;
        sys::ioctl(random, RNDRESEEDCRNG, std::ptr::null_mut::<u8>()).map(drop)
    }
}

/// Grow ext4 to its device; nothing to do when it fills it.
fn grow(disk: BorrowedFd<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    let mut bytes: u64 = 0;
    // SAFETY: the request writes one u64.
    unsafe { sys::ioctl(disk, BLKGETSIZE64, &raw mut bytes) }?;
    let mut blocks = bytes / sys::file_system(root)?.f_bsize as u64;
    // SAFETY: the request reads one u64.
    unsafe { sys::ioctl(root, EXT4_IOC_RESIZE_FS, &raw mut blocks) }.map(drop)
}

/// Make the name known to programs that look it up (sudo, git). Best effort: a guest may have arranged its files otherwise.
fn name_in_files(root: BorrowedFd<'_>, name: &str) {
    let write = |file: &std::ffi::CStr, text: String| {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        sys::open_at(root, file, flags, 0o644).and_then(|out| sys::write_all(out.as_fd(), text.as_bytes()))
    };
    let hosts =
        sys::open_at(root, c"etc/hosts", libc::O_RDONLY | libc::O_NONBLOCK, 0).and_then(|file| sys::read_text(&file)).unwrap_or_default();
    let _ = write(c"etc/hostname", format!("{name}\n"));
    if let Some(text) = hosts_with(&hosts, name) {
        let _ = write(c"etc/hosts", text);
    }
}

/// The hosts file with the name in it, or nothing when it is there.
fn hosts_with(hosts: &str, name: &str) -> Option<String> {
    let known = |line: &str| line.split('#').next().unwrap_or_default().split_ascii_whitespace().skip(1).any(|word| word == name);
    if hosts.lines().any(known) {
        return None;
    }
    let kept: String = hosts.lines().filter(|line| !line.starts_with("127.0.1.1")).flat_map(|line| [line, "\n"]).collect();
    Some(format!("{kept}127.0.1.1\t{name}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use space_protocol::Bytes;

    fn request() -> Configure {
        Configure { realtime_ns: 1, entropy: Bytes(vec![7; 32]), hostname: "sb-1".to_owned(), env: vec![], generation: 1 }
    }

    #[test]
    fn limits_of_entropy_and_name_are_held() {
        check(&request()).unwrap();
        for wrong in [
            Configure { entropy: Bytes(vec![7; 31]), ..request() },
            Configure { entropy: Bytes(vec![7; 513]), ..request() },
            Configure { hostname: String::new(), ..request() },
            Configure { hostname: "a b".to_owned(), ..request() },
            Configure { hostname: "x".repeat(65), ..request() },
            Configure { env: vec![(Bytes(b"A=".to_vec()), Bytes(vec![]))], ..request() },
        ] {
            assert_eq!(check(&wrong).unwrap_err().code, "invalid_argument");
        }
    }

    #[test]
    fn the_hosts_file_names_the_sandbox_once() {
        let first = hosts_with("127.0.0.1\tlocalhost\n", "sb-1").unwrap();
        assert_eq!(first, "127.0.0.1\tlocalhost\n127.0.1.1\tsb-1\n");
        assert_eq!(hosts_with(&first, "sb-1"), None);
        assert_eq!(hosts_with(&first, "sb-2").unwrap(), "127.0.0.1\tlocalhost\n127.0.1.1\tsb-2\n");
        assert_eq!(hosts_with("", "a").unwrap(), "127.0.1.1\ta\n");
    }
}
