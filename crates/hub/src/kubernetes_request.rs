//! What a request to an API server is about: verb, group, resource, namespace, name and subresource, as Kubernetes itself
//! derives them from method, path and query (`RequestInfo` of k8s.io/apiserver).
//!
//! A path is checked before it is used: what one server reads as a part of a name, another may read as a separator. So a
//! path that means something else after decoding or cleaning is refused, and `/clusters/a/../b` never reaches `b`.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;
use thiserror::Error;

/// Paths of tunnel agents, which are not those of an API server.
const INTERNAL: &str = ".standin";
/// The subresources of namespaces. Everything else below a namespace is a resource in it.
const NAMESPACE_SUBRESOURCES: &[&str] = &["status", "finalize"];
/// Subresources whose responses may be silent for any time.
const LONG_RUNNING_SUBRESOURCES: &[&str] = &["attach", "exec", "log", "portforward", "proxy"];

/// A path that does not mean the same to everything that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum PathError {
    #[error("the path must not contain the segments `.` and `..`, in any encoding")]
    Traversal,
    #[error("the path must not contain empty segments; check the URL for `//`")]
    EmptySegment,
    #[error("the path contains a character that no path of an API server has, or is badly encoded")]
    Encoding,
    #[error("the path is reserved for the hub")]
    Reserved,
}

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubernetesRequest {
    pub(crate) verb: String,
    /// Whether the request is for a resource. Then it has a resource and an API group, which may be empty.
    pub(crate) is_resource: bool,
    pub(crate) api_group: String,
    pub(crate) namespace: Option<String>,
    pub(crate) resource: Option<String>,
    pub(crate) subresource: Option<String>,
    pub(crate) name: Option<String>,
}

/// Whether a cluster can have this name, which is that of an object.
pub(crate) fn is_cluster_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty()
        && name.len() <= 253
        && name
            .bytes()
            .all(|byte| is_letter(byte) || matches!(byte, b'-' | b'.'))
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().next_back().is_some_and(is_letter)
}

/// Checks the path for an API server, and begins it with one slash. Slashes at its beginning are those of a server's address
/// that ended with a slash.
pub(crate) fn checked(path: &str) -> Result<String, PathError> {
    let path = path.trim_start_matches('/');
    let decoded = decode(path)?;
    let mut segments = decoded.split('/').peekable();
    if segments
        .peek()
        .is_some_and(|first| first.eq_ignore_ascii_case(INTERNAL))
    {
        return Err(PathError::Reserved);
    }
    // Decoded, because an encoded slash is a separator for an API server as well.
    let is_traversal = |segment: &str| matches!(segment, "." | "..");
    if decoded.split(['/', '\\']).any(is_traversal) {
        return Err(PathError::Traversal);
    }
    let mut proxied = false;
    while let Some(segment) = segments.next() {
        // Only behind `proxy` is the path that of another server, which may use empty segments.
        proxied |= segment == "proxy";
        if segment.is_empty() && segments.peek().is_some() && !proxied {
            return Err(PathError::EmptySegment);
        }
    }
    Ok(format!("/{path}"))
}

/// Decodes a path, if everything agrees on what it means.
fn decode(path: &str) -> Result<Cow<'_, str>, PathError> {
    let bytes = path.as_bytes();
    for (index, _) in path.match_indices('%') {
        let digits = bytes.get(index + 1..index + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(PathError::Encoding);
        }
    }
    let decoded = percent_decode_str(path)
        .decode_utf8()
        .map_err(|_| PathError::Encoding)?;
    if decoded.chars().any(char::is_control) {
        return Err(PathError::Encoding);
    }
    Ok(decoded)
}

impl KubernetesRequest {
    /// Derives it from the path below that of the cluster. The path was checked.
    pub(crate) fn parse(method: &Method, path: &str, query: Option<&str>) -> Self {
        let decoded = percent_decode_str(path).decode_utf8_lossy();
        let trimmed = decoded.trim_matches('/');
        let parts: Vec<&str> = if trimmed.is_empty() {
            Vec::new()
        } else {
            trimmed.split('/').collect()
        };
        Self::of_resource(method, &parts, query.unwrap_or_default()).unwrap_or_else(|| Self {
            verb: method.as_str().to_ascii_lowercase(),
            ..Self::default()
        })
    }

    fn of_resource(method: &Method, parts: &[&str], query: &str) -> Option<Self> {
        let (api_group, rest) = match parts {
            ["api", _version, rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (verb, parts) = match rest {
            // The old form of watches and proxies has the verb in the path.
            [verb @ ("watch" | "proxy"), rest @ ..] if !rest.is_empty() => (*verb, rest),
            [] | ["watch" | "proxy"] => return None,
            rest => (verb(method), rest),
        };
        let (namespace, parts) = namespaced(parts);
        let has_subresources = !rest.starts_with(&["proxy"]);
        let mut request = Self {
            verb: verb.to_owned(),
            is_resource: true,
            api_group: api_group.to_owned(),
            namespace: namespace.map(str::to_owned),
            resource: parts.first().map(|part| (*part).to_owned()),
            name: parts.get(1).map(|part| (*part).to_owned()),
            subresource: parts
                .get(2)
                .filter(|_| has_subresources)
                .map(|part| (*part).to_owned()),
        };
        request.refine_verb(query);
        Some(request)
    }

    /// A request without a name is for several objects.
    fn refine_verb(&mut self, query: &str) {
        if self.name.as_deref().is_some_and(|name| !name.is_empty()) {
            return;
        }
        match self.verb.as_str() {
            "get" => {
                let is_watch = parameter(query, "watch").is_some_and(|value| is_true(&value));
                let verb = if is_watch { "watch" } else { "list" };
                verb.clone_into(&mut self.verb);
                self.name = selected_name(query);
            }
            "delete" => "deletecollection".clone_into(&mut self.verb),
            _ => {}
        }
    }

    /// Whether the response may take any time to begin, and may be silent for any time.
    pub(crate) fn is_long_running(&self) -> bool {
        let subresource = self.subresource.as_deref().unwrap_or_default();
        matches!(self.verb.as_str(), "watch" | "proxy")
            || LONG_RUNNING_SUBRESOURCES.contains(&subresource)
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The namespace of a resource, and the path of the resource in it.
fn namespaced<'a, 'b>(parts: &'b [&'a str]) -> (Option<&'a str>, &'b [&'a str]) {
    match parts {
        ["namespaces", namespace, third, ..] if !NAMESPACE_SUBRESOURCES.contains(third) => {
            (Some(namespace), parts.get(2..).unwrap_or_default())
        }
        ["namespaces", namespace, ..] => (Some(namespace), parts),
        _ => (None, parts),
    }
}

/// The first value of a parameter of the query.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode_parameter(key) == name).then(|| decode_parameter(value))
    })
}

fn decode_parameter(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

/// How Kubernetes reads a boolean parameter.
fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

/// The name in a field selector that can only match one object.
fn selected_name(query: &str) -> Option<String> {
    let selector = parameter(query, "fieldSelector")?;
    selector.split(',').find_map(|term| {
        let name = term.strip_prefix("metadata.name=")?;
        let name = name.strip_prefix('=').unwrap_or(name);
        let is_name = !name.is_empty() && !name.contains(['/', '%']) && !matches!(name, "." | "..");
        is_name.then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests;
