//! Every environment variable that the end-to-end tests read.

/// Contexts of the user's kubeconfig, separated by commas, to run the scenarios on instead of a lab.
pub(crate) const CONTEXTS: &str = "STANDIN_CONTEXTS";

/// The folder with prebuilt `standin` and `standind`. Without it the tests build them.
pub const PROGRAMS: &str = "STANDIN_PROGRAMS";

/// The prebuilt agent program, linked statically. Without it the tests build it.
pub const STATIC_STANDIND: &str = lab::environment::STATIC_STANDIND;

/// The folder with the compiled programs of `fixtures`. Without it the tests compile them.
pub const FIXTURES: &str = "STANDIN_FIXTURES";

/// The folder of the AWS CLI and of moto, which `cargo xtask test` installs.
pub const AWS_TOOLS: &str = "STANDIN_AWS_TOOLS";

/// The group of scenarios to run: `shared-clusters`, `own-clusters` or `labs`. Without it all of them run.
pub const GROUP: &str = "STANDIN_E2E_GROUP";

/// The number of cycles of the long soak test, which then runs without the other scenarios.
pub const SOAK_CYCLES: &str = "STANDIN_SOAK_CYCLES";
