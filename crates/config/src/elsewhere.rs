//! Keys that belong to mirrord's configuration, or to a later version of Standin, and have no effect in this one.
//!
//! A file that has them loads, with a warning for each. What is below them is not looked at.

/// A key's path and why it has no effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elsewhere {
    pub(crate) path: &'static str,
    pub(crate) reason: &'static str,
}

const CLUSTER: &str = "sessions in a cluster come in a later version";
const OPERATOR: &str = "sessions through an operator come in a later version";
const MAGIC: &str = "magic comes in a later version";
const MACOS: &str = "it is for macOS, and Standin runs on Linux";
const NO_SUCH_PART: &str = "Standin has no such part";
const ONE_PROCESS: &str = "the proxy is part of the `standin` process and ends with it";

#[rustfmt::skip] // A table is read by its columns.
pub(crate) const ELSEWHERE: &[Elsewhere] = &[
    known("accept_invalid_certificates",         CLUSTER),
    known("agent",                               CLUSTER),
    known("api",                                 "an interface for other programs comes in a later version"),
    known("baggage",                             OPERATOR),
    known("ci",                                  "sessions in CI need no settings of their own"),
    known("connect_tcp",                         NO_SUCH_PART),
    known("container",                           "running a whole container comes in a later version"),
    known("experimental",                        NO_SUCH_PART),
    known("external_proxy",                      ONE_PROCESS),
    known("feature.copy_target",                 OPERATOR),
    known("feature.db_branches",                 OPERATOR),
    known("feature.env.load_from_process",       "the process has the target's variables from its first instruction"),
    known("feature.fs.readonly_file_buffer",     "the kernel reads ahead and caches"),
    known("feature.magic",                       MAGIC),
    known("feature.network.ipv6",                "IPv6 is always on"),
    known("feature.preview",                     OPERATOR),
    known("feature.redis",                       OPERATOR),
    known("feature.split_queues",                OPERATOR),
    known("internal_proxy",                      ONE_PROCESS),
    known("key",                                 OPERATOR),
    known("kube_context",                        CLUSTER),
    known("kubeconfig",                          CLUSTER),
    known("magic",                               MAGIC),
    known("operator",                            OPERATOR),
    known("pause",                               NO_SUCH_PART),
    known("profile",                             OPERATOR),
    known("sip_binaries",                        MACOS),
    known("skip_sip",                            MACOS),
    known("startup_retry",                       CLUSTER),
    known("telemetry",                           "Standin sends nothing to anybody"),
    known("traceparent",                         OPERATOR),
    known("use_proxy",                           CLUSTER),
];

const fn known(path: &'static str, reason: &'static str) -> Elsewhere {
    Elsewhere { path, reason }
}
