//! Env: the target's environment at the start of its program, as the kernel keeps it.

use bytes::Bytes;
use protocol::rpc::env_server::Env;
use protocol::rpc::{ListEnvRequest, ListEnvResponse};
use protocol::{MAX_MESSAGE_BYTES, env};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read as _;
use tonic::{Request, Response, Status};

use crate::connection::Connection;
use crate::{Error, Result};

/// The maximum size of the environment. It must fit into one message, with its overhead.
const MAX_ENVIRONMENT_BYTES: usize = MAX_MESSAGE_BYTES / 2;

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
            // The kernel lets the target's user read it. Root without the capability to read all files is not that user.
            Err(Error::Agent {
                source: Errno::ACCESS,
                ..
            }) => self.agent.files().run(move || read(pid)).await?,
            environment => environment?,
        };
        // The environment of a process that has exited in the meantime reads as empty.
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
    let limit = MAX_ENVIRONMENT_BYTES as u64 + 1;
    file.take(limit)
        .read_to_end(&mut environment)
        .map_err(failed)?;
    if environment.len() > MAX_ENVIRONMENT_BYTES {
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
