//! The kernel's announcements of devices: whoever waits for one looks again at each.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::sys;

/// A socket on which the kernel tells that a device came, went or changed.
pub struct Announcements(OwnedFd);

impl Announcements {
    /// From now on. Whatever is waited for is looked at after this, so that nothing happens unheard.
    pub fn listen() -> io::Result<Self> {
        // SAFETY: plain calls; sockaddr_nl is plain data; the descriptor is ours.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let socket =
                sys::check(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT)).map(|fd| OwnedFd::from_raw_fd(fd))?;
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as u16;
            address.nl_groups = 1;
            let size = size_of::<libc::sockaddr_nl>() as u32;
            sys::check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
            Ok(Self(socket))
        }
    }

    /// Try until it works, at each announcement and, where a change may come without one, every `besides`. The last error when it does
    /// not work within `patience`.
    pub fn wait_for<T>(&self, patience: Duration, besides: Option<Duration>, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let end = sys::clock(libc::CLOCK_MONOTONIC) + patience;
        loop {
            let error = match attempt() {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let left = end.saturating_sub(sys::clock(libc::CLOCK_MONOTONIC));
            if left.is_zero() {
                return Err(error);
            }
            self.pause(besides.map_or(left, |most| most.min(left)));
        }
    }

    fn pause(&self, most: Duration) {
        let mut ask = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(most.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut ask, 1, milliseconds) };
        let mut buf = [0; 4096];
        // More came than was read in time (ENOBUFS): the next look sees it all the same.
        while sys::read(self.0.as_fd(), &mut buf).is_ok_and(|count| count > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_is_given_up_with_the_last_error() {
        let listening = Announcements::listen().unwrap();
        let mut looks = 0;
        let outcome = listening.wait_for(Duration::from_millis(30), Some(Duration::from_millis(5)), || {
            looks += 1;
            Err::<(), _>(io::Error::from_raw_os_error(libc::ENXIO))
        });
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ENXIO));
        assert!(looks > 1, "{looks}");
    }

    #[test]
    fn what_is_there_is_not_waited_for() {
        let listening = Announcements::listen().unwrap();
        assert_eq!(listening.wait_for(Duration::ZERO, None, || Ok(7)).unwrap(), 7);
    }
}
