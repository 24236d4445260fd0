//! Dialogues between a mux and an opener: frames in, events and frames out.

use space_protocol::files::{Change, Changes};
use space_protocol::frame::{self, GREETING, Greeting, MAX_STREAMS, VERSION};
use space_protocol::messages::{Empty, decode, encode};
use space_protocol::{Bytes, Decoder, Event, Failure, Item, Kind, Message, Mux, Pipe, Role};

const NONCE: [u8; 16] = [7; 16];
const DONE: Message = Message::Done(Empty {});

/// A mux with its decoders, and the opener's frames toward it.
struct Link {
    mux: Mux,
    decoders: [Decoder; 2],
    seq: [u32; 2],
    peer: [Decoder; 2],
}

impl Link {
    fn new() -> Self {
        let decoders = Pipe::ALL.map(|pipe| Decoder::new(pipe, Role::Acceptor));
        let peer = Pipe::ALL.map(|pipe| Decoder::new(pipe, Role::Opener(NONCE)));
        Self { mux: Mux::new(), decoders, seq: [2; 2], peer }
    }

    fn open() -> Self {
        let mut link = Self::new();
        assert!(link.hello(Pipe::Control, NONCE)[0].starts_with("begin"));
        assert_eq!(link.hello(Pipe::Bulk, NONCE), [""; 0]);
        assert_eq!(link.heard(Pipe::Control), ["ack"]);
        assert_eq!(link.heard(Pipe::Bulk), ["ack"]);
        link
    }

    /// Feed bytes; the events in short.
    fn feed(&mut self, pipe: Pipe, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for chunk in bytes.chunks(4096) {
            let decoder = &mut self.decoders[pipe.index()];
            decoder.room()[..chunk.len()].copy_from_slice(chunk);
            decoder.filled(chunk.len());
            while let Some(item) = decoder.next_item() {
                events.extend(self.mux.take(pipe, &item).map(|event| describe(&event)));
            }
        }
        events
    }

    fn hello(&mut self, pipe: Pipe, nonce: [u8; 16]) -> Vec<String> {
        self.greet(pipe, Greeting { nonce, generation: 1, version: VERSION, pipe: pipe.index() as u8 })
    }

    fn greet(&mut self, pipe: Pipe, greeting: Greeting) -> Vec<String> {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, Kind::Hello, 0, 0, 1, &greeting.payload(Kind::Hello));
        self.seq[pipe.index()] = 2;
        self.feed(pipe, &bytes)
    }

    fn send(&mut self, pipe: Pipe, kind: Kind, stream: u32, payload: &[u8]) -> Vec<String> {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, kind, 0, stream, self.seq[pipe.index()], payload);
        self.seq[pipe.index()] += 1;
        self.feed(pipe, &bytes)
    }

    fn noop(&mut self, pipe: Pipe, stream: u32) -> Vec<String> {
        self.send(pipe, Kind::Open, stream, b"\x04noop\x80")
    }

    /// Take what the mux wants written, as the opener reads it.
    fn heard(&mut self, pipe: Pipe) -> Vec<String> {
        let bytes = self.mux.pending(pipe).to_vec();
        self.mux.written(pipe, bytes.len());
        let mut frames = Vec::new();
        for chunk in bytes.chunks(4096) {
            let decoder = &mut self.peer[pipe.index()];
            decoder.room()[..chunk.len()].copy_from_slice(chunk);
            decoder.filled(chunk.len());
            while let Some(item) = decoder.next_item() {
                frames.push(match item {
                    Item::Greeting(_) => "ack".to_owned(),
                    Item::Lost(why) => panic!("the opener is told nonsense: {}", why.word()),
                    Item::Frame(header, payload) => match header.kind {
                        Kind::Data => format!("{} data {}:{}", header.stream, header.flags, payload.len()),
                        Kind::Reset => format!("{} reset {}", header.stream, decode::<Failure>(payload).unwrap().code),
                        Kind::Credit => format!("{} credit {}", header.stream, frame::u32_at(payload, 0)),
                        Kind::Msg => format!("{} msg {:?}", header.stream, Message::decode(payload).unwrap()),
                        other => format!("{} {other:?}", header.stream),
                    },
                });
            }
        }
        frames
    }
}

fn describe(event: &Event<'_>) -> String {
    match event {
        Event::Begin(greeting) => format!("begin {}", greeting.generation),
        Event::End => "end".to_owned(),
        Event::Open { stream, verb, request, .. } => format!("{stream} open {verb} {}", request.len()),
        Event::Data(stream, bytes) => format!("{stream} data {}", bytes.len()),
        Event::Message(stream, bytes) => format!("{stream} message {}", bytes.len()),
        Event::Credit(stream) => format!("{stream} credit"),
        Event::Close(stream) => format!("{stream} close"),
        Event::Reset(stream) => format!("{stream} reset"),
    }
}

#[test]
fn a_request_is_answered_and_its_stream_ends() {
    let mut link = Link::open();
    assert_eq!(link.noop(Pipe::Control, 1), ["1 open noop 1"]);
    link.mux.send(1, &DONE);
    link.mux.close(1);
    assert_eq!(link.heard(Pipe::Control), ["1 msg Done(Empty)", "1 Close"]);
    assert_eq!(link.mux.open_streams(), 1);
    assert_eq!(link.send(Pipe::Control, Kind::Close, 1, b""), ["1 close"], "the host's end is told after ours too");
    assert_eq!(link.mux.open_streams(), 0);
    assert_eq!(link.send(Pipe::Control, Kind::Data, 1, b"late"), [""; 0], "frames for ended streams are ignored");
    assert_eq!(link.heard(Pipe::Control), [""; 0]);
}

#[test]
fn a_ping_comes_back_and_a_repeated_hello_is_acknowledged_again() {
    let mut link = Link::open();
    link.send(Pipe::Control, Kind::Ping, 0, b"12345678");
    assert_eq!(link.heard(Pipe::Control), ["0 Pong"]);
    link.noop(Pipe::Control, 1);
    assert_eq!(link.hello(Pipe::Control, NONCE), [""; 0]);
    link.mux.close(1);
    assert_eq!(link.heard(Pipe::Control), ["ack", "1 Close"], "the late answer leaves the sequence as it is");
}

#[test]
fn frames_before_both_pipes_have_joined_are_dropped() {
    let mut link = Link::new();
    link.hello(Pipe::Control, NONCE);
    assert_eq!(link.noop(Pipe::Control, 1), [""; 0]);
    assert!(link.mux.session().is_none());
}

#[test]
fn a_new_nonce_ends_the_session_on_both_pipes() {
    let mut link = Link::open();
    link.noop(Pipe::Control, 1);
    assert_eq!(link.hello(Pipe::Bulk, [9; 16]), ["begin 1"]);
    assert_eq!(link.mux.open_streams(), 0);
    assert_eq!(link.send(Pipe::Control, Kind::Open, 2, b"\x04noop\x80"), [""; 0], "this pipe has not joined the new one");
    assert_eq!(link.hello(Pipe::Control, [9; 16]), [""; 0]);
    assert_eq!(link.noop(Pipe::Control, 1), ["1 open noop 1"]);
}

#[test]
fn a_hang_up_or_nonsense_ends_the_session_once() {
    let mut link = Link::open();
    link.noop(Pipe::Control, 1);
    assert_eq!(link.feed(Pipe::Bulk, &[0; 20]), ["end"]);
    assert_eq!(link.mux.open_streams(), 0);
    assert_eq!(link.mux.hang_up(Pipe::Control), None, "it is over already");
    assert_eq!(link.hello(Pipe::Control, [1; 16]), ["begin 1"]);
    assert_eq!(link.mux.hang_up(Pipe::Bulk), None, "the other pipe's old end does not touch the new session");
    assert_eq!(link.hello(Pipe::Bulk, [1; 16]), [""; 0]);
    assert_eq!(link.mux.hang_up(Pipe::Bulk), Some(Event::End));
}

#[test]
fn another_version_is_told_ours_and_begins_nothing() {
    let mut link = Link::new();
    let greeting = Greeting { nonce: NONCE, generation: 1, version: 2, pipe: 0 };
    assert_eq!(link.greet(Pipe::Control, greeting), [""; 0]);
    let said = link.mux.pending(Pipe::Control);
    let answer = Greeting::parse(&said[frame::HEADER..frame::HEADER + GREETING], Kind::HelloAck, Pipe::Control).unwrap();
    assert_eq!((answer.version, answer.nonce), (VERSION, NONCE));
    assert!(link.mux.session().is_none());
}

#[test]
fn nothing_is_sent_beyond_the_credit() {
    let mut link = Link::open();
    link.noop(Pipe::Control, 1);
    let mut sent = 0;
    loop {
        let room = link.mux.data_slot(1).len();
        if room == 0 {
            break;
        }
        link.mux.data_commit(1, 1, room);
        sent += room;
        assert_eq!(link.heard(Pipe::Control), [format!("1 data 1:{room}")]);
    }
    assert_eq!(sent, Pipe::Control.window() as usize);
    link.mux.send(1, &DONE);
    link.mux.close(1);
    assert_eq!(link.heard(Pipe::Control), [""; 0], "messages wait for credit too, and CLOSE behind them");
    link.send(Pipe::Control, Kind::Credit, 1, &3_u32.to_le_bytes());
    assert_eq!(link.heard(Pipe::Control), [""; 0]);
    link.send(Pipe::Control, Kind::Credit, 1, &100_u32.to_le_bytes());
    assert_eq!(link.heard(Pipe::Control), ["1 msg Done(Empty)", "1 Close"]);
}

#[test]
fn messages_of_the_host_come_in_order_with_its_data() {
    let mut link = Link::open();
    link.noop(Pipe::Control, 1);
    assert_eq!(link.send(Pipe::Control, Kind::Data, 1, b"abc"), ["1 data 3"]);
    assert_eq!(link.send(Pipe::Control, Kind::Msg, 1, b"\x80"), ["1 message 1"]);
    assert_eq!(link.send(Pipe::Control, Kind::Close, 1, b""), ["1 close"]);
}

#[test]
fn a_stream_that_was_closed_in_one_direction_still_takes_what_comes() {
    let mut link = Link::open();
    link.noop(Pipe::Bulk, 1);
    link.mux.half_close(1);
    link.mux.half_close(1);
    assert_eq!(link.heard(Pipe::Bulk), ["1 Close"]);
    assert_eq!(link.send(Pipe::Bulk, Kind::Data, 1, b"abc"), ["1 data 3"]);
    assert_eq!(link.send(Pipe::Bulk, Kind::Close, 1, b""), ["1 close"]);
    assert_eq!(link.mux.open_streams(), 0);
}

#[test]
fn messages_that_wait_for_credit_are_told() {
    let mut link = Link::open();
    link.noop(Pipe::Control, 1);
    let change = Change { kind: "created".into(), path: Bytes(vec![b'x'; 60_000]), from: None, directory: false };
    let long = Message::Changes(Changes { changes: vec![change] });
    for _ in 0..4 {
        assert!(link.mux.takes_messages(1));
        link.mux.send_encoded(1, long.encode());
        link.heard(Pipe::Control);
    }
    assert!(link.mux.takes_messages(1));
    link.mux.send_encoded(1, long.encode());
    assert!(!link.mux.takes_messages(1), "its credit is used up");
    assert_eq!(link.send(Pipe::Control, Kind::Credit, 1, &100_000_u32.to_le_bytes()), ["1 credit"]);
    assert!(link.mux.takes_messages(1));
    assert!(link.mux.takes_messages(9), "nobody waits for a stream that has ended");
}

#[test]
fn what_the_peer_has_not_credited_is_told() {
    let mut link = Link::open();
    link.noop(Pipe::Control, 1);
    assert_eq!(link.mux.outstanding(1), 0);
    link.mux.send(1, &DONE);
    let message = DONE.encode().len();
    assert_eq!(link.mux.outstanding(1), message);
    link.mux.data_slot(1);
    link.mux.data_commit(1, 0, 1000);
    assert_eq!(link.mux.outstanding(1), message + 1000);
    assert_eq!(link.send(Pipe::Control, Kind::Credit, 1, &900_u32.to_le_bytes()), ["1 credit"]);
    assert_eq!(link.mux.outstanding(1), message + 100);
    assert_eq!(link.mux.outstanding(2), 0, "a stream that is not there");
}

#[test]
fn data_waits_while_the_pipe_is_full_and_other_frames_do_not() {
    let mut link = Link::open();
    for stream in 1..=8 {
        link.noop(Pipe::Control, stream);
        while let count @ 1.. = link.mux.data_slot(stream).len() {
            link.mux.data_commit(stream, 0, count);
        }
    }
    let waiting = link.mux.pending(Pipe::Control).len();
    assert!(waiting < 4 * Pipe::Control.max_payload(), "{waiting}");
    link.send(Pipe::Control, Kind::Ping, 0, b"12345678");
    assert!(link.mux.pending(Pipe::Control).len() > waiting);
}

#[test]
fn credit_returns_in_quarters_of_the_window() {
    let mut link = Link::open();
    link.noop(Pipe::Bulk, 1);
    let quarter = Pipe::Bulk.window() as usize / 4;
    for _ in 0..40 {
        assert_eq!(link.send(Pipe::Bulk, Kind::Data, 1, &vec![0; 200_000]), ["1 data 200000"]);
        link.mux.consumed(1, 200_000);
        for heard in link.heard(Pipe::Control) {
            assert!(heard.strip_prefix("1 credit ").unwrap().parse::<usize>().unwrap() >= quarter);
        }
    }
    link.mux.close(1);
    assert_eq!(link.send(Pipe::Bulk, Kind::Data, 1, &vec![0; 200_000]), [""; 0], "what comes after our CLOSE is discarded");
    link.send(Pipe::Bulk, Kind::Data, 1, &vec![0; 200_000]);
    link.send(Pipe::Bulk, Kind::Data, 1, &vec![0; 200_000]);
    assert_eq!(link.heard(Pipe::Control).len(), 1, "and returned as credit, so that the sender gets through");
}

#[test]
fn a_stream_whose_rules_are_broken_dies_alone() {
    let mut link = Link::open();
    let broken = |link: &mut Link, stream: u32, events: Vec<String>| {
        assert_eq!(events, [format!("{stream} reset")]);
        assert_eq!(link.heard(Pipe::Control), [format!("{stream} reset protocol_error")]);
    };
    link.noop(Pipe::Control, 1);
    for _ in 0..4 {
        link.send(Pipe::Control, Kind::Data, 1, &vec![0; 65_536]);
    }
    let events = link.send(Pipe::Control, Kind::Data, 1, b"x");
    broken(&mut link, 1, events);
    link.noop(Pipe::Control, 2);
    let events = link.send(Pipe::Control, Kind::Credit, 2, &1_u32.to_le_bytes());
    broken(&mut link, 2, events);
    link.noop(Pipe::Control, 3);
    for _ in 0..4 {
        link.send(Pipe::Control, Kind::Msg, 3, &vec![0; 65_536]);
    }
    let events = link.send(Pipe::Control, Kind::Msg, 3, b"\x80");
    broken(&mut link, 3, events);
    link.noop(Pipe::Bulk, 4);
    let events = link.send(Pipe::Control, Kind::Data, 4, b"x");
    broken(&mut link, 4, events);
    link.noop(Pipe::Control, 5);
    assert_eq!(link.send(Pipe::Control, Kind::Close, 5, b""), ["5 close"]);
    let events = link.send(Pipe::Control, Kind::Close, 5, b"");
    broken(&mut link, 5, events);
    link.noop(Pipe::Control, 6);
    let events = link.noop(Pipe::Control, 6);
    broken(&mut link, 6, events);
    link.send(Pipe::Control, Kind::Data, 99, b"x");
    assert_eq!(link.heard(Pipe::Control), ["99 reset protocol_error"], "never opened");
    assert_eq!(link.noop(Pipe::Control, 7), ["7 open noop 1"]);
}

#[test]
fn a_reset_that_overtakes_its_open_is_remembered() {
    let mut link = Link::open();
    assert_eq!(link.send(Pipe::Control, Kind::Reset, 1, &encode(&Failure::new("gone", "never mind"))), [""; 0]);
    assert_eq!(link.noop(Pipe::Bulk, 1), [""; 0]);
    assert_eq!(link.mux.open_streams(), 0);
    assert_eq!(link.noop(Pipe::Bulk, 2), ["2 open noop 1"]);
    assert_eq!(link.send(Pipe::Control, Kind::Reset, 2, b"\x80"), ["2 reset"]);
}

#[test]
fn a_reset_overtakes_its_open_also_below_numbers_of_the_other_pipe() {
    let mut link = Link::open();
    let reset = |link: &mut Link, stream| link.send(Pipe::Control, Kind::Reset, stream, &encode(&Failure::new("gone", "never mind")));
    let most = MAX_STREAMS as u32;
    assert_eq!(link.noop(Pipe::Control, most + 2).len(), 1);
    for stream in 1..=most + 1 {
        assert_eq!(reset(&mut link, stream), [""; 0]);
    }
    assert_eq!(link.noop(Pipe::Bulk, 1), ["1 open noop 1"], "the oldest was forgotten");
    assert_eq!(link.noop(Pipe::Bulk, 2), [""; 0]);
    assert_eq!(link.noop(Pipe::Bulk, most + 1), [""; 0]);
    assert_eq!(link.heard(Pipe::Control), [""; 0]);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut link = Link::open();
    let most = MAX_STREAMS as u32;
    for stream in 1..=most {
        assert_eq!(link.noop(Pipe::Control, stream).len(), 1);
    }
    assert_eq!(link.noop(Pipe::Control, most + 1), [""; 0]);
    assert_eq!(link.heard(Pipe::Control), [format!("{} reset no_capacity", most + 1)]);
    link.mux.reset(1, &Failure::guest("x"));
    assert_eq!(link.noop(Pipe::Control, most + 2).len(), 1);
}

#[test]
fn an_open_without_a_verb_is_refused() {
    let mut link = Link::open();
    for (stream, payload) in (1..).zip([&b"\0"[..], b"\x05noop", b"\x01\xff\x80"]) {
        assert_eq!(link.send(Pipe::Control, Kind::Open, stream, payload), [""; 0]);
        assert_eq!(link.heard(Pipe::Control), [format!("{stream} reset protocol_error")]);
    }
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    let mut link = Link::open();
    while !link.mux.is_congested() {
        link.send(Pipe::Control, Kind::Ping, 0, b"12345678");
        assert!(link.mux.pending(Pipe::Control).len() < 2 << 20);
    }
    link.heard(Pipe::Control);
    assert!(!link.mux.is_congested());
}
