//! The token of a kubeconfig's context, for servers that ask the context's cluster about it.

use std::process::Output;

use http::{Request, Response, header};
use kube::client::{AuthError, ConfigExt as _};
use tower::{BoxError, ServiceExt as _, service_fn};

use crate::access::{Access, config};
use crate::error::{Error, Result};

const BEARER: &str = "Bearer ";
/// Of what a credential plugin prints.
const MAX_SHOWN: usize = 500;

/// The bearer token that a client of this context sends to its API server. A credential plugin is run if the context names
/// one.
pub async fn bearer_token(access: &Access) -> Result<String> {
    let (config, context) = config(access).await?;
    let context = context.unwrap_or_else(|| "of this pod".to_owned());
    let no_token = |why: &str| Error::NoToken {
        context: context.clone(),
        why: why.to_owned(),
    };
    let has_certificate = config.auth_info.client_certificate.is_some()
        || config.auth_info.client_certificate_data.is_some();
    let layer = config.auth_layer().map_err(|error| match error {
        kube::Error::Auth(error) => no_token(&plugin_problem(&error)),
        error => Error::Client(Box::new(error)),
    })?;
    let Some(layer) = layer else {
        return Err(no_token(match has_certificate {
            true => {
                "it authenticates with a client certificate, which only its own API server can check"
            }
            false => "it has neither a token nor a credential plugin that prints one",
        }));
    };
    // The library adds the token to requests and does not show it otherwise, so this request is sent to no server.
    let echo = service_fn(|request: Request<String>| async move {
        let value = request.headers().get(header::AUTHORIZATION).cloned();
        Ok::<_, BoxError>(Response::new(value))
    });
    let request = Request::new(String::new());
    let response = tower::Layer::layer(&layer, echo).oneshot(request).await;
    let response = response.map_err(|error| match error.downcast_ref() {
        Some(error) => no_token(&plugin_problem(error)),
        None => no_token(&error.to_string()),
    })?;
    let value = response.into_body();
    let value = value.as_ref().and_then(|value| value.to_str().ok());
    match value.and_then(|value| value.strip_prefix(BEARER)) {
        Some(token) => Ok(token.trim().to_owned()),
        None => Err(no_token("it authenticates with a user name and a password")),
    }
}

/// The library's own text has everything that the plugin has printed, and that may be a token.
fn plugin_problem(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { cmd, out } => format!("{cmd} failed: {}", shown(out)),
        AuthError::AuthExecParse(_) => "its credential plugin printed no ExecCredential".to_owned(),
        error => error.to_string(),
    }
}

fn shown(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim() {
        "" => output.status.to_string(),
        text => text.chars().take(MAX_SHOWN).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    /// The token of the context with this user, or the error as text.
    async fn token_of(user: &str) -> Result<String, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n\
             contexts: [{{name: central, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {user}}}]\n"
        );
        file.write_all(text.as_bytes()).unwrap();
        let access = Access {
            kubeconfig: Some(file.path().to_owned()),
            context: Some("central".to_owned()),
            ..Access::default()
        };
        let token = bearer_token(&access).await;
        token.map_err(|error| error.to_string())
    }

    fn plugin(script: &str) -> String {
        let script = script.replace('\'', "''");
        format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, '{script}'], interactiveMode: Never}}}}"
        )
    }

    #[tokio::test]
    async fn tokens_are_from_the_kubeconfig_or_from_a_plugin() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "from-a-file").unwrap();
        let in_file = format!("{{tokenFile: '{}'}}", file.path().display());
        let status =
            r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":"#;
        let printed = format!("echo '{status}{{\"token\":\"from-a-plugin\"}}}}'");
        let expiring = format!(
            "echo '{status}{{\"token\":\"from-a-plugin\",\"expirationTimestamp\":\"2100-01-01T00:00:00Z\"}}}}'"
        );
        for (user, expected) in [
            ("{token: in-the-file}".to_owned(), Ok("in-the-file")),
            (in_file, Ok("from-a-file")),
            (plugin(&printed), Ok("from-a-plugin")),
            (plugin(&expiring), Ok("from-a-plugin")),
            ("{}".to_owned(), Err("neither a token")),
            (
                "{username: anna, password: hunter2}".to_owned(),
                Err("a password"),
            ),
            (
                plugin("printf hunter%d 2; echo 'log in first' >&2; exit 1"),
                Err("log in first"),
            ),
            (plugin("printf hunter%d 2"), Err("no ExecCredential")),
        ] {
            let token = token_of(&user).await;
            match (token, expected) {
                (Ok(token), Ok(expected)) => assert_eq!(token, expected),
                (Err(error), Err(expected)) => {
                    assert!(error.contains(expected), "{user}: {error}");
                    assert!(error.contains("central"), "{error}");
                    assert!(!error.contains("hunter2"), "{error}");
                }
                (token, _) => panic!("{user}: {token:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_certificate_cannot_be_passed_on() {
        let error = token_of("{client-certificate-data: Q0VSVA==, client-key-data: S0VZ}").await;
        let error = error.unwrap_err();
        assert!(error.contains("client certificate"), "{error}");
        assert!(error.contains("create token"), "{error}");
    }
}
