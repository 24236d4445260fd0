//! `configure`: clock, entropy, name and disk of a fresh guest; `claim`: clock, resolver and disk of a restored one that was imprinted
//! ([`crate::imprint`]). Both run in a child; any step that fails fails the whole.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use space_protocol::messages::{Claim, Configure, Configured};
use space_protocol::{Failure, Message};

use crate::boot::Held;
use crate::child::EXTRA;
use crate::{disk, exec, imprint, metrics, sys};

const ENTROPY: std::ops::RangeInclusive<usize> = 32..=512;
const NAME_BYTES: usize = 64;
const RESOLV: usize = 4096;
const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

/// Refuse a request that cannot be obeyed.
pub fn check(request: &Configure) -> Result<(), Failure> {
    check_identity(&request.entropy.0, &request.hostname)?;
    exec::check_env(&request.env)
}

/// Refuse a claim that cannot be obeyed.
pub fn check_claim(request: &Claim) -> Result<(), Failure> {
    request.hostname.as_deref().map_or(Ok(()), check_name)?;
    if request.resolv.as_ref().is_some_and(|text| text.0.len() > RESOLV) {
        return Err(Failure::invalid(format!("resolv has at most {RESOLV} bytes")));
    }
    exec::check_env(&request.env)
}

/// Refuse entropy and a name that cannot be taken.
pub fn check_identity(entropy: &[u8], name: &str) -> Result<(), Failure> {
    let entropy = entropy.len();
    if !ENTROPY.contains(&entropy) {
        return Err(Failure::invalid(format!("entropy has {entropy} bytes, and must have 32 to 512")));
    }
    check_name(name)
}

fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(fits) {
        return Err(Failure::invalid(format!("hostname must be 1 to {NAME_BYTES} letters, digits, '-', '.' or '_'")));
    }
    Ok(())
}

/// What the child needs, in the order in which [`run`] takes them.
pub fn needs(held: &Held) -> [BorrowedFd<'_>; 4] {
    [held.random.as_fd(), held.disk.as_fd(), held.root.as_fd(), held.proc.as_fd()]
}

/// In the child.
pub fn run(request: &Configure) -> Result<Message, Failure> {
    // SAFETY: the child was given these, and keeps them.
    let [random, device, root, proc] = [0, 1, 2, 3].map(|at| unsafe { sys::numbered(EXTRA + at) });
    add_entropy(random, &request.entropy.0).map_err(fault("reseed the kernel's random numbers"))?;
    set_clock(request.realtime_ns)?;
    set_name(root, &request.hostname)?;
    name_machine(root, random).map_err(fault("write /etc/machine-id"))?;
    disk::fill(device, root)?;
    configured(root, proc)
}

/// A claim that needs no resolver (and whose disk is full of its file system) is done by the daemon itself: clock and name are all there is.
pub fn claim_at_once(request: &Claim, held: &Held) -> Option<Result<Message, Failure>> {
    if request.resolv.is_some() {
        return None;
    }
    if let Some(name) = request.hostname.as_deref()
        && imprint::name_in_place(held.root.as_fd(), name).is_err()
    {
        return None;
    }
    Some(set_clock(request.realtime_ns).and_then(|()| configured(held.root.as_fd(), held.proc.as_fd())))
}

/// In the child of a claim.
pub fn claim(request: &Claim) -> Result<Message, Failure> {
    // SAFETY: the child was given these, and keeps them.
    let [_, device, root, proc] = [0, 1, 2, 3].map(|at| unsafe { sys::numbered(EXTRA + at) });
    set_clock(request.realtime_ns)?;
    request.hostname.as_deref().map_or(Ok(()), |name| set_name(root, name))?;
    if let Some(text) = &request.resolv {
        let _ = replace(root, c"etc/resolv.conf", &text.0);
    }
    disk::fill(device, root)?;
    configured(root, proc)
}

fn set_clock(realtime_ns: u64) -> Result<(), Failure> {
    sys::set_clock(Duration::from_nanos(realtime_ns)).map_err(fault("set the clock"))
}

/// What could not be done, as a failure.
pub fn fault(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::guest(format!("cannot {what}: {error}"))
}

/// How the guest is.
pub fn configured(root: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> Result<Message, Failure> {
    let disk_bytes = total(root).map_err(fault("look at the root file system"))?;
    Ok(Message::Configured(Configured {
        boot_id: boot_id(proc).map_err(fault("read the boot id"))?,
        kernel: sys::kernel_release(),
        uptime_ms: metrics::uptime_ms(),
        disk_bytes,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }))
}

/// The boot id as programs see it: the kernel's, or the file that an imprint has put over it.
pub fn boot_id(proc: BorrowedFd<'_>) -> io::Result<String> {
    let file = sys::open_at(proc, c"sys/kernel/random/boot_id", libc::O_RDONLY | libc::O_NONBLOCK, 0)?;
    let mut text = sys::read_text(&file)?;
    text.truncate(36);
    Ok(text)
}

/// The host's name, in the kernel and in files.
pub fn set_name(root: BorrowedFd<'_>, name: &str) -> Result<(), Failure> {
    set_kernel_name(name).map_err(fault("set the host name"))?;
    name_in_files(root, name);
    Ok(())
}

/// The host's name in the kernel.
pub fn set_kernel_name(name: &str) -> io::Result<()> {
    // SAFETY: a name of the length given.
    sys::check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// A machine whose image has none gets a number of its own, as the image asks for by an empty file.
fn name_machine(root: BorrowedFd<'_>, random: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match sys::open_at(root, c"etc/machine-id", flags, 0o644) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(()), // it is arranged otherwise
        file => file?,
    };
    if sys::stat(file.as_fd())?.st_size > 0 {
        return Ok(());
    }
    let mut id = [0; 16];
    sys::read(random, &mut id)?;
    overwrite(file.as_fd(), format!("{:032x}\n", u128::from_be_bytes(id)).as_bytes())
}

/// Make the file hold exactly that, in place where that is possible: a full disk has room for as much as was there. A link is replaced.
pub fn replace(root: BorrowedFd<'_>, name: &CStr, bytes: &[u8]) -> io::Result<()> {
    let open = || sys::open_at(root, name, libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0o644);
    let file = open().or_else(|error| {
        if error.raw_os_error() != Some(libc::ELOOP) {
            return Err(error);
        }
        // SAFETY: a valid descriptor and string.
        sys::check(unsafe { libc::unlinkat(root.as_raw_fd(), name.as_ptr(), 0) })?;
        open()
    })?;
    overwrite(file.as_fd(), bytes)
}

/// Make an open file hold exactly that. Its blocks are kept: cutting it off first would have the kernel write it to the disk at once.
pub fn overwrite(file: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    sys::write_at_start(file, bytes)?;
    if sys::stat(file)?.st_size == bytes.len() as i64 {
        return Ok(());
    }
    // SAFETY: a valid descriptor.
    sys::check(unsafe { libc::ftruncate(file.as_raw_fd(), bytes.len() as libc::off_t) }).map(drop)
}

/// A write to /dev/urandom would neither be credited nor reseed the generator that is in use.
pub fn add_entropy(random: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
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

/// The size of a file system.
fn total(root: BorrowedFd<'_>) -> io::Result<u64> {
    sys::file_system(root).map(|fs| fs.f_blocks * fs.f_bsize as u64)
}

/// Make the name known to programs that look it up (sudo, git). Best effort: a guest may have arranged its files otherwise.
fn name_in_files(root: BorrowedFd<'_>, name: &str) {
    let write = |file: &std::ffi::CStr, text: String| {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        sys::open_at(root, file, flags, 0o644).and_then(|out| overwrite(out.as_fd(), text.as_bytes()))
    };
    let hosts =
        sys::open_at(root, c"etc/hosts", libc::O_RDONLY | libc::O_NONBLOCK, 0).and_then(|file| sys::read_text(&file)).unwrap_or_default();
    let _ = write(c"etc/hostname", format!("{name}\n"));
    if let Some(text) = hosts_with(&hosts, name) {
        let _ = write(c"etc/hosts", text);
    }
}

/// The hosts file with the name in it, or nothing when it is there.
pub fn hosts_with(hosts: &str, name: &str) -> Option<String> {
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

    #[test]
    fn a_claim_with_a_name_or_a_resolver_that_cannot_be_is_refused() {
        let claim = || Claim { realtime_ns: 1, generation: 1, env: vec![], resolv: None, hostname: Some("sb-1".to_owned()) };
        check_claim(&claim()).unwrap();
        check_claim(&Claim { hostname: None, ..claim() }).unwrap();
        for wrong in [
            Claim { hostname: Some(String::new()), ..claim() },
            Claim { hostname: Some("a/b".to_owned()), ..claim() },
            Claim { hostname: Some("x".repeat(65)), ..claim() },
            Claim { resolv: Some(Bytes(vec![b'#'; 4097])), ..claim() },
        ] {
            assert_eq!(check_claim(&wrong).unwrap_err().code, "invalid_argument");
        }
    }

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
