//! Questions about files, as the agent takes them. Everything that fails, fails with the errno that the application sees.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use interceptor::Errno;
use protocol::files::{READ, ReadRange, WRITE, WriteRange, written};
use protocol::rpc::files_client::FilesClient;
use protocol::rpc::{self, Failure, Place};
use tokio::task::AbortHandle;

use super::closer::{Closer, Urgency};
use crate::agent::{Agent, Connection, errno, instead};
use crate::event::{Event, FileProblem};

pub(crate) type Client = FilesClient<Connection>;

/// Asks the agent about files. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    agent: Agent,
    closer: Arc<Closer>,
}

impl Calls {
    pub(crate) fn new(agent: Agent) -> Self {
        let closer = Arc::new(Closer::start(&agent));
        Self { agent, closer }
    }

    /// Tells the user why a file is not what the program wanted it to be.
    pub(crate) fn say(&self, path: &Path, problem: FileProblem) {
        (self.agent.tell)(&Event::File(path.to_path_buf(), problem));
    }

    /// So much of a file came with its opening.
    pub(crate) fn came(&self, path: &Path, bytes: usize) {
        self.agent.monitor.file_came(path, bytes);
    }

    /// Does something without waiting for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.agent.runtime.spawn(task);
    }

    /// The same, for what may be given up.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.agent.runtime.spawn(task).abort_handle()
    }

    /// Asks without waiting for the answer, and then does what may have to wait for the application or the kernel: on a thread of
    /// its own, because what is waited for may itself wait for the runtime.
    pub(crate) fn ask_then<T: Send + 'static>(
        &self,
        question: impl Future<Output = T> + Send + 'static,
        then: impl FnOnce(T) + Send + 'static,
    ) {
        let runtime = self.agent.runtime.clone();
        self.agent.runtime.spawn(async move {
            let answer = question.await;
            runtime.spawn_blocking(move || then(answer));
        });
    }

    /// Waits, on a thread of the interceptor.
    pub(crate) fn wait<T>(&self, question: impl Future<Output = T>) -> T {
        self.agent.wait(question)
    }

    /// Asks one question of the generated client, and waits.
    pub(crate) fn ask<T, F>(&self, question: impl FnOnce(Client) -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.wait(self.answer(question))
    }

    /// Asks one question of the generated client.
    pub(crate) async fn answer<T, F>(&self, question: impl FnOnce(Client) -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let answer = question(self.agent.files()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| failure(&status))
    }

    pub(crate) async fn stat(&self, place: Place) -> Result<rpc::Metadata, Errno> {
        let place = Some(place);
        let answer = self
            .answer(|mut files| async move { files.stat(rpc::StatRequest { place }).await })
            .await?;
        answer.metadata.ok_or(Errno::EIO)
    }

    /// `mode` as `access` takes it.
    pub(crate) async fn access(&self, place: Place, mode: i32) -> Result<(), Errno> {
        let request = rpc::AccessRequest {
            place: Some(place),
            read: mode & libc::R_OK != 0,
            write: mode & libc::W_OK != 0,
            execute: mode & libc::X_OK != 0,
        };
        let asked = self.answer(|mut files| async move { files.access(request).await });
        asked.await.map(drop)
    }

    /// All names of a directory, with their kinds.
    pub(crate) async fn list(&self, place: Place) -> Result<Vec<rpc::Entry>, Errno> {
        let request = rpc::ListRequest {
            place: Some(place),
            without_metadata: true,
        };
        let entries = async {
            let mut pieces = self.agent.files().list(request).await?.into_inner();
            let mut entries = Vec::new();
            while let Some(piece) = pieces.message().await? {
                entries.extend(piece.entries);
            }
            Ok(entries)
        };
        entries
            .await
            .map_err(|status: tonic::Status| failure(&status))
    }

    /// A range of an open file, in the parts in which it came. Shorter where the file ends.
    pub(crate) async fn read(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Bytes>, Errno> {
        let mut parts = Vec::new();
        let mut body = self.read_stream(handle, offset, length).await?;
        while let Some(part) = next_part(&mut body).await? {
            self.agent.monitor.file_read(part.len());
            parts.push(part);
        }
        Ok(parts)
    }

    /// The same, part by part as it comes; see [`next_part`].
    pub(crate) async fn read_stream(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
    ) -> Result<Incoming, Errno> {
        let range = ReadRange {
            handle,
            offset,
            length,
        };
        let request = Request::post(READ).body(Empty::<Bytes>::new());
        let mut request = request.map_err(|_| Errno::EIO)?;
        request.headers_mut().extend(range.to_headers());
        let response = self.agent.client.clone().send(request).await;
        let response = check(response.map_err(|error| lost(&error))?)?;
        Ok(response.into_body())
    }

    /// Writes, and says how much was written and what kept the rest from being.
    pub(crate) async fn write(
        &self,
        handle: u64,
        offset: u64,
        bytes: Bytes,
    ) -> (u64, Result<(), Errno>) {
        let Ok(mut request) = Request::post(WRITE).body(Full::new(bytes)) else {
            return (0, Err(Errno::EIO));
        };
        let range = WriteRange { handle, offset };
        request.headers_mut().extend(range.to_headers());
        match self.agent.client.clone().send(request).await {
            Ok(response) => {
                let count = written(response.headers()).unwrap_or_default();
                self.agent.monitor.file_written(count);
                (count, check(response).map(drop))
            }
            Err(error) => (0, Err(lost(&error))),
        }
    }

    /// Nobody needs a handle any more.
    pub(crate) fn close(&self, handle: u64) {
        self.closer.close(handle, Urgency::AtOnce);
    }

    /// The same, for one that keeps nobody from anything.
    pub(crate) fn close_soon(&self, handle: u64) {
        self.closer.close(handle, Urgency::Soon);
    }
}

/// The next bytes of a range; `None` at its end.
pub(crate) async fn next_part(body: &mut Incoming) -> Result<Option<Bytes>, Errno> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Errno::EIO)?;
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => return Ok(Some(data)),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_else(|_| HeaderMap::new());
                if let Some(failure) = Failure::from_headers(&trailers) {
                    return Err(of_file(errno(Some(&failure))));
                }
            }
        }
    }
    Ok(None)
}

fn check(response: Response<Incoming>) -> Result<Response<Incoming>, Errno> {
    if response.status().is_success() {
        return Ok(response);
    }
    let failure = Failure::from_headers(response.headers());
    Err(of_file(errno(failure.as_ref())))
}

fn failure(status: &tonic::Status) -> Errno {
    match instead(status) {
        interceptor::Instead::Fail(errno) => of_file(errno),
        interceptor::Instead::Local => Errno::EIO,
    }
}

/// The application's descriptors are good. What the agent does not know any more was open at the agent before it.
fn of_file(errno: Errno) -> Errno {
    match errno {
        Errno::EBADF => Errno::ESTALE,
        other => other,
    }
}

fn lost(error: &link::LinkError) -> Errno {
    tracing::warn!(%error, "the agent cannot be reached");
    Errno::EIO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_agent_does_not_know_any_more_is_stale() {
        let status = |number| Failure::from_errno(number, "").to_status();
        assert_eq!(failure(&status(libc::EBADF)), Errno::ESTALE);
        assert_eq!(failure(&status(libc::ENOSPC)), Errno::ENOSPC);
    }
}
