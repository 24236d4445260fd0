//! A ring of shared memory between the daemon and a child of it: one writer, one reader, bytes in order.
//!
//! A pipe costs two copies and the allocation of every page it holds: 16 MiB through one took 0.58 s of processor time under
//! emulation, when the whole of their way over the channel took 0.25 s. Here the child works on the ring's own memory. Pipes remain as
//! bells: whoever finds the ring empty (or full) says so in the ring and waits for a byte, whoever changes that sends one.
//!
//! The child belongs to the guest. The daemon believes nothing in the ring beyond its bounds and makes no references into it.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that it holds; a power of two. As much as a bulk stream's window, so that whatever the host may send has place.
pub const SIZE: usize = 2 << 20;
const _: () = assert!(SIZE == space_protocol::Pipe::Bulk.window() as usize);
/// A part that is worked on at once, so that the other side can go on with the rest.
const PART: usize = 256 << 10;
/// A writer hears of place only after every so many bytes, or when the ring is empty: each bell is two switches between processes, and
/// under emulation each of these empties the table of addresses and that of translated code (207 of 830 ms for 64 MiB).
const ROUND: u64 = SIZE as u64 / 2;
const PAGE: usize = 4096;

#[repr(C)]
struct Shared {
    written: AtomicU64,
    read: AtomicU64,
    writer_waits: AtomicU32,
    reader_waits: AtomicU32,
}

/// One mapping, which a fork shares.
pub struct Ring {
    base: *mut u8,
}

/// The other side has put numbers into the ring that cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Ring {
    /// An empty ring.
    pub fn new() -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, zeros, which is what an empty ring looks like.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE + SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base: base.cast() }) }
    }

    fn shared(&self) -> &Shared {
        #[allow(clippy::cast_ptr_alignment)] // a mapping begins at a page
        // SAFETY: the mapping begins with it, page-aligned, and lives as long as `self`; all its parts are atomic.
        unsafe {
            &*self.base.cast::<Shared>()
        }
    }

    /// Bytes written and not yet read, and where the next one to be read and to be written lie.
    fn state(&self) -> Result<(usize, usize, usize), Corrupt> {
        let read = self.shared().read.load(Ordering::Acquire);
        let written = self.shared().written.load(Ordering::Acquire);
        let used = written.wrapping_sub(read);
        if used > SIZE as u64 {
            return Err(Corrupt);
        }
        Ok((used as usize, read as usize % SIZE, written as usize % SIZE))
    }

    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: `offset` is below SIZE, so this stays in the mapping.
        unsafe { self.base.add(PAGE + offset % SIZE) }
    }

    /// Bytes that were ever read.
    pub fn total_read(&self) -> Result<u64, Corrupt> {
        self.state().map(|_| self.shared().read.load(Ordering::Acquire))
    }

    /// Bytes that can be read in one piece.
    pub fn readable(&self) -> Result<(*const u8, usize), Corrupt> {
        let (used, read, _) = self.state()?;
        Ok((self.at(read), used.min(SIZE - read).min(PART - read % PART)))
    }

    /// Place that can be written in one piece.
    pub fn writable(&self) -> Result<(*mut u8, usize), Corrupt> {
        let (used, _, written) = self.state()?;
        Ok((self.at(written), (SIZE - used).min(SIZE - written).min(PART - written % PART)))
    }

    /// `count` bytes of [`Ring::readable`] are done with; whether the writer must be rung.
    pub fn was_read(&self, count: usize) -> bool {
        let before = self.shared().read.fetch_add(count as u64, Ordering::SeqCst);
        let now = before.wrapping_add(count as u64);
        // A writer that waits does so with bytes in the ring that will be read, and somewhere in a full one a round ends.
        let worth_it = before / ROUND != now / ROUND || now == self.shared().written.load(Ordering::SeqCst);
        worth_it && self.shared().writer_waits.swap(0, Ordering::SeqCst) != 0
    }

    /// `count` bytes of [`Ring::writable`] are there; whether the reader must be rung.
    pub fn was_written(&self, count: usize) -> bool {
        self.shared().written.fetch_add(count as u64, Ordering::SeqCst);
        self.shared().reader_waits.swap(0, Ordering::SeqCst) != 0
    }

    /// The reader will wait for a bell if there is still nothing to read, which this tells.
    pub fn reader_waits(&self) -> Result<bool, Corrupt> {
        self.shared().reader_waits.store(1, Ordering::SeqCst);
        self.readable().map(|(_, count)| count == 0)
    }

    /// The writer will wait for a bell if there is still no place, which this tells.
    pub fn writer_waits(&self) -> Result<bool, Corrupt> {
        self.shared().writer_waits.store(1, Ordering::SeqCst);
        self.writable().map(|(_, count)| count == 0)
    }

    /// Copy from the front of `bytes` what fits: (how much, whether the reader must be rung).
    pub fn write(&self, bytes: &[u8]) -> Result<(usize, bool), Corrupt> {
        let (mut done, mut ring) = (0, false);
        while done < bytes.len() {
            let (to, room) = self.writable()?;
            let count = room.min(bytes.len() - done);
            if count == 0 {
                break;
            }
            // SAFETY: as many bytes on both sides, which do not overlap.
            unsafe { copy(bytes[done..].as_ptr(), to, count) };
            ring |= self.was_written(count);
            done += count;
        }
        Ok((done, ring))
    }

    /// Copy to `out` what is there: (how much, whether the writer must be rung).
    pub fn read(&self, out: &mut [u8]) -> Result<(usize, bool), Corrupt> {
        let (mut done, mut ring) = (0, false);
        while done < out.len() {
            let (from, there) = self.readable()?;
            let count = there.min(out.len() - done);
            if count == 0 {
                break;
            }
            // SAFETY: as many bytes on both sides, which do not overlap.
            unsafe { copy(from, out[done..].as_mut_ptr(), count) };
            ring |= self.was_read(count);
            done += count;
        }
        Ok((done, ring))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our mapping, of this size; nothing refers into it any more.
        unsafe { libc::munmap(self.base.cast(), PAGE + SIZE) };
    }
}

const WORD: usize = size_of::<u64>();

/// Copy bytes by words. The C library's copy becomes `rep movsb`, which takes seven times as long under emulation (16 MiB in 116 ms
/// against 16 ms); the volatile stores keep the compiler from putting it back.
///
/// # Safety
/// `count` bytes are readable at `from` and writable at `to`, and do not overlap.
#[allow(clippy::cast_ptr_alignment)] // `head` reaches to where words begin
pub unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    let head = to.align_offset(WORD).min(count);
    let words = (count - head) / WORD;
    // SAFETY: all within the `count` bytes; stores of words are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (source, target) = (from.add(head), to.add(head).cast::<u64>());
        for at in 0..words {
            target.add(at).write_volatile(source.add(at * WORD).cast::<u64>().read_unaligned());
        }
        let done = head + words * WORD;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), count - done);
    }
}

/// Copy as much of `from` as `to` has room for; how much.
pub fn copy_slice(from: &[u8], to: &mut [u8]) -> usize {
    let count = from.len().min(to.len());
    // SAFETY: both are that long, and a `&mut` overlaps nothing.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), count) };
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_however_they_are_cut() {
        let ring = Ring::new().unwrap();
        let bytes: Vec<u8> = (0..3 * SIZE + 77).map(|at| (at / 255) as u8 ^ at as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        let mut piece = vec![0; 99_991];
        while got.len() < bytes.len() {
            let part = &bytes[sent..(sent + 70_001).min(bytes.len())];
            sent += ring.write(part).unwrap().0;
            let count = ring.read(&mut piece).unwrap().0;
            got.extend_from_slice(&piece[..count]);
        }
        assert!(got == bytes);
    }

    #[test]
    fn a_full_ring_takes_nothing_and_bells_ring_once() {
        let ring = Ring::new().unwrap();
        assert!(ring.reader_waits().unwrap());
        assert_eq!(ring.write(&vec![1; SIZE + 5]).unwrap(), (SIZE, true));
        assert_eq!(ring.write(b"x").unwrap(), (0, false));
        assert!(ring.writer_waits().unwrap());
        assert_eq!(ring.read(&mut [0; 3]).unwrap(), (3, false), "too little to wake anybody for");
        assert_eq!(ring.read(&mut vec![0; SIZE / 2]).unwrap(), (SIZE / 2, true));
        assert_eq!(ring.read(&mut [0; 3]).unwrap(), (3, false));
        assert!(!ring.writer_waits().unwrap(), "there is place again");
        assert_eq!(ring.read(&mut vec![0; SIZE]).unwrap(), (SIZE / 2 - 6, true), "nothing is left to wait for");
    }

    #[test]
    fn numbers_that_cannot_be_are_seen() {
        let ring = Ring::new().unwrap();
        ring.shared().written.store(SIZE as u64 + 1, Ordering::SeqCst);
        assert_eq!(ring.readable(), Err(Corrupt));
        assert_eq!(ring.write(b"x"), Err(Corrupt));
        ring.shared().read.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(ring.read(&mut [0; 3]), Err(Corrupt));
    }

    #[test]
    fn copies_are_exact_at_every_alignment() {
        let from: Vec<u8> = (0..100).collect();
        for start in 0..9 {
            for offset in 0..9 {
                for count in 0..40 {
                    let mut to = [255; 60];
                    assert_eq!(copy_slice(&from[start..start + count], &mut to[offset..]), count);
                    assert_eq!(to[offset..offset + count], from[start..start + count]);
                    assert!(to[..offset].iter().chain(&to[offset + count..]).all(|byte| *byte == 255));
                }
            }
        }
    }
}
