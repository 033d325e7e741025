//! A regular expression with bounded matching time, for every pattern and every text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fancy_regex::{Regex, RegexBuilder};

use super::Verdict;
use crate::Error;

/// Patterns with look-around can need exponential time. After this number of backtracking steps, a few milliseconds,
/// matching stops, and the pattern does not match.
const MAX_BACKTRACKS: usize = 100_000;
/// Maximum memory of a compiled pattern.
const MAX_COMPILED_SIZE: usize = 1024 * 1024;

/// A regular expression with mirrord's semantics: case-insensitive, with look-around.
#[derive(Clone)]
pub struct Pattern {
    regex: Arc<Regex>,
    text: Arc<str>,
    /// Set when the warning about the backtracking limit has been logged.
    was_reported: Arc<AtomicBool>,
}

/// The result of matching a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatternMatch {
    Match,
    NoMatch,
    /// The backtracking limit was exceeded.
    LimitExceeded,
}

impl Pattern {
    /// Compiles a regular expression.
    pub fn new(text: &str) -> Result<Self, Error> {
        let regex = RegexBuilder::new(text)
            .case_insensitive(true)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(MAX_COMPILED_SIZE)
            .delegate_dfa_size_limit(MAX_COMPILED_SIZE)
            .build()
            .map_err(|source| Error::Pattern {
                text: text.to_owned(),
                source: Box::new(source),
            })?;
        Ok(Self {
            regex: Arc::new(regex),
            text: text.into(),
            was_reported: Arc::default(),
        })
    }

    /// Searches for a match anywhere in the text.
    pub(super) fn is_match(&self, text: &str) -> PatternMatch {
        match self.regex.is_match(text) {
            Ok(true) => PatternMatch::Match,
            Ok(false) => PatternMatch::NoMatch,
            Err(error) => {
                if !self.was_reported.swap(true, Ordering::Relaxed) {
                    // A pattern may contain a credential, so the log has only its length.
                    let length = self.text.len();
                    tracing::warn!(length, %error, "filter pattern exceeded backtracking limit");
                }
                PatternMatch::LimitExceeded
            }
        }
    }
}

impl PatternMatch {
    /// The verdict, or `None` if further text has to be matched. After the limit was exceeded once no further text is
    /// tried: other text of the same request may take as long.
    pub(super) fn decided(self) -> Option<Verdict> {
        (self != Self::NoMatch).then(|| self.into())
    }
}

impl From<PatternMatch> for Verdict {
    fn from(result: PatternMatch) -> Self {
        (result == PatternMatch::Match).into()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, formatter)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
