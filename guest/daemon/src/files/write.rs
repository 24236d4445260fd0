//! A file written whole, or more at its end.
//!
//! A whole file is first a file without a name (`O_TMPFILE`), which goes with the process, however that ends. When all has come and is what
//! was sent, it gets the target's name. Where something has that name, it gets a random one beside it and is renamed over: whoever is
//! killed between these two calls leaves that name, so the daemon gives this child time when it lets go of it ([`crate::job`]). On a file
//! system without nameless files the random name is there from the beginning, and the child removes it when its input ends early.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use space_protocol::files::{Content, FileWrite};
use space_protocol::{Failure, Message};

use super::fault::at;
use super::place::{self, Place};
use super::{answer, attributes, calls, enter, record};
use crate::child;
use crate::crc::Crc32;
use crate::exec::shown;
use crate::ring::Ring;
use crate::sys;
use crate::tree::content::{LARGE, Writer};
use crate::tree::stream::{Feed, RingFeed};

const WHAT: &str = "write";
/// What the names of unfinished files begin with.
const STAGED: &[u8] = b".space-write-";
const DIGITS: usize = 16;
const DEFAULT_MODE: u32 = 0o644;
const LARGEST_COUNT: usize = 4096;

/// A name that nobody has.
pub fn random_name() -> io::Result<CString> {
    sys::c_string(&[STAGED, format!("{:016x}", calls::random()?).as_bytes()].concat())
}

/// Whether it is one of [`random_name`].
pub fn is_staged(name: &[u8]) -> bool {
    name.strip_prefix(STAGED).is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

/// In a child: write what comes through the ring. What it should have been is on the first extra descriptor.
pub fn write(request: &FileWrite, ring: &Ring) -> Result<Message, Failure> {
    place::check(&request.path.0)?;
    request.mode.map(attributes::checked).transpose()?;
    enter(request.user.as_deref())?;
    put(request, &mut RingFeed::new(ring), &told)
}

/// In a child: the sender's count, when all has come.
pub fn told() -> io::Result<Vec<u8>> {
    let mut text = vec![0; LARGEST_COUNT];
    // SAFETY: the descriptor is open for as long as this child lives.
    let count = sys::read(unsafe { sys::numbered(child::EXTRA) }, &mut text)?;
    text.truncate(count);
    Ok(text)
}

/// told: the sender's count, when all has come.
fn put(request: &FileWrite, feed: &mut dyn Feed, told: &dyn Fn() -> io::Result<Vec<u8>>) -> Result<Message, Failure> {
    let path = &request.path.0;
    // What is exclusive must not exist, not even as a link to nowhere.
    let place = if request.exclusive { Place::named } else { Place::followed }(WHAT, path, request.parents)?;
    let there = target(request, &place)?;
    if request.append {
        let file = open_end(request, &place, there.is_none())?;
        let came = receive(feed, file.as_fd(), false, path)?;
        expect(&came, told, path)?;
        return answer(WHAT, path, &place);
    }
    let mut staged = Staged::new(&place).map_err(at(WHAT, path))?;
    let came = receive(feed, staged.file.as_fd(), true, path)?;
    expect(&came, told, path)?;
    let mode = keep(staged.file.as_fd(), there.as_ref(), request.mode);
    mode.and_then(|mode| calls::change_mode(staged.file.as_fd(), mode)).map_err(at(WHAT, path))?;
    staged.commit(request.exclusive, there.is_some()).map_err(at(WHAT, path))?;
    answer(WHAT, path, &place)
}

/// What has that name already, if it may be written to.
fn target(request: &FileWrite, place: &Place) -> Result<Option<libc::stat>, Failure> {
    let path = &request.path.0;
    let stat = match place.stat() {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        other => other.map_err(at(WHAT, path))?,
    };
    let conflict = |why: &str| Failure::new("conflict", format!("cannot write '{}': {why}", shown(path)));
    match record::kind(stat.st_mode) {
        _ if request.exclusive => return Err(conflict("it exists")),
        "file" => {}
        "directory" => return Err(conflict("it is a directory")),
        kind => return Err(conflict(&format!("it is no regular file, but of the kind {kind}"))),
    }
    calls::may_write(place.dir(), place.name()).map_err(at(WHAT, path))?;
    Ok(Some(stat))
}

fn open_end(request: &FileWrite, place: &Place, new: bool) -> Result<OwnedFd, Failure> {
    let wrong = at(WHAT, &request.path.0);
    let exclusive = if request.exclusive { libc::O_EXCL } else { 0 };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK | exclusive;
    let file = sys::open_at(place.dir(), place.name(), flags, DEFAULT_MODE).map_err(&wrong)?;
    if record::kind(sys::stat(file.as_fd()).map_err(&wrong)?.st_mode) != "file" {
        return Err(wrong(io::Error::from_raw_os_error(libc::EISDIR)));
    }
    if let Some(mode) = request.mode.or(new.then_some(DEFAULT_MODE)) {
        calls::change_mode(file.as_fd(), mode).map_err(&wrong)?;
    }
    Ok(file)
}

/// Write what comes: large files around the page cache. new: the file is empty. How much that was, and its sum.
pub fn receive(feed: &mut dyn Feed, file: BorrowedFd<'_>, new: bool, path: &[u8]) -> Result<Content, Failure> {
    let (mut crc, mut count, mut writer) = (Crc32::default(), 0, Writer::default());
    loop {
        feed.advance().map_err(|error| Failure::guest(format!("the content cannot be read: {error}")))?;
        let mut part = feed.part();
        if part.is_empty() {
            break;
        }
        crc.update(part);
        while !part.is_empty() {
            // That it is large is known when so much has come; what is written then begins at a page.
            let now = if count < LARGE { part.len().min((LARGE - count) as usize) } else { part.len() };
            if count == LARGE && new {
                writer.begin(file, u64::MAX);
                writer.leave_holes();
            }
            writer.write(file, &part[..now]).map_err(at(WHAT, path))?;
            count += now as u64;
            part = &part[now..];
        }
    }
    if count > LARGE {
        writer.finish(file).map_err(at(WHAT, path))?;
    }
    // Only what is large has holes, which may be its end; of a small file whoever watches is told one change.
    if new && count > LARGE {
        calls::set_size(file, count).map_err(at(WHAT, path))?;
    }
    if new && sys::stat(file).map_err(at(WHAT, path))?.st_size != count as i64 {
        return Err(Failure::guest(format!("cannot write '{}': the file does not hold the {count} bytes that were written", shown(path))));
    }
    Ok(Content { bytes: count, crc32: crc.value() })
}

/// Hold what came against what the sender says.
pub fn expect(came: &Content, told: &dyn Fn() -> io::Result<Vec<u8>>, path: &[u8]) -> Result<(), Failure> {
    let text = told().map_err(|error| Failure::guest(format!("the content's count cannot be read: {error}")))?;
    if text.is_empty() {
        return Err(Failure::invalid(format!("cannot write '{}': the content was cut off after {} bytes", shown(path), came.bytes)));
    }
    match Message::decode(&text)? {
        Message::Content(sent) if sent == *came => Ok(()),
        Message::Content(sent) => Err(Failure::invalid(format!(
            "cannot write '{}': {} bytes with the checksum {:08x} were sent, {} with {:08x} came",
            shown(path),
            sent.bytes,
            sent.crc32,
            came.bytes,
            came.crc32
        ))),
        _ => Err(Failure::invalid("the content must end with its count")),
    }
}

/// Make it the owner's whose file it replaces, as far as the user may. The mode that it is to have.
fn keep(file: BorrowedFd<'_>, there: Option<&libc::stat>, mode: Option<u32>) -> io::Result<u32> {
    let Some(there) = there else { return Ok(mode.unwrap_or(DEFAULT_MODE)) };
    let own = sys::stat(file)?;
    if (own.st_uid, own.st_gid) != (there.st_uid, there.st_gid) && calls::change_owner_open(file, there.st_uid, there.st_gid).is_err() {
        let _ = calls::change_owner_open(file, u32::MAX, there.st_gid);
    }
    let own = sys::stat(file)?;
    // Nobody gives away the rights of another.
    let same = (own.st_uid, own.st_gid) == (there.st_uid, there.st_gid);
    Ok(mode.unwrap_or(there.st_mode & if same { 0o7777 } else { 0o1777 }))
}

/// A file that is not yet where it belongs.
struct Staged<'a> {
    place: &'a Place,
    file: OwnedFd,
    name: Option<CString>,
}

impl<'a> Staged<'a> {
    fn new(place: &'a Place) -> io::Result<Self> {
        match sys::open_at(place.dir(), c".", libc::O_TMPFILE | libc::O_WRONLY, 0o600) {
            Ok(file) => Ok(Self { place, file, name: None }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => Self::named(place),
            Err(error) => Err(error),
        }
    }

    fn named(place: &'a Place) -> io::Result<Self> {
        let name = random_name()?;
        let file = sys::open_at(place.dir(), &name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW, 0o600)?;
        Ok(Self { place, file, name: Some(name) })
    }

    /// Give it its name.
    fn commit(&mut self, exclusive: bool, there: bool) -> io::Result<()> {
        if self.name.is_none() {
            if !there || exclusive {
                match self.link(self.place.name()) {
                    Err(error) if error.raw_os_error() == Some(libc::EEXIST) && !exclusive => {}
                    other => return other,
                }
            }
            let beside = random_name()?;
            self.link(&beside)?;
            self.name = Some(beside);
        }
        if let Some(name) = &self.name {
            calls::rename(self.place.dir(), name, self.place.dir(), self.place.name(), !exclusive)?;
            self.name = None;
        }
        Ok(())
    }

    fn link(&self, name: &CStr) -> io::Result<()> {
        calls::link_open(self.file.as_fd(), self.place.dir(), name)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = calls::unlink(self.place.dir(), name, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::files::tests::{Parts, Scratch, file, refused};

    fn request(scratch: &Scratch, name: &str) -> FileWrite {
        FileWrite { path: scratch.bytes(name), user: None, mode: None, append: false, parents: false, exclusive: false }
    }

    fn count(bytes: &[u8]) -> Vec<u8> {
        let mut crc = Crc32::default();
        crc.update(bytes);
        Message::Content(Content { bytes: bytes.len() as u64, crc32: crc.value() }).encode()
    }

    fn send(request: &FileWrite, bytes: &[u8]) -> Result<Message, Failure> {
        put(request, &mut Parts::new(bytes), &|| Ok(count(bytes)))
    }

    fn mode(scratch: &Scratch, name: &str) -> u32 {
        fs::metadata(scratch.path(name)).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_was_sent_is_there_whatever_its_size() {
        let scratch = Scratch::new();
        for size in [0, 1, 18 << 10, 262_143, 262_144, 262_145, 3 << 20, (5 << 20) + 777] {
            let bytes: Vec<u8> = (0..size).map(|at: u32| (at / 251) as u8 ^ at as u8).collect();
            for _ in 0..2 {
                let told = file(send(&request(&scratch, "f"), &bytes));
                assert_eq!((told.size, told.mode, told.name.0.as_slice()), (u64::from(size), 0o644, &b"f"[..]));
                assert!(fs::read(scratch.path("f")).unwrap() == bytes, "{size}");
            }
        }
        assert_eq!(scratch.names(), ["f"]);
    }

    #[test]
    fn zeros_in_bulk_become_holes() {
        let scratch = Scratch::new();
        let mut bytes = vec![0; 9 << 20];
        for at in [3 << 20, (9 << 20) - 5] {
            bytes[at] = 7;
        }
        for length in [9 << 20, 8 << 20, (8 << 20) + 1, 300 << 10] {
            let told = file(send(&request(&scratch, "f"), &bytes[..length]));
            assert_eq!(told.size, length as u64);
            assert!(fs::read(scratch.path("f")).unwrap() == bytes[..length], "{length}");
            assert!(fs::metadata(scratch.path("f")).unwrap().blocks() * 512 <= 4 << 20, "{length}");
        }
    }

    #[test]
    fn a_file_that_is_replaced_keeps_mode_and_owner() {
        let scratch = Scratch::new();
        fs::write(scratch.path("f"), "old").unwrap();
        fs::set_permissions(scratch.path("f"), fs::Permissions::from_mode(0o4711)).unwrap();
        let root = fs::metadata(scratch.path("f")).unwrap().uid() == 0;
        if root {
            std::os::unix::fs::chown(scratch.path("f"), Some(1234), Some(77)).unwrap();
            fs::set_permissions(scratch.path("f"), fs::Permissions::from_mode(0o4711)).unwrap();
        }
        let told = file(send(&request(&scratch, "f"), b"new"));
        assert_eq!(told.mode, 0o4711);
        if root {
            assert_eq!((told.uid, told.gid), (1234, 77));
        }
        file(send(&FileWrite { mode: Some(0o600), ..request(&scratch, "f") }, b"newer"));
        assert_eq!(mode(&scratch, "f"), 0o600);
        assert_eq!(fs::read(scratch.path("f")).unwrap(), b"newer");
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("d")).unwrap();
        fs::write(scratch.path("d/f"), "old").unwrap();
        symlink("second", scratch.path("first")).unwrap();
        symlink("d/f", scratch.path("second")).unwrap();
        symlink("d/new", scratch.path("nowhere")).unwrap();
        symlink("loop", scratch.path("loop")).unwrap();
        assert_eq!(file(send(&request(&scratch, "first"), b"1")).name.0, b"first");
        assert_eq!(fs::read(scratch.path("d/f")).unwrap(), b"1");
        file(send(&request(&scratch, "nowhere"), b"2"));
        assert_eq!(fs::read(scratch.path("d/new")).unwrap(), b"2");
        refused(send(&request(&scratch, "loop"), b""), "invalid_argument", "");
        refused(send(&FileWrite { exclusive: true, ..request(&scratch, "nowhere") }, b""), "conflict", "it exists");
        assert_eq!(scratch.names(), ["d", "first", "loop", "nowhere", "second"]);
    }

    #[test]
    fn what_was_not_sent_leaves_the_old_file_and_nothing_else() {
        let scratch = Scratch::new();
        fs::write(scratch.path("f"), "old").unwrap();
        let one = request(&scratch, "f");
        let cut = put(&one, &mut Parts::new(b"new"), &|| Ok(vec![]));
        refused(cut, "invalid_argument", "cut off after 3 bytes");
        let other = put(&one, &mut Parts::new(b"new"), &|| Ok(count(b"nex")));
        refused(other, "invalid_argument", "were sent, 3 with");
        let word = put(&one, &mut Parts::new(b"new"), &|| Ok(Message::Eof(space_protocol::messages::Empty {}).encode()));
        refused(word, "invalid_argument", "count");
        assert_eq!((scratch.names(), fs::read(scratch.path("f")).unwrap()), (vec!["f".to_owned()], b"old".to_vec()));
    }

    #[test]
    fn a_file_system_without_nameless_files_is_left_as_it_was_too() {
        let scratch = Scratch::new();
        let place = Place::named(WHAT, &scratch.bytes("f").0, false).unwrap();
        let staged = Staged::named(&place).unwrap();
        assert!(is_staged(scratch.names()[0].as_bytes()));
        drop(staged);
        assert_eq!(scratch.names(), [""; 0]);
        let mut staged = Staged::named(&place).unwrap();
        sys::write_all(staged.file.as_fd(), b"1").unwrap();
        staged.commit(true, false).unwrap();
        assert_eq!(scratch.names(), ["f"]);
        let mut late = Staged::named(&place).unwrap();
        assert_eq!(late.commit(true, false).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        drop(late);
        assert_eq!(scratch.names(), ["f"]);
    }

    #[test]
    fn somebody_who_was_quicker_is_replaced_or_a_conflict() {
        let scratch = Scratch::new();
        let place = Place::named(WHAT, &scratch.bytes("f").0, false).unwrap();
        for exclusive in [false, true] {
            let mut staged = Staged::new(&place).unwrap();
            fs::write(scratch.path("f"), "quicker").unwrap();
            assert_eq!(staged.commit(exclusive, false).is_err(), exclusive);
            assert_eq!(fs::read(scratch.path("f")).unwrap(), if exclusive { &b"quicker"[..] } else { b"" });
        }
        assert_eq!(scratch.names(), ["f"]);
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_anything_comes() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("d")).unwrap();
        fs::write(scratch.path("f"), "").unwrap();
        for (name, code, why) in [
            ("d", "conflict", "it is a directory"),
            ("no/f", "not_found", "no such"),
            ("f/x", "conflict", "not a directory"),
            ("d/..", "invalid_argument", "no name"),
        ] {
            refused(send(&request(&scratch, name), b"x"), code, why);
        }
        refused(
            send(&FileWrite { path: space_protocol::Bytes(b"/dev/null".to_vec()), ..request(&scratch, "") }, b"x"),
            "conflict",
            "character",
        );
        refused(send(&FileWrite { exclusive: true, ..request(&scratch, "f") }, b"x"), "conflict", "it exists");
        refused(send(&FileWrite { parents: true, ..request(&scratch, "f/x/y") }, b"x"), "conflict", "not a directory");
        file(send(&FileWrite { parents: true, exclusive: true, ..request(&scratch, "a/b/c") }, b"x"));
        assert_eq!((mode(&scratch, "a"), mode(&scratch, "a/b")), (0o755, 0o755));
    }

    #[test]
    fn more_goes_to_the_end() {
        let scratch = Scratch::new();
        let append = |name: &str| FileWrite { append: true, ..request(&scratch, name) };
        assert_eq!(file(send(&append("f"), b"one")).mode, 0o644);
        let long = vec![7; 700_000];
        assert_eq!(file(send(&append("f"), &long)).size, 700_003);
        assert_eq!(file(send(&FileWrite { mode: Some(0o600), ..append("f") }, b"")).mode, 0o600);
        refused(put(&append("f"), &mut Parts::new(b"!"), &|| Ok(vec![])), "invalid_argument", "cut off");
        assert!(fs::read(scratch.path("f")).unwrap() == [b"one", &long[..], b"!"].concat());
        refused(send(&FileWrite { exclusive: true, ..append("f") }, b"x"), "conflict", "it exists");
    }

    #[test]
    fn only_our_own_names_are_taken_for_unfinished_files() {
        assert!(is_staged(random_name().unwrap().as_bytes()));
        for name in
            [&b".space-write-"[..], b".space-write-0123456789abcdeg", b"x.space-write-0123456789abcdef", b".space-write-0123456789abcdef0"]
        {
            assert!(!is_staged(name));
        }
    }
}
