//! Tar blocks to records and back: ustar, with pax records and GNU long names on reading, pax on writing. No I/O.

use super::sparse;

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// What a header block says, as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type's byte.
    pub kind: u8,
    /// Prefix and name.
    pub path: Vec<u8>,
    /// Link's target.
    pub link: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of content.
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: i64,
}

/// Values of pax records that override a header's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `path`, or a GNU long name.
    pub path: Option<Vec<u8>>,
    /// `linkpath`, or a GNU long link.
    pub link: Option<Vec<u8>>,
    /// `size`.
    pub size: Option<u64>,
    /// `mtime`: seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// `GNU.sparse` records.
    pub sparse: sparse::Records,
}

/// Judge one block; `None` is a block of zeros. The error says what is wrong with it.
pub fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, &'static str> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let stored = number(&block[148..156]).ok_or("its checksum is no number")?;
    let (unsigned, signed) = checksums(block);
    if stored != unsigned && stored != signed {
        return Err("its checksum is wrong");
    }
    let mut path = text(&block[..100]).to_vec();
    let prefix = text(&block[345..500]);
    // GNU's own magic, with a blank, uses the prefix's bytes for other things.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        path = [prefix, b"/", &path].concat();
    }
    Ok(Some(Header {
        kind: block[156],
        path,
        link: text(&block[157..257]).to_vec(),
        mode: (number(&block[100..108]).unwrap_or(0) & 0o7777) as u32,
        size: u64::try_from(number(&block[124..136]).ok_or("its size is no number")?).map_err(|_| "its size is negative")?,
        mtime: number(&block[136..148]).unwrap_or(0),
    }))
}

fn checksums(block: &[u8; BLOCK]) -> (i64, i64) {
    let field = 148..156;
    let sum = |value: fn(u8) -> i64| block.iter().enumerate().map(|(at, byte)| value(if field.contains(&at) { b' ' } else { *byte })).sum();
    (sum(i64::from), sum(|byte| i64::from(byte as i8)))
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal digits between blanks, or base 256 when the first bit is set; an empty field is 0.
fn number(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 != 0 {
        // Two's complement of all bits but the first.
        let start = if field[0] & 0x40 != 0 { -1 } else { i64::from(field[0] & 0x3f) };
        let first = if start < 0 { i64::from(field[0] | 0x80) - 256 } else { start };
        return field[1..].iter().try_fold(first, |sum, byte| sum.checked_mul(256)?.checked_add(i64::from(*byte)));
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| *byte != b' ').unwrap_or(field.len());
    let digits = &field[start..];
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    if !digits[end..].iter().all(is_blank) {
        return None;
    }
    digits[..end].iter().try_fold(0_i64, |sum, byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(i64::from(byte - b'0')),
        _ => None,
    })
}

/// Read pax records (`length key=value\n`) into overrides.
pub fn pax(mut records: &[u8], into: &mut Overrides) -> Result<(), &'static str> {
    const WRONG: &str = "its pax records are not well formed";
    while !records.is_empty() {
        let blank = records.iter().position(|byte| *byte == b' ').filter(|at| (1..=8).contains(at)).ok_or(WRONG)?;
        let length = decimal(&records[..blank]).ok_or(WRONG)? as usize;
        if length <= blank + 2 || length > records.len() || records[length - 1] != b'\n' {
            return Err(WRONG);
        }
        let record = &records[blank + 1..length - 1];
        records = &records[length..];
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(WRONG)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => into.path = Some(value.to_vec()),
            b"linkpath" => into.link = Some(value.to_vec()),
            b"size" => into.size = Some(decimal(value).ok_or(WRONG)?),
            b"mtime" => into.mtime = Some(moment(value).ok_or(WRONG)?),
            _ => {
                if key.strip_prefix(b"GNU.sparse.").is_some_and(|key| !into.sparse.take(key, value, decimal)) {
                    return Err(WRONG);
                }
            }
        }
    }
    Ok(())
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds with a fraction, before or after 1970.
fn moment(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let seconds = i64::try_from(decimal(&text[..dot])?).ok()?;
    let mut nanos = 0;
    for at in 1..10 {
        let digit = text.get(dot + at).copied().unwrap_or(b'0');
        nanos = nanos * 10 + u32::from(digit.is_ascii_digit().then_some(digit)? - b'0');
    }
    Some(match (negative, nanos) {
        (false, _) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

/// The blocks of a header of a file with holes (see [`sparse`]): `header.size` bytes of content follow, the file has `real`.
pub fn format_sparse(header: &Header, real: u64, out: &mut Vec<u8>) {
    let mut records = Vec::new();
    record(&mut records, "GNU.sparse.major", b"1");
    record(&mut records, "GNU.sparse.minor", b"0");
    record(&mut records, "GNU.sparse.name", &header.path);
    record(&mut records, "GNU.sparse.realsize", real.to_string().as_bytes());
    if octal(header.mtime, 12).is_none() {
        record(&mut records, "mtime", header.mtime.to_string().as_bytes());
    }
    extended(header, records, out);
    // Who does not know of holes unpacks the map and the data under a name that says so.
    let base = header.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    block(header, b"", &[b"GNUSparseFile.0/", &base[..base.len().min(80)]].concat(), out);
}

/// The blocks of a header: a pax header before it when something does not fit.
pub fn format(header: &Header, out: &mut Vec<u8>) {
    let mut records = Vec::new();
    let (prefix, name) = split(&header.path).unwrap_or_else(|| {
        record(&mut records, "path", &header.path);
        (&[], &header.path[..header.path.len().min(100)])
    });
    if header.link.len() > 100 {
        record(&mut records, "linkpath", &header.link);
    }
    if octal(header.size as i64, 12).is_none() {
        record(&mut records, "size", header.size.to_string().as_bytes());
    }
    if octal(header.mtime, 12).is_none() {
        record(&mut records, "mtime", header.mtime.to_string().as_bytes());
    }
    if !records.is_empty() {
        extended(header, records, out);
    }
    block(header, prefix, name, out);
}

/// The blocks of a pax header.
fn extended(header: &Header, mut records: Vec<u8>, out: &mut Vec<u8>) {
    if std::str::from_utf8(&header.path).is_err() || std::str::from_utf8(&header.link).is_err() {
        let mut first = Vec::new();
        record(&mut first, "hdrcharset", b"BINARY");
        records = [first, records].concat();
    }
    let extended = Header { kind: b'x', path: vec![], link: vec![], mode: 0o644, size: records.len() as u64, mtime: 0 };
    block(&extended, b"", b"././@PaxHeader", out);
    out.extend_from_slice(&records);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

fn block(header: &Header, prefix: &[u8], name: &[u8], out: &mut Vec<u8>) {
    let mut block = [0; BLOCK];
    let mut field = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let number = |value: i64, width: usize| octal(value, width).unwrap_or_else(|| octal(0, width).unwrap_or_default());
    field(0, name);
    field(100, &number(i64::from(header.mode), 8));
    field(108, &number(0, 8));
    field(116, &number(0, 8));
    // Base 256 beside the pax record: readers of holes (Python's) look for the content's end by this field alone.
    field(124, &octal(header.size as i64, 12).unwrap_or_else(|| [&[0x80, 0, 0, 0][..], &header.size.to_be_bytes()].concat()));
    field(136, &number(header.mtime, 12));
    field(156, &[header.kind]);
    field(157, &header.link[..header.link.len().min(100)]);
    field(257, b"ustar\x0000");
    field(345, prefix);
    let sum = checksums(&block).0;
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&block);
}

/// Digits that fill `width` but for the NUL at the end.
fn octal(value: i64, width: usize) -> Option<Vec<u8>> {
    let digits = format!("{value:0>w$o}", w = width - 1);
    (value >= 0 && digits.len() < width).then(|| [digits.as_bytes(), b"\0"].concat())
}

/// Prefix and name of ustar, when the path fits them.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= 100 {
        return Some((&[], path));
    }
    let at = (path.len().saturating_sub(101)..path.len().min(156)).find(|at| path[*at] == b'/')?;
    let (prefix, name) = (&path[..at], &path[at + 1..]);
    (!prefix.is_empty() && !name.is_empty()).then_some((prefix, name))
}

/// Append `length key=value\n`, whose length counts its own digits.
fn record(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} {key}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(path: &[u8]) -> Header {
        Header { kind: b'0', path: path.to_vec(), link: vec![], mode: 0o640, size: 11, mtime: 1_700_000_000 }
    }

    fn read(blocks: &[u8]) -> (Header, Overrides) {
        let mut over = Overrides::default();
        let first = parse(blocks[..BLOCK].try_into().unwrap()).unwrap().unwrap();
        if first.kind != b'x' {
            assert_eq!(blocks.len(), BLOCK);
            return (first, over);
        }
        let end = BLOCK + first.size as usize;
        pax(&blocks[BLOCK..end], &mut over).unwrap();
        (parse(blocks[end.next_multiple_of(BLOCK)..].try_into().unwrap()).unwrap().unwrap(), over)
    }

    #[test]
    fn what_is_written_reads_back() {
        let long = [&b"./"[..], &[b'd'; 120], b"/", &[b'n'; 90]].concat();
        let longest = [b'x'; 4000];
        for path in [&b"./a"[..], b"./dir/", &long, &longest, b"./\xff\xfe", &[&longest[..], b"\xff"].concat()] {
            for (size, mtime) in [(0, 0), (11, 1_700_000_000), (8 << 30, -1), ((8 << 30) - 1, 1 << 40)] {
                for link in [&b""[..], b"target", &longest] {
                    let want = Header { size, mtime, link: link.to_vec(), ..sample(path) };
                    let mut out = Vec::new();
                    format(&want, &mut out);
                    assert_eq!(out.len() % BLOCK, 0);
                    let (got, over) = read(&out);
                    assert_eq!(over.path.as_deref().unwrap_or(&got.path), path);
                    assert_eq!(over.link.as_deref().unwrap_or(&got.link), link);
                    assert_eq!(over.size.unwrap_or(got.size), size);
                    assert_eq!(over.mtime.map_or(got.mtime, |at| at.0), mtime);
                    assert_eq!((got.kind, got.mode), (b'0', 0o640));
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_is_seen() {
        let mut out = Vec::new();
        format(&sample(b"./a"), &mut out);
        for at in [0, 100, 130, 156, 345] {
            let mut wrong: [u8; BLOCK] = out[..].try_into().unwrap();
            wrong[at] ^= 1;
            assert!(parse(&wrong).is_err(), "byte {at}");
        }
        assert_eq!(parse(&[0; BLOCK]), Ok(None));
    }

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  644 \0 "), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777"), Some(0o77_777_777));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\0"), Some(256));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        for wrong in [&b"000064x\0"[..], b"-1\0\0\0\0\0\0", b"12 34\0\0\0", b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn pax_records_are_read_and_broken_ones_refused() {
        let mut over = Overrides::default();
        pax(b"12 path=a=b\n19 mtime=-1.250000\n11 size=70\n12 unknown=\n", &mut over).unwrap();
        assert_eq!(over, Overrides { path: Some(b"a=b".to_vec()), size: Some(70), mtime: Some((-2, 750_000_000)), ..Overrides::default() });
        for wrong in [
            &b"path=a\n"[..],
            b"99 path=a\n",
            b"9 path=a",
            b"0 \n",
            b"4 a\n",
            b"18446744073709551617 a=b\n",
            b"12 size=-1 \n",
            b"13 mtime=1.x\n",
        ] {
            assert!(pax(wrong, &mut Overrides::default()).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
        let mut over = Overrides::default();
        pax(b"22 GNU.sparse.major=1\n", &mut over).unwrap();
        assert!(over.sparse.judge().is_err());
        assert!(pax(b"27 GNU.sparse.realsize=1e9\n", &mut Overrides::default()).is_err());
    }

    #[test]
    fn gnu_headers_do_not_have_their_prefix_read() {
        let mut out = Vec::new();
        format(&sample(b"./a"), &mut out);
        let mut block: [u8; BLOCK] = out[..].try_into().unwrap();
        block[257..265].copy_from_slice(b"ustar  \0");
        block[345] = b'7';
        let sum = checksums(&block).0;
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(parse(&block).unwrap().unwrap().path, b"./a");
    }
}
