//! Which identities a hub may use in this cluster.
//!
//! The hub authenticates users and names them in each request, so it could name anyone. This list, which the cluster's own
//! administrator writes, bounds that: a hub in other hands can only act as the users and groups that it allows. Identities
//! of Kubernetes itself (`system:…`), such as the group `system:masters`, must be named.

use std::fmt;

/// The users, groups and extra keys that requests may have. The default allows every user and group except `system:…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowList {
    pub users: Vec<Pattern>,
    pub groups: Vec<Pattern>,
    /// Keys of extra information about a user, such as `scopes`.
    pub extra_keys: Vec<Pattern>,
}

impl Default for AllowList {
    fn default() -> Self {
        let any = || vec![Pattern::from("*")];
        Self {
            users: any(),
            groups: any(),
            extra_keys: Vec::new(),
        }
    }
}

/// A name, or the beginning of names if it ends in `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// The beginning of names that belong to Kubernetes itself.
const SYSTEM: &str = "system:";

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        // `*` and `s*` do not name an identity of Kubernetes.
        if name.starts_with(SYSTEM) && !self.0.starts_with(SYSTEM) {
            return false;
        }
        match self.0.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => self.0 == name,
        }
    }
}

/// The user of a request, as its headers name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
    pub extra_keys: Vec<String>,
}

/// An identity that the list does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    kind: &'static str,
    name: String,
    value: &'static str,
}

impl fmt::Display for NotAllowed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, value } = self;
        write!(
            formatter,
            "the tunnel agent of this cluster does not allow the {kind} `{name}`: the cluster's administrator can add it to \
             `{value}` of the chart standin-tunnel-agent"
        )
    }
}

impl AllowList {
    /// Every part of the identity has to be allowed. A group is not left out silently: rights could depend on it.
    pub fn check(&self, identity: &Identity) -> Result<(), NotAllowed> {
        let user = [&identity.user].into_iter();
        check("user", "agent.allow.users", &self.users, user)?;
        let groups = identity.groups.iter();
        check("group", "agent.allow.groups", &self.groups, groups)?;
        let keys = identity.extra_keys.iter();
        check("extra key", "agent.allow.extraKeys", &self.extra_keys, keys)
    }
}

fn check<'a>(
    kind: &'static str,
    value: &'static str,
    allowed: &[Pattern],
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), NotAllowed> {
    let is_allowed = |name: &str| allowed.iter().any(|pattern| pattern.matches(name));
    match names.find(|name| !is_allowed(name)) {
        Some(name) => Err(NotAllowed {
            kind,
            name: name.clone(),
            value,
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().copied().map(Pattern::from).collect()
    }

    #[test]
    fn patterns_are_names_and_prefixes() {
        for (pattern, name, matches) in [
            ("anna", "anna", true),
            ("anna", "anna2", false),
            ("anna", "Anna", false),
            ("team-*", "team-a", true),
            ("team-*", "team-", true),
            ("team-*", "my-team-a", false),
            ("*", "anna", true),
            ("*", "system:masters", false),
            ("s*", "system:masters", false),
            ("system*", "system:masters", false),
            ("system:*", "system:masters", true),
            ("system:masters", "system:masters", true),
            ("system:masters", "system:masters2", false),
            (
                "system:serviceaccount:ci:*",
                "system:serviceaccount:ci:deployer",
                true,
            ),
            (
                "system:serviceaccount:ci:*",
                "system:serviceaccount:kube-system:a",
                false,
            ),
            ("*", "System:masters", true),
            ("a*b", "a*b", true),
            ("a*b", "axb", false),
        ] {
            assert_eq!(
                Pattern::from(pattern).matches(name),
                matches,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn every_part_of_an_identity_has_to_be_allowed() {
        let list = AllowList {
            users: patterns(&["anna", "*@example.com", "dev-*"]),
            groups: patterns(&["team-*"]),
            extra_keys: patterns(&["scopes"]),
        };
        let check = |user: &str, groups: &[&str], extra_keys: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let identity = Identity {
                user: user.to_owned(),
                groups: owned(groups),
                extra_keys: owned(extra_keys),
            };
            list.check(&identity).map_err(|error| error.to_string())
        };
        check("anna", &[], &[]).unwrap();
        check("dev-1", &["team-a", "team-b"], &["scopes"]).unwrap();
        for (user, groups, extra_keys, reason) in [
            ("bert", &[][..], &[][..], "the user `bert`"),
            ("", &[], &[], "the user ``"),
            ("anna", &["team-a", "admins"], &[], "the group `admins`"),
            (
                "anna",
                &["system:masters"],
                &[],
                "the group `system:masters`",
            ),
            ("anna", &[], &["other"], "the extra key `other`"),
        ] {
            let error = check(user, groups, extra_keys).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn identities_of_kubernetes_are_denied_by_default() {
        let check = |user: &str, group: &str| {
            let identity = Identity {
                user: user.to_owned(),
                groups: vec![group.to_owned()],
                extra_keys: Vec::new(),
            };
            AllowList::default().check(&identity).is_ok()
        };
        assert!(check("anna", "admins"));
        assert!(!check("anna", "system:masters"));
        assert!(!check("system:admin", "admins"));
        assert!(!check("system:serviceaccount:kube-system:a", "admins"));
        assert!(!check("system:node:a", "admins"));
    }
}
