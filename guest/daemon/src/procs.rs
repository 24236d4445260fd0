//! Processes as proc lists them: those of a session, wherever they have gone.
//!
//! A cgroup is what the daemon kills by, but guest root may leave it. A session is left too, by whoever forks and asks for one of
//! its own: such a process lives until the host's session ends, when everything does.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use crate::sys;

/// What forks faster than it is killed is left to the cgroup's own kill.
const ROUNDS: usize = 16;

/// Kill leaders of sessions, none of which has been reaped (else its number may be another's), and all that is in their sessions.
/// It lists all of proc: once for many, not once for each.
pub fn kill_sessions(proc: BorrowedFd<'_>, leaders: &BTreeSet<i32>) {
    for leader in leaders {
        sys::kill(*leader);
        sys::kill(-leader);
    }
    let mut killed = leaders.clone();
    for _ in 0..ROUNDS {
        let found: Vec<i32> = members(proc, leaders).into_iter().filter(|pid| killed.insert(*pid)).collect();
        if found.is_empty() {
            return;
        }
        found.into_iter().for_each(sys::kill);
    }
}

fn members(proc: BorrowedFd<'_>, sessions: &BTreeSet<i32>) -> Vec<i32> {
    let listed = sys::open_held(proc, c".", libc::O_RDONLY | libc::O_DIRECTORY).and_then(sys::names).unwrap_or_default();
    let pids = listed.iter().filter_map(|name| name.to_str().ok()?.parse::<i32>().ok());
    pids.filter(|pid| *pid > 1 && sys::session_of(*pid).is_some_and(|session| sessions.contains(&session))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_process_is_in_a_session_and_others_are_not() {
        let proc = sys::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        // SAFETY: a plain call.
        let ours = unsafe { libc::getsid(0) };
        let me = std::process::id() as i32;
        assert_eq!(sys::session_of(me), Some(ours));
        assert!(members(proc.as_fd(), &[ours].into()).contains(&me) || ours == 0);
        assert!(!members(proc.as_fd(), &[i32::MAX].into()).contains(&me));
    }
}
