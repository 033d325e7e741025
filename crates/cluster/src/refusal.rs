//! What it means when the cluster refuses an agent: a missing right, a Pod Security level, or somebody's policy.

use std::fmt;

/// What was refused, and what can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub namespace: String,
    /// What was tried, and what each try met.
    pub met: Vec<(Attempt, Obstacle)>,
    /// The agent was to be an operator's, and the user's settings say nothing about it.
    pub is_operators: bool,
}

/// How the agent was to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    Ephemeral,
    Pod,
    Targetless,
}

/// What kept an agent from being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The user lacks a right. The text is the API server's.
    Rights(String),
    /// The namespace enforces a Pod Security level.
    PodSecurity { level: String, fields: Vec<String> },
    /// A policy or a webhook of the cluster says no, with its own words.
    Policy(String),
}

impl Obstacle {
    /// Reads the message of a `403 Forbidden`, or of an event about a pod that could not be made.
    pub fn read(message: &str) -> Self {
        if let Some(obstacle) = pod_security(message) {
            return obstacle;
        }
        let message = message.trim().to_owned();
        if message.contains("cannot") && message.contains("in API group") {
            return Self::Rights(message);
        }
        Self::Policy(message)
    }
}

/// `… violates PodSecurity "restricted:latest": a != b (container "c" must set x.y=z), …`
fn pod_security(message: &str) -> Option<Obstacle> {
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
    Some(Obstacle::PodSecurity {
        level: level.to_owned(),
        fields,
    })
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = &self.namespace;
        write!(
            formatter,
            "the cluster does not let an agent be started for the namespace {namespace}:"
        )?;
        for (attempt, obstacle) in &self.met {
            write!(formatter, "\n  - {attempt}: {obstacle}")?;
        }
        write!(formatter, "\n{}", self.alternative())
    }
}

impl Refusal {
    fn alternative(&self) -> String {
        let is_targetless = |(attempt, _): &(Attempt, Obstacle)| *attempt == Attempt::Targetless;
        let is_targetless = self.met.iter().any(is_targetless);
        if self.is_operators && is_targetless {
            return "Ask whoever administers the cluster to let the pod be".to_owned();
        }
        if self.is_operators {
            return "What agents are is the operator's to say: whoever administers it can set `operator.agent.mode: node`, whose \
                    agents are in the operator's own namespace; or go without a target: `-t targetless` needs no privileges"
                .to_owned();
        }
        let by_level =
            |(_, obstacle): &(Attempt, Obstacle)| matches!(obstacle, Obstacle::PodSecurity { .. });
        if is_targetless {
            return "Ask whoever administers the cluster to let the pod be, or set `agent.namespace` to another namespace"
                .to_owned();
        }
        if self.met.iter().any(by_level) {
            return "Instead, set `agent.namespace` (and `agent.ephemeral: false`) to a namespace with the label \
                 pod-security.kubernetes.io/enforce: privileged; or use an operator whose agents wait on nodes \
                 (`operator.agent.mode: node`); or go without a target: `-t targetless` needs no privileges"
                .to_owned();
        }
        "Instead, ask for an exception for containers whose image is the agent's, or set `agent.namespace` (and \
         `agent.ephemeral: false`) to a namespace where the policy does not hold"
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

impl fmt::Display for Obstacle {
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
    fn messages_of_the_api_server_are_understood() {
        let check = |message: &str, expected: Obstacle| {
            assert_eq!(Obstacle::read(message), expected, "{message}");
        };
        check(
            "pods \"web\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
             (container \"standin-agent-1\" must set securityContext.allowPrivilegeEscalation=false), unrestricted \
             capabilities (container \"standin-agent-1\" must set securityContext.capabilities.drop=[\"ALL\"]; container \
             \"standin-agent-1\" must not include \"NET_ADMIN\", \"SYS_PTRACE\" in securityContext.capabilities.add), \
             runAsNonRoot != true (pod or container \"standin-agent-1\" must set securityContext.runAsNonRoot=true)",
            Obstacle::PodSecurity {
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
            Obstacle::PodSecurity {
                level: "baseline".to_owned(),
                fields: ["hostPID", "securityContext.capabilities.add"]
                    .map(str::to_owned)
                    .to_vec(),
            },
        );
        let rights = "pods \"web\" is forbidden: User \"eve\" cannot patch resource \"pods/ephemeralcontainers\" in API \
                      group \"\" in the namespace \"shop\"";
        check(rights, Obstacle::Rights(rights.to_owned()));
        let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no ephemeral containers";
        check(policy, Obstacle::Policy(policy.to_owned()));
    }

    #[test]
    fn a_refusal_names_the_fields_and_another_way() {
        let refusal = Refusal {
            is_operators: false,
            namespace: "shop".to_owned(),
            met: vec![(
                Attempt::Pod,
                Obstacle::PodSecurity {
                    level: "baseline".to_owned(),
                    fields: vec!["hostPID".to_owned()],
                },
            )],
        };
        let text = refusal.to_string();
        for expected in ["`baseline` forbids hostPID", "agent.namespace", "operator"] {
            assert!(text.contains(expected), "{text}");
        }
        // What a user can set means nothing to an operator.
        let text = Refusal {
            is_operators: true,
            ..refusal
        }
        .to_string();
        assert!(text.contains("operator.agent.mode: node"), "{text}");
        assert!(!text.contains("agent.namespace"), "{text}");
    }
}
