//! `exec`: what is decided before a program runs, and the child's way to `execve`. No shell takes part.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use space_protocol::messages::{Exec, Variable};
use space_protocol::{Bytes, Failure, Message};

use crate::users::Account;
use crate::{sys, terminal, variables};

/// The account that is meant when none is named.
pub const DEFAULT_USER: &str = "user";
/// The terminal that is meant when nobody says another.
const TERM: &[u8] = b"xterm-256color";
const SHOWN: usize = 200;

/// Bytes of a name as they may stand in a message.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN {
        out.push_str("...");
    }
    out
}

/// Refuse a request that could never run; needs no file.
pub fn check(request: &Exec) -> Result<(), Failure> {
    if request.pty.is_some() && !request.stdin {
        return Err(Failure::invalid("a process with a terminal needs stdin"));
    }
    let has_nul = |bytes: &Bytes| bytes.0.contains(&0);
    if request.argv.first().is_none_or(|program| program.0.is_empty()) {
        return Err(Failure::invalid("argv must name a program"));
    }
    if request.argv.iter().any(has_nul) || request.cwd.as_ref().is_some_and(has_nul) {
        return Err(Failure::invalid("argv and cwd must not hold NUL bytes"));
    }
    check_env(&request.env)
}

/// Refuse variables that no process can have.
pub fn check_env(env: &[Variable]) -> Result<(), Failure> {
    match env.iter().find(|(name, value)| name.0.is_empty() || name.0.contains(&b'=') || name.0.contains(&0) || value.0.contains(&0)) {
        Some((name, _)) => Err(Failure::invalid(format!("env has the variable '{}', which no process can have", shown(&name.0)))),
        None => Ok(()),
    }
}

/// The environment: the user's, the template's, configure's, the request's; later wins, order of first mention.
pub fn environment(user: Vec<(Vec<u8>, Vec<u8>)>, template: Vec<(Vec<u8>, Vec<u8>)>, layers: &[&[Variable]]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = user;
    let given = layers.iter().copied().flatten().map(|(name, value)| (name.0.clone(), value.0.clone()));
    for (name, value) in template.into_iter().chain(given) {
        match out.iter_mut().find(|(known, _)| *known == name) {
            Some(found) => found.1 = value,
            None => out.push((name, value)),
        }
    }
    out
}

/// Where a program may lie: itself when it has a slash, else in each directory of PATH.
pub fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    let within = |dir: &[u8]| if dir.is_empty() { [b"./", program].concat() } else { [dir, b"/", program].concat() };
    path.split(|byte| *byte == b':').map(within).collect()
}

/// In the child: become the user and the program. Returns only with the reason why that failed.
pub fn run(request: &Exec, base: &[Variable]) -> Result<Message, Failure> {
    let account = Account::load(request.user.as_deref().unwrap_or(DEFAULT_USER))?;
    let mut first = account.environment();
    if request.pty.is_some() {
        // SAFETY: a child's standard input is open.
        terminal::take(unsafe { sys::numbered(0) }, account.uid)
            .map_err(|error| Failure::guest(format!("cannot take the terminal for the process: {error}")))?;
        first.push((b"TERM".to_vec(), TERM.to_vec()));
    }
    account.enter()?;
    enter_directory(request.cwd.as_ref(), &account)?;
    let env = environment(first, variables::load(), &[base, &request.env]);
    let path = env.iter().find(|(name, _)| name == b"PATH").map_or(&[][..], |(_, value)| value);
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Failure::invalid("a NUL byte in an argument"));
    let argv = request.argv.iter().map(|arg| text(&arg.0)).collect::<Result<Vec<_>, _>>()?;
    let envp = env.iter().map(|(name, value)| text(&[&name[..], b"=", value].concat())).collect::<Result<Vec<_>, _>>()?;
    let files = candidates(&request.argv[0].0, path).iter().map(|file| text(file)).collect::<Result<Vec<_>, _>>()?;
    Err(execute(&request.argv[0].0, &files, &argv, &envp))
}

fn enter_directory(cwd: Option<&Bytes>, account: &Account) -> Result<(), Failure> {
    let go = |path: &[u8]| sys::change_dir(Path::new(std::ffi::OsStr::from_bytes(path)));
    match cwd {
        Some(path) => go(&path.0).map_err(|error| Failure::invalid(format!("cwd '{}' cannot be entered: {error}", shown(&path.0)))),
        None => go(&account.home).or_else(|_| go(b"/")).map_err(|error| Failure::guest(format!("no directory to start in: {error}"))),
    }
}

fn execute(program: &[u8], files: &[CString], argv: &[CString], envp: &[CString]) -> Failure {
    let pointers = |list: &[CString]| list.iter().map(|item| item.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>();
    let (args, vars) = (pointers(argv), pointers(envp));
    let mut refused = None;
    for file in files {
        // SAFETY: strings and lists that end as execve wants it, and outlive the call.
        unsafe { libc::execve(file.as_ptr(), args.as_ptr(), vars.as_ptr()) };
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // As execvp does: another directory may hold one that can be run.
            Some(libc::EACCES) => refused = Some((file, error)),
            _ => return failure(program, file, &error),
        }
    }
    match refused {
        Some((file, error)) => failure(program, file, &error),
        None if program.contains(&b'/') => {
            Failure::new("not_found", format!("there is no program '{}', or not its interpreter", shown(program)))
        }
        None => Failure::new("not_found", format!("there is no program '{}' in PATH", shown(program))),
    }
}

fn failure(program: &[u8], file: &CString, error: &std::io::Error) -> Failure {
    let code = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::ENOEXEC | libc::EISDIR) => "permission_denied",
        Some(libc::E2BIG) => "too_large",
        Some(libc::ENAMETOOLONG | libc::ELOOP | libc::EINVAL) => "invalid_argument",
        _ => "guest_error",
    };
    let file = shown(file.as_bytes());
    let program = shown(program);
    Failure::new(
        code,
        if file == program {
            format!("'{file}' cannot be executed: {error}")
        } else {
            format!("'{program}' ({file}) cannot be executed: {error}")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> Variable {
        (Bytes(name.into()), Bytes(value.into()))
    }

    fn request(argv: &[&str]) -> Exec {
        let argv = argv.iter().map(|arg| Bytes(arg.as_bytes().to_vec())).collect();
        Exec { argv, cwd: None, env: vec![], user: None, timeout_ms: None, stdin: false, pty: None, keep: None }
    }

    #[test]
    fn later_layers_of_the_environment_win_in_the_place_of_the_first() {
        let user = vec![(b"PATH".to_vec(), b"/bin".to_vec()), (b"LANG".to_vec(), b"C".to_vec())];
        let template = vec![(b"A".to_vec(), b"0".to_vec()), (b"B".to_vec(), b"0".to_vec()), (b"LANG".to_vec(), b"fr".to_vec())];
        let env = environment(user, template, &[&[pair("LANG", "de"), pair("A", "1")], &[pair("A", "2"), pair("PATH", "")]]);
        let text: Vec<String> = env.iter().map(|(n, v)| format!("{}={}", shown(n), shown(v))).collect();
        assert_eq!(text, ["PATH=", "LANG=de", "A=2", "B=0"]);
    }

    #[test]
    fn a_program_is_looked_for_in_path_only_when_it_has_no_slash() {
        assert_eq!(candidates(b"./a", b"/bin"), [b"./a"]);
        assert_eq!(candidates(b"ls", b"/bin::/usr/bin"), [&b"/bin/ls"[..], b"./ls", b"/usr/bin/ls"]);
    }

    #[test]
    fn requests_that_could_never_run_are_refused() {
        for argv in [&[][..], &[""], &["a\0b"], &["ls", "\0"]] {
            assert_eq!(check(&request(argv)).unwrap_err().code, "invalid_argument");
        }
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            let asked = Exec { env: vec![pair(name, value)], ..request(&["true"]) };
            assert_eq!(check(&asked).unwrap_err().code, "invalid_argument");
        }
        check(&Exec { env: vec![pair("A", "=")], ..request(&["true", ""]) }).unwrap();
    }

    #[test]
    fn names_are_shown_short_and_on_one_line() {
        assert_eq!(shown(b"a\nb\x1b"), "a\\nb\\u{1b}");
        assert!(shown(&[b'x'; 999]).len() < 210);
    }
}
