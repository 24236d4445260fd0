//! Connections that a restored guest's processes still hold, and whose other ends know nothing of them: they are aborted.
//!
//! A peer's answers went to the machine that the snapshot was taken of, so a process that only waits would wait for ever. Connections of
//! the guest to itself are whole, for both ends were restored. The kernel has no call for a socket of another process in every
//! configuration (`SOCK_DESTROY`), but a descriptor of it can be had, and the socket be disconnected by that.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys;

/// The tables of the daemon's network namespace.
const TABLES: [&std::ffi::CStr; 2] = [c"net/tcp", c"net/tcp6"];
/// As much of a table as is read: more sockets than a guest's processes may have open.
const LARGEST_TABLE: usize = 16 << 20;
const TIME_WAIT: &str = "06";
const LISTEN: &str = "0A";

/// Whether there are any. Most guests have no TCP socket at all, and to count them costs less than to list them.
pub fn any(proc: BorrowedFd<'_>) -> io::Result<bool> {
    for counts in [c"net/sockstat", c"net/sockstat6"] {
        let text = match sys::read_small(proc, counts) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // no IPv6
            text => text?,
        };
        if has_some(&text) {
            return find(proc).map(|found| !found.is_empty());
        }
    }
    Ok(false)
}

/// Whether any TCP socket is in use, by the kernel's counts.
fn has_some(counts: &str) -> bool {
    let tcp = counts.lines().find_map(|line| line.strip_prefix("TCP: inuse ").or_else(|| line.strip_prefix("TCP6: inuse ")));
    tcp.and_then(|rest| rest.split(' ').next()) != Some("0")
}

/// Abort them: who reads from one gets `EPIPE` or `ECONNRESET`. How many were. In a child: it goes through every process's descriptors.
pub fn abort(proc: BorrowedFd<'_>) -> io::Result<usize> {
    let inodes = find(proc)?;
    if inodes.is_empty() {
        return Ok(0);
    }
    let mut aborted = BTreeSet::new();
    for pid in sys::names(sys::open_held(proc, c".", libc::O_RDONLY | libc::O_DIRECTORY)?)? {
        let Some(number) = pid.to_str().ok().and_then(|name| name.parse::<i32>().ok()) else { continue };
        for (fd, inode) in sockets(proc, number) {
            if inodes.contains(&inode) && disconnect(number, fd).is_ok() {
                aborted.insert(inode);
            }
        }
    }
    Ok(aborted.len())
}

/// The inodes of sockets whose other end is another machine's.
fn find(proc: BorrowedFd<'_>) -> io::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for table in TABLES {
        let file = match sys::open_held(proc, table, libc::O_RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // no IPv6
            other => other?,
        };
        let text = sys::read_text_up_to(&file, LARGEST_TABLE)?;
        found.extend(text.lines().skip(1).filter_map(outward));
    }
    Ok(found)
}

/// The inode of a line's socket, if it is connected, or connecting, to another machine.
fn outward(line: &str) -> Option<u64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (local, remote, state) = (fields.get(1)?.split_once(':')?.0, fields.get(2)?.split_once(':')?.0, *fields.get(3)?);
    let itself = local == remote || [local, remote].into_iter().any(is_loopback);
    let inode = fields.get(9)?.parse().ok().filter(|inode| *inode != 0)?; // nobody's, or not made yet
    (!itself && state != LISTEN && state != TIME_WAIT).then_some(inode)
}

/// Of an address as the kernel prints it: words of the machine's own order (little-endian), in hex.
fn is_loopback(address: &str) -> bool {
    let v4 = address.strip_prefix("0000000000000000FFFF0000").unwrap_or(address);
    (v4.len() == 8 && v4.ends_with("7F")) || address == "00000000000000000000000001000000"
}

/// The sockets that a process has open, as (descriptor, inode).
fn sockets(proc: BorrowedFd<'_>, pid: i32) -> Vec<(i32, u64)> {
    let Ok(path) = CString::new(format!("{pid}/fd")) else { return Vec::new() };
    let Ok(dir) = sys::open_held(proc, &path, libc::O_RDONLY | libc::O_DIRECTORY) else { return Vec::new() };
    let Ok(names) = dir.try_clone().and_then(sys::names) else { return Vec::new() };
    let socket = |name: &CString| {
        let target = sys::read_link_at(dir.as_fd(), name).ok()?;
        let inode = std::str::from_utf8(&target).ok()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((name.to_str().ok()?.parse().ok()?, inode))
    };
    names.iter().filter_map(socket).collect()
}

/// Take away a connection of another process's.
fn disconnect(pid: i32, fd: i32) -> io::Result<()> {
    // SAFETY: plain calls whose results are then ours; a sockaddr whose family says that there is no more of it.
    unsafe {
        let process = OwnedFd::from_raw_fd(sys::check(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32)?);
        let socket = sys::check(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) as i32)?;
        let socket = OwnedFd::from_raw_fd(socket);
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
        sys::check(libc::connect(socket.as_raw_fd(), &raw const nowhere, size_of::<libc::sockaddr>() as u32)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const LINES: [(&str, Option<u64>); 8] = [
        ("   0: 0200000A:C350 010000C6:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20 4 30 10 -1", Some(4711)),
        ("   1: 0200000A:C350 010000C6:01BB 02 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 20 4 30 10 -1", Some(4712)),
        ("   2: 0200000A:C350 010000C6:01BB 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1", None),
        ("   3: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 99 1 0 20 4 30 10 -1", None),
        ("   4: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 98 1 0 20 4 30 10 -1", None),
        ("   5: 0200000A:1F90 0200000A:C350 01 00000000:00000000 00:00000000 00000000     0        0 97 1 0 20 4 30 10 -1", None),
        ("   6: 0000000000000000FFFF00000200000A:C350 0000000000000000FFFF0000010000C6:01BB 01 0:0 00:0 0  1000 0 96 1", Some(96)),
        ("   7: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:01BB 01 0:0 00:0 0  1000 0 95 1", None),
    ];

    #[test]
    fn only_what_goes_to_another_machine_is_inherited_in_vain() {
        for (line, inode) in LINES {
            assert_eq!(outward(line), inode, "{line}");
        }
        assert_eq!(outward("garbage"), None);
        for (counts, some) in
            [("sockets: used 7\nTCP: inuse 0 orphan 0 tw 0 alloc 1 mem 0\n", false), ("TCP6: inuse 2\n", true), ("", true)]
        {
            assert_eq!(has_some(counts), some, "{counts}");
        }
        assert!(is_loopback("00000000000000000000000001000000"));
    }

    #[test]
    fn a_socket_is_found_by_its_inode_and_who_reads_it_is_told_of_its_end() {
        let proc = sys::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap().ino();
        let me = std::process::id() as i32;
        let found = sockets(proc.as_fd(), me).into_iter().find(|(_, each)| *each == inode).unwrap();
        assert_eq!(found.0, stream.as_raw_fd());
        let reader = std::thread::spawn(move || stream.read(&mut [0; 1]));
        std::thread::sleep(std::time::Duration::from_millis(50));
        disconnect(me, found.0).unwrap();
        let seen = reader.join().unwrap();
        assert!(seen.is_err() || seen.is_ok_and(|count| count == 0), "it would have waited for ever");
    }
}
