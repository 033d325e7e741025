//! Files: operations on the target's files, with the target's permissions.
//!
//! Every operation is a short job for a thread with the target's credentials. [`tree`] resolves paths, [`operations`]
//! implements the calls, and this file turns messages into jobs. Operations that cannot block run on the runtime's threads
//! ([`nonblocking`]). The contents of files are transferred by [`stream`].

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use protocol::files::MAX_FIRST_BYTES;
use protocol::rpc::files_server::Files;
use protocol::rpc::{
    AccessRequest, AllocateRequest, CloseRequest, CloseResponse, Done, FileRef,
    GetAttributeRequest, GetAttributeResponse, LinkRequest, ListAttributesRequest,
    ListAttributesResponse, ListRequest, ListResponse, MakeDirectoryRequest, MakeNodeRequest,
    OpenRequest, OpenResponse, ReadLinkRequest, ReadLinkResponse, RemoveAttributeRequest,
    RemoveDirectoryRequest, RenameRequest, ResolvePathRequest, ResolvePathResponse, SeekRequest,
    SeekResponse, SetAttributeRequest, SetModeRequest, SetOwnerRequest, SetTimesRequest,
    StatFilesystemRequest, StatFilesystemResponse, StatRequest, StatResponse, SymbolicLinkRequest,
    SyncRequest, TruncateRequest, UnlinkRequest, file_ref,
};
use tonic::{Request, Response, Status};

use crate::connection::Connection;
use crate::{Error, Result};

mod attributes;
mod canonicalize;
mod handles;
mod listing;
mod metadata;
mod mounts;
mod nonblocking;
mod open;
mod operations;
mod process_files;
mod stream;
mod tree;

pub(crate) use handles::{Handles, MAX_HANDLES};
pub(crate) use nonblocking::LocalDevices;
pub(crate) use stream::{MAX_READ_BYTES, read, write};
pub(crate) use tree::{FileLocation, Tree};

type RpcResult<T> = Result<Response<T>, Status>;

impl Connection {
    /// Runs `operation` in the target's tree, with the target's credentials.
    pub(crate) async fn in_tree<T: Send + 'static>(
        &self,
        operation: impl FnOnce(Tree<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.admit().await?;
        let agent = self.agent.clone();
        let job = move || operation(Tree::of(&agent, &agent.rules()));
        self.agent.files().run(job).await
    }

    async fn open_file(&self, request: OpenRequest) -> Result<open::OpenedFile> {
        self.admit().await?;
        match nonblocking::open(&self.agent, &request) {
            Some(opened) => opened,
            None => self.open_in_tree(request).await,
        }
    }

    /// The text of a configuration file. It is empty if the target cannot read the file: libc ignores that, too. A file that
    /// is far longer than usual is truncated.
    pub(crate) async fn configuration(&self, path: &'static [u8]) -> Result<Bytes> {
        let request = OpenRequest {
            path: Bytes::from_static(path),
            first_bytes: MAX_FIRST_BYTES,
            ..OpenRequest::default()
        };
        match self.open_file(request).await {
            Ok(opened) => Ok(opened.response.first_bytes),
            Err(Error::Operation { .. }) => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }

    async fn open_in_tree(&self, request: OpenRequest) -> Result<open::OpenedFile> {
        let agent = self.agent.clone();
        self.in_tree(move |tree| {
            let opened = open::open(tree, &request, open::ReadMode::All);
            let opened = opened.map_err(Error::operation("open this path"))?;
            if let Some(metadata) = &opened.response.metadata {
                agent.local_devices().learn(&opened.file, metadata);
            }
            Ok(opened)
        })
        .await
    }

    async fn respond<T: Send + 'static>(
        &self,
        operation: impl FnOnce(Tree<'_>) -> Result<T> + Send + 'static,
    ) -> RpcResult<T> {
        Ok(Response::new(self.in_tree(operation).await?))
    }

    /// The file of a request. Handles belong to this connection.
    fn locate(&self, file_ref: Option<FileRef>) -> Result<FileLocation> {
        let file_ref = file_ref.ok_or(Error::Missing("file"))?;
        match file_ref.file.ok_or(Error::Missing("path or handle"))? {
            file_ref::File::Path(path) => Ok(FileLocation::Path {
                path,
                follow: !file_ref.no_follow,
            }),
            file_ref::File::Handle(handle) => Ok(FileLocation::Open(self.handles.get(handle)?)),
        }
    }
}

#[tonic::async_trait]
impl Files for Connection {
    type ListStream = Pin<Box<dyn Stream<Item = Result<ListResponse, Status>> + Send>>;

    async fn open(&self, request: Request<OpenRequest>) -> RpcResult<OpenResponse> {
        let rules = self.agent.rules();
        let opened = self.open_file(request.into_inner()).await?;
        let handle = match opened.is_kept {
            true => self.handles.insert(opened.file)?,
            false => 0,
        };
        if !Arc::ptr_eq(&rules, &self.agent.rules()) {
            // The rules changed while it was opened, and may have been applied to the open files without this one.
            self.agent.close_forbidden_files().await?;
        }
        Ok(Response::new(OpenResponse {
            handle,
            ..opened.response
        }))
    }

    async fn close(&self, request: Request<CloseRequest>) -> RpcResult<CloseResponse> {
        let closed = self.handles.remove(&request.into_inner().handles);
        // The last close of a file may block, for instance to write it back to a server.
        self.agent
            .files()
            .run(move || {
                drop(closed);
                Ok(())
            })
            .await?;
        Ok(Response::new(CloseResponse {}))
    }

    async fn stat(&self, request: Request<StatRequest>) -> RpcResult<StatResponse> {
        let location = self.locate(request.into_inner().file)?;
        self.admit().await?;
        if let Some(result) = nonblocking::stat(&self.agent, &location) {
            return Ok(Response::new(result?));
        }
        let agent = self.agent.clone();
        self.respond(move |tree| operations::stat(tree, &location, agent.local_devices()))
            .await
    }

    async fn list(&self, request: Request<ListRequest>) -> RpcResult<Self::ListStream> {
        let request = request.into_inner();
        let location = self.locate(request.file)?;
        let entries = listing::list(self, location, !request.without_metadata).await?;
        Ok(Response::new(Box::pin(entries)))
    }

    async fn read_link(&self, request: Request<ReadLinkRequest>) -> RpcResult<ReadLinkResponse> {
        let location = self.locate(request.into_inner().file)?;
        self.respond(move |tree| operations::read_link(tree, &location))
            .await
    }

    async fn resolve_path(
        &self,
        request: Request<ResolvePathRequest>,
    ) -> RpcResult<ResolvePathResponse> {
        let path = request.into_inner().path;
        self.respond(move |tree| canonicalize::resolve_path(tree, &path))
            .await
    }

    async fn access(&self, request: Request<AccessRequest>) -> RpcResult<Done> {
        let mut request = request.into_inner();
        let location = self.locate(request.file.take())?;
        self.admit().await?;
        if let Some(result) = nonblocking::access(&self.agent, &location, &request) {
            return Ok(Response::new(result?));
        }
        self.respond(move |tree| operations::access(tree, &location, &request))
            .await
    }

    async fn stat_filesystem(
        &self,
        request: Request<StatFilesystemRequest>,
    ) -> RpcResult<StatFilesystemResponse> {
        let location = self.locate(request.into_inner().file)?;
        self.respond(move |tree| operations::stat_filesystem(tree, &location))
            .await
    }

    async fn make_directory(&self, request: Request<MakeDirectoryRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        self.respond(move |tree| operations::make_directory(tree, &request))
            .await
    }

    async fn make_node(&self, request: Request<MakeNodeRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        self.respond(move |tree| operations::make_node(tree, &request))
            .await
    }

    async fn remove_directory(&self, request: Request<RemoveDirectoryRequest>) -> RpcResult<Done> {
        let path = request.into_inner().path;
        self.respond(move |tree| operations::remove_directory(tree, &path))
            .await
    }

    async fn unlink(&self, request: Request<UnlinkRequest>) -> RpcResult<Done> {
        let path = request.into_inner().path;
        self.respond(move |tree| operations::unlink(tree, &path))
            .await
    }

    async fn rename(&self, request: Request<RenameRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        self.respond(move |tree| operations::rename(tree, &request))
            .await
    }

    async fn link(&self, request: Request<LinkRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let from = self.locate(request.from)?;
        self.respond(move |tree| operations::link(tree, &from, &request.to))
            .await
    }

    async fn symbolic_link(&self, request: Request<SymbolicLinkRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        self.respond(move |tree| operations::symbolic_link(tree, &request))
            .await
    }

    async fn set_mode(&self, request: Request<SetModeRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let location = self.locate(request.file)?;
        self.respond(move |tree| operations::set_mode(tree, &location, request.mode))
            .await
    }

    async fn set_owner(&self, request: Request<SetOwnerRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let location = self.locate(request.file)?;
        self.respond(move |tree| operations::set_owner(tree, &location, request.uid, request.gid))
            .await
    }

    async fn set_times(&self, request: Request<SetTimesRequest>) -> RpcResult<Done> {
        let mut request = request.into_inner();
        let location = self.locate(request.file.take())?;
        self.respond(move |tree| operations::set_times(tree, &location, &request))
            .await
    }

    async fn truncate(&self, request: Request<TruncateRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let location = self.locate(request.file)?;
        self.respond(move |tree| operations::truncate(tree, &location, request.size))
            .await
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let file = self.handles.get(request.handle)?;
        self.respond(move |_| operations::allocate(&file, &request))
            .await
    }

    async fn sync(&self, request: Request<SyncRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let file = self.handles.get(request.handle)?;
        self.respond(move |_| operations::sync(&file, request.data_only))
            .await
    }

    async fn seek(&self, request: Request<SeekRequest>) -> RpcResult<SeekResponse> {
        let request = request.into_inner();
        let file = self.handles.get(request.handle)?;
        self.respond(move |_| operations::seek(&file, &request))
            .await
    }

    async fn get_attribute(
        &self,
        request: Request<GetAttributeRequest>,
    ) -> RpcResult<GetAttributeResponse> {
        let request = request.into_inner();
        let location = self.locate(request.file)?;
        self.respond(move |tree| attributes::get(tree, &location, &request.name))
            .await
    }

    async fn list_attributes(
        &self,
        request: Request<ListAttributesRequest>,
    ) -> RpcResult<ListAttributesResponse> {
        let location = self.locate(request.into_inner().file)?;
        self.respond(move |tree| attributes::list(tree, &location))
            .await
    }

    async fn set_attribute(&self, request: Request<SetAttributeRequest>) -> RpcResult<Done> {
        let mut request = request.into_inner();
        let location = self.locate(request.file.take())?;
        self.respond(move |tree| attributes::set(tree, &location, &request))
            .await
    }

    async fn remove_attribute(&self, request: Request<RemoveAttributeRequest>) -> RpcResult<Done> {
        let request = request.into_inner();
        let location = self.locate(request.file)?;
        self.respond(move |tree| attributes::remove(tree, &location, &request.name))
            .await
    }
}
