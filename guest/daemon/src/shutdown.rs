//! `shutdown`: ask, wait, kill, sync, read-only, reset. The VMM runs with `-no-reboot`, so a reset ends it.

use std::time::Duration;

use crate::cgroup::Workloads;
use crate::sys;

/// How long workloads may take to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// How long the rest may take after that before it is passed over.
const LAST: Duration = Duration::from_secs(1);
/// How often it is looked at in between: at ends of processes, and at least this often.
const LOOK: Duration = Duration::from_millis(50);

/// A shutdown under way.
pub struct Shutdown {
    kill_at: Duration,
    end_at: Duration,
    killed: bool,
    look_at: Duration,
}

impl Shutdown {
    /// Ask every workload to end. now: monotonic.
    pub fn begin(workloads: &Workloads, now: Duration) -> Self {
        workloads.signal_all(libc::SIGTERM);
        workloads.signal_all(libc::SIGCONT);
        Self { kill_at: now + GRACE, end_at: now + GRACE + LAST, killed: false, look_at: now }
    }

    /// When to look again.
    pub fn deadline(&self) -> Duration {
        self.look_at
    }

    /// Go on if it is time; does not come back from the last step. told: the answer has been written.
    pub fn step(&mut self, workloads: &Workloads, told: bool, now: Duration) {
        self.look_at = now + LOOK;
        let late = now >= self.end_at;
        if now >= self.kill_at && !self.killed {
            workloads.kill_all();
            self.killed = true;
        }
        if (told && workloads.is_empty()) || late {
            finish();
        }
    }
}

fn finish() -> ! {
    // SAFETY: plain calls.
    unsafe { libc::sync() };
    let _ = sys::mount("", "/", "", libc::MS_REMOUNT | libc::MS_RDONLY, "");
    restart()
}

/// End the machine, at once.
pub fn restart() -> ! {
    loop {
        // SAFETY: plain calls.
        unsafe {
            libc::reboot(libc::RB_AUTOBOOT);
            libc::pause();
        }
    }
}
