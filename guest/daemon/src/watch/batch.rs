//! Changes on their way to whoever watches (pure): both halves of a move put together, repetitions left out, cut into messages.
//!
//! The kernel tells the two halves of a move one behind the other, but they may lie in two reads. So the first half keeps its place until
//! the second has come, or is given up: then something was moved out.

use std::collections::HashSet;

use space_protocol::Bytes;
use space_protocol::files::Change;

/// Bytes of a message, about; one change more fits into it.
pub const LARGEST: usize = 32 << 10;
/// Bytes of a change without its paths.
const CHANGE: usize = 60;

enum Slot {
    Told(Change),
    /// Moved away, perhaps to where we see it.
    From {
        cookie: u32,
        path: Vec<u8>,
        directory: bool,
        below: Option<i32>,
    },
}

/// See the module.
#[derive(Default)]
pub struct Batch {
    slots: Vec<Slot>,
    bytes: usize,
    /// Paths of which it was told already that they are not what they were.
    touched: HashSet<(&'static str, Vec<u8>)>,
}

impl Batch {
    /// Whether it should be told now.
    pub fn is_full(&self) -> bool {
        self.bytes >= LARGEST
    }

    /// Whether the second half of a move may still come.
    pub fn is_open(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::From { .. }))
    }

    /// Something appeared or is gone.
    pub fn tell(&mut self, kind: &'static str, path: Vec<u8>, directory: bool) {
        self.touched.clear();
        self.push(kind, path, None, directory);
    }

    /// Something is not what it was (`modified`, `attributes`). Once is enough until something appears or goes.
    pub fn touch(&mut self, kind: &'static str, path: Vec<u8>, directory: bool) {
        if self.touched.insert((kind, path.clone())) {
            self.push(kind, path, None, directory);
        }
    }

    /// The first half of a move. below: the watch of a directory that was moved.
    pub fn from(&mut self, cookie: u32, path: Vec<u8>, directory: bool, below: Option<i32>) {
        self.touched.clear();
        self.bytes += CHANGE + path.len();
        self.slots.push(Slot::From { cookie, path, directory, below });
    }

    /// The path of the first half of a move, if that was seen.
    pub fn origin(&self, cookie: u32) -> Option<&[u8]> {
        self.slots.iter().find_map(|slot| match slot {
            Slot::From { cookie: known, path, .. } if *known == cookie => Some(path.as_slice()),
            _ => None,
        })
    }

    /// The second half of a move of which the first was seen. The watch of a directory that was moved.
    pub fn to(&mut self, cookie: u32, to: Vec<u8>) -> Option<i32> {
        self.touched.clear();
        let at = self.first_half(cookie)?;
        self.bytes += to.len();
        match std::mem::replace(&mut self.slots[at], Slot::Told(change("moved", to, None, false))) {
            Slot::From { path, directory, below, .. } => {
                if let Slot::Told(change) = &mut self.slots[at] {
                    (change.from, change.directory) = (Some(Bytes(path)), directory);
                }
                below
            }
            Slot::Told(_) => None,
        }
    }

    /// The first half of a move is not to be told.
    pub fn drop_origin(&mut self, cookie: u32) {
        if let Some(at) = self.first_half(cookie) {
            self.slots.remove(at);
        }
    }

    fn first_half(&self, cookie: u32) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::From { cookie: known, .. } if *known == cookie))
    }

    /// The first halves whose second never came are deletions; the watches of directories among them.
    pub fn give_up(&mut self) -> Vec<i32> {
        let mut gone = vec![];
        for slot in &mut self.slots {
            if let Slot::From { path, directory, below, .. } = slot {
                gone.extend(*below);
                *slot = Slot::Told(change("deleted", std::mem::take(path), None, *directory));
            }
        }
        gone
    }

    /// Everything, in messages. No move is open.
    pub fn take(&mut self) -> Vec<Vec<Change>> {
        let (mut out, mut bytes) = (vec![vec![]], 0);
        for slot in std::mem::take(self).slots {
            let Slot::Told(change) = slot else { continue };
            let size = CHANGE + change.path.0.len() + change.from.as_ref().map_or(0, |from| from.0.len());
            if bytes + size > LARGEST && bytes > 0 {
                out.push(vec![]);
                bytes = 0;
            }
            bytes += size;
            if let Some(last) = out.last_mut() {
                last.push(change);
            }
        }
        out.retain(|changes| !changes.is_empty());
        out
    }

    fn push(&mut self, kind: &'static str, path: Vec<u8>, from: Option<Vec<u8>>, directory: bool) {
        self.bytes += CHANGE + path.len();
        self.slots.push(Slot::Told(change(kind, path, from, directory)));
    }
}

fn change(kind: &'static str, path: Vec<u8>, from: Option<Vec<u8>>, directory: bool) -> Change {
    Change { kind: kind.to_owned(), path: Bytes(path), from: from.map(Bytes), directory }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Random;

    fn words(batch: &mut Batch) -> Vec<String> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
        let line = |one: &Change| match &one.from {
            Some(from) => format!("{} {} {}", one.kind, text(from), text(&one.path)),
            None => format!("{} {}", one.kind, text(&one.path)),
        };
        batch.take().iter().flatten().map(line).collect()
    }

    #[test]
    fn both_halves_of_a_move_are_one_change_in_the_place_of_the_first() {
        let mut batch = Batch::default();
        batch.tell("created", b"a".to_vec(), false);
        batch.from(7, b"a".to_vec(), false, None);
        batch.from(8, b"x".to_vec(), true, Some(3));
        batch.from(9, b"y".to_vec(), true, Some(4));
        batch.tell("created", b"b".to_vec(), false);
        assert_eq!((batch.origin(7), batch.origin(10)), (Some(&b"a"[..]), None));
        assert_eq!((batch.to(7, b"c".to_vec()), batch.to(9, b"z".to_vec())), (None, Some(4)));
        assert_eq!(batch.to(9, b"z".to_vec()), None, "a number is used once");
        assert!(batch.is_open());
        assert_eq!(batch.give_up(), [3]);
        assert!(!batch.is_open());
        assert_eq!(words(&mut batch), ["created a", "moved a c", "deleted x", "moved y z", "created b"]);
        assert!(batch.take().is_empty() && !batch.is_full());
    }

    #[test]
    fn repetitions_are_left_out_until_something_appears_or_goes() {
        let mut batch = Batch::default();
        for _ in 0..3 {
            batch.touch("modified", b"a".to_vec(), false);
            batch.touch("modified", b"b".to_vec(), false);
            batch.touch("attributes", b"a".to_vec(), false);
        }
        batch.tell("deleted", b"a".to_vec(), false);
        batch.touch("modified", b"a".to_vec(), false);
        assert_eq!(words(&mut batch), ["modified a", "modified b", "attributes a", "deleted a", "modified a"]);
    }

    #[test]
    fn something_unfinished_that_gets_its_name_was_never_there() {
        let mut batch = Batch::default();
        batch.from(5, b".space-write-0".to_vec(), false, None);
        batch.drop_origin(5);
        batch.drop_origin(5);
        assert!(batch.take().is_empty());
    }

    #[test]
    fn messages_hold_everything_in_order_and_are_small() {
        let mut random = Random(11);
        for _ in 0..30 {
            let (mut batch, mut want) = (Batch::default(), vec![]);
            for number in 0..random.below(800) {
                let most = if random.below(9) == 0 { 4000 } else { 60 };
                let path = format!("{number}{}", "x".repeat(random.below(most)));
                want.push(format!("created {path}"));
                batch.tell("created", path.into_bytes(), false);
            }
            let full = batch.is_full();
            let messages = batch.take();
            assert_eq!(full, messages.iter().flatten().map(|one| CHANGE + one.path.0.len()).sum::<usize>() >= LARGEST);
            for message in &messages {
                let encoded = space_protocol::Message::Changes(space_protocol::files::Changes { changes: message.clone() }).encode();
                assert!(encoded.len() < 64 << 10, "{}", encoded.len());
            }
            let got: Vec<String> =
                messages.iter().flatten().map(|one| format!("created {}", String::from_utf8_lossy(&one.path.0))).collect();
            assert_eq!(got, want);
        }
    }
}
