//! Random and mutated bytes against decoder, mux and messages: nothing panics, nothing grows beyond its bounds, and a HELLO is
//! always found again. The generator is seeded, so a failure repeats; `SPACE_FUZZ_SECONDS` makes it longer.

use std::time::{Duration, Instant};

use space_protocol::files::{
    Connect, FileChmod, FileChown, FileList, FileMkdir, FileMove, FileRead, FileRemove, FileStat, FileSymlink, FileWrite, Watch,
};
use space_protocol::frame::{self, Greeting, HEADER, VERSION};
use space_protocol::messages::{Claim, Configure, Empty, Exec, Imprint, Source, Tree, Window, decode, encode};
use space_protocol::{Bytes, Decoder, Event, Failure, Item, Kind, Message, Mux, Pipe, Role};

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }
}

/// Rounds until the time is up; at least `least`, so that a slow machine tests something too.
fn rounds(least: u64) -> impl Iterator<Item = Random> {
    let seconds = std::env::var("SPACE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    (0..).take_while(move |round| *round < least || Instant::now() < end).map(|round| Random(round * 7919 + 1))
}

fn hello(pipe: Pipe, nonce: u8) -> Vec<u8> {
    let greeting = Greeting { nonce: [nonce; 16], generation: 1, version: VERSION, pipe: pipe.index() as u8 };
    let mut out = Vec::new();
    frame::append(&mut out, Kind::Hello, 0, 0, 1, &greeting.payload(Kind::Hello));
    out
}

fn requests() -> Vec<Vec<u8>> {
    let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
    let exec = Exec {
        argv: vec![bytes("ls"), bytes("-l")],
        cwd: Some(bytes("/")),
        env: vec![(bytes("A"), bytes("B"))],
        user: None,
        timeout_ms: Some(70_000),
        stdin: true,
        pty: Some(Window { rows: 24, cols: 80 }),
        keep: Some("pr-1".into()),
    };
    let configure = Configure { realtime_ns: 1, entropy: Bytes(vec![1; 64]), hostname: "a".into(), env: vec![], generation: 1 };
    let tree = Tree { path: bytes("/tmp"), user: Some("root".into()) };
    let mut all = vec![encode(&exec), encode(&configure), encode(&tree), encode(&Source { bytes: 1 << 40 }), encode(&Empty {})];
    let (entropy, hostname) = (Bytes(vec![1; 32]), "a".to_owned());
    all.push(encode(&Imprint { entropy, hostname, machine_id: "0".repeat(32), boot_id: "0".repeat(36) }));
    all.push(encode(&Claim {
        realtime_ns: 1,
        generation: u64::MAX,
        env: vec![],
        resolv: Some(Bytes(vec![10])),
        hostname: Some("sb-1".to_owned()),
    }));
    all.extend(file_requests());
    all
}

fn file_requests() -> Vec<Vec<u8>> {
    let (path, user) = (Bytes(b"a/\xff".to_vec()), Some("root".to_owned()));
    let (owner, group) = (Some("user".to_owned()), None);
    vec![
        encode(&FileStat { path: path.clone(), user: None, follow: true }),
        encode(&FileList { path: path.clone(), user: user.clone(), depth: 1, after: Some(path.clone()), limit: 10_000 }),
        encode(&FileRead { path: path.clone(), user: user.clone(), offset: 1 << 40, length: None }),
        encode(&FileWrite { path: path.clone(), user: None, mode: Some(0o644), append: true, parents: false, exclusive: true }),
        encode(&FileMkdir { path: path.clone(), user: user.clone(), mode: None, parents: true }),
        encode(&FileMove { path: path.clone(), user: None, to: path.clone(), replace: true }),
        encode(&FileRemove { path: path.clone(), user: user.clone(), recursive: true, missing_ok: false }),
        encode(&FileChmod { path: path.clone(), user: None, mode: 0o7777, recursive: true }),
        encode(&FileChown { path: path.clone(), user: user.clone(), owner, group, recursive: false }),
        encode(&FileSymlink { path: path.clone(), user: None, target: path.clone(), replace: false }),
        encode(&Watch { path, user, recursive: true }),
        encode(&Connect { port: 8080 }),
    ]
}

fn some_request(random: &mut Random) -> Vec<u8> {
    let mut all = requests();
    let at = random.below(all.len());
    all.swap_remove(at)
}

/// A conversation of valid frames with some bytes changed, left out or put in.
fn conversation(random: &mut Random, pipe: Pipe) -> Vec<u8> {
    let mut out = hello(pipe, random.below(3) as u8);
    for seq in 2..2 + random.below(20) as u32 {
        let (kind, _) = Kind::ALL[random.below(Kind::ALL.len())];
        let payload = match kind {
            Kind::Open => [&b"\x04exec"[..], &some_request(random)].concat(),
            Kind::Close => vec![],
            Kind::Credit => vec![1, 0, random.next() as u8, 0],
            Kind::Ping | Kind::Pong => vec![0; 8],
            Kind::Hello | Kind::HelloAck => Greeting { nonce: [1; 16], generation: 1, version: 1, pipe: 0 }.payload(kind).to_vec(),
            Kind::Data | Kind::Msg | Kind::Reset => random.bytes(300),
        };
        frame::append(&mut out, kind, random.below(2) as u8, random.below(6) as u32, seq, &payload);
    }
    for _ in 0..random.below(4) {
        let at = random.below(out.len());
        match random.below(3) {
            0 => out[at] ^= 1 << random.below(8),
            1 => drop(out.drain(at..(at + random.below(40)).min(out.len()))),
            _ => drop(out.splice(at..at, random.bytes(40))),
        }
    }
    out
}

fn feed(decoder: &mut Decoder, mut bytes: &[u8], step: usize, mut each: impl FnMut(&Item<'_>)) {
    while !bytes.is_empty() {
        let room = decoder.room();
        assert!(!room.is_empty() && room.len() <= HEADER + Pipe::Bulk.max_payload() + 3 * 4096, "{}", room.len());
        let count = room.len().min(bytes.len()).min(step);
        room[..count].copy_from_slice(&bytes[..count]);
        decoder.filled(count);
        bytes = &bytes[count..];
        while let Some(item) = decoder.next_item() {
            each(&item);
        }
    }
}

#[test]
fn an_acceptor_survives_anything_and_finds_the_next_hello() {
    let (mut frames, mut lost) = (0_u64, 0_u64);
    for mut random in rounds(50) {
        for pipe in Pipe::ALL {
            let mut decoder = Decoder::new(pipe, Role::Acceptor);
            let mut mux = Mux::new();
            let step = 1 + random.below(5000);
            for round in 0..3 {
                let bytes = if random.below(4) == 0 { random.bytes(2000) } else { conversation(&mut random, pipe) };
                feed(&mut decoder, &bytes, step, |item| {
                    match item {
                        Item::Lost(_) => lost += 1,
                        Item::Frame(_, payload) => {
                            assert!(payload.len() <= pipe.max_payload());
                            frames += 1;
                        }
                        Item::Greeting(_) => {}
                    }
                    mux.take(pipe, item);
                });
                let mut again = vec![0; pipe.max_payload() + 20];
                again.extend(hello(pipe, 100 + round));
                let mut begun = false;
                feed(&mut decoder, &again, usize::MAX, |item| {
                    begun |= matches!(mux.take(pipe, item), Some(Event::Begin(greeting)) if greeting.nonce == [100 + round; 16]);
                });
                assert!(begun, "HELLO behind the run of zeros begins a session");
            }
        }
    }
    assert!(frames > 100 && lost > 100, "frames {frames}, lost {lost}: the generator reaches both");
}

#[test]
fn an_opener_stops_at_the_first_malformed_byte() {
    let mut ended = 0;
    for mut random in rounds(300) {
        let nonce = [1; 16];
        let mut decoder = Decoder::new(Pipe::Control, Role::Opener(nonce));
        let mut bytes = random.bytes(50);
        let greeting = Greeting { nonce, generation: 1, version: VERSION, pipe: 0 };
        frame::append(&mut bytes, Kind::HelloAck, 0, 0, 1, &greeting.payload(Kind::HelloAck));
        bytes.extend(conversation(&mut random, Pipe::Control));
        let mut over = false;
        feed(&mut decoder, &bytes, 1 + random.below(99), |item| {
            assert!(!over, "nothing comes after the end");
            over = matches!(item, Item::Lost(_));
        });
        ended += u32::from(over);
    }
    assert!(ended > 100);
}

#[test]
fn a_mux_that_both_pipes_have_joined_survives_any_frames() {
    let mut opened = 0;
    for mut random in rounds(300) {
        let mut mux = Mux::new();
        let mut decoders = Pipe::ALL.map(|pipe| Decoder::new(pipe, Role::Acceptor));
        for pipe in Pipe::ALL {
            feed(&mut decoders[pipe.index()], &hello(pipe, 1), usize::MAX, |item| {
                mux.take(pipe, item);
            });
        }
        let mut seq = [2; 2];
        for _ in 0..random.below(200) {
            let pipe = Pipe::ALL[random.below(2)];
            let kinds = [Kind::Open, Kind::Data, Kind::Close, Kind::Reset, Kind::Credit, Kind::Msg, Kind::Ping];
            let kind = kinds[random.below(if pipe == Pipe::Bulk { 3 } else { kinds.len() })];
            let stream = if kind == Kind::Ping { 0 } else { 1 + random.below(12) as u32 };
            let payload = match kind {
                Kind::Open => b"\x04echo\x80".to_vec(),
                Kind::Close => vec![],
                Kind::Credit => (random.next() as u32 >> random.below(32)).to_le_bytes().to_vec(),
                Kind::Ping => vec![9; 8],
                _ => vec![5; 1 + random.below(pipe.max_payload())],
            };
            let mut bytes = Vec::new();
            frame::append(&mut bytes, kind, 0, stream, seq[pipe.index()], &payload);
            seq[pipe.index()] += 1;
            feed(&mut decoders[pipe.index()], &bytes, usize::MAX, |item| {
                if let Some(Event::Open { .. }) = mux.take(pipe, item) {
                    opened += 1;
                }
            });
            for stream in 1..12 {
                let room = mux.data_slot(stream).len();
                assert_eq!(room, mux.data_room(stream));
                match random.below(40) {
                    0 => mux.close(stream),
                    1 => mux.send(stream, &Message::Done(Empty {})),
                    2 => mux.reset(stream, &Failure::guest("x")),
                    3 => mux.consumed(stream, 0),
                    _ => mux.data_commit(stream, 0, room.min(random.below(1000))),
                }
            }
            for pipe in Pipe::ALL {
                let some = random.below(mux.pending(pipe).len() + 1);
                mux.written(pipe, some);
                assert!(mux.pending(pipe).len() < 4 << 20);
            }
        }
    }
    assert!(opened > 100);
}

#[test]
fn messages_from_mutated_bytes_are_refused_or_mean_what_they_say() {
    let (mut good, mut bad) = (0, 0);
    for mut random in rounds(20_000) {
        let mut bytes = some_request(&mut random);
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, random.next() as u8),
                _ => bytes[at] ^= 1 << random.below(8),
            }
        }
        macro_rules! same {
            ($($kind:ty),*) => {$(match decode::<$kind>(&bytes) {
                Ok(value) => {
                    good += 1;
                    assert_eq!(decode::<$kind>(&encode(&value)).unwrap(), value);
                }
                Err(failure) => {
                    bad += 1;
                    assert_eq!(failure.code, "invalid_argument");
                    assert!(failure.message.len() < 400);
                }
            })*};
        }
        same!(Exec, Configure, Tree, Source, Empty, Failure);
        same!(FileStat, FileList, FileRead, FileWrite, FileMkdir, FileMove, FileRemove, FileChmod, FileChown, FileSymlink, Watch, Connect);
        if let Ok(message) = Message::decode(&bytes) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
    assert!(good > 100 && bad > 100);
}
