//! The environment variables that are read for members. Kubernetes sets those of AWS in the pod where the operator's service
//! account has a role in AWS.

/// Whether this Primary only coordinates, and has no targets. The configuration can say the same.
pub(crate) const MANAGEMENT_ONLY: &str = "PRIMARY_MANAGEMENT_ONLY";
/// The role that the operator's service account has in AWS.
pub(crate) const ROLE_ARN: &str = "AWS_ROLE_ARN";
/// The file with the account's token, which AWS accepts for that role. Kubernetes refreshes it.
pub(crate) const WEB_IDENTITY_TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// The session name in the logs of AWS.
pub(crate) const ROLE_SESSION_NAME: &str = "AWS_ROLE_SESSION_NAME";
/// The region in which credentials are requested, if it is not the member's region.
pub(crate) const REGION: &str = "AWS_REGION";
/// Another endpoint for credentials, for example where AWS is reached over a private endpoint.
pub(crate) const STS_ENDPOINT: &str = "AWS_ENDPOINT_URL_STS";
