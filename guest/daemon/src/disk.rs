//! The root disk: its size, the file system that fills it, and `grow`: a restored guest whose disk is larger than its snapshot's.
//!
//! The VMM shows the new size while the machine stands still, and the guest's kernel takes it in some time after it runs again, behind
//! the daemon's back: so the host says how large the disk will be, and the child of `grow` waits for that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use space_protocol::messages::Grow;
use space_protocol::{Failure, Message};

use crate::boot::Held;
use crate::child::EXTRA;
use crate::configure::{self, fault};
use crate::devices::Announcements;
use crate::sys;

/// How long the kernel may take to see its disk's new size.
const PATIENCE: Duration = Duration::from_secs(5);
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const EXT4_IOC_RESIZE_FS: libc::c_ulong = 0x4008_6610;

/// In the child of the verb `grow`.
pub fn grow(request: &Grow) -> Result<Message, Failure> {
    // SAFETY: the child was given these, and keeps them.
    let [_, disk, root, proc] = [0, 1, 2, 3].map(|at| unsafe { sys::numbered(EXTRA + at) });
    let listening = Announcements::listen().map_err(fault("listen to device events"))?;
    let mut seen = 0;
    let large = || {
        seen = size(disk)?;
        if seen >= request.disk_bytes { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) }
    };
    listening.wait_for(PATIENCE, None, large).map_err(|error| {
        let (wanted, seconds) = (request.disk_bytes, PATIENCE.as_secs());
        Failure::guest(format!("the root disk was to have {wanted} bytes, and has {seen} after {seconds} s: {error}"))
    })?;
    fill(disk, root)?;
    configure::configured(root, proc)
}

/// Grow ext4 to its device; nothing to do when it fills it.
pub fn fill(disk: BorrowedFd<'_>, root: BorrowedFd<'_>) -> Result<(), Failure> {
    let resize = || {
        let mut blocks = size(disk)? / sys::file_system(root)?.f_bsize as u64;
        // SAFETY: the request reads one u64.
        unsafe { sys::ioctl(root, EXT4_IOC_RESIZE_FS, &raw mut blocks) }.map(drop)
    };
    resize().map_err(fault("grow the root file system to its device"))
}

/// The size of the root file system's device.
pub fn size_of_root(held: &Held) -> Option<u64> {
    size(held.disk.as_fd()).ok()
}

/// The size of a block device.
fn size(disk: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: u64 = 0;
    // SAFETY: the request writes one u64.
    unsafe { sys::ioctl(disk, BLKGETSIZE64, &raw mut bytes) }?;
    Ok(bytes)
}
