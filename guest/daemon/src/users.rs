//! Accounts, from the text of `/etc/passwd` and `/etc/group`: no name service, so nothing of the guest's libraries is loaded.

use std::io;

use space_protocol::Failure;

/// Where somebody has removed the file (`rm -rf /`): root, and the user of our templates, can still be, to look and to mend.
const WITHOUT_PASSWD: &[u8] = b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n";

/// Who a process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Every group that lists the user, and the primary one.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: Vec<u8>,
    /// Login shell.
    pub shell: Vec<u8>,
}

/// The account of that name. passwd, group: the files' bytes.
pub fn find(name: &str, passwd: &[u8], group: &[u8]) -> Option<Account> {
    let (uid, gid, home, shell) = lines(passwd).find_map(|fields| match fields[..] {
        [login, _, uid, gid, _, home, shell] if login == name.as_bytes() && !login.is_empty() => {
            Some((number(uid)?, number(gid)?, home.to_vec(), shell.to_vec()))
        }
        _ => None,
    })?;
    let mut groups = vec![gid];
    for fields in lines(group) {
        if let [_, _, id, members] = fields[..] {
            if let Some(id) = number(id).filter(|id| !groups.contains(id)) {
                if members.split(|byte| *byte == b',').any(|member| member == name.as_bytes()) {
                    groups.push(id);
                }
            }
        }
    }
    let or = |text: Vec<u8>, other: &[u8]| if text.is_empty() { other.to_vec() } else { text };
    Some(Account { name: name.to_owned(), uid, gid, groups, home: or(home, b"/"), shell: or(shell, b"/bin/sh") })
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    text.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect())
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl Account {
    /// The account of that name on this system; called in a child, because guest root can make reading `/etc` hang.
    pub fn load(name: &str) -> Result<Self, Failure> {
        let read = |path: &str| match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::guest(format!("{path} cannot be read: {error}"))),
            Ok(text) => Ok(Some(text)),
        };
        let passwd = read("/etc/passwd")?;
        let group = read("/etc/group").ok().flatten();
        find(name, passwd.as_deref().unwrap_or(WITHOUT_PASSWD), group.as_deref().unwrap_or_default())
            .ok_or_else(|| Failure::invalid(format!("there is no user {name:?} in the sandbox")))
    }

    /// Become that user, for good.
    pub fn enter(&self) -> Result<(), Failure> {
        // SAFETY: plain calls; the list is as long as we say.
        let done = unsafe {
            libc::setgroups(self.groups.len(), self.groups.as_ptr()) == 0
                && libc::setresgid(self.gid, self.gid, self.gid) == 0
                && libc::setresuid(self.uid, self.uid, self.uid) == 0
        };
        if done { Ok(()) } else { Err(Failure::guest(format!("cannot become {}: {}", self.name, io::Error::last_os_error()))) }
    }

    /// The environment that a login of this user begins with.
    pub fn environment(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let path = if self.uid == 0 {
            b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec()
        } else {
            [&self.home[..], b"/.local/bin:/usr/local/bin:/usr/bin:/bin"].concat()
        };
        let name = self.name.clone().into_bytes();
        [("PATH", path), ("HOME", self.home.clone()), ("USER", name.clone()), ("LOGNAME", name), ("SHELL", self.shell.clone())]
            .into_iter()
            .chain([("LANG", b"C.UTF-8".to_vec())])
            .map(|(key, value)| (key.as_bytes().to_vec(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\n# comment\nbroken:x:1\nuser:x:1000:1000::/home/user:\nodd:x:-1:0::/:/bin/sh\nuser:x:0:0::/:/bin/sh\n";
    const GROUP: &[u8] = b"root:x:0:\nsudo:x:27:other,user\nuser:x:1000:user\nwheel:x:28:username\nbad:x:y:user\n";

    #[test]
    fn the_first_line_of_a_name_counts_with_every_group_that_lists_it() {
        let user = find("user", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 1000, vec![1000, 27]));
        assert_eq!((user.home, user.shell), (b"/home/user".to_vec(), b"/bin/sh".to_vec()));
    }

    #[test]
    fn root_and_the_user_of_templates_are_known_without_a_file() {
        let ids = |name| find(name, WITHOUT_PASSWD, b"").map(|account| (account.uid, account.gid, account.groups));
        assert_eq!(ids("root"), Some((0, 0, vec![0])));
        assert_eq!(ids(crate::exec::DEFAULT_USER), Some((1000, 1000, vec![1000])));
        assert_eq!(ids("daemon"), None);
    }

    #[test]
    fn a_name_that_is_not_there_or_has_a_broken_line_is_no_account() {
        for name in ["", "nobody", "broken", "odd", "# comment"] {
            assert_eq!(find(name, PASSWD, GROUP), None, "{name}");
        }
    }

    #[test]
    fn root_finds_the_sbin_directories_and_others_their_own_programs() {
        let path = |name| find(name, PASSWD, GROUP).unwrap().environment()[0].1.clone();
        assert!(path("root").starts_with(b"/usr/local/sbin:"));
        assert!(path("user").starts_with(b"/home/user/.local/bin:"));
    }
}
