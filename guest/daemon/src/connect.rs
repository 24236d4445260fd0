//! `connect`: a TCP connection to a port of the guest's loopback, joined to a stream. It is the daemon's own, for nothing in it waits.
//!
//! ```text
//!   connecting --it stands--> connected --both directions have ended--> over
//!      |  \--refused, then by IPv6 as well--> RESET not_found            |
//!      \--no answer in time--> RESET deadline_exceeded                   \--reset by the other side--> RESET guest_error
//! ```
//!
//! Each direction ends by itself: the host's CLOSE is a FIN when all before it was taken, a FIN is our CLOSE. A stream that the host resets,
//! and one whose session ends, is a RST for whoever listens: what is cut off must not look finished.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use space_protocol::files::Connect;
use space_protocol::messages::Empty;
use space_protocol::{Failure, Message, Mux};

use crate::child;
use crate::sys::{self, Epoll, check};

/// As many as streams, those included whose stream has ended and that still have bytes to pass on.
pub const MOST: usize = space_protocol::frame::MAX_STREAMS;
/// How long the other side may take to accept, and to take bytes that nobody waits for any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection and its stream.
#[allow(clippy::struct_excessive_bools)] // each is news of the socket, or an end that cannot be undone
pub struct Connection {
    stream: u32,
    port: u16,
    socket: OwnedFd,
    connecting: Option<Family>,
    /// When its time is up, if it has one.
    deadline: Option<Duration>,
    readable: bool,
    writable: bool,
    waiting: VecDeque<u8>,
    /// The host sends nothing more.
    input_ends: bool,
    /// And the other side was told so.
    sent_end: bool,
    /// The other side sends nothing more.
    got_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Connection {
    /// Begin to connect.
    pub fn open(stream: u32, request: &Connect, now: Duration) -> Result<Self, Failure> {
        if request.port == 0 {
            return Err(Failure::invalid("port must be 1 to 65535, not 0"));
        }
        let (socket, family) = reach(request.port, Family::V4)?;
        Ok(Self {
            stream,
            port: request.port,
            socket,
            connecting: Some(family),
            deadline: Some(now + PATIENCE),
            readable: false,
            writable: false,
            waiting: VecDeque::new(),
            input_ends: false,
            sent_end: false,
            got_end: false,
        })
    }

    /// Have the kernel's news of it.
    pub fn watch(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        epoll.add(self.socket.as_fd(), libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP, token)
    }

    /// The stream that it is joined to.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// When its time is up.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The kernel has news.
    pub fn mark(&mut self) {
        (self.readable, self.writable) = (true, true);
    }

    /// Bytes for the other side.
    pub fn feed(&mut self, mux: &mut Mux, bytes: &[u8]) {
        if self.input_ends {
            mux.consumed(self.stream, bytes.len());
        } else {
            // The stream's window is all that can wait here.
            self.waiting.extend(bytes);
        }
    }

    /// The host sends nothing more.
    pub fn end_input(&mut self) {
        self.input_ends = true;
    }

    /// Cut it off: the other side gets a RST.
    pub fn cut(self) {
        abort(&self.socket);
    }

    /// Move what can be moved. Whether it is over, and if so why, unless all went well.
    pub fn pump(&mut self, mux: &mut Mux, epoll: &Epoll, token: u64, now: Duration) -> Option<Result<(), Failure>> {
        match self.step(mux, epoll, token, now) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(failure) => Some(Err(failure)),
        }
    }

    fn step(&mut self, mux: &mut Mux, epoll: &Epoll, token: u64, now: Duration) -> Result<bool, Failure> {
        if self.connecting.is_some() && !self.connected(mux, epoll, token)? {
            return if self.deadline.is_some_and(|at| at <= now) { Err(self.late()) } else { Ok(false) };
        }
        let taken = self.pour(mux)?;
        self.drain(mux)?;
        let unheard = self.got_end && self.input_ends && !self.sent_end;
        self.deadline = match self.deadline.filter(|_| unheard && !taken) {
            Some(at) if at <= now => return Ok(true),
            Some(at) => Some(at),
            None => unheard.then_some(now + PATIENCE),
        };
        Ok(self.got_end && self.sent_end)
    }

    fn late(&self) -> Failure {
        let seconds = PATIENCE.as_secs();
        Failure::new("deadline_exceeded", format!("port {} of the sandbox did not accept a connection within {seconds} s", self.port))
    }

    /// Whether it stands.
    fn connected(&mut self, mux: &mut Mux, epoll: &Epoll, token: u64) -> Result<bool, Failure> {
        if !std::mem::take(&mut self.writable) {
            return Ok(false);
        }
        match (self.connecting, fault(&self.socket)) {
            (Some(Family::V4), Some(libc::ECONNREFUSED)) => {
                let (socket, family) = reach(self.port, Family::V6)?;
                (self.socket, self.connecting) = (socket, Some(family));
                self.watch(epoll, token).map_err(|error| child::refusal("watch a connection", &error))?;
                return Ok(false);
            }
            (_, Some(error)) => return Err(refusal(self.port, &io::Error::from_raw_os_error(error))),
            (_, None) if !is_connected(&self.socket) => return Ok(false),
            (_, None) => {}
        }
        mux.send(self.stream, &Message::Connected(Empty {}));
        (self.connecting, self.deadline, self.readable, self.writable) = (None, None, true, true);
        Ok(true)
    }

    /// Bytes from the stream to the other side; whether some were taken.
    fn pour(&mut self, mux: &mut Mux) -> Result<bool, Failure> {
        let mut taken = false;
        while self.writable && !self.waiting.is_empty() {
            match send(&self.socket, self.waiting.as_slices().0) {
                Ok(count) => {
                    self.waiting.drain(..count);
                    mux.consumed(self.stream, count);
                    taken = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        if self.input_ends && self.waiting.is_empty() && !self.sent_end {
            // SAFETY: a valid descriptor. A socket that is not connected any more has told its end already.
            unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
            self.sent_end = true;
        }
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Ok(taken)
    }

    /// Bytes from the other side to the stream, as far as there is credit.
    fn drain(&mut self, mux: &mut Mux) -> Result<(), Failure> {
        while self.readable && !self.got_end {
            let slot = mux.data_slot(self.stream);
            if slot.is_empty() {
                return Ok(());
            }
            match sys::read(self.socket.as_fd(), slot) {
                Ok(0) => {
                    self.got_end = true;
                    mux.half_close(self.stream);
                }
                Ok(count) => mux.data_commit(self.stream, 0, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    fn broken(&self, error: &io::Error) -> Failure {
        Failure::guest(format!("the connection to port {} of the sandbox broke: {error}", self.port))
    }
}

/// A socket on its way to that port, by IPv6 at once where IPv4 is refused at once.
fn reach(port: u16, family: Family) -> Result<(OwnedFd, Family), Failure> {
    match (begin(port, family), family) {
        (Err(error), Family::V4) if error.raw_os_error() == Some(libc::ECONNREFUSED) => reach(port, Family::V6),
        (Err(error), _) => Err(refusal(port, &error)),
        (Ok(socket), family) => Ok((socket, family)),
    }
}

fn begin(port: u16, family: Family) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let v4 = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(std::net::Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    let v6 = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: std::net::Ipv6Addr::LOCALHOST.octets() },
        sin6_scope_id: 0,
    };
    let (domain, address, size): (_, *const libc::sockaddr, _) = match family {
        Family::V4 => (libc::AF_INET, (&raw const v4).cast(), size_of_val(&v4)),
        Family::V6 => (libc::AF_INET6, (&raw const v6).cast(), size_of_val(&v6)),
    };
    // SAFETY: the descriptor is ours; the address is as long as we say.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::socket(domain, kind, 0))?);
        let on: i32 = 1;
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), size_of::<i32>() as u32);
        match check(libc::connect(socket.as_raw_fd(), address, size as u32)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    }
}

/// `send`, without a signal.
fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is ours and as long as we say.
    let count = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}

/// Let the socket's end be a RST.
fn abort(socket: &OwnedFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: a valid descriptor and a structure of the size given.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size) };
}

/// What became of an attempt that the kernel has news of.
fn fault(socket: &OwnedFd) -> Option<i32> {
    let (mut error, mut size): (i32, u32) = (0, size_of::<i32>() as u32);
    // SAFETY: room for the number.
    unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut size) };
    (error != 0).then_some(error)
}

fn is_connected(socket: &OwnedFd) -> bool {
    // SAFETY: sockaddr_storage is plain data that the kernel fills, as far as we say.
    unsafe {
        let mut peer: libc::sockaddr_storage = std::mem::zeroed();
        let mut size = size_of::<libc::sockaddr_storage>() as u32;
        libc::getpeername(socket.as_raw_fd(), (&raw mut peer).cast(), &raw mut size) == 0
    }
}

fn refusal(port: u16, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        // A sandbox without IPv6 has no ::1, and then nothing listens there either.
        Some(libc::ECONNREFUSED | libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::ENETUNREACH) => {
            Failure::new("not_found", format!("nothing listens on port {port} of the sandbox's 127.0.0.1 or ::1"))
        }
        Some(libc::ETIMEDOUT) => Failure::new("deadline_exceeded", format!("port {port} of the sandbox does not answer")),
        _ => child::refusal(&format!("connect to its port {port}"), error),
    }
}

#[cfg(test)]
mod tests;
