//! Processes as proc lists them: those of a session, wherever they have gone.
//!
//! A cgroup is what the daemon kills by, but guest root may leave it. A session is left too, by whoever forks and asks for one of
//! its own: such a process lives until the host's session ends, when everything does.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys;

/// What forks faster than it is killed is left to the cgroup's own kill.
const ROUNDS: usize = 16;

/// Kill leaders of sessions, none of which has been reaped (else its number may be another's), and all that is in their sessions.
/// It reads all of proc, some tenths of a millisecond for each process under emulation: once for many, not once for each.
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
    pids.filter(|pid| *pid > 1 && session_of(proc, *pid).is_some_and(|session| sessions.contains(&session))).collect()
}

fn session_of(proc: BorrowedFd<'_>, pid: i32) -> Option<i32> {
    let file = sys::open_held(proc, &CString::new(format!("{pid}/stat")).ok()?, libc::O_RDONLY).ok()?;
    let mut text = [0; 256];
    let count = sys::read_at_start(file.as_fd(), &mut text).ok()?;
    session_in(&text[..count])
}

/// The session in the text of `stat`. The program's name stands in parentheses, and may hold any byte.
fn session_in(stat: &[u8]) -> Option<i32> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_behind_any_name() {
        assert_eq!(session_in(b"7 (sleep) S 1 7 5 0 -1 4194560"), Some(5));
        assert_eq!(session_in(b"7 (a) S 1 2 3) 4) R 1 7 5 0 -1"), Some(5));
        assert_eq!(session_in(b"7 (\xff\n) R 1 7 5 0 -1"), Some(5));
        assert_eq!(session_in(b"7 (sleep"), None);
        assert_eq!(session_in(b""), None);
    }

    #[test]
    fn a_process_is_in_a_session_and_others_are_not() {
        let proc = sys::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        // SAFETY: a plain call.
        let ours = unsafe { libc::getsid(0) };
        let me = std::process::id() as i32;
        assert_eq!(session_of(proc.as_fd(), me), Some(ours));
        assert!(members(proc.as_fd(), &[ours].into()).contains(&me) || ours == 0);
        assert!(!members(proc.as_fd(), &[i32::MAX].into()).contains(&me));
    }
}
