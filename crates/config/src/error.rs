//! The error of settings that cannot be compiled to rules.

use thiserror::Error;

/// Each pattern was checked when it was read, so the remaining error is that they are too large together.
#[derive(Debug, Error)]
pub enum RuleError {
    #[error("`{key}`: `{pattern}` cannot be used; write a simpler expression")]
    Regex {
        key: &'static str,
        pattern: String,
        source: regex::Error,
    },
    #[error("`{key}`: the expressions are too large together; write fewer or simpler ones")]
    TooLarge {
        key: &'static str,
        source: regex::Error,
    },
}
