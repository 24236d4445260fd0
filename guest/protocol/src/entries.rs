//! Requests and messages of the verbs of entries (`docs/protocol.md`, section 2, "Entries").

use crate::files::File;
use crate::messages::{Bytes, Variable};
use crate::pack::record;

record! {
    /// A path: to look at, to make as a directory, to remove.
    pub struct EntryPath {
        /// Absolute, or relative to the user's home.
        pub path: Bytes,
        /// Whose home it is, and who owns what is made; `user` when absent.
        pub user: Option<String>,
    }
}

record! {
    /// What is in a directory.
    pub struct EntryList {
        /// The directory.
        pub path: Bytes,
        /// Whose home it is; `user` when absent.
        pub user: Option<String>,
        /// How deep; 1 is the directory itself.
        pub depth: u32,
        /// Entries at most.
        pub limit: u32,
    }
}

record! {
    /// Give a path another name.
    pub struct EntryMove {
        /// What it is called.
        pub path: Bytes,
        /// Whose home it is, and who owns directories that are made; `user` when absent.
        pub user: Option<String>,
        /// What it shall be called.
        pub to: Bytes,
    }
}

record! {
    /// Write a file in its place.
    pub struct EntryWrite {
        /// The file.
        pub path: Bytes,
        /// Whose home it is, and who owns it then; `user` when absent.
        pub user: Option<String>,
        /// Names and values, all that it has then.
        pub metadata: Vec<Variable>,
    }
}

record! {
    /// Watch a directory.
    pub struct EntryWatch {
        /// The directory.
        pub path: Bytes,
        /// Whose home it is; `user` when absent.
        pub user: Option<String>,
        /// Everything below as well.
        pub recursive: bool,
    }
}

record! {
    /// What a link leads to.
    pub struct Leads {
        /// Absolute, without links.
        pub path: Bytes,
        /// As of a file.
        pub kind: String,
        /// Permission bits.
        pub mode: u32,
    }
}

record! {
    /// What a path is.
    pub struct Entry {
        /// The last name, a link itself.
        pub file: File,
        /// Absolute.
        pub path: Bytes,
        /// Of a link that leads to something.
        pub leads: Option<Leads>,
        /// Names and values of its metadata.
        pub metadata: Vec<Variable>,
    }
}

record! {
    /// An entry as it is.
    pub struct EntryAnswer {
        /// The entry.
        pub entry: Entry,
    }
}

record! {
    /// Some of a directory.
    pub struct Entries {
        /// In order.
        pub entries: Vec<Entry>,
    }
}
