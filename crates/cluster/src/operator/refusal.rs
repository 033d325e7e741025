//! What an answer means that is not the one that was hoped for. Pure, but for reading the answer.

use api::{GROUP, TargetKind, TargetPath};
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

use crate::error::{Error, Result};

/// An answer that is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) code: StatusCode,
    /// The `message` of a `Status`, or what was said instead of one.
    pub(super) message: String,
    /// The `reason` of a `Status`. The operator always sends one; what the API server says in its place often has none.
    pub(super) reason: Option<String>,
}

/// What was asked for, and who may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) action: String,
    /// A Role or ClusterRole that allows it, as YAML.
    pub(super) role: String,
    pub(super) binding: &'static str,
}

impl Answered {
    pub(super) async fn read(response: Response<Body>) -> Self {
        let code = response.status();
        let body = response.into_body().collect().await;
        let bytes = body.map(http_body_util::Collected::to_bytes);
        Self::of(code, &bytes.unwrap_or_default())
    }

    fn of(code: StatusCode, body: &[u8]) -> Self {
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

    /// For questions that everybody may ask.
    pub(super) fn into_error(self, action: &str) -> Error {
        match self.code {
            StatusCode::UNAUTHORIZED => Error::Unauthorized(self.message),
            _ => Error::OperatorDown {
                why: format!("the API server would not {action}: {}", self.message),
            },
        }
    }

    /// What it means for whoever asked the operator for something.
    pub(super) fn explain(self, asked: &Asked) -> Error {
        let is_of_the_operator = self.reason.is_some();
        match self.code {
            StatusCode::UNAUTHORIZED => Error::Unauthorized(self.message),
            // The API server's own refusal, which comes before the operator's.
            StatusCode::FORBIDDEN if self.message.contains("is forbidden: User") => Error::MayNot {
                action: asked.action.clone(),
                binding: asked.binding,
                role: asked.role.clone(),
            },
            StatusCode::GONE if self.reason.as_deref() == Some("Expired") => {
                Error::SessionExpired(self.message)
            }
            StatusCode::GONE => Error::SessionOver(self.message),
            StatusCode::NOT_FOUND if !is_of_the_operator => Error::NoOperator,
            StatusCode::OK => Error::ForeignOperator,
            code if code == StatusCode::TOO_MANY_REQUESTS || code.is_server_error() => {
                match is_of_the_operator {
                    true => Error::OperatorBusy(self.message),
                    false => Error::OperatorDown { why: self.message },
                }
            }
            _ => Error::OperatorRefused(self.message),
        }
    }
}

impl Asked {
    /// A session with a target. The API server asks for the name with its container, the operator is content without.
    /// Labels can choose any pod, so they take the right to all targets.
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

    pub(super) fn everywhere(action: &str, resource: &str, verb: &str) -> Self {
        Self {
            action: action.to_owned(),
            role: role(None, resource, &[], verb),
            binding: "ClusterRoleBinding",
        }
    }
}

/// A kube error of a question to the operator.
pub(super) fn explained<T>(
    result: std::result::Result<T, kube::Error>,
    asked: &Asked,
    first_error: impl FnOnce(kube::Error) -> Error,
) -> Result<T> {
    result.map_err(|error| match error {
        kube::Error::Api(status) => {
            let is_status = status.reason != "Failed to parse error data";
            let answered = Answered {
                code: StatusCode::from_u16(status.code).unwrap_or_default(),
                reason: is_status.then(|| status.reason.clone()),
                message: status.message.trim_matches(['"', '\\', 'n']).to_owned(),
            };
            answered.explain(asked)
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

    fn asked() -> Asked {
        Asked::session("shop", &"deployment/checkout".parse().unwrap())
    }

    #[test]
    fn a_role_names_the_target() {
        let target = "deployment/checkout/container/app".parse().unwrap();
        assert_eq!(
            Asked::session("shop", &target).role,
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
        let labels = Asked::session("shop", &"label".parse().unwrap());
        assert!(!labels.role.contains("resourceNames"), "{}", labels.role);
        assert_eq!(
            Asked::everywhere("list sessions", "sessions", "list").role,
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
    fn answers_are_told_apart() {
        let of_operator = |code: u16, reason: &str, message: &str| {
            let status = serde_json::json!({"kind": "Status", "code": code, "reason": reason, "message": message});
            (code, status.to_string())
        };
        type IsIt = fn(&Error) -> bool;
        let cases: [((u16, String), IsIt); 11] = [
            (
                of_operator(
                    403,
                    "Forbidden",
                    "targets.operator.metalbear.co \"deployment.checkout\" is forbidden: User \"eve\" cannot proxy",
                ),
                |error| matches!(error, Error::MayNot { role, .. } if role.contains("resourceNames: [deployment.checkout]")),
            ),
            (
                of_operator(403, "Forbidden", "the policy `quiet` forbids it"),
                |error| error.to_string().contains("the policy `quiet` forbids it"),
            ),
            (of_operator(410, "Gone", "the session was ended"), |error| {
                matches!(error, Error::SessionOver(_))
            }),
            (
                of_operator(410, "Expired", "the client was away"),
                |error| matches!(error, Error::SessionExpired(_)),
            ),
            ((404, "404 page not found\n".to_owned()), |error| {
                matches!(error, Error::NoOperator)
            }),
            (
                of_operator(404, "NotFound", "there is no session 1f"),
                |error| error.to_string() == "the operator refuses: there is no session 1f",
            ),
            (
                (503, "service unavailable\n".to_owned()),
                |error| matches!(error, Error::OperatorDown { why } if why == "service unavailable"),
            ),
            (
                of_operator(503, "ServiceUnavailable", "the operator ends; try again"),
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
                matches!(error, Error::ForeignOperator)
            }),
        ];
        for ((code, body), is_it) in cases {
            let answered = Answered::of(StatusCode::from_u16(code).unwrap(), body.as_bytes());
            let error = answered.explain(&asked());
            assert!(is_it(&error), "{code} {body}: {error:?}");
        }
    }
}
