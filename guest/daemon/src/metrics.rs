//! How the guest fares, from proc and the root file system.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use space_protocol::messages::Metrics;

use crate::boot::Held;
use crate::cgroup::Workloads;
use crate::sys;

/// A kernel tick in milliseconds (`USER_HZ` is 100).
const TICK_MS: u64 = 10;

/// The figures of this moment.
pub fn take(held: &Held, workloads: &Workloads) -> Metrics {
    let read = |name: &CStr| sys::read_small(&held.proc, name).unwrap_or_default();
    let memory = read(c"meminfo");
    let (user, system) = cpu_ticks(&read(c"stat"));
    let (disk_total, disk_free) =
        sys::file_system(held.root.as_fd()).map_or((0, 0), |fs| (fs.f_blocks * fs.f_bsize as u64, fs.f_bfree * fs.f_bsize as u64));
    Metrics {
        memory_total: kib(&memory, "MemTotal:"),
        memory_available: kib(&memory, "MemAvailable:"),
        cpu_user_ms: user * TICK_MS,
        cpu_system_ms: system * TICK_MS,
        disk_total,
        disk_used: disk_total - disk_free,
        processes: workloads.tasks(),
        uptime_ms: uptime_ms(),
        load1_milli: thousandths(read(c"loadavg").split(' ').next().unwrap_or_default()),
    }
}

/// Since boot.
pub fn uptime_ms() -> u64 {
    sys::clock(libc::CLOCK_BOOTTIME).as_millis() as u64
}

/// Bytes of memory that can be had now.
pub fn memory_available(proc: BorrowedFd<'_>) -> u64 {
    kib(&sys::read_small(proc, c"meminfo").unwrap_or_default(), "MemAvailable:")
}

fn kib(meminfo: &str, key: &str) -> u64 {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(key)?.split_ascii_whitespace().next()?.parse::<u64>().ok());
    value.unwrap_or(0) << 10
}

/// (user and nice, system with interrupts), of all processors.
fn cpu_ticks(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_ascii_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    (at(0) + at(1), at(2) + at(5) + at(6))
}

fn thousandths(text: &str) -> u64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = part.parse::<u64>().unwrap_or(0) * 10;
    whole.parse::<u64>().unwrap_or(0) * 1000 + part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_kernels_text() {
        assert_eq!(kib("MemTotal:         225792 kB\nMemAvailable:     180000 kB\n", "MemAvailable:"), 180_000 << 10);
        assert_eq!(kib("", "MemTotal:"), 0);
        assert_eq!(cpu_ticks("cpu  10 2 30 400 5 6 7 0 0 0\ncpu0 1 1\n"), (12, 43));
        assert_eq!((thousandths("0.25"), thousandths("12.07"), thousandths("")), (250, 12_070, 0));
    }
}
