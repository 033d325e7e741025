//! A regular expression that cannot take long, whatever it is and whatever it is tried on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fancy_regex::{Regex, RegexBuilder};

use super::Judgement;
use crate::Error;

/// Expressions that look around can need exponential time. After so many steps, a few milliseconds, they have no match.
const MOST_STEPS: usize = 100_000;
/// The most memory that a compiled expression may take.
const LARGEST_COMPILED: usize = 1024 * 1024;

/// A regular expression as mirrord takes it: case does not matter, and looking around is possible.
#[derive(Clone)]
pub struct Pattern {
    regex: Arc<Regex>,
    text: Arc<str>,
    /// It has been said that the expression takes too long.
    was_reported: Arc<AtomicBool>,
}

/// What trying a pattern told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    Match,
    NoMatch,
    /// It would take too long to know.
    GivenUp,
}

impl Pattern {
    /// Reads a regular expression.
    pub fn new(text: &str) -> Result<Self, Error> {
        let regex = RegexBuilder::new(text)
            .case_insensitive(true)
            .backtrack_limit(MOST_STEPS)
            .delegate_size_limit(LARGEST_COMPILED)
            .delegate_dfa_size_limit(LARGEST_COMPILED)
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

    /// Whether there is a match anywhere in the text.
    pub(super) fn is_match(&self, text: &str) -> Tried {
        match self.regex.is_match(text) {
            Ok(true) => Tried::Match,
            Ok(false) => Tried::NoMatch,
            Err(error) => {
                if !self.was_reported.swap(true, Ordering::Relaxed) {
                    tracing::warn!(pattern = %self.text, %error, "a filter takes too long; what it is tried on counts as no match");
                }
                Tried::GivenUp
            }
        }
    }
}

impl Tried {
    /// The judgement, unless further text is to be tried. Giving up once is enough: other text of the same request may
    /// take as long.
    pub(super) fn stop_unless_no(self) -> Option<Judgement> {
        (self != Self::NoMatch).then(|| self.into())
    }
}

impl From<Tried> for Judgement {
    fn from(tried: Tried) -> Self {
        (tried == Tried::Match).into()
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
