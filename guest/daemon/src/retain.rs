//! What a kept process wrote, as far as the host may still ask for it: bytes of two lanes in one order. No I/O.
//!
//! ```text
//!   oldest .... credited ................ sent ..................... taken from the process
//!     \_ BEHIND _/ \_ not credited yet _/   \_ again, after an attach _/
//! ```
//!
//! The host returns credit in order for what was sent, so what it has not returned credit for is the end of `sent`. `again` comes
//! before anything fresh, which is what keeps both lanes in order, and the whole within a window and `BEHIND`.

use std::collections::VecDeque;

use space_protocol::Failure;

/// Bytes that are kept of what the host has returned credit for: it may not have stored its last event yet.
pub const BEHIND: usize = 65_536;
const CHUNK: usize = 16 << 10;
const STDERR: u32 = 1 << 31;

/// Bytes of two lanes, in order. It takes little more memory than it has bytes, and gives it back as they go.
#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    length: usize,
    lanes: [usize; 2],
}

/// Some bytes, and whose they are: runs of a length and, in the highest bit, a lane.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    begin: usize,
    runs: Vec<u32>,
    run: usize,
}

impl Queue {
    fn push(&mut self, lane: usize, mut bytes: &[u8]) {
        self.length += bytes.len();
        self.lanes[lane] += bytes.len();
        while !bytes.is_empty() {
            if self.chunks.back().is_none_or(|last| last.bytes.len() >= CHUNK) {
                self.chunks.push_back(Chunk::default());
            }
            let Some(last) = self.chunks.back_mut() else { return };
            let (some, rest) = bytes.split_at(bytes.len().min(CHUNK - last.bytes.len()));
            last.push(lane, some);
            bytes = rest;
        }
    }

    /// The first bytes of one lane, as far as they lie together.
    fn first(&self) -> Option<(usize, &[u8])> {
        let chunk = self.chunks.front()?;
        let run = chunk.runs.get(chunk.run)?;
        let length = (run & !STDERR) as usize;
        Some((usize::from(run & STDERR != 0), &chunk.bytes[chunk.begin..chunk.begin + length]))
    }

    /// Let go of some of [`Queue::first`].
    fn skip(&mut self, count: usize) {
        let Some((lane, first)) = self.first() else { return };
        let count = count.min(first.len());
        self.length -= count;
        self.lanes[lane] -= count;
        if self.chunks.front_mut().is_some_and(|chunk| chunk.skip(count)) {
            self.chunks.pop_front();
        }
    }
}

impl Chunk {
    fn push(&mut self, lane: usize, bytes: &[u8]) {
        let length = self.bytes.len() + bytes.len();
        if length > self.bytes.capacity() {
            // Twice as much as there is, but not beyond a chunk, as a vector by itself would.
            self.bytes.reserve_exact(length.max(2 * self.bytes.len()).min(CHUNK) - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        let (flag, length) = (if lane == 0 { 0 } else { STDERR }, bytes.len() as u32);
        match self.runs[self.run..].last_mut().filter(|last| **last & STDERR == flag) {
            Some(last) => *last += length,
            None => self.runs.push(flag | length),
        }
    }

    /// Whether nothing is left of it.
    fn skip(&mut self, count: usize) -> bool {
        self.begin += count;
        self.runs[self.run] -= count as u32;
        if self.runs[self.run] & !STDERR == 0 {
            self.run += 1;
        }
        self.begin == self.bytes.len()
    }
}

/// See the module.
#[derive(Default)]
pub struct Retained {
    sent: Queue,
    again: Queue,
    taken: [u64; 2],
}

impl Retained {
    /// These bytes were taken from the process and sent; nothing was to be sent again.
    pub fn push(&mut self, lane: usize, bytes: &[u8]) {
        self.taken[lane] += bytes.len() as u64;
        self.sent.push(lane, bytes);
    }

    /// Whether something is to be sent again, before anything fresh.
    pub fn is_behind(&self) -> bool {
        self.again.length > 0
    }

    /// Put what is to be sent again into the payload of a frame: lane and count. From then on it counts as sent.
    pub fn resend(&mut self, slot: &mut [u8]) -> (usize, usize) {
        let Some((lane, bytes)) = self.again.first() else { return (0, 0) };
        let count = bytes.len().min(slot.len());
        slot[..count].copy_from_slice(&bytes[..count]);
        self.sent.push(lane, &bytes[..count]);
        self.again.skip(count);
        (lane, count)
    }

    /// The host has returned credit for all that was sent but this much.
    pub fn credited(&mut self, outstanding: usize) {
        let mut spare = self.sent.length.saturating_sub(outstanding + BEHIND);
        while let Some((_, first)) = self.sent.first().filter(|_| spare > 0) {
            let count = first.len().min(spare);
            self.sent.skip(count);
            spare -= count;
        }
    }

    /// The offset of the oldest byte of a lane that is kept.
    fn oldest(&self, lane: usize) -> u64 {
        self.taken[lane] - (self.sent.lanes[lane] + self.again.lanes[lane]) as u64
    }

    /// The host holds this much of each lane: what follows is sent again, what it holds is kept as if it were credited.
    pub fn attach(&mut self, held: [u64; 2]) -> Result<(), Failure> {
        let mut at = [self.oldest(0), self.oldest(1)];
        for (lane, name) in ["stdout", "stderr"].into_iter().enumerate() {
            if !(at[lane]..=self.taken[lane]).contains(&held[lane]) {
                let (from, to, asked) = (at[lane], self.taken[lane], held[lane]);
                return Err(Failure::invalid(format!("{name} can be had from offset {from} to {to}, not from {asked}")));
            }
        }
        let mut old = [std::mem::take(&mut self.sent), std::mem::take(&mut self.again)];
        for queue in &mut old {
            while let Some((lane, bytes)) = queue.first() {
                let count = bytes.len();
                let (known, missing) = bytes.split_at(held[lane].saturating_sub(at[lane]).min(count as u64) as usize);
                self.sent.push(lane, known);
                self.again.push(lane, missing);
                at[lane] += count as u64;
                queue.skip(count);
            }
        }
        self.credited(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SplitMix64`.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }
    }

    const WINDOW: usize = 262_144;

    /// A process, the daemon's memory of it, a stream, and a host that stores.
    struct World {
        random: Random,
        wrote: [Vec<u8>; 2],
        retained: Retained,
        /// On its way or in the host's queue, in order: lane and bytes.
        flight: VecDeque<(usize, Vec<u8>)>,
        outstanding: usize,
        stored: [Vec<u8>; 2],
    }

    impl World {
        fn room(&mut self) -> usize {
            (WINDOW - self.outstanding).min(1 + self.random.below(65_536))
        }

        fn send(&mut self) {
            let room = self.room();
            if room == 0 {
                return;
            }
            let mut slot = vec![0; room];
            let (lane, count) = if self.retained.is_behind() {
                self.retained.resend(&mut slot)
            } else {
                // Often a few bytes, sometimes a full pipe.
                let most = if self.random.below(3) == 0 { room } else { room.min(50) };
                let (lane, count) = (self.random.below(2), 1 + self.random.below(most));
                self.random.next().to_le_bytes().iter().cycle().zip(&mut slot[..count]).for_each(|(from, to)| *to = *from);
                self.wrote[lane].extend(&slot[..count]);
                self.retained.push(lane, &slot[..count]);
                (lane, count)
            };
            self.outstanding += count;
            self.flight.push_back((lane, slot[..count].to_vec()));
        }

        /// The host takes an event: it is credited (here at once, in truth later), and stored unless the host dies before.
        fn receive(&mut self, dies: bool) {
            let Some((lane, bytes)) = self.flight.pop_front() else { return };
            self.outstanding -= bytes.len();
            self.retained.credited(self.outstanding);
            if !dies {
                self.stored[lane].extend(bytes);
            }
        }

        fn attach(&mut self) {
            // A host that stores behind its back may also have less than it took last.
            for lane in 0..2 {
                let (oldest, length) = (self.retained.oldest(lane) as usize, self.stored[lane].len());
                assert!(oldest <= length, "a byte that was never stored is gone");
                if self.random.below(4) == 0 {
                    self.stored[lane].truncate(oldest + self.random.below(length - oldest + 1));
                }
            }
            self.flight.clear();
            self.outstanding = 0;
            self.retained.attach([self.stored[0].len() as u64, self.stored[1].len() as u64]).unwrap();
        }
    }

    #[test]
    fn whatever_dies_when_the_host_ends_with_the_bytes_that_were_written() {
        let mut attached = 0;
        for seed in 0..60 {
            let random = Random(seed);
            let (wrote, stored) = ([vec![], vec![]], [vec![], vec![]]);
            let mut world = World { random, wrote, retained: Retained::default(), flight: VecDeque::new(), outstanding: 0, stored };
            for _ in 0..400 {
                match world.random.below(20) {
                    0 => {
                        let dies = world.random.below(2) == 0;
                        world.receive(dies);
                        world.attach();
                        attached += 1;
                    }
                    1..12 => world.send(),
                    _ => world.receive(false),
                }
                let most = world.outstanding + BEHIND;
                assert!(world.retained.sent.length <= most, "{} bytes, at most {most}", world.retained.sent.length);
                assert!(world.retained.again.length <= WINDOW + BEHIND, "{} bytes to send again", world.retained.again.length);
            }
            while world.retained.is_behind() || !world.flight.is_empty() {
                if world.retained.is_behind() && world.outstanding < WINDOW {
                    world.send();
                }
                world.receive(false);
            }
            assert!(world.stored == world.wrote, "seed {seed}");
        }
        assert!(attached > 100);
    }

    #[test]
    fn offsets_that_are_gone_or_not_reached_are_refused_and_change_nothing() {
        let mut retained = Retained::default();
        retained.push(0, &vec![1; 100_000]);
        retained.push(1, &[2; 10]);
        retained.credited(0);
        let oldest = 100_010 - BEHIND as u64;
        for held in [[oldest - 1, 0], [100_001, 0], [100_000, 11], [u64::MAX, 0]] {
            assert_eq!(retained.attach(held).unwrap_err().code, "invalid_argument");
        }
        retained.attach([oldest, 0]).unwrap();
        assert_eq!((retained.again.length, retained.sent.length), (BEHIND, 0));
        retained.attach([100_000, 10]).unwrap();
        assert!(!retained.is_behind());
    }

    #[test]
    fn memory_goes_with_the_bytes_also_when_lanes_alternate() {
        let mut retained = Retained::default();
        for _ in 0..200_000 {
            retained.push(0, b"a");
            retained.push(1, b"b");
            retained.credited(0);
        }
        let held: usize = retained.sent.chunks.iter().map(|chunk| chunk.bytes.capacity() + 4 * chunk.runs.capacity()).sum();
        assert!(held <= 6 * (BEHIND + 2 * CHUNK), "{held} bytes for {}", retained.sent.length);
        let mut plain = Retained::default();
        for _ in 0..1000 {
            plain.push(0, &[0; 999]);
            plain.credited(0);
        }
        let held: usize = plain.sent.chunks.iter().map(|chunk| chunk.bytes.capacity() + 4 * chunk.runs.capacity()).sum();
        assert!(held <= BEHIND + 3 * CHUNK, "{held}");
    }
}
