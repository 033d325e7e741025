//! Describes the holder of a session, for other users who want the same traffic.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use proxy::Holder;
use rustix::process::getuid;
use sha2::{Digest as _, Sha256};

use crate::environment::{SUDO_USER, USER};

const MACHINE_ID: &str = "/etc/machine-id";

/// The format of the name is `alice@laptop (server.py)`.
pub(super) fn holder(command: &[OsString]) -> Holder {
    let (user, machine) = (user(), machine());
    let machine_id = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    Holder {
        owner: owner(&user, getuid().as_raw(), &machine, &machine_id),
        name: format!("{user}@{machine} ({})", program(command)),
    }
}

/// Identifies a user on a machine; several machines may have the same name. It is a digest, because a machine id must not be
/// disclosed.
fn owner(user: &str, uid: u32, machine: &str, machine_id: &str) -> String {
    let text = format!("standin\n{user}\n{uid}\n{machine}\n{}", machine_id.trim());
    let digest = Sha256::digest(text.as_bytes());
    let digits = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// The name of the user who runs this process.
pub(super) fn user() -> String {
    let user = [SUDO_USER, USER]
        .into_iter()
        .find_map(|name| env::var(name).ok());
    user.unwrap_or_else(|| "unknown".to_owned())
}

pub(super) fn machine() -> String {
    let machine = rustix::system::uname();
    machine.nodename().to_string_lossy().into_owned()
}

/// The name of the program, and of the script if an interpreter runs one: the first argument that is no option.
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

/// Whether an argument looks like a file name. Inline code must not be disclosed.
fn is_file_name(text: &str) -> bool {
    let is_plain = |character: char| character.is_alphanumeric() || "._-/+".contains(character);
    text.chars().all(is_plain) && Path::new(text).extension().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_distinguished() {
        let ada = owner("ada", 1000, "laptop", "abc\n");
        assert_eq!(ada, owner("ada", 1000, "laptop", "abc"));
        assert_eq!(ada.len(), 32);
        assert!(!ada.contains("abc"));
        for other in [
            owner("bob", 1000, "laptop", "abc"),
            owner("ada", 0, "laptop", "abc"),
            owner("ada", 1000, "desktop", "abc"),
            owner("ada", 1000, "laptop", "def"),
        ] {
            assert_ne!(ada, other);
        }
    }

    #[test]
    fn programs_are_named_by_what_they_run() {
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
