//! Routing: from a method, a path and a query to a typed request.

use api::connect::{ConnectParameters, PARAMETERS_HEADER};
use api::session::SessionId;
use api::{GROUP, TargetPath, VERSION};
use http::{HeaderMap, Method};

use crate::response::Refusal;

/// Every request that the operator serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiRequest {
    Groups,
    Group,
    Resources,
    OpenApi2,
    OpenApi3,
    OpenApi3OfGroup,
    /// The list of `mirrordoperators`, which has one item.
    Operators,
    Operator,
    /// In one namespace, or in all.
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

impl ApiRequest {
    /// A label for metrics and logs. Its cardinality is bounded: it contains no names.
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

pub(crate) fn parse(
    method: &Method,
    path: &str,
    query: &str,
    headers: &HeaderMap,
) -> Result<ApiRequest, Refusal> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let request = match parts.as_slice() {
        ["apis"] => ApiRequest::Groups,
        ["apis", group] if *group == GROUP => ApiRequest::Group,
        ["apis", group, version] if *group == GROUP && *version == VERSION => ApiRequest::Resources,
        ["openapi", "v2"] => ApiRequest::OpenApi2,
        ["openapi", "v3"] => ApiRequest::OpenApi3,
        ["openapi", "v3", "apis", group, version] if *group == GROUP && *version == VERSION => {
            ApiRequest::OpenApi3OfGroup
        }
        ["apis", group, version, rest @ ..] if *group == GROUP && *version == VERSION => {
            return parse_resource(method, rest, query, headers);
        }
        _ => return Err(not_found(path)),
    };
    only_get(method)?;
    Ok(request)
}

fn parse_resource(
    method: &Method,
    parts: &[&str],
    query: &str,
    headers: &HeaderMap,
) -> Result<ApiRequest, Refusal> {
    if let ["sessions", id] = parts
        && *method == Method::DELETE
    {
        return session(id).map(ApiRequest::EndSession);
    }
    only_get(method)?;
    if query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"))
    {
        return Err(Refusal::method_not_allowed(
            "the operator's objects cannot be watched; list them again instead",
        ));
    }
    match parts {
        ["mirrordoperators"] => Ok(ApiRequest::Operators),
        ["mirrordoperators", name] if *name == api::operator::NAME => Ok(ApiRequest::Operator),
        ["targets"] => Ok(ApiRequest::Targets { namespace: None }),
        ["namespaces", namespace, "targets"] => Ok(ApiRequest::Targets {
            namespace: Some((*namespace).to_owned()),
        }),
        ["namespaces", namespace, "targets", target] => {
            let parameters = parameters(query, headers)?;
            let (namespace, target) = ((*namespace).to_owned(), path_of(target)?);
            Ok(if parameters.connect {
                ApiRequest::Connect {
                    namespace,
                    target,
                    parameters,
                }
            } else {
                ApiRequest::Target { namespace, target }
            })
        }
        // Below `proxy`, every request is a connection.
        ["proxy", "namespaces", namespace, "targets", target] => Ok(ApiRequest::Connect {
            namespace: (*namespace).to_owned(),
            target: path_of(target)?,
            parameters: parameters(query, headers)?,
        }),
        ["sessions"] => Ok(ApiRequest::Sessions),
        ["sessions", id] => session(id).map(ApiRequest::Session),
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

    fn parsed(method: &Method, address: &str) -> Result<ApiRequest, u16> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        parse(method, path, query, &HeaderMap::new()).map_err(|refusal| refusal.code.as_u16())
    }

    fn checkout() -> TargetPath {
        TargetPath {
            kind: TargetKind::Deployment,
            name: "checkout".to_owned(),
            container: None,
        }
    }

    #[test]
    fn paths_are_parsed() {
        let shop = || "shop".to_owned();
        let connect = |parameters| ApiRequest::Connect {
            namespace: shop(),
            target: checkout(),
            parameters: Box::new(parameters),
        };
        let connecting = ConnectParameters {
            connect: true,
            ..ConnectParameters::default()
        };
        let cases = [
            ("/apis", Ok(ApiRequest::Groups)),
            ("/apis/operator.metalbear.co", Ok(ApiRequest::Group)),
            (BASE, Ok(ApiRequest::Resources)),
            ("/apis/other.example/v1", Err(404)),
            ("/apis/operator.metalbear.co/v2", Err(404)),
            ("/openapi/v2", Ok(ApiRequest::OpenApi2)),
            (
                "/openapi/v3/apis/operator.metalbear.co/v1?hash=1",
                Ok(ApiRequest::OpenApi3OfGroup),
            ),
            ("+/mirrordoperators", Ok(ApiRequest::Operators)),
            ("+/mirrordoperators/operator", Ok(ApiRequest::Operator)),
            ("+/mirrordoperators/other", Err(404)),
            ("+/targets", Ok(ApiRequest::Targets { namespace: None })),
            ("+/targets?watch=true", Err(405)),
            (
                "+/namespaces/shop/targets?limit=500",
                Ok(ApiRequest::Targets {
                    namespace: Some(shop()),
                }),
            ),
            (
                "+/namespaces/shop/targets/deployment.checkout",
                Ok(ApiRequest::Target {
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
            ("+/sessions", Ok(ApiRequest::Sessions)),
            ("+/sessions/1f", Ok(ApiRequest::Session(SessionId(31)))),
            ("+/sessions/anna", Err(404)),
            ("/", Err(404)),
            (
                "/apis/operator.metalbear.co/v1/../../../api/v1/secrets",
                Err(404),
            ),
        ];
        for (address, expected) in cases {
            let address = address.replacen('+', BASE, 1);
            assert_eq!(parsed(&Method::GET, &address), expected, "{address}");
        }
    }

    #[test]
    fn long_parameters_come_in_a_header() {
        let parsed = |header: &'static str| {
            let headers = HeaderMap::from_iter([(
                PARAMETERS_HEADER.parse().unwrap(),
                HeaderValue::from_static(header),
            )]);
            let path = format!("{BASE}/proxy/namespaces/shop/targets/deployment.checkout");
            parse(&Method::GET, &path, "", &headers).map_err(|refusal| refusal.code.as_u16())
        };
        // connect=true&resume_window=7
        let Ok(ApiRequest::Connect { parameters, .. }) =
            parsed("Y29ubmVjdD10cnVlJnJlc3VtZV93aW5kb3c9Nw==")
        else {
            panic!("not a connect request");
        };
        assert_eq!(
            (parameters.connect, parameters.resume_window),
            (true, Some(7))
        );
        assert_eq!(parsed("not base64"), Err(400));
    }

    #[test]
    fn only_sessions_can_be_deleted() {
        let cases = [
            (
                Method::DELETE,
                "/sessions/1f",
                Ok(ApiRequest::EndSession(SessionId(31))),
            ),
            (Method::DELETE, "/sessions", Err(405)),
            (Method::POST, "/sessions", Err(405)),
            (Method::DELETE, "/namespaces/shop/targets/pod.a", Err(405)),
            (Method::PATCH, "/mirrordoperators/operator", Err(405)),
        ];
        for (method, path, expected) in cases {
            assert_eq!(
                parsed(&method, &format!("{BASE}{path}")),
                expected,
                "{method} {path}"
            );
        }
    }
}
