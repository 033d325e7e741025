#![allow(clippy::type_complexity, reason = "a table is read by its columns")]

use super::*;

const SETTINGS: SessionSettings = SessionSettings {
    time_to_live: Duration::from_secs(60),
    most_resume: Duration::from_secs(900),
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A session that was made at second 0.
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

fn pod(name: &str, container_id: &str, agents: &[(&str, OrderedState)]) -> ObservedPod {
    let agents = agents
        .iter()
        .enumerate()
        .map(|(index, (container_id, state))| ObservedAgent {
            ordered: Ordered {
                name: format!("standin-agent-000000000000001f-{}", index + 1),
                container_id: (*container_id).to_owned(),
                port: 20_001,
                has_failed: matches!(state, OrderedState::Ended(why) if why != "in peace"),
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
        told: None,
        refused: None,
    }
}

fn planned(status: MirrordClusterSessionStatus, pods: Vec<ObservedPod>, now: Timestamp) -> Plan {
    let session = session(status);
    let wanted = super::super::validate::validate(&session).unwrap();
    let observed = Observed {
        pods,
        ..Observed::default()
    };
    if let Some(closing) = closing(&session, &SETTINGS, now) {
        return closing;
    }
    plan(
        &session,
        Some(&wanted),
        &observed,
        AgentMode::Ephemeral,
        now,
    )
}

fn ended() -> OrderedState {
    OrderedState::Ended("it has ended".to_owned())
}

fn peace() -> OrderedState {
    OrderedState::Ended("in peace".to_owned())
}

/// Which agents are started, in the pod `web` of the container `c`.
fn started(agents: &[(&str, OrderedState)]) -> Vec<String> {
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
fn agents_beside_different_pods_have_different_names() {
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
        // What makes a pod out of it adds a few letters.
        assert!(name.ends_with("-1") && name.len() < 50, "{name}");
    }
}

#[test]
fn agents_are_started_where_there_is_none() {
    use OrderedState::{Running, Starting};
    let trouble = OrderedState::Trouble("ErrImagePull".to_owned());
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &[(&str, OrderedState)], Option<&str>)] = &[
        ("there is none",                &[],                                         Some("1")),
        ("one is starting",              &[("c", Starting)],                          None),
        ("one is running",               &[("c", Running)],                           None),
        ("one waits for its image",      &[("c", trouble)],                           None),
        ("one has ended",                &[("c", ended())],                           Some("2")),
        ("the container was restarted",  &[("b", Running)],                           Some("2")),
        ("it ends again and again",      &[("c", ended()), ("c", ended()), ("c", ended())], None),
        ("an older one still runs",      &[("c", Running), ("c", ended())],           None),
        ("clients came and went",        &[("c", peace()), ("c", peace()), ("c", peace())], Some("4")),
        ("they come and go for ever",    &[("c", peace()), ("c", peace()), ("c", peace()), ("c", peace()), ("c", peace()), ("c", peace())], None),
        ("it did, before a restart",     &[("b", ended()), ("b", ended()), ("b", ended())], Some("4")),
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

/// Entries of all sessions stay in a pod; where agents are elsewhere, none do.
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
        let wanted = super::super::validate::validate(&session).unwrap();
        plan(&session, Some(&wanted), &observed, mode, at(1))
            .start
            .len()
    };
    assert_eq!(started(MOST_IN_A_POD - 1, AgentMode::Ephemeral), 1);
    assert_eq!(started(MOST_IN_A_POD, AgentMode::Ephemeral), 0);
    assert_eq!(started(MOST_IN_A_POD, AgentMode::Node), 1);
}

/// An agent on a node that was restarted knows nothing of those before.
#[test]
fn an_agent_has_a_name_of_its_own_where_others_are_forgotten() {
    let running = [("c", OrderedState::Running)];
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
        // Also after it was reported that there is none.
        after.pods = plan.report.map_or(after.pods, |report| report.pods);
    }
}

#[test]
fn why_an_agent_cannot_start_is_told() {
    let refused = |is_final| {
        let mut pod = pod("web", "c", &[]);
        pod.refused = Some(Refused {
            why: "a policy forbids it".to_owned(),
            is_final,
        });
        planned(status(SessionPhase::Pending), vec![pod], at(1))
    };
    for (is_final, phase) in [(true, SessionPhase::Failed), (false, SessionPhase::Pending)] {
        let plan = refused(is_final);
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
fn agents_have_ports_of_their_own() {
    let ports: Vec<u16> = (1..10)
        .map(|number| port_of(&format!("agent-{number}")))
        .collect();
    assert!(ports.iter().all(|port| PORTS.contains(port)));
    let different: std::collections::BTreeSet<_> = ports.iter().collect();
    assert!(different.len() > 5);
}

#[test]
fn the_phase_follows_the_agents() {
    use OrderedState::{Running, Starting};
    use SessionPhase::{Failed, Pending, Ready};
    let trouble = OrderedState::Trouble("ErrImagePull: no".to_owned());
    let tries = || vec![("c", ended()), ("c", ended()), ("c", ended())];
    #[rustfmt::skip] // A table is read by its columns.
    let cases: Vec<(&str, SessionPhase, Vec<ObservedPod>, i64, SessionPhase, Option<&str>)> = vec![
        ("agents start",     Pending, vec![pod("a", "c", &[("c", Starting)])], 1,  Pending, Some("agents are being started")),
        ("one runs",         Pending, vec![pod("a", "c", &[("c", Running)])],  1,  Ready,   None),
        ("one of two runs",  Pending, vec![pod("a", "c", &[("c", Running)]), pod("b", "c", &[])], 1, Ready, Some("1 of 2 pods have no agent yet")),
        ("no image",         Pending, vec![pod("a", "c", &[("c", trouble)])],  1,  Failed,  Some("pod a: ErrImagePull: no")),
        ("it always ends",   Pending, vec![pod("a", "c", &tries())],           1,  Failed,  Some("pod a: it has ended")),
        ("no pods",          Pending, vec![],                                  1,  Pending, Some("the target has no pods; is it scaled to zero?")),
        ("no pods for long", Pending, vec![],                                  61, Failed,  Some("the target has no pods; is it scaled to zero?")),
        ("pods went",        Ready,   vec![],                                  61, Ready,   Some("no pod has an agent now: the target has no pods; is it scaled to zero?")),
    ];
    for (what, before, pods, second, phase, message) in cases {
        let plan = planned(status(before), pods, at(second));
        let report = plan
            .report
            .unwrap_or_else(|| panic!("{what}: nothing is reported"));
        assert_eq!(
            (report.phase, report.message.as_deref()),
            (phase, message),
            "{what}"
        );
    }
}

#[test]
fn a_target_that_is_not_there_fails_at_once() {
    let session = session(status(SessionPhase::Pending));
    let wanted = super::super::validate::validate(&session).unwrap();
    let observed = Observed::nothing("there is no deployment/web".to_owned());
    let plan = plan(
        &session,
        Some(&wanted),
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
fn pods_keep_their_channels_and_no_channel_is_given_twice() {
    let running = [("c", OrderedState::Running)];
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
    // One pod goes, and another comes.
    let next = vec![pod("b", "c", &running), pod("c", "c", &running)];
    let report = planned(after, next, at(2)).report.unwrap();
    assert_eq!(
        channels(&report),
        [("b".to_owned(), 2), ("c".to_owned(), 3)]
    );
    assert_eq!(report.pods[0].address.as_deref(), Some("10.0.0.1:20001"));
}

#[test]
fn nothing_new_is_not_reported() {
    let running = [("c", OrderedState::Running)];
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
fn sessions_are_over_when_their_client_stays_away() {
    let never = MirrordClusterSessionStatus {
        last_seen_timestamp: None,
        ..status(SessionPhase::Ready)
    };
    // Later than it could have failed if its age were what counts.
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
        ("never there, yet", never.clone(), 119, None),
        ("never there", never, 121, Some("NeverConnected")),
        ("failed a moment ago", failed.clone(), 200, None),
        ("failed long ago", failed, 202, Some("Failed")),
        ("closed", closed, 1, Some("")),
    ];
    for (what, status, second, expected) in cases {
        let running = [("c", OrderedState::Running)];
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
fn a_session_that_failed_stays_so_and_has_no_agents() {
    let failed = MirrordClusterSessionStatus {
        failed_timestamp: Some(at(0).to_string()),
        message: Some("because".to_owned()),
        ..status(SessionPhase::Failed)
    };
    let running = [("c", OrderedState::Running)];
    let plan = planned(failed, vec![pod("a", "c", &running)], at(30));
    assert_eq!((plan.report, plan.start.len()), (None, 0));
    assert_eq!(plan.end.len(), 1);
    // When it fails, it says when.
    let report = planned(status(SessionPhase::Pending), vec![], at(61)).report;
    let expected = Some(at(61).to_string());
    assert_eq!(report.unwrap().failed_timestamp, expected);
}

#[test]
fn a_session_is_over_whatever_its_target_is_doing() {
    let session = session(status(SessionPhase::Ready));
    assert!(closing(&session, &SETTINGS, at(99)).is_none());
    let plan = closing(&session, &SETTINGS, at(101)).unwrap();
    assert!(plan.delete);
}

#[test]
fn a_deleted_session_goes_when_its_agents_have_ended() {
    let mut session = session(status(SessionPhase::Ready));
    session.metadata.deletion_timestamp = session.metadata.creation_timestamp.clone();
    let agents = |state: OrderedState| pod("a", "c", &[("c", state)]).agents;
    let cases = [
        ("one runs", agents(OrderedState::Running), 1, 1, false),
        ("one starts", agents(OrderedState::Starting), 1, 1, false),
        ("all have ended", agents(ended()), 1, 0, true),
        ("there are none", Vec::new(), 1, 0, true),
        // It ends by itself when its client stays away.
        (
            "one does not hear",
            agents(OrderedState::Running),
            31,
            1,
            true,
        ),
    ];
    for (what, left, second, ends, release) in cases {
        let plan = ending(&session, &left, at(second));
        assert_eq!((plan.end.len(), plan.release), (ends, release), "{what}");
        assert!(plan.start.is_empty() && plan.report.is_none(), "{what}");
    }
}

#[test]
fn an_agent_that_knows_of_other_policies_is_told_until_it_does() {
    let known = |policies: Option<&str>| {
        let mut status = status(SessionPhase::Ready);
        status.pods = vec![SessionPod {
            uid: "uid-of-web".to_owned(),
            policies: policies.map(str::to_owned),
            grant: Some("what it may".to_owned()),
            ..SessionPod::default()
        }];
        status
    };
    let cases: &[(Option<&str>, OrderedState, usize)] = &[
        (Some("now"), OrderedState::Running, 0),
        (Some("before"), OrderedState::Running, 1),
        // Of an operator that told no agent anything.
        (None, OrderedState::Running, 1),
        // It listens a moment later.
        (Some("before"), OrderedState::Starting, 0),
        // The next one is told when it is started.
        (Some("before"), peace(), 0),
    ];
    for (policies, state, expected) in cases {
        let pods = vec![pod("web", "c", &[("c", state.clone())])];
        let plan = planned(known(*policies), pods, at(1));
        assert_eq!(plan.regrant.len(), *expected, "{policies:?} {state:?}");
        // One that cannot be told is told again soon.
        assert!(*expected == 0 || plan.look_again == SOON);
    }
    let mut told = pod("web", "c", &[("c", OrderedState::Running)]);
    told.told = Some(Told {
        policies: "now".to_owned(),
        grant: "what it may now".to_owned(),
    });
    let plan = planned(known(Some("before")), vec![told], at(1));
    assert_eq!(plan.regrant, []);
    let report = plan.report;
    let reported = report.unwrap().pods.remove(0);
    assert_eq!(reported.policies.as_deref(), Some("now"));
    assert_eq!(reported.grant.as_deref(), Some("what it may now"));
    // What was told stays known.
    let quiet = pod("web", "c", &[("c", OrderedState::Running)]);
    let report = planned(known(Some("now")), vec![quiet], at(1)).report;
    let reported = report.unwrap().pods.remove(0);
    assert_eq!(reported.grant.as_deref(), Some("what it may"));
}

/// A client must not take an agent of a part that has joined again for one that it knew.
#[test]
fn a_session_that_follows_another_repeats_no_number() {
    let mut later = session(status(SessionPhase::Pending));
    later.spec.generation = 1;
    let wanted = super::super::validate::validate(&later).unwrap();
    let ended: Vec<_> = (0..MOST_ENDED)
        .map(|_| ("c1", OrderedState::Ended("in peace".to_owned())))
        .collect();
    let observed = Observed {
        pods: vec![pod("a", "c1", &ended)],
        ..Observed::default()
    };
    let plan = plan(
        &later,
        Some(&wanted),
        &observed,
        AgentMode::Ephemeral,
        at(1),
    );
    let [start] = plan.start.as_slice() else {
        panic!("{plan:?}");
    };
    assert!(start.name.ends_with("-257"), "{}", start.name);
    let report = plan.report.unwrap();
    assert_eq!(report.pods[0].channel, 257);
}
