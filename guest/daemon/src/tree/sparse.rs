//! Files with holes, in GNU's form 1.0: records of the pax header name the file and its real size, and its content begins with a
//! map of the segments that hold data (decimal numbers, a line each: how many, then offset and length of each). The map is pure.

use std::fmt::Write;
use std::os::fd::BorrowedFd;

use super::header::BLOCK;
use crate::files::{Extent, extent};

/// Segments of a file; what lies behind so many goes as one with its holes.
pub const MOST: usize = 16_384;
/// Digits of a number.
const DIGITS: usize = 19;

/// Bytes that are not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they begin.
    pub at: u64,
    /// How many.
    pub length: u64,
}

/// The records of a pax header that begin with `GNU.sparse.`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// There is one.
    any: bool,
    major: Vec<u8>,
    minor: Vec<u8>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    /// There is one of another form.
    other: bool,
}

impl Records {
    /// One of them; false for a size that is no number.
    pub fn take(&mut self, key: &[u8], value: &[u8], number: impl Fn(&[u8]) -> Option<u64>) -> bool {
        self.any = true;
        match key {
            b"major" => self.major = value.to_vec(),
            b"minor" => self.minor = value.to_vec(),
            b"name" => self.name = Some(value.to_vec()),
            b"realsize" => {
                self.size = number(value);
                return self.size.is_some();
            }
            _ => self.other = true,
        }
        true
    }

    /// Name and real size of a file with holes; nothing without records.
    pub fn judge(self) -> Result<Option<(Vec<u8>, u64)>, &'static str> {
        const FORM: &str = "it is sparse in another form than GNU's 1.0; pack it with --format=posix, or without holes";
        if !self.any {
            return Ok(None);
        }
        match (self.name, self.size) {
            (Some(name), Some(size)) if !self.other && self.major == b"1" && self.minor == b"0" => Ok(Some((name, size))),
            _ => Err(FORM),
        }
    }
}

/// A map on its way in. `packed`: bytes of the entry's content, the map included; `real`: of the file.
pub struct Map {
    packed: u64,
    real: u64,
    taken: u64,
    number: Vec<u8>,
    count: Option<usize>,
    start: Option<u64>,
    segments: Vec<Segment>,
}

impl Map {
    /// A map that is about to come.
    pub fn new(packed: u64, real: u64) -> Self {
        Self { packed, real, taken: 0, number: vec![], count: None, start: None, segments: vec![] }
    }

    /// Bytes of content that have not come yet.
    pub fn left(&self) -> u64 {
        self.packed.saturating_sub(self.taken)
    }

    /// The next block; the segments when it was the last. They ascend, stay below the real size, and fill the content exactly.
    pub fn take(&mut self, block: &[u8; BLOCK]) -> Result<Option<Vec<Segment>>, &'static str> {
        self.taken += BLOCK as u64;
        if self.taken > self.packed {
            return Err("its map of holes does not end");
        }
        for (at, byte) in block.iter().enumerate() {
            match byte {
                b'0'..=b'9' if self.number.len() < DIGITS => self.number.push(*byte),
                b'\n' if !self.number.is_empty() => self.line()?,
                _ => return Err("its map of holes is no list of numbers"),
            }
            if self.count == Some(self.segments.len()) {
                return self.end(&block[at + 1..]).map(Some);
            }
        }
        Ok(None)
    }

    fn line(&mut self) -> Result<(), &'static str> {
        let text = std::mem::take(&mut self.number);
        let number = text.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        if self.count.is_none() {
            let count = usize::try_from(number).ok().filter(|count| *count <= MOST).ok_or("its map names too many segments")?;
            self.count = Some(count);
            return Ok(());
        }
        let Some(at) = self.start.take() else {
            self.start = Some(number);
            return Ok(());
        };
        if self.segments.last().is_some_and(|last| last.at + last.length > at) {
            return Err("the segments of its map overlap or do not ascend");
        }
        if at.checked_add(number).is_none_or(|end| end > self.real) {
            return Err("a segment of its map lies beyond its size");
        }
        self.segments.push(Segment { at, length: number });
        Ok(())
    }

    fn end(&mut self, rest: &[u8]) -> Result<Vec<Segment>, &'static str> {
        let segments = std::mem::take(&mut self.segments);
        // They lie within a file, one behind the other: their sum is no more than its size.
        let data: u64 = segments.iter().map(|segment| segment.length).sum();
        if rest.iter().any(|byte| *byte != 0) || data != self.left() {
            return Err("its content is not what its map says");
        }
        Ok(segments)
    }
}

/// The segments of an open file; nothing when it has no holes, or its file system knows of none.
pub fn segments(file: BorrowedFd<'_>, stat: &libc::stat) -> Option<Vec<Segment>> {
    let size = stat.st_size as u64;
    if stat.st_blocks as u64 * BLOCK as u64 >= size {
        return None;
    }
    let (mut at, mut found) = (0, vec![]);
    while at < size {
        at = match extent(file, at, size) {
            // It has become shorter: what is missing is zeros.
            Extent::Hole(to) if to == at => size,
            Extent::Hole(to) => to,
            Extent::Data(to) => {
                let to = if found.len() + 1 == MOST - 1 { size } else { to };
                found.push(Segment { at, length: to - at });
                to
            }
        };
    }
    if found.first().is_some_and(|segment| segment.length == size) {
        return None;
    }
    // As GNU tar marks the end of a file that ends in a hole.
    if found.last().is_none_or(|last| last.at + last.length < size) {
        found.push(Segment { at: size, length: 0 });
    }
    Some(found)
}

/// The map as it stands in the content.
pub fn format(segments: &[Segment]) -> Vec<u8> {
    let mut text = format!("{}\n", segments.len());
    for segment in segments {
        let _ = writeln!(text, "{}\n{}", segment.at, segment.length);
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(map: &[u8], data: u64, real: u64) -> Result<Vec<Segment>, &'static str> {
        let mut reader = Map::new(map.len() as u64 + data, real);
        for block in map.chunks(BLOCK) {
            if let Some(segments) = reader.take(block.try_into().unwrap())? {
                return Ok(segments);
            }
        }
        let mut more = [b'0'; BLOCK];
        more[0] = b'\n';
        reader.take(&more).map(|_| panic!("a map that ends nowhere"))
    }

    fn padded(text: &str) -> Vec<u8> {
        let mut map = text.as_bytes().to_vec();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        map
    }

    #[test]
    fn maps_of_any_length_read_back() {
        for count in [0, 1, 2, 50, MOST] {
            let segments: Vec<_> = (0..count as u64).map(|number| Segment { at: number << 20, length: 4096 }).collect();
            assert_eq!(read(&format(&segments), count as u64 * 4096, 1 << 40), Ok(segments), "{count}");
        }
    }

    #[test]
    fn maps_that_mean_harm_are_refused() {
        for (map, data, words) in [
            ("2\n0\n10\n5\n10\n", 20, "overlap"),
            ("2\n50\n10\n0\n10\n", 20, "ascend"),
            ("1\n95\n10\n", 10, "beyond"),
            ("1\n101\n0\n", 0, "beyond"),
            ("1\n9999999999999999999\n9999999999999999999\n", 0, "beyond"),
            ("1\n99999999999999999999\n0\n", 0, "no list"),
            ("16385\n", 0, "too many"),
            ("1\n0\n10\n", 11, "not what"),
            ("1\n0\n10\n", 9, "not what"),
            ("1\n0\n10\nx", 10, "not what"),
            ("-1\n", 0, "no list"),
            ("1\n\n", 0, "no list"),
            ("", 0, "no list"),
            ("1 0 10", 10, "no list"),
        ] {
            let map = if map.is_empty() { vec![0; BLOCK] } else { padded(map) };
            let refused = read(&map, data, 100).unwrap_err();
            assert!(refused.contains(words), "{map:?}: {refused}");
        }
        let mut endless = b"16384\n".to_vec();
        endless.extend_from_slice(&b"1\n0\n".repeat(1000)[..BLOCK - 6]);
        assert!(read(&endless, 0, 1 << 30).is_err());
    }

    #[test]
    fn records_of_another_form_are_refused() {
        let of = |records: &[(&str, &str)]| {
            let mut found = Records::default();
            for (key, value) in records {
                assert!(found.take(key.as_bytes(), value.as_bytes(), |text| std::str::from_utf8(text).ok()?.parse().ok()));
            }
            found.judge()
        };
        let whole = [("major", "1"), ("minor", "0"), ("name", "f"), ("realsize", "7")];
        assert_eq!(of(&whole), Ok(Some((b"f".to_vec(), 7))));
        assert_eq!(of(&[]), Ok(None));
        for left_out in 0..4 {
            let mut less = whole.to_vec();
            less.remove(left_out);
            assert!(of(&less).is_err());
        }
        for more in [("map", "0,1"), ("size", "7"), ("minor", "1"), ("major", "0")] {
            let mut records = whole.to_vec();
            records.push(more);
            assert!(of(&records).is_err());
        }
    }
}
