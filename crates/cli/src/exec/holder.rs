//! Whose session it is, in words for others who want the same traffic.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use crate::environment::{SUDO_USER, USER};

/// As in `alice@laptop (server.py)`.
pub(super) fn name(command: &[OsString]) -> String {
    format!("{}@{} ({})", user(), machine(), program(command))
}

/// Who runs it, as far as this machine knows.
pub(super) fn user() -> String {
    let user = [SUDO_USER, USER]
        .into_iter()
        .find_map(|name| env::var(name).ok());
    user.unwrap_or_else(|| "somebody".to_owned())
}

pub(super) fn machine() -> String {
    let machine = rustix::system::uname();
    machine.nodename().to_string_lossy().into_owned()
}

/// What is run: with an interpreter, the first argument that is no option.
fn program(command: &[OsString]) -> String {
    let name = |text: &OsString| {
        let name = Path::new(text).file_name().unwrap_or(text);
        name.to_string_lossy().into_owned()
    };
    let Some((first, rest)) = command.split_first() else {
        return String::new();
    };
    let script = rest
        .iter()
        .find(|argument| !argument.to_string_lossy().starts_with('-'))
        .filter(|argument| is_file_name(&argument.to_string_lossy()));
    match script {
        Some(script) => format!("{} {}", name(first), name(script)),
        None => name(first),
    }
}

/// Code on a command line is no name, and nobody's business.
fn is_file_name(text: &str) -> bool {
    let is_plain = |character: char| character.is_alphanumeric() || "._-/+".contains(character);
    text.chars().all(is_plain) && Path::new(text).extension().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_what_they_run() {
        for (command, expected) in [
            (
                &["/usr/bin/python3", "-u", "src/server.py", "80"] as &[&str],
                "python3 server.py",
            ),
            (&["./checkout", "--port", "80"], "checkout"),
            (&["npm", "start"], "npm"),
            (&["node", "-e", "serve({ key: 1.5 })"], "node"),
            (&[], ""),
        ] {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            assert_eq!(program(&command), expected);
        }
    }
}
