//! The problems of a configuration, each with the allowed values and the next step.

use thiserror::Error;

use crate::address::AddressError;
use crate::format::Format;
use crate::settings::TargetError;
use crate::source::Location;

/// An error or a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub kind: ProblemKind,
    /// The key, as in `feature.fs.mode`; empty if the problem concerns the whole text.
    pub key: String,
    pub location: Location,
    pub(crate) source: usize,
    pub(crate) range: std::ops::Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The settings cannot be used.
    Error,
    /// The settings can be used, and something in them has no effect.
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProblemKind {
    #[error("this is not {format}: {message}")]
    Syntax {
        format: Format,
        message: String,
        /// Whether the line looks like a template.
        template: bool,
    },
    #[error("there is a second document")]
    SecondDocument,
    #[error("a key must be text")]
    KeyIsNotText,
    #[error("the text is longer than {max_length} bytes")]
    TooLong { max_length: usize },
    #[error("maps and lists are nested deeper than {max_depth} levels")]
    TooDeep { max_depth: usize },
    #[error("there are more than {max} values")]
    TooManyValues { max: usize },
    #[error("unknown key `{key}`")]
    UnknownKey {
        key: String,
        allowed: Vec<String>,
        suggestion: Option<String>,
    },
    #[error("`{key}` is set twice")]
    SetTwice { key: String },
    #[error("expected {allowed}, found {found}")]
    WrongKind {
        allowed: String,
        found: &'static str,
        advice: &'static str,
    },
    #[error("unknown value `{found}`")]
    UnknownValue {
        found: String,
        allowed: Vec<String>,
        suggestion: Option<String>,
    },
    #[error("`{}` and `{}` exclude each other", .keys[0], .keys[1])]
    Exclusive { keys: [String; 2] },
    #[error("not a regular expression: {reason}")]
    Regex { reason: String },
    #[error("not an address: {0}")]
    Address(AddressError),
    #[error("not a target: {0}")]
    Target(TargetError, Option<String>),
    #[error("`{key}` has no effect: {reason}")]
    NoEffect { key: String, reason: &'static str },
    #[error("`{found}` is not a number from {min} to {max}")]
    OutOfRange { found: String, min: u64, max: u64 },
    #[error("{}, found {found}", length(*.min, *.max))]
    WrongLength {
        min: usize,
        max: usize,
        found: usize,
    },
    #[error("`{found}` is not a pair of ports")]
    Pair { found: String },
    #[error("this is empty")]
    Empty { keys: Vec<String> },
    #[error("`{key}` requires `{needed}`")]
    Incomplete { key: String, needed: String },
    #[error("not a JSONPath query: {reason}")]
    Query { reason: String },
    #[error("`{found}` is not an HTTP method")]
    Method { found: String },
    #[error("`{found}` is not a duration")]
    Time { found: String },
    #[error("templates are not expanded")]
    Template,
    #[error("unknown variable `{name}`")]
    UnknownVariable {
        name: String,
        suggestion: Option<String>,
    },
    #[error("these settings cannot be used together: {message}")]
    Inconsistent { message: String },
}

impl Problem {
    pub fn severity(&self) -> Severity {
        self.kind.severity()
    }
}

impl ProblemKind {
    pub fn severity(&self) -> Severity {
        match self {
            Self::NoEffect { .. } | Self::Template | Self::UnknownVariable { .. } => {
                Severity::Warning
            }
            _ => Severity::Error,
        }
    }

    /// Whether the message already names the key.
    pub(crate) fn names_its_key(&self) -> bool {
        matches!(
            self,
            Self::UnknownKey { .. }
                | Self::SetTwice { .. }
                | Self::Incomplete { .. }
                | Self::NoEffect { .. }
        )
    }

    /// The values that are allowed instead.
    pub fn allowed(&self) -> Option<String> {
        match self {
            Self::UnknownKey { allowed, .. } | Self::UnknownValue { allowed, .. } => {
                let quoted: Vec<_> = allowed.iter().map(|name| format!("`{name}`")).collect();
                Some(format!("allowed here: {}", quoted.join(", ")))
            }
            Self::Address(_) => {
                Some("an entry is `[protocol://][name|address|subnet][:port]`".to_owned())
            }
            Self::Target(..) => Some(
                "a target is `process/<pid>`, `container/<name>`, `<kind>/<name>`, `<kind>/<name>/container/<name>` or \
                 `targetless`"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The next step for the user.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Syntax { template: true, .. } | Self::Template => TEMPLATE_HINT,
            Self::Syntax { format, .. } => {
                return Some(format!(
                    "correct the {format} here; the text after it was not checked"
                ));
            }
            Self::SecondDocument => "remove the line `---` and what follows it",
            Self::KeyIsNotText => "write the key as text",
            Self::TooLong { .. } | Self::TooDeep { .. } | Self::TooManyValues { .. } => {
                "no setting needs this: check whether this is the right file"
            }
            Self::UnknownKey { suggestion, .. } | Self::UnknownValue { suggestion, .. } => {
                return Some(match suggestion {
                    Some(suggestion) => format!("did you mean `{suggestion}`?"),
                    None => "remove it, or see docs/configuration.md for all keys".to_owned(),
                });
            }
            Self::Exclusive { keys } if keys[0].ends_with("_filter") => {
                "remove one of them, or put both into `all_of` or `any_of`"
            }
            Self::SetTwice { .. } | Self::Exclusive { .. } => "remove one of them",
            Self::WrongKind { advice, .. } => advice,
            Self::Regex { reason } if reason.contains("look-around") => {
                "describe what matches instead; a path can also be named in another list, which has precedence"
            }
            Self::Regex { .. } => "put a backslash before a special character, as in `\\.json$`",
            Self::Address(error) => address_hint(error),
            Self::Target(error, suggestion) => {
                return Some(target_hint(error, suggestion.as_ref()));
            }
            Self::NoEffect { .. } => "nothing to do: it can stay for other tools, or be removed",
            Self::UnknownVariable { suggestion, .. } => {
                return Some(match suggestion {
                    Some(suggestion) => format!("did you mean `{suggestion}`?"),
                    None => "unset it, or see docs/configuration.md for all variables".to_owned(),
                });
            }
            Self::Inconsistent { .. } => "simplify the settings that are named",
            Self::OutOfRange { .. } => "write a number in that range, without quotes",
            Self::WrongLength { max: 2, .. } => {
                "a pair is `[local, remote]`, such as `[8081, 8080]`"
            }
            Self::Pair { .. } => {
                "a pair is `local:remote`, such as `8081:8080`, or `[local, remote]`, such as `[8081, 8080]`"
            }
            Self::WrongLength { .. } => "add the missing items, or remove the key",
            Self::Empty { keys } => {
                let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
                return Some(format!("name one of {}", keys.join(", ")));
            }
            Self::Incomplete { needed, .. } => return Some(format!("add `{needed}`")),
            Self::Query { .. } => "for example `$.order.customer`; see RFC 9535",
            Self::Method { .. } => "for example `POST`",
            Self::Time { .. } => "write a number with its unit: `500ms`, `10s` or `2m`",
        };
        Some(text.to_owned())
    }
}

fn length(min: usize, max: usize) -> String {
    if min == max {
        format!("expected a list of {min}")
    } else {
        format!("expected a list of at least {min}")
    }
}

const TEMPLATE_HINT: &str =
    "write the value itself, or set it with a variable such as STANDIN_TARGET";

fn address_hint(error: &AddressError) -> &'static str {
    match error {
        AddressError::Protocol(_) => "write `tcp://` or `udp://`, or leave it out for both",
        AddressError::Port(_) => {
            "a port is a number from 1 to 65535; an IPv6 address before it needs brackets"
        }
        AddressError::Bits(_) => {
            "the length is at most 32 for IPv4 and 128 for IPv6, as in `10.0.0.0/8`"
        }
        AddressError::Empty | AddressError::Address(_) | AddressError::Name(_) => {
            "for example `tcp://10.0.0.0/8:5432`, `api.example.com:443`, `[fd00::/8]:443` or `:53`"
        }
    }
}

fn target_hint(error: &TargetError, suggestion: Option<&String>) -> String {
    match (error, suggestion) {
        (_, Some(suggestion)) => format!("did you mean `{suggestion}`?"),
        (TargetError::NotAProcess(_), None) => {
            "`pgrep -n <program>` prints the id of a running program".to_owned()
        }
        (TargetError::UnknownKind(_), None) => {
            format!("kinds are {}", crate::settings::Target::kinds().join(", "))
        }
        _ => "for example `deployment/checkout` or `pod/checkout-5d9/container/app`".to_owned(),
    }
}
