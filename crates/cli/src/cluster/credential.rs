//! `standin cluster credential`: the credential plugin that kubeconfigs call.
//!
//! Kubernetes clients run it before their first request and when the credential has expired. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::HubArguments;
use super::client::current_token;
use super::token::Token;

pub(super) const API_VERSION: &str = "client.authentication.k8s.io/v1";

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  standin cluster credential --hub hub.example.com

Kubernetes clients run this command, since `standin cluster kubeconfig` names it in the kubeconfig. It prints a token: never write its
output to a log.")]
pub(super) struct CredentialArguments {
    #[command(flatten)]
    hub: HubArguments,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential<'token> {
    api_version: &'static str,
    kind: &'static str,
    status: Status<'token>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'token> {
    token: &'token str,
    /// In seconds, as client-go parses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    expiration_timestamp: Option<String>,
}

impl std::fmt::Debug for Status<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Status").finish_non_exhaustive()
    }
}

fn exec_credential(token: &Token) -> ExecCredential<'_> {
    ExecCredential {
        api_version: API_VERSION,
        kind: "ExecCredential",
        status: Status {
            token: token.expose(),
            expiration_timestamp: token.expires_at().map(|at| at.to_string()),
        },
    }
}

pub(super) async fn run(arguments: &CredentialArguments) -> Result<ExitCode> {
    let login = arguments.hub.login()?;
    let token = current_token(&login).await?;
    println!("{}", serde_json::to_string(&exec_credential(&token))?);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_have_the_fields_of_the_interface() {
        for (token, status) in [
            ("opaque", json!({ "token": "opaque" })),
            (
                "e30.eyJleHAiOjE3MDAwMDAwMDB9.c2ln",
                json!({
                    "token": "e30.eyJleHAiOjE3MDAwMDAwMDB9.c2ln",
                    "expirationTimestamp": "2023-11-14T22:13:20Z",
                }),
            ),
        ] {
            let token = Token::parse(token).unwrap();
            let credential = serde_json::to_value(exec_credential(&token)).unwrap();
            let expected =
                json!({ "apiVersion": API_VERSION, "kind": "ExecCredential", "status": status });
            assert_eq!(credential, expected);
        }
    }
}
