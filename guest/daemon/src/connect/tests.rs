//! Connections to real listeners of this process, through a mux without a link.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use space_protocol::frame::{self, Greeting, HEADER, Header, Kind, TRAILER, VERSION};
use space_protocol::{Decoder, Item, Pipe, Role};

use super::*;

const NOW: Duration = Duration::from_secs(100);

/// A mux with stream 1 on the bulk pipe.
struct Link {
    mux: Mux,
    decoder: Decoder,
    seq: u32,
    epoll: Epoll,
}

impl Link {
    fn open() -> Self {
        let mut link = Self { mux: Mux::new(), decoder: Decoder::new(Pipe::Bulk, Role::Acceptor), seq: 2, epoll: Epoll::new().unwrap() };
        for pipe in Pipe::ALL {
            let greeting = Greeting { nonce: [1; 16], generation: 1, version: VERSION, pipe: pipe.index() as u8 };
            let mut decoder = Decoder::new(pipe, Role::Acceptor);
            let decoder = if pipe == Pipe::Bulk { &mut link.decoder } else { &mut decoder };
            let mut bytes = vec![];
            frame::append(&mut bytes, Kind::Hello, 0, 0, 1, &greeting.payload(Kind::Hello));
            decoder.room()[..bytes.len()].copy_from_slice(&bytes);
            decoder.filled(bytes.len());
            link.mux.take(pipe, &decoder.next_item().unwrap());
        }
        link.feed(Kind::Open, b"\x07connect\x80");
        link.heard();
        link
    }

    fn feed(&mut self, kind: Kind, payload: &[u8]) {
        let mut bytes = vec![];
        frame::append(&mut bytes, kind, 0, 1, self.seq, payload);
        self.seq += 1;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let room = self.decoder.room();
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            self.decoder.filled(count);
            rest = &rest[count..];
            while let Some(item) = self.decoder.next_item() {
                assert!(!matches!(item, Item::Lost(_)));
                self.mux.take(Pipe::Bulk, &item);
            }
        }
    }

    /// Kinds and payloads of the frames that are to be written on the bulk pipe.
    fn heard(&mut self) -> Vec<(Kind, Vec<u8>)> {
        let bytes = self.mux.pending(Pipe::Bulk).to_vec();
        self.mux.written(Pipe::Bulk, bytes.len());
        let (mut at, mut found) = (0, vec![]);
        while at < bytes.len() {
            let head: [u8; HEADER] = bytes[at..at + HEADER].try_into().unwrap();
            let length = frame::u32_at(&head, 0) as usize;
            let kind = Kind::ALL.iter().find(|(kind, _)| *kind as u8 == head[4]).unwrap().0;
            assert_eq!(Header { length, kind, flags: 0, stream: frame::u32_at(&head, 8), seq: frame::u32_at(&head, 12) }.bytes(), head);
            found.push((kind, bytes[at + HEADER..at + HEADER + length].to_vec()));
            at += HEADER + length + TRAILER;
        }
        found
    }

    /// Pump until something is heard, or it is over.
    fn turn(&mut self, connection: &mut Connection) -> Option<Result<(), Failure>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        for _ in 0..500 {
            if self.epoll.wait(Some(Duration::from_millis(10)), &mut events) > 0 {
                connection.mark();
            }
            let over = connection.pump(&mut self.mux, &self.epoll, 8, NOW);
            if over.is_some() || !self.mux.pending(Pipe::Bulk).is_empty() {
                return over;
            }
        }
        panic!("nothing happens");
    }
}

fn connect(link: &mut Link, port: u16) -> Connection {
    let mut connection = Connection::open(1, &Connect { port }, NOW).unwrap();
    connection.watch(&link.epoll, 8).unwrap();
    assert_eq!(link.turn(&mut connection), None);
    let first = link.heard().remove(0);
    assert_eq!((first.0, Message::decode(&first.1)), (Kind::Msg, Ok(Message::Connected(Empty {}))));
    connection
}

fn both(address: &str) -> (Link, Connection, TcpStream) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let mut link = Link::open();
    let connection = connect(&mut link, listener.local_addr().unwrap().port());
    (link, connection, listener.accept().unwrap().0)
}

#[test]
fn either_direction_ends_by_itself_over_both_families() {
    for address in ["127.0.0.1", "::1"] {
        let (mut link, mut connection, mut peer) = both(address);
        connection.feed(&mut link.mux, b"to the other side");
        connection.end_input();
        assert!(connection.pump(&mut link.mux, &link.epoll, 8, NOW).is_none());
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "to the other side");
        peer.write_all(b"and back").unwrap();
        assert!(link.turn(&mut connection).is_none());
        drop(peer);
        let mut heard = link.heard();
        while !heard.iter().any(|(kind, _)| *kind == Kind::Close) {
            let over = link.turn(&mut connection);
            heard.extend(link.heard());
            assert_eq!(over.is_some(), heard.iter().any(|(kind, _)| *kind == Kind::Close));
        }
        assert_eq!(heard, [(Kind::Data, b"and back".to_vec()), (Kind::Close, vec![])]);
    }
}

#[test]
fn the_other_sides_end_leaves_ours_open() {
    let (mut link, mut connection, mut peer) = both("127.0.0.1");
    peer.shutdown(Shutdown::Write).unwrap();
    assert!(link.turn(&mut connection).is_none());
    assert_eq!(link.heard(), [(Kind::Close, vec![])]);
    connection.feed(&mut link.mux, &vec![7; 100_000]);
    connection.end_input();
    assert_eq!(connection.pump(&mut link.mux, &link.epoll, 8, NOW), Some(Ok(())));
    let mut bytes = vec![];
    peer.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, vec![7; 100_000]);
}

#[test]
fn a_reset_of_the_other_side_is_told_and_so_is_ours() {
    let (mut link, mut connection, peer) = both("127.0.0.1");
    let peer = OwnedFd::from(peer);
    abort(&peer);
    drop(peer);
    let failure = link.turn(&mut connection).unwrap().unwrap_err();
    assert_eq!(failure.code, "guest_error", "{failure}");
    let (_, connection, mut peer) = both("127.0.0.1");
    connection.cut();
    assert_eq!(peer.read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn where_nothing_listens_is_told() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut link = Link::open();
    let refused = Connection::open(1, &Connect { port }, NOW).and_then(|mut connection| {
        connection.watch(&link.epoll, 8).unwrap();
        link.turn(&mut connection).unwrap()
    });
    let failure = refused.unwrap_err();
    assert_eq!(failure.code, "not_found", "{failure}");
    assert!(failure.message.contains(&port.to_string()));
    assert_eq!(Connection::open(1, &Connect { port: 0 }, NOW).err().unwrap().code, "invalid_argument");
}

#[test]
fn nobody_is_waited_for_without_end() {
    let (mut link, mut connection, peer) = both("127.0.0.1");
    // It neither takes nor sends: what fits nowhere waits, and after the stream's end for a time only.
    while connection.waiting.len() < 8 << 20 {
        connection.feed(&mut link.mux, &vec![0; 1 << 20]);
        connection.mark();
        assert!(connection.pump(&mut link.mux, &link.epoll, 8, NOW).is_none());
    }
    connection.end_input();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(link.turn(&mut connection), None);
    let mut at = NOW;
    assert!(connection.pump(&mut link.mux, &link.epoll, 8, at).is_none());
    let deadline = connection.deadline().unwrap();
    at += PATIENCE * 2;
    assert!(deadline <= at);
    assert_eq!(connection.pump(&mut link.mux, &link.epoll, 8, at), Some(Ok(())));
    let mut late = Connection { connecting: Some(Family::V4), deadline: Some(NOW), writable: false, ..connection };
    assert_eq!(late.pump(&mut link.mux, &link.epoll, 8, NOW).unwrap().unwrap_err().code, "deadline_exceeded");
}
