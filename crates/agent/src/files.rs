//! Files: the target's, with the target's permissions.
//!
//! Every operation is a short job for a thread that has the target's identity. [`tree`] resolves paths, [`operations`]
//! does what a call asks, and this file turns messages into jobs. What needs no waiting is done [`at_once`]. Bytes of files go through [`stream`].

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use protocol::files::FIRST_BYTES;
use protocol::rpc::files_server::Files;
use protocol::rpc::{
    AccessRequest, AllocateRequest, CloseRequest, CloseResponse, Done, GetAttributeRequest,
    GetAttributeResponse, LinkRequest, ListAttributesRequest, ListAttributesResponse, ListRequest,
    ListResponse, MakeDirectoryRequest, MakeNodeRequest, OpenRequest, OpenResponse, Place,
    ReadLinkRequest, ReadLinkResponse, RemoveAttributeRequest, RemoveDirectoryRequest,
    RenameRequest, ResolvePathRequest, ResolvePathResponse, SeekRequest, SeekResponse,
    SetAttributeRequest, SetModeRequest, SetOwnerRequest, SetTimesRequest, StatFilesystemRequest,
    StatFilesystemResponse, StatRequest, StatResponse, SymbolicLinkRequest, SyncRequest,
    TruncateRequest, UnlinkRequest, place,
};
use tonic::{Request, Response, Status};

use crate::connection::Connection;
use crate::{Error, Result};

mod at_once;
mod attributes;
mod canonical;
mod handles;
mod listing;
mod metadata;
mod open;
mod operations;
mod stream;
mod tree;

pub(crate) use at_once::LocalDevices;
pub(crate) use handles::{HANDLES, Handles};
pub(crate) use stream::{READ_BYTES, read, write};
pub(crate) use tree::{Located, Tree};

type Answer<T> = Result<Response<T>, Status>;

impl Connection {
    /// Does `operation` in the target's tree, as the target.
    pub(crate) async fn in_tree<T: Send + 'static>(
        &self,
        operation: impl FnOnce(Tree<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.admit().await?;
        let agent = self.agent.clone();
        let job = move || operation(Tree::of(&agent, &agent.rules()));
        self.agent.files().run(job).await
    }

    async fn open_file(&self, request: OpenRequest) -> Result<open::Opened> {
        self.admit().await?;
        match at_once::open(&self.agent, &request) {
            Some(opened) => opened,
            None => self.open_in_tree(request).await,
        }
    }

    /// The text of a configuration file, or nothing when the target cannot read it: libc goes on without it, too. Of a
    /// longer one than a file of this kind ever is, the beginning.
    pub(crate) async fn configuration(&self, path: &'static [u8]) -> Result<Bytes> {
        let request = OpenRequest {
            path: Bytes::from_static(path),
            first_bytes: FIRST_BYTES,
            ..OpenRequest::default()
        };
        match self.open_file(request).await {
            Ok(opened) => Ok(opened.response.first_bytes),
            Err(Error::Operation { .. }) => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }

    async fn open_in_tree(&self, request: OpenRequest) -> Result<open::Opened> {
        let agent = self.agent.clone();
        self.in_tree(move |tree| {
            let opened = open::open(tree, &request, open::Reading::All);
            let opened = opened.map_err(Error::operation("open this path"))?;
            if let Some(metadata) = &opened.response.metadata {
                agent.local_devices().learn(&opened.file, metadata);
            }
            Ok(opened)
        })
        .await
    }

    async fn answer<T: Send + 'static>(
        &self,
        operation: impl FnOnce(Tree<'_>) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        Ok(Response::new(self.in_tree(operation).await?))
    }

    /// Finds what a request is about; handles belong to this connection.
    fn locate(&self, place: Option<Place>) -> Result<Located> {
        let place = place.ok_or(Error::Missing("place"))?;
        match place.place.ok_or(Error::Missing("path or handle"))? {
            place::Place::Path(path) => Ok(Located::Path {
                path,
                follow: !place.no_follow,
            }),
            place::Place::Handle(handle) => Ok(Located::Open(self.handles.get(handle)?)),
        }
    }
}

#[tonic::async_trait]
impl Files for Connection {
    type ListStream = Pin<Box<dyn Stream<Item = Result<ListResponse, Status>> + Send>>;

    async fn open(&self, request: Request<OpenRequest>) -> Answer<OpenResponse> {
        let opened = self.open_file(request.into_inner()).await?;
        let handle = match opened.is_kept {
            true => self.handles.insert(opened.file)?,
            false => 0,
        };
        Ok(Response::new(OpenResponse {
            handle,
            ..opened.response
        }))
    }

    async fn close(&self, request: Request<CloseRequest>) -> Answer<CloseResponse> {
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

    async fn stat(&self, request: Request<StatRequest>) -> Answer<StatResponse> {
        let place = self.locate(request.into_inner().place)?;
        self.admit().await?;
        if let Some(answer) = at_once::stat(&self.agent, &place) {
            return Ok(Response::new(answer?));
        }
        let agent = self.agent.clone();
        self.answer(move |tree| operations::stat(tree, &place, agent.local_devices()))
            .await
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<Self::ListStream> {
        let request = request.into_inner();
        let place = self.locate(request.place)?;
        let entries = listing::list(self, place, !request.without_metadata).await?;
        Ok(Response::new(Box::pin(entries)))
    }

    async fn read_link(&self, request: Request<ReadLinkRequest>) -> Answer<ReadLinkResponse> {
        let place = self.locate(request.into_inner().place)?;
        self.answer(move |tree| operations::read_link(tree, &place))
            .await
    }

    async fn resolve_path(
        &self,
        request: Request<ResolvePathRequest>,
    ) -> Answer<ResolvePathResponse> {
        let path = request.into_inner().path;
        self.answer(move |tree| canonical::canonical(tree, &path))
            .await
    }

    async fn access(&self, request: Request<AccessRequest>) -> Answer<Done> {
        let mut request = request.into_inner();
        let place = self.locate(request.place.take())?;
        self.admit().await?;
        if let Some(answer) = at_once::access(&self.agent, &place, &request) {
            return Ok(Response::new(answer?));
        }
        self.answer(move |tree| operations::access(tree, &place, &request))
            .await
    }

    async fn stat_filesystem(
        &self,
        request: Request<StatFilesystemRequest>,
    ) -> Answer<StatFilesystemResponse> {
        let place = self.locate(request.into_inner().place)?;
        self.answer(move |tree| operations::stat_filesystem(tree, &place))
            .await
    }

    async fn make_directory(&self, request: Request<MakeDirectoryRequest>) -> Answer<Done> {
        let request = request.into_inner();
        self.answer(move |tree| operations::make_directory(tree, &request))
            .await
    }

    async fn make_node(&self, request: Request<MakeNodeRequest>) -> Answer<Done> {
        let request = request.into_inner();
        self.answer(move |tree| operations::make_node(tree, &request))
            .await
    }

    async fn remove_directory(&self, request: Request<RemoveDirectoryRequest>) -> Answer<Done> {
        let path = request.into_inner().path;
        self.answer(move |tree| operations::remove_directory(tree, &path))
            .await
    }

    async fn unlink(&self, request: Request<UnlinkRequest>) -> Answer<Done> {
        let path = request.into_inner().path;
        self.answer(move |tree| operations::unlink(tree, &path))
            .await
    }

    async fn rename(&self, request: Request<RenameRequest>) -> Answer<Done> {
        let request = request.into_inner();
        self.answer(move |tree| operations::rename(tree, &request))
            .await
    }

    async fn link(&self, request: Request<LinkRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let from = self.locate(request.from)?;
        self.answer(move |tree| operations::link(tree, &from, &request.to))
            .await
    }

    async fn symbolic_link(&self, request: Request<SymbolicLinkRequest>) -> Answer<Done> {
        let request = request.into_inner();
        self.answer(move |tree| operations::symbolic_link(tree, &request))
            .await
    }

    async fn set_mode(&self, request: Request<SetModeRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let place = self.locate(request.place)?;
        self.answer(move |tree| operations::set_mode(tree, &place, request.mode))
            .await
    }

    async fn set_owner(&self, request: Request<SetOwnerRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let place = self.locate(request.place)?;
        self.answer(move |tree| operations::set_owner(tree, &place, request.uid, request.gid))
            .await
    }

    async fn set_times(&self, request: Request<SetTimesRequest>) -> Answer<Done> {
        let mut request = request.into_inner();
        let place = self.locate(request.place.take())?;
        self.answer(move |tree| operations::set_times(tree, &place, &request))
            .await
    }

    async fn truncate(&self, request: Request<TruncateRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let place = self.locate(request.place)?;
        self.answer(move |tree| operations::truncate(tree, &place, request.size))
            .await
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let file = self.handles.get(request.handle)?;
        self.answer(move |_| operations::allocate(&file, &request))
            .await
    }

    async fn sync(&self, request: Request<SyncRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let file = self.handles.get(request.handle)?;
        self.answer(move |_| operations::sync(&file, request.data_only))
            .await
    }

    async fn seek(&self, request: Request<SeekRequest>) -> Answer<SeekResponse> {
        let request = request.into_inner();
        let file = self.handles.get(request.handle)?;
        self.answer(move |_| operations::seek(&file, &request))
            .await
    }

    async fn get_attribute(
        &self,
        request: Request<GetAttributeRequest>,
    ) -> Answer<GetAttributeResponse> {
        let request = request.into_inner();
        let place = self.locate(request.place)?;
        self.answer(move |tree| attributes::get(tree, &place, &request.name))
            .await
    }

    async fn list_attributes(
        &self,
        request: Request<ListAttributesRequest>,
    ) -> Answer<ListAttributesResponse> {
        let place = self.locate(request.into_inner().place)?;
        self.answer(move |tree| attributes::list(tree, &place))
            .await
    }

    async fn set_attribute(&self, request: Request<SetAttributeRequest>) -> Answer<Done> {
        let mut request = request.into_inner();
        let place = self.locate(request.place.take())?;
        self.answer(move |tree| attributes::set(tree, &place, &request))
            .await
    }

    async fn remove_attribute(&self, request: Request<RemoveAttributeRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let place = self.locate(request.place)?;
        self.answer(move |tree| attributes::remove(tree, &place, &request.name))
            .await
    }
}
