//! Authorization of a Primary's sessions in a member: the Primary asserts a user's name and groups, and the rules of the member
//! decide whether that user may have the target. No impersonation is involved: an access review about a user does not need the
//! permission to impersonate that user.

use std::collections::BTreeMap;

use api::multicluster::PARENT_UID_LABEL;
use api::session::SessionOwner;
use api::{MirrordClusterSession, TargetPath};
use kube::ResourceExt as _;

use crate::Shared;
use crate::authorize::authorize;
use crate::front_proxy::User;
use crate::response::Refusal;
use crate::settings::MemberAuthorization;

/// The prefix of the users and groups of Kubernetes itself.
const RESERVED: &str = "system:";

/// Authorizes the session of a Primary, if the administrator has enabled it.
pub(crate) async fn authorize_child(
    shared: &Shared,
    session: &MirrordClusterSession,
) -> Result<(), Refusal> {
    let is_child = session.spec.multi_cluster_parent_name.is_some();
    let Some(settings) = shared
        .settings
        .member_authorization
        .as_ref()
        .filter(|_| is_child)
    else {
        return Ok(());
    };
    let target: TargetPath = session
        .spec
        .target_path()
        .map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    let user = asserted_user(&session.spec.owner, settings)?;
    authorize(&shared.client, &user, &session.spec.namespace, &target).await
}

/// The session's user with the names of this cluster. `None` if the rules of this cluster do not apply to that user: it is a
/// Primary's, and this cluster trusts the Primary.
pub(crate) fn user_of(shared: &Shared, session: &MirrordClusterSession) -> Option<User> {
    let owner = &session.spec.owner;
    if session.spec.multi_cluster_parent_name.is_some() && !is_coordinated_here(shared, session) {
        let settings = shared.settings.member_authorization.as_ref()?;
        return asserted_user(owner, settings).ok();
    }
    // Every user has groups. An older operator did not record them, and has checked the right to the target only.
    (!owner.k8s_groups.is_empty()).then(|| User {
        name: owner.k8s_username.clone(),
        groups: owner.k8s_groups.clone(),
        extra: owner.k8s_extra.clone(),
    })
}

/// Whether this cluster is the Primary of the session, so that the user is one of its own.
pub(crate) fn is_coordinated_here(shared: &Shared, session: &MirrordClusterSession) -> bool {
    let parent = session.spec.multi_cluster_parent_name.as_deref();
    let parents = shared.members.as_ref().map(|members| &members.sessions);
    let parent = parents.zip(parent).and_then(|(all, name)| all.get(name));
    let uid = session.labels().get(PARENT_UID_LABEL);
    parent.is_some_and(|parent| parent.metadata.uid.as_ref() == uid)
}

/// The Primary's user with the names of this cluster. A Primary cannot assert what Kubernetes itself gives to users: names that
/// begin with `system:` are refused, and such groups are left out, whatever the prefix is.
fn asserted_user(owner: &SessionOwner, settings: &MemberAuthorization) -> Result<User, Refusal> {
    let mapped = |prefix: &str, name: &String| {
        let mapped = format!("{prefix}{name}");
        let is_reserved = name.starts_with(RESERVED) || mapped.starts_with(RESERVED);
        (!is_reserved && !name.is_empty()).then_some(mapped)
    };
    let name = mapped(&settings.user_prefix, &owner.k8s_username).ok_or_else(|| {
        Refusal::forbidden(format!(
            "a Primary cannot assert the user `{}` here: this cluster checks the rights of users \
             (`operator.multiClusterMemberUserAuthorization`), and names that begin with `{RESERVED}` are its own. Use the \
             context of this cluster, or a user of another name",
            owner.k8s_username
        ))
    })?;
    let groups = owner.k8s_groups.iter();
    let groups = groups.filter_map(|group| mapped(&settings.group_prefix, group));
    Ok(User {
        name,
        groups: groups.collect(),
        // What an authenticator of another cluster says has no meaning here.
        extra: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asserted(prefixes: (&str, &str), name: &str, groups: &[&str]) -> Result<User, Refusal> {
        let owner = SessionOwner {
            k8s_username: name.to_owned(),
            k8s_groups: groups.iter().map(ToString::to_string).collect(),
            ..SessionOwner::default()
        };
        let settings = MemberAuthorization {
            user_prefix: prefixes.0.to_owned(),
            group_prefix: prefixes.1.to_owned(),
        };
        asserted_user(&owner, &settings)
    }

    #[test]
    fn prefixes_separate_a_primarys_users_from_those_of_this_cluster() {
        let user = asserted(("hub:", "hub-"), "anna", &["developers"]).unwrap();
        assert_eq!(user.name, "hub:anna");
        assert_eq!(user.groups, ["hub-developers"]);
        let same = asserted(("", ""), "anna", &["developers"]).unwrap();
        assert_eq!(
            (same.name.as_str(), same.groups),
            ("anna", vec!["developers".to_owned()])
        );
    }

    #[test]
    fn names_of_kubernetes_itself_are_never_asserted() {
        let groups = ["system:masters", "developers", "masters", "", "system:"];
        // The prefix of groups, and the groups that count.
        let cases: [(&str, &[&str]); 4] = [
            ("", &["developers", "masters"]),
            ("hub-", &["hub-developers", "hub-masters"]),
            ("system:", &[]),
            ("system:serviceaccounts:", &[]),
        ];
        for (prefix, expected) in cases {
            let user = asserted(("hub:", prefix), "anna", &groups).unwrap();
            assert_eq!(user.groups, expected, "{prefix}");
        }
        // The prefix of users, the user, and whether that user is accepted.
        let cases = [
            ("", "anna", true),
            ("", "system:admin", false),
            ("hub:", "system:serviceaccount:shop:default", false),
            ("system:", "admin", false),
            ("system:serviceaccount:kube-system:", "admin", false),
            ("hub:", "", false),
        ];
        for (prefix, name, expected) in cases {
            let found = asserted((prefix, "hub:"), name, &[]).map_err(|refusal| refusal.code);
            assert_eq!(found.is_ok(), expected, "{prefix}{name}: {found:?}");
            assert!(found.is_ok() || found == Err(http::StatusCode::FORBIDDEN));
        }
    }
}
