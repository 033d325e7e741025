//! The identity of the responding pod, and the trace headers of a request.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;

use crate::proto::{self, Identity};
use crate::settings::variable;

/// Carries the identity as JSON, in HTTP responses and in gRPC metadata.
pub(crate) const IDENTITY_HEADER: HeaderName = HeaderName::from_static("shop-identity");

/// Headers that are propagated through the whole shop, so that the requests of different callers can be distinguished.
const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// An identity, and the protocol over which it responded.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answer {
    #[serde(flatten)]
    pub(crate) identity: Identity,
    pub(crate) over: &'static str,
}

impl From<Answer> for proto::Answer {
    fn from(answer: Answer) -> Self {
        Self {
            identity: Some(answer.identity),
            over: answer.over.to_owned(),
        }
    }
}

pub(crate) fn from_environment(service: &str) -> Identity {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let pod = variable("POD_NAME", host.trim());
    Identity {
        service: service.to_owned(),
        cluster: variable("CLUSTER_NAME", "none"),
        // A StatefulSet's ordinal or a ReplicaSet's suffix.
        replica: pod.rsplit('-').next().unwrap_or_default().to_owned(),
        pod,
    }
}

pub(crate) fn header(me: &Identity) -> HeaderValue {
    // Names of clusters and pods are ASCII, which serde_json leaves as it is.
    serde_json::to_string(me)
        .ok()
        .and_then(|text| HeaderValue::try_from(text).ok())
        .unwrap_or(HeaderValue::from_static("{}"))
}

pub(crate) fn trace_headers(headers: &HeaderMap) -> HeaderMap {
    TRACE_HEADERS
        .into_iter()
        .filter_map(|name| {
            let value = headers.get(name)?.clone();
            Some((HeaderName::from_static(name), value))
        })
        .collect()
}
