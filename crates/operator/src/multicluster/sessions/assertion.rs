//! Authorization of a Primary's sessions in a member: the Primary asserts a user's name and groups, and the rules of the member
//! decide whether that user may have the target. No impersonation is involved: an access review about a user does not need the
//! permission to impersonate that user.

use api::session::SessionOwner;
use api::{MirrordClusterSession, TargetPath};

use crate::Shared;
use crate::authorize::authorize;
use crate::front_proxy::User;
use crate::response::Refusal;
use crate::settings::MemberAuthorization;

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
    let user = asserted_user(&session.spec.owner, settings);
    authorize(&shared.client, &user, &session.spec.namespace, &target).await
}

/// The Primary's user with the names of this cluster.
fn asserted_user(owner: &SessionOwner, settings: &MemberAuthorization) -> User {
    let group = |group: &String| format!("{}{group}", settings.group_prefix);
    User {
        name: format!("{}{}", settings.user_prefix, owner.k8s_username),
        groups: owner.k8s_groups.iter().map(group).collect(),
        extra: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_separate_a_primarys_groups_from_those_of_this_cluster() {
        let owner = SessionOwner {
            k8s_username: "anna".to_owned(),
            k8s_groups: vec!["system:masters".to_owned(), "developers".to_owned()],
            ..SessionOwner::default()
        };
        let settings = MemberAuthorization {
            user_prefix: "hub:".to_owned(),
            group_prefix: "hub-".to_owned(),
        };
        let user = asserted_user(&owner, &settings);
        assert_eq!(user.name, "hub:anna");
        assert_eq!(user.groups, ["hub-system:masters", "hub-developers"]);
        let same = asserted_user(&owner, &MemberAuthorization::default());
        assert_eq!(
            (same.name, same.groups),
            ("anna".to_owned(), owner.k8s_groups)
        );
    }
}
