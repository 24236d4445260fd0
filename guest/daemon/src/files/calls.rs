//! The kernel's words about names: one short function per system call, relative to an open directory, links never followed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{self, check};

/// The working directory.
pub fn here() -> BorrowedFd<'static> {
    // SAFETY: AT_FDCWD stands for the working directory.
    unsafe { sys::numbered(libc::AT_FDCWD) }
}

/// `readlinkat`.
pub fn read_link(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<u8>> {
    let mut out = vec![0; libc::PATH_MAX as usize];
    // SAFETY: a valid descriptor and string; room as we say.
    let count = unsafe { libc::readlinkat(dir.as_raw_fd(), name.as_ptr(), out.as_mut_ptr().cast(), out.len()) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    out.truncate(count as usize);
    Ok(out)
}

/// `mkdirat`.
pub fn make_dir(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// `unlinkat`; directory: as `rmdir`.
pub fn unlink(dir: BorrowedFd<'_>, name: &CStr, directory: bool) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), if directory { libc::AT_REMOVEDIR } else { 0 }) }).map(drop)
}

/// `renameat2`; replace: whether the new name may be there.
pub fn rename(from: BorrowedFd<'_>, name: &CStr, to: BorrowedFd<'_>, new: &CStr, replace: bool) -> io::Result<()> {
    let flags = if replace { 0 } else { libc::RENAME_NOREPLACE };
    // SAFETY: valid descriptors and strings.
    check(unsafe { libc::syscall(libc::SYS_renameat2, from.as_raw_fd(), name.as_ptr(), to.as_raw_fd(), new.as_ptr(), flags) } as i32)
        .map(drop)
}

/// `symlinkat`.
pub fn make_link(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: a valid descriptor and strings.
    check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// A child's own view of proc.
#[cfg(not(test))]
fn proc() -> BorrowedFd<'static> {
    // SAFETY: it is open for as long as a child lives.
    unsafe { sys::numbered(crate::child::PROC) }
}

#[cfg(test)]
fn proc() -> BorrowedFd<'static> {
    use std::os::fd::AsFd;
    static PROC: std::sync::OnceLock<OwnedFd> = std::sync::OnceLock::new();
    PROC.get_or_init(|| sys::open("/proc", libc::O_PATH).unwrap()).as_fd()
}

/// Where an open file can be found by name: (directory, name in it). The one way to it that needs no privilege.
fn by_descriptor(file: BorrowedFd<'_>) -> io::Result<(BorrowedFd<'static>, std::ffi::CString)> {
    Ok((proc(), sys::c_string(format!("self/fd/{}", file.as_raw_fd()).as_bytes())?))
}

/// Open what is open once more, in another way.
pub fn reopen(file: BorrowedFd<'_>, flags: i32) -> io::Result<OwnedFd> {
    let (proc, own) = by_descriptor(file)?;
    sys::open_at(proc, &own, flags, 0)
}

/// `linkat`: give an open file a name, which must not be there.
pub fn link_open(file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let (proc, own) = by_descriptor(file)?;
    // SAFETY: valid descriptors and strings.
    check(unsafe { libc::linkat(proc.as_raw_fd(), own.as_ptr(), dir.as_raw_fd(), name.as_ptr(), libc::AT_SYMLINK_FOLLOW) }).map(drop)
}

/// `fchmod`, also of a descriptor that was opened with `O_PATH`.
pub fn change_mode(file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let (proc, own) = by_descriptor(file)?;
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::fchmodat(proc.as_raw_fd(), own.as_ptr(), mode, 0) }).map(drop)
}

/// `fchownat` of the name itself; `u32::MAX` leaves a number as it is.
pub fn change_owner(dir: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::fchownat(dir.as_raw_fd(), name.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW) }).map(drop)
}

/// `fchown`; `u32::MAX` leaves a number as it is.
pub fn change_owner_open(file: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    check(unsafe { libc::fchown(file.as_raw_fd(), uid, gid) }).map(drop)
}

/// `faccessat2`: whether the name may be written to by whom we have become.
pub fn may_write(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let flags = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: a valid descriptor and string.
    check(unsafe { libc::syscall(libc::SYS_faccessat2, dir.as_raw_fd(), name.as_ptr(), libc::W_OK, flags) } as i32).map(drop)
}

/// `lseek`.
pub fn seek(file: BorrowedFd<'_>, offset: u64, whence: i32) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: a valid descriptor.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    if at < 0 { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

/// `ftruncate`.
pub fn set_size(file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
    let size = i64::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: a valid descriptor.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), size) }).map(drop)
}

/// `getrandom`: a number that nobody guesses.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: room for as many bytes as we say.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if count == 8 { Ok(u64::from_le_bytes(bytes)) } else { Err(io::Error::last_os_error()) }
}

/// Open a directory below another for reading, never through a link, nor into another file system that is mounted there.
pub fn open_below(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    sys::open_at2(dir, name, flags, 0, libc::RESOLVE_NO_XDEV | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_BENEATH)
}
