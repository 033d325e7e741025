//! The library of the end-to-end tests: clusters and local targets to test against, a namespace for each scenario, and
//! diagnostics when a scenario fails.
//!
//! The scenarios themselves are in `tests/scenarios`.
//!
//! | module | what it does |
//! |---|---|
//! | `clusters` | starts the clusters that the scenarios share, or connects to existing ones |
//! | [`environment`] | names the environment variables that the tests read |
//! | [`fixture`] | compiles the programs and servers of `fixtures` |
//! | [`machine`] | runs targets and agents on this machine, without a cluster |
//! | `namespace` | creates a namespace for a scenario, and runs `kubectl` and commands in its pods |
//! | `scenario` | turns a function into a test, with diagnostics and cleanup |
//! | `timing` | reports how long each scenario took and what it waited for |
//! | `wait` | polls until a condition holds |

mod clusters;
pub mod environment;
pub mod fixture;
pub mod machine;
mod namespace;
mod scenario;
mod timing;
mod wait;

pub use clusters::{Environment, LazyEnvironment, OwnClusters, TestCluster};
pub use namespace::{CommandOutput, TestNamespace};
pub use scenario::{Needs, Scenario, scenario};
pub use timing::print_timings;
pub use wait::until;
