//! Trees, in and out as tar streams.
use space_protocol::messages::Tree;
use space_protocol::{Failure, Message};
/// .
pub fn check(_: &Tree) -> Result<(), Failure> {
    Err(Failure::new("unsupported", "not yet"))
}
/// .
pub fn put(_: &Tree) -> Result<Message, Failure> {
    unreachable!()
}
/// .
pub fn get(_: &Tree) -> Result<Message, Failure> {
    unreachable!()
}
