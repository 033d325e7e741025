//! Keys that belong to mirrord's configuration, or to a later version of Standin, and have no effect in this one.
//!
//! A file that has them loads, with a warning for each. What is below them is not looked at.

/// A key's path and why it has no effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elsewhere {
    pub(crate) path: &'static str,
    pub(crate) reason: &'static str,
}

const OPERATOR: &str = "the operator of this version does not know it";
const INCOMING: &str = "it is a part of `feature.network.incoming`, or not needed";
const RULES: &str = "the kernel removes the rules of an agent that has ended";
const MACOS: &str = "it is for macOS, and Standin runs on Linux";
const NO_SUCH_PART: &str = "Standin has no such part";
const ONE_PROCESS: &str = "the proxy is part of the `standin` process and ends with it";

#[rustfmt::skip] // A table is read by its columns.
pub(crate) const ELSEWHERE: &[Elsewhere] = &[
    known("agent.check_out_of_pods",               "the kubelet's own words are shown when a node has no room"),
    known("agent.clean_iptables_on_start",         RULES),
    known("agent.disabled_capabilities",           "an agent has no capability that it could do without"),
    known("agent.disable_mesh_sidecar_injection",  "no mesh puts a proxy into an agent's pod"),
    known("agent.dns",                             "names are asked for as the target would"),
    known("agent.exclude_from_mesh",               "no mesh puts a proxy into an agent's pod"),
    known("agent.flush_connections",               INCOMING),
    known("agent.inject_headers",                  INCOMING),
    known("agent.json_log",                        NO_SUCH_PART),
    known("agent.max_body_buffer_size",            INCOMING),
    known("agent.max_body_buffer_timeout",         INCOMING),
    known("agent.metrics",                         NO_SUCH_PART),
    known("agent.network_interface",               NO_SUCH_PART),
    known("agent.nftables",                        RULES),
    known("agent.passthrough_mirroring",           INCOMING),
    known("agent.privileged",                      "an agent is never privileged"),
    known("agent.security_context",                "an agent has no right that it could do without"),
    known("agent.ttl",                             "Kubernetes removes an agent's pod after ten seconds"),
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
    known("feature.network.ipv6",                "IPv6 is always on"),
    known("feature.preview",                     OPERATOR),
    known("feature.redis",                       OPERATOR),
    known("feature.split_queues",                OPERATOR),
    known("internal_proxy",                      ONE_PROCESS),
    known("key",                                 OPERATOR),
    known("pause",                               NO_SUCH_PART),
    known("profile",                             OPERATOR),
    known("sip_binaries",                        MACOS),
    known("skip_sip",                            MACOS),
    known("startup_retry",                       "what may pass is tried again by itself"),
    known("telemetry",                           "Standin sends nothing to anybody"),
    known("traceparent",                         OPERATOR),
];

const fn known(path: &'static str, reason: &'static str) -> Elsewhere {
    Elsewhere { path, reason }
}
