//! Suggests similar keys and values.

use crate::settings::Target;
use crate::shape::{self, Kind, MapShape};

/// Short names of `kubectl`, which are too short to be similar to anything.
const KUBECTL: [(&str, &str); 7] = [
    ("cj", "cronjob"),
    ("deploy", "deployment"),
    ("ds", "daemonset"),
    ("po", "pod"),
    ("rs", "replicaset"),
    ("sts", "statefulset"),
    ("svc", "service"),
];

/// A similar key in the same map, or else the same key in another map.
pub(super) fn key(unknown: &str, map: &MapShape) -> Option<String> {
    let here = map
        .keys
        .iter()
        .filter(|(_, shape)| !matches!(shape.kind, Kind::Ignored))
        .map(|(key, _)| key.as_str());
    closest(unknown, here).or_else(|| in_another_map(unknown))
}

fn in_another_map(unknown: &str) -> Option<String> {
    let last = |path: &str| path.rsplit('.').next().map(ToOwned::to_owned);
    shape::root()
        .all_keys()
        .into_iter()
        .filter(|(_, shape)| !matches!(shape.kind, Kind::Ignored))
        .map(|(path, _)| path)
        .find(|path| last(path).is_some_and(|key| key == normal(unknown)))
}

pub(super) fn target(text: &str) -> Option<String> {
    let (kind, rest) = text.split_once('/')?;
    let short = KUBECTL.iter().find(|(short, _)| *short == kind);
    let kind = match short {
        Some((_, kind)) => (*kind).to_owned(),
        None => closest(kind, Target::kinds().into_iter())?,
    };
    let suggestion = format!("{kind}/{rest}");
    suggestion.parse::<Target>().ok().map(|_| suggestion)
}

/// The candidate that differs least, if the difference is small enough for a typo.
pub fn closest<'c>(unknown: &str, candidates: impl Iterator<Item = &'c str>) -> Option<String> {
    let unknown = normal(unknown);
    // The comparison takes the product of the lengths, and no key is this long.
    if unknown.len() > 64 {
        return None;
    }
    let max_distance = (unknown.chars().count() / 3).max(1);
    candidates
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&unknown, &normal(candidate));
            (distance, candidate)
        })
        .filter(|(distance, _)| *distance <= max_distance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// `readOnly`, `read-only` and `READ_ONLY` are near misses of `read_only`.
fn normal(key: &str) -> String {
    key.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_found() {
        let keys = ["read_only", "read_write", "local", "not_found", "mode"];
        for (unknown, expected) in [
            ("readOnly", Some("read_only")),
            ("read-write", Some("read_write")),
            ("mdoe", Some("mode")),
            ("Local", Some("local")),
            ("notfound", Some("not_found")),
            ("pineapple", None),
            ("", None),
        ] {
            let found = closest(unknown, keys.into_iter());
            assert_eq!(found.as_deref(), expected, "{unknown}");
        }
    }

    #[test]
    fn a_key_in_the_wrong_map_is_found() {
        assert_eq!(
            in_another_map("outgoing").as_deref(),
            Some("feature.network.outgoing")
        );
        assert_eq!(in_another_map("pineapple"), None);
        assert_eq!(target("deployments/x").as_deref(), Some("deployment/x"));
        assert_eq!(target("x"), None);
        for (short, kind) in KUBECTL {
            let expected = format!("{kind}/x");
            assert_eq!(target(&format!("{short}/x")), Some(expected));
        }
    }
}
