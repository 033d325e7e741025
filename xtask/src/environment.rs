//! Every environment variable that the repository's commands read, set or pass on.

/// Contexts of a kubeconfig, separated by commas, that the end-to-end tests use instead of the lab.
pub(crate) const CONTEXTS: &str = "STANDIN_CONTEXTS";

/// The folder of `standin` and `standind` for the end-to-end tests.
pub(crate) const PROGRAMS: &str = "STANDIN_PROGRAMS";

/// The folder of the compiled fixtures of the end-to-end tests.
pub(crate) const FIXTURES: &str = "STANDIN_FIXTURES";

/// The group of end-to-end tests that a process runs.
pub(crate) const E2E_GROUP: &str = "STANDIN_E2E_GROUP";

/// The folder of the AWS CLI, moto and botocore, for the tests of sessions and of tokens.
pub(crate) const AWS_TOOLS: &str = "STANDIN_AWS_TOOLS";

/// The debugger of Go, for the tests of sessions.
pub(crate) const DELVE: &str = "STANDIN_DELVE";

/// The folder of the running package's manifest. Set by `cargo run`.
pub(crate) const CARGO_MANIFEST_DIR: &str = "CARGO_MANIFEST_DIR";

/// Cargo's target directory, when it is not `target` in the repository.
pub(crate) const CARGO_TARGET_DIR: &str = "CARGO_TARGET_DIR";

/// The cache directory, when it is not `~/.cache`.
pub(crate) const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";

pub(crate) const HOME: &str = "HOME";
pub(crate) const PATH: &str = "PATH";

/// Whether Go programs link with C. Without C they are static.
pub(crate) const CGO_ENABLED: &str = "CGO_ENABLED";

/// Makes apt non-interactive.
pub(crate) const DEBIAN_FRONTEND: &str = "DEBIAN_FRONTEND";

/// The variables of the caller that a step needs when it runs through sudo. `PATH` and `HOME` are not in the list because
/// sudo replaces them even when it should preserve them; they are passed through `env`.
pub(crate) const KEPT_BY_SUDO: &[&str] = &[
    CONTEXTS,
    PROGRAMS,
    FIXTURES,
    E2E_GROUP,
    AWS_TOOLS,
    DELVE,
    lab::environment::SHOP_PROGRAMS,
    lab::environment::STATIC_STANDIND,
    lab::environment::SHOP_NODE,
    lab::environment::LAB_DIRECTORY,
    lab::environment::IMAGE_LOADER,
    "CARGO",
    CARGO_MANIFEST_DIR,
    XDG_CACHE_HOME,
    DEBIAN_FRONTEND,
    "CARGO_HOME",
    CARGO_TARGET_DIR,
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "GOCACHE",
    "GOFLAGS",
    "GOMODCACHE",
    "GOPATH",
    "GOPROXY",
    "GOSUMDB",
    "GOTOOLCHAIN",
    "KUBECONFIG",
    "NO_COLOR",
    "CI",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
