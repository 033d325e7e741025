//! Control: Hello and Ping.

use std::path::Path;
use std::{fs, io};

use bytes::Bytes;
use protocol::control::{FEATURES, VERSION};
use protocol::files::MAX_FIRST_BYTES;
use protocol::rpc::control_server::Control;
use protocol::rpc::{
    HelloRequest, HelloResponse, Limits, PingRequest, PingResponse, Target as TargetMessage,
};
use rustix::system::uname;
use tonic::{Request, Response, Status};

use crate::agent::Agent;
use crate::connection::{Access, Connection, HelloState, MAX_STREAMS};
use crate::files::{MAX_HANDLES, MAX_READ_BYTES};
use crate::{Error, Result};

/// The maximum number of mount points in a message. A system with more is not a container.
const MAX_MOUNTS: usize = 512;

#[tonic::async_trait]
impl Control for Connection {
    async fn hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloResponse>, Status> {
        let request = request.into_inner();
        let verdict = check_hello(self, &request);
        self.finish_hello(match &verdict {
            Ok(()) => HelloState::Accepted,
            Err(_) => HelloState::Rejected,
        });
        if let Err(error) = verdict {
            tracing::warn!(client = request.client, %error, "client rejected");
            return Err(error.into());
        }
        // A connection that was rejected before stays rejected.
        self.admit().await?;
        tracing::info!(client = request.client, "client connected");
        Ok(Response::new(HelloResponse {
            version: Some(VERSION),
            features: FEATURES.iter().map(ToString::to_string).collect(),
            agent: concat!("standind ", env!("CARGO_PKG_VERSION")).to_owned(),
            target: Some(describe(&self.agent).await?),
            limits: Some(Limits {
                read_bytes: MAX_READ_BYTES,
                first_bytes: MAX_FIRST_BYTES,
                handles: MAX_HANDLES,
                streams: MAX_STREAMS,
            }),
        }))
    }

    async fn ping(&self, request: Request<PingRequest>) -> Result<Response<PingResponse>, Status> {
        match self.admit().await {
            // The response says whether the target is running.
            Ok(()) | Err(Error::TargetGone(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Response::new(PingResponse {
            payload: request.into_inner().payload,
            target_alive: !self.agent.target_has_exited(),
        }))
    }
}

fn check_hello(connection: &Connection, request: &HelloRequest) -> Result<()> {
    let version = request.version.ok_or(Error::Missing("version"))?;
    if !VERSION.is_compatible_with(version) {
        return Err(Error::WrongVersion {
            client: version.major,
            agent: VERSION.major,
        });
    }
    // A peer has authenticated with another secret before.
    if connection.access == Access::Session && !connection.agent.accepts(&request.token) {
        return Err(Error::WrongToken);
    }
    Ok(())
}

async fn describe(agent: &Agent) -> Result<TargetMessage> {
    let system = agent.uts().run(|| Ok(uname())).await?;
    let target = agent.target();
    Ok(TargetMessage {
        pid: target.pid,
        hostname: system.nodename().to_bytes().to_vec().into(),
        domain_name: system.domainname().to_bytes().to_vec().into(),
        uid: target.identity.uid,
        gid: target.identity.gid,
        groups: target.identity.groups.clone(),
        working_directory: working_directory(target.pid).unwrap_or_default().into(),
        kernel: system.release().to_string_lossy().into_owned(),
        machine: system.machine().to_string_lossy().into_owned(),
        mounts: mounts(target.pid).unwrap_or_default(),
    })
}

/// The mount points inside the target's root.
fn mounts(pid: u32) -> io::Result<Vec<Bytes>> {
    let text = fs::read(format!("/proc/{pid}/mountinfo"))?;
    Ok(parse_mounts(&text))
}

/// The mount points in the text of `mountinfo`, in which the kernel escapes special characters as octal numbers.
fn parse_mounts(text: &[u8]) -> Vec<Bytes> {
    let lines = text.split(|byte| *byte == b'\n');
    let mount_points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    mount_points.take(MAX_MOUNTS).map(unescape).collect()
}

fn unescape(mut text: &[u8]) -> Bytes {
    let mut plain = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        let number = match text {
            [b'\\', digits @ ..] => digits.get(..3).and_then(octal),
            _ => None,
        };
        plain.push(number.unwrap_or(*first));
        text = match number {
            Some(_) => &rest[3..],
            None => rest,
        };
    }
    plain.into()
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// The target's working directory, relative to its root. The kernel shows both as seen from outside.
fn working_directory(pid: u32) -> io::Result<Vec<u8>> {
    let root = fs::read_link(format!("/proc/{pid}/root"))?;
    let directory = fs::read_link(format!("/proc/{pid}/cwd"))?;
    let inside = directory.strip_prefix(&root).map_err(io::Error::other)?;
    Ok(Path::new("/")
        .join(inside)
        .into_os_string()
        .into_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_parsed() {
        let text = b"1 0 0:1 / / rw - overlay o rw\n3 1 0:3 /a /tmp/my\\040config ro - ext4 d ro\n4 1 0:4 / /a\\134b\\9 rw - tmpfs t rw\n";
        assert_eq!(parse_mounts(text), ["/", "/tmp/my config", "/a\\b\\9"]);
        assert!(!mounts(std::process::id()).unwrap().is_empty());
    }
}
