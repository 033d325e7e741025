//! Suggests a similar target when the named one does not exist.

use cluster::{Cluster, Error};

/// Adds a suggestion to a `NotFound` error. The targets are listed only in this case, since it takes a moment.
pub(super) async fn add(cluster: &Cluster, error: Error) -> Error {
    let Error::NotFound {
        target,
        namespace,
        hint,
    } = error
    else {
        return error;
    };
    let listing = cluster::list(cluster, &namespace).await.unwrap_or_default();
    let existing: Vec<&str> = listing
        .targets
        .iter()
        .map(|listed| listed.target.as_str())
        .collect();
    let hint = match similar_target(&target, &existing) {
        Some(similar) => format!("Did you mean {similar}? {hint}"),
        None if existing.is_empty() && is_missing(cluster, &namespace).await => {
            "There is no such namespace: -n names another one, --context another cluster".to_owned()
        }
        None => hint,
    };
    Error::NotFound {
        target,
        namespace,
        hint,
    }
}

async fn is_missing(cluster: &Cluster, namespace: &str) -> bool {
    cluster::has_namespace(cluster, namespace).await == Some(false)
}

/// A target of another kind with the same name, or of the same kind with a similar name.
fn similar_target(target: &str, existing: &[&str]) -> Option<String> {
    let (kind, name) = target.split_once('/')?;
    let named = || existing.iter().filter_map(|other| other.split_once('/'));
    if let Some((other, _)) = named().find(|(_, other)| *other == name) {
        return Some(format!("{other}/{name}"));
    }
    let same_kind = named().filter(|(other, _)| *other == kind);
    let closest = config::closest(name, same_kind.map(|(_, name)| name))?;
    Some(format!("{kind}/{closest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_targets_are_found() {
        let existing = [
            "deployment/checkout",
            "deployment/web",
            "statefulset/database",
            "pod/web-1",
        ];
        for (target, expected) in [
            ("deployment/chekout", Some("deployment/checkout")),
            ("deployment/database", Some("statefulset/database")),
            ("deployment/Web", Some("deployment/web")),
            ("pod/web-2", Some("pod/web-1")),
            ("deployment/api", None),
            ("statefulset/web-3", None),
        ] {
            let similar = similar_target(target, &existing);
            assert_eq!(similar.as_deref(), expected, "{target}");
        }
    }
}
