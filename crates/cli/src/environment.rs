//! The names of the environment variables that `standin` reads, apart from those of the settings.

/// The agent's program, if it is not in the folder of this one.
pub(crate) const AGENT_PROGRAM: &str = "STANDIN_AGENT_PROGRAM";
/// The secret of an agent that already runs.
pub(crate) const AGENT_TOKEN: &str = "STANDIN_AGENT_TOKEN";
/// The configuration file, if none is named on the command line.
pub(crate) const CONFIG_FILE: &str = "STANDIN_CONFIG_FILE";
/// The hub, if none is named on the command line.
pub(crate) const HUB: &str = "STANDIN_HUB";
/// The podman program, if it is not `podman` in `PATH`.
pub(crate) const PODMAN: &str = "STANDIN_PODMAN";

/// The folder of the sockets of sessions, if it is not `~/.standin/sessions`.
pub(crate) const SESSIONS_DIR: &str = "STANDIN_SESSIONS_DIR";

/// Variables with the prefix of settings that are not settings.
pub(crate) const NOT_SETTINGS: &[&str] = &[
    AGENT_PROGRAM,
    AGENT_TOKEN,
    CONFIG_FILE,
    HUB,
    PODMAN,
    SESSIONS_DIR,
    "STANDIN_LAB_DIR",
];

/// Any value but an empty one disables colours. See no-color.org.
pub(crate) const NO_COLOR: &str = "NO_COLOR";
pub(crate) const HOME: &str = "HOME";
/// The proxy to servers with TLS, as `http://[USER:PASSWORD@]HOST:PORT`. Also in small letters.
pub(crate) const HTTPS_PROXY: &str = "HTTPS_PROXY";
/// Hosts that are reached without the proxy, separated by commas. Also in small letters.
pub(crate) const NO_PROXY: &str = "NO_PROXY";
/// The files that kubectl uses.
pub(crate) const KUBECONFIG: &str = "KUBECONFIG";
/// The folders in which a shell finds programs.
pub(crate) const PATH: &str = "PATH";
/// The base folder of logs and other state that needs no backup.
pub(crate) const STATE_HOME: &str = "XDG_STATE_HOME";
pub(crate) const TEMPORARY: &str = "TMPDIR";
/// The user who called `sudo`.
pub(crate) const SUDO_USER: &str = "SUDO_USER";
pub(crate) const USER: &str = "USER";
/// The type of the terminal.
pub(crate) const TERM: &str = "TERM";
