//! Whose session it is, in words for others who want the same traffic.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use proxy::Holder;
use rustix::process::getuid;
use sha2::{Digest as _, Sha256};

use crate::environment::{SUDO_USER, USER};

/// Where an installation of Linux has its number.
const MACHINE_ID: &str = "/etc/machine-id";

/// Its name is as in `alice@laptop (server.py)`.
pub(super) fn holder(command: &[OsString]) -> Holder {
    let (user, machine) = (user(), machine());
    let number = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    Holder {
        owner: owner(&user, getuid().as_raw(), &machine, &number),
        name: format!("{user}@{machine} ({})", program(command)),
    }
}

/// Tells users and their machines apart, of which several may have the same name. A machine's number is nobody else's
/// business, so it cannot be read from this.
fn owner(user: &str, uid: u32, machine: &str, number: &str) -> String {
    let words = format!("standin\n{user}\n{uid}\n{machine}\n{}", number.trim());
    let digest = Sha256::digest(words.as_bytes());
    let digits = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    digits.collect()
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
    fn owners_are_told_apart() {
        let known = owner("ada", 1000, "laptop", "abc\n");
        assert_eq!(known, owner("ada", 1000, "laptop", "abc"));
        assert_eq!(known.len(), 32);
        assert!(!known.contains("abc"));
        for other in [
            owner("bob", 1000, "laptop", "abc"),
            owner("ada", 0, "laptop", "abc"),
            owner("ada", 1000, "desktop", "abc"),
            owner("ada", 1000, "laptop", "def"),
        ] {
            assert_ne!(known, other);
        }
    }

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
