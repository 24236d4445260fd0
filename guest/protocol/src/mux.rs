//! One session over two pipes, as the acceptor sees it: streams, credit, and the bytes that wait to be written.
//!
//! The caller feeds [`Mux::take`] with the decoders' items and acts on the events; it writes [`Mux::pending`] and says so with
//! [`Mux::written`]. Rules that need no caller (PING, repeated HELLO, credit, streams that have ended) are kept in here.
//! A peer that breaks a rule of one stream loses that stream; one that breaks the framing loses the session.

use std::collections::{BTreeMap, VecDeque};

use crate::decoder::Item;
use crate::frame::{Greeting, HEADER, Header, Kind, MAX_STREAMS, Pipe, TRAILER, VERSION, append, seq_after, u32_at};
use crate::messages::{Failure, Message, encode, split_open};

/// No more DATA is queued on a pipe when this much waits to be written.
const ENOUGH: [usize; 2] = [128 << 10, 512 << 10];
/// Nothing more is read from a peer that leaves this much unread.
const CONGESTED: usize = 1 << 20;

/// What the caller must act on.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A new session begins; whatever belonged to an earlier one must end.
    Begin(Greeting),
    /// The session is over.
    End,
    /// The opener wants this of us.
    Open {
        /// The new stream.
        stream: u32,
        /// Where it lives.
        pipe: Pipe,
        /// What to do.
        verb: &'a str,
        /// With these arguments.
        request: &'a [u8],
    },
    /// Bytes for a stream; say [`Mux::consumed`] when they have gone on.
    Data(u32, &'a [u8]),
    /// A message for a stream, in order with its bytes; say [`Mux::consumed`] when it has been acted on.
    Message(u32, &'a [u8]),
    /// The peer has returned credit for what was sent on a stream.
    Credit(u32),
    /// Nothing more will come for a stream. One that was closed by us too has ended.
    Close(u32),
    /// The stream is dead; nothing can be sent on it.
    Reset(u32),
}

#[derive(Default)]
struct Outbox {
    buf: Vec<u8>,
    start: usize,
    end: usize,
    seq: u32,
}

impl Outbox {
    const fn waiting(&self) -> usize {
        self.end - self.start
    }

    /// Make place for `count` bytes behind `end`.
    fn ensure(&mut self, count: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buf.len() < self.end + count {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.buf.len() < self.end + count {
                self.buf.resize((self.end + count).next_multiple_of(16 << 10), 0);
            }
        }
    }

    fn push_with(&mut self, kind: Kind, flags: u8, stream: u32, seq: u32, payload: &[u8]) {
        let mut frame = Vec::with_capacity(HEADER + payload.len() + TRAILER);
        append(&mut frame, kind, flags, stream, seq, payload);
        self.ensure(frame.len());
        self.buf[self.end..self.end + frame.len()].copy_from_slice(&frame);
        self.end += frame.len();
    }

    fn push(&mut self, kind: Kind, stream: u32, payload: &[u8]) {
        let seq = self.seq;
        self.seq = seq_after(seq);
        self.push_with(kind, 0, stream, seq, payload);
    }

    fn restart(&mut self) {
        (self.start, self.end, self.seq) = (0, 0, 2);
    }
}

enum Tail {
    Msg(Vec<u8>),
    Close,
}

struct Stream {
    pipe: Pipe,
    credit: u32,
    window: u32,
    owed: u32,
    tail: VecDeque<Tail>,
    finished: bool,
    sent_close: bool,
    got_close: bool,
}

impl Stream {
    /// A CLOSE behind all that waits, once.
    fn end(&mut self) {
        if !self.sent_close && !matches!(self.tail.back(), Some(Tail::Close)) {
            self.tail.push_back(Tail::Close);
        }
    }
}

/// The acceptor's side of a session.
#[derive(Default)]
pub struct Mux {
    session: Option<Greeting>,
    joined: [bool; 2],
    out: [Outbox; 2],
    streams: BTreeMap<u32, Stream>,
    last: [u32; 2],
    /// Numbers RESET before their OPEN came, oldest first.
    reset_early: VecDeque<u32>,
}

impl Mux {
    /// A mux without a session.
    pub fn new() -> Self {
        Self::default()
    }

    /// The greeting of the session that both pipes have joined.
    pub fn session(&self) -> Option<&Greeting> {
        self.session.as_ref().filter(|_| self.joined == [true; 2])
    }

    /// Streams that have not ended.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Act on what a pipe's decoder found.
    pub fn take<'a>(&mut self, pipe: Pipe, item: &Item<'a>) -> Option<Event<'a>> {
        match *item {
            Item::Greeting(greeting) => self.greet(pipe, greeting),
            Item::Lost(_) => self.hang_up(pipe),
            Item::Frame(header, payload) if self.joined == [true; 2] => self.frame(pipe, header, payload),
            Item::Frame(..) => None,
        }
    }

    /// A pipe's peer went away, or sent nonsense.
    pub fn hang_up(&mut self, pipe: Pipe) -> Option<Event<'static>> {
        if !self.joined[pipe.index()] {
            return None;
        }
        self.forget(None);
        Some(Event::End)
    }

    /// What is to be written to a pipe.
    pub fn pending(&self, pipe: Pipe) -> &[u8] {
        let out = &self.out[pipe.index()];
        &out.buf[out.start..out.end]
    }

    /// `count` bytes of [`Mux::pending`] were written.
    pub fn written(&mut self, pipe: Pipe, count: usize) {
        let out = &mut self.out[pipe.index()];
        out.start = (out.start + count).min(out.end);
    }

    /// Whether a pipe's queue is so long that streams wait for it.
    pub fn is_full(&self) -> bool {
        self.out.iter().zip(ENOUGH).any(|(out, enough)| out.waiting() >= enough)
    }

    /// Whether the peer leaves so much unread that nothing more should be read from it.
    pub fn is_congested(&self) -> bool {
        self.out.iter().any(|out| out.waiting() > CONGESTED)
    }

    /// Let go of buffers that hold nothing.
    pub fn shrink(&mut self) {
        for out in &mut self.out {
            if out.waiting() == 0 {
                (out.start, out.end, out.buf) = (0, 0, Vec::new());
            }
        }
    }

    /// Payload bytes that were sent on a stream and that the peer has not returned credit for; messages count.
    pub fn outstanding(&self, stream: u32) -> usize {
        self.streams.get(&stream).map_or(0, |found| (found.pipe.window() - found.credit) as usize)
    }

    /// Whether the peer's credit lets something be sent on a stream, be there room on its pipe or not.
    pub fn has_credit(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|found| found.credit > 0 && !found.finished)
    }

    /// Payload bytes that a DATA frame of the stream may have now.
    pub fn data_room(&self, stream: u32) -> usize {
        let Some(found) = self.streams.get(&stream) else { return 0 };
        let pipe = found.pipe;
        if found.finished || self.out[pipe.index()].waiting() >= ENOUGH[pipe.index()] {
            return 0;
        }
        pipe.max_payload().min(found.credit as usize)
    }

    /// Where to put the payload of the stream's next DATA frame; empty when nothing may be sent now.
    pub fn data_slot(&mut self, stream: u32) -> &mut [u8] {
        let room = self.data_room(stream);
        let Some(found) = self.streams.get(&stream).filter(|_| room > 0) else { return &mut [] };
        let out = &mut self.out[found.pipe.index()];
        out.ensure(HEADER + room + TRAILER);
        &mut out.buf[out.end + HEADER..out.end + HEADER + room]
    }

    /// The first `count` bytes of [`Mux::data_slot`] are a DATA frame; nothing else may have been queued between the two.
    pub fn data_commit(&mut self, stream: u32, lane: u8, count: usize) {
        let Some(found) = self.streams.get_mut(&stream).filter(|_| count > 0) else { return };
        let out = &mut self.out[found.pipe.index()];
        let seq = out.seq;
        out.seq = seq_after(seq);
        let header = Header { length: count, kind: Kind::Data, flags: lane, stream, seq };
        out.buf[out.end..out.end + HEADER].copy_from_slice(&header.bytes());
        let end = out.end + HEADER + count;
        out.buf[end..end + TRAILER].copy_from_slice(&seq.to_le_bytes());
        out.end = end + TRAILER;
        found.credit -= count as u32;
    }

    /// Send a message, when there is credit for it.
    pub fn send(&mut self, stream: u32, message: &Message) {
        if let Some(found) = self.streams.get_mut(&stream).filter(|found| !found.finished) {
            found.tail.push_back(Tail::Msg(message.encode()));
            self.flush_tail(stream);
        }
    }

    /// Send a message that is encoded already, when there is credit for it.
    pub fn send_encoded(&mut self, stream: u32, message: Vec<u8>) {
        if let Some(found) = self.streams.get_mut(&stream).filter(|found| !found.finished && !message.is_empty()) {
            found.tail.push_back(Tail::Msg(message));
            self.flush_tail(stream);
        }
    }

    /// Whether the messages of a stream have gone out, so that another would not pile up. A stream that has ended takes any, and drops them.
    pub fn takes_messages(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_none_or(|found| {
            let pipe = found.pipe.index();
            found.tail.is_empty() && self.out[pipe].waiting() < ENOUGH[pipe]
        })
    }

    /// Send nothing more on a stream; what still comes on it is wanted.
    pub fn half_close(&mut self, stream: u32) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.end();
            self.flush_tail(stream);
        }
    }

    /// Send nothing more on a stream; what still comes on it is discarded.
    pub fn close(&mut self, stream: u32) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.finished = true;
            found.end();
            self.flush_tail(stream);
        }
    }

    /// End a stream in both directions.
    pub fn reset(&mut self, stream: u32, failure: &Failure) {
        if self.streams.remove(&stream).is_some() {
            self.push_reset(stream, failure);
        }
    }

    /// `count` bytes of the stream's DATA and messages have gone on to their consumer.
    pub fn consumed(&mut self, stream: u32, count: usize) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        found.owed += count as u32;
        if found.got_close || found.owed < found.pipe.window() / 4 {
            return;
        }
        let owed = std::mem::take(&mut found.owed);
        found.window += owed;
        self.out[Pipe::Control.index()].push(Kind::Credit, stream, &owed.to_le_bytes());
    }

    fn greet(&mut self, pipe: Pipe, greeting: Greeting) -> Option<Event<'static>> {
        let at = pipe.index();
        let mut answer = greeting;
        let mut event = None;
        if greeting.version != VERSION {
            answer.version = VERSION;
        } else if self.session.is_none_or(|session| session.nonce != greeting.nonce) {
            self.forget(Some(greeting));
            self.joined[at] = true;
            event = Some(Event::Begin(greeting));
        } else if !self.joined[at] {
            self.joined[at] = true;
            self.out[at].restart();
        }
        self.out[at].push_with(Kind::HelloAck, 0, 0, 1, &answer.payload(Kind::HelloAck));
        event
    }

    fn forget(&mut self, next: Option<Greeting>) {
        self.session = next;
        self.joined = [false; 2];
        self.streams.clear();
        self.last = [0; 2];
        self.reset_early.clear();
        self.out.iter_mut().for_each(Outbox::restart);
    }

    fn frame<'a>(&mut self, pipe: Pipe, header: Header, payload: &'a [u8]) -> Option<Event<'a>> {
        let stream = header.stream;
        match header.kind {
            Kind::Ping => self.out[Pipe::Control.index()].push(Kind::Pong, 0, payload),
            Kind::Open => return self.open(pipe, stream, payload),
            Kind::Pong | Kind::Hello | Kind::HelloAck => {}
            Kind::Reset | Kind::Credit | Kind::Data | Kind::Close | Kind::Msg => {
                if self.streams.contains_key(&stream) {
                    return self.known(pipe, header, payload);
                }
                let [control, bulk] = self.last;
                if header.kind == Kind::Reset && stream > control.min(bulk) {
                    self.remember_reset(stream);
                } else if stream > control.max(bulk) {
                    self.push_reset(stream, &Failure::new("protocol_error", format!("stream {stream} was never opened")));
                }
            }
        }
        None
    }

    /// It may have overtaken its OPEN on the other pipe. Most are of streams that ended, remembered in vain: so the oldest goes.
    fn remember_reset(&mut self, stream: u32) {
        if self.reset_early.contains(&stream) {
            return;
        }
        if self.reset_early.len() >= MAX_STREAMS {
            self.reset_early.pop_front();
        }
        self.reset_early.push_back(stream);
    }

    fn open<'a>(&mut self, pipe: Pipe, stream: u32, payload: &'a [u8]) -> Option<Event<'a>> {
        if stream <= self.last[pipe.index()] || self.streams.contains_key(&stream) {
            return self.breach(stream, format!("stream number {stream} was used before"));
        }
        self.last[pipe.index()] = stream;
        let refuse = |mux: &mut Self, code: &str, why: &str| {
            mux.push_reset(stream, &Failure::new(code, why));
            None
        };
        if let Some(at) = self.reset_early.iter().position(|early| *early == stream) {
            self.reset_early.remove(at);
            return None;
        }
        if self.streams.len() >= MAX_STREAMS {
            return refuse(self, "no_capacity", &format!("{MAX_STREAMS} streams are open already"));
        }
        let Some((verb, request)) = split_open(payload) else {
            return refuse(self, "protocol_error", "an OPEN without a verb");
        };
        let fresh = Stream {
            pipe,
            credit: pipe.window(),
            window: pipe.window(),
            owed: 0,
            tail: VecDeque::new(),
            finished: false,
            sent_close: false,
            got_close: false,
        };
        self.streams.insert(stream, fresh);
        Some(Event::Open { stream, pipe, verb, request })
    }

    fn known<'a>(&mut self, pipe: Pipe, header: Header, payload: &'a [u8]) -> Option<Event<'a>> {
        let stream = header.stream;
        let found = self.streams.get_mut(&stream)?;
        match header.kind {
            Kind::Reset => {
                self.streams.remove(&stream);
                return Some(Event::Reset(stream));
            }
            Kind::Credit => {
                let more = u32_at(payload, 0);
                match found.credit.checked_add(more).filter(|sum| more > 0 && *sum <= found.pipe.window()) {
                    Some(credit) => found.credit = credit,
                    None => return self.breach(stream, format!("a credit of {more} bytes does not fit stream {stream}'s window")),
                }
                self.flush_tail(stream);
                return Some(Event::Credit(stream));
            }
            _ if pipe != found.pipe => return self.breach(stream, format!("stream {stream} lives on the other pipe")),
            _ if found.got_close => return self.breach(stream, format!("stream {stream} was closed before")),
            Kind::Close => {
                found.got_close = true;
                if found.sent_close {
                    self.streams.remove(&stream);
                    return Some(Event::Close(stream));
                } else if !found.finished {
                    return Some(Event::Close(stream));
                }
            }
            Kind::Data | Kind::Msg if header.flags == 0 => {
                let Some(window) = found.window.checked_sub(payload.len() as u32) else {
                    return self.breach(stream, format!("stream {stream} overran its window"));
                };
                found.window = window;
                if !found.finished {
                    let message = header.kind == Kind::Msg;
                    return Some(if message { Event::Message(stream, payload) } else { Event::Data(stream, payload) });
                }
                self.consumed(stream, payload.len());
            }
            _ => return self.breach(stream, format!("stream {stream} has no second lane in this direction")),
        }
        None
    }

    /// The peer broke a rule of one stream.
    fn breach(&mut self, stream: u32, why: String) -> Option<Event<'static>> {
        self.push_reset(stream, &Failure::new("protocol_error", why));
        self.streams.remove(&stream).map(|_| Event::Reset(stream))
    }

    fn push_reset(&mut self, stream: u32, failure: &Failure) {
        self.out[Pipe::Control.index()].push(Kind::Reset, stream, &encode(failure));
    }

    fn flush_tail(&mut self, stream: u32) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let out = &mut self.out[found.pipe.index()];
        while let Some(first) = found.tail.front() {
            match first {
                Tail::Msg(bytes) if bytes.len() as u32 > found.credit => return,
                Tail::Msg(bytes) => {
                    out.push(Kind::Msg, stream, bytes);
                    found.credit -= bytes.len() as u32;
                }
                Tail::Close => {
                    out.push(Kind::Close, stream, &[]);
                    found.sent_close = true;
                }
            }
            found.tail.pop_front();
        }
        if found.sent_close && found.got_close {
            self.streams.remove(&stream);
        }
    }
}
