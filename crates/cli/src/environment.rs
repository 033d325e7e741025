//! The names of the environment variables that `standin` knows, apart from those of the settings.

/// The agent's program, when it is not beside this one.
pub(crate) const AGENT_PROGRAM: &str = "STANDIN_AGENT_PROGRAM";
/// The secret of an agent that runs already.
pub(crate) const AGENT_TOKEN: &str = "STANDIN_AGENT_TOKEN";
/// The configuration file, when none is named on the command line.
pub(crate) const CONFIG_FILE: &str = "STANDIN_CONFIG_FILE";
/// The program that knows the containers of this machine, when it is not `podman` in `PATH`.
pub(crate) const PODMAN: &str = "STANDIN_PODMAN";

/// The folder of the sockets of sessions, when it is not `~/.standin/sessions`.
pub(crate) const SESSIONS_DIR: &str = "STANDIN_SESSIONS_DIR";

/// Variables with our prefix that are not settings.
pub(crate) const NOT_SETTINGS: &[&str] = &[
    AGENT_PROGRAM,
    AGENT_TOKEN,
    CONFIG_FILE,
    PODMAN,
    SESSIONS_DIR,
    "STANDIN_LAB_DIR",
];

/// Set to anything but nothing: no colours. See no-color.org.
pub(crate) const NO_COLOR: &str = "NO_COLOR";
pub(crate) const HOME: &str = "HOME";
/// Where programs keep what is not worth a backup, such as logs.
pub(crate) const STATE_HOME: &str = "XDG_STATE_HOME";
pub(crate) const TEMPORARY: &str = "TMPDIR";
/// Who called `sudo`.
pub(crate) const SUDO_USER: &str = "SUDO_USER";
pub(crate) const USER: &str = "USER";
/// What the terminal can do.
pub(crate) const TERM: &str = "TERM";
