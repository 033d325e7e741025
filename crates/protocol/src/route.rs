//! Which agents an operation goes to.
//!
//! One client may speak to many agents: replicas of a workload, members of a multi-cluster session. What an operation is
//! for decides who gets it. The path of a request, gRPC call and raw stream alike, names the operation.

use crate::{files, outgoing};

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Its answers must be consistent with one another: one agent, always the same.
    Stateful,
    /// A connection from the target's network: one agent, or every service would be called several times.
    Outgoing,
    /// The target's own traffic: every agent, and what they receive is merged.
    Traffic,
    /// About the connection to an agent: each for itself.
    Control,
}

/// How many agents get an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    One,
    All,
}

impl Route {
    #[must_use]
    pub fn reach(self) -> Reach {
        match self {
            Self::Stateful | Self::Outgoing => Reach::One,
            Self::Traffic | Self::Control => Reach::All,
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The path of the request. One that ends with a slash stands for everything below it.
    pub path: &'static str,
    pub route: Route,
}

const fn operation(path: &'static str, route: Route) -> Operation {
    Operation { path, route }
}

#[rustfmt::skip] // A table is read by its columns.
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

/// Where a request with this path goes. None: no agent of this version knows it.
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
    fn operations_go_where_they_belong() {
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
    fn one_agent_or_all() {
        let check = |route: Route, expected| assert_eq!(route.reach(), expected);
        check(Route::Stateful, Reach::One);
        check(Route::Outgoing, Reach::One);
        check(Route::Traffic, Reach::All);
        check(Route::Control, Reach::All);
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
