//! What somebody may have meant who names a target that is not there.

use cluster::{Cluster, Error};

/// The same error, with what there is that is like it. Asking takes a moment, and only of those who are wrong.
pub(super) async fn instead(cluster: &Cluster, error: Error) -> Error {
    let Error::NotFound {
        target,
        namespace,
        hint,
    } = error
    else {
        return error;
    };
    let listing = cluster::list(cluster, &namespace).await.unwrap_or_default();
    let there: Vec<&str> = listing
        .targets
        .iter()
        .map(|listed| listed.target.as_str())
        .collect();
    let hint = match like(&target, &there) {
        Some(meant) => format!("Did you mean {meant}? {hint}"),
        None if there.is_empty() && is_missing(cluster, &namespace).await => {
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

/// What has the same name and is of another kind, or is of the same kind and has almost the same name.
fn like(target: &str, there: &[&str]) -> Option<String> {
    let (kind, name) = target.split_once('/')?;
    let named = || there.iter().filter_map(|other| other.split_once('/'));
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
    fn what_is_like_it_is_found() {
        let there = [
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
            assert_eq!(like(target, &there).as_deref(), expected, "{target}");
        }
    }
}
