//! Env: the target's environment, as the kernel keeps it since the target's program was started.

use bytes::Bytes;
use protocol::rpc::env_server::Env;
use protocol::rpc::{ListEnvRequest, ListEnvResponse};
use protocol::{MESSAGE_BYTES, env};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read as _;
use tonic::{Request, Response, Status};

use crate::connection::Connection;
use crate::{Error, Result};

/// What fits into one message, with room for what the message adds.
const ENVIRONMENT_BYTES: usize = MESSAGE_BYTES / 2;

#[tonic::async_trait]
impl Env for Connection {
    async fn list(
        &self,
        _request: Request<ListEnvRequest>,
    ) -> Result<Response<ListEnvResponse>, Status> {
        self.admit().await?;
        let pid = self.agent.pid();
        let environment = tokio::task::spawn_blocking(move || read(pid)).await;
        let environment = match environment.unwrap_or_else(|_| Err(cannot_read(Errno::IO))) {
            // The kernel shows it to the target's user. Root without the right to read every file is another one.
            Err(Error::Agent {
                source: Errno::ACCESS,
                ..
            }) => self.agent.files().run(move || read(pid)).await?,
            environment => environment?,
        };
        // The kernel answers an empty environment for a process that has ended in the meantime.
        self.agent.target().require()?;
        let mut variables = env::parse(&environment);
        let rules = self.agent.rules();
        variables.retain(|variable| !rules.hides_variable(&variable.name));
        Ok(Response::new(ListEnvResponse { variables }))
    }
}

fn read(pid: u32) -> Result<Bytes> {
    let failed = |error: std::io::Error| match crate::error::errno_of(&error) {
        Errno::NOENT | Errno::SRCH => Error::TargetGone(pid),
        errno => cannot_read(errno),
    };
    let file = File::open(format!("/proc/{pid}/environ")).map_err(failed)?;
    let mut environment = Vec::new();
    let limit = ENVIRONMENT_BYTES as u64 + 1;
    file.take(limit)
        .read_to_end(&mut environment)
        .map_err(failed)?;
    if environment.len() > ENVIRONMENT_BYTES {
        return Err(Error::Operation {
            action: "send an environment this large",
            source: Errno::TOOBIG,
        });
    }
    Ok(environment.into())
}

fn cannot_read(source: Errno) -> Error {
    Error::Agent {
        action: "read the target's environment",
        hint: "it needs the capability SYS_PTRACE, or the target's own user",
        source,
    }
}
