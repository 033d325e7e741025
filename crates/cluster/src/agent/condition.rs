//! The condition of an agent's container, from the status of its pod.

use k8s_openapi::api::core::v1::{ContainerState, Pod};

/// Waiting reasons of a container that do not resolve by themselves soon enough.
const START_FAILURES: &[&str] = &[
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// It is starting or running.
    Healthy,
    /// It fails to start, with the reason.
    FailingToStart(String),
    /// It has ended, with the reason.
    Ended(String),
}

/// `None` is a pod that was deleted.
pub(super) fn condition(pod: Option<&Pod>, container: &str) -> Condition {
    let Some(pod) = pod else {
        return Condition::Ended("its pod was deleted".to_owned());
    };
    let Some(status) = &pod.status else {
        return Condition::Healthy;
    };
    let usual = status.container_statuses.iter().flatten();
    let state = usual
        .chain(status.ephemeral_container_statuses.iter().flatten())
        .find(|status| status.name == container)
        .and_then(|status| status.state.as_ref());
    if let Some(condition) = state.and_then(of_container) {
        return condition;
    }
    match status.phase.as_deref() {
        Some(phase @ ("Failed" | "Succeeded")) => {
            let reason = status.reason.as_deref().unwrap_or(phase);
            let message = status.message.as_deref().unwrap_or_default();
            Condition::Ended(
                format!("its pod has ended ({reason}) {message}")
                    .trim()
                    .to_owned(),
            )
        }
        _ => Condition::Healthy,
    }
}

fn of_container(state: &ContainerState) -> Option<Condition> {
    if let Some(ended) = &state.terminated {
        let exit_message = exit_message(ended.message.as_deref().unwrap_or_default());
        let reason = match (ended.exit_code, exit_message) {
            (_, Some(message)) => message,
            (0, None) => "it has ended".to_owned(),
            (code, None) => format!(
                "it ended with code {code}{}",
                ended
                    .reason
                    .as_deref()
                    .map_or(String::new(), |reason| format!(" ({reason})"))
            ),
        };
        return Some(Condition::Ended(reason));
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    START_FAILURES.contains(&reason).then(|| {
        let message = waiting.message.as_deref().unwrap_or_default();
        Condition::FailingToStart(format!("{reason}: {message}"))
    })
}

/// The error that the agent logged before it exited.
fn exit_message(message: &str) -> Option<String> {
    let own = message
        .lines()
        .rfind(|line| line.starts_with("standind: "))?;
    Some(own.trim_start_matches("standind: ").to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn conditions_are_read_from_pods() {
        let check = |status: Value, expected: Condition| {
            let pod: Pod = serde_json::from_value(json!({ "status": status })).unwrap();
            assert_eq!(condition(Some(&pod), "agent"), expected, "{status}");
        };
        let ephemeral = |state: Value| {
            json!({"phase": "Running", "ephemeralContainerStatuses": [
                {"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}
            ]})
        };
        check(json!({"phase": "Running"}), Condition::Healthy);
        check(ephemeral(json!({"running": {}})), Condition::Healthy);
        check(
            ephemeral(json!({"waiting": {"reason": "ContainerCreating"}})),
            Condition::Healthy,
        );
        check(
            ephemeral(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}})),
            Condition::FailingToStart("ErrImagePull: no such image".to_owned()),
        );
        check(
            ephemeral(
                json!({"terminated": {"exitCode": 1, "message": "a log\nstandind: cannot listen on x\n"}}),
            ),
            Condition::Ended("cannot listen on x".to_owned()),
        );
        check(
            ephemeral(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
            Condition::Ended("it ended with code 137 (OOMKilled)".to_owned()),
        );
        check(
            json!({"phase": "Failed", "reason": "OutOfcpu", "message": "node is full"}),
            Condition::Ended("its pod has ended (OutOfcpu) node is full".to_owned()),
        );
        assert_eq!(
            condition(None, "agent"),
            Condition::Ended("its pod was deleted".to_owned())
        );
    }
}
