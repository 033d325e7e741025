//! The rules for files: regular expressions of canonical paths.

use protocol::grant::FilesGrant;
use regex::bytes::RegexSet;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind};
use rustix::io::Errno;

use super::malformed;
use crate::Result;

#[derive(Debug)]
pub(crate) struct FileRules {
    read_only: RegexSet,
    hidden: RegexSet,
    /// All patterns. `None` if they are too complex, so that nothing can be said about them.
    automaton: Option<DFA>,
}

/// How a file is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    Read,
    Write,
}

impl FileRules {
    /// `None` if there are no rules.
    pub(super) fn parse(grant: &FilesGrant) -> Result<Option<Self>> {
        if grant.read_only.is_empty() && grant.hidden.is_empty() {
            return Ok(None);
        }
        let patterns: Vec<&String> = grant.read_only.iter().chain(&grant.hidden).collect();
        Ok(Some(Self {
            read_only: RegexSet::new(&grant.read_only).map_err(malformed)?,
            hidden: RegexSet::new(&grant.hidden).map_err(malformed)?,
            automaton: automaton(&patterns),
        }))
    }

    /// Fails if the access is forbidden. `path` has no symbolic links.
    pub(crate) fn allow(&self, path: &[u8], file_access: FileAccess) -> Result<(), Errno> {
        if self.hidden.is_match(path) {
            return Err(Errno::NOENT);
        }
        if file_access == FileAccess::Write && self.read_only.is_match(path) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Whether a rule matches a path below a directory, of files that exist or not. Renaming the directory would give these
    /// files paths that the rules do not match.
    pub(crate) fn could_match_below(&self, directory: &[u8]) -> bool {
        let Some(automaton) = &self.automaton else {
            return true;
        };
        let separator: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
        let prefix = [directory, separator].concat();
        let mut cache = automaton.create_cache();
        // A prefix that cannot be judged may have matches.
        could_match_after(automaton, &mut cache, &prefix).unwrap_or(true)
    }
}

fn automaton(patterns: &[&String]) -> Option<DFA> {
    DFA::builder()
        .syntax(syntax::Config::new().utf8(false))
        .thompson(thompson::Config::new().utf8(false))
        .configure(
            DFA::config()
                .match_kind(MatchKind::All)
                .unicode_word_boundary(true),
        )
        .build_many(patterns)
        .ok()
}

/// Whether some text that begins with `prefix` has a match. `None` if the automaton gave up.
fn could_match_after(automaton: &DFA, cache: &mut Cache, prefix: &[u8]) -> Option<bool> {
    let mut state = automaton
        .start_state_forward(cache, &Input::new(prefix))
        .ok()?;
    for byte in prefix {
        state = automaton.next_state(cache, state, *byte).ok()?;
        if state.is_match() || state.is_quit() {
            return Some(true);
        }
        if state.is_dead() {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hiding(patterns: &[&str]) -> FileRules {
        let grant = FilesGrant {
            hidden: patterns.iter().map(|text| (*text).to_owned()).collect(),
            ..FilesGrant::default()
        };
        FileRules::parse(&grant).unwrap().unwrap()
    }

    #[test]
    fn files_are_hidden_or_read_only() {
        let grant = FilesGrant {
            read_only: vec!["^/etc/".to_owned()],
            hidden: vec!["^/etc/shadow$".to_owned(), "\\.key$".to_owned()],
        };
        let rules = FileRules::parse(&grant).unwrap().unwrap();
        let allow = |path: &str, file_access| rules.allow(path.as_bytes(), file_access);
        assert_eq!(allow("/etc/shadow", FileAccess::Read), Err(Errno::NOENT));
        assert_eq!(allow("/tmp/a.key", FileAccess::Write), Err(Errno::NOENT));
        assert_eq!(allow("/etc/hosts", FileAccess::Read), Ok(()));
        assert_eq!(allow("/etc/hosts", FileAccess::Write), Err(Errno::ROFS));
        assert_eq!(allow("/tmp/a", FileAccess::Write), Ok(()));
    }

    #[test]
    fn directories_with_protected_files_are_recognized() {
        let check = |patterns: &[&str], directory: &str, expected: bool| {
            let found = hiding(patterns).could_match_below(directory.as_bytes());
            assert_eq!(found, expected, "{patterns:?} below {directory}");
        };
        check(&["^/srv/cache/"], "/", true);
        check(&["^/srv/cache/"], "/srv", true);
        check(&["^/srv/cache/"], "/srv/cache", true);
        check(&["^/srv/cache/"], "/srv/cache/a", true);
        check(&["^/srv/cache/"], "/srv/cache2", false);
        check(&["^/srv/cache/"], "/srv/ca", false);
        check(&["^/srv/cache/"], "/tmp", false);
        check(&["^/srv/cache(/|$)"], "/srv", true);
        check(&["^/etc/passwd$"], "/etc", true);
        check(&["^/etc/passwd$"], "/etc/passwd", false);
        check(&["^/(etc|srv)/[^/]+/key$"], "/srv/a", true);
        check(&["^/(etc|srv)/[^/]+/key$"], "/srv/a/b", false);
        check(&["(?i)^/SRV/"], "/srv", true);
        // A pattern without `^` can match everywhere.
        check(&["\\.key$"], "/tmp/a", true);
        check(&["^/etc/", "\\.key$"], "/tmp/a", true);
        check(&["^/etc/", "^/srv/"], "/tmp/a", false);
        check(&["^/a\\b"], "/a\u{e9}", true);
        check(&["^/tmp/\\xff"], "/tmp", true);
    }
}
