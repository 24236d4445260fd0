//! The frames' layout: header, kinds, limits, greetings (HELLO and `HELLO_ACK`).

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of a trailer.
pub const TRAILER: usize = 4;
/// Payload bytes of a HELLO or `HELLO_ACK`.
pub const GREETING: usize = 48;
/// The protocol's version.
pub const VERSION: u16 = 1;
/// Streams that may be open at once in a session.
pub const MAX_STREAMS: usize = 1024;

const HELLO_MAGIC: [u8; 16] = *b"\x00SPACE-HELLO\x01\r\n\x00";
const ACK_MAGIC: [u8; 16] = *b"\x00SPACE-READY\x01\r\n\x00";

/// One of a session's two byte pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipe {
    /// Small frames that must not wait.
    Control,
    /// Trees and other bulk.
    Bulk,
}

impl Pipe {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Control, Self::Bulk];

    /// 0 for control, 1 for bulk.
    pub const fn index(self) -> usize {
        match self {
            Self::Control => 0,
            Self::Bulk => 1,
        }
    }

    /// The largest payload of a frame, in bytes.
    pub const fn max_payload(self) -> usize {
        match self {
            Self::Control => 65_536,
            Self::Bulk => 262_144,
        }
    }

    /// The credit that each direction of a stream begins with, in bytes.
    pub const fn window(self) -> u32 {
        match self {
            Self::Control => 262_144,
            Self::Bulk => 2_097_152,
        }
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The opener begins a session.
    Hello = 1,
    /// The acceptor's answer to it.
    HelloAck = 2,
    /// A new stream: verb and request.
    Open = 3,
    /// Bytes of a stream.
    Data = 4,
    /// The sender sends nothing more on a stream.
    Close = 5,
    /// The stream is dead in both directions.
    Reset = 6,
    /// More bytes that the receiver may send.
    Credit = 7,
    /// Are you there?
    Ping = 8,
    /// I am.
    Pong = 9,
    /// One typed message of a stream.
    Msg = 10,
}

impl Kind {
    /// Every kind, with its name in the golden vectors.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Hello, "HELLO"),
        (Self::HelloAck, "HELLO_ACK"),
        (Self::Open, "OPEN"),
        (Self::Data, "DATA"),
        (Self::Close, "CLOSE"),
        (Self::Reset, "RESET"),
        (Self::Credit, "CREDIT"),
        (Self::Ping, "PING"),
        (Self::Pong, "PONG"),
        (Self::Msg, "MSG"),
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().map(|(kind, _)| kind).find(|kind| *kind as u8 == byte)
    }

    const fn length_fits(self, length: usize) -> bool {
        match self {
            Self::Hello | Self::HelloAck => length == GREETING,
            Self::Close => length == 0,
            Self::Credit => length == 4,
            Self::Ping | Self::Pong => length == 8,
            Self::Open | Self::Data | Self::Reset | Self::Msg => length >= 1,
        }
    }

    const fn is_of_session(self) -> bool {
        matches!(self, Self::Hello | Self::HelloAck | Self::Ping | Self::Pong)
    }

    const fn is_control_only(self) -> bool {
        matches!(self, Self::Reset | Self::Credit | Self::Ping | Self::Pong)
    }
}

/// Why bytes are no frame. The words are those of the golden vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// An unknown type, or one that does not go in this direction.
    Type,
    /// A frame that belongs on the other pipe.
    Pipe,
    /// A flag that is not a lane, or on a frame that has none.
    Flags,
    /// A reserved field that is not zero.
    Reserved,
    /// A length over the pipe's limit, or impossible for the type.
    Length,
    /// Stream 0 where there must be one, or the reverse.
    Stream,
    /// Not the next sequence number.
    Seq,
    /// A trailer that does not repeat the sequence number.
    Trailer,
    /// A greeting without its magic.
    Magic,
    /// A `HELLO_ACK` for somebody else's HELLO.
    Nonce,
}

impl Reject {
    /// The golden vectors' word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Type => "type",
            Self::Pipe => "pipe",
            Self::Flags => "flags",
            Self::Reserved => "reserved",
            Self::Length => "length",
            Self::Stream => "stream",
            Self::Seq => "seq",
            Self::Trailer => "trailer",
            Self::Magic => "magic",
            Self::Nonce => "nonce",
        }
    }
}

/// The fields of a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Payload bytes.
    pub length: usize,
    /// What it is.
    pub kind: Kind,
    /// The lane of DATA.
    pub flags: u8,
    /// The stream's number, 0 for the session's own frames.
    pub stream: u32,
    /// The sequence number.
    pub seq: u32,
}

/// Four little-endian bytes.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Header {
    /// Judge a header on its own; whether `seq` is the right one is the decoder's matter.
    pub fn parse(bytes: &[u8; HEADER], pipe: Pipe, from_opener: bool) -> Result<Self, Reject> {
        let kind = Kind::from_byte(bytes[4]).ok_or(Reject::Type)?;
        let wrong_way = if from_opener { kind == Kind::HelloAck } else { matches!(kind, Kind::Hello | Kind::Open) };
        if wrong_way {
            return Err(Reject::Type);
        }
        if kind.is_control_only() && pipe == Pipe::Bulk {
            return Err(Reject::Pipe);
        }
        let flags = bytes[5];
        if flags > u8::from(kind == Kind::Data) {
            return Err(Reject::Flags);
        }
        if bytes[6] != 0 || bytes[7] != 0 {
            return Err(Reject::Reserved);
        }
        let length = u32_at(bytes, 0) as usize;
        if length > pipe.max_payload() || !kind.length_fits(length) {
            return Err(Reject::Length);
        }
        let stream = u32_at(bytes, 8);
        if (stream == 0) != kind.is_of_session() {
            return Err(Reject::Stream);
        }
        Ok(Self { length, kind, flags, stream, seq: u32_at(bytes, 12) })
    }

    /// The header's bytes.
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        out[4] = self.kind as u8;
        out[5] = self.flags;
        out[8..12].copy_from_slice(&self.stream.to_le_bytes());
        out[12..].copy_from_slice(&self.seq.to_le_bytes());
        out
    }
}

/// Append one frame.
pub fn append(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, seq: u32, payload: &[u8]) {
    out.extend_from_slice(&Header { length: payload.len(), kind, flags, stream, seq }.bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&seq.to_le_bytes());
}

/// The sequence number after `seq`: 0 is never one.
pub const fn seq_after(seq: u32) -> u32 {
    match seq.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// What a HELLO says, and its `HELLO_ACK` repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Names the session.
    pub nonce: [u8; 16],
    /// Which life of the sandbox.
    pub generation: u64,
    /// The sender's protocol version.
    pub version: u16,
    /// 0 control, 1 bulk.
    pub pipe: u8,
}

impl Greeting {
    /// The magic of a HELLO or a `HELLO_ACK`.
    pub const fn magic(kind: Kind) -> [u8; 16] {
        if matches!(kind, Kind::Hello) { HELLO_MAGIC } else { ACK_MAGIC }
    }

    /// Judge the payload of a HELLO or `HELLO_ACK`.
    pub fn parse(payload: &[u8], kind: Kind, pipe: Pipe) -> Result<Self, Reject> {
        let payload: &[u8; GREETING] = payload.try_into().map_err(|_| Reject::Length)?;
        if payload[..16] != Self::magic(kind) {
            return Err(Reject::Magic);
        }
        if payload[42] as usize != pipe.index() {
            return Err(Reject::Pipe);
        }
        if payload[43..].iter().any(|byte| *byte != 0) {
            return Err(Reject::Reserved);
        }
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&payload[16..32]);
        let mut generation = [0; 8];
        generation.copy_from_slice(&payload[32..40]);
        Ok(Self {
            nonce,
            generation: u64::from_le_bytes(generation),
            version: u16::from_le_bytes([payload[40], payload[41]]),
            pipe: payload[42],
        })
    }

    /// The payload.
    pub fn payload(&self, kind: Kind) -> [u8; GREETING] {
        let mut out = [0; GREETING];
        out[..16].copy_from_slice(&Self::magic(kind));
        out[16..32].copy_from_slice(&self.nonce);
        out[32..40].copy_from_slice(&self.generation.to_le_bytes());
        out[40..42].copy_from_slice(&self.version.to_le_bytes());
        out[42] = self.pipe;
        out
    }
}
