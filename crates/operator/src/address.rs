//! What is asked for: from a method, a path and a query to one of a few things.

use api::connect::{ConnectParameters, PARAMETERS_HEADER};
use api::session::SessionId;
use api::{GROUP, TargetPath, VERSION};
use http::{HeaderMap, Method};

use crate::answer::Refusal;

/// Everything that can be asked of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Groups,
    Group,
    Resources,
    OpenApi2,
    OpenApi3,
    OpenApi3OfGroup,
    /// All kinds of `mirrordoperators`: there is one.
    Operators,
    Operator,
    /// Of one namespace, or of all.
    Targets {
        namespace: Option<String>,
    },
    Target {
        namespace: String,
        target: TargetPath,
    },
    Connect {
        namespace: String,
        target: TargetPath,
        parameters: Box<ConnectParameters>,
    },
    Sessions,
    Session(SessionId),
    EndSession(SessionId),
}

impl Asked {
    /// For metrics and logs: a few words, whatever the names are.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Groups | Self::Group | Self::Resources => "discovery",
            Self::OpenApi2 | Self::OpenApi3 | Self::OpenApi3OfGroup => "openapi",
            Self::Operators | Self::Operator => "mirrordoperators",
            Self::Targets { .. } | Self::Target { .. } => "targets",
            Self::Connect { .. } => "connect",
            Self::Sessions | Self::Session(_) => "sessions",
            Self::EndSession(_) => "end-session",
        }
    }
}

pub(crate) fn read(
    method: &Method,
    path: &str,
    query: &str,
    headers: &HeaderMap,
) -> Result<Asked, Refusal> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let asked = match parts.as_slice() {
        ["apis"] => Asked::Groups,
        ["apis", group] if *group == GROUP => Asked::Group,
        ["apis", group, version] if *group == GROUP && *version == VERSION => Asked::Resources,
        ["openapi", "v2"] => Asked::OpenApi2,
        ["openapi", "v3"] => Asked::OpenApi3,
        ["openapi", "v3", "apis", group, version] if *group == GROUP && *version == VERSION => {
            Asked::OpenApi3OfGroup
        }
        ["apis", group, version, rest @ ..] if *group == GROUP && *version == VERSION => {
            return resource(method, rest, query, headers);
        }
        _ => return Err(not_found(path)),
    };
    only_get(method)?;
    Ok(asked)
}

fn resource(
    method: &Method,
    parts: &[&str],
    query: &str,
    headers: &HeaderMap,
) -> Result<Asked, Refusal> {
    if let ["sessions", id] = parts
        && *method == Method::DELETE
    {
        return session(id).map(Asked::EndSession);
    }
    only_get(method)?;
    if query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"))
    {
        return Err(Refusal::method_not_allowed(
            "what the operator serves live cannot be watched; ask again",
        ));
    }
    match parts {
        ["mirrordoperators"] => Ok(Asked::Operators),
        ["mirrordoperators", name] if *name == api::operator::NAME => Ok(Asked::Operator),
        ["targets"] => Ok(Asked::Targets { namespace: None }),
        ["namespaces", namespace, "targets"] => Ok(Asked::Targets {
            namespace: Some((*namespace).to_owned()),
        }),
        ["namespaces", namespace, "targets", target] => {
            let parameters = parameters(query, headers)?;
            let (namespace, target) = ((*namespace).to_owned(), path_of(target)?);
            Ok(if parameters.connect {
                Asked::Connect {
                    namespace,
                    target,
                    parameters,
                }
            } else {
                Asked::Target { namespace, target }
            })
        }
        // Nothing but a connection is below `proxy`.
        ["proxy", "namespaces", namespace, "targets", target] => Ok(Asked::Connect {
            namespace: (*namespace).to_owned(),
            target: path_of(target)?,
            parameters: parameters(query, headers)?,
        }),
        ["sessions"] => Ok(Asked::Sessions),
        ["sessions", id] => session(id).map(Asked::Session),
        _ => Err(not_found(&parts.join("/"))),
    }
}

fn parameters(query: &str, headers: &HeaderMap) -> Result<Box<ConnectParameters>, Refusal> {
    let header = headers
        .get(PARAMETERS_HEADER)
        .and_then(|value| value.to_str().ok());
    ConnectParameters::read(query, header)
        .map(Box::new)
        .map_err(|error| Refusal::bad_request(error.to_string()))
}

fn path_of(text: &str) -> Result<TargetPath, Refusal> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    TargetPath::from_address(&text).map_err(|error| Refusal::bad_request(error.to_string()))
}

fn session(id: &str) -> Result<SessionId, Refusal> {
    SessionId::from_hexadecimal(id).ok_or_else(|| {
        Refusal::not_found(format!(
            "`{id}` is no session: a session's id has up to 16 hexadecimal digits"
        ))
    })
}

fn only_get(method: &Method) -> Result<(), Refusal> {
    if *method == Method::GET {
        Ok(())
    } else {
        Err(Refusal::method_not_allowed(format!(
            "{method} is not supported here"
        )))
    }
}

fn not_found(path: &str) -> Refusal {
    Refusal::not_found(format!("the operator serves nothing at {path}"))
}

#[cfg(test)]
mod tests {
    use api::TargetKind;
    use http::HeaderValue;

    use super::*;

    const BASE: &str = "/apis/operator.metalbear.co/v1";

    fn asked(method: &Method, address: &str) -> Result<Asked, u16> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        read(method, path, query, &HeaderMap::new()).map_err(|refusal| refusal.code.as_u16())
    }

    fn checkout() -> TargetPath {
        TargetPath {
            kind: TargetKind::Deployment,
            name: "checkout".to_owned(),
            container: None,
        }
    }

    #[test]
    fn addresses_mean_what_they_say() {
        let shop = || "shop".to_owned();
        let connect = |parameters| Asked::Connect {
            namespace: shop(),
            target: checkout(),
            parameters: Box::new(parameters),
        };
        let connecting = ConnectParameters {
            connect: true,
            ..ConnectParameters::default()
        };
        let cases = [
            ("/apis", Ok(Asked::Groups)),
            ("/apis/operator.metalbear.co", Ok(Asked::Group)),
            (BASE, Ok(Asked::Resources)),
            ("/apis/other.example/v1", Err(404)),
            ("/apis/operator.metalbear.co/v2", Err(404)),
            ("/openapi/v2", Ok(Asked::OpenApi2)),
            (
                "/openapi/v3/apis/operator.metalbear.co/v1?hash=1",
                Ok(Asked::OpenApi3OfGroup),
            ),
            ("+/mirrordoperators", Ok(Asked::Operators)),
            ("+/mirrordoperators/operator", Ok(Asked::Operator)),
            ("+/mirrordoperators/other", Err(404)),
            ("+/targets", Ok(Asked::Targets { namespace: None })),
            ("+/targets?watch=true", Err(405)),
            (
                "+/namespaces/shop/targets?limit=500",
                Ok(Asked::Targets {
                    namespace: Some(shop()),
                }),
            ),
            (
                "+/namespaces/shop/targets/deployment.checkout",
                Ok(Asked::Target {
                    namespace: shop(),
                    target: checkout(),
                }),
            ),
            (
                "+/namespaces/shop/targets/deployment.checkout?connect=true",
                Ok(connect(connecting.clone())),
            ),
            (
                "+/proxy/namespaces/shop/targets/deployment.checkout?connect=true",
                Ok(connect(connecting)),
            ),
            (
                "+/proxy/namespaces/shop/targets/deployment.checkout",
                Ok(connect(ConnectParameters::default())),
            ),
            ("+/namespaces/shop/targets/deploy.checkout", Err(400)),
            (
                "+/namespaces/shop/targets/deployment.checkout?connect=maybe",
                Err(400),
            ),
            ("+/sessions", Ok(Asked::Sessions)),
            ("+/sessions/1f", Ok(Asked::Session(SessionId(31)))),
            ("+/sessions/anna", Err(404)),
            ("/", Err(404)),
            (
                "/apis/operator.metalbear.co/v1/../../../api/v1/secrets",
                Err(404),
            ),
        ];
        for (address, expected) in cases {
            let address = address.replacen('+', BASE, 1);
            assert_eq!(asked(&Method::GET, &address), expected, "{address}");
        }
    }

    #[test]
    fn parameters_that_are_too_long_for_an_address_come_in_a_header() {
        let ask = |header: &'static str| {
            let headers = HeaderMap::from_iter([(
                PARAMETERS_HEADER.parse().unwrap(),
                HeaderValue::from_static(header),
            )]);
            let path = format!("{BASE}/proxy/namespaces/shop/targets/deployment.checkout");
            read(&Method::GET, &path, "", &headers).map_err(|refusal| refusal.code.as_u16())
        };
        // connect=true&resume_window=7
        let Ok(Asked::Connect { parameters, .. }) = ask("Y29ubmVjdD10cnVlJnJlc3VtZV93aW5kb3c9Nw==")
        else {
            panic!("no connection is asked for");
        };
        assert_eq!(
            (parameters.connect, parameters.resume_window),
            (true, Some(7))
        );
        assert_eq!(ask("not base64"), Err(400));
    }

    #[test]
    fn only_sessions_can_be_ended() {
        let cases = [
            (
                Method::DELETE,
                "/sessions/1f",
                Ok(Asked::EndSession(SessionId(31))),
            ),
            (Method::DELETE, "/sessions", Err(405)),
            (Method::POST, "/sessions", Err(405)),
            (Method::DELETE, "/namespaces/shop/targets/pod.a", Err(405)),
            (Method::PATCH, "/mirrordoperators/operator", Err(405)),
        ];
        for (method, path, expected) in cases {
            assert_eq!(
                asked(&method, &format!("{BASE}{path}")),
                expected,
                "{method} {path}"
            );
        }
    }
}
