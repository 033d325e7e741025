//! Turns error responses of the operator and of the API server into errors.

use api::{GROUP, TargetKind, TargetPath};
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

use crate::error::{Error, Result};

/// A response that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorResponse {
    pub(super) code: StatusCode,
    /// The `message` of a `Status`, or the body if it is no `Status`.
    pub(super) message: String,
    /// The `reason` of a `Status`. The operator always sends one. Errors that the API server sends in its place often have
    /// none.
    pub(super) reason: Option<String>,
}

/// What was requested, and the role that allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestContext {
    pub(super) action: String,
    /// A Role or ClusterRole that allows it, as YAML.
    pub(super) role: String,
    pub(super) binding: &'static str,
}

impl ErrorResponse {
    pub(super) async fn read(response: Response<Body>) -> Self {
        let code = response.status();
        let body = response.into_body().collect().await;
        let bytes = body.map(http_body_util::Collected::to_bytes);
        Self::parse(code, &bytes.unwrap_or_default())
    }

    fn parse(code: StatusCode, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| Some(status.get(key)?.as_str()?.to_owned());
        let raw = String::from_utf8_lossy(body).trim().to_owned();
        let message = text("message").filter(|message| !message.is_empty());
        Self {
            code,
            reason: text("reason").filter(|_| message.is_some()),
            message: message.unwrap_or_else(|| match raw.is_empty() {
                true => format!("the API server answers {code}"),
                false => raw.chars().take(300).collect(),
            }),
        }
    }

    /// The error of a request that every user may send.
    pub(super) fn into_error(self, action: &str) -> Error {
        match self.code {
            StatusCode::UNAUTHORIZED => Error::Unauthorized(self.message),
            _ => Error::OperatorDown {
                why: format!("the API server refused to {action}: {}", self.message),
            },
        }
    }

    /// The error of a request to the operator.
    pub(super) fn explain(self, context: &RequestContext) -> Error {
        let is_from_operator = self.reason.is_some();
        match self.code {
            StatusCode::UNAUTHORIZED => Error::Unauthorized(self.message),
            // The API server itself denies it before the operator sees the request.
            StatusCode::FORBIDDEN if self.message.contains("is forbidden: User") => {
                Error::AccessDenied {
                    action: context.action.clone(),
                    binding: context.binding,
                    role: context.role.clone(),
                }
            }
            StatusCode::GONE if self.reason.as_deref() == Some("Expired") => {
                Error::SessionExpired(self.message)
            }
            StatusCode::GONE => Error::SessionOver(self.message),
            StatusCode::NOT_FOUND if !is_from_operator => Error::NoOperator,
            StatusCode::OK => Error::IncompatibleOperator,
            code if code == StatusCode::TOO_MANY_REQUESTS || code.is_server_error() => {
                match is_from_operator {
                    true => Error::OperatorBusy(self.message),
                    false => Error::OperatorDown { why: self.message },
                }
            }
            _ => Error::OperatorRefused(self.message),
        }
    }
}

impl RequestContext {
    /// A session with a target. The API server checks the name with the container, the operator the name without it. A label
    /// selector can match any pod, so it needs the right to all targets.
    pub(super) fn session(namespace: &str, target: &TargetPath) -> Self {
        let names = match (target.kind, &target.container) {
            (TargetKind::Label, _) => Vec::new(),
            (_, None) => vec![target.address()],
            (_, Some(_)) => vec![target.without_container().address(), target.address()],
        };
        Self {
            action: format!("have a session with {target} in the namespace {namespace}"),
            role: role(Some(namespace), "targets", &names, "proxy"),
            binding: "RoleBinding",
        }
    }

    pub(super) fn targets(namespace: &str) -> Self {
        Self {
            action: format!("list targets in the namespace {namespace}"),
            role: role(Some(namespace), "targets", &[], "list"),
            binding: "RoleBinding",
        }
    }

    pub(super) fn cluster_wide(action: &str, resource: &str, verb: &str) -> Self {
        Self {
            action: action.to_owned(),
            role: role(None, resource, &[], verb),
            binding: "ClusterRoleBinding",
        }
    }
}

/// Converts the kube error of a request to the operator.
pub(super) fn explain_error<T>(
    result: std::result::Result<T, kube::Error>,
    context: &RequestContext,
    first_error: impl FnOnce(kube::Error) -> Error,
) -> Result<T> {
    result.map_err(|error| match error {
        kube::Error::Api(status) => {
            let is_status = status.reason != "Failed to parse error data";
            let response = ErrorResponse {
                code: StatusCode::from_u16(status.code).unwrap_or_default(),
                reason: is_status.then(|| status.reason.clone()),
                message: status.message.trim_matches(['"', '\\', 'n']).to_owned(),
            };
            response.explain(context)
        }
        error => first_error(error),
    })
}

fn role(namespace: Option<&str>, resource: &str, names: &[String], verb: &str) -> String {
    let (kind, namespace) = match namespace {
        Some(namespace) => ("Role", format!("\n  namespace: {namespace}")),
        None => ("ClusterRole", String::new()),
    };
    let names = match names.is_empty() {
        true => String::new(),
        false => format!("\n  resourceNames: [{}]", names.join(", ")),
    };
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: standin{namespace}\nrules:\n\
         - apiGroups: [{GROUP}]\n  resources: [{resource}]{names}\n  verbs: [{verb}]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> RequestContext {
        RequestContext::session("shop", &"deployment/checkout".parse().unwrap())
    }

    #[test]
    fn the_role_for_a_session_names_the_target() {
        let target = "deployment/checkout/container/app".parse().unwrap();
        assert_eq!(
            RequestContext::session("shop", &target).role,
            "\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: standin
  namespace: shop
rules:
- apiGroups: [operator.metalbear.co]
  resources: [targets]
  resourceNames: [deployment.checkout, deployment.checkout.container.app]
  verbs: [proxy]
"
        );
        let labels = RequestContext::session("shop", &"label".parse().unwrap());
        assert!(!labels.role.contains("resourceNames"), "{}", labels.role);
        assert_eq!(
            RequestContext::cluster_wide("list sessions", "sessions", "list").role,
            "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: standin
rules:
- apiGroups: [operator.metalbear.co]
  resources: [sessions]
  verbs: [list]
"
        );
    }

    #[test]
    fn error_responses_are_distinguished() {
        let from_operator = |code: u16, reason: &str, message: &str| {
            let status = serde_json::json!({"kind": "Status", "code": code, "reason": reason, "message": message});
            (code, status.to_string())
        };
        type IsExpected = fn(&Error) -> bool;
        let cases: [((u16, String), IsExpected); 11] = [
            (
                from_operator(
                    403,
                    "Forbidden",
                    "targets.operator.metalbear.co \"deployment.checkout\" is forbidden: User \"eve\" cannot proxy",
                ),
                |error| matches!(error, Error::AccessDenied { role, .. } if role.contains("resourceNames: [deployment.checkout]")),
            ),
            (
                from_operator(403, "Forbidden", "the policy `quiet` forbids it"),
                |error| error.to_string().contains("the policy `quiet` forbids it"),
            ),
            (
                from_operator(410, "Gone", "the session was ended"),
                |error| matches!(error, Error::SessionOver(_)),
            ),
            (
                from_operator(410, "Expired", "the client was disconnected for too long"),
                |error| matches!(error, Error::SessionExpired(_)),
            ),
            ((404, "404 page not found\n".to_owned()), |error| {
                matches!(error, Error::NoOperator)
            }),
            (
                from_operator(404, "NotFound", "there is no session 1f"),
                |error| error.to_string() == "the operator refuses: there is no session 1f",
            ),
            (
                (503, "service unavailable\n".to_owned()),
                |error| matches!(error, Error::OperatorDown { why } if why == "service unavailable"),
            ),
            (
                from_operator(503, "ServiceUnavailable", "the operator ends; try again"),
                |error| matches!(error, Error::OperatorBusy(_)),
            ),
            (
                (502, String::new()),
                |error| matches!(error, Error::OperatorDown { why } if why == "the API server answers 502 Bad Gateway"),
            ),
            ((401, String::new()), |error| {
                matches!(error, Error::Unauthorized(_))
            }),
            ((200, "{}".to_owned()), |error| {
                matches!(error, Error::IncompatibleOperator)
            }),
        ];
        for ((code, body), is_expected) in cases {
            let code = StatusCode::from_u16(code).unwrap();
            let error = ErrorResponse::parse(code, body.as_bytes()).explain(&context());
            assert!(is_expected(&error), "{code} {body}: {error:?}");
        }
    }
}
