//! Why a cluster refuses an agent: a missing right, a Pod Security level, or an admission policy.

use std::fmt;

/// The failed attempts to start an agent. Its text includes what the user can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub namespace: String,
    /// The attempts, each with the reason of its denial.
    pub attempts: Vec<(Attempt, Denial)>,
    /// Whether an operator tried to start the agent. The user's settings do not apply to it.
    pub by_operator: bool,
}

/// How the agent should have been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    Ephemeral,
    Pod,
    Targetless,
}

/// Why the cluster denied an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The user lacks a right. The text is the API server's.
    Rights(String),
    /// The namespace enforces a Pod Security level.
    PodSecurity { level: String, fields: Vec<String> },
    /// An admission policy or webhook denied it. The text is its message.
    Policy(String),
}

impl Denial {
    /// Parses the message of a `403 Forbidden`, or of an event about a pod that could not be created.
    pub fn parse(message: &str) -> Self {
        if let Some(denial) = pod_security(message) {
            return denial;
        }
        let message = message.trim().to_owned();
        if message.contains("cannot") && message.contains("in API group") {
            return Self::Rights(message);
        }
        Self::Policy(message)
    }
}

/// `… violates PodSecurity "restricted:latest": a != b (container "c" must set x.y=z), …`
fn pod_security(message: &str) -> Option<Denial> {
    let (_, rest) = message.split_once("violates PodSecurity \"")?;
    let (level, rest) = rest.split_once('"')?;
    let level = level.split_once(':').map_or(level, |(level, _)| level);
    let mut fields: Vec<String> = Vec::new();
    let words = rest.split(|letter: char| letter.is_whitespace() || "();,".contains(letter));
    for word in words {
        let name = word.split('=').next().unwrap_or_default();
        let is_field = name.starts_with("securityContext.")
            || name.starts_with("spec.")
            || (name.starts_with("host") && word.contains('='));
        if is_field && !fields.iter().any(|field| field == name) {
            fields.push(name.to_owned());
        }
    }
    Some(Denial::PodSecurity {
        level: level.to_owned(),
        fields,
    })
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = &self.namespace;
        write!(
            formatter,
            "the cluster does not allow to start an agent for the namespace {namespace}:"
        )?;
        for (attempt, denial) in &self.attempts {
            write!(formatter, "\n  - {attempt}: {denial}")?;
        }
        write!(formatter, "\n{}", self.alternative())
    }
}

impl Refusal {
    fn alternative(&self) -> String {
        let is_targetless = |(attempt, _): &(Attempt, Denial)| *attempt == Attempt::Targetless;
        let is_targetless = self.attempts.iter().any(is_targetless);
        if self.by_operator && is_targetless {
            return "Ask the administrator of the cluster to allow the pod".to_owned();
        }
        if self.by_operator {
            return "The operator decides how agents are started: its administrator can set `operator.agent.mode: node`, whose \
                    agents are in the operator's own namespace; or use no target: `-t targetless` needs no privileges"
                .to_owned();
        }
        let by_level =
            |(_, denial): &(Attempt, Denial)| matches!(denial, Denial::PodSecurity { .. });
        if is_targetless {
            return "Ask the administrator of the cluster to allow the pod, or set `agent.namespace` to another namespace"
                .to_owned();
        }
        if self.attempts.iter().any(by_level) {
            return "Instead, set `agent.namespace` (and `agent.ephemeral: false`) to a namespace with the label \
                 pod-security.kubernetes.io/enforce: privileged; or use an operator whose agents run on nodes \
                 (`operator.agent.mode: node`); or use no target: `-t targetless` needs no privileges"
                .to_owned();
        }
        "Instead, ask for an exception for containers whose image is the agent's, or set `agent.namespace` (and \
         `agent.ephemeral: false`) to a namespace to which the policy does not apply"
            .to_owned()
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ephemeral => {
                "as an ephemeral container of the target's pod (agent.ephemeral: true)"
            }
            Self::Pod => "as a pod on the target's node (agent.ephemeral: false)",
            Self::Targetless => "as a pod without a target",
        })
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rights(message) | Self::Policy(message) => formatter.write_str(message),
            Self::PodSecurity { level, fields } => write!(
                formatter,
                "its Pod Security level `{level}` forbids {}",
                fields.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_api_server_are_parsed() {
        let check = |message: &str, expected: Denial| {
            assert_eq!(Denial::parse(message), expected, "{message}");
        };
        check(
            "pods \"web\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
             (container \"standin-agent-1\" must set securityContext.allowPrivilegeEscalation=false), unrestricted \
             capabilities (container \"standin-agent-1\" must set securityContext.capabilities.drop=[\"ALL\"]; container \
             \"standin-agent-1\" must not include \"NET_ADMIN\", \"SYS_PTRACE\" in securityContext.capabilities.add), \
             runAsNonRoot != true (pod or container \"standin-agent-1\" must set securityContext.runAsNonRoot=true)",
            Denial::PodSecurity {
                level: "restricted".to_owned(),
                fields: [
                    "securityContext.allowPrivilegeEscalation",
                    "securityContext.capabilities.drop",
                    "securityContext.capabilities.add",
                    "securityContext.runAsNonRoot",
                ]
                .map(str::to_owned)
                .to_vec(),
            },
        );
        check(
            "Error creating: pods \"standin-agent-x\" is forbidden: violates PodSecurity \"baseline:v1.34\": host \
             namespaces (hostPID=true), non-default capabilities (container \"agent\" must not include \"SYS_ADMIN\" in \
             securityContext.capabilities.add)",
            Denial::PodSecurity {
                level: "baseline".to_owned(),
                fields: ["hostPID", "securityContext.capabilities.add"]
                    .map(str::to_owned)
                    .to_vec(),
            },
        );
        let rights = "pods \"web\" is forbidden: User \"eve\" cannot patch resource \"pods/ephemeralcontainers\" in API \
                      group \"\" in the namespace \"shop\"";
        check(rights, Denial::Rights(rights.to_owned()));
        let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no ephemeral containers";
        check(policy, Denial::Policy(policy.to_owned()));
    }

    #[test]
    fn a_refusal_names_the_fields_and_an_alternative() {
        let refusal = Refusal {
            by_operator: false,
            namespace: "shop".to_owned(),
            attempts: vec![(
                Attempt::Pod,
                Denial::PodSecurity {
                    level: "baseline".to_owned(),
                    fields: vec!["hostPID".to_owned()],
                },
            )],
        };
        let text = refusal.to_string();
        for expected in ["`baseline` forbids hostPID", "agent.namespace", "operator"] {
            assert!(text.contains(expected), "{text}");
        }
        // The user's settings do not apply to the agents of an operator.
        let text = Refusal {
            by_operator: true,
            ..refusal
        }
        .to_string();
        assert!(text.contains("operator.agent.mode: node"), "{text}");
        assert!(!text.contains("agent.namespace"), "{text}");
    }
}
