//! Calls to the agent's file service. Every failure is the errno that the application sees.

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
use protocol::rpc::{self, Failure, FileRef};
use tokio::task::AbortHandle;

use super::closer::{CloseMode, HandleCloser};
use crate::agent::{SessionContext, StatefulAgent, disposition_of, errno_of};
use crate::event::{Event, FileProblem};

pub(crate) type Client = FilesClient<StatefulAgent>;

/// The client of the agent's file service. Clones share all state.
#[derive(Debug, Clone)]
pub(crate) struct FileCalls {
    context: SessionContext,
    closer: Arc<HandleCloser>,
}

impl FileCalls {
    pub(crate) fn new(context: SessionContext) -> Self {
        let closer = Arc::new(HandleCloser::start(&context));
        Self { context, closer }
    }

    /// Reports to the user why a file cannot be used as the program expects.
    pub(crate) fn report_problem(&self, path: &Path, problem: FileProblem) {
        (self.context.events)(&Event::File(path.to_path_buf(), problem));
    }

    /// Records for the monitor how many bytes of a file the agent sent with the response to `open`.
    pub(crate) fn record_prefetch(&self, path: &Path, bytes: usize) {
        self.context.monitor.file_prefetched(path, bytes);
    }

    /// Runs a task on the session's runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.context.runtime.spawn(task);
    }

    /// Like [`spawn`](Self::spawn), for a task that can be aborted.
    pub(crate) fn spawn_abortable(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        self.context.runtime.spawn(task).abort_handle()
    }

    /// Runs `request` on the runtime without blocking the caller, and then `then` on the runtime's blocking pool: `then` may
    /// wait for the application or for the kernel, and what it waits for may itself need a worker thread of the runtime.
    pub(crate) fn call_then<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
        then: impl FnOnce(T) + Send + 'static,
    ) {
        let runtime = self.context.runtime.clone();
        self.context.runtime.spawn(async move {
            let response = request.await;
            runtime.spawn_blocking(move || then(response));
        });
    }

    /// Blocks the calling thread, which must be one of the interceptor, until the future is ready.
    pub(crate) fn block_on<T>(&self, request: impl Future<Output = T>) -> T {
        self.context.wait(request)
    }

    /// Makes one call with the generated client, and blocks until the response.
    pub(crate) fn call_blocking<T, F>(&self, request: impl FnOnce(Client) -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.block_on(self.call(request))
    }

    /// Makes one call with the generated client.
    pub(crate) async fn call<T, F>(&self, request: impl FnOnce(Client) -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let response = request(self.context.files()).await;
        response
            .map(tonic::Response::into_inner)
            .map_err(|status| errno_of_status(&status))
    }

    pub(crate) async fn stat(&self, file_ref: FileRef) -> Result<rpc::Metadata, Errno> {
        let file_ref = Some(file_ref);
        let response = self
            .call(|mut files| async move { files.stat(rpc::StatRequest { file: file_ref }).await })
            .await?;
        response.metadata.ok_or(Errno::EIO)
    }

    /// `mode` as in `access`.
    pub(crate) async fn access(&self, file_ref: FileRef, mode: i32) -> Result<(), Errno> {
        let request = rpc::AccessRequest {
            file: Some(file_ref),
            read: mode & libc::R_OK != 0,
            write: mode & libc::W_OK != 0,
            execute: mode & libc::X_OK != 0,
        };
        let call = self.call(|mut files| async move { files.access(request).await });
        call.await.map(drop)
    }

    /// All entries of a directory, with their file types.
    pub(crate) async fn list(&self, file_ref: FileRef) -> Result<Vec<rpc::Entry>, Errno> {
        let request = rpc::ListRequest {
            file: Some(file_ref),
            without_metadata: true,
        };
        let entries = async {
            let mut responses = self.context.files().list(request).await?.into_inner();
            let mut entries = Vec::new();
            while let Some(response) = responses.message().await? {
                entries.extend(response.entries);
            }
            Ok(entries)
        };
        entries
            .await
            .map_err(|status: tonic::Status| errno_of_status(&status))
    }

    /// A range of an open file, as the chunks in which it was received. Shorter if the file ends in the range.
    pub(crate) async fn read(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Bytes>, Errno> {
        let mut chunks = Vec::new();
        let mut body = self.read_stream(handle, offset, length).await?;
        while let Some(chunk) = next_chunk(&mut body).await? {
            self.context.monitor.file_read(chunk.len());
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    /// Like [`read`](Self::read), as a stream that is read with [`next_chunk`].
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
        let response = self.context.stateful_agent.clone().send(request).await;
        let response = check(response.map_err(|error| unreachable_errno(&error))?)?;
        Ok(response.into_body())
    }

    /// Writes. Returns how many bytes were written, and the error that prevented the rest.
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
        match self.context.stateful_agent.clone().send(request).await {
            Ok(response) => {
                let count = written(response.headers()).unwrap_or_default();
                self.context.monitor.file_written(count);
                (count, check(response).map(drop))
            }
            Err(error) => (0, Err(unreachable_errno(&error))),
        }
    }

    /// Closes a handle immediately, without waiting for the response.
    pub(crate) fn close(&self, handle: u64) {
        self.closer.close(handle, CloseMode::Immediate);
    }

    /// Closes a handle with the next batch. For handles that cannot block other users of the file.
    pub(crate) fn close_batched(&self, handle: u64) {
        self.closer.close(handle, CloseMode::Batched);
    }
}

/// The next chunk of a stream; `None` at its end.
pub(crate) async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, Errno> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Errno::EIO)?;
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => return Ok(Some(data)),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_else(|_| HeaderMap::new());
                if let Some(failure) = Failure::from_headers(&trailers) {
                    return Err(file_errno(errno_of(Some(&failure))));
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
    Err(file_errno(errno_of(failure.as_ref())))
}

fn errno_of_status(status: &tonic::Status) -> Errno {
    match disposition_of(status) {
        interceptor::Disposition::Fail(errno) => file_errno(errno),
        interceptor::Disposition::Local => Errno::EIO,
    }
}

/// The application's own descriptor is valid, so `EBADF` from the agent means that the handle belonged to an earlier agent.
fn file_errno(errno: Errno) -> Errno {
    match errno {
        Errno::EBADF => Errno::ESTALE,
        other => other,
    }
}

fn unreachable_errno(error: &link::LinkError) -> Errno {
    tracing::warn!(%error, "agent unreachable");
    Errno::EIO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_the_agent_does_not_know_is_stale() {
        let status = |number| Failure::from_errno(number, "").to_status();
        assert_eq!(errno_of_status(&status(libc::EBADF)), Errno::ESTALE);
        assert_eq!(errno_of_status(&status(libc::ENOSPC)), Errno::ENOSPC);
    }
}
