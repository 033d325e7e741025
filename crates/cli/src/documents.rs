//! Checks that the commands in the documentation and in the help texts can be parsed.

use std::fs;
use std::path::Path;

use clap::Parser as _;
use clap::error::ErrorKind;

use super::Command;

/// The calls of this program in lines of code and between backticks, without shell syntax around them.
fn calls(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let words = text.split('`');
    let calls = lines.chain(words).filter_map(|call| {
        let call = call.trim_start_matches("$ ").trim_start_matches("sudo ");
        let call = call.trim_start_matches("target/debug/");
        let is_prose = call.contains(['\n', '…', '`', '[']) || call.starts_with("standin:");
        (call.starts_with("standin ") && !is_prose).then_some(call)
    });
    calls.map(before_comment).collect()
}

fn before_comment(call: &str) -> &str {
    let call = call.split_once(" #").map_or(call, |(call, _)| call);
    let call = call.split_once(" | ").map_or(call, |(call, _)| call);
    call.split_once(" > ").map_or(call, |(call, _)| call).trim()
}

/// Splits a command into words like a shell that supports only single quotes.
fn words(call: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for letter in call.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A command in a text may lack required arguments, and may have placeholders for values.
#[track_caller]
fn check(call: &str) {
    let Err(error) = Command::try_parse_from(words(call)) else {
        return;
    };
    let is_incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::ValueValidation
    );
    assert!(is_incomplete, "{call}: {error}");
}

#[test]
fn commands_in_documents_can_be_parsed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().path());
    let others = ["README.md", "SECURITY.md", "CONTRIBUTING.md"];
    let others = others.iter().map(|name| root.join(name));
    let mut count = 0;
    for page in pages.chain(others) {
        for call in calls(&fs::read_to_string(&page).unwrap()) {
            check(call);
            count += 1;
        }
    }
    assert!(count > 50, "only {count} calls were found");
}

#[test]
fn examples_in_help_can_be_parsed() {
    let examples = calls(include_str!("exec/examples.txt"));
    assert!(examples.len() > 4, "{examples:?}");
    for example in examples {
        check(example);
    }
}

#[test]
fn unknown_flags_are_found() {
    let text = "`standin exec --no-such-flag`, and\n  sudo standin exec -t 'a b' -- ls # all\nstandin ls | wc -l\n";
    assert_eq!(
        calls(text),
        [
            "standin exec -t 'a b' -- ls",
            "standin ls",
            "standin exec --no-such-flag"
        ]
    );
    assert_eq!(words("standin -t 'a b'  c"), ["standin", "-t", "a b", "c"]);
    let wrong = std::panic::catch_unwind(|| check("standin exec --no-such-flag"));
    assert!(wrong.is_err());
}
