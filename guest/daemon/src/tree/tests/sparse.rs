//! Files with holes through real files; the bytes in `tests/golden/tree` are read by GNU tar and by Python as well.

use std::fmt::Write;
use std::os::unix::fs::FileExt;

use super::*;

fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tree").join(name)).unwrap()
}

/// The file of the golden archives: 5 MiB and 5 bytes, 4 KiB of data at 64 KiB and 20 KiB at 1 MiB.
fn holes(path: &Path) {
    let file = fs::File::create(path).unwrap();
    file.set_len((5 << 20) + 5).unwrap();
    file.write_all_at(&[b'a'; 4096], 64 << 10).unwrap();
    file.write_all_at(&vec![b'b'; 20 << 10], 1 << 20).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000)).unwrap();
}

fn check(scratch: &Scratch, name: &str) {
    let (want, got) = (scratch.path("want"), scratch.path(name));
    holes(&want);
    let (want, stat) = (fs::read(want).unwrap(), fs::metadata(&got).unwrap());
    assert!(fs::read(got).unwrap() == want, "{name}");
    assert!(stat.blocks() * 512 < 64 << 10, "{name} takes {} blocks", stat.blocks());
}

#[test]
fn a_file_with_holes_is_packed_as_the_golden_bytes_say() {
    let scratch = Scratch::new();
    holes(&scratch.path("holes"));
    let (entries, archive) = scratch.pack("holes").unwrap();
    assert_eq!(entries, 1);
    assert!(archive == golden("guest.tar"), "the archive is {} bytes", archive.len());
}

#[test]
fn holes_stay_holes_whoever_packed_them() {
    for (archive, name) in [("guest.tar", "holes"), ("gnu.tar", "./holes"), ("sdk.tar", "holes")] {
        let scratch = Scratch::new();
        assert!(scratch.unpack(&golden(archive)).unwrap() >= 1, "{archive}");
        check(&scratch, name);
        assert_eq!(fs::metadata(scratch.path(name)).unwrap().mode() & 0o7777, 0o640);
    }
}

#[test]
fn files_of_nothing_but_holes_and_with_data_anywhere_come_back() {
    let (from, to) = (Scratch::new(), Scratch::new());
    let sizes = [1, 4096, 4097, 1 << 20, (3 << 30) + 1];
    for (number, size) in sizes.into_iter().enumerate() {
        fs::File::create(from.path(&format!("hole-{number}"))).unwrap().set_len(size).unwrap();
        let file = fs::File::create(from.path(&format!("end-{number}"))).unwrap();
        file.write_all_at(b"x", size - 1).unwrap();
        let file = fs::File::create(from.path(&format!("begin-{number}\u{e4}"))).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(b"x", 0).unwrap();
    }
    let file = fs::File::create(from.path("comb")).unwrap();
    for tooth in 0..400_u64 {
        file.write_all_at(&tooth.to_le_bytes(), tooth * 8192).unwrap();
    }
    // Large segments go around the page cache.
    let file = fs::File::create(from.path("large")).unwrap();
    for (at, length) in [(0, 300 << 10), (1 << 20, (1 << 20) + 4096), (4 << 20, 100)] {
        let bytes: Vec<u8> = (0..length).map(|at: u32| (at / 251) as u8 ^ at as u8).collect();
        file.write_all_at(&bytes, at).unwrap();
    }
    let (entries, archive) = from.pack("").unwrap();
    assert!(archive.len() < 6 << 20, "{}", archive.len());
    assert_eq!(to.unpack(&archive).unwrap(), entries);
    for name in fs::read_dir(from.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        let (old, new) = (fs::metadata(from.path(&name)).unwrap(), fs::metadata(to.path(&name)).unwrap());
        assert_eq!((old.len(), old.blocks()), (new.len(), new.blocks()), "{name}");
        if old.len() < 5 << 20 {
            assert!(fs::read(from.path(&name)).unwrap() == fs::read(to.path(&name)).unwrap(), "{name}");
        }
    }
}

pub fn sparse(map: &str, data: usize, real: &str, kind: u8) -> Vec<u8> {
    let mut records = String::new();
    for (key, value) in [("major", "1"), ("minor", "0"), ("name", "evil"), ("realsize", real)] {
        let rest = format!(" GNU.sparse.{key}={value}\n");
        let _ = write!(records, "{}{rest}", rest.len() + 2);
    }
    let mut content = map.as_bytes().to_vec();
    content.resize(content.len().next_multiple_of(BLOCK), 0);
    content.resize(content.len() + data, b'x');
    Tar::default()
        .header(b'x', "p", "", 0o644, records.len())
        .content(records.as_bytes())
        .header(kind, "short", "", 0o644, content.len())
        .content(&content)
        .end()
}

#[test]
fn maps_that_mean_harm_are_refused_by_name() {
    assert_eq!(Scratch::new().unpack(&sparse("2\n0\n10\n50\n20\n", 30, "100", b'0')).unwrap(), 1);
    for (map, data, real) in [
        ("2\n0\n10\n5\n10\n", 20, "100"),
        ("2\n50\n10\n0\n10\n", 20, "100"),
        ("1\n95\n10\n", 10, "100"),
        ("1\n0\n10\n", 11, "100"),
        ("1\n0\n600\n", 9, "1000"),
        ("20000\n", 0, "100"),
        ("5\n0\n1\n", 1, "100"),
        ("", 512, "100"),
        ("1\n0\n10\n", 10, "9223372036854775807"),
        ("1\n0\n10\n", 10, "1e3"),
    ] {
        Scratch::new().refuses(&sparse(map, data, real, b'0'), "invalid_argument", if real == "1e3" { "pax" } else { "evil" });
    }
    Scratch::new().refuses(&sparse("0\n", 0, "100", b'5'), "invalid_argument", "evil");
    Scratch::new().refuses(&sparse("1\n0\n10\n", 10, "4611686018427387904", b'0'), "too_large", "evil");
    let whole = sparse("2\n0\n10\n50\n20\n", 30, "100", b'0');
    for length in (0..whole.len() - 2 * BLOCK).step_by(100) {
        assert!(Scratch::new().unpack(&whole[..length]).is_err(), "{length}");
    }
}
