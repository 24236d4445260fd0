//! The vectors in `tests/golden/wire`, which the Python side reads as well.

use std::path::Path;

use serde_json::Value;
use space_protocol::entries;
use space_protocol::files;
use space_protocol::frame::{self, Header};
use space_protocol::messages::{
    Attach, Claim, Configure, Empty, Exec, Grow, Imprint, PrepareSnapshot, Process, Source, Tree, decode, encode,
};
use space_protocol::{Decoder, Event, Failure, Item, Kind, Message, Mux, Pipe, Role, Wire};

fn load(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/wire").join(name);
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

fn rows(value: &Value) -> &Vec<Value> {
    let rows = value.as_array().unwrap();
    assert!(rows.len() > 10, "the vectors are there");
    rows
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{key} in {row}"))
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn pipe(row: &Value) -> Pipe {
    if text(row, "pipe") == "control" { Pipe::Control } else { Pipe::Bulk }
}

fn kind(name: &str) -> Kind {
    Kind::ALL.into_iter().find(|(_, known)| *known == name).unwrap().0
}

fn name(kind: Kind) -> &'static str {
    Kind::ALL.into_iter().find(|(known, _)| *known == kind).unwrap().1
}

#[test]
fn frames_encode_to_their_bytes_and_their_headers_decode() {
    for row in rows(&load("frames.json")) {
        let (want, number) = (unhex(text(row, "hex")), |key: &str| row["frame"][key].as_u64().unwrap() as u32);
        let payload = unhex(text(&row["frame"], "payload_hex"));
        let kind = kind(text(&row["frame"], "type"));
        let mut out = Vec::new();
        frame::append(&mut out, kind, number("flags") as u8, number("stream"), number("seq"), &payload);
        assert_eq!(hex(&out), hex(&want), "{row}");
        let to_acceptor = !matches!(kind, Kind::HelloAck | Kind::Msg);
        let header = Header::parse(want.first_chunk().unwrap(), pipe(row), to_acceptor).unwrap();
        let whole = Header { length: payload.len(), kind, flags: number("flags") as u8, stream: number("stream"), seq: number("seq") };
        assert_eq!(header, whole, "{row}");
    }
}

fn feed(decoder: &mut Decoder, bytes: &[u8], step: usize, events: &mut Vec<Value>) {
    for chunk in bytes.chunks(step) {
        let mut left = chunk;
        while !left.is_empty() {
            let room = decoder.room();
            let count = left.len().min(room.len());
            room[..count].copy_from_slice(&left[..count]);
            decoder.filled(count);
            left = &left[count..];
            while let Some(item) = decoder.next_item() {
                events.push(describe(&item));
            }
        }
    }
}

fn describe(item: &Item<'_>) -> Value {
    match item {
        Item::Greeting(it) => {
            serde_json::json!({"nonce": hex(&it.nonce), "generation": it.generation, "version": it.version, "pipe": it.pipe})
        }
        Item::Lost(why) => serde_json::json!({"reason": why.word()}),
        Item::Frame(it, payload) => {
            let mut row =
                serde_json::json!({"event": "frame", "type": name(it.kind), "flags": it.flags, "stream": it.stream, "seq": it.seq});
            if payload.len() > 1000 {
                assert!(payload.iter().all(|byte| *byte == payload[0]));
                row["payload_fill"] = serde_json::json!({"fill": format!("{:02x}", payload[0]), "count": payload.len()});
            } else {
                row["payload_hex"] = hex(payload).into();
            }
            row
        }
    }
}

#[test]
fn streams_decode_to_their_events_however_they_are_cut() {
    for row in rows(&load("streams.json")) {
        let mut bytes = Vec::new();
        for piece in row["bytes"].as_array().unwrap() {
            match piece.get("hex") {
                Some(hex) => bytes.extend(unhex(hex.as_str().unwrap())),
                None => bytes.resize(bytes.len() + piece["count"].as_u64().unwrap() as usize, unhex(text(piece, "fill"))[0]),
            }
        }
        let acceptor = text(row, "role") == "acceptor";
        let role = if acceptor { Role::Acceptor } else { Role::Opener(unhex(text(row, "nonce")).try_into().unwrap()) };
        let want: Vec<Value> = row["events"]
            .as_array()
            .unwrap()
            .iter()
            .cloned()
            .map(|mut event| {
                match text(&event, "event") {
                    "hello" | "lost" => assert!(acceptor),
                    "hello_ack" | "error" => assert!(!acceptor),
                    _ => return event,
                }
                event.as_object_mut().unwrap().remove("event");
                event
            })
            .collect();
        for step in [usize::MAX, 1, 7, 4096] {
            let mut events = Vec::new();
            feed(&mut Decoder::new(pipe(row), role), &bytes, step, &mut events);
            assert_eq!(events, want, "{} in steps of {step}", text(row, "name"));
        }
    }
}

#[test]
fn both_pipes_together_mean_their_events() {
    let sessions = load("sessions.json");
    for row in sessions.as_array().unwrap() {
        let mut mux = Mux::new();
        let mut decoders = Pipe::ALL.map(|pipe| Decoder::new(pipe, Role::Acceptor));
        for step in row["steps"].as_array().unwrap() {
            let bytes = unhex(text(step, "hex"));
            let decoder = &mut decoders[pipe(step).index()];
            decoder.room()[..bytes.len()].copy_from_slice(&bytes);
            decoder.filled(bytes.len());
            let mut events = Vec::new();
            while let Some(item) = decoder.next_item() {
                match mux.take(pipe(step), &item) {
                    Some(Event::Open { stream, verb, .. }) => {
                        events.push(serde_json::json!({"event": "open", "stream": stream, "verb": verb}));
                    }
                    Some(Event::Reset(stream)) => events.push(serde_json::json!({"event": "reset", "stream": stream})),
                    None | Some(Event::Begin(_)) => {}
                    Some(other) => panic!("{other:?} in {}", text(row, "name")),
                }
            }
            assert_eq!(events, *step["events"].as_array().unwrap(), "{}: {step}", text(row, "name"));
        }
    }
}

#[test]
fn messages_decode_and_encode_to_the_same_bytes() {
    for row in rows(&load("messages.json")["valid"]) {
        let bytes = unhex(text(row, "hex"));
        let again = match (text(row, "kind"), text(row, "of")) {
            ("message", _) => Message::decode(&bytes).unwrap().encode(),
            ("reset", _) => again::<Failure>(&bytes),
            (_, "configure") => again::<Configure>(&bytes),
            (_, "prepare_snapshot") => again::<PrepareSnapshot>(&bytes),
            (_, "imprint") => again::<Imprint>(&bytes),
            (_, "claim") => again::<Claim>(&bytes),
            (_, "grow") => again::<Grow>(&bytes),
            (_, "exec" | "launch") => again::<Exec>(&bytes),
            (_, "tree_put" | "tree_get") => again::<Tree>(&bytes),
            (_, "source") => again::<Source>(&bytes),
            (_, "attach") => again::<Attach>(&bytes),
            (_, "forget") => again::<Process>(&bytes),
            (_, "file_stat") => again::<files::FileStat>(&bytes),
            (_, "file_list") => again::<files::FileList>(&bytes),
            (_, "file_read") => again::<files::FileRead>(&bytes),
            (_, "file_write") => again::<files::FileWrite>(&bytes),
            (_, "file_mkdir") => again::<files::FileMkdir>(&bytes),
            (_, "file_move") => again::<files::FileMove>(&bytes),
            (_, "file_remove") => again::<files::FileRemove>(&bytes),
            (_, "file_chmod") => again::<files::FileChmod>(&bytes),
            (_, "file_chown") => again::<files::FileChown>(&bytes),
            (_, "file_symlink") => again::<files::FileSymlink>(&bytes),
            (_, "watch") => again::<files::Watch>(&bytes),
            (_, "connect") => again::<files::Connect>(&bytes),
            (_, "entry_stat" | "entry_mkdir" | "entry_remove") => again::<entries::EntryPath>(&bytes),
            (_, "entry_list") => again::<entries::EntryList>(&bytes),
            (_, "entry_move") => again::<entries::EntryMove>(&bytes),
            (_, "entry_write") => again::<entries::EntryWrite>(&bytes),
            (_, "entry_watch") => again::<entries::EntryWatch>(&bytes),
            _ => again::<Empty>(&bytes),
        };
        assert_eq!(hex(&again), hex(&bytes), "{}", text(row, "name"));
    }
}

fn again<T: Wire>(bytes: &[u8]) -> Vec<u8> {
    encode(&decode::<T>(bytes).unwrap())
}

#[test]
fn a_decoded_request_holds_the_values_of_its_vector() {
    let all = load("messages.json");
    let row = rows(&all["valid"]).iter().find(|row| text(row, "name") == "request exec").unwrap();
    let exec: Exec = decode(&unhex(text(row, "hex"))).unwrap();
    let bin = |value: &Value| unhex(text(value, "$bin"));
    let value = &row["value"];
    assert_eq!(
        exec.argv.iter().map(|arg| arg.0.clone()).collect::<Vec<_>>(),
        value["argv"].as_array().unwrap().iter().map(bin).collect::<Vec<_>>()
    );
    assert_eq!(exec.cwd.unwrap().0, bin(&value["cwd"]));
    assert_eq!((exec.env[1].0.0.clone(), exec.env[1].1.0.clone()), (bin(&value["env"][1][0]), bin(&value["env"][1][1])));
    assert_eq!((exec.user.as_deref(), exec.timeout_ms, exec.stdin), (value["user"].as_str(), value["timeout_ms"].as_u64(), true));
}

#[test]
fn malformed_requests_are_refused() {
    for row in rows(&load("messages.json")["malformed"]) {
        let bytes = unhex(text(row, "hex"));
        let refused = match text(row, "of") {
            "exec" => decode::<Exec>(&bytes).err(),
            "source" => decode::<Source>(&bytes).err(),
            "tree_put" => decode::<Tree>(&bytes).err(),
            _ => decode::<Empty>(&bytes).err(),
        };
        assert_eq!(refused.unwrap_or_else(|| panic!("{row}")).code, "invalid_argument");
    }
}
