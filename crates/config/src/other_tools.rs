//! Keys that belong to mirrord's configuration, or to a later version of Standin, and have no effect in this one.
//!
//! A file that has them loads, with a warning for each. Their values are not checked.

/// A key's path and why it has no effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyOfOtherTool {
    pub(crate) path: &'static str,
    pub(crate) reason: &'static str,
}

const OPERATOR: &str = "the operator of this version does not support it";
const INCOMING: &str = "it is a part of `feature.network.incoming`, or not needed";
const RULES: &str = "the kernel removes the rules of an agent that has ended";
const MACOS: &str = "it is for macOS, and Standin runs on Linux";
const NO_SUCH_FEATURE: &str = "Standin has no such feature";
const ONE_PROCESS: &str = "the proxy is part of the `standin` process and ends with it";

#[rustfmt::skip] // A table is read by its columns.
pub(crate) const KEYS_OF_OTHER_TOOLS: &[KeyOfOtherTool] = &[
    no_effect("agent.check_out_of_pods",               "the message of the kubelet is shown when a node is full"),
    no_effect("agent.clean_iptables_on_start",         RULES),
    no_effect("agent.disabled_capabilities",           "an agent has only the capabilities that it needs"),
    no_effect("agent.disable_mesh_sidecar_injection",  "a mesh never injects a proxy into an agent's pod"),
    no_effect("agent.dns",                             "DNS names are resolved as the target resolves them"),
    no_effect("agent.exclude_from_mesh",               "a mesh never injects a proxy into an agent's pod"),
    no_effect("agent.flush_connections",               INCOMING),
    no_effect("agent.inject_headers",                  INCOMING),
    no_effect("agent.json_log",                        NO_SUCH_FEATURE),
    no_effect("agent.max_body_buffer_size",            INCOMING),
    no_effect("agent.max_body_buffer_timeout",         INCOMING),
    no_effect("agent.metrics",                         NO_SUCH_FEATURE),
    no_effect("agent.network_interface",               NO_SUCH_FEATURE),
    no_effect("agent.nftables",                        RULES),
    no_effect("agent.passthrough_mirroring",           INCOMING),
    no_effect("agent.privileged",                      "an agent is never privileged"),
    no_effect("agent.security_context",                "an agent has only the rights that it needs"),
    no_effect("agent.ttl",                             "Kubernetes removes an agent's pod after ten seconds"),
    no_effect("baggage",                             OPERATOR),
    no_effect("ci",                                  "sessions in CI need no settings of their own"),
    no_effect("connect_tcp",                         NO_SUCH_FEATURE),
    no_effect("container",                           "running a whole container is planned for a later version"),
    no_effect("experimental",                        NO_SUCH_FEATURE),
    no_effect("external_proxy",                      ONE_PROCESS),
    no_effect("feature.copy_target",                 OPERATOR),
    no_effect("feature.db_branches",                 OPERATOR),
    no_effect("feature.env.load_from_process",       "the process has the target's variables from its first instruction"),
    no_effect("feature.fs.readonly_file_buffer",     "the kernel reads ahead and caches"),
    no_effect("feature.network.ipv6",                "IPv6 is always on"),
    no_effect("feature.preview",                     OPERATOR),
    no_effect("feature.redis",                       OPERATOR),
    no_effect("feature.split_queues",                OPERATOR),
    no_effect("internal_proxy",                      ONE_PROCESS),
    no_effect("key",                                 OPERATOR),
    no_effect("pause",                               NO_SUCH_FEATURE),
    no_effect("profile",                             OPERATOR),
    no_effect("sip_binaries",                        MACOS),
    no_effect("skip_sip",                            MACOS),
    no_effect("startup_retry",                       "transient errors are retried automatically"),
    no_effect("telemetry",                           "Standin sends no telemetry"),
    no_effect("traceparent",                         OPERATOR),
];

const fn no_effect(path: &'static str, reason: &'static str) -> KeyOfOtherTool {
    KeyOfOtherTool { path, reason }
}
