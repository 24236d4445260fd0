//! What an errno means for whoever asked, in a word and a sentence.

use std::io;

use space_protocol::Failure;

use crate::exec::shown;

/// `cannot {what} '{path}': ...` with the code of that errno.
pub fn fault(what: &str, path: &[u8], error: &io::Error) -> Failure {
    let (code, why) = match error.raw_os_error().unwrap_or_default() {
        libc::ENOENT => ("not_found", "there is no such file or directory".to_owned()),
        libc::EACCES | libc::EPERM => ("permission_denied", "the user has no permission for that".to_owned()),
        libc::EROFS => ("permission_denied", "the file system can only be read".to_owned()),
        libc::EEXIST => ("conflict", "it exists".to_owned()),
        libc::ENOTEMPTY => ("conflict", "the directory is not empty".to_owned()),
        libc::EISDIR => ("conflict", "it is a directory".to_owned()),
        libc::ENOTDIR => ("conflict", "it, or a part of its path, is not a directory".to_owned()),
        libc::EBUSY | libc::ETXTBSY => ("conflict", format!("it is in use: {error}")),
        libc::ENOSPC => ("no_capacity", "the sandbox's disk is full".to_owned()),
        libc::EDQUOT => ("no_capacity", "the user's quota of the sandbox's disk is used up".to_owned()),
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EMLINK => ("no_capacity", error.to_string()),
        libc::EFBIG => ("too_large", "the file system cannot hold a file of that size".to_owned()),
        libc::EXDEV => ("unsupported", "the other name lies in another file system".to_owned()),
        libc::EOPNOTSUPP => ("unsupported", error.to_string()),
        libc::ENAMETOOLONG | libc::ELOOP | libc::EINVAL | libc::EOVERFLOW => ("invalid_argument", error.to_string()),
        _ => ("guest_error", error.to_string()),
    };
    Failure::new(code, format!("cannot {what} '{}': {why}", shown(path)))
}

/// The same as a function for `map_err`.
pub fn at<'a>(what: &'a str, path: &'a [u8]) -> impl Fn(io::Error) -> Failure + use<'a> {
    move |error| fault(what, path, &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_fault_of_the_guests() {
        for (errno, code) in [
            (libc::ENOSPC, "no_capacity"),
            (libc::EDQUOT, "no_capacity"),
            (libc::ENOENT, "not_found"),
            (libc::EACCES, "permission_denied"),
            (libc::EROFS, "permission_denied"),
            (libc::EISDIR, "conflict"),
            (libc::ENOTDIR, "conflict"),
            (libc::ENOTEMPTY, "conflict"),
            (libc::EXDEV, "unsupported"),
            (libc::ENAMETOOLONG, "invalid_argument"),
            (libc::EIO, "guest_error"),
        ] {
            let failure = fault("write", b"/a\n", &io::Error::from_raw_os_error(errno));
            assert_eq!(failure.code, code);
            assert!(failure.message.starts_with("cannot write '/a\\n': "), "{failure}");
        }
    }
}
