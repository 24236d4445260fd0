//! The variables that a template gives every process: `/etc/environment`, as PAM reads it for logins.
//!
//! `NAME=value` lines, `export ` before it and one pair of quotes round the value allowed, `#` begins a comment line. The file belongs to
//! the guest: what is no such line counts for nothing, and a file that is none, or is not there, has none.

use std::fs::File;
use std::io::Read;

use crate::sys;

const PATH: &str = "/etc/environment";
const BYTES: u64 = 64 << 10;
const MOST: usize = 256;

/// Those of this system; called in a child that is the user already, who may have made it hang.
pub fn load() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut text = Vec::new();
    // A FIFO in its place would be waited for.
    if let Ok(file) = sys::open(PATH, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY).map(File::from) {
        if file.metadata().is_ok_and(|facts| facts.is_file()) {
            let _ = file.take(BYTES).read_to_end(&mut text);
        }
    }
    parse(&text)
}

/// Of the file's bytes; a later line of a name stands in the place of the first.
pub fn parse(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in text.split(|byte| *byte == b'\n').filter_map(variable) {
        match found.iter().position(|(known, _)| known == name) {
            Some(at) => found[at].1 = value.to_vec(),
            None if found.len() < MOST => found.push((name.to_vec(), value.to_vec())),
            None => {}
        }
    }
    found
}

fn variable(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii();
    let line = line.strip_prefix(b"export ").map_or(line, <[u8]>::trim_ascii_start);
    let at = line.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&line[..at], &line[at + 1..]);
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if name.is_empty() || name[0].is_ascii_digit() || !name.iter().all(fits) || value.contains(&0) {
        return None;
    }
    match value {
        [first @ (b'"' | b'\''), inner @ .., last] if first == last => Some((name, inner)),
        _ => Some((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<(String, String)> {
        let string = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        parse(text).into_iter().map(|(name, value)| (string(name), string(value))).collect()
    }

    #[test]
    fn lines_are_read_as_logins_read_them() {
        let text = b"# A=0\n\nA=1\n  export B = \nexport C=\"x y\"\nD='\"'\nE=a=b#c\r\nA=2\n";
        let expected = [("A", "2"), ("C", "x y"), ("D", "\""), ("E", "a=b#c")];
        assert_eq!(read(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_no_variable_counts_for_nothing() {
        assert!(read(b"A\n=x\n1A=x\nA B=x\nA-B=x\nA=\0\n\xff=x\n").is_empty());
        assert_eq!(read(b"A=\"\nB=\nC=\"x"), [("A", "\""), ("B", ""), ("C", "\"x")].map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn there_are_never_more_than_a_program_can_be_given() {
        let many: Vec<u8> = (0..9999).flat_map(|n| format!("A{n}=x\n").into_bytes()).collect();
        assert_eq!(parse(&many).len(), MOST);
    }

    #[test]
    fn any_bytes_make_variables_that_a_process_can_have() {
        let mut seed = 1_u64;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..64)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    b"A=\"'\n #\0x_1"[(seed >> 33) as usize % 11]
                })
                .collect();
            for (name, value) in parse(&bytes) {
                assert!(!name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0) && !value.contains(&b'\n'));
            }
        }
    }
}
