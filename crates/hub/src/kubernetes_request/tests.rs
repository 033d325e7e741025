use super::*;

/// A request as one line: verb, group, namespace, resource, subresource and name, or the verb only.
fn line(method: &str, target: &str) -> String {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    let request = KubernetesRequest::parse(&method, path, query);
    if !request.is_resource {
        return request.verb;
    }
    let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
    format!(
        "{} [{}] {} {} {} {}",
        request.verb,
        request.api_group,
        part(&request.namespace),
        part(&request.resource),
        part(&request.subresource),
        part(&request.name),
    )
}

#[test]
fn requests_are_read_as_kubernetes_reads_them() {
    let cases = [
        // Without a resource
        ("GET", "/", "get"),
        ("GET", "/api", "get"),
        ("GET", "/api/v1", "get"),
        ("GET", "/apis", "get"),
        ("GET", "/apis/apps", "get"),
        ("GET", "/apis/apps/v1", "get"),
        ("GET", "/version", "get"),
        ("GET", "/healthz/ping", "get"),
        ("POST", "/metrics/a/b/c/d", "post"),
        ("GET", "/api/v1/watch", "get"),
        ("OPTIONS", "/api", "options"),
        // Collections
        ("GET", "/api/v1/pods", "list [] - pods - -"),
        ("GET", "/api/v1/pods/", "list [] - pods - -"),
        ("HEAD", "/api/v1/pods", "list [] - pods - -"),
        (
            "GET",
            "/api/v1/namespaces/shop/pods",
            "list [] shop pods - -",
        ),
        (
            "POST",
            "/api/v1/namespaces/shop/pods",
            "create [] shop pods - -",
        ),
        (
            "DELETE",
            "/api/v1/namespaces/shop/pods",
            "deletecollection [] shop pods - -",
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/shop/deployments",
            "list [apps] shop deployments - -",
        ),
        // Objects
        (
            "GET",
            "/api/v1/namespaces/shop/pods/web",
            "get [] shop pods - web",
        ),
        (
            "HEAD",
            "/api/v1/namespaces/shop/pods/web",
            "get [] shop pods - web",
        ),
        (
            "PUT",
            "/api/v1/namespaces/shop/pods/web",
            "update [] shop pods - web",
        ),
        ("PATCH", "/api/v1/nodes/one", "patch [] - nodes - one"),
        (
            "DELETE",
            "/api/v1/namespaces/shop/pods/web",
            "delete [] shop pods - web",
        ),
        ("OPTIONS", "/api/v1/nodes/one", " [] - nodes - one"),
        (
            "GET",
            "/api/v1/namespaces/sh%6fp/pods/web",
            "get [] shop pods - web",
        ),
        // An API server decodes the path first.
        (
            "GET",
            "/api/v1/namespaces/shop%2Fpods",
            "list [] shop pods - -",
        ),
        // Namespaces
        ("GET", "/api/v1/namespaces", "list [] - namespaces - -"),
        (
            "GET",
            "/api/v1/namespaces/shop",
            "get [] shop namespaces - shop",
        ),
        (
            "DELETE",
            "/api/v1/namespaces/shop",
            "delete [] shop namespaces - shop",
        ),
        (
            "GET",
            "/api/v1/namespaces/shop/status",
            "get [] shop namespaces status shop",
        ),
        (
            "PUT",
            "/api/v1/namespaces/shop/finalize",
            "update [] shop namespaces finalize shop",
        ),
        // Subresources
        (
            "GET",
            "/api/v1/namespaces/shop/pods/web/log?follow=true",
            "get [] shop pods log web",
        ),
        (
            "POST",
            "/api/v1/namespaces/shop/pods/web/exec",
            "create [] shop pods exec web",
        ),
        (
            "GET",
            "/api/v1/namespaces/shop/pods/web/attach",
            "get [] shop pods attach web",
        ),
        (
            "POST",
            "/api/v1/namespaces/shop/pods/web/portforward",
            "create [] shop pods portforward web",
        ),
        (
            "GET",
            "/api/v1/namespaces/shop/services/web:80/proxy/a/b",
            "get [] shop services proxy web:80",
        ),
        (
            "DELETE",
            "/api/v1/nodes/one/proxy/pods",
            "delete [] - nodes proxy one",
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/shop/deployments/web/scale",
            "patch [apps] shop deployments scale web",
        ),
        // Watches
        ("GET", "/api/v1/pods?watch=true", "watch [] - pods - -"),
        ("GET", "/api/v1/pods?watch=1&a=b", "watch [] - pods - -"),
        ("GET", "/api/v1/pods?a=b&watch", "watch [] - pods - -"),
        ("GET", "/api/v1/pods?watch=", "watch [] - pods - -"),
        ("GET", "/api/v1/pods?w%61tch=true", "watch [] - pods - -"),
        ("GET", "/api/v1/pods?watch=0", "list [] - pods - -"),
        ("GET", "/api/v1/pods?watch=False", "list [] - pods - -"),
        (
            "GET",
            "/api/v1/pods?watch=false&watch=true",
            "list [] - pods - -",
        ),
        (
            "GET",
            "/api/v1/namespaces/shop/pods/web?watch=true",
            "get [] shop pods - web",
        ),
        ("POST", "/api/v1/pods?watch=true", "create [] - pods - -"),
        ("GET", "/api/v1/watch/pods", "watch [] - pods - -"),
        (
            "GET",
            "/api/v1/watch/namespaces/shop/pods",
            "watch [] shop pods - -",
        ),
        (
            "GET",
            "/api/v1/watch/namespaces/shop/pods/web",
            "watch [] shop pods - web",
        ),
        (
            "GET",
            "/apis/apps/v1/watch/deployments",
            "watch [apps] - deployments - -",
        ),
        (
            "GET",
            "/api/v1/proxy/nodes/one/stats/x",
            "proxy [] - nodes - one",
        ),
        // A selector for one name
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Dweb",
            "list [] - pods - web",
        ),
        (
            "GET",
            "/api/v1/pods?watch=1&fieldSelector=spec.x=y,metadata.name==web",
            "watch [] - pods - web",
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name!=web",
            "list [] - pods - -",
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3D..",
            "list [] - pods - -",
        ),
    ];
    for (method, target, expected) in cases {
        assert_eq!(line(method, target), expected, "{method} {target}");
    }
}

#[test]
fn watches_and_streams_may_be_silent() {
    let cases = [
        ("/api/v1/pods", false),
        ("/api/v1/namespaces/shop/pods/web", false),
        ("/version", false),
        ("/api/v1/pods?watch=1", true),
        ("/api/v1/watch/pods", true),
        ("/api/v1/namespaces/shop/pods/web/log", true),
        ("/api/v1/namespaces/shop/pods/web/exec", true),
        ("/api/v1/namespaces/shop/services/web/proxy/x", true),
        ("/api/v1/namespaces/shop/pods/web/status", false),
    ];
    for (target, expected) in cases {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let request = KubernetesRequest::parse(&Method::GET, path, Some(query));
        assert_eq!(request.is_long_running(), expected, "{target}");
    }
}

/// A path below that of a cluster, and the path for its API server, or why there is none.
fn check(path: &str, expected: Result<&str, PathError>) {
    let found = checked(path);
    let found = found.as_deref().map_err(|error| *error);
    assert_eq!(found, expected, "{path}");
}

#[test]
fn names_of_clusters() {
    for name in ["a", "prod-eu", "prod-eu.1", "0"] {
        assert!(is_cluster_name(name), "{name}");
    }
    for name in [
        "",
        ".",
        "..",
        "A",
        "-a",
        "a-",
        "a.",
        "a/b",
        "a%2Fb",
        "%61",
        "a b",
        &"a".repeat(254),
    ] {
        assert!(!is_cluster_name(name), "{name}");
    }
}

#[test]
fn a_path_stays_as_the_client_has_encoded_it() {
    check("", Ok("/"));
    check("/", Ok("/"));
    check("/api/v1/pods", Ok("/api/v1/pods"));
    check("/apis/", Ok("/apis/"));
    check("//api", Ok("/api"));
    check("//b/api", Ok("/b/api"));
    check("/api/v1/...", Ok("/api/v1/..."));
    for path in [
        "/api/v1/namespaces/x/configmaps/a%3Ab",
        "/api/v1/namespaces/x%2Fpods",
        "/api/v1/namespaces/x/services/y/proxy//z//",
    ] {
        check(path, Ok(path));
    }
}

#[test]
fn a_path_that_can_be_read_in_two_ways_is_refused() {
    let cases: [(PathError, &[&str]); 4] = [
        (
            PathError::Traversal,
            &[
                "..",
                "../b",
                "../b/api",
                "./api",
                "api/..",
                "api/../..",
                "api/.",
                "%2e%2e/b",
                ".%2E/b",
                "%2e",
                "..%2fb",
                "api%2f..%2f..%2fb",
                "..\\b",
                "..%5cb",
                "%2e%2e%5c",
                "/../b",
                "//../b",
                "api/v1/namespaces/x/services/y/proxy/../../z",
            ],
        ),
        (
            PathError::EmptySegment,
            &[
                "api//v1",
                "api/v1//",
                "api/v1/namespaces//pods",
                "api%2f%2fv1",
                "api/%2Fv1",
                "api/v1/nodes//proxy/x",
            ],
        ),
        (
            PathError::Encoding,
            &[
                "api%", "api%2", "api%zz", "api%00", "a%0d%0ab", "a%ff", "%7f", "a%u0041",
            ],
        ),
        (
            PathError::Reserved,
            &[
                ".standin",
                ".standin/control",
                "%2estandin/control",
                "/.standin/control",
                ".STANDIN/control",
                ".standin%2fcontrol",
            ],
        ),
    ];
    for (error, paths) in cases {
        for path in paths {
            check(&format!("/{path}"), Err(error));
        }
    }
}
