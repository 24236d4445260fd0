use std::fs;
use std::os::unix::fs::symlink;

use space_protocol::files::Content;

use super::*;
use crate::crc::Crc32;
use crate::files::tests::{Parts, Scratch, refused};

fn of(scratch: &Scratch, name: &str) -> EntryPath {
    EntryPath { path: scratch.bytes(name), user: None }
}

fn told(answer: Result<Message, Failure>) -> Entry {
    match answer.unwrap() {
        Message::Entry(answer) => answer.entry,
        other => panic!("{other:?}"),
    }
}

fn send(scratch: &Scratch, name: &str, bytes: &[u8], metadata: &[(&str, &str)]) -> Result<Message, Failure> {
    let bin = |text: &str| Bytes(text.as_bytes().to_vec());
    let metadata = metadata.iter().map(|(name, value)| (bin(name), bin(value))).collect();
    let request = EntryWrite { path: scratch.bytes(name), user: None, metadata };
    let mut crc = Crc32::default();
    crc.update(bytes);
    let count = Message::Content(Content { bytes: bytes.len() as u64, crc32: crc.value() }).encode();
    put(&request, &mut Parts::new(bytes), &|| Ok(count.clone()))
}

#[test]
fn paths_are_made_plain_by_their_text() {
    for (path, want) in [
        (&b"/a/./b//c/.."[..], &b"/a/b"[..]),
        (b"x", b"/home/user/x"),
        (b".", b"/home/user"),
        (b"../../../../etc", b"/etc"),
        (b"/..", b"/"),
    ] {
        assert_eq!(plain(b"/home/user", path), want);
    }
}

#[test]
fn a_link_is_told_with_what_it_leads_to() {
    let scratch = Scratch::new();
    fs::write(scratch.path("f"), "12345").unwrap();
    symlink("f", scratch.path("link")).unwrap();
    symlink("nowhere", scratch.path("broken")).unwrap();
    let link = told(entry(&of(&scratch, "link")));
    let leads = link.leads.unwrap();
    assert_eq!((link.file.kind.as_str(), leads.kind.as_str()), ("symlink", "file"));
    assert_eq!((link.path, leads.path), (scratch.bytes("link"), scratch.bytes("f")));
    assert!(told(entry(&of(&scratch, "broken"))).leads.is_none());
    refused(entry(&of(&scratch, "no")), "not_found", "no such");
}

#[test]
fn a_file_is_written_in_its_place_with_its_directories_and_its_metadata() {
    let scratch = Scratch::new();
    let first = told(send(&scratch, "a/b/f", b"one", &[]));
    assert_eq!((first.file.size, first.file.mode, first.path), (3, 0o644, scratch.bytes("a/b/f")));
    let again = told(send(&scratch, "a/b/f", b"x", &[]));
    assert_eq!((again.file.inode, again.file.size), (first.file.inode, 1));
    let long = vec![7; 3 << 20];
    assert_eq!(told(send(&scratch, "a/b/f", &long, &[])).file.size, 3 << 20);
    assert!(fs::read(scratch.path("a/b/f")).unwrap() == long);
    refused(send(&scratch, "a/b", b"", &[]), "invalid_argument", "is a directory");
    refused(send(&scratch, "a/b/f/x", b"", &[]), "conflict", "not a directory");
    if send(&scratch, "m", b"1", &[("author", "me"), ("x", "")]).is_ok() {
        let text = |entry: &Entry| entry.metadata.iter().map(|(name, _)| String::from_utf8(name.0.clone()).unwrap()).collect::<Vec<_>>();
        let mut names = text(&told(entry(&of(&scratch, "m"))));
        names.sort();
        assert_eq!(names, ["author", "x"]);
        assert!(text(&told(send(&scratch, "m", b"2", &[("y", "z")]))) == ["y"], "the whole set is replaced");
        assert!(text(&told(send(&scratch, "m", b"3", &[]))).is_empty());
    }
}

#[test]
fn directories_are_made_moved_listed_and_removed() {
    let scratch = Scratch::new();
    assert_eq!(told(make_entry_dir(&of(&scratch, "d/e"))).file.mode, 0o755);
    refused(make_entry_dir(&of(&scratch, "d")), "conflict", "already exists");
    fs::write(scratch.path("d/f"), "").unwrap();
    refused(make_entry_dir(&of(&scratch, "d/f")), "invalid_argument", "not a directory");
    let go = |from: &str, to: &str| move_entry(&EntryMove { path: scratch.bytes(from), user: None, to: scratch.bytes(to) });
    assert_eq!(told(go("d/f", "new/place/g")).file.name.0, b"g");
    refused(go("no", "x"), "not_found", "no such");
    symlink("new", scratch.path("link")).unwrap();
    let list = |name: &str, depth: u32, limit: u32| {
        let mut found = vec![];
        let said = list_to(&EntryList { path: scratch.bytes(name), user: None, depth, limit }, &mut |message| {
            let Message::Entries(some) = message else { panic!("{message:?}") };
            found.extend(some.entries.iter().map(|entry| entry.path.clone()));
            Ok(())
        });
        (found, said)
    };
    let (found, said) = list("link", 2, 10);
    assert_eq!(
        (found, said.unwrap()),
        (vec![scratch.bytes("link/place"), scratch.bytes("link/place/g")], Message::Listed(Listed { more: false }))
    );
    assert_eq!(list("new", 9, 1).1.unwrap(), Message::Listed(Listed { more: true }));
    refused(list("new/place/g", 1, 10).1, "invalid_argument", "not a directory");
    refused(list("no", 1, 10).1, "not_found", "no such");
    for _ in 0..2 {
        remove_entry(&of(&scratch, "new")).unwrap();
    }
    assert_eq!(scratch.names(), ["d", "link"]);
}
