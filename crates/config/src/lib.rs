//! Parses config files into resolved [`Settings`], and compiles settings into rules that make decisions.
//!
//! Nothing here reads a file, the environment or the clock: they are arguments. So everything is tested with tables, and the
//! result is the same in the program, in an editor and in a test.
//!
//! ```text
//! text -> tree (with spans) -> checked and expanded -> merged layers -> Settings -> rules
//! ```
//!
//! - [`Layers`] merges files, variables and flags, and keeps the origin of each value.
//! - [`verify`] reports all problems of a file.
//! - [`EnvRules`], [`FileRules`], [`IncomingRules`], [`OutgoingRules`], [`DnsRules`] and [`SkipRules`] decide, quickly, what is the target's.
//!
//! | module | what it does |
//! |---|---|
//! | `settings` | the types of all keys, with their documentation |
//! | `schema`, `shape`, `reference` | the JSON schema, its typed form, and the reference for users |
//! | `source`, `format`, `tree` | source texts, and their parsers |
//! | `read` | checks a tree against the shape, and expands short forms |
//! | `layers`, `environment`, `magic`, `targetless`, `explain` | merge all sources, adapt the settings to the session, and explain the result |
//! | `problem`, `report` | problems of a configuration, and how they are shown |
//! | `env`, `files`, `incoming`, `outgoing`, `dns`, `skip` | the rules |
//! | `address`, `wildcard`, `other_tools`, `error` | address filters, wildcard patterns, keys without effect, errors |

mod address;
mod dns;
mod env;
mod environment;
mod error;
mod explain;
mod files;
mod format;
mod incoming;
mod layers;
mod magic;
mod other_tools;
mod outgoing;
mod problem;
mod read;
mod reference;
mod report;
mod schema;
mod settings;
mod shape;
mod skip;
mod source;
mod targetless;
mod tree;
mod wildcard;

pub use address::{AddressError, AddressPattern, HostPattern, Protocol, Subnet};
pub use dns::DnsRules;
pub use env::{EnvFile, EnvFileError, EnvRules, Environment};
pub use environment::{VARIABLES, Variable};
pub use error::RuleError;
pub use explain::Effective;
pub use files::{Choice, FileRules, Surroundings};
pub use format::Format;
pub use incoming::{HttpFilter, IncomingRules};
pub use layers::{Layers, Origin, Origins, Resolved};
pub use magic::MagicSurroundings;
pub use outgoing::{OutgoingRules, Side};
pub use problem::{Problem, ProblemKind, Severity};
pub use read::closest;
pub use reference::reference_text;
pub use report::{Report, Style, verify};
pub use schema::schema_text;
pub use settings::{
    AddressFilter, AgentSettings, BodyFilter, BodyKind, DeliveryProtocol, DnsSettings, EnvSettings,
    FeatureSettings, FileMode, FileSettings, HttpFilterItem, HttpFilterSettings, ImagePullPolicy,
    IncomingMode, IncomingSettings, List, MagicSettings, NamePattern, NetworkSettings,
    OnConcurrentSteal, OrderedMap, OutgoingSettings, PatternText, Port, PortPair, PullSecret,
    QueryText, RegexText, Resources, Seconds, Secret, Settings, Target, TargetError,
    TargetSettings, TargetTlsSettings, Timeout, TlsDeliverySettings, Toleration, WorkloadKind,
};
pub use skip::{SkipReason, SkipRules};
pub use source::Location;
