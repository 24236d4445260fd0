//! The channel where the VMM has no virtio ports: the host connects to two vsock ports, one a pipe, and is the only one that is let in.
//!
//! A new connection takes the place of the earlier one, as a host that connects to a virtio port again does. After a restore the kernel
//! ends every connection that the snapshot had; the listeners stay.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::sys;

/// The ports of the control and of the bulk pipe. The host's side of them is in `space.node.vmm`.
const PORTS: [u32; 2] = [1024, 1025];
/// The host's address; what a process of the guest sends to itself comes from another.
const HOST: u32 = 2;
/// A host connects again when it has given a connection up: few wait.
const BACKLOG: libc::c_int = 4;

/// Sockets that listen on both ports.
pub fn listen() -> io::Result<[OwnedFd; 2]> {
    Ok([listener(PORTS[0])?, listener(PORTS[1])?])
}

fn listener(port: u32) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    // SAFETY: sockaddr_vm is plain data, zeros being valid; a valid descriptor and an address of the size given.
    unsafe {
        let mut address: libc::sockaddr_vm = std::mem::zeroed();
        address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        address.svm_cid = libc::VMADDR_CID_ANY;
        address.svm_port = port;
        let size = size_of::<libc::sockaddr_vm>() as u32;
        sys::check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
        sys::check(libc::listen(socket.as_raw_fd(), BACKLOG))?;
    }
    Ok(socket)
}

/// The newest connection of the host's that waits; any other is closed.
pub fn accept(listener: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut newest = None;
    loop {
        // SAFETY: sockaddr_vm is plain data; room for an address of the size given.
        let (taken, peer) = unsafe {
            let mut peer: libc::sockaddr_vm = std::mem::zeroed();
            let mut size = size_of::<libc::sockaddr_vm>() as u32;
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            (libc::accept4(listener.as_raw_fd(), (&raw mut peer).cast(), &raw mut size, flags), peer)
        };
        match sys::own(taken) {
            Ok(connection) if is_hosts(&peer) => newest = Some(connection),
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNABORTED)) => {}
            Err(_) => return newest,
        }
    }
}

fn is_hosts(peer: &libc::sockaddr_vm) -> bool {
    peer.svm_family == libc::AF_VSOCK as libc::sa_family_t && peer.svm_cid == HOST
}

/// What stands for a pipe before anybody has connected: it is at its end.
pub fn nobody() -> io::Result<OwnedFd> {
    sys::pipe().map(|(reader, _)| reader)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn address(family: i32, cid: u32) -> libc::sockaddr_vm {
        // SAFETY: plain data, zeros being valid.
        let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        (address.svm_family, address.svm_cid) = (family as libc::sa_family_t, cid);
        address
    }

    #[test]
    fn only_the_host_is_let_in() {
        assert!(is_hosts(&address(libc::AF_VSOCK, HOST)));
        for (family, cid) in [(libc::AF_VSOCK, 1), (libc::AF_VSOCK, 3), (libc::AF_VSOCK, 0), (libc::AF_INET, HOST)] {
            assert!(!is_hosts(&address(family, cid)), "{family} {cid}");
        }
    }

    #[test]
    fn a_pipe_without_a_host_is_at_its_end() {
        let pipe = nobody().unwrap();
        assert_eq!(sys::read(pipe.as_fd(), &mut [0; 8]).unwrap(), 0);
        assert!(sys::write(pipe.as_fd(), b"x").is_err());
    }
}
