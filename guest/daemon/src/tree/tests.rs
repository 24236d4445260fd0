//! Trees through real files in a temporary directory: round trips, and archives that mean harm.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use space_protocol::Failure;

use super::header::{self, BLOCK, Header};
use super::{pack, stream, unpack};
use crate::crc::Crc32;
use crate::sys;

mod sparse;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// An archive in parts of odd sizes.
struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl stream::Feed for Parts<'_> {
    fn advance(&mut self) -> std::io::Result<()> {
        self.at = self.end;
        self.end = (self.end + 70_003).min(self.bytes.len());
        Ok(())
    }

    fn part(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }
}

/// Memory that is written in small rooms.
struct Packed {
    bytes: Vec<u8>,
    room: Vec<u8>,
}

impl stream::Sink for Packed {
    fn room(&mut self) -> std::io::Result<&mut [u8]> {
        Ok(&mut self.room)
    }

    fn publish(&mut self, count: usize) -> std::io::Result<()> {
        self.bytes.extend_from_slice(&self.room[..count]);
        Ok(())
    }
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let name = format!("space-tree-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join("in")).unwrap();
        fs::write(path.join("secret"), "outside").unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join("in").join(name)
    }

    fn unpack(&self, archive: &[u8]) -> Result<u64, Failure> {
        let mut feed = Parts { bytes: archive, at: 0, end: 0 };
        let target = fs::File::open(self.0.join("in")).unwrap();
        let mut input = stream::Input::new(&mut feed);
        let entries = unpack::unpack(&mut input, target.as_fd())?;
        input.finish()?;
        assert_eq!((input.bytes(), input.crc32()), (archive.len() as u64, crc(archive)));
        Ok(entries)
    }

    fn pack(&self, name: &str) -> Result<(u64, Vec<u8>), Failure> {
        let mut sink = Packed { bytes: vec![], room: vec![0; 3000] };
        let mut output = stream::Output::new(&mut sink);
        let path = self.path(name);
        let source = fs::File::open(&path).unwrap().into();
        let base = Path::new(name).file_name().unwrap_or_default();
        let entries = pack::pack(&mut output, &source, path.as_os_str().as_encoded_bytes(), base.as_encoded_bytes())?;
        output.finish()?;
        let figures = (output.bytes(), output.crc32());
        assert_eq!(figures, (sink.bytes.len() as u64, crc(&sink.bytes)));
        Ok((entries, sink.bytes))
    }

    /// The archive is refused with this code, its message names `name`, and nothing outside was touched.
    fn refuses(&self, archive: &[u8], code: &str, name: &str) {
        let failure = self.unpack(archive).unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.message.contains(name), "{failure}");
        let mut outside: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        outside.sort();
        assert_eq!(outside, ["in", "secret"]);
        assert_eq!(fs::read_to_string(self.0.join("secret")).unwrap(), "outside");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn crc(bytes: &[u8]) -> u32 {
    let mut sum = Crc32::default();
    sum.update(bytes);
    sum.value()
}

/// An archive in the making.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn header(mut self, kind: u8, path: &str, link: &str, mode: u32, size: usize) -> Self {
        let header = Header { kind, path: path.into(), link: link.into(), mode, size: size as u64, mtime: 1_000_000_000 };
        header::format(&header, &mut self.0);
        self
    }

    fn content(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    fn file(self, path: &str, bytes: &[u8]) -> Self {
        self.header(b'0', path, "", 0o644, bytes.len()).content(bytes)
    }

    fn dir(self, path: &str, mode: u32) -> Self {
        self.header(b'5', path, "", mode, 0)
    }

    fn symlink(self, path: &str, to: &str) -> Self {
        self.header(b'2', path, to, 0o777, 0)
    }

    fn link(self, path: &str, to: &str) -> Self {
        self.header(b'1', path, to, 0o644, 0)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[test]
fn a_tree_comes_back_as_it_was() {
    // SAFETY: a plain call; the verb's child does the same.
    unsafe { libc::umask(0) };
    let (from, to) = (Scratch::new(), Scratch::new());
    let long = "n".repeat(200);
    fs::create_dir_all(from.path(&format!("a/{long}/{long}"))).unwrap();
    fs::write(from.path("a/empty"), "").unwrap();
    fs::write(from.path("a/-odd name\n\u{e9}"), vec![7; 300_001]).unwrap();
    fs::write(from.path(&format!("a/{long}/{long}/deep")), "deep").unwrap();
    fs::hard_link(from.path("a/empty"), from.path("a/second")).unwrap();
    symlink("../../secret", from.path("a/out")).unwrap();
    symlink("nowhere", from.path("a/dangling")).unwrap();
    fs::create_dir(from.path("read-only")).unwrap();
    fs::write(from.path("read-only/file"), "x").unwrap();
    fs::set_permissions(from.path("read-only/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(from.path("read-only"), fs::Permissions::from_mode(0o555)).unwrap();
    sys::make_dir(from.path("sticky").to_str().unwrap(), 0o1777).unwrap();

    let (entries, archive) = from.pack("").unwrap();
    assert_eq!(to.unpack(&archive).unwrap(), entries);
    // The destination itself keeps its own time, which may be another second.
    let made = fs::metadata(from.path("")).unwrap().modified().unwrap();
    fs::File::open(to.path("")).unwrap().set_modified(made).unwrap();
    let (_, again) = to.pack("").unwrap();
    assert!(archive == again, "modes, times, links and contents are the same");
    assert_eq!(fs::metadata(to.path("read-only")).unwrap().mode() & 0o7777, 0o555);
    assert_eq!(fs::metadata(to.path("a/empty")).unwrap().ino(), fs::metadata(to.path("a/second")).unwrap().ino());
    assert_eq!(fs::read_link(to.path("a/out")).unwrap(), Path::new("../../secret"));
    assert_eq!(to.unpack(&archive).unwrap(), entries, "a second time over what is there");
}

#[test]
fn a_single_file_is_packed_under_its_base_name() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("d")).unwrap();
    fs::write(scratch.path("d/f"), "x").unwrap();
    let (entries, archive) = scratch.pack("d/f").unwrap();
    assert_eq!((entries, &archive[..2]), (1, &b"f\0"[..]));
}

#[test]
fn what_has_no_content_is_left_out() {
    let scratch = Scratch::new();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("socket")).unwrap();
    fs::write(scratch.path("file"), "x").unwrap();
    assert_eq!(scratch.pack("").unwrap().0, 2, "the directory and the file");
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["../secret", "a/../../secret", "/secret", "..", "a/.."] {
        Scratch::new().refuses(&Tar::default().file(name, b"harm").end(), "invalid_argument", name);
        Scratch::new().refuses(&Tar::default().dir(name, 0o755).end(), "invalid_argument", name);
        Scratch::new().refuses(&Tar::default().symlink(name, "x").end(), "invalid_argument", name);
    }
    for name in ["", ".", "./"] {
        Scratch::new().refuses(&Tar::default().symlink(name, "x").end(), "invalid_argument", "destination");
    }
}

#[test]
fn links_that_lead_out_are_not_followed() {
    for to in ["..", "/", "../in/..", "a/../.."] {
        let scratch = Scratch::new();
        let archive = Tar::default().dir("a", 0o755).symlink("way", to).file("way/secret", b"harm").end();
        scratch.refuses(&archive, "invalid_argument", "way/secret");
        let scratch = Scratch::new();
        scratch.refuses(
            &Tar::default().dir("a", 0o755).symlink("way", to).dir("way/new/dir", 0o755).end(),
            "invalid_argument",
            "way/new/dir",
        );
    }
    for to in ["../secret", "/etc/passwd", "a/../../secret", ".."] {
        Scratch::new().refuses(&Tar::default().dir("a", 0o755).link("copy", to).end(), "invalid_argument", "copy");
    }
    Scratch::new().refuses(&Tar::default().symlink("way", "..").link("copy", "way/secret").end(), "invalid_argument", "copy");
}

#[test]
fn a_link_in_the_way_is_replaced_and_not_written_through() {
    let scratch = Scratch::new();
    let archive =
        Tar::default().symlink("file", "../secret").file("file", b"new").symlink("dir", "..").dir("dir", 0o755).file("dir/secret", b"x");
    assert_eq!(scratch.unpack(&archive.end()).unwrap(), 5);
    assert_eq!(fs::read_to_string(scratch.0.join("secret")).unwrap(), "outside");
    assert_eq!(fs::read_to_string(scratch.path("file")).unwrap(), "new");
    assert_eq!(fs::read_to_string(scratch.path("dir/secret")).unwrap(), "x");
    fs::hard_link(scratch.0.join("secret"), scratch.path("shared")).unwrap();
    scratch.unpack(&Tar::default().file("shared", b"new").end()).unwrap();
    assert_eq!(fs::read_to_string(scratch.0.join("secret")).unwrap(), "outside");
}

#[test]
fn a_link_that_stays_inside_is_followed_for_parents() {
    let scratch = Scratch::new();
    scratch.unpack(&Tar::default().dir("real", 0o755).symlink("alias", "real").file("alias/f", b"x").end()).unwrap();
    assert_eq!(fs::read_to_string(scratch.path("real/f")).unwrap(), "x");
}

#[test]
fn a_directory_is_not_replaced_by_a_file() {
    let scratch = Scratch::new();
    scratch.refuses(&Tar::default().dir("d", 0o755).file("d", b"x").end(), "invalid_argument", "'d'");
}

#[test]
fn directories_that_were_there_keep_their_mode() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("d")).unwrap();
    fs::set_permissions(scratch.path("d"), fs::Permissions::from_mode(0o711)).unwrap();
    scratch.unpack(&Tar::default().dir("./", 0o700).dir("d", 0o755).dir("e", 0o750).end()).unwrap();
    let mode = |name| fs::metadata(scratch.path(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("d"), mode("e")), (0o711, 0o750));
}

#[test]
fn streams_that_are_cut_off_are_refused_at_every_place() {
    let whole = Tar::default().file("a", &[1; 700]).dir("d", 0o755).file(&"x".repeat(150), b"y").end();
    let data = whole.len() - 2 * BLOCK;
    for length in (0..=data).step_by(100).chain([data - 1, data]) {
        let failure = Scratch::new().unpack(&whole[..length]).unwrap_err();
        assert_eq!(failure.code, "invalid_argument", "{length}: {failure}");
    }
    Scratch::new().unpack(&whole[..data + BLOCK]).unwrap();
    let mut padded = whole.clone();
    padded.resize(padded.len() + 9000, 0);
    Scratch::new().unpack(&padded).unwrap();
}

#[test]
fn entries_that_are_no_files_are_refused_by_name() {
    for kind in [b'3', b'4', b'6', b'S', b'V', b'M'] {
        Scratch::new().refuses(&Tar::default().header(kind, "strange", "", 0o644, 0).end(), "invalid_argument", "strange");
    }
    let sparse = b"22 GNU.sparse.major=1\n";
    let archive = Tar::default().header(b'x', "p", "", 0o644, sparse.len()).content(sparse).file("holes", b"").end();
    Scratch::new().refuses(&archive, "invalid_argument", "holes");
    let huge = Tar::default().header(b'x', "p", "", 0o644, 2 << 20).end();
    Scratch::new().refuses(&huge, "invalid_argument", "2097152");
    let nul = b"11 path=a\0b\n";
    let archive =
        Tar::default().header(b'x', "p", "", 0o644, 12).content(&[&b"12 path=a\0b\n"[..], &nul[..0]].concat()).file("f", b"").end();
    Scratch::new().refuses(&archive, "invalid_argument", "NUL");
}

#[test]
fn gnu_and_old_archives_are_read() {
    let scratch = Scratch::new();
    let name = format!("{}/file", "d".repeat(150));
    let with_nul = [name.as_bytes(), b"\0"].concat();
    let archive = Tar::default()
        .header(b'L', "././@LongLink", "", 0o644, with_nul.len())
        .content(&with_nul)
        .file("short", b"long name")
        .header(b'g', "global", "", 0o644, 19)
        .content(b"19 comment=abcdefg\n")
        .header(0, "old/", "", 0o755, 0)
        .header(0, "old/file", "", 0o600, 1)
        .content(b"z");
    scratch.unpack(&archive.end()).unwrap();
    assert_eq!(fs::read_to_string(scratch.path(&name)).unwrap(), "long name");
    assert_eq!(fs::read_to_string(scratch.path("old/file")).unwrap(), "z");
}

#[test]
fn mutated_archives_never_touch_what_is_outside() {
    let mut whole = Tar::default().dir("a", 0o755).file("a/f", &[1; 600]).symlink("l", "a").link("h", "a/f").file(&"n".repeat(120), b"z").0;
    whole.extend(sparse::sparse("2\n0\n10\n50\n20\n", 30, "100", b'0'));
    let mut seed: u32 = 1;
    let mut next = |end: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % end
    };
    let mut refused = 0;
    for _ in 0..400 {
        let scratch = Scratch::new();
        let mut archive = whole.clone();
        for _ in 0..=next(3) {
            let at = next(archive.len() / BLOCK) * BLOCK;
            archive[at + next(BLOCK)] = b"./\0\xff7\n0"[next(7)];
            // A right checksum, so that the mutation is looked at.
            let block: &mut [u8; BLOCK] = (&mut archive[at..at + BLOCK]).try_into().unwrap();
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        refused += u32::from(scratch.unpack(&archive).is_err());
        assert_eq!(fs::read_to_string(scratch.0.join("secret")).unwrap(), "outside");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 2);
    }
    assert!((20..400).contains(&refused), "{refused}");
}
