//! What a hostile member does with each request. Decisions without I/O.

use http::{Method, StatusCode};

/// How a member behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behavior {
    /// Like an operator whose sessions never become ready: the baseline.
    Quiet,
    /// No response ends, not even that of a health check.
    EndlessHealth,
    /// No other response ends.
    Endless,
    /// As errors.
    EndlessErrors,
    /// Every page of a list is as large as possible, and has a next one.
    HugeLists,
    /// Sessions are ready at once, with a huge status that changes as fast as the Primary reads it.
    HugeStatuses,
    /// Responses begin at once and take a second for each byte.
    Slow,
}

impl Behavior {
    pub(super) const ALL: [Self; 7] = [
        Self::Quiet,
        Self::EndlessHealth,
        Self::Endless,
        Self::EndlessErrors,
        Self::HugeLists,
        Self::HugeStatuses,
        Self::Slow,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::EndlessHealth => "endless-health",
            Self::Endless => "endless",
            Self::EndlessErrors => "endless-errors",
            Self::HugeLists => "huge-lists",
            Self::HugeStatuses => "huge-statuses",
            Self::Slow => "slow",
        }
    }

    /// The behavior, and the path in the API.
    pub(super) fn of_path(path: &str) -> Option<(Self, &str)> {
        let (name, _) = path.strip_prefix('/')?.split_once('/')?;
        let behavior = Self::ALL.into_iter().find(|one| one.name() == name)?;
        Some((behavior, &path[name.len() + 1..]))
    }
}

/// A request of a Primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    CheckHealth,
    /// A creation that is only tried.
    Probe,
    Create,
    Delete(&'a str),
    /// After as many events, or items.
    Watch(usize),
    ListChildren(usize),
    ListTargets(usize),
    /// A token, or a connection to a target.
    Other,
}

pub(super) fn operation<'a>(method: &Method, path: &'a str, query: &str) -> Operation<'a> {
    let number = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let has = |pair: &str| query.split('&').any(|other| other == pair);
    let mut segments = path.rsplit('/');
    let (last, parent) = (
        segments.next().unwrap_or_default(),
        segments.next().unwrap_or_default(),
    );
    match (method.as_str(), parent, last) {
        ("GET", "mirrordoperators", _) => Operation::CheckHealth,
        ("POST", _, "mirrordclustersessions") if has("dryRun=All") => Operation::Probe,
        ("POST", _, "mirrordclustersessions") => Operation::Create,
        ("DELETE", "mirrordclustersessions", name) => Operation::Delete(name),
        ("GET", _, "mirrordclustersessions") if has("watch=true") => {
            Operation::Watch(number("resourceVersion"))
        }
        ("GET", _, "mirrordclustersessions") => Operation::ListChildren(number("continue")),
        ("GET", _, "targets") => Operation::ListTargets(number("continue")),
        _ => Operation::Other,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    Operator,
    /// The object of the request.
    Echo,
    Create,
    Delete(&'a str),
    Children,
    ChildPage {
        after: usize,
    },
    Targets,
    TargetPage {
        after: usize,
    },
    Events {
        after: usize,
    },
    /// Events without end, each with a huge status.
    Flood {
        after: usize,
    },
    Endless(StatusCode),
    Slow,
    NotFound,
}

pub(super) fn reply(behavior: Behavior, operation: Operation<'_>) -> Reply<'_> {
    match (behavior, operation) {
        (Behavior::EndlessHealth, _) => Reply::Endless(StatusCode::OK),
        (_, Operation::CheckHealth) => Reply::Operator,
        (Behavior::Endless, _) => Reply::Endless(StatusCode::OK),
        (Behavior::EndlessErrors, _) | (Behavior::HugeStatuses, Operation::Other) => {
            Reply::Endless(StatusCode::FORBIDDEN)
        }
        (Behavior::Slow, _) => Reply::Slow,
        (_, Operation::Probe) => Reply::Echo,
        (_, Operation::Create) => Reply::Create,
        (_, Operation::Delete(name)) => Reply::Delete(name),
        (Behavior::HugeLists, Operation::ListChildren(after)) => Reply::ChildPage { after },
        (Behavior::HugeLists, Operation::ListTargets(after)) => Reply::TargetPage { after },
        (_, Operation::ListChildren(_)) => Reply::Children,
        (_, Operation::ListTargets(_)) => Reply::Targets,
        (Behavior::HugeStatuses, Operation::Watch(after)) => Reply::Flood { after },
        (_, Operation::Watch(after)) => Reply::Events { after },
        (_, Operation::Other) => Reply::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_recognized() {
        let children = "/apis/mirrord.metalbear.co/v1alpha/mirrordclustersessions";
        let api = "/apis/operator.metalbear.co/v1";
        let cases = [
            (
                Method::GET,
                format!("{api}/mirrordoperators/operator"),
                "",
                Operation::CheckHealth,
            ),
            (
                Method::POST,
                children.to_owned(),
                "&dryRun=All",
                Operation::Probe,
            ),
            (Method::POST, children.to_owned(), "", Operation::Create),
            (
                Method::DELETE,
                format!("{children}/mc-1-east"),
                "",
                Operation::Delete("mc-1-east"),
            ),
            (
                Method::GET,
                children.to_owned(),
                "&watch=true&resourceVersion=7",
                Operation::Watch(7),
            ),
            (
                Method::GET,
                children.to_owned(),
                "&limit=50",
                Operation::ListChildren(0),
            ),
            (
                Method::GET,
                children.to_owned(),
                "&continue=50",
                Operation::ListChildren(50),
            ),
            (
                Method::GET,
                format!("{api}/targets"),
                "limit=5&continue=9",
                Operation::ListTargets(9),
            ),
            (
                Method::POST,
                "/api/v1/namespaces/a/serviceaccounts/b/token".to_owned(),
                "",
                Operation::Other,
            ),
            (
                Method::GET,
                format!("{api}/proxy/namespaces/a/targets/pod.b"),
                "",
                Operation::Other,
            ),
        ];
        for (method, path, query, expected) in cases {
            assert_eq!(operation(&method, &path, query), expected, "{path}?{query}");
        }
    }

    #[test]
    fn the_path_selects_the_behavior() {
        for behavior in Behavior::ALL {
            let path = format!("/{}/apis/x", behavior.name());
            assert_eq!(Behavior::of_path(&path), Some((behavior, "/apis/x")));
        }
        for path in ["/apis/x", "/quiet", "", "quiet/apis"] {
            assert_eq!(Behavior::of_path(path), None, "{path}");
        }
    }

    /// Without a healthy member, the Primary would send it no other requests.
    #[test]
    fn all_members_but_one_are_healthy() {
        for behavior in Behavior::ALL {
            let is_healthy = reply(behavior, Operation::CheckHealth) == Reply::Operator;
            assert_eq!(is_healthy, behavior != Behavior::EndlessHealth);
        }
    }
}
