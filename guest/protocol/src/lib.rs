//! The wire protocol between host and guest (`docs/protocol.md`, sections 1 and 2): bytes in, events out.
//!
//! - [`frame`]: the frames' layout, and what makes a header valid
//! - [`decoder`]: bytes of one pipe to frames, with hunt and resynchronisation
//! - [`mux`]: one session over two pipes: streams, credit, what is to be written
//! - [`messages`]: requests and messages of the verbs, in `MessagePack`; [`files`]: those of files, watches and ports
//!
//! No I/O, no clock, no randomness. Nothing here allocates on the word of a length that it has not checked.

pub mod decoder;
pub mod entries;
pub mod files;
pub mod frame;
pub mod messages;
pub mod mux;
mod pack;

pub use decoder::{Decoder, Item, Role};
pub use frame::{Greeting, Kind, Pipe, Reject};
pub use messages::{Bytes, Failure, Message};
pub use mux::{Event, Mux};
pub use pack::{Fault, Wire};
