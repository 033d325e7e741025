#![allow(clippy::type_complexity, reason = "a table is read by its columns")]

use api::node::operator_port;
use api::session::SessionPod;
use cluster::{AGENT_PORTS, AgentInstance, AgentInstanceState};

use super::agents::{MAX_AGENTS_PER_POD, MAX_ENDED_AGENTS, port_of};
use super::*;
use crate::controller::observed::{GrantDigests, StartFailure};

const SETTINGS: SessionSettings = SessionSettings {
    time_to_live: Duration::from_secs(60),
    max_resume: Duration::from_secs(900),
    max_age: None,
    review_interval: Duration::from_secs(300),
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A session that was created at second 0.
fn session(status: MirrordClusterSessionStatus) -> MirrordClusterSession {
    let mut session: MirrordClusterSession = serde_json::from_value(serde_json::json!({
        "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
        "metadata": {"name": "session-000000000000001f", "creationTimestamp": at(0).to_string()},
        "spec": {
            "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
            "namespace": "shop", "target": "deployment/web", "resumeWindowSecs": 100,
            "clientCertificate": "00".repeat(32),
        },
    }))
    .unwrap();
    session.status = Some(status);
    session
}

fn status(phase: SessionPhase) -> MirrordClusterSessionStatus {
    MirrordClusterSessionStatus {
        phase: Some(phase),
        last_seen_timestamp: Some(at(0).to_string()),
        ..MirrordClusterSessionStatus::default()
    }
}

fn pod(name: &str, container_id: &str, agents: &[(&str, AgentInstanceState)]) -> ObservedPod {
    let agents = agents
        .iter()
        .enumerate()
        .map(|(index, (container_id, state))| ObservedAgent {
            instance: AgentInstance {
                name: format!("standin-agent-000000000000001f-{}", index + 1),
                container_id: (*container_id).to_owned(),
                port: 20_001,
                has_failed: matches!(state, AgentInstanceState::Ended(reason) if reason != "completed"),
                state: state.clone(),
            },
            host: Some("10.0.0.1".to_owned()),
            certificate: None,
        });
    ObservedPod {
        replica: Replica {
            pod: name.to_owned(),
            uid: format!("uid-of-{name}"),
            namespace: "shop".to_owned(),
            node: "node".to_owned(),
            container: "web".to_owned(),
            container_id: container_id.to_owned(),
            ready: true,
            created: 0,
            finished_agents: 0,
            is_in_host_network: false,
            probes: std::collections::BTreeMap::new(),
        },
        agents: agents.collect(),
        policies: "now".to_owned(),
        new_grant: None,
        start_failure: None,
        refused: None,
        grant_failure: None,
    }
}

fn planned(status: MirrordClusterSessionStatus, pods: Vec<ObservedPod>, now: Timestamp) -> Plan {
    let session = session(status);
    let spec = super::super::validate::validate(&session).unwrap();
    let observed = Observed {
        pods,
        ..Observed::default()
    };
    if let Some(close) = plan_close(&session, &SETTINGS, now) {
        return close;
    }
    plan(&session, Some(&spec), &observed, AgentMode::Ephemeral, now)
}

fn ended() -> AgentInstanceState {
    AgentInstanceState::Ended("it has ended".to_owned())
}

fn completed() -> AgentInstanceState {
    AgentInstanceState::Ended("completed".to_owned())
}

/// Which agents are started, in the pod `web` of the container `c`.
fn started(agents: &[(&str, AgentInstanceState)]) -> Vec<String> {
    let plan = planned(
        status(SessionPhase::Pending),
        vec![pod("web", "c", agents)],
        at(1),
    );
    let names = plan.start.into_iter().map(|start| start.name);
    let numbers = names.map(|name| name.rsplit('-').next().unwrap().to_owned());
    numbers.collect()
}

#[test]
fn agents_of_different_pods_have_different_names() {
    let pods = vec![pod("a", "c", &[]), pod("b", "d", &[])];
    let plan = planned(status(SessionPhase::Pending), pods, at(1));
    let names: Vec<&str> = plan.start.iter().map(|start| start.name.as_str()).collect();
    let [one, other] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert_ne!(one, other);
    for name in names {
        assert!(
            name.starts_with("standin-agent-000000000000001f-"),
            "{name}"
        );
        // The name of an agent's pod has a suffix.
        assert!(name.ends_with("-1") && name.len() < 50, "{name}");
    }
}

#[test]
fn agents_are_started_where_none_runs() {
    use AgentInstanceState::{Running, Starting};
    let failing = AgentInstanceState::FailingToStart("ErrImagePull".to_owned());
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &[(&str, AgentInstanceState)], Option<&str>)] = &[
        ("no agent",                     &[],                                         Some("1")),
        ("one is starting",              &[("c", Starting)],                          None),
        ("one is running",               &[("c", Running)],                           None),
        ("one waits for its image",      &[("c", failing)],                           None),
        ("one has ended",                &[("c", ended())],                           Some("2")),
        ("the container was restarted",  &[("b", Running)],                           Some("2")),
        ("it fails repeatedly",          &[("c", ended()), ("c", ended()), ("c", ended())], None),
        ("an older one still runs",      &[("c", Running), ("c", ended())],           None),
        ("several have completed",       &[("c", completed()), ("c", completed()), ("c", completed())], Some("4")),
        ("too many have completed",      &[("c", completed()), ("c", completed()), ("c", completed()), ("c", completed()), ("c", completed()), ("c", completed())], None),
        ("it failed before a restart",   &[("b", ended()), ("b", ended()), ("b", ended())], Some("4")),
    ];
    for (what, agents, expected) in cases {
        let expected = expected.map(str::to_owned);
        assert_eq!(
            started(agents),
            expected.into_iter().collect::<Vec<_>>(),
            "{what}"
        );
    }
}

/// The ephemeral containers of all sessions stay in a pod. Other agent modes leave none.
#[test]
fn the_number_of_agents_in_a_pod_is_bounded_over_all_sessions() {
    let started = |finished_agents: usize, mode: AgentMode| {
        let mut pod = pod("web", "c", &[]);
        pod.replica.finished_agents = finished_agents;
        let observed = Observed {
            pods: vec![pod],
            ..Observed::default()
        };
        let session = session(status(SessionPhase::Pending));
        let spec = super::super::validate::validate(&session).unwrap();
        plan(&session, Some(&spec), &observed, mode, at(1))
            .start
            .len()
    };
    assert_eq!(started(MAX_AGENTS_PER_POD - 1, AgentMode::Ephemeral), 1);
    assert_eq!(started(MAX_AGENTS_PER_POD, AgentMode::Ephemeral), 0);
    assert_eq!(started(MAX_AGENTS_PER_POD, AgentMode::Node), 1);
}

/// A node agent that was restarted does not list earlier agents.
#[test]
fn agent_names_are_unique_also_after_earlier_agents_are_not_listed() {
    let running = [("c", AgentInstanceState::Running)];
    let report = planned(
        status(SessionPhase::Pending),
        vec![pod("a", "c", &running)],
        at(1),
    );
    let mut after = MirrordClusterSessionStatus {
        pods: report.report.unwrap().pods,
        ..status(SessionPhase::Ready)
    };
    for _ in 0..2 {
        let plan = planned(after.clone(), vec![pod("a", "c", &[])], at(2));
        let name = &plan.start[0].name;
        assert!(name.ends_with("-2"), "{name}");
        // Also after the status reports no running agent.
        after.pods = plan.report.map_or(after.pods, |report| report.pods);
    }
}

#[test]
fn the_reason_of_a_failed_start_is_reported() {
    let failed_start = |is_final| {
        let mut pod = pod("web", "c", &[]);
        pod.start_failure = Some(StartFailure {
            reason: "a policy forbids it".to_owned(),
            is_final,
        });
        planned(status(SessionPhase::Pending), vec![pod], at(1))
    };
    for (is_final, phase) in [(true, SessionPhase::Failed), (false, SessionPhase::Pending)] {
        let plan = failed_start(is_final);
        assert!(plan.start.is_empty());
        let report = plan.report.unwrap();
        assert_eq!(report.phase, phase);
        let message = report.message.as_deref();
        assert_eq!(message, Some("pod web: a policy forbids it"));
        let error = report.pods[0].error.as_deref();
        assert_eq!(error, Some("a policy forbids it"));
    }
}

#[test]
fn an_agent_that_has_not_confirmed_its_grant_is_reported() {
    let running = AgentInstanceState::Running;
    let mut pod = pod("web", "c", &[("c", running)]);
    pod.grant_failure = Some("the request timed out".to_owned());
    let plan = planned(status(SessionPhase::Ready), vec![pod], at(1));
    let report = plan.report.unwrap();
    assert_eq!(report.phase, SessionPhase::Ready);
    let error = report.pods[0].error.as_deref().unwrap();
    assert!(error.contains("has not confirmed the current policies (the request timed out)"));
}

#[test]
fn agents_have_different_ports() {
    let ports: Vec<u16> = (1..10)
        .map(|number| port_of(&format!("agent-{number}")))
        .collect();
    assert!(ports.iter().all(|port| AGENT_PORTS.contains(port)));
    let operator_ports: Vec<u16> = ports.iter().copied().map(operator_port).collect();
    assert!(operator_ports.iter().all(|port| AGENT_PORTS.contains(port)));
    assert!(!operator_ports.iter().any(|port| ports.contains(port)));
    let different: std::collections::BTreeSet<_> = ports.iter().collect();
    assert!(different.len() > 5);
}

#[test]
fn the_phase_follows_the_agents() {
    use AgentInstanceState::{Running, Starting};
    use SessionPhase::{Failed, Pending, Ready};
    let failing = AgentInstanceState::FailingToStart("ErrImagePull: no".to_owned());
    let tries = || vec![("c", ended()), ("c", ended()), ("c", ended())];
    #[rustfmt::skip] // A table is read by its columns.
    let cases: Vec<(&str, SessionPhase, Vec<ObservedPod>, i64, SessionPhase, Option<&str>)> = vec![
        ("agents start",     Pending, vec![pod("a", "c", &[("c", Starting)])], 1,  Pending, Some("agents are being started")),
        ("one runs",         Pending, vec![pod("a", "c", &[("c", Running)])],  1,  Ready,   None),
        ("one of two runs",  Pending, vec![pod("a", "c", &[("c", Running)]), pod("b", "c", &[])], 1, Ready, Some("1 of 2 pods have no agent yet")),
        ("no image",         Pending, vec![pod("a", "c", &[("c", failing)])],  1,  Failed,  Some("pod a: ErrImagePull: no")),
        ("it always fails",  Pending, vec![pod("a", "c", &tries())],           1,  Failed,  Some("pod a: it has ended")),
        ("no pods",          Pending, vec![],                                  1,  Pending, Some("the target has no pods; is it scaled to zero?")),
        ("no pods for long", Pending, vec![],                                  61, Failed,  Some("the target has no pods; is it scaled to zero?")),
        ("pods were deleted", Ready,   vec![],                                  61, Ready,   Some("no pod has an agent now: the target has no pods; is it scaled to zero?")),
    ];
    for (what, before, pods, second, phase, message) in cases {
        let plan = planned(status(before), pods, at(second));
        let report = plan.report.unwrap_or_else(|| panic!("{what}: no report"));
        assert_eq!(
            (report.phase, report.message.as_deref()),
            (phase, message),
            "{what}"
        );
    }
}

#[test]
fn a_missing_target_fails_at_once() {
    let session = session(status(SessionPhase::Pending));
    let spec = super::super::validate::validate(&session).unwrap();
    let observed = Observed::missing("there is no deployment/web".to_owned());
    let plan = plan(
        &session,
        Some(&spec),
        &observed,
        AgentMode::Ephemeral,
        at(0),
    );
    let report = plan.report.unwrap();
    assert_eq!(report.phase, SessionPhase::Failed);
    assert_eq!(
        report.message.as_deref(),
        Some("there is no deployment/web")
    );
}

#[test]
fn pods_keep_their_channels_and_channels_are_not_reused() {
    let running = [("c", AgentInstanceState::Running)];
    let both = vec![pod("a", "c", &running), pod("b", "c", &running)];
    let report = planned(status(SessionPhase::Pending), both, at(1))
        .report
        .unwrap();
    let channels = |report: &Report| -> Vec<(String, u32)> {
        let pods = report.pods.iter();
        pods.map(|pod| (pod.name.clone(), pod.channel)).collect()
    };
    assert_eq!(
        channels(&report),
        [("a".to_owned(), 1), ("b".to_owned(), 2)]
    );
    let after = MirrordClusterSessionStatus {
        pods: report.pods,
        next_channel: report.next_channel,
        ..status(SessionPhase::Ready)
    };
    // One pod is replaced by another.
    let next = vec![pod("b", "c", &running), pod("c", "c", &running)];
    let report = planned(after, next, at(2)).report.unwrap();
    assert_eq!(
        channels(&report),
        [("b".to_owned(), 2), ("c".to_owned(), 3)]
    );
    assert_eq!(report.pods[0].address.as_deref(), Some("10.0.0.1:20001"));
}

#[test]
fn an_unchanged_status_is_not_reported() {
    let running = [("c", AgentInstanceState::Running)];
    let pods = || vec![pod("a", "c", &running)];
    let report = planned(status(SessionPhase::Pending), pods(), at(1))
        .report
        .unwrap();
    let after = MirrordClusterSessionStatus {
        phase: Some(report.phase),
        pods: report.pods,
        next_channel: report.next_channel,
        ..status(SessionPhase::Ready)
    };
    assert_eq!(planned(after, pods(), at(2)).report, None);
}

#[test]
fn sessions_end_when_their_client_does_not_reconnect() {
    let never = MirrordClusterSessionStatus {
        last_seen_timestamp: None,
        ..status(SessionPhase::Ready)
    };
    // Later than the retention counted from the session's creation.
    let failed = MirrordClusterSessionStatus {
        failed_timestamp: Some(at(141).to_string()),
        ..status(SessionPhase::Failed)
    };
    let closed = MirrordClusterSessionStatus {
        closed: Some(SessionClosed::default()),
        ..status(SessionPhase::Ready)
    };
    let cases = [
        ("within the window", status(SessionPhase::Ready), 99, None),
        (
            "after the window",
            status(SessionPhase::Ready),
            101,
            Some("ClientGone"),
        ),
        ("never connected, in time", never.clone(), 119, None),
        ("never connected", never, 121, Some("NeverConnected")),
        ("failed a moment ago", failed.clone(), 200, None),
        ("failed long ago", failed, 202, Some("Failed")),
        ("closed", closed, 1, Some("")),
    ];
    for (what, status, second, expected) in cases {
        let running = [("c", AgentInstanceState::Running)];
        let plan = planned(status, vec![pod("a", "c", &running)], at(second));
        assert_eq!(plan.delete, expected.is_some(), "{what}");
        let closed = plan.report.and_then(|report| report.closed);
        assert_eq!(
            closed.map(|closed| closed.reason).as_deref(),
            expected,
            "{what}"
        );
    }
}

#[test]
fn a_failed_session_stays_failed_and_its_agents_end() {
    let failed = MirrordClusterSessionStatus {
        failed_timestamp: Some(at(0).to_string()),
        message: Some("because".to_owned()),
        ..status(SessionPhase::Failed)
    };
    let running = [("c", AgentInstanceState::Running)];
    let plan = planned(failed, vec![pod("a", "c", &running)], at(30));
    assert_eq!((plan.report, plan.start.len()), (None, 0));
    assert_eq!(plan.end.len(), 1);
    // The status has the time of the failure.
    let report = planned(status(SessionPhase::Pending), vec![], at(61)).report;
    let expected = Some(at(61).to_string());
    assert_eq!(report.unwrap().failed_timestamp, expected);
}

#[test]
fn a_session_ends_independently_of_its_target() {
    let session = session(status(SessionPhase::Ready));
    assert!(plan_close(&session, &SETTINGS, at(99)).is_none());
    let plan = plan_close(&session, &SETTINGS, at(101)).unwrap();
    assert!(plan.delete);
}

#[test]
fn the_finalizer_is_removed_when_all_agents_have_ended() {
    let mut session = session(status(SessionPhase::Ready));
    session.metadata.deletion_timestamp = session.metadata.creation_timestamp.clone();
    let agents = |state: AgentInstanceState| pod("a", "c", &[("c", state)]).agents;
    let cases = [
        ("one runs", agents(AgentInstanceState::Running), 1, 1, false),
        (
            "one starts",
            agents(AgentInstanceState::Starting),
            1,
            1,
            false,
        ),
        ("all have ended", agents(ended()), 1, 0, true),
        ("no agents", Vec::new(), 1, 0, true),
        // It ends by itself when its client does not reconnect.
        (
            "one is unreachable",
            agents(AgentInstanceState::Running),
            31,
            1,
            true,
        ),
    ];
    for (what, remaining, second, ends, release) in cases {
        let plan = plan_deletion(&session, &remaining, at(second));
        assert_eq!((plan.end.len(), plan.release), (ends, release), "{what}");
        assert!(plan.start.is_empty() && plan.report.is_none(), "{what}");
    }
}

#[test]
fn an_agent_with_outdated_policies_gets_a_new_grant() {
    let status_with = |policies: Option<&str>| {
        let mut status = status(SessionPhase::Ready);
        status.pods = vec![SessionPod {
            uid: "uid-of-web".to_owned(),
            policies: policies.map(str::to_owned),
            grant: Some("old grant".to_owned()),
            ..SessionPod::default()
        }];
        status
    };
    let cases: &[(Option<&str>, AgentInstanceState, usize)] = &[
        (Some("now"), AgentInstanceState::Running, 0),
        (Some("before"), AgentInstanceState::Running, 1),
        // Started by an older operator, which sent no grants.
        (None, AgentInstanceState::Running, 1),
        // It does not listen yet.
        (Some("before"), AgentInstanceState::Starting, 0),
        // The next agent gets its grant when it is started.
        (Some("before"), completed(), 0),
    ];
    for (policies, state, expected) in cases {
        let pods = vec![pod("web", "c", &[("c", state.clone())])];
        let plan = planned(status_with(*policies), pods, at(1));
        assert_eq!(plan.regrant.len(), *expected, "{policies:?} {state:?}");
        // A failed update is retried soon.
        assert!(*expected == 0 || plan.requeue_after == SHORT_REQUEUE);
    }
    let mut regranted = pod("web", "c", &[("c", AgentInstanceState::Running)]);
    regranted.new_grant = Some(GrantDigests {
        policies: "now".to_owned(),
        grant: "new grant".to_owned(),
    });
    let plan = planned(status_with(Some("before")), vec![regranted], at(1));
    assert_eq!(plan.regrant, []);
    let report = plan.report;
    let reported = report.unwrap().pods.remove(0);
    assert_eq!(reported.policies.as_deref(), Some("now"));
    assert_eq!(reported.grant.as_deref(), Some("new grant"));
    // The status keeps the digests of the last grant.
    let unchanged = pod("web", "c", &[("c", AgentInstanceState::Running)]);
    let report = planned(status_with(Some("now")), vec![unchanged], at(1)).report;
    let reported = report.unwrap().pods.remove(0);
    assert_eq!(reported.grant.as_deref(), Some("old grant"));
}

/// A client must not confuse an agent of a child that has joined again with an earlier agent.
#[test]
fn a_later_generation_reuses_no_numbers() {
    let mut later = session(status(SessionPhase::Pending));
    later.spec.generation = 1;
    let spec = super::super::validate::validate(&later).unwrap();
    let ended: Vec<_> = (0..MAX_ENDED_AGENTS).map(|_| ("c1", completed())).collect();
    let observed = Observed {
        pods: vec![pod("a", "c1", &ended)],
        ..Observed::default()
    };
    let plan = plan(&later, Some(&spec), &observed, AgentMode::Ephemeral, at(1));
    let [start] = plan.start.as_slice() else {
        panic!("{plan:?}");
    };
    assert!(start.name.ends_with("-257"), "{}", start.name);
    let report = plan.report.unwrap();
    assert_eq!(report.pods[0].channel, 257);
}

/// The reason and the message of the end of a session, if it ends.
fn end_of(
    status: MirrordClusterSessionStatus,
    settings: &SessionSettings,
    now: Timestamp,
) -> Option<(String, String)> {
    let plan = plan_close(&session(status), settings, now)?;
    assert!(plan.delete);
    let closed = plan.report.unwrap().closed.unwrap();
    Some((closed.reason, closed.message))
}

#[test]
fn a_session_ends_at_its_maximum_age() {
    let aged = SessionSettings {
        max_age: Some(Duration::from_secs(3600)),
        ..SETTINGS
    };
    let connected = |second| MirrordClusterSessionStatus {
        last_seen_timestamp: Some(at(second).to_string()),
        ..status(SessionPhase::Ready)
    };
    assert_eq!(end_of(connected(3599), &aged, at(3599)), None);
    let (reason, message) = end_of(connected(3600), &aged, at(3600)).unwrap();
    assert_eq!(reason, "MaxAge");
    assert!(
        message.contains("maximum age of 3600 s") && message.contains("`operator.session.maxSecs`")
    );
    assert_eq!(end_of(connected(3600), &SETTINGS, at(3600)), None);
    // It is reconciled at that time.
    let plan = no_changes(LONG_REQUEUE);
    for (now, expected) in [(10, 15), (3590, 10), (3600, 1)] {
        let delay = requeue_delay(&session(connected(now)), &plan, &aged, at(now));
        assert_eq!(delay.as_secs(), expected, "{now}");
    }
    let unlimited = requeue_delay(&session(connected(3590)), &plan, &SETTINGS, at(3590));
    assert_eq!(unlimited, LONG_REQUEUE);
}

#[test]
fn a_session_ends_when_its_user_has_lost_the_right() {
    let denied = MirrordClusterSessionStatus {
        denied: Some("the right to it was removed".to_owned()),
        ..status(SessionPhase::Ready)
    };
    let expected = (
        "Denied".to_owned(),
        "the right to it was removed".to_owned(),
    );
    assert_eq!(end_of(denied, &SETTINGS, at(1)), Some(expected));
    // A session of a Primary, whose user this cluster refuses: by its phase, the next phase and whether it is deleted.
    let cases = [
        (None, Some(SessionPhase::Failed), false),
        (
            Some(SessionPhase::Pending),
            Some(SessionPhase::Failed),
            false,
        ),
        (
            Some(SessionPhase::Ready),
            Some(SessionPhase::Terminating),
            true,
        ),
        (Some(SessionPhase::Failed), None, false),
    ];
    for (phase, expected, is_deleted) in cases {
        let status = MirrordClusterSessionStatus {
            phase,
            ..MirrordClusterSessionStatus::default()
        };
        let plan = plan_denied(&session(status), "no right".to_owned(), at(1));
        assert_eq!(plan.delete, is_deleted, "{phase:?}");
        assert_eq!(
            plan.report.as_ref().map(|report| report.phase),
            expected,
            "{phase:?}"
        );
        let message = plan.report.and_then(|report| report.message);
        assert_eq!(message.is_some(), expected.is_some());
        assert!(message.is_none_or(|message| message == "no right"));
    }
}

#[test]
fn a_refused_pod_has_no_agent() {
    let running = || pod("web", "c", &[("c", AgentInstanceState::Running)]);
    let refused = |agents: &[(&str, AgentInstanceState)]| ObservedPod {
        refused: Some("no right to it".to_owned()),
        ..pod("bank", "d", agents)
    };
    let plan = planned(
        status(SessionPhase::Pending),
        vec![running(), refused(&[])],
        at(1),
    );
    assert_eq!(plan.start, []);
    assert_eq!(plan.end, []);
    let report = plan.report.unwrap();
    assert_eq!(report.phase, SessionPhase::Ready);
    let pods: Vec<_> = report
        .pods
        .iter()
        .map(|pod| (pod.ready, pod.error.as_deref()))
        .collect();
    assert_eq!(pods, [(true, None), (false, Some("no right to it"))]);
    assert_eq!(report.pods[1].address, None);
    // The right to the pod was removed while its agent was in use.
    let with_agent = refused(&[("d", AgentInstanceState::Running)]);
    let agent = with_agent.agents[0].clone();
    let plan = planned(
        status(SessionPhase::Ready),
        vec![running(), with_agent.clone()],
        at(1),
    );
    assert_eq!(plan.end, std::slice::from_ref(&agent));
    assert!(plan.regrant.iter().all(|regrant| regrant.agent != agent));
    assert_eq!(plan.report.unwrap().pods[1].address, None);
    // Without another pod, the session fails with the reason.
    let plan = planned(status(SessionPhase::Pending), vec![with_agent], at(1));
    assert_eq!(plan.end, [agent]);
    let report = plan.report.unwrap();
    assert_eq!(report.phase, SessionPhase::Failed);
    assert_eq!(report.message.unwrap(), "pod bank: no right to it");
}
