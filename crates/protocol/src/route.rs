//! Which agents receive an operation.
//!
//! One client may be connected to many agents: replicas of a workload, members of a multi-cluster session. The purpose of an
//! operation decides which of them receive it. The request path identifies the operation, for gRPC calls and raw streams.

use crate::{files, outgoing};

/// The purpose of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Its responses must be consistent with each other: always the same agent, the stateful agent.
    Stateful,
    /// A connection from the target's network: one agent, because several would call the service several times.
    Outgoing,
    /// Incoming traffic of the target: every agent, and their streams are merged.
    Traffic,
    /// About the connection to an agent: each agent separately.
    Control,
}

/// How many agents receive an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fanout {
    One,
    All,
}

impl Route {
    #[must_use]
    pub fn fanout(self) -> Fanout {
        match self {
            Self::Stateful | Self::Outgoing => Fanout::One,
            Self::Traffic | Self::Control => Fanout::All,
        }
    }
}

/// A row of [`OPERATIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The request path. A path that ends with a slash is a prefix.
    pub path: &'static str,
    pub route: Route,
}

const fn operation(path: &'static str, route: Route) -> Operation {
    Operation { path, route }
}

#[rustfmt::skip] // Keeps the columns of the table aligned.
pub const OPERATIONS: &[Operation] = &[
    operation("/standin.session.v1.Control/",  Route::Control),
    operation("/standin.session.v1.Env/",      Route::Stateful),
    operation("/standin.session.v1.Files/",    Route::Stateful),
    operation(files::READ,                     Route::Stateful),
    operation(files::WRITE,                    Route::Stateful),
    operation("/standin.session.v1.Dns/",      Route::Stateful),
    operation("/standin.session.v1.Outgoing/", Route::Outgoing),
    operation(outgoing::TCP,                   Route::Outgoing),
    operation(outgoing::UDP,                   Route::Outgoing),
    operation(outgoing::UNIX,                  Route::Outgoing),
    operation(outgoing::UNIX_DATAGRAM,         Route::Outgoing),
    operation("/standin.session.v1.Incoming/", Route::Traffic),
    operation("/standin.session.v1/incoming/", Route::Traffic),
];

/// The route of a request with this path. `None`: this version has no such operation.
#[must_use]
pub fn route(path: &str) -> Option<Route> {
    OPERATIONS
        .iter()
        .find(|operation| {
            if operation.path.ends_with('/') {
                path.len() > operation.path.len() && path.starts_with(operation.path)
            } else {
                path == operation.path
            }
        })
        .map(|operation| operation.route)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::DESCRIPTORS;

    #[test]
    fn operations_have_the_expected_routes() {
        let check =
            |path: &str, expected: Option<Route>| assert_eq!(route(path), expected, "{path}");
        check("/standin.session.v1.Env/List", Some(Route::Stateful));
        check("/standin.session.v1.Files/Open", Some(Route::Stateful));
        check("/standin.session.v1/files/read", Some(Route::Stateful));
        check("/standin.session.v1.Dns/Lookup", Some(Route::Stateful));
        check("/standin.session.v1/outgoing/tcp", Some(Route::Outgoing));
        check("/standin.session.v1.Control/Ping", Some(Route::Control));
        check(
            "/standin.session.v1.Incoming/Subscribe",
            Some(Route::Traffic),
        );
        check("/standin.session.v1/incoming/tcp", Some(Route::Traffic));
        check("/standin.session.v1.Files/", None);
        check("/standin.session.v1/files/readable", None);
        check("/standin.session.v2.Files/Open", None);
        check("", None);
    }

    #[test]
    fn routes_have_the_expected_fanout() {
        let check = |route: Route, expected| assert_eq!(route.fanout(), expected);
        check(Route::Stateful, Fanout::One);
        check(Route::Outgoing, Fanout::One);
        check(Route::Traffic, Fanout::All);
        check(Route::Control, Fanout::All);
    }

    #[test]
    fn every_method_of_the_schema_has_a_route() {
        let schema = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let mut methods = 0;
        for file in &schema.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    assert!(route(&path).is_some(), "{path}");
                    methods += 1;
                }
            }
        }
        assert!(methods > 30);
    }
}
