//! The text of a config file becomes one resolved [`Settings`], and settings become decisions.
//!
//! Nothing here reads a file, the environment or the clock: texts and surroundings are arguments. So everything is tested
//! with tables, and the same answer is given in the program, in an editor and in a test.
//!
//! ```text
//! text -> tree (with places) -> checked and written out -> merged layers -> Settings -> rules
//! ```
//!
//! - [`Layers`] merges files, variables and flags, and remembers where each value came from.
//! - [`verify`] explains everything that is wrong with a file.
//! - [`EnvRules`], [`FileRules`], [`IncomingRules`], [`OutgoingRules`], [`DnsRules`] and [`SkipRules`] decide, quickly, what is the target's.

mod address;
mod dns;
mod elsewhere;
mod env;
mod environment;
mod error;
mod explain;
mod files;
mod format;
mod incoming;
mod layers;
mod magic;
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
    OnConcurrentSteal, OrderedMap, OutgoingSettings, Patience, PatternText, Port, PortPair,
    PullSecret, QueryText, RegexText, Resources, Seconds, Secret, Settings, Target, TargetError,
    TargetSettings, TargetTlsSettings, TlsDeliverySettings, Toleration, WorkloadKind,
};
pub use skip::{SkipReason, SkipRules};
pub use source::Place;
