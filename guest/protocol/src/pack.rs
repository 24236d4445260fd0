//! `MessagePack` for records: maps with string keys, `bin` for bytes, arrays, no extension types. `rmp` reads the markers.
//!
//! A reader takes from a slice that is wholly there. Lengths are held against what is left before anything is allocated.

use rmp::Marker;
use rmp::decode::{read_array_len, read_bin_len, read_bool, read_int, read_map_len, read_str_len};
use rmp::encode::{write_array_len, write_bin, write_bool, write_map_len, write_nil, write_sint, write_str, write_uint};

use crate::messages::Bytes;

/// Why bytes are not the value that was expected.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another type, a number out of range, or too few bytes; with the type that was expected.
    Type(&'static str),
    /// A field that must be there is not.
    Missing(&'static str),
    /// A field or kind that this version does not know.
    Unknown(String),
    /// A field that came before.
    Doubled(&'static str),
    /// Bytes after the value.
    Trailing,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Type(expected) => write!(f, "where {expected} should be is something else, or nothing"),
            Self::Missing(name) => write!(f, "{name:?} is missing"),
            Self::Unknown(name) => write!(f, "{name:?} is not known to this version"),
            Self::Doubled(name) => write!(f, "{name:?} comes twice"),
            Self::Trailing => f.write_str("bytes follow after its end"),
        }
    }
}

/// A value that has a form on the wire.
pub trait Wire: Sized {
    /// Append it.
    fn put(&self, out: &mut Vec<u8>);
    /// Take it from the front of `rest`.
    fn take(rest: &mut &[u8]) -> Result<Self, Fault>;
}

// Writing to a Vec cannot fail, so the results of rmp's writers say nothing.

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_uint(out, *self);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_int(rest).map_err(|_| Fault::Type("an unsigned number of 64 bits"))
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_int(rest).map_err(|_| Fault::Type("an unsigned number of 32 bits"))
    }
}

impl Wire for u16 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_int(rest).map_err(|_| Fault::Type("an unsigned number of 16 bits"))
    }
}

impl Wire for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_sint(out, *self);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_int(rest).map_err(|_| Fault::Type("a number of 64 bits"))
    }
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_int(rest).map_err(|_| Fault::Type("an unsigned number of 8 bits"))
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_bool(out, *self);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_bool(rest).map_err(|_| Fault::Type("true or false"))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_str(out, self);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        read_key(rest).map(str::to_owned)
    }
}

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_bin(out, &self.0);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        let length = read_bin_len(rest).map_err(|_| Fault::Type("bytes"))?;
        Ok(Self(split(rest, length, "bytes")?.to_vec()))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.put(out),
            None => drop(write_nil(out)),
        }
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        match rest.split_first() {
            Some((first, behind)) if *first == Marker::Null.to_u8() => {
                *rest = behind;
                Ok(None)
            }
            _ => T::take(rest).map(Some),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_array_len(out, self.len() as u32);
        for item in self {
            item.put(out);
        }
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        let length = read_array_len(rest).map_err(|_| Fault::Type("an array"))? as usize;
        if length > rest.len() {
            return Err(Fault::Type("as many items as the array claims"));
        }
        (0..length).map(|_| T::take(rest)).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        let _ = write_array_len(out, 2);
        self.0.put(out);
        self.1.put(out);
    }

    fn take(rest: &mut &[u8]) -> Result<Self, Fault> {
        match read_array_len(rest) {
            Ok(2) => Ok((A::take(rest)?, B::take(rest)?)),
            _ => Err(Fault::Type("a pair")),
        }
    }
}

fn split<'a>(rest: &mut &'a [u8], length: u32, expected: &'static str) -> Result<&'a [u8], Fault> {
    let (taken, behind) = rest.split_at_checked(length as usize).ok_or(Fault::Type(expected))?;
    *rest = behind;
    Ok(taken)
}

/// The number of fields of the map that begins here.
pub fn read_map(rest: &mut &[u8]) -> Result<u32, Fault> {
    read_map_len(rest).map_err(|_| Fault::Type("a map"))
}

/// The text that begins here.
pub fn read_key<'a>(rest: &mut &'a [u8]) -> Result<&'a str, Fault> {
    let length = read_str_len(rest).map_err(|_| Fault::Type("text"))?;
    std::str::from_utf8(split(rest, length, "text")?).map_err(|_| Fault::Type("text in UTF-8"))
}

/// Begin a map of `fields` fields.
pub fn write_map(out: &mut Vec<u8>, fields: usize) {
    let _ = write_map_len(out, fields as u32);
}

/// Append a key.
pub fn write_key(out: &mut Vec<u8>, key: &str) {
    let _ = write_str(out, key);
}

/// A struct whose fields travel as a map, in the order in which they are written down.
macro_rules! record {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl $name {
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            #[allow(unused_variables, clippy::ptr_arg)] // a record without fields
            fn put_fields(&self, out: &mut Vec<u8>) {
                $($crate::pack::write_key(out, stringify!($field)); $crate::pack::Wire::put(&self.$field, out);)*
            }

            /// The record as a message of kind `t`.
            #[allow(dead_code)]
            pub(crate) fn tagged(&self, t: &str) -> Vec<u8> {
                let mut out = Vec::new();
                $crate::pack::write_map(&mut out, Self::FIELDS.len() + 1);
                $crate::pack::write_key(&mut out, "t");
                $crate::pack::write_key(&mut out, t);
                self.put_fields(&mut out);
                out
            }

            /// `count` fields from the front of `rest`, in any order.
            pub(crate) fn fields(count: u32, rest: &mut &[u8]) -> Result<Self, $crate::pack::Fault> {
                use $crate::pack::Fault;
                $(let mut $field: Option<$type> = None;)*
                for _ in 0..count {
                    match $crate::pack::read_key(rest)? {
                        $(stringify!($field) => {
                            if $field.replace($crate::pack::Wire::take(rest)?).is_some() {
                                return Err(Fault::Doubled(stringify!($field)));
                            }
                        })*
                        other => return Err(Fault::Unknown(other.chars().take(40).collect())),
                    }
                }
                Ok(Self { $($field: $field.ok_or(Fault::Missing(stringify!($field)))?,)* })
            }
        }

        impl $crate::pack::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::pack::write_map(out, Self::FIELDS.len());
                self.put_fields(out);
            }

            fn take(rest: &mut &[u8]) -> Result<Self, $crate::pack::Fault> {
                Self::fields($crate::pack::read_map(rest)?, rest)
            }
        }
    };
}
pub(crate) use record;
