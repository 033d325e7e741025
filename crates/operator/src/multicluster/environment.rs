//! Every environment variable that is read for members. Kubernetes puts them into the pod where the operator's account
//! has a role in AWS.

/// The role that the operator's account has in AWS.
pub(crate) const ROLE_ARN: &str = "AWS_ROLE_ARN";
/// The file with the account's token, which AWS takes for that role. It is renewed in place.
pub(crate) const WEB_IDENTITY_TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// What AWS's own log calls us.
pub(crate) const ROLE_SESSION_NAME: &str = "AWS_ROLE_SESSION_NAME";
/// Where credentials are asked for, when it is not the member's region.
pub(crate) const REGION: &str = "AWS_REGION";
/// Another place to ask for credentials, as where AWS is reached over a private endpoint.
pub(crate) const STS_ENDPOINT: &str = "AWS_ENDPOINT_URL_STS";
