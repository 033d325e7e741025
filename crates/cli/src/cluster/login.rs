//! `standin cluster login` and `logout`.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use api::hub::HubDescription;
use axum::http::StatusCode;
use clap::{ArgGroup, Args};
use tokio_rustls::rustls::CertificateError;

use super::HubArguments;
use super::address::HubAddress;
use super::client::{HubClient, current_token};
use super::error::HubError;
use super::prompt;
use super::store::{Credential, Login, Store};
use super::token::Token;
use super::trust::{Pin, Verifier, parse_authorities};

const STANDARD_INPUT: &str = "-";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("credential").required(true).args(["token_file", "kube_context"]))]
pub(super) struct LoginArguments {
    /// The hub's address for Kubernetes clients. The port is 6443 if none is given
    #[arg(value_name = "HUB")]
    hub: HubAddress,
    /// Read a token of the hub's cluster from this file, or from standard input with `-`, and keep it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Use the token of this context, which must be one of the cluster in which the hub runs
    ///
    /// The token is read again whenever one is needed, also from a credential plugin. So there is nothing to renew.
    #[arg(long, value_name = "CONTEXT")]
    kube_context: Option<String>,
    /// The kubeconfig with the context, instead of KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE", requires = "kube_context")]
    kubeconfig: Option<PathBuf>,
    /// Trust the hub if one of the authorities in this file (PEM) has signed its certificate
    #[arg(long, value_name = "FILE", conflicts_with = "pin")]
    ca_file: Option<PathBuf>,
    /// Trust the hub if its key has this pin: `sha256:` and 64 hexadecimal digits
    #[arg(long, value_name = "PIN")]
    pin: Option<Pin>,
}

const EXAMPLES: &str = "\
Examples:
  # with the credentials of a context of the hub's cluster, also those of a credential plugin (EKS, GKE, AKS, OIDC)
  standin cluster login https://hub.example.com --kube-context central

  # with a token; it is never on the command line, where other users and the shell's history could show it
  kubectl --context central create token anna --duration 8h | standin cluster login hub.example.com --token-file -

  # a hub with a certificate of its own
  standin cluster login hub.example.com --kube-context central --ca-file hub-ca.crt

Without --ca-file and --pin, the certificate must be signed by an authority that this machine trusts. Otherwise you are shown the
pin of the hub's key, and asked; without a terminal the login fails. The administrator of the hub compares the pin.

The login is kept in ~/.standin/hubs, readable only by you.";

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  standin cluster logout

Contexts in kubeconfigs remain, and do not work until you log in again: `kubectl config delete-context` deletes them.")]
pub(super) struct LogoutArguments {
    #[command(flatten)]
    hub: HubArguments,
}

pub(super) async fn login(arguments: &LoginArguments) -> Result<ExitCode> {
    let store = Store::open()?;
    let address = &arguments.hub;
    let authorities = arguments.ca_file.as_deref().map(read_authorities);
    let authorities = authorities.transpose()?;
    let credential = credential(arguments)?;
    // No token is sent before it is known whom to trust.
    let pin = match arguments.pin {
        Some(pin) => Some(pin),
        None => trusted_pin(address, authorities.as_deref()).await?,
    };
    let mut login = Login {
        address: address.clone(),
        authorities,
        pin,
        credential,
    };
    let verifier = Verifier::new(login.authorities.as_deref(), login.pin)?;
    let client = HubClient::new(
        address.clone(),
        verifier,
        Some(current_token(&login).await?),
    )?;
    let description = client.describe().await?;
    ensure_accepted(&client).await?;
    if let (None, Some(_)) = (&login.authorities, login.pin) {
        login.authorities = own_authorities(&description)?;
    }
    store.save(&login)?;
    println!(
        "logged in to the hub {address} (version {})",
        description.version
    );
    if let Some(warning) = problem_for_kubectl(&login).await? {
        eprintln!("standin: {warning}");
    }
    println!("next: `standin cluster list`, and `standin cluster kubeconfig` for kubectl");
    Ok(ExitCode::SUCCESS)
}

fn read_authorities(path: &Path) -> Result<String> {
    let pem = fs::read_to_string(path);
    let pem = pem.with_context(|| format!("cannot read {}", path.display()))?;
    parse_authorities(&pem).with_context(|| format!("--ca-file {}", path.display()))?;
    Ok(pem)
}

fn credential(arguments: &LoginArguments) -> Result<Credential> {
    match (&arguments.token_file, &arguments.kube_context) {
        (Some(file), _) => {
            let token = Token::parse(&read_token(file)?).map_err(anyhow::Error::msg);
            let token = token.with_context(|| format!("--token-file {}", file.display()))?;
            Ok(Credential::Token { token })
        }
        (None, Some(context)) if is_own_context(&arguments.hub, context) => bail!(
            "{context} is a context of the hub itself; name one of the cluster in which the hub runs"
        ),
        (None, Some(context)) => {
            let kubeconfig = arguments.kubeconfig.as_deref().map(std::path::absolute);
            Ok(Credential::KubeContext {
                context: context.clone(),
                kubeconfig: kubeconfig.transpose().context("--kubeconfig")?,
            })
        }
        (None, None) => bail!("--token-file or --kube-context says who you are"),
    }
}

/// The credential of such a context is this program, which would call itself.
fn is_own_context(hub: &HubAddress, context: &str) -> bool {
    let cluster = context.strip_prefix(&hub.name());
    cluster.is_some_and(|cluster| cluster.starts_with('/'))
}

fn read_token(file: &Path) -> Result<String> {
    if file == Path::new(STANDARD_INPUT) {
        let mut text = String::new();
        let read = io::stdin().lock().read_to_string(&mut text);
        read.context("the token cannot be read from standard input")?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Checks whether the hub is trusted. If not, the user may trust the key that it shows. Returns the pin in that case.
async fn trusted_pin(address: &HubAddress, authorities: Option<&str>) -> Result<Option<Pin>> {
    let verifier = Verifier::new(authorities, None)?;
    let client = HubClient::new(address.clone(), verifier, None)?;
    let error = match client.check_trust().await {
        Ok(()) => return Ok(None),
        Err(error) => error,
    };
    let HubError::Untrusted(_, problem, _, Some(shown)) = &error else {
        return Err(error.into());
    };
    // A certificate that has expired, or is for another name, is a mistake that a pin would hide.
    let is_unknown = matches!(
        **problem,
        CertificateError::UnknownIssuer | CertificateError::Other(_)
    );
    if authorities.is_some() || !is_unknown || !prompt::is_possible() {
        return Err(error.into());
    }
    eprintln!("The certificate of the hub {address} is not trusted by this machine: {problem}.");
    eprintln!("The pin of its key is\n\n  {shown}\n");
    eprintln!(
        "Ask the hub's administrator for the pin and compare all of it. With the wrong one, others can read your token."
    );
    match prompt::confirm("Is it the same?")? {
        true => Ok(Some(*shown)),
        false => bail!("you are not logged in, and nothing was sent to the hub"),
    }
}

/// Fails if the hub does not accept the token. What the user may do does not matter here.
async fn ensure_accepted(client: &HubClient) -> Result<(), HubError> {
    match client.list().await {
        Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => Ok(()),
        result => result.map(drop),
    }
}

/// The authorities that the hub names, which a kubeconfig needs.
fn own_authorities(description: &HubDescription) -> Result<Option<String>> {
    let Some(pem) = &description.ca_bundle else {
        return Ok(None);
    };
    parse_authorities(pem).context("the authorities that the hub names")?;
    Ok(Some(pem.clone()))
}

/// Why Kubernetes clients, which know no pins, would not accept the hub's certificate.
async fn problem_for_kubectl(login: &Login) -> Result<Option<String>> {
    if login.pin.is_none() {
        return Ok(None);
    }
    let verifier = Verifier::new(login.authorities.as_deref(), None)?;
    let client = HubClient::new(login.address.clone(), verifier, None)?;
    let problem = client.check_trust().await.err();
    Ok(problem.map(|error| {
        format!("this program trusts the hub by its pin, and kubectl will not accept it: {error}")
    }))
}

pub(super) fn logout(arguments: &LogoutArguments) -> Result<ExitCode> {
    let store = Store::open()?;
    let address = match arguments.hub.named()? {
        Some(address) => address,
        None => arguments.hub.login_in(&store)?.address,
    };
    match store.remove(&address)? {
        true => println!("logged out of the hub {address}"),
        false => bail!("you are not logged in to the hub {address}"),
    }
    Ok(ExitCode::SUCCESS)
}
