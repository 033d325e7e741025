//! Makes the authenticator that the configuration describes.

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::authenticate::{Authenticator, ClientAuthorities, Oidc, TokenReviews};
use crate::background::Background;
use crate::configuration::AuthenticationConfiguration;
use crate::error::{Error, Result};

/// Keeps the authorities of client certificates up to date in the background.
pub(crate) async fn build(
    client: &Client,
    configuration: AuthenticationConfiguration,
    background: &Background,
) -> Result<Authenticator> {
    let reviews = TokenReviews::new(client.clone(), configuration.audiences);
    let reviews = reviews.map_err(|_| Error::NoRandomness)?;
    let oidc = configuration.oidc.into_iter().map(Oidc::new);
    let oidc: Result<Vec<Oidc>, _> = oidc.collect();
    let oidc = oidc.map_err(|error| Error::Authentication(Box::new(error)))?;
    let authorities = match configuration.client_authorities {
        Some(path) => {
            let read = ClientAuthorities::read(&path).await;
            let authorities = read.map_err(|error| Error::Authentication(Box::new(error)))?;
            let reloading = authorities.clone().run(path, CancellationToken::new());
            background.spawn("client_authorities", reloading);
            Some(authorities)
        }
        None => None,
    };
    Ok(Authenticator::new(reviews, oidc, authorities))
}
