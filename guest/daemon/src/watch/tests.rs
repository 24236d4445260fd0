//! Watches of real directories, in this process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use space_protocol::Bytes;
use space_protocol::files::Change;

use super::*;
use crate::files::tests::{Random, Scratch};

const LONG: Duration = Duration::from_secs(20);

struct Watching {
    told: Receiver<Message>,
    runs: JoinHandle<Result<Message, Failure>>,
}

/// What a change says, in short.
fn word(change: &Change) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
    let kind = if change.directory { format!("{}/", change.kind) } else { change.kind.clone() };
    match &change.from {
        Some(from) => format!("{kind} {} {}", text(from), text(&change.path)),
        None => format!("{kind} {}", text(&change.path)),
    }
}

impl Watching {
    fn start(path: &Path, recursive: bool) -> Self {
        let (tell, told) = channel();
        let path = path.as_os_str().as_bytes().to_vec();
        let runs = std::thread::spawn(move || {
            run(&path, recursive, None, &mut |message| tell.send(message.clone()).map_err(|_| Failure::guest("nobody listens")))
        });
        assert_eq!(told.recv_timeout(LONG).unwrap(), Message::Watching(Empty {}));
        Self { told, runs }
    }

    /// Changes up to the one that says this.
    fn until(&self, last: &str) -> Vec<String> {
        let mut found: Vec<String> = vec![];
        while !found.iter().any(|one| one == last) {
            match self.told.recv_timeout(LONG) {
                Ok(Message::Changes(message)) => found.extend(message.changes.iter().map(word)),
                other => panic!("{other:?} after {found:?}"),
            }
        }
        found
    }

    /// The last changes, of a watch that ends by itself.
    fn end(self) -> Vec<String> {
        let Ok(Message::Changes(last)) = self.runs.join().unwrap() else { panic!("no changes") };
        let before = self.told.try_iter().flat_map(|message| match message {
            Message::Changes(message) => message.changes,
            other => panic!("{other:?}"),
        });
        before.chain(last.changes).map(|change| word(&change)).collect()
    }
}

#[test]
fn files_that_appear_change_move_and_go_are_told() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("w/d")).unwrap();
    let watching = Watching::start(&scratch.path("w"), true);
    fs::write(scratch.path("w/a b\n"), "1").unwrap();
    fs::rename(scratch.path("w/a b\n"), scratch.path("w/d/b")).unwrap();
    fs::set_permissions(scratch.path("w/d/b"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(scratch.path("w/d/b"), scratch.path("out")).unwrap();
    fs::rename(scratch.path("out"), scratch.path("w/in")).unwrap();
    fs::remove_file(scratch.path("w/in")).unwrap();
    fs::remove_dir(scratch.path("w/d")).unwrap();
    let want =
        ["created a b\n", "modified a b\n", "moved a b\n d/b", "attributes d/b", "deleted d/b", "created in", "deleted in", "deleted/ d"];
    assert_eq!(watching.until("deleted/ d"), want);
    fs::remove_dir(scratch.path("w")).unwrap();
    assert_eq!(watching.end(), ["deleted/ "]);
}

#[test]
fn a_directory_alone_is_watched_when_no_more_is_wanted() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("w/d")).unwrap();
    let watching = Watching::start(&scratch.path("w"), false);
    fs::write(scratch.path("w/d/unseen"), "").unwrap();
    fs::create_dir(scratch.path("w/e")).unwrap();
    fs::write(scratch.path("w/e/unseen"), "").unwrap();
    fs::write(scratch.path("w/f"), "").unwrap();
    assert_eq!(watching.until("created f"), ["created/ e", "created f"]);
    fs::rename(scratch.path("w"), scratch.path("away")).unwrap();
    assert_eq!(watching.end().last().unwrap(), "deleted/ ", "what is moved away is not there any more");
}

#[test]
fn a_file_that_is_replaced_is_modified_and_one_that_goes_ends_the_watch() {
    let scratch = Scratch::new();
    fs::write(scratch.path("f"), "").unwrap();
    std::os::unix::fs::symlink("f", scratch.path("link")).unwrap();
    let watching = Watching::start(&scratch.path("link"), true);
    fs::write(scratch.path("other"), "").unwrap();
    fs::write(scratch.path("f"), "1").unwrap();
    assert_eq!(watching.until("modified "), ["modified "]);
    fs::rename(scratch.path("other"), scratch.path("f")).unwrap();
    assert_eq!(watching.until("modified "), ["modified "]);
    fs::remove_file(scratch.path("f")).unwrap();
    assert_eq!(watching.end().last().unwrap(), "deleted ");
}

#[test]
fn a_directory_that_was_moved_is_known_by_its_new_name() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("w/a/b/c")).unwrap();
    fs::create_dir_all(scratch.path("w/d")).unwrap();
    let watching = Watching::start(&scratch.path("w"), true);
    fs::rename(scratch.path("w/a"), scratch.path("w/d/e")).unwrap();
    fs::write(scratch.path("w/d/e/b/c/f"), "").unwrap();
    assert_eq!(watching.until("created d/e/b/c/f"), ["moved/ a d/e", "created d/e/b/c/f"]);
    fs::rename(scratch.path("w/d/e"), scratch.path("out")).unwrap();
    assert_eq!(watching.until("deleted/ d/e"), ["deleted/ d/e"]);
    fs::rename(scratch.path("out/b/c/f"), scratch.path("out/b/c/unseen")).unwrap();
    fs::rename(scratch.path("out"), scratch.path("w/in")).unwrap();
    let found = watching.until("created in/b/c/unseen");
    assert_eq!(found, ["created/ in", "created/ in/b", "created/ in/b/c", "created in/b/c/unseen"]);
    fs::write(scratch.path("w/in/b/c/seen"), "").unwrap();
    assert_eq!(watching.until("created in/b/c/seen"), ["created in/b/c/seen"]);
}

#[test]
fn everything_in_a_new_tree_is_told_once_however_quickly_it_is_made() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("w")).unwrap();
    let watching = Watching::start(&scratch.path("w"), true);
    let mut want = vec![];
    for tree in 0..40 {
        for deep in ["", "/a", "/a/b", "/a/b/c"] {
            fs::create_dir(scratch.path(&format!("w/{tree}{deep}"))).unwrap();
            fs::write(scratch.path(&format!("w/{tree}{deep}/f")), "").unwrap();
            want.push(format!("created/ {tree}{deep}"));
            want.push(format!("created {tree}{deep}/f"));
        }
    }
    fs::write(scratch.path("w/last"), "").unwrap();
    let mut found = watching.until("created last");
    found.pop();
    found.sort();
    want.sort();
    assert_eq!(found, want);
}

/// A tree as a set of paths, changed at random; whoever applies the changes has the same tree.
#[test]
fn whoever_applies_the_changes_has_the_same_tree() {
    use std::collections::BTreeSet;
    fn walk(at: &Path, prefix: &str, out: &mut BTreeSet<String>) {
        for entry in fs::read_dir(at).unwrap().flatten() {
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &format!("{path}/"), out);
            }
            out.insert(path);
        }
    }
    for round in 0..6 {
        let mut random = Random(100 + round);
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("w")).unwrap();
        let watching = Watching::start(&scratch.path("w"), true);
        for _ in 0..300 {
            let mut path = || (0..=random.below(3)).map(|_| ["a", "b", "c"][random.below(3)]).collect::<Vec<_>>().join("/");
            let (one, two) = (path(), path());
            let (one, two) = (scratch.path("w").join(one), scratch.path("w").join(two));
            let _ = match random.below(5) {
                0 | 1 => fs::create_dir_all(&one),
                2 => fs::write(&one, "x"),
                3 => fs::rename(&one, &two),
                _ => fs::remove_dir_all(&one),
            };
        }
        fs::write(scratch.path("w/last"), "").unwrap();
        let mut known: BTreeSet<String> = BTreeSet::new();
        let mut done = false;
        while !done {
            let Message::Changes(message) = watching.told.recv_timeout(LONG).unwrap() else { panic!("no changes") };
            for change in message.changes {
                let path = String::from_utf8(change.path.0).unwrap();
                let below = format!("{path}/");
                match change.kind.as_str() {
                    "created" => drop(known.insert(path.clone())),
                    "deleted" => known.retain(|one| *one != path && !one.starts_with(&below)),
                    "moved" => {
                        let from = String::from_utf8(change.from.unwrap().0).unwrap();
                        known.retain(|one| *one != path && !one.starts_with(&below));
                        let renamed = |one: String| match one.strip_prefix(&from) {
                            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{path}{rest}"),
                            _ => one,
                        };
                        known = std::mem::take(&mut known).into_iter().map(renamed).collect();
                        known.insert(path.clone());
                    }
                    _ => {}
                }
                done |= path == "last";
            }
        }
        let mut real = BTreeSet::new();
        walk(&scratch.path("w"), "", &mut real);
        assert_eq!(known, real, "round {round}");
    }
}

#[test]
fn events_come_out_of_bytes_as_far_as_they_go() {
    let bytes: Vec<u8> = [3_i32, 256, 7, 8].iter().flat_map(|word| word.to_ne_bytes()).chain(*b"name\0\0\0\0").collect();
    let twice = [&bytes[..], &bytes].concat();
    let want = Event { watch: 3, mask: 256, cookie: 7, name: b"name".to_vec() };
    for end in 0..=twice.len() {
        let found = inotify::parse(&twice[..end]);
        assert_eq!(found.len(), end / bytes.len());
        assert!(found.iter().all(|event| *event == want));
    }
}

#[test]
fn what_is_used_up_is_named() {
    for (errno, word) in [(libc::ENOSPC, "fs.inotify.max_user_watches"), (libc::EMFILE, "fs.inotify.max_user_instances")] {
        let failure = exhausted(b"/x", &io::Error::from_raw_os_error(errno));
        assert_eq!(failure.code, "no_capacity");
        assert!(failure.message.contains(word), "{failure}");
    }
    assert_eq!(exhausted(b"/x", &io::Error::from_raw_os_error(libc::EACCES)).code, "permission_denied");
}

#[test]
fn a_file_without_a_name_is_told_by_nothing_until_it_has_one() {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = Scratch::new();
    let watching = Watching::start(&scratch.path("."), false);
    let nameless = fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(scratch.path("."));
    if let Ok(mut file) = nameless {
        file.write_all(b"x").unwrap();
    }
    fs::write(scratch.path("#12"), "x").unwrap();
    fs::write(scratch.path("last"), "").unwrap();
    assert_eq!(watching.until("created last"), ["created #12", "modified #12", "created last"]);
}

#[test]
fn who_asks_is_told_everything_that_happened_before() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("w")).unwrap();
    let (theirs, ours) = sys::pipe().unwrap();
    let (tell, told) = channel();
    let path = scratch.path("w").as_os_str().as_bytes().to_vec();
    let runs = std::thread::spawn(move || {
        let say = &mut |message: &Message| tell.send(message.clone()).map_err(|_| Failure::guest("nobody listens"));
        run(&path, false, Some(std::os::fd::AsFd::as_fd(&theirs)), say)
    });
    assert_eq!(told.recv_timeout(LONG).unwrap(), Message::Watching(Empty {}));
    for number in 0..50 {
        fs::write(scratch.path(&format!("w/{number}")), "x").unwrap();
        sys::write(std::os::fd::AsFd::as_fd(&ours), b"?").unwrap();
        let mut seen = vec![];
        loop {
            match told.recv_timeout(LONG).unwrap() {
                Message::Changes(message) => seen.extend(message.changes.iter().map(word)),
                Message::Synced(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [format!("created {number}"), format!("modified {number}")]);
    }
    drop(ours);
    fs::remove_dir_all(scratch.path("w")).unwrap();
    assert!(matches!(runs.join().unwrap(), Ok(Message::Changes(_))), "it goes on when nobody asks any more");
}
