//! The state Secret: reading it, and changing it although other replicas may do the same.

use std::sync::Arc;

use crate::api_server::ApiServer;
use crate::api_server::secret::{Secret, Update};
use crate::error::{Error, Result};

/// How often a change is tried while others change the Secret.
const MAX_ATTEMPTS: usize = 5;

#[derive(Clone, Debug)]
pub(crate) struct Store {
    api_server: Arc<ApiServer>,
    name: String,
}

impl Store {
    pub(crate) const fn new(api_server: Arc<ApiServer>, name: String) -> Self {
        Self { api_server, name }
    }

    pub(crate) async fn read(&self) -> Result<Secret> {
        self.api_server.secret(&self.name).await
    }

    /// Changes the content, and returns it as it was stored. Nothing is written if the change changes nothing.
    pub(crate) async fn change(&self, change: impl Fn(&mut Secret)) -> Result<Secret> {
        for _ in 0..MAX_ATTEMPTS {
            let before = self.read().await?;
            let mut after = before.clone();
            change(&mut after);
            if after.data == before.data {
                return Ok(after);
            }
            match self.api_server.update_secret(&self.name, &after).await? {
                Update::Stored => return Ok(after),
                Update::Conflict => {}
            }
        }
        Err(Error::Contention)
    }
}
