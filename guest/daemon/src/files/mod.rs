//! Files one by one, by a child that has become the user who asks. (Whole trees: [`crate::tree`].)
//!
//! - [`place`]: a path as a name in an open directory
//! - [`record`]: what is told of a file; [`list`]: of a directory, in pages
//! - [`read`], [`write`]: a file's bytes, through a ring
//! - [`names`]: directories, links, other names; [`remove`]; [`attributes`]: modes and owners
//! - [`entries`]: the same by another custom: as root, for a user who owns what is made, with metadata
//! - [`fault`]: what an errno means; [`calls`]: the kernel's words

mod attributes;
mod calls;
mod entries;
mod fault;
mod list;
mod names;
mod place;
mod read;
mod record;
mod remove;
mod write;

use std::os::fd::AsFd;

use space_protocol::files::{FileAnswer, FileStat};
use space_protocol::{Failure, Message};

pub use attributes::{change_mode, change_owner};
pub use calls::{seek, set_size};
pub use entries::{entry, entry_path, list_entries, make_entry_dir, move_entry, remove_entry, write_entry};
pub use fault::at;
pub use list::list;
pub use names::{link, make_dir, rename};
pub use place::{check, split};
pub use read::{Extent, extent, read};
pub use remove::remove;
pub use write::{is_staged, write};

use crate::{sys, tree};
use place::{Place, base};
use record::Names;

/// Become the user, in whose home relative paths begin. Modes are exactly those that are asked for.
pub fn enter(user: Option<&str>) -> Result<(), Failure> {
    // Tests have one process for all.
    if cfg!(test) { Ok(()) } else { tree::become_user(user) }
}

/// In a child: what a path is.
pub fn stat(request: &FileStat) -> Result<Message, Failure> {
    let path = &request.path.0;
    place::check(path)?;
    enter(request.user.as_deref())?;
    let wrong = at("look at", path);
    let name = sys::c_string(path).map_err(&wrong)?;
    let names = Names::load();
    let file = if request.follow {
        let file = sys::open_at(calls::here(), &name, libc::O_PATH, 0).map_err(&wrong)?;
        record::file(&base(path), &sys::stat(file.as_fd()).map_err(&wrong)?, None, &names)
    } else {
        record::look(calls::here(), &name, &base(path), &names).map_err(&wrong)?
    };
    Ok(Message::File(FileAnswer { file }))
}

/// The answer of a verb that made or changed this.
fn answer(what: &str, path: &[u8], place: &Place) -> Result<Message, Failure> {
    let file = record::look(place.dir(), place.name(), &base(path), &Names::load()).map_err(at(what, path))?;
    Ok(Message::File(FileAnswer { file }))
}

#[cfg(test)]
pub mod tests;
