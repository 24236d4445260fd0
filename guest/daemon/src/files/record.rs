//! What is told of a file.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use space_protocol::Bytes;
use space_protocol::files::File;

use super::calls;
use crate::sys;

/// The longest name of an account that is told; of a longer one the number is.
const NAME: usize = 128;

/// Names of accounts by their numbers.
#[derive(Default)]
pub struct Names {
    users: Vec<(u32, String)>,
    groups: Vec<(u32, String)>,
}

impl Names {
    /// Those of this system; without its files there are only numbers.
    pub fn load() -> Self {
        let read = |path: &str| std::fs::read(path).map(|text| entries(&text)).unwrap_or_default();
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }

    /// A user's name, or the number.
    pub fn user(&self, uid: u32) -> String {
        name(&self.users, uid)
    }

    /// A group's name, or the number.
    pub fn group(&self, gid: u32) -> String {
        name(&self.groups, gid)
    }

    /// A user's number: by name, else as a number.
    pub fn uid(&self, text: &str) -> Option<u32> {
        number(&self.users, text)
    }

    /// A group's number: by name, else as a number.
    pub fn gid(&self, text: &str) -> Option<u32> {
        number(&self.groups, text)
    }
}

/// Numbers and names of the lines of passwd or group, in both of which they are the third and the first field.
fn entries(text: &[u8]) -> Vec<(u32, String)> {
    let entry = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && name.len() <= NAME)?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    text.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

fn name(known: &[(u32, String)], number: u32) -> String {
    known.iter().find(|(id, _)| *id == number).map_or_else(|| number.to_string(), |(_, name)| name.clone())
}

fn number(known: &[(u32, String)], text: &str) -> Option<u32> {
    let named = known.iter().find(|(_, name)| name == text).map(|(id, _)| *id);
    // The last number means "leave it" to the kernel.
    named.or_else(|| text.parse().ok()).filter(|id| *id != u32::MAX)
}

/// What a stat says about a file that is called `name`.
pub fn file(name: &[u8], stat: &libc::stat, target: Option<Vec<u8>>, names: &Names) -> File {
    File {
        name: Bytes(name.to_vec()),
        kind: kind(stat.st_mode).to_owned(),
        size: stat.st_size.max(0) as u64,
        allocated: (stat.st_blocks.max(0) as u64).saturating_mul(512),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        mtime_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec),
        inode: stat.st_ino,
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        target: target.map(Bytes),
    }
}

/// A name in a directory, a link itself, called `shown`.
pub fn look(dir: BorrowedFd<'_>, name: &CStr, shown: &[u8], names: &Names) -> io::Result<File> {
    let stat = sys::stat_at(dir, name)?;
    let link = stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
    let target = if link { Some(calls::read_link(dir, name)?) } else { None };
    Ok(file(shown, &stat, target, names))
}

/// The protocol's word for a kind of file.
pub fn kind(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "character",
        libc::S_IFBLK => "block",
        _ => "file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_number() {
        let long = "x".repeat(129);
        let text = format!("root:x:0:0:root:/root:/bin/sh\nbroken:x\n\n{long}:x:5:\n1:x:77:\nuser:x:1000:1000::/home/user:\n");
        let names = Names { users: entries(text.as_bytes()), groups: entries(b"\xff:x:3:\nstaff:x:50:a,b") };
        assert_eq!((names.user(0), names.user(5), names.user(1000)), ("root".into(), "5".into(), "user".into()));
        assert_eq!((names.group(50), names.group(3)), ("staff".into(), "3".into()));
        assert_eq!((names.uid("user"), names.uid("42"), names.uid("nobody")), (Some(1000), Some(42), None));
        assert_eq!(names.uid("1"), Some(77), "a name before a number");
        assert_eq!((names.uid("4294967295"), names.gid("-1")), (None, None));
    }
}
