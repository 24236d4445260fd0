//! What happens to a path, by a child with an inotify instance.
//!
//! - [`inotify`]: the kernel's news; [`nodes`]: which directory a watch stands for; [`batch`]: changes put together
//!
//! Always directories are watched: for a file it is the one that it lies in, so that a file which is replaced by another of its name
//! is seen as what it is to whoever watches, modified. A directory that appears below gets its watch before it is looked into, and what is
//! found there is told as created, unless the kernel tells it as well. No descriptor of a directory is held, for its end would not be told.
//!
//! Whoever does not take the changes holds back this child, in its write; the kernel's queue then overflows, which is told, and the
//! watches are set anew.

mod batch;
mod inotify;
mod nodes;

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use space_protocol::entries::EntryWatch;
use space_protocol::files::{Changes, Watch};
use space_protocol::messages::Empty;
use space_protocol::{Failure, Message};

use crate::exec::shown;
use crate::files::{at, check, enter, entry_path, is_staged, split};
use crate::{report, sys};
use batch::Batch;
use inotify::{Event, Inotify};
use nodes::{NONE, Nodes};

const WHAT: &str = "watch";
/// Between two messages. Changes that come meanwhile are told together.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the second half of a move is waited for when nothing else comes.
const HALF: Duration = Duration::from_millis(100);

/// In a child: watch, until the path is gone.
pub fn watch(request: &Watch) -> Result<Message, Failure> {
    check(&request.path.0)?;
    enter(request.user.as_deref())?;
    run(&request.path.0, request.recursive, None, &mut report::say)
}

/// The same for a directory as root, where a byte on standard input asks for all that has happened before it came.
pub fn watch_entry(request: &EntryWatch) -> Result<Message, Failure> {
    let path = entry_path(&request.path.0, request.user.as_deref())?;
    let real = std::fs::metadata(OsStr::from_bytes(&path)).map_err(at(WHAT, &path))?;
    if !real.is_dir() {
        return Err(Failure::invalid(format!("path '{}' is not a directory", shown(&path))));
    }
    // SAFETY: standard input is open for as long as this child lives.
    run(&path, request.recursive, Some(unsafe { sys::numbered(0) }), &mut report::say)
}

/// asks: where somebody asks for what has happened. say: takes every message but the last.
fn run(
    path: &[u8],
    recursive: bool,
    asks: Option<BorrowedFd<'_>>,
    say: &mut dyn FnMut(&Message) -> Result<(), Failure>,
) -> Result<Message, Failure> {
    let (top, only) = start(path)?;
    let mut watcher = Watcher::new(path, top, only, recursive)?;
    let mut asks = Asks(asks);
    watcher.look(watcher.root, &[], false)?;
    say(&Message::Watching(Empty {}))?;
    let mut last = Instant::now();
    loop {
        watcher.wait_for_news(&asks);
        let asked = asks.take();
        if asked == 0 {
            // What comes within the pause goes with it.
            std::thread::sleep(PAUSE.saturating_sub(last.elapsed()));
        }
        watcher.gather()?;
        last = Instant::now();
        let mut messages = watcher.batch.take();
        let end = if watcher.over { messages.pop() } else { None };
        for changes in messages {
            say(&Message::Changes(Changes { changes }))?;
        }
        if watcher.over {
            return Ok(Message::Changes(Changes { changes: end.unwrap_or_default() }));
        }
        if std::mem::take(&mut watcher.overflow) {
            watcher.again()?;
            say(&Message::Overflow(Empty {}))?;
        }
        for _ in 0..asked {
            say(&Message::Synced(Empty {}))?;
        }
    }
}

/// Bytes by which somebody asks, until they end.
struct Asks<'a>(Option<BorrowedFd<'a>>);

impl Asks<'_> {
    /// How many came. Nothing is waited for.
    fn take(&mut self) -> usize {
        let Some(pipe) = self.0.filter(|pipe| inotify::has_news(*pipe)) else { return 0 };
        match sys::read(pipe, &mut [0; 64]) {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            _ => {
                self.0 = None;
                0
            }
        }
    }
}

/// The directory to watch, and the one name in it that matters, if the path is no directory. Links are followed.
fn start(path: &[u8]) -> Result<(PathBuf, Option<Vec<u8>>), Failure> {
    let wrong = at(WHAT, path);
    let real = std::fs::canonicalize(OsStr::from_bytes(path)).map_err(&wrong)?;
    if std::fs::metadata(&real).map_err(&wrong)?.is_dir() {
        return Ok((real, None));
    }
    let real = real.into_os_string().into_vec();
    let (parent, name) = split(&real);
    Ok((Path::new(OsStr::from_bytes(parent)).to_owned(), Some(name.to_vec())))
}

struct Watcher {
    inotify: Inotify,
    nodes: Nodes,
    batch: Batch,
    root: i32,
    /// The directory.
    top: PathBuf,
    only: Option<Vec<u8>>,
    recursive: bool,
    shown: Vec<u8>,
    /// Events were lost.
    overflow: bool,
    /// The path is gone.
    over: bool,
}

impl Watcher {
    fn new(path: &[u8], top: PathBuf, only: Option<Vec<u8>>, recursive: bool) -> Result<Self, Failure> {
        let inotify = Inotify::new().map_err(|error| exhausted(path, &error))?;
        let recursive = recursive && only.is_none();
        let mut watcher = Self {
            inotify,
            nodes: Nodes::default(),
            batch: Batch::default(),
            root: NONE,
            top,
            only,
            recursive,
            shown: path.to_vec(),
            overflow: false,
            over: false,
        };
        watcher.stand()?;
        Ok(watcher)
    }

    /// The watch of the topmost directory.
    fn stand(&mut self) -> Result<(), Failure> {
        let name = sys::c_string(self.top.as_os_str().as_bytes()).map_err(at(WHAT, &self.shown))?;
        self.root = self.inotify.add(&name).map_err(|error| exhausted(&self.shown, &error))?;
        self.nodes.add(self.root, NONE, b"");
        Ok(())
    }

    /// Events were lost: forget what was known, and look again.
    fn again(&mut self) -> Result<(), Failure> {
        self.inotify = Inotify::new().map_err(|error| exhausted(&self.shown, &error))?;
        self.nodes = Nodes::default();
        match self.stand() {
            Err(failure) if failure.code == "not_found" => {
                self.gone();
                Ok(())
            }
            other => other.and_then(|()| self.look(self.root, &[], false)),
        }
    }

    fn wait_for_news(&self, asks: &Asks<'_>) {
        if !self.over {
            self.inotify.wait(None, asks.0);
        }
    }

    /// Take news until there is no more, or enough.
    fn gather(&mut self) -> Result<(), Failure> {
        let mut late = false;
        while !self.over {
            let events = self.inotify.events().map_err(at(WHAT, &self.shown))?;
            if events.is_empty() && self.batch.is_open() {
                let begun = Instant::now();
                self.inotify.wait(Some(HALF), None);
                if begun.elapsed() >= HALF {
                    self.give_up();
                }
            } else if events.is_empty() {
                self.nodes.settle();
                return Ok(());
            }
            for event in events {
                if !self.over {
                    self.take(&event)?;
                }
            }
            // The second half of a move that the last read has cut off comes with this one.
            if self.batch.is_full() && std::mem::replace(&mut late, true) {
                break;
            }
        }
        self.give_up();
        Ok(())
    }

    /// What was moved away was moved out.
    fn give_up(&mut self) {
        for watch in self.batch.give_up() {
            self.forget(watch);
        }
    }

    fn forget(&mut self, watch: i32) {
        for gone in self.nodes.remove(watch) {
            self.inotify.remove(gone);
        }
    }

    /// The path that is watched is no more.
    fn gone(&mut self) {
        self.give_up();
        self.batch.tell("deleted", vec![], self.only.is_none());
        self.over = true;
    }

    fn take(&mut self, event: &Event) -> Result<(), Failure> {
        if event.is(libc::IN_Q_OVERFLOW) {
            self.overflow = true;
            return Ok(());
        }
        if !self.nodes.knows(event.watch) {
            return Ok(());
        }
        if event.name.is_empty() {
            self.itself(event);
            return Ok(());
        }
        match &self.only {
            Some(only) if *only == event.name => self.single(event),
            Some(_) => {}
            None => self.entry(event)?,
        }
        Ok(())
    }

    /// Something happened to a directory that has a watch. Of those below the one above tells.
    fn itself(&mut self, event: &Event) {
        if event.is(libc::IN_IGNORED | libc::IN_UNMOUNT) && event.watch != self.root {
            self.nodes.remove(event.watch);
        } else if event.is(libc::IN_DELETE_SELF | libc::IN_MOVE_SELF | libc::IN_UNMOUNT | libc::IN_IGNORED) && event.watch == self.root {
            self.gone();
        } else if event.is(libc::IN_ATTRIB) && event.watch == self.root && self.only.is_none() {
            self.batch.touch("attributes", vec![], true);
        }
    }

    /// Something happened to the one file that is watched.
    fn single(&mut self, event: &Event) {
        if event.is(libc::IN_DELETE | libc::IN_MOVED_FROM) {
            self.gone();
        } else if event.is(libc::IN_ATTRIB) {
            self.batch.touch("attributes", vec![], false);
        } else {
            self.batch.touch("modified", vec![], false);
        }
    }

    /// Something happened to a name in a directory.
    fn entry(&mut self, event: &Event) -> Result<(), Failure> {
        let (watch, name, directory) = (event.watch, &event.name, event.directory());
        let Some(path) = self.nodes.path(watch, name) else { return Ok(()) };
        let ours = is_staged(name);
        if event.is(libc::IN_CREATE) {
            if !ours && !self.nodes.was_found(watch, name) {
                self.created(watch, name, path, directory)?;
            }
        } else if event.is(libc::IN_MOVED_FROM) {
            self.nodes.was_found(watch, name);
            let below = self.nodes.lift(watch, name);
            self.batch.from(event.cookie, path, directory, below);
        } else if event.is(libc::IN_MOVED_TO) {
            self.moved(event, path)?;
        } else if event.is(libc::IN_DELETE) {
            self.nodes.was_found(watch, name);
            if let Some(below) = self.nodes.child(watch, name) {
                self.forget(below);
            }
            if !ours {
                self.batch.tell("deleted", path, directory);
            }
        } else if !ours && !self.is_nameless(name, &path) {
            self.batch.touch(if event.is(libc::IN_ATTRIB) { "attributes" } else { "modified" }, path, directory);
        }
        Ok(())
    }

    /// Whether it is a file without a name (`O_TMPFILE`, as an atomic write has): the kernel tells of it as `#` and its number.
    fn is_nameless(&self, name: &[u8], path: &[u8]) -> bool {
        let numbered = name.strip_prefix(b"#").is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit));
        numbered && std::fs::symlink_metadata(self.top.join(OsStr::from_bytes(path))).is_err()
    }

    /// The second half of a move.
    fn moved(&mut self, event: &Event, path: Vec<u8>) -> Result<(), Failure> {
        let (watch, name, directory) = (event.watch, &event.name, event.directory());
        self.nodes.was_found(watch, name);
        match self.batch.origin(event.cookie) {
            None => return self.created(watch, name, path, directory),
            // A file that we have written whole got its name, and replaced the old one.
            Some(from) if !directory && is_staged(split(from).1) => {
                self.batch.drop_origin(event.cookie);
                self.batch.touch("modified", path, false);
            }
            Some(_) => match self.batch.to(event.cookie, path) {
                Some(below) => self.nodes.rename(below, watch, name),
                // It was moved before it could be looked into.
                None if directory && self.recursive => self.enter(watch, name, true)?,
                None => {}
            },
        }
        Ok(())
    }

    /// A name appeared.
    fn created(&mut self, watch: i32, name: &[u8], path: Vec<u8>, directory: bool) -> Result<(), Failure> {
        self.batch.tell("created", path, directory);
        if directory && self.recursive && self.nodes.child(watch, name).is_none() {
            self.enter(watch, name, true)?;
        }
        Ok(())
    }

    /// Watch a directory below another, and look into it.
    fn enter(&mut self, parent: i32, name: &[u8], tell: bool) -> Result<(), Failure> {
        let Some(path) = self.nodes.path(parent, name) else { return Ok(()) };
        let full = self.top.join(OsStr::from_bytes(&path));
        let Ok(text) = sys::c_string(full.as_os_str().as_bytes()) else { return Ok(()) };
        match self.inotify.add(&text) {
            Ok(watch) => {
                self.nodes.add(watch, parent, name);
                self.look(watch, &path, tell)
            }
            Err(error) if is_exhausted(&error) => Err(exhausted(&self.shown, &error)),
            // It is gone again, or nothing that the user may look into.
            Err(_) => Ok(()),
        }
    }

    /// Watch what is in a directory; tell it as created if it is new.
    fn look(&mut self, watch: i32, path: &[u8], tell: bool) -> Result<(), Failure> {
        if !self.recursive {
            return Ok(());
        }
        let Ok(entries) = std::fs::read_dir(self.top.join(OsStr::from_bytes(path))) else { return Ok(()) };
        let mut below = vec![];
        for entry in entries.flatten() {
            let name = entry.file_name().into_vec();
            let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if tell && !is_staged(&name) {
                if let Some(path) = self.nodes.path(watch, &name) {
                    self.batch.tell("created", path, directory);
                    self.nodes.found(watch, &name);
                }
            }
            if directory {
                below.push(name);
            }
        }
        below.into_iter().try_for_each(|name| self.enter(watch, &name, tell))
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Why there is no watch.
fn exhausted(path: &[u8], error: &io::Error) -> Failure {
    let sysctl = match error.raw_os_error() {
        Some(libc::ENOSPC) => "fs.inotify.max_user_watches",
        Some(libc::EMFILE) => "fs.inotify.max_user_instances",
        _ => return at(WHAT, path)(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))),
    };
    let why = format!("cannot watch '{}': the user has as many watches as {sysctl} of the sandbox's kernel allows", shown(path));
    Failure::new("no_capacity", why)
}

#[cfg(test)]
mod tests;
