//! Requests and messages of the verbs of files, watches and ports (`docs/protocol.md`, section 2, "Files").

use crate::messages::Bytes;
use crate::pack::record;

record! {
    /// Look at a path.
    pub struct FileStat {
        /// Absolute, or relative to the user's home.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// Whether a link's target is meant.
        pub follow: bool,
    }
}

record! {
    /// A page of a directory.
    pub struct FileList {
        /// The directory.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// How deep; 1 is the directory itself.
        pub depth: u32,
        /// Only what comes behind this name.
        pub after: Option<Bytes>,
        /// Entries at most: 1 to 10,000.
        pub limit: u32,
    }
}

record! {
    /// Bytes of a file.
    pub struct FileRead {
        /// The file.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// The first byte.
        pub offset: u64,
        /// How many; to the end when absent.
        pub length: Option<u64>,
    }
}

record! {
    /// Write a file.
    pub struct FileWrite {
        /// The file.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// Permission bits; those it has, or 0644, when absent.
        pub mode: Option<u32>,
        /// Behind what is there.
        pub append: bool,
        /// Make missing directories.
        pub parents: bool,
        /// Refuse one that exists.
        pub exclusive: bool,
    }
}

record! {
    /// Make a directory.
    pub struct FileMkdir {
        /// The directory.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// Permission bits; 0755 when absent.
        pub mode: Option<u32>,
        /// Make missing ones above; one that is there is no error.
        pub parents: bool,
    }
}

record! {
    /// Give a path another name.
    pub struct FileMove {
        /// What it is called.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// What it shall be called.
        pub to: Bytes,
        /// Whether what is there may be replaced.
        pub replace: bool,
    }
}

record! {
    /// Remove a path.
    pub struct FileRemove {
        /// What to remove.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// A directory with everything in it.
        pub recursive: bool,
        /// Nothing there is no error.
        pub missing_ok: bool,
    }
}

record! {
    /// Set permission bits.
    pub struct FileChmod {
        /// The path.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// At most 0o7777.
        pub mode: u32,
        /// Everything below as well; links are left alone.
        pub recursive: bool,
    }
}

record! {
    /// Set owner, group or both.
    pub struct FileChown {
        /// The path.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// Name or number.
        pub owner: Option<String>,
        /// Name or number.
        pub group: Option<String>,
        /// Everything below as well.
        pub recursive: bool,
    }
}

record! {
    /// Make a symbolic link.
    pub struct FileSymlink {
        /// The link.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// What it says.
        pub target: Bytes,
        /// Whether a file or link that is there may be replaced.
        pub replace: bool,
    }
}

record! {
    /// Watch a path.
    pub struct Watch {
        /// The path.
        pub path: Bytes,
        /// Account name; `user` when absent.
        pub user: Option<String>,
        /// Everything below as well.
        pub recursive: bool,
    }
}

record! {
    /// Connect to a port of the guest's loopback.
    pub struct Connect {
        /// 1 to 65,535.
        pub port: u16,
    }
}

record! {
    /// What a path is.
    pub struct File {
        /// Its name, or its path below what was listed.
        pub name: Bytes,
        /// `file`, `directory`, `symlink`, `fifo`, `socket`, `character` or `block`.
        pub kind: String,
        /// Bytes.
        pub size: u64,
        /// Bytes on the disk.
        pub allocated: u64,
        /// Permission bits.
        pub mode: u32,
        /// Owner's number.
        pub uid: u32,
        /// Group's number.
        pub gid: u32,
        /// Owner's name, or the number.
        pub owner: String,
        /// Group's name, or the number.
        pub group: String,
        /// Nanoseconds since 1970.
        pub mtime_ns: i64,
        /// Its number in the file system.
        pub inode: u64,
        /// Names that it has.
        pub links: u32,
        /// What a link says.
        pub target: Option<Bytes>,
    }
}

record! {
    /// A file as it is.
    pub struct FileAnswer {
        /// The file.
        pub file: File,
    }
}

record! {
    /// Some of a directory.
    pub struct Files {
        /// In order.
        pub files: Vec<File>,
    }
}

record! {
    /// The end of a listing.
    pub struct Listed {
        /// Whether more comes behind the last.
        pub more: bool,
    }
}

record! {
    /// What was sent, counted by its sender.
    pub struct Content {
        /// Bytes.
        pub bytes: u64,
        /// IEEE CRC-32.
        pub crc32: u32,
    }
}

record! {
    /// Something happened to a path.
    pub struct Change {
        /// `created`, `modified`, `moved`, `deleted` or `attributes`.
        pub kind: String,
        /// Relative to what is watched; empty for itself.
        pub path: Bytes,
        /// Where it was before it was moved.
        pub from: Option<Bytes>,
        /// Whether it is a directory.
        pub directory: bool,
    }
}

record! {
    /// What happened.
    pub struct Changes {
        /// In order.
        pub changes: Vec<Change>,
    }
}
