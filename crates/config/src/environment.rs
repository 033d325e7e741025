//! Every environment variable that sets a key.

/// A variable and the key that it sets.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    pub name: &'static str,
    pub key: &'static str,
}

/// The prefix of all variables.
pub(crate) const PREFIX: &str = "STANDIN_";

#[rustfmt::skip] // A table is read by its columns.
pub const VARIABLES: &[Variable] = &[
    variable("STANDIN_AGENT_IMAGE",                  "agent.image"),
    variable("STANDIN_AGENT_NAMESPACE",              "agent.namespace"),
    variable("STANDIN_API",                          "api"),
    variable("STANDIN_DNS",                          "feature.network.dns.enabled"),
    variable("STANDIN_DNS_LOCAL",                    "feature.network.dns.filter.local"),
    variable("STANDIN_DNS_REMOTE",                   "feature.network.dns.filter.remote"),
    variable("STANDIN_ENV",                          "feature.env.enabled"),
    variable("STANDIN_ENV_EXCLUDE",                  "feature.env.exclude"),
    variable("STANDIN_ENV_FILE",                     "feature.env.env_file"),
    variable("STANDIN_ENV_INCLUDE",                  "feature.env.include"),
    variable("STANDIN_ENV_UNSET",                    "feature.env.unset"),
    variable("STANDIN_FS_LOCAL",                     "feature.fs.local"),
    variable("STANDIN_FS_MODE",                      "feature.fs.mode"),
    variable("STANDIN_FS_NOT_FOUND",                 "feature.fs.not_found"),
    variable("STANDIN_FS_READ_ONLY",                 "feature.fs.read_only"),
    variable("STANDIN_FS_READ_WRITE",                "feature.fs.read_write"),
    variable("STANDIN_HOSTNAME",                     "feature.hostname"),
    variable("STANDIN_INCOMING",                     "feature.network.incoming.mode"),
    variable("STANDIN_INCOMING_FLUSH_CONNECTIONS",   "feature.network.incoming.flush_connections"),
    variable("STANDIN_INCOMING_HEADER_FILTER",       "feature.network.incoming.http_filter.header_filter"),
    variable("STANDIN_INCOMING_IGNORE_PORTS",        "feature.network.incoming.ignore_ports"),
    variable("STANDIN_INCOMING_METHOD_FILTER",       "feature.network.incoming.http_filter.method_filter"),
    variable("STANDIN_INCOMING_ON_CONCURRENT_STEAL", "feature.network.incoming.on_concurrent_steal"),
    variable("STANDIN_INCOMING_PATH_FILTER",         "feature.network.incoming.http_filter.path_filter"),
    variable("STANDIN_INCOMING_PORTS",               "feature.network.incoming.ports"),
    variable("STANDIN_INCOMING_PORT_MAPPING",        "feature.network.incoming.port_mapping"),
    variable("STANDIN_INCOMING_RESPONSE_TIMEOUT",    "feature.network.incoming.response_timeout"),
    variable("STANDIN_INCOMING_TAKE_PROBES",         "feature.network.incoming.take_probes"),
    variable("STANDIN_KUBECONFIG",                   "kubeconfig"),
    variable("STANDIN_KUBE_CONTEXT",                 "kube_context"),
    variable("STANDIN_MULTI_CLUSTER",                "multi_cluster"),
    variable("STANDIN_OPERATOR",                     "operator"),
    variable("STANDIN_OUTGOING_LOCAL",               "feature.network.outgoing.filter.local"),
    variable("STANDIN_OUTGOING_REMOTE",              "feature.network.outgoing.filter.remote"),
    variable("STANDIN_OUTGOING_TCP",                 "feature.network.outgoing.tcp"),
    variable("STANDIN_OUTGOING_UDP",                 "feature.network.outgoing.udp"),
    variable("STANDIN_OUTGOING_UNIX_STREAMS",        "feature.network.outgoing.unix_streams"),
    variable("STANDIN_SKIP_BUILD_TOOLS",             "skip_build_tools"),
    variable("STANDIN_SKIP_EXTRA_BUILD_TOOLS",       "skip_extra_build_tools"),
    variable("STANDIN_SKIP_PROCESSES",               "skip_processes"),
    variable("STANDIN_TARGET",                       "target.path"),
    variable("STANDIN_TARGET_NAMESPACE",             "target.namespace"),
];

const fn variable(name: &'static str, key: &'static str) -> Variable {
    Variable { name, key }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    #[test]
    fn variables_are_sorted_and_set_keys_that_exist() {
        assert!(VARIABLES.is_sorted_by_key(|variable| variable.name));
        for variable in VARIABLES {
            assert!(variable.name.starts_with(PREFIX), "{}", variable.name);
            assert!(shape::root().at(variable.key).is_some(), "{}", variable.key);
        }
    }
}
