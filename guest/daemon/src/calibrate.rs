//! The verbs that measure the channel: `echo`, `sink`, `source`. They touch no file and start nothing.

use std::collections::VecDeque;

use crate::ring::copy_slice;
use space_protocol::messages::TreeDone;
use space_protocol::{Message, Mux};

/// A calibration stream.
pub enum Calibration {
    /// Everything comes back.
    Echo {
        /// Bytes that wait for credit.
        waiting: VecDeque<u8>,
        /// The peer has closed.
        ends: bool,
    },
    /// Everything is counted.
    Sink(u64),
    /// Zeros are sent.
    Source {
        /// Bytes still to send.
        left: u64,
        /// Bytes asked for.
        total: u64,
    },
}

fn counted(bytes: u64) -> Message {
    Message::Tree(TreeDone { entries: 0, bytes, crc32: 0 })
}

impl Calibration {
    /// Bytes came.
    pub fn feed(&mut self, mux: &mut Mux, stream: u32, bytes: &[u8]) {
        match self {
            Self::Echo { waiting, .. } => {
                waiting.extend(bytes);
                self.pump(mux, stream);
            }
            Self::Sink(count) => {
                *count += bytes.len() as u64;
                mux.consumed(stream, bytes.len());
            }
            Self::Source { .. } => mux.consumed(stream, bytes.len()),
        }
    }

    /// The peer closed; whether the stream is done.
    pub fn end_input(&mut self, mux: &mut Mux, stream: u32) -> bool {
        match self {
            Self::Echo { ends, .. } => *ends = true,
            Self::Sink(count) => {
                mux.send(stream, &counted(*count));
                mux.close(stream);
                return true;
            }
            Self::Source { .. } => {}
        }
        self.pump(mux, stream)
    }

    /// Send what can be sent; whether the stream is done.
    pub fn pump(&mut self, mux: &mut Mux, stream: u32) -> bool {
        match self {
            Self::Echo { waiting, ends } => {
                while !waiting.is_empty() {
                    let slot = mux.data_slot(stream);
                    let count = slot.len().min(waiting.as_slices().0.len());
                    if count == 0 {
                        return false;
                    }
                    copy_slice(&waiting.as_slices().0[..count], slot);
                    waiting.drain(..count);
                    mux.data_commit(stream, 0, count);
                    mux.consumed(stream, count);
                }
                if *ends {
                    mux.close(stream);
                }
                *ends
            }
            Self::Sink(_) => false,
            Self::Source { left, total } => {
                while *left > 0 {
                    let slot = mux.data_slot(stream);
                    let count = slot.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    if count == 0 {
                        return false;
                    }
                    slot[..count].fill(0);
                    *left -= count as u64;
                    mux.data_commit(stream, 0, count);
                }
                mux.send(stream, &counted(*total));
                mux.close(stream);
                true
            }
        }
    }
}
