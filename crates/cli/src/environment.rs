//! The names of the environment variables that `standin` knows, apart from those of the settings.

/// The agent's program, when it is not beside this one.
pub(crate) const AGENT_PROGRAM: &str = "STANDIN_AGENT_PROGRAM";
/// The secret of an agent that runs already.
pub(crate) const AGENT_TOKEN: &str = "STANDIN_AGENT_TOKEN";

/// Variables with our prefix that are not settings.
pub(crate) const NOT_SETTINGS: &[&str] = &[AGENT_PROGRAM, AGENT_TOKEN, "STANDIN_LAB_DIR"];
