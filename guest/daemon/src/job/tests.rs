//! Jobs without processes: what becomes of their pipes.

use super::*;
use crate::cgroup::fake;

const NOW: Duration = Duration::from_secs(1);

fn job(scratch: &fake::Scratch, inlet: OwnedFd) -> Job {
    let leaf = fake::leaf(&scratch.0, "p1", false);
    let child = Child { pid: 77, leaf, report: sys::pipe().unwrap().0, inlet: Some(inlet), outlets: [None, None] };
    Job::new(3, Purpose::Verb, Way::Pipes, child)
}

#[test]
fn a_child_that_clears_up_gets_the_end_of_its_input_and_a_moment() {
    let scratch = fake::Scratch::new();
    let (input, inlet) = sys::pipe().unwrap();
    let mut job = job(&scratch, inlet);
    assert!(!job.let_go(NOW), "any other is killed");
    let (aside, pipe) = sys::pipe().unwrap();
    job.take_messages(pipe);
    assert!(job.let_go(NOW));
    assert_eq!((job.stream(), job.deadline()), (NOBODY, Some(NOW + GRACE)));
    for end in [input, aside] {
        assert_eq!(sys::read(end.as_fd(), &mut [0; 9]).unwrap(), 0);
    }
    job.leader_ended();
    assert!(!job.let_go(NOW), "it has ended");
}

#[test]
fn one_small_message_of_the_host_is_passed_on() {
    let scratch = fake::Scratch::new();
    let (_input, inlet) = sys::pipe().unwrap();
    let mut job = job(&scratch, inlet);
    assert_eq!(job.tell(b"x").unwrap_err().code, "protocol_error");
    let (aside, pipe) = sys::pipe().unwrap();
    job.take_messages(pipe);
    job.tell(b"count").unwrap();
    assert!(job.tell(b"again").is_err());
    let mut bytes = [0; 9];
    assert_eq!(sys::read(aside.as_fd(), &mut bytes).unwrap(), 5);
    assert_eq!(sys::read(aside.as_fd(), &mut bytes).unwrap(), 0, "no more will come");
    let (_aside, pipe) = sys::pipe().unwrap();
    job.take_messages(pipe);
    assert!(job.tell(&[0; LARGEST_ASIDE + 1]).is_err());
}
