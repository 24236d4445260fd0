//! The guest's network: loopback and one interface with a fixed address, set by ioctl (no program of the guest takes part).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::sys;

const INTERFACE: &str = "eth0";

/// An address, the length of its network's prefix, and the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    address: Ipv4Addr,
    prefix: u32,
    gateway: Option<Ipv4Addr>,
}

impl Plan {
    /// From the kernel's command line: `10.0.0.2/30` and `10.0.0.1`.
    pub fn parse(address: &str, gateway: Option<&str>) -> Result<Self, String> {
        let wrong = |what: &str, text: &str| format!("{what}={text} on the kernel's command line is no address");
        let (host, prefix) = address.split_once('/').ok_or_else(|| wrong("space.ip", address))?;
        let plan = Self {
            address: host.parse().map_err(|_| wrong("space.ip", address))?,
            prefix: prefix.parse().ok().filter(|bits| *bits <= 32).ok_or_else(|| wrong("space.ip", address))?,
            gateway: gateway.map(|text| text.parse().map_err(|_| wrong("space.gateway", text))).transpose()?,
        };
        Ok(plan)
    }

    fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0))
    }

    /// Give the interface its address and bring it up. IPv6 is switched off before that, so that it never speaks.
    pub fn apply(self) -> Result<(), String> {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{INTERFACE}/disable_ipv6"), "1");
        let socket = socket()?;
        address(&socket, libc::SIOCSIFADDR, "the address", self.address)?;
        address(&socket, libc::SIOCSIFNETMASK, "the netmask", self.mask())?;
        bring_up(&socket, INTERFACE)?;
        self.gateway.map_or(Ok(()), |gateway| route(&socket, gateway))
    }
}

/// Bring loopback up.
pub fn loopback() -> Result<(), String> {
    bring_up(&socket()?, "lo")
}

fn fault(what: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot set {what} of {INTERFACE}: {error}")
}

fn socket() -> Result<OwnedFd, String> {
    sys::socket(libc::AF_INET, libc::SOCK_DGRAM).map_err(fault("the socket"))
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data, all zeros being valid.
    let mut out: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in out.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    out
}

fn inet(address: Ipv4Addr) -> libc::sockaddr {
    let bytes = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: both are plain data of 16 bytes.
    unsafe { std::mem::transmute(bytes) }
}

fn address(socket: &OwnedFd, code: libc::Ioctl, what: &str, value: Ipv4Addr) -> Result<(), String> {
    let mut ask = request(INTERFACE);
    ask.ifr_ifru.ifru_addr = inet(value);
    // SAFETY: an ifreq is what these requests take.
    unsafe { sys::ioctl(socket.as_fd(), code as libc::c_ulong, &raw mut ask) }.map(drop).map_err(fault(what))
}

fn bring_up(socket: &OwnedFd, name: &str) -> Result<(), String> {
    let mut ask = request(name);
    ask.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: an ifreq is what this request takes.
    unsafe { sys::ioctl(socket.as_fd(), libc::SIOCSIFFLAGS as libc::c_ulong, &raw mut ask) }
        .map(drop)
        .map_err(|error| format!("cannot bring {name} up: {error}"))
}

fn route(socket: &OwnedFd, gateway: Ipv4Addr) -> Result<(), String> {
    // SAFETY: rtentry is plain data, all zeros being valid; the kernel reads it during the call only.
    unsafe {
        let mut entry: libc::rtentry = std::mem::zeroed();
        entry.rt_dst = inet(Ipv4Addr::UNSPECIFIED);
        entry.rt_genmask = inet(Ipv4Addr::UNSPECIFIED);
        entry.rt_gateway = inet(gateway);
        entry.rt_flags = (libc::RTF_UP | libc::RTF_GATEWAY) as libc::c_ushort;
        sys::check(libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw mut entry))
            .map(drop)
            .map_err(|error| format!("cannot set the default route to {gateway}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_from_the_command_lines_words() {
        let plan = Plan::parse("10.0.0.2/30", Some("10.0.0.1")).unwrap();
        assert_eq!(plan.mask(), Ipv4Addr::new(255, 255, 255, 252));
        assert_eq!(plan.gateway, Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(Plan::parse("10.0.0.2/0", None).unwrap().mask(), Ipv4Addr::UNSPECIFIED);
        assert_eq!(Plan::parse("10.0.0.2/32", None).unwrap().mask(), Ipv4Addr::BROADCAST);
    }

    #[test]
    fn words_that_are_no_address_are_refused() {
        for (address, gateway) in
            [("10.0.0.2", None), ("10.0.0.2/33", None), ("10.0.0/8", None), ("::1/64", None), ("10.0.0.2/30", Some("x"))]
        {
            assert!(Plan::parse(address, gateway).unwrap_err().contains("is no address"), "{address}");
        }
    }
}
