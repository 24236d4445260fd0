//! Requests and messages of the guest's verbs (`docs/protocol.md`, section 2), in `MessagePack`: maps with string keys.
//!
//! Unknown, missing and doubled fields are refused, and so are bytes after the value: an option that this version does not
//! know must not be passed over in silence. Derived by a macro of ours and not by serde's, because a derive is a dynamic library
//! for the compiler, which cannot be built with the static flags that the daemon needs.

use crate::entries::{Entries, EntryAnswer};
use crate::files::{Changes, Content, FileAnswer, Files, Listed};
use crate::pack::{Fault, Wire, read_key, read_map, record};

/// Bytes that need not be text: paths, arguments, variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// A name and a value of an environment.
pub type Variable = (Bytes, Bytes);

record! {
    /// A verb that takes no arguments.
    pub struct Empty {}
}

record! {
    /// What a fresh or restored guest must take before anything runs in it.
    pub struct Configure {
        /// Wall clock, nanoseconds since 1970.
        pub realtime_ns: u64,
        /// 32 to 512 bytes for the kernel's pool.
        pub entropy: Bytes,
        /// The host name.
        pub hostname: String,
        /// Variables of every process.
        pub env: Vec<Variable>,
        /// Which life of the sandbox.
        pub generation: u64,
    }
}

record! {
    /// The machine will be stopped and copied.
    pub struct PrepareSnapshot {
        /// Give up what can be read from the disk again.
        pub drop_caches: bool,
    }
}

record! {
    /// What a restored guest must take to be another machine than those of the same snapshot.
    pub struct Imprint {
        /// 32 to 512 bytes for the kernel's pool.
        pub entropy: Bytes,
        /// The host name.
        pub hostname: String,
        /// 32 hex digits for `/etc/machine-id`.
        pub machine_id: String,
        /// A UUID for this boot.
        pub boot_id: String,
    }
}

record! {
    /// What makes a restored guest a sandbox's own.
    pub struct Claim {
        /// Wall clock, nanoseconds since 1970.
        pub realtime_ns: u64,
        /// Which life of which sandbox.
        pub generation: u64,
        /// Variables of every process.
        pub env: Vec<Variable>,
        /// The text of `/etc/resolv.conf`; it stays as it is when absent.
        pub resolv: Option<Bytes>,
        /// The host name, where the imprint came before it was known; it stays as it is when absent.
        pub hostname: Option<String>,
    }
}

record! {
    /// The root disk is larger than it was in the snapshot: wait until the kernel has seen that, and fill it.
    pub struct Grow {
        /// How large.
        pub disk_bytes: u64,
    }
}

record! {
    /// Run a program.
    pub struct Exec {
        /// The program and its arguments.
        pub argv: Vec<Bytes>,
        /// Working directory; the user's home when absent.
        pub cwd: Option<Bytes>,
        /// Variables over the user's and configure's.
        pub env: Vec<Variable>,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// When to kill it, milliseconds from its start.
        pub timeout_ms: Option<u64>,
        /// Whether bytes for its standard input will come.
        pub stdin: bool,
        /// A terminal of that size for it.
        pub pty: Option<Window>,
        /// The name under which it outlives stream and session.
        pub keep: Option<String>,
    }
}

record! {
    /// The size of a terminal, and as a message of the host: it has that size now.
    pub struct Window {
        /// Lines.
        pub rows: u16,
        /// Columns.
        pub cols: u16,
    }
}

record! {
    /// Go on with a kept process.
    pub struct Attach {
        /// Its name.
        pub process: String,
        /// Bytes of standard output that the host holds.
        pub stdout: u64,
        /// Bytes of standard error that the host holds.
        pub stderr: u64,
    }
}

record! {
    /// A kept process.
    pub struct Process {
        /// Its name.
        pub process: String,
    }
}

record! {
    /// A kept process as `processes` tells it.
    pub struct Kept {
        /// Its name.
        pub process: String,
        /// Its process id in the guest.
        pub pid: u32,
        /// Whether it has ended.
        pub ended: bool,
    }
}

record! {
    /// Answer of `processes`.
    pub struct Processes {
        /// Oldest first.
        pub processes: Vec<Kept>,
    }
}

record! {
    /// The host signals a kept process.
    pub struct Signal {
        /// 1 to 64.
        pub signal: u8,
        /// To everything in its cgroup, and not only to its leader's group.
        pub all: bool,
    }
}

record! {
    /// A tree to unpack or to pack.
    pub struct Tree {
        /// Where; relative to the user's home.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
    }
}

record! {
    /// How many zero bytes to send.
    pub struct Source {
        /// Bytes.
        pub bytes: u64,
    }
}

record! {
    /// The guest is as `configure` wanted it.
    pub struct Configured {
        /// The kernel's id of this boot.
        pub boot_id: String,
        /// The kernel's release.
        pub kernel: String,
        /// Since boot.
        pub uptime_ms: u64,
        /// Size of the root file system.
        pub disk_bytes: u64,
        /// The daemon's version.
        pub version: String,
    }
}

record! {
    /// The guest is another machine now.
    pub struct Imprinted {
        /// Restore hooks that were run.
        pub hooks: u16,
        /// How long all of it took.
        pub wall_ms: u64,
    }
}

record! {
    /// The program runs.
    pub struct Started {
        /// Its process id in the guest.
        pub pid: u32,
    }
}

record! {
    /// The program has ended and all of its output was sent.
    pub struct Exited {
        /// Exit status, unless a signal ended it.
        pub code: Option<u8>,
        /// The signal that ended it.
        pub signal: Option<u8>,
        /// The kernel killed one of its processes for want of memory.
        pub oom_killed: bool,
        /// Its time was up and it was killed.
        pub timed_out: bool,
        /// Bytes of standard output.
        pub stdout_bytes: u64,
        /// Bytes of standard error.
        pub stderr_bytes: u64,
        /// From start to end.
        pub wall_ms: u64,
    }
}

record! {
    /// A tree went in or out.
    pub struct TreeDone {
        /// Files, directories and links.
        pub entries: u64,
        /// Bytes of the tar stream.
        pub bytes: u64,
        /// IEEE CRC-32 of the tar stream.
        pub crc32: u32,
    }
}

record! {
    /// How the guest fares.
    pub struct Metrics {
        /// Bytes.
        pub memory_total: u64,
        /// Bytes.
        pub memory_available: u64,
        /// Milliseconds since boot.
        pub cpu_user_ms: u64,
        /// Milliseconds since boot.
        pub cpu_system_ms: u64,
        /// Bytes of the root file system.
        pub disk_total: u64,
        /// Bytes of the root file system.
        pub disk_used: u64,
        /// Processes and threads of workloads.
        pub processes: u64,
        /// Milliseconds.
        pub uptime_ms: u64,
        /// Load average of a minute, times 1,000.
        pub load1_milli: u64,
    }
}

record! {
    /// Why a verb failed: the payload of a RESET. `code` is one of `space.model.errors`.
    pub struct Failure {
        /// Stable word for a program.
        pub code: String,
        /// One sentence for a person.
        pub message: String,
    }
}

/// What comes back as a MSG. On the wire a record with its kind under `t`, first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// It is done.
    Done(Empty),
    /// Answer of `configure`.
    Configured(Configured),
    /// Answer of `imprint`.
    Imprinted(Imprinted),
    /// A process runs.
    Started(Started),
    /// A process has ended.
    Exited(Exited),
    /// A tree went in or out.
    Tree(TreeDone),
    /// Answer of `metrics`.
    Metrics(Metrics),
    /// Answer of `processes`.
    Processes(Processes),
    /// Host: the end of standard input.
    Eof(Empty),
    /// Host: the terminal has another size.
    Resize(Window),
    /// Host: a signal.
    Signal(Signal),
    /// The process has closed its standard input, or its reader is gone.
    StdinClosed(Empty),
    /// A file as it is.
    File(FileAnswer),
    /// Some of a directory.
    Files(Files),
    /// The end of a listing.
    Listed(Listed),
    /// What was sent, counted by its sender.
    Content(Content),
    /// From now on nothing is missed.
    Watching(Empty),
    /// What happened.
    Changes(Changes),
    /// Some changes were lost.
    Overflow(Empty),
    /// The connection stands.
    Connected(Empty),
    /// An entry as it is.
    Entry(Box<EntryAnswer>),
    /// Some of a directory.
    Entries(Entries),
    /// Everything that had happened when the host asked was told.
    Synced(Empty),
}

impl Message {
    /// The bytes of a MSG.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done(body) => body.tagged("done"),
            Self::Configured(body) => body.tagged("configured"),
            Self::Imprinted(body) => body.tagged("imprinted"),
            Self::Started(body) => body.tagged("started"),
            Self::Exited(body) => body.tagged("exited"),
            Self::Tree(body) => body.tagged("tree"),
            Self::Metrics(body) => body.tagged("metrics"),
            Self::Processes(body) => body.tagged("processes"),
            Self::Eof(body) => body.tagged("eof"),
            Self::Resize(body) => body.tagged("resize"),
            Self::Signal(body) => body.tagged("signal"),
            Self::StdinClosed(body) => body.tagged("stdin_closed"),
            Self::File(body) => body.tagged("file"),
            Self::Files(body) => body.tagged("files"),
            Self::Listed(body) => body.tagged("listed"),
            Self::Content(body) => body.tagged("content"),
            Self::Watching(body) => body.tagged("watching"),
            Self::Changes(body) => body.tagged("changes"),
            Self::Overflow(body) => body.tagged("overflow"),
            Self::Connected(body) => body.tagged("connected"),
            Self::Entry(body) => body.tagged("entry"),
            Self::Entries(body) => body.tagged("entries"),
            Self::Synced(body) => body.tagged("synced"),
        }
    }

    /// A message from bytes that hold exactly that, `t` first.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let mut rest = bytes;
        let message = Self::read(&mut rest).map_err(|fault| malformed(&fault))?;
        if rest.is_empty() { Ok(message) } else { Err(malformed(&Fault::Trailing)) }
    }

    fn read(rest: &mut &[u8]) -> Result<Self, Fault> {
        let fields = read_map(rest)?.checked_sub(1).ok_or(Fault::Missing("t"))?;
        if read_key(rest)? != "t" {
            return Err(Fault::Missing("t"));
        }
        let kind = read_key(rest)?;
        Ok(match kind {
            "done" => Self::Done(Empty::fields(fields, rest)?),
            "configured" => Self::Configured(Configured::fields(fields, rest)?),
            "imprinted" => Self::Imprinted(Imprinted::fields(fields, rest)?),
            "started" => Self::Started(Started::fields(fields, rest)?),
            "exited" => Self::Exited(Exited::fields(fields, rest)?),
            "tree" => Self::Tree(TreeDone::fields(fields, rest)?),
            "metrics" => Self::Metrics(Metrics::fields(fields, rest)?),
            "processes" => Self::Processes(Processes::fields(fields, rest)?),
            "eof" => Self::Eof(Empty::fields(fields, rest)?),
            "resize" => Self::Resize(Window::fields(fields, rest)?),
            "signal" => Self::Signal(Signal::fields(fields, rest)?),
            "stdin_closed" => Self::StdinClosed(Empty::fields(fields, rest)?),
            "file" => Self::File(FileAnswer::fields(fields, rest)?),
            "files" => Self::Files(Files::fields(fields, rest)?),
            "listed" => Self::Listed(Listed::fields(fields, rest)?),
            "content" => Self::Content(Content::fields(fields, rest)?),
            "watching" => Self::Watching(Empty::fields(fields, rest)?),
            "changes" => Self::Changes(Changes::fields(fields, rest)?),
            "overflow" => Self::Overflow(Empty::fields(fields, rest)?),
            "connected" => Self::Connected(Empty::fields(fields, rest)?),
            "entry" => Self::Entry(Box::new(EntryAnswer::fields(fields, rest)?)),
            "entries" => Self::Entries(Entries::fields(fields, rest)?),
            "synced" => Self::Synced(Empty::fields(fields, rest)?),
            _ => return Err(Fault::Unknown(kind.chars().take(40).collect())),
        })
    }
}

impl Failure {
    /// A failure from its parts.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }

    /// The caller's request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    /// The guest failed at what it was asked.
    pub fn guest(message: impl Into<String>) -> Self {
        Self::new("guest_error", message)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

fn malformed(fault: &Fault) -> Failure {
    Failure::invalid(format!("the request is malformed: {fault}"))
}

/// The bytes of a request or failure.
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// A request or failure from bytes that hold exactly that.
pub fn decode<T: Wire>(bytes: &[u8]) -> Result<T, Failure> {
    let mut rest = bytes;
    let value = T::take(&mut rest).map_err(|fault| malformed(&fault))?;
    if rest.is_empty() { Ok(value) } else { Err(malformed(&Fault::Trailing)) }
}

/// Split an OPEN's payload into verb and request.
pub fn split_open(payload: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = payload.split_first()?;
    let (verb, request) = rest.split_at_checked(*length as usize)?;
    Some((std::str::from_utf8(verb).ok().filter(|verb| verb.is_ascii() && !verb.is_empty())?, request))
}
