use std::fs;

use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

const GRANTED: &str =
    "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">
  <AssumeRoleWithWebIdentityResult>
    <Audience>sts.amazonaws.com</Audience>
    <Credentials>
      <SessionToken>session/token==</SessionToken>
      <SecretAccessKey>a+secret/key</SecretAccessKey>
      <Expiration>2026-03-04T06:06:07Z</Expiration>
      <AccessKeyId>ASIAEXAMPLE</AccessKeyId>
    </Credentials>
  </AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>";
const REFUSED: &str = "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredTokenException</Code><Message>Token \
                       expired</Message></Error></ErrorResponse>";

/// Serves one request, and returns it.
async fn sts(listener: TcpListener, status: &str, body: &str) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    while !String::from_utf8_lossy(&request).contains("WebIdentityToken=") {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..length]);
    }
    let length = body.len();
    let response =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(response.as_bytes()).await.unwrap();
    String::from_utf8(request).unwrap()
}

async fn exchanged(
    status: &str,
    body: &str,
) -> (Result<(AwsCredentials, Timestamp), BoxError>, String) {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    fs::write(&token_file, "a.web.token\n").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let variables = [
        (
            environment::ROLE_ARN,
            "arn:aws:iam::1:role/standin".to_owned(),
        ),
        (
            environment::WEB_IDENTITY_TOKEN_FILE,
            token_file.display().to_string(),
        ),
        (environment::STS_ENDPOINT, format!("http://{address}")),
        (environment::ROLE_SESSION_NAME, String::new()),
    ];
    let identity = WebIdentity::from_environment(|name| {
        let variable = variables.iter().find(|(key, _)| *key == name);
        variable.map(|(_, value)| value.clone())
    })
    .unwrap();
    tokio::join!(
        identity.credentials("eu-north-1"),
        sts(listener, status, body)
    )
}

#[tokio::test]
async fn the_account_token_is_exchanged_for_credentials() {
    let (granted, request) = exchanged("200 OK", GRANTED).await;
    let (credentials, expires) = granted.unwrap();
    assert_eq!(credentials.access_key_id, "ASIAEXAMPLE");
    assert_eq!(
        credentials.secret_access_key.expose_secret(),
        "a+secret/key"
    );
    let session = credentials.session_token.unwrap();
    assert_eq!(session.expose_secret(), "session/token==");
    assert_eq!(expires, "2026-03-04T06:06:07Z".parse().unwrap());
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(
        body,
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fstandin&\
         RoleSessionName=standin%2Doperator&WebIdentityToken=a%2Eweb%2Etoken"
    );
}

#[tokio::test]
async fn errors_contain_the_message_of_aws() {
    let (refused, _) = exchanged("400 Bad Request", REFUSED).await;
    let error = refused.unwrap_err().to_string();
    assert_eq!(error, "AWS responded with 400 Bad Request: Token expired");
}

#[test]
fn without_a_role_there_is_no_identity() {
    assert_eq!(WebIdentity::from_environment(|_| None), None);
    let empty = |_: &str| Some(String::new());
    assert_eq!(WebIdentity::from_environment(empty), None);
}
