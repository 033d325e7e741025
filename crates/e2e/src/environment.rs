//! Every environment variable that the stories read.

/// Contexts of the user's kubeconfig, separated by commas, to tell the stories on instead of a lab.
pub(crate) const CONTEXTS: &str = "STANDIN_CONTEXTS";

/// The folder of `standin` and `standind`, when someone has built them already.
pub const PROGRAMS: &str = "STANDIN_PROGRAMS";

/// The agent's program, linked statically, when someone has built it already.
pub const STATIC_STANDIND: &str = lab::environment::STATIC_STANDIND;

/// The folder of the compiled programs that stand in, when someone has made them already.
pub const FIXTURES: &str = "STANDIN_FIXTURES";

/// How many cycles the soak of sessions has, when it is not told with all other stories.
pub const SOAK_CYCLES: &str = "STANDIN_SOAK_CYCLES";
