//! Terminals: a master for the daemon, a slave for a process's three descriptors.
//!
//! Both come from the file system of terminals that was mounted at boot, by a descriptor that is held since: what guest root mounts over
//! `/dev/pts` or makes of `/dev/ptmx` changes what programs find by name, and not this.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use space_protocol::messages::Window;

use crate::sys;

const TIOCSCTTY: libc::c_ulong = 0x540e;
const TIOCSWINSZ: libc::c_ulong = 0x5414;
const TIOCSPTLCK: libc::c_ulong = 0x4004_5431;
const TIOCGPTPEER: libc::c_ulong = 0x5441;
const TCGETS: libc::c_ulong = 0x5401;
/// Control-D, where a terminal has no character for the end of input.
const END_OF_INPUT: u8 = 4;

/// A terminal that nobody uses yet.
pub struct Terminal {
    /// The daemon's side; reads and writes do not block.
    pub master: OwnedFd,
    /// The process's side.
    pub slave: OwnedFd,
}

impl Terminal {
    /// A new one. terminals: the root of their file system.
    pub fn open(terminals: BorrowedFd<'_>, size: &Window) -> io::Result<Self> {
        let flags = libc::O_RDWR | libc::O_NOCTTY;
        let master = sys::open_held(terminals, c"ptmx", flags | libc::O_NONBLOCK)?;
        let mut unlocked: libc::c_int = 0;
        // SAFETY: the request reads one int.
        unsafe { sys::ioctl(master.as_fd(), TIOCSPTLCK, &raw mut unlocked) }?;
        // SAFETY: the request takes flags for the descriptor that it makes, which nobody else knows.
        let slave = unsafe {
            let made = sys::check(libc::ioctl(master.as_raw_fd(), TIOCGPTPEER as _, flags | libc::O_CLOEXEC))?;
            OwnedFd::from_raw_fd(made)
        };
        resize(master.as_fd(), size)?;
        Ok(Self { master, slave })
    }
}

/// Give a terminal that size; its foreground processes hear `SIGWINCH` when it is another one.
pub fn resize(master: BorrowedFd<'_>, size: &Window) -> io::Result<()> {
    let mut window = libc::winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads one winsize.
    unsafe { sys::ioctl(master, TIOCSWINSZ, &raw mut window) }.map(drop)
}

/// The character that ends input in the terminal as it is set now.
pub fn end_of_input(master: BorrowedFd<'_>) -> u8 {
    // SAFETY: termios is plain data that the request fills: the kernel's is shorter than the library's, with the same fields before c_cc.
    let set = unsafe {
        let mut set: libc::termios = std::mem::zeroed();
        sys::ioctl(master, TCGETS, &raw mut set).map(|_| set)
    };
    set.map(|set| set.c_cc[libc::VEOF]).ok().filter(|character| *character != 0).unwrap_or(END_OF_INPUT)
}

/// In a child that leads a session: make the terminal on its standard input that session's, and give it to a user.
pub fn take(slave: BorrowedFd<'_>, owner: u32) -> io::Result<()> {
    // SAFETY: plain calls; TIOCSCTTY takes a number, 0 for not stealing it from anybody. The group is the file system's (tty).
    unsafe {
        sys::check(libc::ioctl(slave.as_raw_fd(), TIOCSCTTY as _, 0))?;
        sys::check(libc::fchown(slave.as_raw_fd(), owner, u32::MAX))?;
        sys::check(libc::fchmod(slave.as_raw_fd(), 0o620)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_its_size_and_its_end_of_input() {
        let pts = sys::open("/dev/pts", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let terminal = Terminal::open(pts.as_fd(), &Window { rows: 33, cols: 101 }).unwrap();
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the request fills one winsize.
        unsafe { sys::ioctl(terminal.slave.as_fd(), 0x5413, &raw mut size) }.unwrap();
        assert_eq!((size.ws_row, size.ws_col), (33, 101));
        assert_eq!(end_of_input(terminal.master.as_fd()), 4);
        sys::write(terminal.master.as_fd(), b"ab\x04").unwrap();
        let mut line = [0; 10];
        assert_eq!(sys::read(terminal.slave.as_fd(), &mut line).unwrap(), 2);
        assert_eq!(sys::read(terminal.master.as_fd(), &mut line).unwrap(), 2, "the echo");
    }
}
